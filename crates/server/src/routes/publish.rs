//! `POST /events` and `POST /events/batch`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tidegate::{EntryId, EntryView, Fact, NewEvent, PublishOutcome, Published};
use tidegate_core::work::DEFAULT_MAX_RETRIES;
use tidegate_core::{Idempotency, QueueSettings};
use utoipa::ToSchema;

use crate::auth::Publisher;
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::extract::{BatchBody, JsonBody};
use crate::service::Service;
use crate::tenant::Tenant;
use crate::wire::{Asked, Event, Retry, Tags};

/// The type of an event that names none.
const DEFAULT_TYPE: &str = "event";
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// What the stored keys of a batch's events begin with,
const OF_BATCH: &str = "batch:";
/// and those of single events that would look like one of a batch, or like this.
const OF_SINGLE: &str = "single:";
/// Retries that an event may ask for.
const MAX_RETRIES: u32 = 1_000_000;

/// A new event.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "title": "Send Email Notification", "tags": "email,priority-high", "payload": { "user_id": 12345 } }))]
pub(crate) struct NewEventBody {
    /// What people call it.
    #[schema(value_type = String, required = true, example = "Send Email Notification", min_length = 1, max_length = 1000)]
    title: Option<String>,
    /// What people say about it.
    #[schema(example = "Send welcome email to new user")]
    description: Option<String>,
    /// What workers choose it by: at least one, at most 32.
    #[schema(value_type = Tags, required = true)]
    tags: Option<Tags>,
    /// Any JSON; it is handed out exactly as it was sent. Null if absent.
    #[schema(value_type = Value, required = false)]
    payload: Option<Box<RawValue>>,
    /// Retries after the first attempt; the queue decides if absent, else 3.
    #[schema(minimum = 0, maximum = 1000000, example = 3)]
    max_retries: Option<u32>,
    /// The queue; `default` if absent.
    #[schema(min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$")]
    queue: Option<String>,
    /// The client whose queue it is, for keys that belong to no client. What goes into a client's queue is the client's.
    #[schema(min_length = 13, max_length = 13)]
    client: Option<String>,
    /// Can be claimed after this many seconds.
    #[schema(minimum = 0, maximum = 3153600000_f64)]
    delay_seconds: Option<f64>,
    /// Lower goes first; 0 if absent.
    #[schema(minimum = -100, maximum = 100)]
    priority: Option<i16>,
    /// A repeat within 24 hours is answered with the first event.
    deduplication_id: Option<String>,
    /// Events of one group are worked off one at a time, in order.
    message_group: Option<String>,
    /// Its type; `event` if absent.
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// When a failed attempt is tried again; the queue decides if absent, else after 5 minutes.
    retry: Option<Retry>,
}

/// Publishes an event.
#[utoipa::path(
    post, path = "/events", operation_id = "publish_event", tag = "publish", request_body = NewEventBody,
    params(
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 200, pattern = "^[ -~]+$",
            description = "A repeat within 24 hours gets the first answer."),
        ("traceparent" = Option<String>, Header, description = "The trace that the worker continues."),
    ),
    responses(
        (status = 201, description = "Published and durable.", body = Event),
        (status = 200, description = "Published before, under the same key.", body = Event),
        (status = 404, description = "There is no such queue.", body = ErrorBody),
        (status = 413, description = "The payload is too large.", body = ErrorBody),
        (status = 415, description = "Not JSON.", body = ErrorBody),
        (status = 422, description = "The key stands for another event.", body = ErrorBody),
        (status = 429, description = "The queue is full or draining.", body = ErrorBody),
    ),
)]
pub(crate) async fn create(
    State(service): State<Arc<Service>>,
    Publisher(caller): Publisher,
    headers: HeaderMap,
    JsonBody(body): JsonBody<NewEventBody>,
) -> Result<(StatusCode, Json<Event>)> {
    let tenant = Tenant::from(&caller);
    let key = header(&headers, IDEMPOTENCY_KEY)?.map(single_key);
    let draft = Draft::new(&service, tenant, body, &headers, key).await?;
    let published = service.queue.publish(draft.event.clone()).await.map_err(ApiError::of_publish)?;
    if published.outcome == PublishOutcome::Duplicate
        && let Some(stored) = service.queue.entry(published.id).await?
    {
        return Ok((StatusCode::OK, Json(Event::of(stored))));
    }
    service.rooms.came(&draft.event.queue, &draft.event.tags);
    Ok(draft.answer(&published))
}

