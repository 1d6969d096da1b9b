//! `POST /events` and `POST /events/batch`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tidegate::{Fact, NewEvent, PublishOutcome, Published};
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

/// A new event.
#[derive(Debug, Deserialize, ToSchema)]
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
    let key = header(&headers, IDEMPOTENCY_KEY)?;
    let draft = Draft::new(&service, tenant, body, &headers, key).await?;
    let published = service.queue.publish(draft.event.clone()).await.map_err(ApiError::of_publish)?;
    service.rooms.came(&draft.event.queue, &draft.event.tags);
    Ok(draft.answer(&published))
}

/// Many events.
#[derive(Debug, Deserialize, ToSchema)]
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
        let key = key.as_ref().map(|key| format!("{key}/{index}"));
        drafts.push(match crate::body::parse(raw.get().as_bytes()) {
            Ok(body) => Draft::new(&service, tenant, body, &headers, key).await,
            Err(error) => Err(error),
        });
    }
    let events = drafts.iter().flatten().map(|draft| draft.event.clone()).collect();
    let mut published = service.queue.publish_many(events).await.into_iter();
    drafts.iter().flatten().for_each(|draft| service.rooms.came(&draft.event.queue, &draft.event.tags));
    let answer = |draft: Result<Draft>| {
        let draft = draft?;
        let lost = || Err(ApiError::new(Code::Indeterminate, "the answer was lost"));
        let published = published.next().map_or_else(lost, |answer| answer.map_err(ApiError::of_publish))?;
        Ok(draft.answer(&published))
    };
    let results = drafts.into_iter().map(answer).map(PublishAnswer::from).collect();
    Ok(Json(PublishAnswers { results }))
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
    queue: String,
}

impl Draft {
    async fn new(
        service: &Service,
        tenant: Tenant,
        body: NewEventBody,
        headers: &HeaderMap,
        key: Option<String>,
    ) -> Result<Self> {
        let queue = tenant.queue(body.queue.as_deref())?;
        let settings = service.settings(&queue, tenant).await?;
        let shown = tenant.shown(&queue);
        let mut event = new_event(body, &settings, service.options.limits.payload_bytes)?;
        event.queue = queue;
        event.client = tenant.0;
        event.attributes = attributes(headers);
        event.idempotency = key.map(|key| Idempotency::new(key, fingerprint(&event)));
        Ok(Self { event, queue: shown })
    }

    fn answer(self, published: &Published) -> (StatusCode, Json<Event>) {
        let status = match published.outcome {
            PublishOutcome::Created => StatusCode::CREATED,
            PublishOutcome::Duplicate | PublishOutcome::Replaced => StatusCode::OK,
        };
        let event = self.event;
        let available_at = match event.available {
            tidegate::Availability::After(delay) => published.created_at.checked_add(delay).ok(),
            _ => None,
        };
        let asked = Asked {
            queue: self.queue,
            max_attempts: event.max_attempts,
            priority: event.priority,
            group: event.group,
            available_at,
            fact: Fact {
                client: event.client,
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

/// A hash of everything a publisher said, so that the same key with another request is noticed.
fn fingerprint(event: &NewEvent) -> i64 {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    let texts = [&event.title, &event.description, &event.group];
    texts.into_iter().for_each(|text| add(text.as_deref().unwrap_or("\0").as_bytes()));
    add(event.queue.as_str().as_bytes());
    add(event.event_type.as_bytes());
    add(event.tags.join(",").as_bytes());
    add(&event.payload);
    add(&event.priority.to_le_bytes());
    add(&event.max_attempts.to_le_bytes());
    add(format!("{:?} {:?}", event.available, event.retry).as_bytes());
    add(event.deduplication.as_ref().map_or("\0", |dedup| &dedup.key).as_bytes());
    let digest = hash.finalize();
    let mut first = [0_u8; 8];
    first.copy_from_slice(&digest[..8]);
    i64::from_le_bytes(first)
}

fn header(headers: &HeaderMap, name: &str) -> Result<Option<String>> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = value.to_str().ok().filter(|text| !text.is_empty() && text.len() <= 200);
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
    fn the_fingerprint_sees_every_field() {
        let base = || NewEvent::new("t", "1").title("a").tags(["x"]);
        let others = [
            base().title("b"),
            base().description("d"),
            base().tags(["y"]),
            base().priority(1),
            base().group("g"),
            base().max_retries(9),
            base().delay(Duration::from_secs(1)),
            base().deduplicate("k"),
        ];
        assert_eq!(fingerprint(&base()), fingerprint(&base()));
        for other in others {
            assert_ne!(fingerprint(&base()), fingerprint(&other), "{other:?}");
        }
    }
}
