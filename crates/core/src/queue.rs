//! A queue's state, its settings and its depth.

use serde::{Deserialize, Serialize};

use crate::name::QueueName;
use crate::retry::RetryPolicy;

/// Whether a queue accepts and delivers events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueState {
    /// Accepts and delivers.
    #[default]
    Active,
    /// Accepts and does not deliver.
    Paused,
    /// Refuses new events and delivers the rest.
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

    /// The state with this stored number; `None` when there is none.
    #[must_use]
    pub fn from_code(code: i16) -> Option<Self> {
        [Self::Active, Self::Paused, Self::Draining].into_iter().find(|state| state.code() == code)
    }
}

/// A queue and its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueConfig {
    /// The queue's client and name.
    pub name: QueueName,
    /// Whether it accepts and delivers events.
    pub state: QueueState,
    /// The most live entries that it holds; a publish beyond it is refused. Unlimited when `None`.
    pub depth_limit: Option<u64>,
    /// Settings for pull workers.
    #[serde(default)]
    pub settings: QueueSettings,
}

/// A queue's settings for pull workers; for what is `None`, the default applies.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueSettings {
    /// The length of a lease, in seconds, when the claim names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u32>,
    /// Retries of an event that sets no number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// The delays between attempts of an event without its own policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// Whether workers must name their lease token when they report.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub require_lease: bool,
}

impl QueueSettings {
    /// The attempts of an entry that asks for the queue's own number, or for this one.
    #[must_use]
    pub fn attempts(&self, asks_the_queue: bool, otherwise: u32) -> u32 {
        match self.max_retries {
            Some(retries) if asks_the_queue => retries.saturating_add(1),
            _ => otherwise,
        }
    }
}

/// What a queue holds, counted in one snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Depth {
    /// Entries that can be claimed now, even if the queue is paused.
    pub ready: u64,
    /// Entries that are not due yet, also those aside, and entries that are kept in their place.
    pub delayed: u64,
    /// Entries behind the head of their group.
    pub parked: u64,
    /// Entries under a lease, even one that has expired and that no other worker has taken over.
    pub leased: u64,
}

impl Depth {
    /// All live entries.
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
