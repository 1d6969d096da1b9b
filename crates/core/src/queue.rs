//! A queue's settings and its depth.

use serde::{Deserialize, Serialize};

use crate::name::QueueName;
use crate::retry::RetryPolicy;

/// Whether a queue accepts and delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueState {
    /// Accepts and delivers.
    #[default]
    Active,
    /// Accepts, does not deliver.
    Paused,
    /// Refuses new events, delivers the rest.
    Draining,
}

impl QueueState {
    /// The number that databases store.
    #[must_use]
    pub const fn code(self) -> i16 {
        match self {
            Self::Active => 0,
            Self::Paused => 1,
            Self::Draining => 2,
        }
    }

    /// Reads the number that databases store.
    #[must_use]
    pub fn from_code(code: i16) -> Option<Self> {
        [Self::Active, Self::Paused, Self::Draining].into_iter().find(|state| state.code() == code)
    }
}

/// A queue and its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueConfig {
    /// Its name.
    pub name: QueueName,
    /// Whether it accepts and delivers.
    pub state: QueueState,
    /// Entries it holds at most; a publish above is refused. Unlimited when absent.
    pub depth_limit: Option<u64>,
    /// What pull workers get here.
    #[serde(default)]
    pub settings: QueueSettings,
}

/// What pull workers get in a queue; what is absent is at its default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueSettings {
    /// Seconds that a lease lasts when its claimer names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u32>,
    /// Retries of an event that names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// When a failed attempt of an event without a policy of its own is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// Whether workers must name their lease when they report.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub require_lease: bool,
}

/// What a queue holds, counted in one snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Depth {
    /// Can be claimed now (whether paused or not).
    pub ready: u64,
    /// Waits for its due moment.
    pub delayed: u64,
    /// Waits behind the head of its group.
    pub parked: u64,
    /// Held by a worker (an expired lease that nobody re-took counts here).
    pub leased: u64,
}

impl Depth {
    /// Everything that has not ended.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.ready + self.delayed + self.parked + self.leased
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_stable_codes() {
        for (code, state) in [(0, QueueState::Active), (1, QueueState::Paused), (2, QueueState::Draining)] {
            assert_eq!((state.code(), QueueState::from_code(code)), (code, Some(state)));
        }
        assert_eq!((QueueState::from_code(3), QueueState::from_code(-1)), (None, None));
    }

    #[test]
    fn everything_that_has_not_ended_counts() {
        let depth = Depth { ready: 3, delayed: 5, parked: 7, leased: 11 };
        assert_eq!(depth.total(), 26);
    }
}
