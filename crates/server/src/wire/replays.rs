//! Replays and test events.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::{Timestamp, Tsid};
use tidegate_dispatch::{Replay, Replayed, Subscription, TEST_EVENT, TestSent};
use utoipa::{IntoParams, ToSchema};

use super::jobs::AttemptAnswer;
use super::subscriptions::SubscriptionAnswer;
use crate::error::{ApiError, Result};
use crate::parameters::{moment, number};

/// The longest wait for the first attempt, in seconds.
const MAX_WAIT: u64 = 60;

/// What to replay.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({ "from": "2030-01-01T00:00:00Z", "to": "2030-01-02T00:00:00Z" }))]
pub(crate) struct ReplayText {
    /// Events accepted at this moment or later.
    #[schema(format = DateTime)]
    from: String,
    /// Events accepted before this moment.
    #[schema(format = DateTime)]
    to: String,
    /// A name that tells this replay from others of the same range.
    #[schema(max_length = 255)]
    replay_id: Option<String>,
    /// Leaves out events of which the subscription has a job already. Entries of queues do not tell for whom they were made,
    /// so none is left out for them.
    missing_only: Option<bool>,
    /// `nextCursor` of the call before.
    #[schema(max_length = 13)]
    cursor: Option<String>,
}

/// What a call has done of a replay.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplayAnswer {
    /// The beginning of the range.
    #[schema(value_type = String, format = DateTime)]
    from: Timestamp,
    /// Its end.
    #[schema(value_type = String, format = DateTime)]
    to: Timestamp,
    /// The name of the replay, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    replay_id: Option<String>,
    /// Whether events were left out of which the subscription has a job.
    missing_only: bool,
    /// How many jobs or entries this call has made.
    replayed: usize,
    /// How many this replay had made before.
    repeated: usize,
    /// How many events this call has looked at.
    examined: usize,
    /// Where the next call goes on; absent at the end of the range.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<Tsid>,
}

/// How a subscription is resumed.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({ "replay": true }))]
pub(crate) struct ResumeText {
    /// Whether to replay what came while it was paused; `false` if absent.
    pub(crate) replay: Option<bool>,
}

/// A subscription that was resumed, and what was replayed of the events that came while it was paused.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResumeAnswer {
    #[serde(flatten)]
    subscription: SubscriptionAnswer,
    /// Absent if nothing was to be replayed. If it has a `nextCursor`, go on with a replay of these fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<ReplayAnswer>,
}

/// How long to wait for what comes of a test event.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TestParams {
    /// How many seconds to wait for the first attempt; 0 if absent.
    #[param(value_type = Option<u64>, minimum = 0, maximum = 60)]
    wait: Option<String>,
}

/// A test event.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TestAnswer {
    /// The id of the job; absent for a subscription to a queue.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Tsid>,
    /// The number of the entry, for a subscription to a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry_id: Option<i64>,
    /// The id of the event.
    #[schema(value_type = String)]
    event_id: Tsid,
    /// Its type, by which a receiver knows it.
    #[schema(example = "tidegate:dispatch:subscription:test")]
    r#type: &'static str,
    /// The first attempt at the job, if it was waited for and made in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<AttemptAnswer>,
}

impl ReplayText {
    pub(crate) fn read(self) -> Result<Replay> {
        let moment = |name: &str, text: &str| {
            let bad = || ApiError::invalid(format!("{name} must be a moment such as 2030-01-01T00:00:00Z"));
            moment(name, Some(text))?.ok_or_else(bad)
        };
        let cursor = self.cursor.as_deref().map(|text| {
            let bad = |_| ApiError::invalid("cursor must be the nextCursor of an answer");
            text.parse::<Tsid>().map_err(bad)
        });
        Ok(Replay {
            name: self.replay_id.unwrap_or_default(),
            missing_only: self.missing_only.unwrap_or_default(),
            after: cursor.transpose()?,
            ..Replay::new(moment("from", &self.from)?, moment("to", &self.to)?)
        })
    }
}

impl ReplayAnswer {
    pub(crate) fn of(replay: &Replay, done: Replayed) -> Self {
        Self {
            from: replay.from,
            to: replay.to,
            replay_id: Some(replay.name.clone()).filter(|name| !name.is_empty()),
            missing_only: replay.missing_only,
            replayed: done.made,
            repeated: done.repeated,
            examined: done.examined,
            next_cursor: done.next,
        }
    }
}

impl ResumeAnswer {
    pub(crate) fn new(subscription: Subscription, replay: Option<ReplayAnswer>) -> Self {
        Self { subscription: subscription.into(), replay }
    }
}

impl TestParams {
    pub(crate) fn wait(&self) -> Result<Duration> {
        Ok(Duration::from_secs(number("wait", self.wait.as_deref(), 0, MAX_WAIT)?.unwrap_or(0)))
    }
}

impl From<TestSent> for TestAnswer {
    fn from(sent: TestSent) -> Self {
        Self {
            id: sent.job,
            entry_id: sent.job.is_none().then_some(sent.number.get()),
            event_id: sent.event,
            r#type: TEST_EVENT,
            attempt: sent.attempt.map(AttemptAnswer::from),
        }
    }
}
