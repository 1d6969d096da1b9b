//! `POST /api/dispatch-jobs`: creates jobs that are posted themselves, to be delivered as webhooks. A caller of a client
//! creates that client's jobs.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::header::LOCATION;
use http::{HeaderMap, HeaderName, StatusCode};
use tidegate::Tsid;
use tidegate_dispatch::{GatewayError, JobAct, NewTask};

use crate::access::Caller;
use crate::body;
use crate::callers::Publisher;
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::extract::{BatchBody, JsonBody};
use crate::routes::clients::{named, still_there};
use crate::service::Service;
use crate::wire::tasks::{CreatedJobAnswer, CreatedJobResult, CreatedJobs, NewJobBody, NewJobsBody};
use crate::wire::trace;

/// Creates a job, which is delivered as a webhook as soon as it is due.
#[utoipa::path(
    post, path = "/api/dispatch-jobs", operation_id = "create_dispatch_job", tag = "dispatch",
    request_body = NewJobBody,
    responses(
        (status = 201, description = "The job is durable.", body = CreatedJobAnswer),
        (status = 200, description = "The job was created before, under its idempotencyKey.", body = CreatedJobAnswer),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
        (status = 422, description = "The idempotencyKey was used for another job.", body = ErrorBody),
        (status = 429, description = "The client has as many lanes of jobs as it may.", body = ErrorBody),
    ),
)]
pub(crate) async fn create(
    State(service): State<Arc<Service>>,
    Publisher(caller): Publisher,
    headers: HeaderMap,
    JsonBody(body): JsonBody<NewJobBody>,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<CreatedJobAnswer>)> {
    let client = named(&service, &caller, body.client()).await?;
    let task = read(&service, client, &headers, body)?;
    let client = task.client;
    let created = service.gateway.create_task(task).await?;
    if let Some(gone) = gone(&service, &caller, client).await? {
        return Err(cancelled(&service, client, created.id, gone).await);
    }
    let status = if created.is_repeat { StatusCode::OK } else { StatusCode::CREATED };
    let answer = CreatedJobAnswer::from(created);
    let location = format!("/api/dispatch-jobs/{}", answer.id);
    Ok((status, [(LOCATION, location)], Json(answer)))
}

/// Creates many jobs, each with a result of its own.
#[utoipa::path(
    post, path = "/api/dispatch-jobs/batch", operation_id = "create_dispatch_jobs", tag = "dispatch",
    request_body = NewJobsBody,
    responses(
        (status = 200, description = "A result for each job, in order.", body = CreatedJobs),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn create_many(
    State(service): State<Arc<Service>>,
    Publisher(caller): Publisher,
    headers: HeaderMap,
    BatchBody(body): BatchBody<NewJobsBody>,
) -> Result<Json<CreatedJobs>> {
    let most = service.options.limits.batch_items;
    if body.jobs.len() > most {
        return Err(ApiError::invalid(format!("jobs has more than {most} items: send several batches")));
    }
    let mut tasks = Vec::with_capacity(body.jobs.len());
    // Looked up once each: a batch may name the same one a thousand times.
    let mut owners: BTreeMap<Option<String>, Result<Option<Tsid>>> = BTreeMap::new();
    for job in &body.jobs {
        let task = async {
            let job = body::parse::<NewJobBody>(job.get().as_bytes())?;
            let name = job.client().map(str::to_owned);
            let client = match owners.entry(name) {
                Entry::Occupied(known) => known.get().clone(),
                Entry::Vacant(place) => place.insert(named(&service, &caller, job.client()).await).clone(),
            };
            read(&service, client?, &headers, job)
        };
        tasks.push(task.await);
    }
    let good = tasks.iter().flatten().cloned().collect();
    let clients: BTreeSet<Option<Tsid>> = tasks.iter().flatten().map(|task| task.client).collect();
    let mut created = service.gateway.create_tasks(good).await.into_iter();
    let mut deleted = BTreeMap::new();
    for client in clients {
        deleted.extend(gone(&service, &caller, client).await?.map(|gone| (client, gone)));
    }
    let lost = || ApiError::new(Code::Indeterminate, "the store gave no answer for this job");
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        let made = task.and_then(|task| Ok((task.client, created.next().ok_or_else(lost)??)));
        results.push(CreatedJobResult::of(match made {
            Ok((client, made)) => match deleted.get(&client) {
                Some(gone) => Err(cancelled(&service, client, made.id, gone.clone()).await),
                None => Ok(made),
            },
            Err(error) => Err(error),
        }));
    }
    Ok(Json(CreatedJobs { results }))
}

/// Says that a client was deleted while jobs were created for it.
async fn gone(service: &Service, caller: &Caller, client: Option<Tsid>) -> Result<Option<String>> {
    match still_there(service, caller, client).await {
        Err(error) if error.body.code == Code::InvalidRequest => Ok(Some(error.body.error)),
        other => other.map(|()| None),
    }
}

/// Cancels a job of a client that is gone, and returns what it is answered with.
async fn cancelled(service: &Service, client: Option<Tsid>, id: Tsid, gone: String) -> ApiError {
    let why = Some("its client was deleted");
    match service.gateway.act_on_job(id, client, JobAct::Cancel, "tidegate", why).await {
        Ok(_) | Err(GatewayError::NotFound(_) | GatewayError::Conflict(_)) => ApiError::invalid(gone),
        Err(failed) => failed.into(),
    }
}

/// A task of a client. One that has no trace context of its own continues that of its request.
fn read(service: &Service, client: Option<Tsid>, headers: &HeaderMap, body: NewJobBody) -> Result<NewTask> {
    let mut task = body.read(client)?;
    if let Some(trace) = trace::of(headers) {
        task.event.traceparent = Some(trace.traceparent.to_owned());
        task.event.tracestate = trace.tracestate.map(str::to_owned);
    }
    let (length, most) =
        (task.event.data.as_ref().map_or(0, |data| data.bytes.len()), service.options.limits.payload_bytes);
    if length > most {
        let text = format!(
            "payload has {length} bytes, above the limit of {most}: store large data elsewhere, for instance in an object \
             store, and send a URI to it"
        );
        return Err(ApiError::new(Code::PayloadTooLarge, text));
    }
    Ok(task)
}
