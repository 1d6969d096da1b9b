//! The fields that an event has wherever it is shown, and what they are made from.

use serde::{Deserialize, Serialize};
use tidegate::{QueueName, Status, Timestamp};
use utoipa::ToSchema;

/// The fields that an event has wherever it is shown.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventBasics {
    /// The number of the event's entry in its queue; paths and reports name events by it.
    #[schema(example = 1001)]
    pub(super) id: i64,
    /// The id of the stored event (a TSID).
    pub(super) event_id: String,
    /// A title for people; the event's type where it was published without one.
    #[schema(example = "Send Email Notification")]
    pub(super) title: String,
    /// The event's tags, comma-separated.
    #[schema(example = "email,priority-high,notification")]
    pub(super) tags: String,
    /// PENDING, PROCESSING, COMPLETED, COMPLETED_WITH_ERRORS, FAILED or CANCELLED.
    #[schema(value_type = String, example = "PENDING")]
    pub(super) status: Status,
    /// Retries used up.
    pub(super) retry_count: u32,
    /// The name of the queue.
    #[schema(example = "default")]
    pub(super) queue: String,
    /// The client that the queue belongs to, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) client: Option<String>,
    /// The event's type.
    #[serde(rename = "type")]
    pub(super) event_type: String,
    /// When the event was published.
    #[schema(value_type = String, format = DateTime)]
    pub(super) created_at: Timestamp,
}

/// The client of a queue, as the API shows it.
pub(crate) fn client(queue: &QueueName) -> Option<String> {
    queue.client().map(|client| client.to_string())
}

/// The `traceparent` in the attributes of an event.
pub(super) fn traceparent(attributes: Option<&str>) -> Option<String> {
    #[derive(Deserialize)]
    struct Attributes {
        traceparent: Option<String>,
    }
    serde_json::from_str::<Attributes>(attributes?).ok()?.traceparent
}
