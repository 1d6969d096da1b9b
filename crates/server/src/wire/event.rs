//! An event with all its fields.

use serde::Serialize;
use tidegate::{AuditPart, Availability, EntryPhase, EntryView, NewEvent, Published, Status, Timestamp};
use utoipa::ToSchema;

use super::audit::LogRow;
use super::basics::{EventBasics, client, traceparent};
use super::payload::{Payload, PayloadSchema};
use crate::cursor;

/// An event with all its fields.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Event {
    #[serde(flatten)]
    basics: EventBasics,
    /// A description for people.
    description: Option<String>,
    /// The payload, as it was published.
    #[serde(flatten)]
    #[schema(value_type = PayloadSchema)]
    payload: Payload,
    /// Retries allowed after the first attempt.
    max_retries: u32,
    /// When the next attempt is due, while the event waits for a retry.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_retry_at: Option<Timestamp>,
    /// When the event's state last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// Attempts so far, including a running one.
    attempts: u32,
    /// Lower numbers are claimed first.
    priority: i16,
    /// The message group: its events run one at a time, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_group: Option<String>,
    /// When the event can be claimed, while it is delayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    available_at: Option<Timestamp>,
    /// The worker that holds the event, or ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<String>,
    /// When the lease of the worker expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    lease_until: Option<Timestamp>,
    /// The last error as it was reported. An ended event can have several, one per line.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// How often the event was started over: 1 at first, one more with each redrive.
    generation: u32,
    /// The W3C trace context of the publisher.
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    /// The audit of the event, oldest first; only with `include_logs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    logs: Option<Vec<LogRow>>,
    /// Pass it as `logs_cursor` for the next rows of `logs`; absent when there are no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    logs_next_cursor: Option<String>,
}

impl Event {
    /// An event that was just published.
    pub(crate) fn published(published: &Published, event: NewEvent) -> Self {
        let available_at = match event.available {
            Availability::After(delay) => published.created_at.checked_add(delay).ok(),
            _ => None,
        };
        Self {
            basics: EventBasics {
                id: published.id.get(),
                event_id: published.event_id.to_string(),
                title: event.title.unwrap_or_default(),
                tags: event.tags.join(","),
                status: Status::Pending,
                retry_count: 0,
                client: client(&event.queue),
                queue: event.queue.name().to_owned(),
                event_type: event.event_type,
                created_at: published.created_at,
            },
            description: event.description,
            payload: (&event.payload).into(),
            max_retries: published.max_attempts.saturating_sub(1),
            next_retry_at: None,
            updated_at: published.created_at,
            attempts: 0,
            priority: event.priority,
            message_group: event.group,
            available_at,
            worker_id: None,
            lease_until: None,
            last_error: None,
            generation: 1,
            traceparent: traceparent(event.attributes.as_deref()),
            logs: None,
            logs_next_cursor: None,
        }
    }

    /// A stored event, live or ended.
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
            EntryPhase::Ended { .. } | EntryPhase::Kept { .. } => view.error.map(one_text),
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
            traceparent: traceparent(fact.attributes.as_deref()),
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

    /// The event with part of its audit.
    pub(crate) fn with_logs(mut self, part: AuditPart) -> Self {
        self.logs_next_cursor = part.next.map(|row| cursor::of_audit(self.basics.id, row));
        self.logs = Some(part.rows.into_iter().map(Into::into).collect());
        self
    }
}

/// Errors of an ended entry, which are stored as a JSON list, joined by newlines. Other text is returned unchanged.
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
