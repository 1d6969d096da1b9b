//! Reports of a worker on an event that it holds: start, heartbeat, complete, fail and release.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use tidegate::AttemptOutcome;

use crate::access::{Caller, NamedEntry};
use crate::callers::Worker;
use crate::error::{ErrorBody, Result};
use crate::extract::{EventId, JsonBody};
use crate::service::Service;
use crate::wire::audit::LogRow;
use crate::wire::reports::{
    HeartbeatAnswer, HeartbeatBody, HolderBody, NamedHeartbeat, NamedHolder, NamedReport, ReportAnswer, ReportBody,
};

/// Reports an event as completed. A repeat gets the first answer.
#[utoipa::path(
    post, path = "/events/{id}/complete", operation_id = "complete_event", tag = "work", request_body = ReportBody,
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 200, description = "Recorded.", body = ReportAnswer),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "The worker does not hold the event.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn complete(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    EventId(id): EventId,
    JsonBody(body): JsonBody<ReportBody>,
) -> Result<Json<ReportAnswer>> {
    report(&service, &caller, id, body, AttemptOutcome::Completed).await
}

/// Reports an attempt as failed: the event is tried again later, or ends as FAILED when no retry is left.
#[utoipa::path(
    post, path = "/events/{id}/fail", operation_id = "fail_event", tag = "work", request_body = ReportBody,
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 200, description = "Recorded; a retry is scheduled.", body = ReportAnswer),
        (status = 400, body = ErrorBody, description = "With the code `max_retries_exceeded` the failure is recorded and \
            the event has ended as FAILED, because no retry was left: do not send the report again. With any other \
            code the request is invalid and nothing was recorded."),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "The worker does not hold the event.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn fail(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    EventId(id): EventId,
    JsonBody(body): JsonBody<ReportBody>,
) -> Result<Json<ReportAnswer>> {
    report(&service, &caller, id, body, AttemptOutcome::Failed).await
}

async fn report(
    service: &Service,
    caller: &Caller,
    named: NamedEntry,
    body: ReportBody,
    outcome: AttemptOutcome,
) -> Result<Json<ReportAnswer>> {
    let report = NamedReport::try_from(body)?;
    let id = caller.entry(&service.queue, named).await?;
    service.queue.report(report.of(id, outcome)).await?.try_into().map(Json)
}

/// Reports that the worker has started on an event.
#[utoipa::path(
    post, path = "/events/{id}/start", operation_id = "start_event", tag = "work", request_body = HolderBody,
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 200, description = "Recorded.", body = LogRow),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "The worker does not hold the event.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn start(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    EventId(id): EventId,
    JsonBody(body): JsonBody<HolderBody>,
) -> Result<Json<LogRow>> {
    let holder = NamedHolder::try_from(body)?;
    let id = caller.entry(&service.queue, id).await?;
    Ok(Json(service.queue.started(holder.of(id)).await?.into()))
}

/// Releases an event: another worker can claim it at once, and the attempt does not count.
#[utoipa::path(
    post, path = "/events/{id}/release", operation_id = "release_event", tag = "work", request_body = HolderBody,
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 204, description = "Released."),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "The worker does not hold the event.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn release(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    EventId(id): EventId,
    JsonBody(body): JsonBody<HolderBody>,
) -> Result<StatusCode> {
    let holder = NamedHolder::try_from(body)?;
    let id = caller.entry(&service.queue, id).await?;
    service.queue.give_back(holder.of(id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Extends the lease of an event.
#[utoipa::path(
    post, path = "/events/{id}/heartbeat", operation_id = "heartbeat", tag = "work", request_body = HeartbeatBody,
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 200, description = "The lease was extended.", body = HeartbeatAnswer),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "The worker does not hold the event: stop working on it.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn heartbeat(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    EventId(id): EventId,
    JsonBody(body): JsonBody<HeartbeatBody>,
) -> Result<Json<HeartbeatAnswer>> {
    let heartbeat = NamedHeartbeat::try_from(body)?;
    let id = caller.entry(&service.queue, id).await?;
    let held = service.queue.heartbeat(heartbeat.of(id, service.options.lease)).await?;
    Ok(Json(HeartbeatAnswer::of(id, &held)))
}
