//! The shapes on the wire, and how the library's values become them. Field names and absences are part of the contract.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate::{Claimed, EntryPhase, EntryView, Fact, Published, QueueName, RetryPolicy, Timestamp, TraceContext};
use tidegate_core::work::{MAX_TAGS, check_tag};
use tidegate_core::{Action, Status};
use tidegate_store::{AuditRow, EntrySummary};
use utoipa::ToSchema;

use crate::error::{ApiError, Result};

/// Tags as one comma-separated text, or as a list.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(example = "email,priority-high")]
pub(crate) enum Tags {
    /// Comma-separated.
    Text(String),
    /// A list.
    List(Vec<String>),
}

impl Tags {
    /// At least one and not too many, without repeats, in the order given.
    pub(crate) fn read(&self) -> Result<Vec<String>> {
        let tags = match self {
            Self::Text(text) => read_tags(text.split(','))?,
            Self::List(list) => read_tags(list.iter().map(String::as_str))?,
        };
        if tags.is_empty() {
            return Err(ApiError::invalid("tags is required: name at least one, separated by commas"));
        }
        Ok(tags)
    }
}

/// Reads tags; blank ones are passed over.
pub(crate) fn read_tags<'a>(parts: impl Iterator<Item = &'a str>) -> Result<Vec<String>> {
    let mut tags: Vec<String> = Vec::new();
    for tag in parts.map(str::trim).filter(|tag| !tag.is_empty()) {
        if tags.iter().any(|known| known == tag) {
            continue;
        }
        if tags.len() == MAX_TAGS {
            return Err(ApiError::invalid(format!("there are too many tags: use at most {MAX_TAGS}")));
        }
        check_tag(tag).map_err(|error| ApiError::invalid(error.to_string()))?;
        tags.push(tag.into());
    }
    Ok(tags)
}

/// Reads the tags of a query, if there are any. A parameter that names none is refused: taken as no filter, it would show and
/// hand out everything.
pub(crate) fn asked_tags(text: Option<&str>) -> Result<Option<Vec<String>>> {
    let Some(text) = text else { return Ok(None) };
    let tags = read_tags(text.split(','))?;
    if tags.is_empty() {
        return Err(ApiError::invalid("tags names no tag: name at least one, or leave the parameter out"));
    }
    Ok(Some(tags))
}

