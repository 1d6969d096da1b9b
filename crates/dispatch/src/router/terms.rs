//! What an attempt goes by: the subscription as it is now, or what was said about the task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Tsid;
use tidegate_core::RetryPolicy;

use crate::{DispatchMode, RetryStrategy, Subscription, Target, TaskRules};

/// What an attempt goes by.
#[derive(Debug, Clone)]
pub(super) enum Terms {
    /// The subscription that the job was made for.
    Subscription(Arc<Subscription>),
    /// What was said about the task.
    Task(Box<TaskRules>),
    /// It is a task, and nothing is stored about it.
    Missing,
    /// It is a task, and what is stored about it cannot be read: a newer program wrote it.
    Unreadable,
}

impl Terms {
    /// The terms of a task, by what is stored about it.
    pub(super) fn of_task(text: Option<&str>) -> Self {
        match text.map(serde_json::from_str) {
            Some(Ok(rules)) => Self::Task(Box::new(rules)),
            // Not what it says: that may be secret.
            Some(Err(_)) => Self::Unreadable,
            None => Self::Missing,
        }
    }

    /// Where the webhook goes.
    pub(super) fn target(&self) -> Option<&Target> {
        match self {
            Self::Subscription(subscription) => Some(&subscription.body.target),
            Self::Task(rules) => Some(&rules.target_url),
            Self::Missing | Self::Unreadable => None,
        }
    }

    /// Whether the data alone is sent.
    pub(super) fn data_only(&self) -> bool {
        match self {
            Self::Subscription(subscription) => subscription.body.data_only,
            Self::Task(rules) => rules.data_only,
            Self::Missing | Self::Unreadable => true,
        }
    }

    /// Whether the receiver may ask in its answer for a retry.
    pub(super) fn ack_in_body(&self) -> bool {
        matches!(self, Self::Subscription(subscription) if subscription.body.ack_in_body)
    }

    /// The subscription that the job was made for.
    pub(super) fn subscription(&self) -> Option<Tsid> {
        match self {
            Self::Subscription(subscription) => Some(subscription.id),
            Self::Task(_) | Self::Missing | Self::Unreadable => None,
        }
    }

    /// How long the webhook may take.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(match self {
            Self::Subscription(subscription) => subscription.body.timeout_seconds.into(),
            Self::Task(rules) => rules.timeout_seconds.into(),
            Self::Missing | Self::Unreadable => 0,
        })
    }

    /// What a failure means for the rest of the job's group.
    pub(super) fn mode(&self) -> DispatchMode {
        match self {
            Self::Subscription(subscription) => subscription.body.mode,
            Self::Task(rules) => rules.mode,
            Self::Missing | Self::Unreadable => DispatchMode::default(),
        }
    }

    /// The delays between attempts.
    pub(super) fn retries(&self) -> RetryPolicy {
        let strategy = match self {
            Self::Subscription(subscription) => subscription.body.retry_strategy.as_ref(),
            Self::Task(rules) => rules.retry_strategy.as_ref(),
            Self::Missing | Self::Unreadable => None,
        };
        strategy.map(RetryStrategy::policy).unwrap_or_default()
    }

    /// The headers that its sender has added.
    pub(super) fn headers(&self) -> Option<&BTreeMap<String, String>> {
        match self {
            Self::Task(rules) => Some(&rules.headers),
            Self::Subscription(_) | Self::Missing | Self::Unreadable => None,
        }
    }

    /// The account in whose name a task is sent, if it names one.
    pub(super) fn account(&self) -> Option<Tsid> {
        match self {
            Self::Task(rules) => rules.service_account_id,
            Self::Subscription(_) | Self::Missing | Self::Unreadable => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_newer_program_wrote_is_told_from_what_is_not_there() {
        let rules = TaskRules::new("https://e.com/".parse().unwrap());
        let text = serde_json::to_string(&rules).unwrap();
        assert!(matches!(Terms::of_task(Some(&text)), Terms::Task(_)));
        let newer = text.replacen("IMMEDIATE", "LATER", 1);
        assert_ne!(newer, text);
        assert!(matches!(Terms::of_task(Some(&newer)), Terms::Unreadable));
        assert!(matches!(Terms::of_task(None), Terms::Missing));
    }
}
