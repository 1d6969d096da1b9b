//! An event to publish, as a request describes it.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate::{NewEvent, PayloadLimit};
use tidegate_core::attempt::DEFAULT_MAX_RETRIES;
use utoipa::ToSchema;

use super::retry::Retry;
use super::tags::Tags;
use crate::error::{ApiError, Code, Result};

/// The type of an event that names none.
const DEFAULT_TYPE: &str = "event";
/// The most retries that an event may ask for.
const MAX_RETRIES: u32 = 1_000_000;
/// The longest delay: 100 years.
const MAX_DELAY: Duration = Duration::from_secs(100 * 31_536_000);

/// An event to publish.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "title": "Send Email Notification", "tags": "email,priority-high", "payload": { "user_id": 12345 }
}))]
pub(crate) struct NewEventBody {
    /// A title for people.
    #[schema(
        value_type = String, required = true, example = "Send Email Notification", min_length = 1, max_length = 1000
    )]
    pub(crate) title: Option<String>,
    /// A description for people.
    #[schema(example = "Send welcome email to new user")]
    pub(crate) description: Option<String>,
    /// Tags by which workers select events: at least one, at most 32.
    #[schema(value_type = Tags, required = true)]
    pub(crate) tags: Option<Tags>,
    /// Any JSON; workers get it exactly as it was sent. Null if absent.
    #[schema(value_type = Value, required = false)]
    pub(crate) payload: Option<Box<RawValue>>,
    /// Retries after the first attempt; if absent as set for the queue, else 3.
    #[schema(minimum = 0, maximum = 1000000, example = 3)]
    pub(crate) max_retries: Option<u32>,
    /// The name of the queue; `default` if absent.
    #[schema(min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$")]
    pub(crate) queue: Option<String>,
    /// The client that the queue belongs to, if any; for credentials that belong to no client. An event in a client's
    /// queue belongs to that client.
    #[schema(min_length = 13, max_length = 13)]
    pub(crate) client: Option<String>,
    /// How many seconds from now the event can first be claimed; at once if absent.
    #[schema(minimum = 0, maximum = 3153600000_f64)]
    pub(crate) delay_seconds: Option<f64>,
    /// Lower numbers are claimed first; 0 if absent.
    #[schema(minimum = -100, maximum = 100)]
    pub(crate) priority: Option<i16>,
    /// The deduplication key: a repeat within 24 hours is answered with the first event.
    pub(crate) deduplication_id: Option<String>,
    /// The message group: its events run one at a time, in order.
    pub(crate) message_group: Option<String>,
    /// The event's type; `event` if absent.
    #[serde(rename = "type")]
    pub(crate) event_type: Option<String>,
    /// The delay between a failed attempt and the next; if absent as set for the queue, else 5 minutes.
    pub(crate) retry: Option<Retry>,
}

impl NewEventBody {
    /// The event, with the queue's defaults for what the request leaves out. It has no queue yet.
    ///
    /// # Errors
    /// 400 when a field is missing or not valid, 413 when the payload has more than `payload_limit` bytes.
    pub(crate) fn into_event(self, payload_limit: usize) -> Result<NewEvent> {
        let title = self.title.filter(|title| !title.trim().is_empty());
        let title = title.ok_or_else(|| ApiError::invalid("title is required"))?;
        let tags =
            self.tags.ok_or_else(|| ApiError::invalid("tags is required: name at least one, separated by commas"))?;
        if self.max_retries.is_some_and(|retries| retries > MAX_RETRIES) {
            return Err(ApiError::invalid(format!("max_retries must be between 0 and {MAX_RETRIES}")));
        }
        let payload = payload(self.payload, payload_limit)?;
        let mut event = NewEvent::new(self.event_type.unwrap_or_else(|| DEFAULT_TYPE.into()), payload)
            .title(title)
            .tags(tags.read()?)
            .priority(self.priority.unwrap_or(0));
        event = match self.max_retries {
            Some(retries) => event.max_retries(retries),
            None => event.retries_of_queue(DEFAULT_MAX_RETRIES),
        };
        event.description = self.description;
        event.group = self.message_group;
        event.retry = self.retry.map(Into::into);
        if let Some(delay) = self.delay_seconds.map(delay).transpose()?.filter(|delay| !delay.is_zero()) {
            event = event.delay(delay);
        }
        if let Some(key) = self.deduplication_id {
            event = event.deduplicate(key);
        }
        event.check(PayloadLimit(payload_limit)).map_err(tidegate::Error::from)?;
        Ok(event)
    }
}

/// The payload as it was sent; null if absent.
fn payload(raw: Option<Box<RawValue>>, limit: usize) -> Result<Bytes> {
    let payload: Box<str> = raw.map_or_else(|| "null".into(), Into::into);
    if payload.len() > limit {
        let text = format!(
            "the payload has {} bytes, above the limit of {limit}: store it elsewhere, for instance in an object \
             store, and send a URI to it",
            payload.len()
        );
        return Err(ApiError::new(Code::PayloadTooLarge, text));
    }
    Ok(Bytes::from(String::from(payload)))
}

fn delay(seconds: f64) -> Result<Duration> {
    let delay = Duration::try_from_secs_f64(seconds).ok().filter(|delay| *delay <= MAX_DELAY);
    delay.ok_or_else(|| ApiError::invalid("delay_seconds must be between 0 and 3153600000"))
}
