//! Pauses between tries that fail.

use std::time::Duration;

/// Pauses that double with every failure in a row, from `first` to `longest`.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    /// The pause after the next failure.
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        let first = first.min(longest);
        Self { first, longest, next: first }
    }

    /// The pause after the next failure.
    pub(crate) fn next(&self) -> Duration {
        self.next
    }

    /// A try failed: returns the pause before the next one.
    pub(crate) fn failed(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }

    /// A try succeeded.
    pub(crate) fn succeeded(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn pauses_double_until_a_success() {
        let mut backoff = Backoff::new(ms(200), ms(1_000));
        let pauses: Vec<_> = (0..5).map(|_| backoff.failed()).collect();
        assert_eq!(pauses, [200, 400, 800, 1_000, 1_000].map(ms));
        backoff.succeeded();
        assert_eq!(backoff.next(), ms(200));
        assert_eq!(backoff.failed(), ms(200));
    }

    #[test]
    fn no_pause_is_longer_than_the_longest() {
        let mut backoff = Backoff::new(ms(200), ms(150));
        assert_eq!([backoff.failed(), backoff.failed()], [ms(150), ms(150)]);
    }
}
