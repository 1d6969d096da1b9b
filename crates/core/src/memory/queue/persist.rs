//! What has to be stored: blobs, checkpoints, compaction, and when.

use std::time::Duration;

use jiff::Timestamp;

use super::super::blob::Blob;
use super::super::cells::{Cell, Phase};
use super::super::config::Durability;
use super::super::journal::Stored;
use super::super::record::{Standing, State};
use super::{Queue, after, micros};

/// A checkpoint to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The last event of the longest prefix of ended ones.
    pub checkpoint_id: String,
    /// How many events have been processed.
    pub event_count: u64,
}

/// How an event stands. A snapshot does not say that it is claimed.
pub(super) fn standing(cell: &Cell, durability: Durability) -> Standing {
    let due = if let Phase::Delayed { due } = cell.phase { Some(due) } else { None };
    let is_claimed = durability == Durability::Journal && matches!(cell.phase, Phase::Leased { .. });
    Standing { retries: cell.retries, due, trouble: cell.trouble.clone(), dead: None, is_claimed }
}

impl Queue {
    /// The queue's own state.
    #[must_use]
    pub fn state(&self) -> State {
        State {
            status: self.status,
            durability: self.durability,
            config: self.config,
            created_at: self.created_at,
            updated_at: self.updated_at,
            next_number: self.next,
            totals: self.totals,
            checkpoint: self.progress.through,
            checkpoint_id: self.progress.id.as_str().into(),
        }
    }

    /// The blob with which everything that has happened so far is stored; the last stored one when nothing waits.
    #[must_use]
    pub const fn awaits(&self) -> u64 {
        let open = self.journal.open_seq();
        if self.journal.has_changes() || self.unsaved > 0 { open } else { open - 1 }
    }

