//! The checkpoint: the end of the longest prefix of ended events, and which event that is. What has ended beyond the
//! checkpoint is whatever is not live, so only the ids of events that can become the checkpoint are kept: those that
//! are followed by an live one.

use std::collections::BTreeMap;

use super::cells::Cells;
use super::event::Event;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// All events up to this number have ended.
    pub(super) through: u64,
    /// The id of the last one; empty when none was.
    pub(super) id: String,
    /// Ended events beyond the checkpoint whose next one has not ended.
    pub(super) ends: BTreeMap<u64, RunEnd>,
}

#[derive(Debug)]
pub(super) struct RunEnd {
    pub(super) id: Box<str>,
    /// The blob from which the id is known; 0 while there is none.
    pub(super) home: u64,
}

impl Progress {
    /// An event has just been taken out of `cells`; `next` is the first number that is not used yet. Returns the homes
    /// of ends that are not kept any more, and whether one was added.
    pub(super) fn end(&mut self, number: u64, event: &Event, home: u64, cells: &Cells, next: u64) -> Change {
        if number <= self.through {
            return Change::default();
        }
        let before = if number > self.through + 1 && !cells.contains(number - 1) {
            self.ends.remove(&(number - 1)).map(|end| end.home)
        } else {
            None
        };
        let is_end = number + 1 == next || cells.contains(number + 1);
        if number == self.through + 1 {
            if is_end {
                self.through = number;
                self.id.clear();
                self.id.push_str(event.event_id());
                return Change { removed: before, added: false };
            }
            let removed = self.advance(cells, next);
            return Change { removed, added: false };
        }
        if is_end {
            self.ends.insert(number, RunEnd { id: event.event_id().into(), home });
        }
        Change { removed: before, added: is_end }
    }

    /// The same while records are read. What follows it may be read later, so that it is kept until all is.
    pub(super) fn read_end(&mut self, number: u64, event: &Event, home: u64) {
        if number <= self.through {
            return;
        }
        if number == self.through + 1 {
            self.through = number;
            self.id.clear();
            self.id.push_str(event.event_id());
            return;
        }
        // Of neighbours that have ended, only the last one can be an end.
        self.ends.remove(&(number - 1));
        self.ends.insert(number, RunEnd { id: event.event_id().into(), home });
    }

    /// Moves the checkpoint to the last ended event before the first live one.
    fn advance(&mut self, cells: &Cells, next: u64) -> Option<u64> {
        self.through = cells.first().unwrap_or(next).saturating_sub(1);
        let end = self.ends.remove(&self.through)?;
        self.id.clear();
        self.id.push_str(&end.id);
        Some(end.home)
    }

    /// After all has been read: drops the ends that are none, and moves the checkpoint.
    pub(super) fn complete(&mut self, cells: &Cells, next: u64) {
        if cells.first().unwrap_or(next) > self.through + 1 {
            self.advance(cells, next);
        }
        let through = self.through;
        self.ends.retain(|number, _| {
            *number > through && !cells.contains(*number) && (number + 1 == next || cells.contains(number + 1))
        });
    }
}

/// What became of ends.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// The home of the one that is none any more.
    pub(super) removed: Option<u64>,
    /// The ended event is one.
    pub(super) added: bool,
}
