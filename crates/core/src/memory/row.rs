//! The row with a queue's state: what it says beside the blobs, and its checksum over a form of its own, so that neither
//! the database's formatting of JSON nor the order of columns matters.

use super::codec::{put_bytes, put_number};
use super::queue::Queue;
use super::record::{State, put_state};
use crate::name::QueueName;

/// What the queue's row says, but for the events that it shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateRow {
    /// The queue's client and name.
    pub name: QueueName,
    /// Its own state when the row was written; that of the last blob is newer.
    pub state: State,
    /// The owner.
    pub epoch: u64,
    /// The first blob that is needed; those before it are to be removed.
    pub first_seq: u64,
    /// The last blob that was stored when the row was written; 0 when none was.
    pub last_seq: u64,
}

impl StateRow {
    /// The row of a queue as it stands. What is not needed any more is dropped with it.
    #[must_use]
    pub fn of(queue: &mut Queue) -> Self {
        let first_seq = queue.first_needed();
        Self {
            name: queue.name().clone(),
            state: queue.state(),
            epoch: queue.epoch().get(),
            first_seq,
            last_seq: queue.saved_through(),
        }
    }

    /// The checksum to be stored with the row.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        let mut bytes = Vec::with_capacity(256);
        put_bytes(&mut bytes, self.name.to_string().as_bytes());
        put_state(&mut bytes, &self.state);
        for number in [self.epoch, self.first_seq, self.last_seq] {
            put_number(&mut bytes, number);
        }
        crc32fast::hash(&bytes)
    }
}