/// Many events.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "events": [{ "title": "Send Email Notification", "tags": "email", "payload": { "user_id": 12345 } }] }))]
pub(crate) struct NewEvents {
    /// Up to 1,000.
    #[schema(value_type = Vec<NewEventBody>, min_items = 1, max_items = 1000)]
    events: Vec<Box<RawValue>>,
}

/// What became of each, in order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PublishAnswers {
    results: Vec<PublishAnswer>,
}

/// What became of one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PublishAnswer {
    /// The status that it would have had alone.
    #[schema(example = 201)]
    status: u16,
    /// The event, if it was published.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<Event>,
    /// What is wrong, if it was not.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    error: Option<ErrorBody>,
}

/// Publishes many events; one bad event never fails its neighbours.
#[utoipa::path(
    post, path = "/events/batch", operation_id = "publish_events", tag = "publish", request_body = NewEvents,
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 200, pattern = "^[ -~]+$",
        description = "Each event gets a key of its own from it.")),
    responses(
        (status = 200, description = "An answer for each, in order.", body = PublishAnswers),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "Not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn create_many(
    State(service): State<Arc<Service>>,
    Publisher(caller): Publisher,
    headers: HeaderMap,
    BatchBody(body): BatchBody<NewEvents>,
) -> Result<Json<PublishAnswers>> {
    service.check_batch("events", body.events.len())?;
    let tenant = Tenant::from(&caller);
    let key = header(&headers, IDEMPOTENCY_KEY)?;
    let mut drafts = Vec::with_capacity(body.events.len());
    for (index, raw) in body.events.iter().enumerate() {
        let key = key.as_ref().map(|key| format!("{OF_BATCH}{index}:{key}"));
        drafts.push(match crate::body::parse(raw.get().as_bytes()) {
            Ok(body) => Draft::new(&service, tenant, body, &headers, key).await,
            Err(error) => Err(error),
        });
    }
    let events = drafts.iter().flatten().map(|draft| draft.event.clone()).collect();
    let published = service.queue.publish_many(events).await;
    drafts.iter().flatten().for_each(|draft| service.rooms.came(&draft.event.queue, &draft.event.tags));
    let stored = service.stored(&published).await?;
    let mut published = published.into_iter();
    let answer = |draft: Result<Draft>| {
        let draft = draft?;
        let lost = || Err(ApiError::new(Code::Indeterminate, "the answer was lost"));
        let published = published.next().map_or_else(lost, |answer| answer.map_err(ApiError::of_publish))?;
        match stored.get(&published.id).cloned().filter(|_| published.outcome == PublishOutcome::Duplicate) {
            Some(stored) => Ok((StatusCode::OK, Json(Event::of(stored)))),
            None => Ok(draft.answer(&published)),
        }
    };
    let results = drafts.into_iter().map(answer).map(PublishAnswer::from).collect();
    Ok(Json(PublishAnswers { results }))
}

impl Service {
    /// The events that repeats are answered with. They have the payloads that were just sent, so the body's bound is theirs.
    async fn stored(&self, published: &[tidegate::Result<Published>]) -> Result<HashMap<EntryId, EntryView>> {
        let repeats = published.iter().flatten().filter(|one| one.outcome == PublishOutcome::Duplicate);
        let ids: Vec<EntryId> = repeats.map(|one| one.id).collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let entries = self.queue.entries(ids).await?;
        Ok(entries.into_iter().flatten().map(|entry| (entry.id, entry)).collect())
    }
}

impl From<Result<(StatusCode, Json<Event>)>> for PublishAnswer {
    fn from(answer: Result<(StatusCode, Json<Event>)>) -> Self {
        match answer {
            Ok((status, Json(event))) => Self { status: status.as_u16(), event: Some(event), error: None },
            Err(error) => Self { status: error.status().as_u16(), event: None, error: Some(*error.body) },
        }
    }
}

/// An event that is ready to be published, with what the answer needs beside it.
struct Draft {
    event: NewEvent,
}

