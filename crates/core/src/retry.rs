//! Retry policies: the delay between a failed attempt and the next. Pure: randomness is an argument.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A schedule of delays between attempts.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::RetryPolicy;
/// let policy = RetryPolicy::fixed(Duration::from_secs(300));
/// assert_eq!(policy.delay(1, 0.0), Duration::from_secs(300));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RetryPolicy {
    /// The same delay each time.
    Fixed {
        /// The delay, in milliseconds.
        delay_ms: u64,
    },
    /// `base * factor^(attempt - 1)`, at most `max`, less a random part of up to `jitter` of it.
    Exponential {
        /// The delay after the first attempt, in milliseconds.
        base_ms: u64,
        /// The factor by which the delay grows with each further attempt.
        factor: f64,
        /// The longest delay, in milliseconds.
        max_ms: u64,
        /// The share of the delay that is random, from 0 to 1.
        jitter: f64,
    },
    /// One delay per attempt; the last repeats.
    List {
        /// The delays, in milliseconds.
        delays_ms: Vec<u64>,
    },
}

/// NaN is not equal to itself, but [`RetryPolicy::is_sane`] refuses it before a policy is stored.
impl Eq for RetryPolicy {}

impl RetryPolicy {
    /// The same delay each time.
    #[must_use]
    pub fn fixed(delay: Duration) -> Self {
        Self::Fixed { delay_ms: millis(delay) }
    }

    /// Doubling from `base` to `max`, with a jitter of 0.25.
    #[must_use]
    pub fn exponential(base: Duration, max: Duration) -> Self {
        Self::Exponential { base_ms: millis(base), factor: 2.0, max_ms: millis(max), jitter: 0.25 }
    }

    /// One delay per attempt; the last repeats.
    #[must_use]
    pub fn list(delays: impl IntoIterator<Item = Duration>) -> Self {
        Self::List { delays_ms: delays.into_iter().map(millis).collect() }
    }

    /// Whether every delay is at most 100 years, the factor finite, the jitter 0 to 1 and a list at most 1,000 long.
    #[must_use]
    pub fn is_sane(&self) -> bool {
        const LONGEST: u64 = 100 * 366 * 24 * 3600 * 1000;
        match self {
            Self::Fixed { delay_ms } => *delay_ms <= LONGEST,
            Self::Exponential { base_ms, factor, max_ms, jitter } => {
                *base_ms <= LONGEST && *max_ms <= LONGEST && factor.is_finite() && (0.0..=1.0).contains(jitter)
            }
            Self::List { delays_ms } => delays_ms.len() <= 1000 && delays_ms.iter().all(|delay| *delay <= LONGEST),
        }
    }

    /// The delay after the `attempt`-th attempt (from 1) failed. `random` is in `0.0..1.0` and spreads retries out.
    #[must_use]
    pub fn delay(&self, attempt: u32, random: f64) -> Duration {
        let attempt = attempt.max(1);
        let ms = match self {
            Self::Fixed { delay_ms } => *delay_ms,
            Self::Exponential { base_ms, factor, max_ms, jitter } => {
                let exponent = i32::try_from(attempt - 1).unwrap_or(i32::MAX);
                let full = (*base_ms as f64 * finite(*factor, 2.0).max(1.0).powi(exponent)).min(*max_ms as f64);
                let spread = finite(*jitter, 0.0).clamp(0.0, 1.0) * finite(random, 0.0).clamp(0.0, 1.0);
                ((full * (1.0 - spread)) as u64).min(*max_ms)
            }
            Self::List { delays_ms } => {
                let index = (attempt as usize - 1).min(delays_ms.len().saturating_sub(1));
                delays_ms.get(index).copied().unwrap_or(0)
            }
        };
        Duration::from_millis(ms)
    }
}