/// When a failed attempt is tried again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Retry {
    /// The same delay each time.
    Fixed {
        /// How long.
        delay_ms: u64,
    },
    /// A delay that grows.
    Exponential {
        /// The first.
        base_ms: u64,
        /// How much longer each next one is; 2 if absent.
        #[serde(default = "two")]
        factor: f64,
        /// The longest.
        max_ms: u64,
        /// The share of it that is left to chance, 0 to 1; 0.25 if absent.
        #[serde(default = "quarter")]
        jitter: f64,
    },
    /// One delay after another; the last repeats.
    List {
        /// The delays.
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

/// A payload as it is stored: JSON goes out as it came in, anything else as base64.
#[derive(Debug, Serialize)]
pub(crate) struct Payload {
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl From<&Bytes> for Payload {
    fn from(bytes: &Bytes) -> Self {
        match std::str::from_utf8(bytes).ok().and_then(|text| RawValue::from_string(text.to_owned()).ok()) {
            Some(raw) => Self { payload: Some(raw), payload_base64: None },
            None => Self { payload: None, payload_base64: Some(base64(bytes)) },
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| (bits << 8) | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let letter = LETTERS[((bits >> (18 - 6 * place)) & 63) as usize] as char;
            text.push(if place <= chunk.len() { letter } else { '=' });
        }
    }
    text
}

/// What is the same of every event, wherever it is shown.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventBasics {
    /// Its number.
    #[schema(example = 1001)]
    id: i64,
    /// The id of its fact.
    event_id: String,
    /// What people call it.
    #[schema(example = "Send Email Notification")]
    title: String,
    /// Its tags, comma-separated.
    #[schema(example = "email,priority-high,notification")]
    tags: String,
    /// Where it is in its life.
    #[schema(value_type = String, example = "PENDING")]
    status: Status,
    /// Retries used up.
    retry_count: u32,
    /// Its queue.
    #[schema(example = "default")]
    queue: String,
    /// The client that its queue belongs to, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    /// Its type.
    #[serde(rename = "type")]
    event_type: String,
    /// When it was published.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

/// An event with everything about it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Event {
    #[serde(flatten)]
    basics: EventBasics,
    /// What people say about it.
    description: Option<String>,
    /// The payload, as it was published.
    #[serde(flatten)]
    #[schema(value_type = PayloadSchema)]
    payload: Payload,
    /// Retries it may have.
    max_retries: u32,
    /// When it is tried again, while it waits for that.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_retry_at: Option<Timestamp>,
    /// When anything last happened to it.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// Attempts so far.
    attempts: u32,
    /// Lower goes first.
    priority: i16,
    /// Its FIFO group.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_group: Option<String>,
    /// From when on it can be claimed, while it is delayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    available_at: Option<Timestamp>,
    /// Who holds or ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<String>,
    /// Until when its worker holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    lease_until: Option<Timestamp>,
    /// What went wrong last, as it was reported; several errors of an ended event stand in lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// Which life of the entry this is; a redrive starts the next.
    generation: u32,
    /// The trace it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    /// What happened to it, in order, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logs: Option<Vec<LogRow>>,
    /// Where the rest of `logs` begins, unless this is all; pass it as `logs_cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logs_next_cursor: Option<String>,
}

/// How a payload shows.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "it only describes an answer")]
pub(crate) struct PayloadSchema {
    /// Any JSON, as it was published; null when it is not JSON.
    #[schema(value_type = Value)]
    payload: serde_json::Value,
    /// A payload that is not JSON.
    payload_base64: Option<String>,
}

/// A queue's client as it is shown.
pub(crate) fn client(queue: &QueueName) -> Option<String> {
    queue.client().map(|client| client.to_string())
}

/// What a publisher asked for, as far as the answer repeats it.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) fact: Fact,
    pub(crate) queue: QueueName,
    pub(crate) max_attempts: u32,
    pub(crate) priority: i16,
    pub(crate) group: Option<String>,
    pub(crate) available_at: Option<Timestamp>,
}

impl Event {
    /// As it was at its publication.
    pub(crate) fn published(published: &Published, asked: Asked) -> Self {
        let traceparent = traceparent(&asked.fact);
        Self {
            basics: EventBasics {
                id: published.id.get(),
                event_id: published.event_id.to_string(),
                title: asked.fact.title.clone().unwrap_or_default(),
                tags: asked.fact.tags.join(","),
                status: Status::Pending,
                retry_count: 0,
                client: client(&asked.queue),
                queue: asked.queue.name().to_owned(),
                event_type: asked.fact.event_type.clone(),
                created_at: published.created_at,
            },
            description: asked.fact.description,
            payload: (&asked.fact.payload).into(),
            max_retries: asked.max_attempts.saturating_sub(1),
            next_retry_at: None,
            updated_at: published.created_at,
            attempts: 0,
            priority: asked.priority,
            message_group: asked.group,
            available_at: asked.available_at,
            worker_id: None,
            lease_until: None,
            last_error: None,
            generation: 1,
            traceparent,
            logs: None,
            logs_next_cursor: None,
        }
    }