impl Draft {
    async fn new(
        service: &Service,
        tenant: Tenant,
        body: NewEventBody,
        headers: &HeaderMap,
        key: Option<String>,
    ) -> Result<Self> {
        let queue = tenant.queue(body.client.as_deref(), body.queue.as_deref())?;
        let fingerprint = key.as_ref().map(|_| fingerprint(&body));
        let settings = service.settings(&queue).await?;
        let mut event = new_event(body, &settings, service.options.limits.payload_bytes)?;
        event.queue = queue;
        event.attributes = attributes(headers);
        event.idempotency = key.zip(fingerprint).map(|(key, fingerprint)| Idempotency::new(key, fingerprint));
        Ok(Self { event })
    }

    fn answer(self, published: &Published) -> (StatusCode, Json<Event>) {
        let status = match published.outcome {
            PublishOutcome::Created => StatusCode::CREATED,
            PublishOutcome::Duplicate | PublishOutcome::Replaced => StatusCode::OK,
        };
        let event = self.event;
        let owner = event.owner();
        let available_at = match event.available {
            tidegate::Availability::After(delay) => published.created_at.checked_add(delay).ok(),
            _ => None,
        };
        let asked = Asked {
            queue: event.queue.clone(),
            max_attempts: event.max_attempts,
            priority: event.priority,
            group: event.group,
            available_at,
            fact: Fact {
                client: owner,
                event_type: event.event_type,
                payload: event.payload,
                content_type: event.content_type,
                source: event.source,
                subject: event.subject,
                time: event.time,
                external_id: event.external_id,
                correlation_id: event.correlation_id,
                causation_id: event.causation_id,
                attributes: event.attributes,
                created_at: published.created_at,
                title: event.title,
                description: event.description,
                tags: event.tags,
                retry: event.retry,
            },
        };
        (status, Json(Event::published(published, asked)))
    }
}

fn new_event(body: NewEventBody, settings: &QueueSettings, payload_limit: usize) -> Result<NewEvent> {
    let title = body.title.filter(|title| !title.trim().is_empty());
    let title = title.ok_or_else(|| ApiError::invalid("title is required"))?;
    let tags =
        body.tags.ok_or_else(|| ApiError::invalid("tags is required: name at least one, separated by commas"))?;
    if body.max_retries.is_some_and(|retries| retries > MAX_RETRIES) {
        return Err(ApiError::invalid(format!("max_retries does not fit: it must be from 0 to {MAX_RETRIES}")));
    }
    let payload: Box<str> = body.payload.map_or_else(|| "null".into(), Into::into);
    if payload.len() > payload_limit {
        let text = format!(
            "the payload has {} bytes, above the limit of {payload_limit}: store it elsewhere, for instance in an object \
             store, and send a URI to it",
            payload.len()
        );
        return Err(ApiError::new(Code::PayloadTooLarge, text));
    }
    let payload = Bytes::from(String::from(payload));
    let mut event = NewEvent::new(body.event_type.unwrap_or_else(|| DEFAULT_TYPE.into()), payload)
        .title(title)
        .tags(tags.read()?)
        .priority(body.priority.unwrap_or(0))
        .max_retries(body.max_retries.or(settings.max_retries).unwrap_or(DEFAULT_MAX_RETRIES));
    event.description = body.description;
    event.group = body.message_group;
    event.retry = body.retry.map(Into::into);
    if let Some(delay) = body.delay_seconds {
        let fits =
            Duration::try_from_secs_f64(delay).ok().filter(|delay| *delay <= Duration::from_secs(100 * 31_536_000));
        let text = "delay_seconds does not fit: it must be from 0 to 3153600000";
        let delay = fits.ok_or_else(|| ApiError::invalid(text))?;
        if !delay.is_zero() {
            event = event.delay(delay);
        }
    }
    if let Some(key) = body.deduplication_id {
        event = event.deduplicate(key);
    }
    event.check(tidegate::PayloadLimit(payload_limit)).map_err(tidegate::Error::from)?;
    Ok(event)
}

/// What a worker continues: the publisher's trace.
fn attributes(headers: &HeaderMap) -> Option<String> {
    #[derive(Serialize)]
    struct Attributes<'a> {
        traceparent: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        tracestate: Option<&'a str>,
    }
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).filter(|text| text.len() <= 512);
    let traceparent = text("traceparent").filter(|text| is_traceparent(text))?;
    serde_json::to_string(&Attributes { traceparent, tracestate: text("tracestate") }).ok()
}

/// W3C trace context: version, trace id, parent id, flags.
fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
    };
    parts.len() >= 4
        && hex(parts[0], 2)
        && parts[0] != "ff"
        && hex(parts[1], 32)
        && parts[1].bytes().any(|c| c != b'0')
        && hex(parts[2], 16)
        && parts[2].bytes().any(|c| c != b'0')
        && hex(parts[3], 2)
        && (parts.len() == 4 || parts[0] != "00")
}