impl Default for RetryPolicy {
    /// 3 s doubling to 10 min, with jitter.
    fn default() -> Self {
        Self::exponential(Duration::from_secs(3), Duration::from_secs(600))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn finite(value: f64, otherwise: f64) -> f64 {
    if value.is_finite() { value } else { otherwise }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn list_repeats_its_last() {
        let policy = RetryPolicy::list([1, 5, 9].map(Duration::from_secs));
        let delays: Vec<u64> = (1..=5).map(|attempt| policy.delay(attempt, 0.5).as_secs()).collect();
        assert_eq!(delays, [1, 5, 9, 9, 9]);
        assert_eq!(RetryPolicy::list([]).delay(3, 0.0), Duration::ZERO);
    }

    #[test]
    fn exponential_doubles_to_its_maximum() {
        let policy = RetryPolicy::default();
        let delays: Vec<u64> = [1, 2, 3, 8, 9, 10_000].map(|attempt| policy.delay(attempt, 0.0).as_secs()).into();
        assert_eq!(delays, [3, 6, 12, 384, 600, 600]);
    }

    #[test]
    fn jitter_takes_its_share_off() {
        let policy = RetryPolicy::exponential(Duration::from_secs(3), Duration::from_secs(600));
        let delays = [0.0, 0.5, 1.0].map(|random| policy.delay(2, random).as_millis());
        assert_eq!(delays, [6000, 5250, 4500]);
    }

    #[test]
    fn numbers_that_are_none_count_as_none_given() {
        let policy =
            RetryPolicy::Exponential { base_ms: 1000, factor: f64::NAN, max_ms: 60_000, jitter: f64::INFINITY };
        assert_eq!(policy.delay(3, f64::NAN).as_millis(), 4000, "doubling, without jitter");
        let shrinking = RetryPolicy::Exponential { base_ms: 1000, factor: 0.5, max_ms: 60_000, jitter: 0.0 };
        assert_eq!(shrinking.delay(3, 0.0).as_millis(), 1000);
    }

    #[test]
    fn sane_policies_stay_below_a_hundred_years() {
        const LONGEST: u64 = 3_162_240_000_000;
        let fixed = |delay_ms| RetryPolicy::Fixed { delay_ms };
        let exponential =
            |base_ms, factor, max_ms, jitter| RetryPolicy::Exponential { base_ms, factor, max_ms, jitter };
        let list = |delays_ms| RetryPolicy::List { delays_ms };
        let sane = [
            fixed(LONGEST),
            exponential(LONGEST, 2.0, LONGEST, 0.0),
            exponential(1, 2.0, 1, 1.0),
            list(vec![LONGEST; 1000]),
            list(vec![]),
        ];
        for policy in sane {
            assert!(policy.is_sane(), "{policy:?}");
        }
        let insane = [
            fixed(LONGEST + 1),
            exponential(LONGEST + 1, 2.0, 1, 0.5),
            exponential(1, 2.0, LONGEST + 1, 0.5),
            exponential(1, f64::NAN, 1, 0.5),
            exponential(1, f64::INFINITY, 1, 0.5),
            exponential(1, 2.0, 1, 1.1),
            exponential(1, 2.0, 1, -0.1),
            exponential(1, 2.0, 1, f64::NAN),
            list(vec![0; 1001]),
            list(vec![1, LONGEST + 1]),
        ];
        for policy in insane {
            assert!(!policy.is_sane(), "{policy:?}");
        }
    }

    proptest! {
        #[test]
        fn jitter_only_shortens_and_never_below_its_share(attempt in 0_u32.., random in 0.0..1.0_f64, jitter in 0.0..1.0_f64) {
            let policy = RetryPolicy::Exponential { base_ms: 1000, factor: 2.0, max_ms: 60_000, jitter };
            let full = policy.delay(attempt, 0.0);
            let spread = policy.delay(attempt, random);
            prop_assert!(spread <= full);
            prop_assert!(spread.as_millis() as f64 + 1.0 >= full.as_millis() as f64 * (1.0 - jitter));
        }

        #[test]
        fn any_numbers_give_a_delay(base_ms: u64, factor: f64, max_ms: u64, jitter: f64, random: f64, attempt: u32) {
            let delay = RetryPolicy::Exponential { base_ms, factor, max_ms, jitter }.delay(attempt, random);
            prop_assert!(delay <= Duration::from_millis(max_ms));
        }

        #[test]
        fn delays_never_shrink_without_jitter(attempt in 1_u32..60) {
            let policy = RetryPolicy::exponential(Duration::from_millis(7), Duration::from_secs(3600));
            prop_assert!(policy.delay(attempt, 0.0) <= policy.delay(attempt + 1, 0.0));
        }
    }
}
