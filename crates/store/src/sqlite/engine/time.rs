//! The clock of a store: wall time that never goes back. Knows nothing of transactions.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::Timestamp;

use crate::values::Clock;

/// By how much the wall clock must be behind to log a warning, in microseconds.
const WARN_BEHIND: i64 = 1_000_000;

/// The process's clock, or a manual one. When the wall clock is set back, time goes on at the pace of the monotonic
/// clock until the wall clock has caught up; a step forward is followed.
#[derive(Debug)]
pub(in crate::sqlite) struct Time {
    clock: Clock,
    started: Instant,
    /// The greatest lead of wall time over the monotonic clock so far, in microseconds.
    ahead: AtomicI64,
    last: AtomicI64,
    /// Whether a warning about the wall clock was logged.
    warned: AtomicBool,
    /// By how much tests move the wall clock.
    #[cfg(test)]
    pub(in crate::sqlite) step: AtomicI64,
}

impl Time {
    pub(in crate::sqlite) fn new(clock: Clock) -> Self {
        Self {
            clock,
            started: Instant::now(),
            ahead: AtomicI64::new(i64::MIN),
            last: AtomicI64::new(0),
            warned: AtomicBool::new(false),
            #[cfg(test)]
            step: AtomicI64::new(0),
        }
    }

    /// Microseconds since 1970.
    pub(in crate::sqlite) fn now(&self) -> i64 {
        if let Some(now) = self.clock.now() {
            return now.as_microsecond();
        }
        self.at(self.wall(), self.elapsed())
    }

    fn wall(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
        #[cfg(test)]
        let wall = wall.saturating_add(self.step.load(Ordering::SeqCst));
        wall
    }

    fn elapsed(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX)
    }

    fn at(&self, wall: i64, elapsed: i64) -> i64 {
        let offset = wall.saturating_sub(elapsed);
        let ahead = self.ahead.fetch_max(offset, Ordering::SeqCst).max(offset);
        self.warn_if_behind(ahead.saturating_sub(offset));
        let now = elapsed.saturating_add(ahead);
        self.last.fetch_max(now, Ordering::SeqCst).max(now)
    }

    /// Goes on from a moment found in the database, if that is later than now.
    pub(in crate::sqlite) fn at_least(&self, moment: i64) {
        // A value that is no valid moment was not written by this program.
        if self.clock.now().is_none() && Timestamp::from_microsecond(moment).is_ok() {
            self.ahead.fetch_max(moment.saturating_sub(self.elapsed()), Ordering::SeqCst);
        }
    }

    fn warn_if_behind(&self, behind: i64) {
        if behind < WARN_BEHIND {
            if self.warned.load(Ordering::Relaxed) {
                self.warned.store(false, Ordering::Relaxed);
            }
        } else if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                behind_seconds = behind / 1_000_000,
                "the wall clock is behind what the database has seen: time goes on from there, so moments in the \
                 database are ahead of the wall clock until it has caught up. Check the clock of this machine"
            );
        }
    }

    /// Whether tests move the clock. No outages are detected then.
    pub(in crate::sqlite) fn is_manual(&self) -> bool {
        matches!(self.clock, Clock::Manual(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000_000;

    #[test]
    fn a_step_back_is_bridged_by_the_monotonic_clock_and_a_step_forward_is_followed() {
        let time = Time::new(Clock::Database);
        let start = 1_000 * HOUR;
        assert_eq!(time.at(start, 0), start);
        assert_eq!(time.at(start + 5, 5), start + 5);
        assert_eq!(time.at(start + 6 - HOUR, 6), start + 6, "an hour back");
        assert_eq!(time.at(start + 100 - HOUR, 100), start + 100, "time goes on");
        assert_eq!(time.at(start + 101, 101), start + 101, "caught up");
        assert_eq!(time.at(start + 102 + HOUR, 102), start + 102 + HOUR, "an hour forward");
        assert_eq!(time.at(start + 103, 103), start + 103 + HOUR, "and back: time goes on from there");
    }

    #[test]
    fn it_starts_from_what_the_database_has_seen_unless_that_is_no_moment() {
        let time = Time::new(Clock::Database);
        let wall = time.now();
        time.at_least(i64::MAX);
        assert!(time.now() < wall + HOUR);
        time.at_least(wall + HOUR);
        assert!(time.now() >= wall + HOUR);
        time.at_least(wall);
        assert!(time.now() >= wall + HOUR);
    }
}
