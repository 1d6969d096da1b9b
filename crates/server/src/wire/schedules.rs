//! Schedules, and the event that each tick of one publishes.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate::{
    Availability, DedupMode, Deduplication, End, Expiry, MissedTicks, NewEvent, QueueName, Schedule, ScheduleView,
    Timestamp, Tsid,
};
use tidegate_core::attempt::DEFAULT_MAX_RETRIES;
use tidegate_core::event::DEFAULT_DEDUP_WINDOW;
use utoipa::{IntoParams, ToSchema};

use super::basics::client;
use super::retry::Retry;
use super::tags::Tags;
use crate::error::{ApiError, Result};

/// The name of a schedule in a path, as the document describes it.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub(crate) struct SchedulePath {
    /// The name of the schedule, percent-encoded.
    #[param(min_length = 1, max_length = 255, example = "nightly report")]
    name: String,
}

/// A schedule. What is absent has its default.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "cron": "30 2 * * MON-FRI", "timezone": "Europe/Berlin", "missed": "once",
    "event": { "type": "report.wanted", "tags": ["reports"], "payload": { "kind": "nightly" } }
}))]
pub(crate) struct ScheduleText {
    /// The expression: `minute hour day month weekday`, with seconds in front if there are six fields, or one of `@yearly`,
    /// `@monthly`, `@weekly`, `@daily`, `@hourly`.
    #[schema(max_length = 255, example = "30 2 * * MON-FRI")]
    cron: String,
    /// The time zone of the expression by its IANA name; `UTC` by default.
    #[schema(example = "Europe/Berlin")]
    timezone: Option<String>,
    /// What becomes of ticks that were due while no scheduler ran: `once` (the default; one event for all of them), `all` or
    /// `skip`.
    #[schema(value_type = Option<String>, example = "once")]
    missed: Option<MissedTicks>,
    /// What each tick publishes.
    event: ScheduledEvent,
}

/// The event that each tick publishes. It gets the tick's moment as its time and, with the name of the schedule, in its
/// attributes (`scheduled_for`, `schedule`).
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduledEvent {
    /// The event's type.
    #[serde(rename = "type")]
    #[schema(min_length = 1, max_length = 255, example = "report.wanted")]
    event_type: String,
    /// Any JSON; workers get it exactly as it was sent. Null if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Value, required = false)]
    payload: Option<Box<RawValue>>,
    /// A payload that is not JSON, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    /// The payload's media type; `application/json` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    /// A title for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 1000)]
    title: Option<String>,
    /// A description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Tags by which workers select it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tags: Option<Tags>,
    /// The name of the queue; `default` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$")]
    queue: Option<String>,
    /// The client that the queue belongs to, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 13, max_length = 13)]
    client: Option<String>,
    /// The system it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// The thing it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// The publisher's own id of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    external_id: Option<String>,
    /// Shared by the events of one request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    /// The id of the event that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    causation_id: Option<String>,
    /// Further attributes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    attributes: Option<Box<RawValue>>,
    /// Lower numbers are claimed first; 0 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = -100, maximum = 100)]
    priority: Option<i16>,
    /// How many seconds after the tick it can first be claimed; at once if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 3153600000_f64)]
    delay_seconds: Option<f64>,
    /// The message group: its events run one at a time, in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message_group: Option<String>,
    /// Order within the group before that of publication: lower goes first; 0 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rank: Option<i32>,
    /// Whether it keeps its place in its group when it is exhausted, so that nothing else of the group runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keep_place: Option<bool>,
    /// The deduplication key: ticks under a key that is known make no second event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deduplication_id: Option<String>,
    /// What a tick under a known key does: `keep_first` (the default), or `replace_waiting`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    deduplication_mode: Option<Repeats>,
    /// How long the key is known; a day if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deduplication_seconds: Option<f64>,
    /// Seconds after publication from when on nobody gets it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_after_seconds: Option<f64>,
    /// The moment from when on nobody gets it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// Retries after the first attempt; if absent as set for the queue, else 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1000000)]
    max_retries: Option<u32>,
    /// Whether the number that the queue sets, if it does, goes before `max_retries`; if absent, it does where `max_retries`
    /// is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retries_of_queue: Option<bool>,
    /// How it ends when no retry is left: `FAILED` (the default), or `COMPLETED_WITH_ERRORS`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "FAILED")]
    exhausted_as: Option<Exhausted>,
    /// The delay between a failed attempt and the next; if absent as set for the queue, else 5 minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry: Option<Retry>,
}

