//! Retry policies.

use serde::{Deserialize, Serialize};
use tidegate::RetryPolicy;
use utoipa::ToSchema;

/// The delay between a failed attempt and the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Retry {
    /// The same delay each time.
    Fixed {
        /// The delay in milliseconds.
        delay_ms: u64,
    },
    /// A delay that grows with each retry.
    Exponential {
        /// The first delay in milliseconds.
        base_ms: u64,
        /// The factor from each delay to the next; 2 if absent.
        #[serde(default = "two")]
        factor: f64,
        /// The longest delay in milliseconds.
        max_ms: u64,
        /// The share of the delay that is random, 0 to 1; 0.25 if absent.
        #[serde(default = "quarter")]
        jitter: f64,
    },
    /// A list of delays, one for each retry; the last one repeats.
    List {
        /// The delays in milliseconds.
        delays_ms: Vec<u64>,
    },
}

fn two() -> f64 {
    2.0
}

fn quarter() -> f64 {
    0.25
}

impl From<Retry> for RetryPolicy {
    fn from(retry: Retry) -> Self {
        match retry {
            Retry::Fixed { delay_ms } => Self::Fixed { delay_ms },
            Retry::Exponential { base_ms, factor, max_ms, jitter } => {
                Self::Exponential { base_ms, factor, max_ms, jitter }
            }
            Retry::List { delays_ms } => Self::List { delays_ms },
        }
    }
}

impl From<RetryPolicy> for Retry {
    fn from(policy: RetryPolicy) -> Self {
        match policy {
            RetryPolicy::Fixed { delay_ms } => Self::Fixed { delay_ms },
            RetryPolicy::Exponential { base_ms, factor, max_ms, jitter } => {
                Self::Exponential { base_ms, factor, max_ms, jitter }
            }
            RetryPolicy::List { delays_ms } => Self::List { delays_ms },
        }
    }
}
