//! What a holder says of its attempt: ack, nack and release.

use std::time::Duration;

use jiff::Timestamp;

use super::super::cells::{Phase, Trouble};
use super::super::record::Standing;
use super::super::token::Epoch;
use super::{Queue, after, micros, moment, number_of};
use crate::entry::LeaseToken;
use crate::id::EntryId;

/// The longest error that is kept, in bytes; the rest is cut off.
pub(super) const MAX_ERROR: usize = 2_000;

/// Why a holder's word changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefused {
    /// There never was such an event.
    #[error("there is no such event in the queue")]
    Unknown,
    /// It has ended, or is a dead letter.
    #[error("the event has ended")]
    Ended,
    /// The lease is over: it expired and the event was claimed again, or the event was given back, or the queue has
    /// another owner.
    #[error("the lease is over: the event was given back or claimed again since, or the queue has another owner")]
    Fenced,
}

fn cut_off(error: &str) -> &str {
    let end = (0..=MAX_ERROR.min(error.len())).rev().find(|end| error.is_char_boundary(*end));
    &error[..end.unwrap_or_default()]
}

/// What a failed attempt leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nacked {
    /// It is tried again.
    Retry {
        /// How many retries there were, with the one to come.
        retry_count: u32,
        /// From when on.
        due: Timestamp,
    },
    /// Its retries are used up.
    DeadLetter,
}

impl Queue {
    /// The grant under which an event is held with this token; `None` when the lease expired and nobody has claimed the
    /// event since.
    pub(super) fn holder(&self, number: u64, token: LeaseToken) -> Result<Option<u32>, LeaseRefused> {
        let Some(cell) = self.cells.get(number) else {
            let was_there = number < self.next;
            return Err(if was_there { LeaseRefused::Ended } else { LeaseRefused::Unknown });
        };
        if Epoch::of(token) != Some(self.epoch()) || self.epoch().token(cell.claim) != token {
            return Err(LeaseRefused::Fenced);
        }
        match cell.phase {
            Phase::Leased { grant } => Ok(Some(grant)),
            Phase::Back { abandoned: true } => Ok(None),
            _ => Err(LeaseRefused::Fenced),
        }
    }

    /// The event was processed. A holder whose lease has expired may still say so until the event is claimed again.
    ///
    /// # Errors
    /// When the caller does not hold it.
    pub fn ack(&mut self, id: EntryId, token: LeaseToken, now: Timestamp) -> Result<(), LeaseRefused> {
        let (number, now) = (number_of(id), micros(now));
        if let Some(grant) = self.holder(number, token)? {
            let since = self.leases.get(grant).map_or(now, |grant| grant.since);
            let took = u64::try_from(now.saturating_sub(since)).unwrap_or_default();
            self.totals.processing_micros = self.totals.processing_micros.saturating_add(took);
            self.leases.give_up(grant);
        } else if let Some(lane) = self.cells.get(number).map(|cell| cell.lane) {
            self.lanes.withdraw(lane, number);
        }
        let Some(cell) = self.take_out(number) else { return Err(LeaseRefused::Ended) };
        self.index_remove(cell.hash, number);
        self.totals.processed += 1;
        self.updated_at = now;
        if cell.home != 0 {
            self.journal.acked(number);
            self.journal.leave(cell.home, cell.event.packed().len());
        }
        Ok(())
    }

    /// The attempt failed: the event is tried again after `delay`, else after the configured one, or becomes a dead letter.
    ///
    /// # Errors
    /// When the caller does not hold it.
    pub fn nack(
        &mut self,
        id: EntryId,
        token: LeaseToken,
        error: Option<&str>,
        delay: Option<Duration>,
        now: Timestamp,
    ) -> Result<Nacked, LeaseRefused> {
        let (number, now) = (number_of(id), micros(now));
        let grant = self.holder(number, token)?.ok_or(LeaseRefused::Fenced)?;
        self.leases.give_up(grant);
        let error = error.map_or("", cut_off);
        let trouble = Box::new(Trouble { error: error.into(), at: now });
        let delay = delay.unwrap_or(Duration::from_secs(self.config.retry_delay_seconds.into()));
        Ok(self.fail(number, trouble, Some(delay), now, false))
    }

    /// Counts a failed attempt, of an event whose lease was given up.
    pub(super) fn fail(
        &mut self,
        number: u64,
        trouble: Box<Trouble>,
        delay: Option<Duration>,
        now: i64,
        abandoned: bool,
    ) -> Nacked {
        self.totals.errors += 1;
        self.updated_at = now;
        self.journal.change_state();
        let Some(cell) = self.cells.get_mut(number) else { return Nacked::DeadLetter };
        cell.trouble = Some(trouble);
        if cell.retries >= self.config.max_retries {
            self.bury(number, now);
            return Nacked::DeadLetter;
        }
        cell.retries += 1;
        let retry_count = cell.retries;
        let due = delay.filter(|delay| !delay.is_zero()).map(|delay| after(now, delay));
        self.give_back(number, due, abandoned);
        Nacked::Retry { retry_count, due: moment(due.unwrap_or(now)) }
    }

    /// Gives the event back without an outcome, which does not count as an attempt.
    ///
    /// # Errors
    /// When the caller does not hold it.
    pub fn release(
        &mut self,
        id: EntryId,
        token: LeaseToken,
        delay: Option<Duration>,
        now: Timestamp,
    ) -> Result<(), LeaseRefused> {
        let (number, now) = (number_of(id), micros(now));
        let grant = self.holder(number, token)?.ok_or(LeaseRefused::Fenced)?;
        self.leases.give_up(grant);
        self.updated_at = now;
        let due = delay.filter(|delay| !delay.is_zero()).map(|delay| after(now, delay));
        self.give_back(number, due, false);
        Ok(())
    }

    /// Lets an event wait again, at once or until it is due.
    fn give_back(&mut self, number: u64, due: Option<i64>, abandoned: bool) {
        let Some(cell) = self.cells.get_mut(number) else { return };
        match due {
            Some(due) => {
                cell.phase = Phase::Delayed { due };
                self.delayed.insert((due, number));
            }
            None => {
                cell.phase = Phase::Back { abandoned };
                self.lanes.put_back(cell.lane, number);
            }
        }
        if cell.home != 0 {
            let trouble = cell.trouble.clone();
            let standing = Standing { retries: cell.retries, due, trouble, ..Standing::default() };
            self.journal.returned(number, &standing);
        }
    }
}
