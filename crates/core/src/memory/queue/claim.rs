//! Claims and leases: what is taken, for how long, and what becomes of events whose lease expires.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::super::cells::{Phase, Trouble};
use super::super::config::Durability;
use super::super::event::Event;
use super::super::pattern::Pattern;
use super::super::token::next_claim;
use super::outcome::LeaseRefused;
use super::{Queue, after, entry, micros, moment, number_of};
use crate::entry::LeaseToken;
use crate::id::EntryId;
use crate::queue::QueueState;

/// What a claim wants.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// At most so many events; the configured batchSize when `None`.
    pub max: Option<usize>,
    /// At most so many bytes of events, or one event.
    pub max_bytes: usize,
    /// Only events that one of these chooses; all when empty.
    pub patterns: &'a [Pattern],
    /// Who claims.
    pub worker: &'a str,
    /// For how long; the configured leaseSeconds when `None`.
    pub lease: Option<Duration>,
}

impl<'a> Wanted<'a> {
    /// A batch of any events.
    #[must_use]
    pub const fn new(worker: &'a str) -> Self {
        Self { max: None, max_bytes: usize::MAX, patterns: &[], worker, lease: None }
    }
}

/// What a claim took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The events, in order.
    pub events: Vec<Claimed>,
    /// Until when they are leased.
    pub until: Timestamp,
}

/// An event under a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// Its number.
    pub number: EntryId,
    /// The token of its lease.
    pub token: LeaseToken,
    /// The event.
    pub event: Event,
    /// How often it was tried before.
    pub retry_count: u32,
}

/// Neighbouring numbers that were claimed, for the journal.
#[derive(Debug, Default)]
struct Run {
    first: u64,
    count: u64,
}

impl Queue {
    /// Claims events that wait, in the order of their numbers. Leases that have expired and retries that are due are
    /// looked after before.
    pub fn claim(&mut self, wanted: &Wanted<'_>, now: Timestamp) -> Batch {
        let now = micros(now);
        self.wake(now);
        let lease = wanted.lease.unwrap_or(Duration::from_secs(self.config.lease_seconds.into()));
        let until = after(now, lease);
        let mut events = Vec::new();
        let max = wanted.max.unwrap_or(self.config.batch_size as usize).min(self.cells.len());
        if max > 0 && self.status != QueueState::Paused && now >= self.next_batch {
            let grant = self.leases.open(Arc::from(wanted.worker), now, until);
            events.reserve(max.min(1_024));
            if wanted.patterns.is_empty() {
                self.take_any(max, wanted.max_bytes, grant, &mut events);
            } else {
                self.take_chosen(max, wanted, grant, &mut events);
            }
            self.leases.close_if_empty(grant);
            if !events.is_empty() && self.config.processing_interval > 0 {
                self.next_batch = after(now, Duration::from_millis(self.config.processing_interval.into()));
            }
        }
        Batch { events, until: moment(until) }
    }

    fn take_any(&mut self, max: usize, max_bytes: usize, grant: u32, events: &mut Vec<Claimed>) {
        let (mut bytes, mut run) = (0, Run::default());
        while events.len() < max {
            let Some((number, lane)) = self.lanes.first() else { break };
            if number >= self.stored_before || !self.fits(number, max_bytes, &mut bytes, events.is_empty()) {
                break;
            }
            events.extend(self.take(lane, grant, &mut run));
        }
        self.record_run(&run);
    }

    fn take_chosen(&mut self, max: usize, wanted: &Wanted<'_>, grant: u32, events: &mut Vec<Claimed>) {
        let (mut bytes, mut run) = (0, Run::default());
        let mut heads = self.lanes.chosen(wanted.patterns);
        while let Some(mut top) = heads.peek_mut().filter(|_| events.len() < max) {
            let Reverse((number, lane)) = *top;
            if number >= self.stored_before || !self.fits(number, wanted.max_bytes, &mut bytes, events.is_empty()) {
                break;
            }
            events.extend(self.take(lane, grant, &mut run));
            match self.lanes.head(lane) {
                Some(head) => *top = Reverse((head, lane)),
                None => drop(std::collections::binary_heap::PeekMut::pop(top)),
            }
        }
        self.record_run(&run);
    }

    fn fits(&self, number: u64, max_bytes: usize, bytes: &mut usize, is_first: bool) -> bool {
        let size = self.cells.get(number).map_or(0, |cell| cell.event.packed().len());
        *bytes = bytes.saturating_add(size);
        is_first || *bytes <= max_bytes
    }