    /// Whether something waits to be cut.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.journal.has_changes() || self.unsaved > 0 || !self.unsaved_dead.is_empty()
    }

    /// Bytes that wait to be cut, without those of events that a snapshot will take.
    #[must_use]
    pub const fn uncut_bytes(&self) -> usize {
        self.journal.uncut_bytes()
    }

    /// Whether a snapshot is due: so many events are not stored, or changes have waited for the configured interval.
    #[must_use]
    pub fn is_persistence_due(&self, now: Timestamp) -> bool {
        let waiting = self.unsaved + self.journal.uncut_records() as usize;
        let interval = Duration::from_millis(self.config.persistence_interval.into());
        let is_old = micros(now) >= after(self.last_cut, interval);
        self.has_changes() && (is_old || waiting >= self.config.persistence_threshold as usize)
    }

    /// Makes a blob of what is not stored, of some `limit` bytes or of all that is recorded if that is more. Cut until
    /// nothing is answered to have all of it. Blobs are to be stored in order; when one cannot be, the queue is of no use
    /// any more and has to be recovered.
    pub fn cut(&mut self, limit: usize, now: Timestamp) -> Option<Blob> {
        if !self.has_changes() {
            return None;
        }
        self.record_unsaved(limit);
        self.last_cut = micros(now);
        let more_follows = self.unsaved > 0 || !self.unsaved_dead.is_empty();
        let state = self.state();
        Some(self.journal.cut(&state, more_follows))
    }

    /// Records what a snapshot has not recorded yet.
    fn record_unsaved(&mut self, limit: usize) {
        self.record_unsaved_ends();
        while let Some(number) = self.unsaved_dead.pop() {
            if let Some(dead) = self.dead.get_mut(&number).filter(|dead| dead.home == 0) {
                dead.home = self.journal.rewritten(number, &dead.standing(), &dead.event);
            }
            if self.journal.uncut_bytes() >= limit {
                return;
            }
        }
        if self.unsaved == 0 {
            self.unsaved_from = self.next;
            return;
        }
        let mut room = limit.saturating_sub(self.journal.uncut_bytes());
        let unsaved = self.cells.iter_from(self.unsaved_from).filter(|(_, cell)| cell.home == 0);
        let mut fits = |cell: &Cell| {
            let had_room = room > 0;
            // With its tag, number and length.
            room = room.saturating_sub(cell.event.packed().len() + 16);
            had_room
        };
        let numbers: Vec<u64> = unsaved.take_while(|(_, cell)| fits(cell)).map(|(number, _)| number).collect();
        for number in numbers {
            let Some(cell) = self.cells.get_mut(number) else { continue };
            let standing = standing(cell, self.durability);
            cell.home = if standing == Standing::default() {
                self.journal.published(number, &cell.event)
            } else {
                self.journal.rewritten(number, &standing, &cell.event)
            };
            self.unsaved -= 1;
            self.unsaved_from = number + 1;
        }
    }

    fn record_unsaved_ends(&mut self) {
        for (number, end) in &mut self.progress.ends {
            if end.home == 0 {
                end.home = self.journal.ended(*number, &end.id);
            }
        }
    }

    /// All blobs up to this one are stored.
    pub fn saved(&mut self, seq: u64) {
        if let Some(next_number) = self.journal.save(seq)
            && self.durability == Durability::Journal
        {
            self.stored_before = self.stored_before.max(next_number);
        }
    }

    /// The last blob that is known to be stored; 0 when none is.
    #[must_use]
    pub const fn saved_through(&self) -> u64 {
        self.journal.saved()
    }

    /// The first blob that is still needed: those before it can be removed, together with writing this number into the
    /// queue's row.
    pub fn first_needed(&mut self) -> u64 {
        self.journal.drop_unneeded()
    }

    /// What is stored and what of it is needed, in bytes.
    #[must_use]
    pub const fn stored_bytes(&self) -> (u64, u64) {
        self.journal.sizes()
    }

    /// When most of what is stored is not needed, records what the first blob still holds once more, up to some `limit`
    /// bytes, so that it can be dropped. Answers whether something was recorded.
    pub fn compact(&mut self, limit: usize) -> bool {
        let Some(blob) = self.journal.to_compact() else { return false };
        self.rewrite(blob, limit);
        true
    }

    /// The same whether it is worth it or not.
    #[cfg(test)]
    pub(super) fn compact_for_test(&mut self, limit: usize) -> bool {
        let Some(blob) = self.journal.first_live() else { return false };
        self.rewrite(blob, limit);
        true
    }

    fn rewrite(&mut self, blob: Stored, limit: usize) {
        let full = self.journal.uncut_bytes().saturating_add(limit);
        let of_blob = |home: u64| home == blob.seq;
        let events = self.cells.iter_from(blob.first).take_while(|(number, _)| *number <= blob.last);
        let numbers: Vec<u64> = events.filter(|(_, cell)| of_blob(cell.home)).map(|(number, _)| number).collect();
        for number in numbers {
            let Some(cell) = self.cells.get_mut(number).filter(|_| self.journal.uncut_bytes() < full) else { continue };
            self.journal.leave(cell.home, cell.event.packed().len());
            cell.home = self.journal.rewritten(number, &standing(cell, self.durability), &cell.event);
        }
        for (number, dead) in self.dead.range_mut(blob.first..=blob.last).filter(|(_, dead)| of_blob(dead.home)) {
            if self.journal.uncut_bytes() < full {
                self.journal.leave(dead.home, dead.event.packed().len());
                dead.home = self.journal.rewritten(*number, &dead.standing(), &dead.event);
            }
        }
        for (number, end) in self.progress.ends.range_mut(blob.first..=blob.last) {
            if of_blob(end.home) && self.journal.uncut_bytes() < full {
                self.journal.leave(end.home, 0);
                end.home = self.journal.ended(*number, &end.id);
            }
        }
    }

    /// The checkpoint to be kept, if it has moved since the last one was taken.
    pub fn take_checkpoint(&mut self) -> Option<Checkpoint> {
        if self.progress.through == self.last_checkpoint || self.progress.id.is_empty() {
            return None;
        }
        self.last_checkpoint = self.progress.through;
        Some(Checkpoint { checkpoint_id: self.progress.id.clone(), event_count: self.totals.processed })
    }
}
