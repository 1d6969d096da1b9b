//! When this process does maintenance, and under which name it is elected for it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::Timestamp;

/// How often a process records its lanes, and the elected one does maintenance.
const EVERY: Duration = Duration::from_secs(15);
/// A look at all lanes that took longer than this is followed by a pause of [`LANES_SHARE`] times as long: where vacuum
/// cannot remove dead rows, it reads all of them.
const LANES_SLOW: Duration = Duration::from_millis(500);
const LANES_SHARE: u32 = 50;
/// But never longer than this: entries in a removed lane wait for the next scan.
const LANES_PAUSE: Duration = Duration::from_secs(600);

/// The random name under which this process is elected, when maintenance was last due here, and until when it leaves the
/// lanes alone.
#[derive(Debug)]
pub(in crate::postgres) struct Turns {
    pub(in crate::postgres) name: String,
    pub(in crate::postgres) last: Mutex<Option<Timestamp>>,
    pub(in crate::postgres) lanes_from: Mutex<Option<Instant>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { name: format!("{:016x}", rand::random::<u64>()), last: Mutex::default(), lanes_from: Mutex::default() }
    }
}

impl Turns {
    pub(in crate::postgres) fn is_due(&self, now: Timestamp) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // If the clock was set back, do not wait until it has caught up.
        let due = last.is_none_or(|last| !Duration::try_from(now.duration_since(last)).is_ok_and(|age| age < EVERY));
        if due {
            *last = Some(now);
        }
        due
    }

    pub(in crate::postgres) fn may_look_at_lanes(&self, now: Instant) -> bool {
        self.lanes_from.lock().unwrap_or_else(PoisonError::into_inner).is_none_or(|from| now >= from)
    }

    pub(in crate::postgres) fn looked_at_lanes(&self, took: Duration, now: Instant) {
        let from = (took > LANES_SLOW).then(|| now + took.saturating_mul(LANES_SHARE).min(LANES_PAUSE));
        *self.lanes_from.lock().unwrap_or_else(PoisonError::into_inner) = from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_look_at_the_lanes_is_followed_by_a_long_pause() {
        let (turns, now) = (Turns::default(), Instant::now());
        assert!(turns.may_look_at_lanes(now));
        turns.looked_at_lanes(LANES_SLOW, now);
        assert!(turns.may_look_at_lanes(now));
        turns.looked_at_lanes(LANES_SLOW * 2, now);
        let over = now + LANES_SLOW * 2 * LANES_SHARE;
        assert!(!turns.may_look_at_lanes(over - Duration::from_millis(1)) && turns.may_look_at_lanes(over));
        turns.looked_at_lanes(LANES_PAUSE, over);
        assert!(turns.may_look_at_lanes(over + LANES_PAUSE), "not for ever");
        turns.looked_at_lanes(Duration::ZERO, over);
        assert!(turns.may_look_at_lanes(over));
    }
}
