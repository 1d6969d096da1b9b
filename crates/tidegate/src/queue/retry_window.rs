//! How long a call under a lease may be retried, and after which pauses. Reads no clock.

use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::moments::after;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A window of time in which a call may be retried, with pauses that double from 50 ms to 1 s.
#[derive(Debug)]
pub(crate) struct RetryWindow {
    until: Instant,
    pauses: Backoff,
}

impl RetryWindow {
    /// A window from `now` that lasts for `longest`.
    pub(crate) fn new(now: Instant, longest: Duration) -> Self {
        Self { until: after(now, longest), pauses: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE) }
    }

    /// Whether a call may be tried once more after the next pause, under a lease that holds until `lease_until`.
    pub(crate) fn is_open(&self, now: Instant, lease_until: Instant) -> bool {
        now + self.pauses.next() < self.until.min(lease_until)
    }

    /// The pause before the next try.
    pub(crate) fn next_pause(&mut self) -> Duration {
        self.pauses.failed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn pauses_double_up_to_a_second() {
        let mut window = RetryWindow::new(Instant::now(), HOUR);
        let pauses: Vec<_> = (0..7).map(|_| window.next_pause()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000].map(ms));
    }

    #[test]
    fn it_closes_with_the_deadline_or_the_lease_whichever_is_first() {
        let now = Instant::now();
        let window = RetryWindow::new(now, ms(200));
        assert!(window.is_open(now + ms(149), now + HOUR));
        assert!(!window.is_open(now + ms(150), now + HOUR));
        assert!(window.is_open(now, now + ms(51)));
        assert!(!window.is_open(now, now + ms(50)), "the lease ends with the pause");
        assert!(!RetryWindow::new(now, Duration::ZERO).is_open(now, now + HOUR));
    }
}
