//! How much of an event to show, and why an event is not running.

use serde::{Deserialize, Serialize};
use tidegate::{EntryId, Explained, Why};
use utoipa::{IntoParams, ToSchema};

use crate::error::Result;
use crate::parameters::{MAX_LIMIT, flag, number};

/// Audit rows in an answer when the caller gives no limit.
const DEFAULT_LOGS: u64 = 100;

/// How much of an event to show.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ShowParams {
    /// Whether to include the audit of the event as `logs`.
    #[param(value_type = Option<bool>)]
    include_logs: Option<String>,
    /// How many rows of the audit to show at most; 100 if absent. Long messages may make it fewer.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 1000)]
    logs_limit: Option<String>,
    /// `logs_next_cursor` of the previous answer.
    pub(crate) logs_cursor: Option<String>,
}

impl ShowParams {
    /// How many rows of the audit to show; `None`: no audit.
    pub(crate) fn logs(&self) -> Result<Option<usize>> {
        let with_logs = flag("include_logs", self.include_logs.as_deref())?;
        let limit = number("logs_limit", self.logs_limit.as_deref(), 1, MAX_LIMIT)?.unwrap_or(DEFAULT_LOGS);
        Ok(with_logs.then_some(limit as usize))
    }
}

/// Why an event is not running.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WhyAnswer {
    /// The number of the event, called `id` elsewhere.
    event_id: i64,
    /// The id of the stored event, called `event_id` elsewhere; null once retention has removed it.
    #[schema(required, example = "0HZXEQ5Y8JY5Z")]
    event_tsid: Option<String>,
    /// The reason and its details.
    #[serde(flatten)]
    #[schema(value_type = WhySchema)]
    why: Why,
}

/// A reason: `ended`, `leased`, `abandoned`, `behind_in_group`, `keeps_place`, `stepped_aside`,
/// `queue_paused`, `due_at`, `no_live_consumer`, `ready`.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it only describes an answer")]
pub(crate) struct WhySchema {
    /// The reason.
    #[schema(example = "due_at")]
    reason: String,
    /// How the event ended: COMPLETED, COMPLETED_WITH_ERRORS, FAILED or CANCELLED.
    end: Option<String>,
    /// When the event is due, or when it ended.
    #[schema(format = DateTime)]
    at: Option<String>,
    /// The worker that holds the event, or held it last.
    worker: Option<String>,
    /// When the lease expires.
    #[schema(format = DateTime)]
    until: Option<String>,
    /// The message group of the event.
    group: Option<String>,
    /// When the lease expired, of an abandoned event.
    #[schema(format = DateTime)]
    since: Option<String>,
    /// How many events are claimed before this one.
    ahead: Option<u64>,
    /// The event type that no live consumer claims.
    event_type: Option<String>,
    /// The tags of the event, none of which a live consumer asks for.
    tags: Option<Vec<String>>,
}

impl WhyAnswer {
    pub(crate) fn of(id: EntryId, explained: Explained) -> Self {
        let event_tsid = explained.event_id.map(|event| event.to_string());
        Self { event_id: id.get(), event_tsid, why: explained.why }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tidegate::{End, Timestamp};
    use utoipa::PartialSchema;

    use super::*;

    #[test]
    fn the_schema_of_reasons_has_all_their_fields_and_no_others() {
        let (at, worker, group) = (Timestamp::UNIX_EPOCH, || "w".to_owned(), || "g".to_owned());
        let all = [
            Why::Ended { end: End::Completed, at },
            Why::Leased { worker: worker(), until: at },
            Why::Abandoned { worker: worker(), since: at },
            Why::BehindInGroup { group: group(), ahead: 1 },
            Why::KeepsPlace { end: End::Failed },
            Why::SteppedAside { at },
            Why::QueuePaused,
            Why::DueAt { at },
            Why::NoLiveConsumer { event_type: "t".into(), tags: vec!["a".into()] },
            Why::Ready { ahead: 1 },
        ];
        let fields = |value: &serde_json::Value| -> BTreeSet<String> {
            value.as_object().into_iter().flat_map(|fields| fields.keys().cloned()).collect()
        };
        let answered: BTreeSet<String> =
            all.iter().flat_map(|why| fields(&serde_json::to_value(why).unwrap())).collect();
        let described = serde_json::to_value(WhySchema::schema()).unwrap();
        assert_eq!(fields(&described["properties"]), answered);
    }
}
