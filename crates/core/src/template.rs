//! An event to be published later, in stored form.
//!
//! Owns how every field of a [`NewEvent`] is written to JSON and read back. Both directions name all fields, so that a
//! field added to the event and forgotten here does not compile.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::entry::End;
use crate::event::{Availability, DedupMode, Deduplication, Expiry, Idempotency, NewEvent};
use crate::id::Tsid;
use crate::name::QueueName;
use crate::retry::RetryPolicy;

/// An event in stored form. Durations are in microseconds; a delay of 0 is no delay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventTemplate {
    queue: QueueName,
    event_type: String,
    /// The payload, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    payload: Option<String>,
    /// The payload in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    payload_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    subject: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    external_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    correlation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    causation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    attributes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    client: Option<i64>,
    priority: i16,
    delay_us: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    available_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    deduplication: Option<Key>,
    max_attempts: u32,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    retries_of_queue: bool,
    exhausted_as: i16,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    keeps_place: bool,
    #[serde(skip_serializing_if = "is_zero", default)]
    rank: i32,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    expires_after_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    description: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    retry: Option<RetryPolicy>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    idempotency: Option<Request>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Key {
    key: String,
    replaces: bool,
    window_us: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Request {
    key: String,
    fingerprint: i64,
    window_us: u64,
}

/// A stored event that cannot be read; names the damaged part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stored event has {0} that cannot be read")]
pub struct DamagedTemplate(pub &'static str);

fn is_zero(number: &i32) -> bool {
    *number == 0
}

impl From<NewEvent> for EventTemplate {
    fn from(event: NewEvent) -> Self {
        // No `..`: a new field must be given a stored form here.
        let NewEvent {
            queue,
            event_type,
            payload,
            content_type,
            source,
            subject,
            time,
            external_id,
            correlation_id,
            causation_id,
            attributes,
            client,
            priority,
            available,
            group,
            deduplication,
            max_attempts,
            retries_of_queue,
            exhausted_as,
            keeps_place,
            rank,
            expires,
            title,
            description,
            tags,
            retry,
            idempotency,
        } = event;
        let text = std::str::from_utf8(&payload).ok();
        let (delay_us, available_at) = stored_availability(available);
        let (expires_after_us, expires_at) = stored_expiry(expires);
        Self {
            queue,
            event_type,
            payload: text.map(Into::into),
            payload_hex: text.is_none().then(|| payload.iter().map(|byte| format!("{byte:02x}")).collect()),
            content_type,
            source,
            subject,
            time,
            external_id,
            correlation_id,
            causation_id,
            attributes,
            client: client.map(Tsid::to_i64),
            priority,
            delay_us,
            available_at,
            group,
            deduplication: deduplication.map(Key::from),
            max_attempts,
            retries_of_queue,
            exhausted_as: exhausted_as.code(),
            keeps_place,
            rank,
            expires_after_us,
            expires_at,
            title,
            description,
            tags,
            retry,
            idempotency: idempotency.map(Request::from),
        }
    }
}

/// A delay in microseconds, or a moment.
fn stored_availability(available: Availability) -> (u64, Option<Timestamp>) {
    match available {
        Availability::Now => (0, None),
        Availability::After(delay) => (micros(delay), None),
        Availability::At(moment) => (0, Some(moment)),
    }
}

/// An age in microseconds, or a moment.
fn stored_expiry(expires: Option<Expiry>) -> (Option<u64>, Option<Timestamp>) {
    match expires {
        None => (None, None),
        Some(Expiry::After(age)) => (Some(micros(age)), None),
        Some(Expiry::At(moment)) => (None, Some(moment)),
    }
}

impl TryFrom<EventTemplate> for NewEvent {
    type Error = DamagedTemplate;

    fn try_from(stored: EventTemplate) -> Result<Self, DamagedTemplate> {
        let payload: Bytes = match (stored.payload, stored.payload_hex) {
            (Some(text), _) => text.into(),
            (None, Some(hex)) => from_hex(&hex).ok_or(DamagedTemplate("a payload"))?.into(),
            (None, None) => Bytes::new(),
        };
        let available = match (stored.available_at, stored.delay_us) {
            (Some(moment), _) => Availability::At(moment),
            (None, 0) => Availability::Now,
            (None, delay) => Availability::After(Duration::from_micros(delay)),
        };
        let expires = match (stored.expires_at, stored.expires_after_us) {
            (Some(moment), _) => Some(Expiry::At(moment)),
            (None, age) => age.map(|age| Expiry::After(Duration::from_micros(age))),
        };
        Ok(Self {
            queue: stored.queue,
            event_type: stored.event_type,
            payload,
            content_type: stored.content_type,
            source: stored.source,
            subject: stored.subject,
            time: stored.time,
            external_id: stored.external_id,
            correlation_id: stored.correlation_id,
            causation_id: stored.causation_id,
            attributes: stored.attributes,
            client: stored.client.map(Tsid::from_i64),
            priority: stored.priority,
            available,
            group: stored.group,
            deduplication: stored.deduplication.map(Deduplication::from),
            max_attempts: stored.max_attempts,
            retries_of_queue: stored.retries_of_queue,
            exhausted_as: End::from_code(stored.exhausted_as).ok_or(DamagedTemplate("an end"))?,
            keeps_place: stored.keeps_place,
            rank: stored.rank,
            expires,
            title: stored.title,
            description: stored.description,
            tags: stored.tags,
            retry: stored.retry,
            idempotency: stored.idempotency.map(Idempotency::from),
        })
    }
}

impl From<Deduplication> for Key {
    fn from(Deduplication { key, mode, window }: Deduplication) -> Self {
        Self { key, replaces: mode == DedupMode::ReplaceWaiting, window_us: micros(window) }
    }
}

impl From<Key> for Deduplication {
    fn from(Key { key, replaces, window_us }: Key) -> Self {
        let mode = if replaces { DedupMode::ReplaceWaiting } else { DedupMode::KeepFirst };
        Self { key, mode, window: Duration::from_micros(window_us) }
    }
}

impl From<Idempotency> for Request {
    fn from(Idempotency { key, fingerprint, window }: Idempotency) -> Self {
        Self { key, fingerprint, window_us: micros(window) }
    }
}

impl From<Request> for Idempotency {
    fn from(Request { key, fingerprint, window_us }: Request) -> Self {
        Self { key, fingerprint, window: Duration::from_micros(window_us) }
    }
}

/// An event with a value other than the default in every field but the queue, for tests that must notice a lost field.
#[doc(hidden)]
#[must_use]
pub fn every_field(event_type: &str) -> NewEvent {
    NewEvent {
        queue: QueueName::default(),
        event_type: event_type.into(),
        payload: Bytes::from_static(&[0, 255, 7]),
        content_type: Some("application/x".into()),
        source: Some("shop".into()),
        subject: Some("order:1".into()),
        time: Some(Timestamp::UNIX_EPOCH),
        external_id: Some("external".into()),
        correlation_id: Some("correlation".into()),
        causation_id: Some("causation".into()),
        attributes: Some(r#"{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}"#.into()),
        client: Some(Tsid::from_i64(77)),
        priority: -7,
        available: Availability::After(Duration::from_micros(5_000_001)),
        group: Some("group".into()),
        deduplication: Some(Deduplication {
            key: "key".into(),
            mode: DedupMode::ReplaceWaiting,
            window: Duration::from_secs(7),
        }),
        max_attempts: 3,
        retries_of_queue: true,
        exhausted_as: End::Failed,
        keeps_place: true,
        rank: -3,
        expires: Some(Expiry::After(Duration::from_micros(9_000_000_001))),
        title: Some("Title".into()),
        description: Some("Description".into()),
        tags: vec!["b".into(), "a".into()],
        retry: Some(RetryPolicy::Exponential { base_ms: 7, factor: 1.1, max_ms: 700, jitter: 0.3 }),
        idempotency: Some(Idempotency { key: "request".into(), fingerprint: -5, window: Duration::from_secs(9) }),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of the fields that have their default value.
    fn left_out(event: &NewEvent) -> Vec<&'static str> {
        let plain = NewEvent::new("", "");
        // No `..`: a new field must be given a value by `every_field`.
        let NewEvent {
            queue: _,
            event_type,
            payload,
            content_type,
            source,
            subject,
            time,
            external_id,
            correlation_id,
            causation_id,
            attributes,
            client,
            priority,
            available,
            group,
            deduplication,
            max_attempts,
            retries_of_queue,
            exhausted_as,
            keeps_place,
            rank,
            expires,
            title,
            description,
            tags,
            retry,
            idempotency,
        } = event;
        let same = [
            ("event_type", *event_type == plain.event_type),
            ("payload", *payload == plain.payload),
            ("content_type", *content_type == plain.content_type),
            ("source", *source == plain.source),
            ("subject", *subject == plain.subject),
            ("time", *time == plain.time),
            ("external_id", *external_id == plain.external_id),
            ("correlation_id", *correlation_id == plain.correlation_id),
            ("causation_id", *causation_id == plain.causation_id),
            ("attributes", *attributes == plain.attributes),
            ("client", *client == plain.client),
            ("priority", *priority == plain.priority),
            ("available", *available == plain.available),
            ("group", *group == plain.group),
            ("deduplication", *deduplication == plain.deduplication),
            ("max_attempts", *max_attempts == plain.max_attempts),
            ("retries_of_queue", *retries_of_queue == plain.retries_of_queue),
            ("exhausted_as", *exhausted_as == plain.exhausted_as),
            ("keeps_place", *keeps_place == plain.keeps_place),
            ("rank", *rank == plain.rank),
            ("expires", *expires == plain.expires),
            ("title", *title == plain.title),
            ("description", *description == plain.description),
            ("tags", *tags == plain.tags),
            ("retry", *retry == plain.retry),
            ("idempotency", *idempotency == plain.idempotency),
        ];
        same.into_iter().filter_map(|(name, same)| same.then_some(name)).collect()
    }

    fn there_and_back(event: &NewEvent) -> NewEvent {
        let text = serde_json::to_string(&EventTemplate::from(event.clone())).unwrap();
        serde_json::from_str::<EventTemplate>(&text).unwrap().try_into().unwrap()
    }

    #[test]
    fn templates_come_back() {
        let mut full = every_field("t");
        full.queue = QueueName::of(Tsid::from_i64(77), "billing").unwrap();
        assert_eq!(left_out(&full), <[&str; 0]>::default());
        // Negative numbers, because a sign can get lost too.
        assert!(
            full.priority < 0
                && full.rank < 0
                && full.idempotency.as_ref().is_some_and(|request| request.fingerprint < 0)
        );
        let plain = NewEvent::new("plain", "{\"a\": \"\u{e9}\"}");
        let timed = plain.clone().available_at(Timestamp::UNIX_EPOCH);
        let expiring = plain.clone().expires_at(Timestamp::UNIX_EPOCH);
        for event in [full, plain, timed, expiring, NewEvent::new("empty", "").deduplicate("k")] {
            assert_eq!(there_and_back(&event), event);
        }
    }

    #[test]
    fn what_is_stored_reads_the_same_ever_after() {
        for delay in [Duration::ZERO, Duration::from_nanos(1), Duration::from_nanos(1_500)] {
            let mut event = every_field("t").delay(delay);
            event.retry =
                Some(RetryPolicy::Exponential { base_ms: 1, factor: 0.1 + 0.2, max_ms: 1, jitter: 1.0 / 3.0 });
            let stored = there_and_back(&event);
            assert_eq!(there_and_back(&stored), stored);
        }
    }

    #[test]
    fn templates_of_before_are_still_read() {
        let text = r#"{"queue":"default","event_type":"t","payload":"{}","priority":1,"delay_us":0,"max_attempts":2,"exhausted_as":1}"#;
        let read: NewEvent = serde_json::from_str::<EventTemplate>(text).unwrap().try_into().unwrap();
        assert_eq!(read, NewEvent::new("t", "{}").priority(1).max_attempts(2));
    }

    #[test]
    fn damage_is_named() {
        let good = EventTemplate::from(every_field("t"));
        let ends = EventTemplate { exhausted_as: 99, ..good.clone() };
        assert_eq!(NewEvent::try_from(ends), Err(DamagedTemplate("an end")));
        let odd = EventTemplate { payload: None, payload_hex: Some("abc".into()), ..good };
        assert_eq!(NewEvent::try_from(odd), Err(DamagedTemplate("a payload")));
    }
}
