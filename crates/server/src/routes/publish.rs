//! `POST /events` and `POST /events/batch`: publishing one event or many, with idempotency keys.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use tidegate::{Idempotency, NewEvent};

use crate::access::Caller;
use crate::callers::Publisher;
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::extract::{BatchBody, JsonBody};
use crate::service::Service;
use crate::wire::event::Event;
use crate::wire::idempotency::{Key, fingerprint};
use crate::wire::new_event::NewEventBody;
use crate::wire::publish::{NewEvents, PublishAnswer, PublishAnswers, answer};
use crate::wire::trace;

/// Publishes an event.
#[utoipa::path(
    post, path = "/events", operation_id = "publish_event", tag = "publish", request_body = NewEventBody,
    params(
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 200, pattern = "^[ -~]+$",
            description = "A repeat of the request under the same key within 24 hours is answered with the first \
                event."),
        ("traceparent" = Option<String>, Header, description = "The W3C trace context that the worker continues."),
    ),
    responses(
        (status = 201, description = "The event is published and durable.", body = Event),
        (status = 200, description = "The event was published before, under the same key.", body = Event),
        (status = 404, description = "There is no such queue.", body = ErrorBody),
        (status = 413, description = "The payload is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
        (status = 422, description = "The key was used for another event.", body = ErrorBody),
        (status = 429, description = "The queue is full or draining.", body = ErrorBody),
    ),
)]
pub(crate) async fn create(
    State(service): State<Arc<Service>>,
    Publisher(caller): Publisher,
    headers: HeaderMap,
    JsonBody(body): JsonBody<NewEventBody>,
) -> Result<(StatusCode, Json<Event>)> {
    let key = Key::read(&headers)?.map(Key::of_single);
    let event = new_event(&service, &caller, body, &headers, key).await?;
    let published = service.queue.publish_or_find(event.clone()).await;
    let (published, stored) = published.map_err(ApiError::of_publish)?;
    if stored.is_none() {
        service.waiters.wake(&event.queue, &event.tags);
    }
    let (status, event) = answer(event, &published, stored);
    Ok((status, Json(event)))
}

/// Publishes many events; an invalid one does not affect the others.
#[utoipa::path(
    post, path = "/events/batch", operation_id = "publish_events", tag = "publish", request_body = NewEvents,
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 200, pattern = "^[ -~]+$",
        description = "Each event gets a key of its own, made from this one and its index in the batch.")),
    responses(
        (status = 200, description = "A result for each event, in order.", body = PublishAnswers),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn create_many(
    State(service): State<Arc<Service>>,
    Publisher(caller): Publisher,
    headers: HeaderMap,
    BatchBody(body): BatchBody<NewEvents>,
) -> Result<Json<PublishAnswers>> {
    let key = Key::read(&headers)?;
    let mut events = Vec::new();
    for (index, body) in body.read(service.options.limits.batch_items)?.into_iter().enumerate() {
        let key = key.as_ref().map(|key| key.of_batch(index));
        events.push(match body {
            Ok(body) => new_event(&service, &caller, body, &headers, key).await,
            Err(error) => Err(error),
        });
    }
    let mut published =
        service.queue.publish_or_find_many(events.iter().flatten().cloned().collect()).await?.into_iter();
    events.iter().flatten().for_each(|event| service.waiters.wake(&event.queue, &event.tags));
    let answer = |event: Result<NewEvent>| {
        let event = event?;
        let (published, stored) = published.next().ok_or_else(lost)?.map_err(ApiError::of_publish)?;
        Ok(answer(event, &published, stored))
    };
    let results = events.into_iter().map(answer).map(PublishAnswer::from).collect();
    Ok(Json(PublishAnswers { results }))
}

/// The event that a request describes, addressed to a queue that the caller may use.
async fn new_event(
    service: &Service,
    caller: &Caller,
    body: NewEventBody,
    headers: &HeaderMap,
    key: Option<String>,
) -> Result<NewEvent> {
    let queue = caller.queue(body.client.as_deref(), body.queue.as_deref())?;
    // Known after the first time; a client's `default` is made by it.
    service.queues.handle(&queue).await?;
    let idempotency = key.map(|key| Idempotency::new(key, fingerprint(&body)));
    let mut event = body.into_event(service.options.limits.payload_bytes)?;
    (event.queue, event.idempotency, event.attributes) = (queue, idempotency, trace::attributes(headers));
    Ok(event)
}

fn lost() -> ApiError {
    let text = "the store gave no answer for this event: it may or may not have been published";
    ApiError::new(Code::Indeterminate, text)
}
