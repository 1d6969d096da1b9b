//! A queue from what recovery has read.

use std::collections::BTreeMap;

use super::super::cells::{Cells, Phase, Trouble};
use super::super::config::Durability;
use super::super::journal::Journal;
use super::super::progress::Progress;
use super::super::record::State;
use super::persist::standing;
use super::{Dead, Queue};
use crate::name::QueueName;

/// What recovery has read. Of a live event, `lane` and `hash` are not set; one that was claimed is leased under no
/// grant, one that waits is back.
#[derive(Debug)]
pub(in super::super) struct Restored {
    pub(in super::super) state: State,
    pub(in super::super) cells: Cells,
    pub(in super::super) dead: BTreeMap<u64, Dead>,
    pub(in super::super) progress: Progress,
    /// Everything is to be stored anew: what is stored is damaged.
    pub(in super::super) is_unsaved: bool,
}

impl Queue {
    /// The queue; `None` when two of its events have the same id. What was claimed counts as abandoned.
    pub(in super::super) fn restore(name: QueueName, restored: Restored, journal: Journal, now: i64) -> Option<Self> {
        let Restored { state, cells, dead, progress, is_unsaved } = restored;
        let mut queue = Self::with_state(name, state, journal, now);
        (queue.cells, queue.dead, queue.progress) = (cells, dead, progress);
        if is_unsaved {
            queue.forget_homes();
        }
        let numbers: Vec<u64> = queue.cells.iter_from(0).map(|(number, _)| number).collect();
        queue.reserve(numbers.len() + queue.dead.len());
        let mut claimed = Vec::new();
        for number in &numbers {
            queue.restore_event(*number, &mut claimed)?;
        }
        let letters: Vec<u64> = queue.dead.keys().copied().collect();
        for number in letters {
            queue.restore_dead_letter(number)?;
        }
        for end in queue.progress.ends.values() {
            queue.journal.enter(end.home, 0);
        }
        queue.is_slow = queue.cells.len() > queue.config.high_watermark as usize;
        // They are in no lane, like an event whose lease was just given up.
        for number in claimed {
            let error = "abandoned: the queue's owner stopped while the event was claimed".into();
            queue.fail(number, Box::new(Trouble { error, at: now }), None, now, false);
        }
        Some(queue)
    }

    fn reserve(&mut self, events: usize) {
        // The index is empty.
        self.index.reserve(events, |_| 0);
    }

    fn forget_homes(&mut self) {
        let numbers: Vec<u64> = self.cells.iter_from(0).map(|(number, _)| number).collect();
        for number in &numbers {
            if let Some(cell) = self.cells.get_mut(*number) {
                cell.home = 0;
            }
        }
        (self.unsaved, self.unsaved_from) = (numbers.len(), 0);
        self.dead.values_mut().for_each(|dead| dead.home = 0);
        self.unsaved_dead = self.dead.keys().copied().collect();
        self.progress.ends.values_mut().for_each(|end| end.home = 0);
        self.journal.change_state();
    }

    fn restore_event(&mut self, number: u64, claimed: &mut Vec<u64>) -> Option<()> {
        let event = self.cells.get(number)?.event.clone();
        let hash = self.hash_of(event.id_bytes());
        if self.find_hashed(hash, event.id_bytes()).is_some() {
            return None;
        }
        let lane = self.lanes.enter(event.pattern_bytes());
        let cell = self.cells.get_mut(number)?;
        (cell.hash, cell.lane) = (hash, lane);
        self.journal.enter(cell.home, event.packed().len());
        let is_claimed = matches!(cell.phase, Phase::Leased { .. });
        match cell.phase {
            Phase::Delayed { due } => drop(self.delayed.insert((due, number))),
            _ if is_claimed && self.durability == Durability::Journal => claimed.push(number),
            _ => {
                cell.phase = Phase::Fresh { next: 0 };
                if is_claimed && cell.home != 0 {
                    // It was claimed before the queue became a snapshot, where claims do not count: nor do they if it becomes a
                    // journal again.
                    self.journal.returned(number, &standing(cell, self.durability));
                }
                self.lanes.append(lane, number, &mut self.cells);
            }
        }
        self.index_insert(hash, number);
        Some(())
    }

    fn restore_dead_letter(&mut self, number: u64) -> Option<()> {
        let event = self.dead.get(&number)?.event.clone();
        let hash = self.hash_of(event.id_bytes());
        if self.find_hashed(hash, event.id_bytes()).is_some() {
            return None;
        }
        let dead = self.dead.get_mut(&number)?;
        dead.hash = hash;
        self.journal.enter(dead.home, event.packed().len());
        self.index_insert(hash, number);
        Some(())
    }
}
