//! `/schedules`: lists, shows, puts, deletes, pauses and resumes schedules, and runs one at once.
//!
//! A schedule belongs to no client and may publish into the queue of any, so only unscoped callers see and change them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use crate::callers::{Manager, Reader};
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::extract::{JsonBody, PathText};
use crate::service::Service;
use crate::wire::schedules::{RunAnswer, ScheduleAnswer, SchedulePath, ScheduleText, SchedulesAnswer};

/// Lists schedules.
///
/// Needs the scope `read`. Schedules belong to no client, so credentials that belong to one get 403.
#[utoipa::path(
    get, path = "/schedules", tag = "schedules", operation_id = "list_schedules",
    responses((status = 200, description = "All schedules, by name.", body = SchedulesAnswer)),
)]
pub(crate) async fn list(State(service): State<Arc<Service>>, Reader(caller): Reader) -> Result<Json<SchedulesAnswer>> {
    caller.need_unscoped()?;
    let all = service.queue.schedules().list().await?;
    Ok(Json(SchedulesAnswer { schedules: all.into_iter().map(ScheduleAnswer::of).collect() }))
}

/// Shows a schedule.
///
/// Needs the scope `read`, and credentials that belong to no client.
#[utoipa::path(
    get, path = "/schedules/{name}", tag = "schedules", operation_id = "show_schedule", params(SchedulePath),
    responses(
        (status = 200, description = "The schedule.", body = ScheduleAnswer),
        (status = 404, description = "There is no such schedule.", body = ErrorBody),
    ),
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(name): PathText,
) -> Result<Json<ScheduleAnswer>> {
    caller.need_unscoped()?;
    let found = service.queue.schedules().get(&name).await?;
    found.map(|found| Json(ScheduleAnswer::of(found))).ok_or_else(|| missing(&name))
}

/// Creates a schedule, or changes it to what the body says.
///
/// Its next tick stays unless the expression or the time zone changes; whether it is paused stays as well. Needs the scope
/// `manage`, and credentials that belong to no client.
#[utoipa::path(
    put, path = "/schedules/{name}", tag = "schedules", operation_id = "put_schedule", params(SchedulePath),
    request_body = ScheduleText,
    responses(
        (status = 200, description = "The schedule.", body = ScheduleAnswer),
        (status = 404, description = "There is no such queue.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn put(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(name): PathText,
    JsonBody(body): JsonBody<ScheduleText>,
) -> Result<Json<ScheduleAnswer>> {
    caller.need_unscoped()?;
    Ok(Json(ScheduleAnswer::of(service.queue.schedules().put(body.read(name)?).await?)))
}

/// Deletes a schedule. Events that it published stay.
///
/// Needs the scope `manage`, and credentials that belong to no client.
#[utoipa::path(
    delete, path = "/schedules/{name}", tag = "schedules", operation_id = "delete_schedule", params(SchedulePath),
    responses(
        (status = 204, description = "The schedule is gone."),
        (status = 404, description = "There is no such schedule.", body = ErrorBody),
    ),
)]
pub(crate) async fn remove(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(name): PathText,
) -> Result<StatusCode> {
    caller.need_unscoped()?;
    match service.queue.schedules().delete(&name).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(missing(&name)),
    }
}

/// Pauses a schedule.
///
/// Needs the scope `manage`, and credentials that belong to no client.
#[utoipa::path(
    post, path = "/schedules/{name}/pause", tag = "schedules", operation_id = "pause_schedule", params(SchedulePath),
    responses(
        (status = 200, description = "The schedule.", body = ScheduleAnswer),
        (status = 404, description = "There is no such schedule.", body = ErrorBody),
    ),
)]
pub(crate) async fn pause(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(name): PathText,
) -> Result<Json<ScheduleAnswer>> {
    caller.need_unscoped()?;
    Ok(Json(ScheduleAnswer::of(service.queue.schedules().pause(&name).await?)))
}

/// Resumes a schedule with its next tick from now on. Ticks while it was paused do not count as missed.
///
/// Needs the scope `manage`, and credentials that belong to no client.
#[utoipa::path(
    post, path = "/schedules/{name}/resume", tag = "schedules", operation_id = "resume_schedule", params(SchedulePath),
    responses(
        (status = 200, description = "The schedule.", body = ScheduleAnswer),
        (status = 404, description = "There is no such schedule.", body = ErrorBody),
    ),
)]
pub(crate) async fn resume(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(name): PathText,
) -> Result<Json<ScheduleAnswer>> {
    caller.need_unscoped()?;
    Ok(Json(ScheduleAnswer::of(service.queue.schedules().resume(&name).await?)))
}

/// Publishes the event of a schedule at once, paused or not. The schedule goes on as if nothing had happened.
///
/// Needs the scope `manage`, and credentials that belong to no client.
#[utoipa::path(
    post, path = "/schedules/{name}/run", tag = "schedules", operation_id = "run_schedule", params(SchedulePath),
    responses(
        (status = 200, description = "The event.", body = RunAnswer),
        (status = 404, description = "There is no such schedule.", body = ErrorBody),
        (status = 409, description = "Its deduplication key stands for another event.", body = ErrorBody),
        (status = 429, description = "The queue is full or draining.", body = ErrorBody),
    ),
)]
pub(crate) async fn run(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(name): PathText,
) -> Result<Json<RunAnswer>> {
    caller.need_unscoped()?;
    let published = service.queue.schedules().run_now(&name).await?;
    Ok(Json(RunAnswer { id: published.id.get(), event_id: published.event_id }))
}

fn missing(name: &str) -> ApiError {
    ApiError::new(Code::NotFound, format!("there is no schedule {name:?}"))
}