    /// As it is.
    pub(crate) fn of(view: EntryView) -> Self {
        let (status, retry_count, next_retry_at) = (view.status(), view.retry_count(), view.next_retry_at());
        let max_retries = view.max_retries();
        let available_at = match view.phase {
            EntryPhase::Waiting { due } => due.filter(|due| *due > view.updated_at),
            _ => None,
        };
        let (worker_id, lease_until) = match &view.phase {
            EntryPhase::Leased { worker, until, .. } => (Some(worker.clone()), Some(*until)),
            EntryPhase::Ended { worker, .. } => (worker.clone(), None),
            _ => (None, None),
        };
        let last_error = match &view.phase {
            EntryPhase::Ended { .. } => view.error.map(one_text),
            _ => view.error,
        };
        let fact = view.fact;
        Self {
            basics: EventBasics {
                id: view.id.get(),
                event_id: view.event_id.to_string(),
                title: fact.title.clone().unwrap_or_else(|| fact.event_type.clone()),
                tags: fact.tags.join(","),
                status,
                retry_count,
                client: client(&view.queue),
                queue: view.queue.name().to_owned(),
                event_type: fact.event_type.clone(),
                created_at: fact.created_at,
            },
            traceparent: traceparent(&fact),
            description: fact.description,
            payload: (&fact.payload).into(),
            max_retries,
            next_retry_at,
            updated_at: view.updated_at,
            attempts: view.attempts,
            priority: view.priority,
            message_group: view.group,
            available_at,
            worker_id,
            lease_until,
            last_error,
            generation: view.generation,
            logs: None,
            logs_next_cursor: None,
        }
    }
}

/// Errors as they are shown: an ended entry keeps a JSON list of them, a waiting one the last as it was reported.
fn one_text(errors: String) -> String {
    let text = |error: serde_json::Value| match error {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    match serde_json::from_str::<Vec<serde_json::Value>>(&errors) {
        Ok(list) => list.into_iter().map(text).collect::<Vec<_>>().join("\n"),
        Err(_) => errors,
    }
}

/// An event under a lease, as a worker gets it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Leased {
    #[serde(flatten)]
    basics: EventBasics,
    /// What people say about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// The payload, as it was published.
    #[serde(flatten)]
    #[schema(value_type = PayloadSchema)]
    payload: Payload,
    /// Retries it may have.
    max_retries: u32,
    /// The attempt this is, from 1.
    attempts: u32,
    /// The lease: name it in every report.
    lease: i64,
    /// When somebody else may take it.
    #[schema(value_type = String, format = DateTime)]
    lease_until: Timestamp,
    /// Its FIFO group.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_group: Option<String>,
    /// What went wrong last time.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// The trace it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) traceparent: Option<String>,
    /// What systems on the way added to the trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    tracestate: Option<String>,
}

impl Leased {
    pub(crate) fn of(claimed: &Claimed, queue: &QueueName) -> Self {
        let fact = &claimed.fact;
        Self {
            basics: EventBasics {
                id: claimed.id.get(),
                event_id: claimed.event_id.to_string(),
                title: fact.title.clone().unwrap_or_else(|| fact.event_type.clone()),
                tags: fact.tags.join(","),
                status: Status::Processing,
                retry_count: tidegate_core::work::retry_count(claimed.attempts, false),
                client: client(queue),
                queue: queue.name().to_owned(),
                event_type: fact.event_type.clone(),
                created_at: fact.created_at,
            },
            description: fact.description.clone(),
            payload: (&fact.payload).into(),
            max_retries: claimed.max_attempts.saturating_sub(1),
            attempts: claimed.attempts,
            lease: claimed.token.0,
            lease_until: claimed.lease_until,
            message_group: claimed.group.clone(),
            last_error: claimed.last_error.clone(),
            traceparent: traceparent(fact),
            tracestate: TraceContext::of_attributes(fact.attributes.as_deref()).and_then(|trace| trace.tracestate),
        }
    }
}

