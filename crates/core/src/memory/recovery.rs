//! Recovery: a queue from its row and its blobs, each checked before anything of it counts. Says what was found, what was
//! lost and what to do. Knows nothing of where rows and blobs are stored.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::blob::{self, BlobKey, Damage};
use super::cells::{Cell, Cells, Phase};
use super::config::{Config, Durability};
use super::event::Event;
use super::journal::Journal;
use super::progress::{Progress, RunEnd};
use super::queue::{Dead, Queue, Restored, micros};
use super::record::{Record, Records, Standing, State, Totals};
use super::row::StateRow;
use super::token::Epoch;
use crate::name::QueueName;
use crate::queue::QueueState;

/// Reads a queue's row and blobs, in order.
///
/// ```
/// use tidegate_core::memory::{Config, Durability, Epoch, Queue, Recovery, StateRow};
/// use tidegate_core::{QueueName, Timestamp};
/// let (name, now) = (QueueName::new("mail").unwrap(), Timestamp::UNIX_EPOCH);
/// let mut queue = Queue::new(name.clone(), Config::default(), Durability::Journal, Epoch::FIRST, now);
/// let blob = queue.cut(256 << 10, now).unwrap();
/// queue.saved(blob.key.seq);
/// let row = StateRow::of(&mut queue);
/// let mut recovery = Recovery::new(name, &row, row.checksum(), now);
/// recovery.read(&blob.key, &blob.bytes);
/// let recovered = recovery.finish(Epoch::FIRST.next().unwrap(), false, now).unwrap();
/// assert_eq!((recovered.events, recovered.loss), (0, None));
/// ```
#[derive(Debug)]
pub struct Recovery {
    name: QueueName,
    started: Timestamp,
    /// What the row says; `None` when it was changed.
    row: Option<StateRow>,
    state: Option<State>,
    cells: Cells,
    dead: BTreeMap<u64, Dead>,
    progress: Progress,
    next: u64,
    blobs: Vec<(BlobKey, u64)>,
    /// The greatest sequence number of all blobs, also behind damage.
    last_seq: u64,
    /// The last blob ends a snapshot.
    is_complete: bool,
    loss: Option<Loss>,
}

/// What was found to be wrong, and what that costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// What is wrong.
    pub damage: Damage,
    /// With which blob; 0 for the queue's row.
    pub at: u64,
    /// Everything up to this blob can be recovered; 0 when nothing can.
    pub good_through: u64,
    /// How many stored blobs come after that, the damaged one included.
    pub blobs: u64,
    /// How many of them can be read, and how many events were published in those.
    pub readable: u64,
    /// Events that were published in the readable ones.
    pub published: u64,
    /// Events that were acked in the readable ones, and come back.
    pub acked: u64,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            0 => write!(f, "{}", self.damage)?,
            at => write!(f, "blob {at} is damaged: {}", self.damage)?,
        }
        let Self { good_through, blobs, readable, published, acked, .. } = self;
        write!(f, "; good through blob {good_through}, {blobs} stored after it, of which {readable} can be read")?;
        write!(f, " ({published} events published, {acked} acked)")
    }
}

/// A queue whose stored state is damaged, and that does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the memory queue {queue} is not started, since what was acknowledged would be lost: {loss}. \
     Restore the database from a backup, or accept the loss with `tidegate queues repair {queue}`"
)]
pub struct RecoveryRefused {
    /// The queue.
    pub queue: QueueName,
    /// What is wrong.
    pub loss: Loss,
}

/// A recovered queue.
#[derive(Debug)]
pub struct Recovered {
    /// The queue, under its new owner. Where something was lost, all of it is to be stored anew: all blobs that
    /// [`Queue::cut`] gives, [`Queue::first_needed`] in the row, and the removal of older blobs in one transaction,
    /// before the queue is used.
    pub queue: Queue,
    /// Live events and dead letters.
    pub events: u64,
    /// What was lost; `None` when nothing was.
    pub loss: Option<Loss>,
    /// When it began and ended.
    pub started: Timestamp,
    /// When it ended.
    pub completed: Timestamp,
}

