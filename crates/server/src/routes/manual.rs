//! Manual actions: reset, redrive and cancel of an event, and the redrive of many dead letters. The audit records them
//! under the caller's name.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::callers::{Admin, Manager};
use crate::error::{ErrorBody, Result};
use crate::extract::{EventId, OptionalBody, Query};
use crate::service::Service;
use crate::wire::event::Event;
use crate::wire::manual::{RedriveAnswer, RedriveBody, ResetParams};

/// Resets an event that is PROCESSING, FAILED or kept in its place to PENDING; a worker that held it loses its lease.
#[utoipa::path(
    post, path = "/events/{id}/reset", operation_id = "reset_event", tag = "events",
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1), ResetParams),
    responses(
        (status = 200, description = "The event, now PENDING.", body = Event),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "The event is not PROCESSING, FAILED or kept in its place.", body = ErrorBody),
    ),
)]
pub(crate) async fn reset(
    State(service): State<Arc<Service>>,
    Admin(caller): Admin,
    EventId(id): EventId,
    Query(params): Query<ResetParams>,
) -> Result<Json<Event>> {
    let reason = params.reason()?;
    let id = caller.entry(&service.queue, id).await?;
    let entry = service.queue.acting_as(caller.name()).reset_entry(id, reason).await?;
    Ok(Json(Event::of(entry)))
}

/// Redrives a dead letter, or an event that is kept in its place: starts it over as a new generation.
#[utoipa::path(
    post, path = "/events/{id}/redrive", operation_id = "redrive_event", tag = "dead letters",
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 200, description = "The event, now PENDING.", body = Event),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "The event is neither a dead letter nor kept in its place.", body = ErrorBody),
    ),
)]
pub(crate) async fn redrive(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    EventId(id): EventId,
) -> Result<Json<Event>> {
    let id = caller.entry(&service.queue, id).await?;
    let entry = service.queue.acting_as(caller.name()).redrive_entry(id).await?;
    Ok(Json(Event::of(entry)))
}

/// Ends an event as CANCELLED, even while a worker holds it.
#[utoipa::path(
    post, path = "/events/{id}/cancel", operation_id = "cancel_event", tag = "events",
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 200, description = "The event, now CANCELLED.", body = Event),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "The event has ended already.", body = ErrorBody),
    ),
)]
pub(crate) async fn cancel(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    EventId(id): EventId,
) -> Result<Json<Event>> {
    let id = caller.entry(&service.queue, id).await?;
    let entry = service.queue.acting_as(caller.name()).cancel_entry(id).await?;
    Ok(Json(Event::of(entry)))
}

/// Redrives many dead letters, no faster than `per_second`.
#[utoipa::path(
    post, path = "/events/redrive", operation_id = "redrive_events", tag = "dead letters", request_body = RedriveBody,
    responses(
        (status = 200, description = "How many were redriven.", body = RedriveAnswer),
        (status = 404, description = "There is no such queue.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn redrive_many(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    OptionalBody(body): OptionalBody<RedriveBody>,
) -> Result<Json<RedriveAnswer>> {
    let filter = body.filter()?;
    let queue = caller.queue(body.client.as_deref(), body.queue.as_deref())?;
    let queue = service.queues.handle(&queue).await?;
    let redriven = queue.acting_as(caller.name()).redrive_all(filter).await?;
    Ok(Json(RedriveAnswer { redriven }))
}
