//! How many more entries a queue with a depth limit surely takes, as last counted. Far from the limit publishers need
//! not count each time; near it they do, one at a time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a count is relied on.
const FRESH_FOR: Duration = Duration::from_millis(250);
/// A node uses at most one part in this many of the headroom before it counts again: other nodes publish too.
const SHARE: u64 = 8;

/// The headroom of queues, by id.
#[derive(Debug, Default)]
pub(in crate::postgres) struct Headroom(Mutex<HashMap<i32, Remaining>>);

#[derive(Debug)]
struct Remaining {
    /// The depth limit that the count was made under.
    limit: u64,
    /// Entries that may still be published without counting.
    left: u64,
    counted: Instant,
}

impl Headroom {
    /// Takes headroom for `count` entries without counting them, if the last count allows it.
    pub(in crate::postgres) fn take(&self, queue: i32, limit: u64, count: u64) -> bool {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match queues.get_mut(&queue) {
            Some(last) if last.limit == limit && last.left >= count && last.counted.elapsed() < FRESH_FOR => {
                last.left -= count;
                true
            }
            _ => false,
        }
    }

    /// Records how many more entries a count found to fit.
    pub(in crate::postgres) fn learn(&self, queue: i32, limit: u64, left: u64) {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Near the limit every publish counts, so that the limit is exact.
        let left = if left < limit / SHARE { 0 } else { left / SHARE };
        queues.insert(queue, Remaining { limit, left, counted: Instant::now() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plenty_is_shared_and_little_is_counted() {
        let headroom = Headroom::default();
        assert!(!headroom.take(1, 1000, 1), "nothing is known yet");
        headroom.learn(1, 1000, 800);
        assert!(headroom.take(1, 1000, 100));
        assert!(!headroom.take(1, 1000, 1), "the share is used up");
        headroom.learn(1, 1000, 100);
        assert!(!headroom.take(1, 1000, 1), "near the limit");
        headroom.learn(1, 1000, 800);
        assert!(!headroom.take(1, 500, 1), "the limit changed");
    }
}