/// The source's recovery record, on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryRecord {
    /// Identifies the record.
    pub id: String,
    /// The last event of the longest prefix of ended ones.
    pub checkpoint_id: Option<String>,
    /// How many events were recovered.
    pub events_recovered: u64,
    /// When it began.
    pub recovery_start_time: String,
    /// When it ended.
    pub recovery_complete_time: Option<String>,
    /// `completed`, `completed_with_loss` or `failed`.
    pub status: &'static str,
    /// What was wrong and what was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Recovered {
    /// The record of this recovery.
    #[must_use]
    pub fn record(&self, id: String) -> RecoveryRecord {
        RecoveryRecord {
            id,
            checkpoint_id: self.queue.checkpoint_id().map(Into::into),
            events_recovered: self.events,
            recovery_start_time: format!("{:.3}", self.started),
            recovery_complete_time: Some(format!("{:.3}", self.completed)),
            status: if self.loss.is_some() { "completed_with_loss" } else { "completed" },
            detail: self.loss.as_ref().map(|loss| format!("went on from the last good state: {loss}")),
        }
    }
}

impl RecoveryRefused {
    /// The record of the refused recovery.
    #[must_use]
    pub fn record(&self, id: String, started: Timestamp) -> RecoveryRecord {
        RecoveryRecord {
            id,
            checkpoint_id: None,
            events_recovered: 0,
            recovery_start_time: format!("{started:.3}"),
            recovery_complete_time: None,
            status: "failed",
            detail: Some(self.to_string()),
        }
    }
}

impl Recovery {
    /// Begins with the queue's row and the checksum that was stored with it.
    #[must_use]
    pub fn new(name: QueueName, row: &StateRow, checksum: u32, started: Timestamp) -> Self {
        let mut recovery = Self {
            name,
            started,
            row: None,
            state: None,
            cells: Cells::default(),
            dead: BTreeMap::new(),
            progress: Progress::default(),
            next: 1,
            blobs: Vec::new(),
            last_seq: 0,
            is_complete: true,
            loss: None,
        };
        let found = row.checksum();
        if found != checksum || row.name != recovery.name {
            recovery.damaged(0, Damage::StateRow { expected: checksum, found });
        } else {
            recovery.row = Some(row.clone());
        }
        recovery
    }

    /// Reads the next blob, in the order of sequence numbers. Behind damage nothing counts any more.
    pub fn read(&mut self, key: &BlobKey, bytes: &[u8]) {
        if self.row.as_ref().is_some_and(|row| key.seq < row.first_seq) {
            // It was not needed any more and not removed yet, unless its key is not what it was.
            if let Err(damage) = blob::open(&self.name, key, bytes) {
                self.damaged(key.seq, damage);
            }
            return;
        }
        self.last_seq = self.last_seq.max(key.seq);
        // A damaged row leaves the blobs good: they have the queue's state too.
        let is_behind_damage = self.loss.as_ref().is_some_and(|loss| loss.at > 0);
        match self.check(key, bytes) {
            Ok((records, _)) if is_behind_damage => self.count_lost(&records),
            Ok((records, more_follows)) => {
                self.apply(key.seq, records);
                self.blobs.push((*key, bytes.len() as u64));
                self.is_complete = !more_follows;
            }
            Err(_) if is_behind_damage => self.count_lost(&[]),
            Err(damage) => {
                self.damaged(key.seq, damage);
                self.count_lost(&[]);
            }
        }
    }

    fn damaged(&mut self, at: u64, damage: Damage) {
        let good_through = self.blobs.last().map_or(0, |(key, _)| key.seq);
        // The first damage of a blob says more than that of the row.
        if self.loss.as_ref().is_none_or(|loss| loss.at == 0) {
            self.loss = Some(Loss { damage, at, good_through, blobs: 0, readable: 0, published: 0, acked: 0 });
        }
    }