    /// Takes the first event of a lane.
    fn take(&mut self, lane: u32, grant: u32, run: &mut Run) -> Option<Claimed> {
        let number = self.lanes.take(lane, &self.cells)?;
        let cell = self.cells.get_mut(number)?;
        cell.phase = Phase::Leased { grant };
        cell.claim = next_claim(cell.claim);
        let token = self.journal.epoch().token(cell.claim);
        let claimed = Claimed { number: entry(number), token, event: cell.event.clone(), retry_count: cell.retries };
        let is_recorded = self.durability == Durability::Journal && cell.home != 0;
        self.leases.add(grant, number);
        if is_recorded {
            if run.first + run.count == number && run.count > 0 {
                run.count += 1;
            } else {
                self.record_run(run);
                *run = Run { first: number, count: 1 };
            }
        }
        Some(claimed)
    }

    /// What was claimed is recorded, so that a crash counts as an attempt of what was worked on. Nobody waits for it.
    fn record_run(&mut self, run: &Run) {
        if run.count > 0 {
            self.journal.claimed(run.first, run.count);
        }
    }

    /// Looks after leases that have expired and retries that are due.
    fn wake(&mut self, now: i64) {
        while let Some((id, grant)) = self.leases.pop_expired(now) {
            for number in &grant.numbers {
                if self.cells.get(*number).is_some_and(|cell| cell.phase == Phase::Leased { grant: id }) {
                    self.abandon(*number, &grant.worker, now);
                }
            }
        }
        while let Some((_, number)) = self.delayed.first().copied().filter(|(due, _)| *due <= now) {
            self.delayed.pop_first();
            if let Some(cell) = self.cells.get_mut(number) {
                cell.phase = Phase::Back { abandoned: false };
                self.lanes.put_back(cell.lane, number);
            }
        }
    }

    /// The attempt of a worker that lost its lease counts as a failed one.
    pub(super) fn abandon(&mut self, number: u64, worker: &str, now: i64) {
        let error = format!("abandoned: the lease of {worker} expired").into();
        let trouble = Box::new(Trouble { error, at: now });
        self.fail(number, trouble, None, now, true);
    }

    /// Looks after leases that have expired and retries that are due, which claims do too.
    pub fn tick(&mut self, now: Timestamp) {
        self.wake(micros(now));
    }

    /// When something can be claimed that cannot be claimed now, if nothing else happens: the next retry is due, lease
    /// expires, or batch may follow.
    pub fn next_wake(&mut self) -> Option<Timestamp> {
        if self.status == QueueState::Paused || self.cells.len() == 0 {
            return None;
        }
        let waits = self.lanes.first().is_some_and(|(number, _)| number < self.stored_before);
        let batch = (waits && self.next_batch > i64::MIN).then_some(self.next_batch);
        let due = self.delayed.first().map(|(due, _)| *due);
        let expiry = self.leases.next_end();
        due.into_iter().chain(expiry).chain(batch).min().map(moment)
    }

    /// Extends leases, to so long from now; answers each in order.
    ///
    /// # Errors
    /// For each event that the caller does not hold.
    pub fn extend(
        &mut self,
        items: &[(EntryId, LeaseToken)],
        lease: Option<Duration>,
        now: Timestamp,
    ) -> Vec<Result<Timestamp, LeaseRefused>> {
        let now = micros(now);
        let until = after(now, lease.unwrap_or(Duration::from_secs(self.config.lease_seconds.into())));
        // What was claimed together is mostly extended together, and stays together.
        let mut moved: Option<(u32, u32)> = None;
        let mut extend = |id: EntryId, token| {
            let number = number_of(id);
            let old = self.holder(number, token)?.ok_or(LeaseRefused::Fenced)?;
            let new = match moved {
                Some((from, to)) if from == old => to,
                _ => {
                    let grant = self.leases.get(old).ok_or(LeaseRefused::Fenced)?;
                    let (worker, since) = (Arc::clone(&grant.worker), grant.since);
                    self.leases.open(worker, since, until)
                }
            };
            self.leases.add(new, number);
            self.leases.give_up(old);
            // The old one's id may be given to another grant once it is over.
            moved = self.leases.get(old).is_some().then_some((old, new));
            if let Some(cell) = self.cells.get_mut(number) {
                cell.phase = Phase::Leased { grant: new };
            }
            Ok(moment(until))
        };
        items.iter().map(|(id, token)| extend(*id, *token)).collect()
    }

    /// Moves the end of all leases, by the time during which nobody could have extended them.
    pub fn shift_leases(&mut self, by: Duration) {
        self.leases.shift(after(0, by));
    }
}
