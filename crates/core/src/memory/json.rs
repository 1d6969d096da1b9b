//! The source's JSON of a queue's state, field for field. Payloads are shown byte for byte.

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::config::{Config, Durability};
use super::event::Event;
use super::queue::{DeadLetter, Listed, ListedPhase, Queue, moment};
use super::record::Totals;
use crate::queue::QueueState;

/// A page of a queue's state.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StateJson<'a> {
    /// The queue's name.
    pub id: &'a str,
    /// Live events, in order.
    pub events: Vec<EventJson<'a>>,
    /// The last event of the longest prefix of ended ones.
    pub checkpoint_id: Option<&'a str>,
    /// What the queue has done.
    pub queue_metrics: MetricsJson,
    /// Its configuration.
    pub config: Config,
    /// Whether it accepts and delivers events.
    pub status: QueueState,
    /// When it was created.
    #[serde(rename = "created_at", serialize_with = "iso")]
    pub created_at: Timestamp,
    /// When it was last changed.
    #[serde(rename = "updated_at", serialize_with = "iso")]
    pub updated_at: Timestamp,
    /// What of it survives a crash.
    pub durability: Durability,
    /// Whether it is draining and empty.
    pub drained: bool,
    /// Live events, on all pages.
    pub depth: u64,
    /// Where the next page begins; survives acks.
    pub next_cursor: Option<String>,
}

/// What a queue has done.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricsJson {
    /// Events that were processed.
    pub total_processed: u64,
    /// Attempts that failed or were abandoned.
    pub total_errors: u64,
    /// The average time from claim to ack.
    #[serde(serialize_with = "number")]
    pub avg_processing_time_ms: f64,
}

impl From<&Totals> for MetricsJson {
    fn from(totals: &Totals) -> Self {
        Self {
            total_processed: totals.processed,
            total_errors: totals.errors,
            avg_processing_time_ms: totals.average_millis(),
        }
    }
}

/// An event with what has happened to it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventJson<'a> {
    /// Identifies the event in its queue.
    pub event_id: &'a str,
    /// What happened.
    pub pattern: &'a str,
    /// The version of the payload's schema.
    pub version: Option<&'a str>,
    /// Where it comes from.
    pub source: Option<SourceJson<'a>>,
    /// When it happened.
    #[serde(serialize_with = "iso")]
    pub timestamp: Timestamp,
    /// The payload, as it was sent.
    pub payload: &'a RawValue,
    /// Its context, and what has happened to it.
    pub metadata: MetadataJson<'a>,
}

/// Where an event comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SourceJson<'a> {
    /// What kind of source.
    #[serde(rename = "type")]
    pub kind: Option<&'a str>,
    /// Identifies the source.
    pub id: Option<&'a str>,
    /// Names it for people.
    pub name: Option<&'a str>,
}

/// The context of an event, and what has happened to it. What there is not is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MetadataJson<'a> {
    /// Relates events to each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<&'a str>,
    /// The event that caused this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub causation_id: Option<&'a str>,
    /// For distributed tracing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<&'a str>,
    /// How often it was or is to be tried again.
    pub retry_count: u32,
    /// What failed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<&'a str>,
    /// When that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error_time: Option<String>,
    /// Since when a worker holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processing_start_time: Option<String>,
}

impl<'a> EventJson<'a> {
    /// An event that was tried again so often.
    #[must_use]
    pub fn new(event: &'a Event, retry_count: u32) -> Self {
        let source = event.source().map(|source| SourceJson { kind: source.kind, id: source.id, name: source.name });
        let metadata = MetadataJson {
            correlation_id: event.correlation_id(),
            causation_id: event.causation_id(),
            trace_id: event.trace_id(),
            retry_count,
            ..MetadataJson::default()
        };
        Self {
            event_id: event.event_id(),
            pattern: event.pattern(),
            version: event.version(),
            source,
            timestamp: event.timestamp(),
            // It was JSON when it was published, and the checksums say that it still is what it was.
            payload: serde_json::from_slice(event.payload()).unwrap_or(RawValue::NULL),
            metadata,
        }
    }

    fn with_failure(mut self, error: Option<&'a str>, at: Option<Timestamp>) -> Self {
        self.metadata.last_error = error.filter(|error| !error.is_empty());
        self.metadata.last_error_time = at.map(|at| format!("{at:.3}"));
        self
    }
}

impl<'a> From<Listed<'a>> for EventJson<'a> {
    fn from(listed: Listed<'a>) -> Self {
        let mut json =
            Self::new(listed.event, listed.retry_count).with_failure(listed.last_error, listed.last_error_time);
        if let ListedPhase::Leased { since, .. } = listed.phase {
            json.metadata.processing_start_time = Some(format!("{since:.3}"));
        }
        json
    }
}

impl<'a> From<DeadLetter<'a>> for EventJson<'a> {
    fn from(letter: DeadLetter<'a>) -> Self {
        Self::new(letter.event, letter.retry_count).with_failure(letter.last_error, letter.last_error_time)
    }
}

impl Queue {
    /// A page of the queue's state: at most `limit` events with a number above `after`.
    #[must_use]
    pub fn to_json(&self, after: u64, limit: usize) -> StateJson<'_> {
        let mut listed: Vec<Listed<'_>> = self.list(after).take(limit.saturating_add(1)).collect();
        let has_more = listed.len() > limit;
        listed.truncate(limit);
        let next_cursor = listed.last().filter(|_| has_more).map(|last| last.number.to_string());
        let state = self.state();
        StateJson {
            id: self.name().name(),
            events: listed.into_iter().map(EventJson::from).collect(),
            checkpoint_id: self.checkpoint_id(),
            queue_metrics: self.totals().into(),
            config: *self.config(),
            status: self.status(),
            created_at: moment(state.created_at),
            updated_at: moment(state.updated_at),
            durability: self.durability(),
            drained: self.is_drained(),
            depth: self.depth().total(),
            next_cursor,
        }
    }
}

/// Milliseconds, always three digits.
fn iso<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{at:.3}"))
}

/// A whole number without a fraction.
fn number<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if number.fract() == 0.0 { serializer.serialize_u64(*number as u64) } else { serializer.serialize_f64(*number) }
}

#[cfg(test)]
mod tests;