    fn count_lost(&mut self, records: &[Record<'_>]) {
        let Some(loss) = &mut self.loss else { return };
        loss.blobs += 1;
        loss.readable += u64::from(!records.is_empty());
        for record in records {
            match record {
                Record::Published { number, .. } | Record::Rewritten { number, .. } => {
                    loss.published += u64::from(matches!(record, Record::Published { .. }));
                    self.next = self.next.max(number + 1);
                }
                Record::Acked { .. } => loss.acked += 1,
                Record::State(state) => self.next = self.next.max(state.next_number),
                _ => {}
            }
        }
    }

    /// Checks a blob and all its records, before any of them counts.
    fn check<'b>(&self, key: &BlobKey, bytes: &'b [u8]) -> Result<(Vec<Record<'b>>, bool), Damage> {
        let opened = blob::open(&self.name, key, bytes)?;
        let is_behind_damage = self.loss.as_ref().is_some_and(|loss| loss.at > 0);
        if !is_behind_damage {
            self.check_order(key)?;
        }
        // Each record has at least two bytes, so that a count that is too high is no reason to allocate.
        let mut records = Vec::with_capacity((opened.count as usize).min(opened.body.len() / 2));
        for record in Records::new(opened.body) {
            let record = record.ok_or(Damage::Records("a record cannot be read"))?;
            match &record {
                Record::Published { number, .. } if self.cells.contains(*number) => {
                    return Err(Damage::Records("an event was published twice"));
                }
                Record::Published { number, .. } | Record::Rewritten { number, .. } | Record::Ended { number, .. }
                    if !(key.first..=key.last).contains(number) =>
                {
                    return Err(Damage::Records("an event is not among those that the header names"));
                }
                _ => {}
            }
            records.push(record);
        }
        let ends_with_state = matches!(records.last(), Some(Record::State(_)));
        if records.len() != opened.count as usize || !ends_with_state {
            return Err(Damage::Records("the records are not complete"));
        }
        Ok((records, opened.more_follows))
    }

    fn check_order(&self, key: &BlobKey) -> Result<(), Damage> {
        let first = || self.row.as_ref().map(|row| row.first_seq);
        let expected = self.blobs.last().map(|(before, _)| before.seq + 1).or_else(first);
        if let Some(expected) = expected.filter(|expected| *expected != key.seq) {
            return Err(Damage::Missing { expected, found: key.seq });
        }
        // The row may be of a later owner that has not written yet.
        let after = self.blobs.last().map_or(0, |(before, _)| before.epoch);
        if key.epoch < after { Err(Damage::Epoch { after, found: key.epoch }) } else { Ok(()) }
    }

    fn apply(&mut self, home: u64, records: Vec<Record<'_>>) {
        for record in records {
            match record {
                Record::Published { number, event } => self.hold(number, event, Standing::default(), home),
                Record::Rewritten { number, standing, event } => {
                    self.cells.remove(number);
                    self.dead.remove(&number);
                    self.hold(number, event, standing, home);
                }
                Record::Claimed { number, count } => self.claim(number, number + (count - 1)),
                Record::Acked { number } => drop(self.take(number)),
                Record::Discarded { number } => drop(self.dead.remove(&number)),
                Record::Returned { number, standing } => {
                    if let Some(cell) = self.cells.get_mut(number) {
                        cell.phase = phase_of(&standing);
                        (cell.retries, cell.trouble) = (standing.retries, standing.trouble);
                    }
                }
                Record::DeadLettered { number, standing } => {
                    if let Some(cell) = self.take(number) {
                        self.hold_dead(number, cell.event, standing, cell.home);
                    }
                }
                Record::Ended { number, event_id } => {
                    self.progress.ends.insert(number, RunEnd { id: event_id.into(), home });
                }
                Record::State(state) => {
                    self.next = self.next.max(state.next_number);
                    (self.progress.through, self.progress.id) = (state.checkpoint, (&*state.checkpoint_id).into());
                    self.state = Some(state);
                }
            }
        }
    }

    fn hold(&mut self, number: u64, event: Event, standing: Standing, home: u64) {
        self.next = self.next.max(number + 1);
        if standing.dead.is_some() {
            return self.hold_dead(number, event, standing, home);
        }
        let phase = phase_of(&standing);
        let Standing { retries, trouble, .. } = standing;
        self.cells.insert(number, Cell { event, phase, home, trouble, lane: 0, hash: 0, claim: 0, retries });
    }

