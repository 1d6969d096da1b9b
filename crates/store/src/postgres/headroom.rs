//! How much more a queue with a depth limit surely takes, as last counted. Far from the limit, publishers need not count
//! each time; near it they count, one at a time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a count is relied on.
const FRESH_FOR: Duration = Duration::from_millis(250);
/// A node uses up at most this part of the room it counted before it counts again: others publish too.
const SHARE: u64 = 8;

/// Room by queue.
#[derive(Debug, Default)]
pub(super) struct Headroom(Mutex<HashMap<i32, Room>>);

#[derive(Debug)]
struct Room {
    limit: u64,
    left: u64,
    counted: Instant,
}

impl Headroom {
    /// Takes room without counting, if the last count leaves plenty.
    pub(super) fn take(&self, queue: i32, limit: u64, count: u64) -> bool {
        let mut rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match rooms.get_mut(&queue) {
            Some(room) if room.limit == limit && room.left >= count && room.counted.elapsed() < FRESH_FOR => {
                room.left -= count;
                true
            }
            _ => false,
        }
    }

    /// Notes how much room a count left.
    pub(super) fn learn(&self, queue: i32, limit: u64, left: u64) {
        let mut rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // With little left, every publish counts: the limit is then exact.
        let left = if left < limit / SHARE { 0 } else { left / SHARE };
        rooms.insert(queue, Room { limit, left, counted: Instant::now() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plenty_is_shared_and_little_is_counted() {
        let room = Headroom::default();
        assert!(!room.take(1, 1000, 1), "nothing is known yet");
        room.learn(1, 1000, 800);
        assert!(room.take(1, 1000, 100));
        assert!(!room.take(1, 1000, 1), "the share is used up");
        room.learn(1, 1000, 100);
        assert!(!room.take(1, 1000, 1), "near the limit");
        room.learn(1, 1000, 800);
        assert!(!room.take(1, 500, 1), "the limit changed");
    }
}
