//! `/api/dispatch-jobs` and `/api/dispatch-groups`: lists and shows jobs, says why one is not delivered, retries, cancels and
//! ignores them, and lists groups that are blocked. A caller of a client sees those of its client.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use tidegate::Tsid;
use tidegate_dispatch::JobAct;

use crate::access::Caller;
use crate::callers::{Manager, Reader};
use crate::error::{ErrorBody, Result};
use crate::extract::{JsonBody, OptionalBody, PathText, Query, tsid};
use crate::service::Service;
use crate::wire::jobs::{
    ActBody, BulkAnswer, BulkBody, DispatchJobAnswer, DispatchJobsAnswer, GroupsAnswer, GroupsParams, JobPath,
    JobWhyAnswer, JobsParams,
};

/// Lists dispatch jobs, youngest first.
#[utoipa::path(
    get, path = "/api/dispatch-jobs", operation_id = "list_dispatch_jobs", tag = "dispatch",
    params(JobsParams),
    responses((status = 200, description = "A page of dispatch jobs.", body = DispatchJobsAnswer)),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    Query(params): Query<JobsParams>,
) -> Result<Json<DispatchJobsAnswer>> {
    let visible = caller.visible_as("clientId", params.client_id.as_deref())?;
    let (filter, before, limit) = params.read(visible)?;
    let page = service.gateway.jobs(&filter, before, limit).await?;
    Ok(Json(DispatchJobsAnswer::of(page, visible)))
}

/// Shows a dispatch job with what it delivers and the attempts at it.
#[utoipa::path(
    get, path = "/api/dispatch-jobs/{id}", operation_id = "show_dispatch_job", tag = "dispatch",
    params(JobPath),
    responses(
        (status = 200, description = "The dispatch job.", body = DispatchJobAnswer),
        (status = 404, description = "There is no such dispatch job.", body = ErrorBody),
    ),
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(id): PathText,
) -> Result<Json<DispatchJobAnswer>> {
    let shown = service.gateway.job(job_id(&id)?, caller.visible(None)?.client()).await?;
    Ok(Json(DispatchJobAnswer::of_shown(shown)?))
}

/// Says why a dispatch job is not delivered.
#[utoipa::path(
    get, path = "/api/dispatch-jobs/{id}/why", operation_id = "why_dispatch_job", tag = "dispatch",
    params(JobPath),
    responses(
        (status = 200, description = "The first reason that applies.", body = JobWhyAnswer),
        (status = 404, description = "There is no such dispatch job.", body = ErrorBody),
    ),
)]
pub(crate) async fn why(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(id): PathText,
) -> Result<Json<JobWhyAnswer>> {
    let why = service.gateway.why_not_delivered(job_id(&id)?, caller.visible(None)?.client()).await?;
    Ok(Json(JobWhyAnswer::of(&id, why)))
}

/// Retries a dispatch job that failed or was cancelled: it is delivered again under the same id, with all its attempts before
/// it. One that blocks its group goes on in its place.
#[utoipa::path(
    post, path = "/api/dispatch-jobs/{id}/retry", operation_id = "retry_dispatch_job", tag = "dispatch",
    params(JobPath), request_body = ActBody,
    responses(
        (status = 200, description = "The dispatch job, on its way again.", body = DispatchJobAnswer),
        (status = 404, description = "There is no such dispatch job.", body = ErrorBody),
        (status = 409, description = "It is neither ERROR nor CANCELLED, its subscription was deleted or sends to a queue now, or what was said about it cannot be read.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn retry(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    OptionalBody(body): OptionalBody<ActBody>,
) -> Result<Json<DispatchJobAnswer>> {
    act(&service, &caller, &id, JobAct::Retry, body).await
}

/// Cancels a dispatch job that has not ended, also while it is delivered: then nothing is recorded of that attempt. Others of
/// its group go on. Again, it changes nothing.
#[utoipa::path(
    post, path = "/api/dispatch-jobs/{id}/cancel", operation_id = "cancel_dispatch_job", tag = "dispatch",
    params(JobPath), request_body = ActBody,
    responses(
        (status = 200, description = "The dispatch job, CANCELLED.", body = DispatchJobAnswer),
        (status = 404, description = "There is no such dispatch job.", body = ErrorBody),
        (status = 409, description = "It has ended otherwise.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn cancel(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    OptionalBody(body): OptionalBody<ActBody>,
) -> Result<Json<DispatchJobAnswer>> {
    act(&service, &caller, &id, JobAct::Cancel, body).await
}

/// Ignores a dispatch job that failed: it stays ERROR, and a group that it blocks goes on. Again, it changes nothing.
#[utoipa::path(
    post, path = "/api/dispatch-jobs/{id}/ignore", operation_id = "ignore_dispatch_job", tag = "dispatch",
    params(JobPath), request_body = ActBody,
    responses(
        (status = 200, description = "The dispatch job, with ignoredAt.", body = DispatchJobAnswer),
        (status = 404, description = "There is no such dispatch job.", body = ErrorBody),
        (status = 409, description = "It is not ERROR.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn ignore(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    OptionalBody(body): OptionalBody<ActBody>,
) -> Result<Json<DispatchJobAnswer>> {
    act(&service, &caller, &id, JobAct::Ignore, body).await
}

/// Retries, cancels or ignores all dispatch jobs that match, youngest first, no faster than `perSecond`. It goes on for 20
/// seconds at most and says whether more may match.
#[utoipa::path(
    post, path = "/api/dispatch-jobs/bulk", operation_id = "change_dispatch_jobs", tag = "dispatch", request_body = BulkBody,
    responses(
        (status = 200, description = "How many were changed.", body = BulkAnswer),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn bulk(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    JsonBody(body): JsonBody<BulkBody>,
) -> Result<Json<BulkAnswer>> {
    let visible = caller.visible_as("clientId", body.client_id.as_deref())?;
    let (bulk, reason) = body.read(visible)?;
    let acted = service.gateway.act_on_jobs(&bulk, caller.name(), reason.as_deref()).await?;
    Ok(Json(BulkAnswer::of(&acted, visible)))
}

/// Lists message groups that are blocked: by which job, since when, why, and how many wait.
#[utoipa::path(
    get, path = "/api/dispatch-groups", operation_id = "list_dispatch_groups", tag = "dispatch",
    params(GroupsParams),
    responses((status = 200, description = "A page of groups.", body = GroupsAnswer)),
)]
pub(crate) async fn groups(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    Query(params): Query<GroupsParams>,
) -> Result<Json<GroupsAnswer>> {
    let visible = caller.visible_as("clientId", params.client_id.as_deref())?;
    let (after, limit) = params.read(visible)?;
    let page = service.gateway.blocked_groups(visible.client(), after, limit).await?;
    Ok(Json(GroupsAnswer::of(page, visible)))
}

async fn act(
    service: &Service,
    caller: &Caller,
    id: &str,
    act: JobAct,
    body: ActBody,
) -> Result<Json<DispatchJobAnswer>> {
    let (reason, client) = (body.reason()?, caller.visible(None)?.client());
    let job = service.gateway.act_on_job(job_id(id)?, client, act, caller.name(), reason.as_deref()).await?;
    Ok(Json(job.into()))
}

fn job_id(text: &str) -> Result<Tsid> {
    tsid("dispatch job", text)
}