    fn hold_dead(&mut self, number: u64, event: Event, standing: Standing, home: u64) {
        let at = standing.dead.unwrap_or_default();
        let dead = Dead { event, hash: 0, retries: standing.retries, trouble: standing.trouble, at, home };
        self.dead.insert(number, dead);
    }

    fn claim(&mut self, first: u64, last: u64) {
        // What is not here any more has ended, and its blob dropped.
        let numbers: Vec<u64> =
            self.cells.iter_from(first).map(|(number, _)| number).take_while(|number| *number <= last).collect();
        for number in numbers {
            if let Some(cell) = self.cells.get_mut(number) {
                cell.phase = Phase::Leased { grant: 0 };
            }
        }
    }

    fn take(&mut self, number: u64) -> Option<Cell> {
        let cell = self.cells.remove(number)?;
        self.progress.read_end(number, &cell.event, cell.home);
        Some(cell)
    }

    /// The queue under its new owner. A `snapshot` queue goes on from the last good state; with the durability `journal`
    /// damage is a reason not to start, unless the loss is accepted.
    ///
    /// # Errors
    /// When the queue does not start.
    pub fn finish(
        mut self,
        epoch: Epoch,
        accept_loss: bool,
        now: Timestamp,
    ) -> Result<Recovered, Box<RecoveryRefused>> {
        self.check_end();
        let known = self.state.take().or_else(|| self.row.as_ref().map(|row| row.state.clone()));
        let is_journal = known.as_ref().is_none_or(|state| state.durability == Durability::Journal);
        if let Some(loss) = self.loss.clone().filter(|_| is_journal && !accept_loss) {
            return Err(Box::new(RecoveryRefused { queue: self.name, loss }));
        }
        let mut state = known.unwrap_or_else(|| nothing_known(micros(now)));
        let is_unsaved = self.loss.is_some();
        let mut journal = Journal::new(&self.name, epoch, self.last_seq + 1);
        if !is_unsaved {
            self.blobs.iter().for_each(|(key, bytes)| journal.adopt(key, *bytes));
        }
        state.next_number = self.next.max(state.next_number);
        self.progress.complete(&self.cells, state.next_number);
        let events = (self.cells.len() + self.dead.len()) as u64;
        let Self { name, cells, dead, progress, started, .. } = self;
        let restored = Restored { state, cells, dead, progress, is_unsaved };
        let Some(queue) = Queue::restore(name.clone(), restored, journal, micros(now)) else {
            let damage = Damage::Records("two events have the same id");
            let (at, good_through) = (self.last_seq, 0);
            let loss = Loss { damage, at, good_through, blobs: 0, readable: 0, published: 0, acked: 0 };
            return Err(Box::new(RecoveryRefused { queue: name, loss }));
        };
        Ok(Recovered { queue, events, loss: self.loss, started, completed: now })
    }

    /// What only shows once all blobs are read.
    fn check_end(&mut self) {
        let read = self.blobs.last().map_or(0, |(key, _)| key.seq);
        if let Some(loss) = &mut self.loss {
            loss.good_through = read;
            return;
        }
        if let Some(last) = self.row.as_ref().map(|row| row.last_seq).filter(|last| read < *last) {
            return self.damaged(read + 1, Damage::MissingAtEnd { expected: read + 1, last });
        }
        let through = self.cells.first().unwrap_or(self.next) - 1;
        if self.is_complete && self.state.as_ref().is_some_and(|state| state.checkpoint != through) {
            self.damaged(read, Damage::Records("the live events do not fit to the checkpoint"));
        }
    }
}

fn phase_of(standing: &Standing) -> Phase {
    match standing.due {
        Some(due) => Phase::Delayed { due },
        None if standing.is_claimed => Phase::Leased { grant: 0 },
        None => Phase::Back { abandoned: false },
    }
}

/// The state of a queue of which nothing could be read.
fn nothing_known(now: i64) -> State {
    State {
        status: QueueState::Active,
        durability: Durability::Journal,
        config: Config::default(),
        created_at: now,
        updated_at: now,
        next_number: 1,
        totals: Totals::default(),
        checkpoint: 0,
        checkpoint_id: "".into(),
    }
}

#[cfg(test)]
mod tests;