/// A hash of everything a publisher said, as it was sent: what the queue adds to it may change between two sendings of one
/// request. The same key with another request is noticed by it.
fn fingerprint(body: &NewEventBody) -> i64 {
    let mut hash = Sha256::new();
    let mut add = |bytes: Option<&[u8]>| {
        // What was left out is not what was sent empty.
        hash.update(bytes.map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
        hash.update(bytes.unwrap_or_default());
    };
    let NewEventBody { title, description, tags, payload, max_retries, queue, client, .. } = body;
    let NewEventBody { delay_seconds, priority, deduplication_id, message_group, event_type, retry, .. } = body;
    for text in [title, description, queue, client, deduplication_id, message_group, event_type] {
        add(text.as_ref().map(String::as_bytes));
    }
    add(payload.as_ref().map(|payload| payload.get().as_bytes()));
    let tags = tags.as_ref().map(|tags| match tags {
        Tags::Text(text) => text.clone(),
        Tags::List(list) => list.join(","),
    });
    add(tags.as_ref().map(String::as_bytes));
    add(max_retries.map(u32::to_le_bytes).as_ref().map(|bytes| &bytes[..]));
    add(delay_seconds.map(f64::to_le_bytes).as_ref().map(|bytes| &bytes[..]));
    add(priority.map(i16::to_le_bytes).as_ref().map(|bytes| &bytes[..]));
    add(retry.as_ref().map(|retry| format!("{retry:?}")).as_ref().map(String::as_bytes));
    let digest = hash.finalize();
    let mut first = [0_u8; 8];
    first.copy_from_slice(&digest[..8]);
    i64::from_le_bytes(first)
}

/// A single event's key as it is stored: never one that an event of a batch could have.
fn single_key(key: String) -> String {
    if key.starts_with(OF_BATCH) || key.starts_with(OF_SINGLE) { format!("{OF_SINGLE}{key}") } else { key }
}

fn header(headers: &HeaderMap, name: &str) -> Result<Option<String>> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let is_visible = |text: &&str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let text = value.to_str().ok().filter(|text| !text.is_empty() && text.len() <= 200).filter(is_visible);
    let bad = || ApiError::invalid(format!("{name} does not fit: it must be 1 to 200 visible ASCII characters"));
    text.map(|text| Some(text.to_owned())).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_traceparents_are_kept() {
        assert!(is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert!(!is_traceparent(bad), "{bad}");
        }
    }

    #[test]
    fn keys_of_single_events_and_of_batches_never_meet() {
        let singles =
            ["abc", "abc/0", "batch:0:abc", "single:batch:0:abc", "single:abc"].map(|key| single_key(key.into()));
        let mut stored: Vec<&String> = singles.iter().collect();
        stored.sort_unstable();
        stored.dedup();
        assert_eq!(stored.len(), singles.len());
        assert!(singles.iter().all(|key| !key.starts_with(OF_BATCH)));
    }

    #[test]
    fn the_fingerprint_sees_every_field() {
        let read = |text: &str| fingerprint(&serde_json::from_str::<NewEventBody>(text).unwrap());
        let base = r#"{"title":"a","tags":"x","payload":{"a": 1}}"#;
        assert_eq!(
            read(base),
            read(r#" { "tags":["x"], "title":"a", "payload":{"a": 1} } "#),
            "order and space are not said"
        );
        let fields = [
            r#""description":"d""#,
            r#""description":"""#,
            r#""max_retries":3"#,
            r#""queue":"default""#,
            r#""client":"default""#,
            r#""delay_seconds":0"#,
            r#""delay_seconds":1"#,
            r#""priority":0"#,
            r#""deduplication_id":"k""#,
            r#""message_group":"k""#,
            r#""type":"event""#,
            r#""retry":{"kind":"fixed","delay_ms":1}"#,
        ];
        let others = fields.map(|field| format!("{},{field}}}", &base[..base.len() - 1]));
        let changed = [base.replace("\"a\",", "\"b\","), base.replace('x', "y"), base.replace(": 1", ":1")];
        let mut seen: Vec<i64> = others.iter().chain(&changed).map(|text| read(text)).chain([read(base)]).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), fields.len() + changed.len() + 1);
    }
}