/// An event in a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Listed {
    #[serde(flatten)]
    basics: EventBasics,
    /// Retries it may have.
    max_retries: u32,
    /// When it is tried again, while it waits for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    next_retry_at: Option<Timestamp>,
    /// Who holds or ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<String>,
    /// Its FIFO group.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_group: Option<String>,
    /// Lower goes first.
    priority: i16,
    /// When anything last happened to it.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl Listed {
    pub(crate) fn of(entry: EntrySummary) -> Self {
        let retry_count = entry.retry_count();
        Self {
            basics: EventBasics {
                id: entry.id.get(),
                event_id: entry.event_id.to_string(),
                title: entry.title.unwrap_or_else(|| entry.event_type.clone()),
                tags: entry.tags.join(","),
                status: entry.status,
                retry_count,
                client: client(&entry.queue),
                queue: entry.queue.name().to_owned(),
                event_type: entry.event_type,
                created_at: entry.created_at,
            },
            max_retries: entry.max_attempts.saturating_sub(1),
            next_retry_at: entry.next_retry_at,
            worker_id: entry.worker,
            message_group: entry.group,
            priority: entry.priority,
            updated_at: entry.updated_at,
        }
    }
}

/// One thing that happened to an event.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LogRow {
    /// Its number; later rows have greater ones.
    #[schema(example = 5001)]
    id: i64,
    /// About which event: its number, `id` elsewhere.
    event_id: i64,
    /// The event's other id, `event_id` elsewhere; null once the event is forgotten.
    #[schema(required, example = "0HZXEQ5Y8JY5Z")]
    event_tsid: Option<String>,
    /// The worker that did it, or whose attempt it was.
    worker_id: Option<String>,
    /// Who did it, where it was done by hand: the name of the key, or of the token's subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    /// What.
    #[schema(value_type = String, example = "PICKED")]
    action: Action,
    /// The worker's own code.
    #[serde(skip_serializing_if = "Option::is_none")]
    status_code: Option<i32>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<String>,
    /// Why somebody put it back, or ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// How long the attempt took.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_time_ms: Option<i64>,
    /// The attempt, from 1.
    attempt: u32,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

impl From<AuditRow> for LogRow {
    fn from(row: AuditRow) -> Self {
        let (reason, error_message) = match row.action {
            action if action.is_by_hand() => (row.message, None),
            _ => (None, row.message),
        };
        Self {
            id: row.id,
            event_id: row.entry.get(),
            event_tsid: row.event_id.map(|id| id.to_string()),
            worker_id: row.worker,
            actor: row.actor,
            action: row.action,
            status_code: row.status_code,
            error_message,
            reason,
            execution_time_ms: row.execution_time_ms,
            attempt: row.attempt,
            created_at: row.created_at,
        }
    }
}

/// The trace that an event belongs to, from its attributes.
fn traceparent(fact: &Fact) -> Option<String> {
    #[derive(Deserialize)]
    struct Attributes {
        traceparent: Option<String>,
    }
    serde_json::from_str::<Attributes>(fact.attributes.as_deref()?).ok()?.traceparent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_trimmed_and_counted() {
        let tags = Tags::Text(" email, priority-high ,,email".into()).read().unwrap();
        assert_eq!(tags, ["email", "priority-high"]);
        assert!(Tags::Text(" , ".into()).read().is_err());
        assert!(Tags::List(vec![]).read().is_err());
        assert!(Tags::List((0..100_000).map(|n| n.to_string()).collect()).read().is_err());
        assert!(Tags::Text("a\0b".into()).read().is_err());
    }

    #[test]
    fn payloads_that_are_not_json_go_as_base64() {
        let shown = |bytes: &'static [u8]| serde_json::to_string(&Payload::from(&Bytes::from_static(bytes))).unwrap();
        assert_eq!(shown(b"{\"a\": 1.0e2,  \"b\":\"\\u0000\"}"), r#"{"payload":{"a": 1.0e2,  "b":"\u0000"}}"#);
        assert_eq!(shown(b"\xff\xfe\x00"), r#"{"payload":null,"payload_base64":"//4A"}"#);
        assert_eq!(shown(b"hello"), r#"{"payload":null,"payload_base64":"aGVsbG8="}"#);
        assert_eq!(shown(b""), r#"{"payload":null,"payload_base64":""}"#);
    }
}
