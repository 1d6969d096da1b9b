//! Pause, resume and drain, and changes of the configuration.

use jiff::Timestamp;

use super::super::cells::{Cell, Phase};
use super::super::config::{Config, Durability};
use super::{Queue, micros};
use crate::queue::QueueState;

/// Why a status cannot be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StatusRefused {
    /// A draining queue delivers until it is empty.
    #[error("the queue is draining: it must be resumed before it can be paused")]
    Draining,
}

impl Queue {
    /// Stops deliveries. Answers whether that is new.
    ///
    /// # Errors
    /// When the queue is draining.
    pub fn pause(&mut self, now: Timestamp) -> Result<bool, StatusRefused> {
        if self.status == QueueState::Draining {
            return Err(StatusRefused::Draining);
        }
        Ok(self.change_status(QueueState::Paused, now))
    }

    /// Accepts and delivers again, after a pause or a drain. Answers whether that is new.
    pub fn resume(&mut self, now: Timestamp) -> bool {
        self.change_status(QueueState::Active, now)
    }

    /// Refuses new events and delivers the rest, also of a paused queue. Answers whether that is new.
    pub fn drain(&mut self, now: Timestamp) -> bool {
        self.change_status(QueueState::Draining, now)
    }

    fn change_status(&mut self, status: QueueState, now: Timestamp) -> bool {
        let is_new = self.status != status;
        if is_new {
            self.status = status;
            self.updated_at = micros(now);
            self.journal.change_state();
        }
        is_new
    }

    /// Changes the configuration, which must have been checked, and what of the queue survives a crash. Events beyond a
    /// smaller depth stay. What was published as a snapshot is stored with the next blob.
    pub fn configure(&mut self, config: Config, durability: Durability, now: Timestamp) {
        if (self.config, self.durability) == (config, durability) {
            return;
        }
        if self.durability != durability {
            // Whoever was told that an event is in the queue may see it delivered.
            self.stored_before = if durability == Durability::Journal { self.next } else { u64::MAX };
        }
        (self.config, self.durability) = (config, durability);
        if durability == Durability::Journal {
            self.record_claims();
        }
        if config.processing_interval == 0 {
            self.next_batch = i64::MIN;
        }
        let depth = self.cells.len();
        self.is_slow =
            depth > config.high_watermark as usize || self.is_slow && depth > config.low_watermark() as usize;
        self.updated_at = micros(now);
        self.journal.change_state();
    }

    /// Records what is claimed, which a snapshot did not.
    fn record_claims(&mut self) {
        let is_claimed = |cell: &Cell| cell.home != 0 && matches!(cell.phase, Phase::Leased { .. });
        for (number, _) in self.cells.iter_from(0).filter(|(_, cell)| is_claimed(cell)) {
            self.journal.claimed(number, 1);
        }
    }
}