/// What a repeat of a deduplication key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Repeats {
    KeepFirst,
    ReplaceWaiting,
}

/// How an exhausted entry ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Exhausted {
    Failed,
    CompletedWithErrors,
}

/// A schedule as it is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ScheduleAnswer {
    /// The name.
    #[schema(example = "nightly report")]
    name: String,
    /// The expression.
    #[schema(example = "30 2 * * MON-FRI")]
    cron: String,
    /// The time zone of the expression.
    #[schema(example = "Europe/Berlin")]
    timezone: String,
    /// What becomes of ticks that were due while no scheduler ran: `once`, `all` or `skip`.
    #[schema(value_type = String, example = "once")]
    missed: MissedTicks,
    /// What each tick publishes.
    event: ScheduledEvent,
    /// Whether it is paused.
    paused: bool,
    /// The tick that it waits for.
    #[schema(value_type = String, format = DateTime)]
    next_at: Timestamp,
    /// The last tick that it published.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_at: Option<Timestamp>,
    /// The event that this tick published.
    last_event_id: Option<i64>,
    /// Ticks published so far.
    ticks: u64,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it was last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// All schedules.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SchedulesAnswer {
    /// The schedules by name.
    pub(crate) schedules: Vec<ScheduleAnswer>,
}

/// The event that a schedule published at once.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunAnswer {
    /// The number of the event's entry in its queue.
    #[schema(example = 1001)]
    pub(crate) id: i64,
    /// The id of the stored event.
    #[schema(value_type = String)]
    pub(crate) event_id: Tsid,
}

impl ScheduleText {
    /// The schedule of this name.
    ///
    /// # Errors
    /// 400 that names the field.
    pub(crate) fn read(self, name: String) -> Result<Schedule> {
        let schedule = Schedule::new(name, self.cron, self.event.read()?).missed(self.missed.unwrap_or_default());
        Ok(match self.timezone {
            Some(timezone) => schedule.timezone(timezone),
            None => schedule,
        })
    }
}

