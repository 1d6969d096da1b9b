//! Dead letters: events whose retries are used up. They keep their event id until they are redriven or discarded.

use jiff::Timestamp;

use super::super::cells::Trouble;
use super::super::event::Event;
use super::super::record::Standing;
use super::{PublishRefused, Queue, entry, micros, moment, number_of};
use crate::id::EntryId;

#[derive(Debug, Clone)]
pub(in super::super) struct Dead {
    pub(in super::super) event: Event,
    pub(in super::super) hash: u32,
    pub(in super::super) retries: u32,
    pub(in super::super) trouble: Option<Box<Trouble>>,
    /// When it became one, in microseconds.
    pub(in super::super) at: i64,
    pub(in super::super) home: u64,
}

impl Dead {
    pub(super) fn standing(&self) -> Standing {
        let trouble = self.trouble.clone();
        Standing { retries: self.retries, trouble, dead: Some(self.at), ..Standing::default() }
    }
}

/// A dead letter, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter<'a> {
    /// Its number.
    pub number: EntryId,
    /// The event.
    pub event: &'a Event,
    /// How often it was tried again.
    pub retry_count: u32,
    /// What failed last.
    pub last_error: Option<&'a str>,
    /// When that was.
    pub last_error_time: Option<Timestamp>,
    /// When it became a dead letter.
    pub since: Timestamp,
}

/// Why a dead letter is not redriven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RedriveRefused {
    /// There is no such dead letter.
    #[error("there is no such dead letter")]
    Unknown,
    /// The queue accepts no event.
    #[error(transparent)]
    NotAccepted(#[from] PublishRefused),
}

impl Queue {
    /// Makes a live event a dead letter, which does not hold the checkpoint back.
    pub(super) fn bury(&mut self, number: u64, now: i64) {
        let Some(cell) = self.take_out(number) else { return };
        let dead = Dead {
            event: cell.event,
            hash: cell.hash,
            retries: cell.retries,
            trouble: cell.trouble,
            at: now,
            home: cell.home,
        };
        if cell.home == 0 {
            self.unsaved_dead.push(number);
        } else {
            self.journal.dead_lettered(number, &dead.standing());
        }
        self.dead.insert(number, dead);
    }

    /// Puts a dead letter at the end of the queue, with a new number and all its retries. Answers the number.
    ///
    /// # Errors
    /// When there is no such dead letter, or the queue accepts no event.
    pub fn redrive(&mut self, id: EntryId, now: Timestamp) -> Result<EntryId, RedriveRefused> {
        if !self.dead.contains_key(&number_of(id)) {
            return Err(RedriveRefused::Unknown);
        }
        self.check_accepts()?;
        let dead = self.take_dead(number_of(id)).ok_or(RedriveRefused::Unknown)?;
        self.updated_at = micros(now);
        Ok(entry(self.add(dead.event, dead.hash, dead.trouble)))
    }

    /// Forgets a dead letter; `false` when there is no such one.
    pub fn discard(&mut self, id: EntryId, now: Timestamp) -> bool {
        let is_discarded = self.take_dead(number_of(id)).is_some();
        if is_discarded {
            self.updated_at = micros(now);
        }
        is_discarded
    }

    fn take_dead(&mut self, number: u64) -> Option<Dead> {
        let dead = self.dead.remove(&number)?;
        self.index_remove(dead.hash, number);
        if dead.home != 0 {
            self.journal.discarded(number);
            self.journal.leave(dead.home, dead.event.packed().len());
        }
        self.journal.change_state();
        Some(dead)
    }

    /// Dead letters with a number above `after`, in order.
    pub fn list_dead_letters(&self, after: u64) -> impl Iterator<Item = DeadLetter<'_>> {
        self.dead.range(after.saturating_add(1)..).map(|(number, dead)| DeadLetter {
            number: entry(*number),
            event: &dead.event,
            retry_count: dead.retries,
            last_error: dead.trouble.as_ref().map(|trouble| &*trouble.error),
            last_error_time: dead.trouble.as_ref().map(|trouble| moment(trouble.at)),
            since: moment(dead.at),
        })
    }
}
