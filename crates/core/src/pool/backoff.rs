//! When a job whose attempt failed is due again: by its [`RetryPolicy`], by what the receiver asked for, and by its
//! expiry.

use std::time::Duration;

use jiff::Timestamp;

use crate::RetryPolicy;

/// The longest time that a receiver can ask to be left alone for: a day, as long as jobs live by default.
pub const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(86_400);

/// An attempt that failed and is to be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedAttempt {
    /// Its number, from 1.
    pub number: u32,
    /// When it failed.
    pub at: Timestamp,
    /// How long the receiver asked to be left alone for, if it did: in `Retry-After`, or by not acknowledging.
    pub retry_after: Option<Duration>,
}

/// When the next attempt is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextAttempt {
    /// At this moment.
    At(Timestamp),
    /// Never, unless somebody intervenes: the job expires before that, or just then.
    ExpiresFirst {
        /// When it would have been made.
        due: Timestamp,
    },
}

/// Decides when the next attempt is made: after the policy's delay, but not before the receiver wants one, as far as
/// that is within [`LONGEST_RETRY_AFTER`]. `random` is in `0.0..1.0`.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::pool::backoff::{FailedAttempt, NextAttempt, next_attempt};
/// use tidegate_core::{RetryPolicy, Timestamp};
/// let at = |second| Timestamp::from_second(second).unwrap();
/// let mut failed = FailedAttempt { number: 1, at: at(0), retry_after: None };
/// assert_eq!(next_attempt(&RetryPolicy::default(), &failed, None, 0.0), NextAttempt::At(at(3)));
/// failed.retry_after = Some(Duration::from_secs(120));
/// assert_eq!(next_attempt(&RetryPolicy::default(), &failed, None, 0.0), NextAttempt::At(at(120)));
/// let expires_at = Some(at(60));
/// assert_eq!(next_attempt(&RetryPolicy::default(), &failed, expires_at, 0.0), NextAttempt::ExpiresFirst { due: at(120) });
/// ```
#[must_use]
pub fn next_attempt(
    policy: &RetryPolicy,
    failed: &FailedAttempt,
    expires_at: Option<Timestamp>,
    random: f64,
) -> NextAttempt {
    let asked = failed.retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER);
    let delay = policy.delay(failed.number, random).max(asked);
    let due = failed.at.checked_add(delay).unwrap_or(Timestamp::MAX);
    if expires_at.is_some_and(|expires_at| expires_at <= due) {
        return NextAttempt::ExpiresFirst { due };
    }
    NextAttempt::At(due)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn failed(number: u32, retry_after: Option<u64>) -> FailedAttempt {
        FailedAttempt { number, at: at(1_000), retry_after: retry_after.map(Duration::from_secs) }
    }

    fn next(policy: &RetryPolicy, failed: FailedAttempt, expires: Option<i64>) -> NextAttempt {
        next_attempt(policy, &failed, expires.map(at), 0.0)
    }

    #[test]
    fn strategies_give_the_delay_where_nothing_else_is_said() {
        let fixed = RetryPolicy::fixed(Duration::from_secs(7));
        let list = RetryPolicy::list([1, 60].map(Duration::from_secs));
        let policies = [(RetryPolicy::default(), [3, 6, 600]), (fixed, [7, 7, 7]), (list, [1, 60, 60])];
        for (policy, delays) in policies {
            for (number, delay) in [1, 2, 9].into_iter().zip(delays) {
                assert_eq!(next(&policy, failed(number, None), None), NextAttempt::At(at(1_000 + delay)), "{policy:?}");
            }
        }
    }

    #[test]
    fn the_later_one_of_both_counts() {
        let policy = RetryPolicy::fixed(Duration::from_secs(10));
        for (asked, due) in
            [(0, 1_010), (9, 1_010), (11, 1_011), (86_400, 87_400), (86_401, 87_400), (u64::MAX, 87_400)]
        {
            assert_eq!(next(&policy, failed(1, Some(asked)), None), NextAttempt::At(at(due)), "{asked}");
        }
        let slow = RetryPolicy::fixed(Duration::from_secs(100_000));
        assert_eq!(
            next(&slow, failed(1, Some(u64::MAX)), None),
            NextAttempt::At(at(101_000)),
            "a policy may be slower"
        );
    }

    #[test]
    fn an_attempt_that_comes_too_late_is_told() {
        let policy = RetryPolicy::fixed(Duration::from_secs(10));
        assert_eq!(next(&policy, failed(1, None), Some(1_011)), NextAttempt::At(at(1_010)));
        assert_eq!(next(&policy, failed(1, None), Some(1_010)), NextAttempt::ExpiresFirst { due: at(1_010) });
        assert_eq!(next(&policy, failed(1, Some(90)), Some(1_050)), NextAttempt::ExpiresFirst { due: at(1_090) });
    }

    #[test]
    fn times_beyond_all_bounds_are_the_last_one() {
        let late = FailedAttempt { number: 1, at: Timestamp::MAX, retry_after: Some(Duration::MAX) };
        assert_eq!(next(&RetryPolicy::default(), late, None), NextAttempt::At(Timestamp::MAX));
    }

    proptest! {
        /// Never before the receiver wants it, never after the later of both, and never at a moment that has expired.
        #[test]
        fn due_is_within_its_bounds(
            number: u32,
            random in 0.0..1.0_f64,
            asked in prop::option::of(0..200_000_u64),
            expires in prop::option::of(0..200_000_i64),
        ) {
            let policy = RetryPolicy::default();
            let failed = failed(number, asked);
            let next = next_attempt(&policy, &failed, expires.map(at), random);
            let (NextAttempt::At(due) | NextAttempt::ExpiresFirst { due }) = next;
            let delay = Duration::try_from(due.duration_since(failed.at)).unwrap();
            let asked = failed.retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER);
            prop_assert!(delay >= asked);
            prop_assert!(delay <= asked.max(policy.delay(number, 0.0)));
            prop_assert_eq!(next == NextAttempt::At(due), expires.is_none_or(|expires| at(expires) > due));
        }
    }
}