impl ScheduledEvent {
    fn read(self) -> Result<NewEvent> {
        let payload = self.payload()?;
        let mut event = NewEvent::new(self.event_type, payload).priority(self.priority.unwrap_or(0));
        event.queue = queue(self.client.as_deref(), self.queue.as_deref())?;
        let retries = self.max_retries.unwrap_or(DEFAULT_MAX_RETRIES);
        event = match self.retries_of_queue.unwrap_or(self.max_retries.is_none()) {
            true => event.retries_of_queue(retries),
            false => event.max_retries(retries),
        };
        if self.exhausted_as == Some(Exhausted::CompletedWithErrors) {
            event.exhausted_as = End::CompletedWithErrors;
        }
        (event.content_type, event.title, event.description) = (self.content_type, self.title, self.description);
        (event.source, event.subject, event.external_id) = (self.source, self.subject, self.external_id);
        (event.correlation_id, event.causation_id) = (self.correlation_id, self.causation_id);
        event.attributes = self.attributes.map(|raw| raw.get().to_owned());
        (event.group, event.rank) = (self.message_group, self.rank.unwrap_or(0));
        event.keeps_place = self.keep_place.unwrap_or(false);
        event.retry = self.retry.map(Into::into);
        if let Some(tags) = &self.tags {
            event.tags = tags.read().map_err(|error| ApiError::invalid(format!("event.{}", error.body.error)))?;
        }
        if let Some(delay) = seconds("delay_seconds", self.delay_seconds)?.filter(|delay| !delay.is_zero()) {
            event.available = Availability::After(delay);
        }
        event.expires = match (seconds("expires_after_seconds", self.expires_after_seconds)?, self.expires_at) {
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid("event.expires_at and event.expires_after_seconds: give one of them"));
            }
            (Some(age), None) => Some(Expiry::After(age)),
            (None, at) => at.map(Expiry::At),
        };
        let window = seconds("deduplication_seconds", self.deduplication_seconds)?.unwrap_or(DEFAULT_DEDUP_WINDOW);
        let mode = match self.deduplication_mode {
            Some(Repeats::ReplaceWaiting) => DedupMode::ReplaceWaiting,
            Some(Repeats::KeepFirst) | None => DedupMode::KeepFirst,
        };
        event.deduplication = self.deduplication_id.map(|key| Deduplication { key, mode, window });
        Ok(event)
    }

    fn payload(&self) -> Result<Bytes> {
        match (&self.payload, &self.payload_base64) {
            (Some(_), Some(_)) => Err(ApiError::invalid("event.payload and event.payload_base64: give one of them")),
            (None, Some(text)) => STANDARD
                .decode(text)
                .map(Bytes::from)
                .map_err(|error| ApiError::invalid(format!("event.payload_base64 is not base64: {error}"))),
            (Some(raw), None) => Ok(Bytes::copy_from_slice(raw.get().as_bytes())),
            (None, None) => Ok(Bytes::from_static(b"null")),
        }
    }

    fn of(event: NewEvent) -> Self {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).ok();
        let payload = std::str::from_utf8(&event.payload).ok().and_then(raw);
        let payload_base64 = payload.is_none().then(|| STANDARD.encode(&event.payload));
        let (expires_after, expires_at) = match event.expires {
            Some(Expiry::After(age)) => (Some(age), None),
            Some(Expiry::At(at)) => (None, Some(at)),
            None => (None, None),
        };
        let delay = match event.available {
            Availability::After(delay) => Some(delay),
            Availability::Now | Availability::At(_) => None,
        };
        let repeats = |deduplication: &Deduplication| match deduplication.mode {
            DedupMode::KeepFirst => Repeats::KeepFirst,
            DedupMode::ReplaceWaiting => Repeats::ReplaceWaiting,
        };
        let key = event.deduplication.as_ref();
        Self {
            payload,
            payload_base64,
            tags: Some(event.tags).filter(|tags| !tags.is_empty()).map(Tags::List),
            client: client(&event.queue),
            queue: Some(event.queue.name().to_owned()),
            attributes: event.attributes.as_deref().and_then(raw),
            priority: Some(event.priority).filter(|priority| *priority != 0),
            delay_seconds: delay.map(|delay| delay.as_secs_f64()),
            rank: Some(event.rank).filter(|rank| *rank != 0),
            keep_place: Some(event.keeps_place).filter(|keeps| *keeps),
            deduplication_mode: key.map(repeats),
            deduplication_seconds: key.map(|key| key.window.as_secs_f64()),
            deduplication_id: event.deduplication.map(|key| key.key),
            expires_after_seconds: expires_after.map(|age| age.as_secs_f64()),
            expires_at,
            max_retries: Some(event.max_attempts.saturating_sub(1)),
            retries_of_queue: Some(event.retries_of_queue),
            exhausted_as: Some(match event.exhausted_as {
                End::CompletedWithErrors => Exhausted::CompletedWithErrors,
                _ => Exhausted::Failed,
            }),
            retry: event.retry.map(Into::into),
            event_type: event.event_type,
            content_type: event.content_type,
            title: event.title,
            description: event.description,
            source: event.source,
            subject: event.subject,
            external_id: event.external_id,
            correlation_id: event.correlation_id,
            causation_id: event.causation_id,
            message_group: event.group,
        }
    }
}

impl ScheduleAnswer {
    pub(crate) fn of(view: ScheduleView) -> Self {
        Self {
            name: view.spec.name,
            cron: view.spec.cron,
            timezone: view.spec.timezone,
            missed: view.spec.missed,
            event: ScheduledEvent::of(view.spec.event),
            paused: view.paused,
            next_at: view.next_at,
            last_at: view.last_at,
            last_event_id: view.last_entry.map(|entry| entry.get()),
            ticks: view.ticks,
            created_at: view.created_at,
            updated_at: view.updated_at,
        }
    }
}

/// The queue that an event names. Who may name which client, the route has decided.
fn queue(client: Option<&str>, name: Option<&str>) -> Result<QueueName> {
    let bad = |_| ApiError::invalid("event.client must be the id of a client: 13 characters");
    let client = client.map(str::parse::<Tsid>).transpose().map_err(bad)?;
    QueueName::of(client, name.unwrap_or(QueueName::DEFAULT))
        .map_err(|error| ApiError::invalid(format!("event.queue: {error}")))
}

fn seconds(field: &str, seconds: Option<f64>) -> Result<Option<Duration>> {
    let bad = |_| ApiError::invalid(format!("event.{field} must be a number of seconds from 0 on"));
    seconds.map(Duration::try_from_secs_f64).transpose().map_err(bad)
}
