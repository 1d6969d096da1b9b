//! What workers say about the events they hold: start, heartbeat, complete, fail; one at a time or many.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tidegate::{EntryId, LeaseToken, Timestamp};
use tidegate_core::{Action, Outcome};
use tidegate_store::{Heartbeat, HeartbeatLease, Held, Holder, Report, Reported, Verdict};
use utoipa::ToSchema;

use crate::auth::Worker;
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::extract::{BatchBody, EventId, JsonBody, entry_id};
use crate::service::Service;
use crate::tenant::Tenant;
use crate::wire::LogRow;
use crate::{misfit, unknown};

/// The longest error message that is kept.
const MAX_MESSAGE: usize = 64 << 10;

/// Who reports.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker_id": "worker-02:8742" }))]
pub(crate) struct HolderBody {
    /// Who holds the event.
    #[schema(value_type = String, required = true, min_length = 1, max_length = 255, example = "worker-02:8742")]
    worker_id: Option<String>,
    /// The lease, as it was handed out; the one this worker holds if absent.
    lease: Option<i64>,
}

/// Who reports on which event.
fn holder(id: EntryId, worker: Option<String>, lease: Option<i64>) -> Result<Holder> {
    let worker = worker.ok_or_else(|| ApiError::invalid("worker_id is required"))?;
    tidegate_core::name::check_text("worker_id", &worker).map_err(tidegate::Error::from)?;
    Ok(Holder { id, worker, lease: lease.map(LeaseToken) })
}

/// How an attempt ended.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker_id": "worker-02:8742", "execution_time_ms": 1250, "status_code": 200 }))]
pub(crate) struct ReportBody {
    /// Who holds the event.
    #[schema(value_type = String, required = true, min_length = 1, max_length = 255, example = "worker-02:8742")]
    worker_id: Option<String>,
    /// The lease, as it was handed out; the one this worker holds if absent.
    lease: Option<i64>,
    /// How long it took.
    #[schema(minimum = 0, example = 1250)]
    execution_time_ms: Option<i64>,
    /// The worker's own code, such as an HTTP status.
    #[schema(example = 200)]
    status_code: Option<i32>,
    /// What went wrong.
    error_message: Option<String>,
}

impl ReportBody {
    fn read(self, id: EntryId, outcome: Outcome) -> Result<Report> {
        if self.execution_time_ms.is_some_and(|time| time < 0) {
            return Err(ApiError::invalid("execution_time_ms does not fit: it must be 0 or more"));
        }
        if self.error_message.as_ref().is_some_and(|text| text.len() > MAX_MESSAGE || text.contains('\0')) {
            let text =
                format!("error_message does not fit: it must be at most {MAX_MESSAGE} bytes without NUL characters");
            return Err(ApiError::invalid(text));
        }
        Ok(Report {
            holder: holder(id, self.worker_id, self.lease)?,
            outcome,
            status_code: self.status_code,
            execution_time_ms: self.execution_time_ms,
            error_message: self.error_message,
        })
    }
}

/// What was recorded.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReportAnswer {
    /// Which event: its number, `id` elsewhere.
    event_id: i64,
    /// The event's other id, `event_id` elsewhere; null once the event is forgotten.
    #[schema(required, example = "0HZXEQ5Y8JY5Z")]
    event_tsid: Option<String>,
    /// Who reported.
    worker_id: Option<String>,
    /// What.
    #[schema(value_type = String, example = "COMPLETED")]
    action: Action,
    /// The worker's own code.
    status_code: Option<i32>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<String>,
    /// How long it took.
    execution_time_ms: Option<i64>,
    /// Whether it is tried again, after a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_scheduled: Option<bool>,
    /// When, after a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    next_retry_at: Option<Timestamp>,
    /// When it was recorded.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

fn answer(reported: Reported) -> Result<ReportAnswer> {
    let row = reported.row;
    let (retry_scheduled, next_retry_at) = match reported.verdict {
        Verdict::Completed => (None, None),
        Verdict::RetryScheduled { next_retry_at } => (Some(true), Some(next_retry_at)),
        Verdict::Exhausted { retry_count, max_retries } => return Err(ApiError::max_retries(retry_count, max_retries)),
    };
    Ok(ReportAnswer {
        event_id: row.entry.get(),
        event_tsid: row.event_id.map(|id| id.to_string()),
        worker_id: row.worker,
        action: row.action,
        status_code: row.status_code,
        error_message: row.message,
        execution_time_ms: row.execution_time_ms,
        retry_scheduled,
        next_retry_at,
        created_at: row.created_at,
    })
}

/// Says that the event is done. A repeat gets the first answer.
#[utoipa::path(
    post, path = "/events/{id}/complete", operation_id = "complete_event", tag = "work", request_body = ReportBody,
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 200, description = "Recorded.", body = ReportAnswer),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "This worker does not hold it.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "Not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn complete(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    EventId(id): EventId,
    JsonBody(body): JsonBody<ReportBody>,
) -> Result<Json<ReportAnswer>> {
    let report = body.read(id, Outcome::Completed)?;
    service.need_own(Tenant::from(&caller), id).await?;
    answer(service.queue.report(report).await?).map(Json)
}

/// Says that the attempt failed: the event is tried again later, or ends as FAILED when no retry is left.
#[utoipa::path(
    post, path = "/events/{id}/fail", operation_id = "fail_event", tag = "work", request_body = ReportBody,
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 200, description = "Recorded; a retry is scheduled.", body = ReportAnswer),
        (status = 400, body = ErrorBody, description = "With the code `max_retries_exceeded` the failure is recorded and the \
            event has ended as FAILED, because no retry was left: nothing is to be sent again. With any other code \
            something in the request does not fit and nothing is recorded."),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "This worker does not hold it.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "Not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn fail(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    EventId(id): EventId,
    JsonBody(body): JsonBody<ReportBody>,
) -> Result<Json<ReportAnswer>> {
    let report = body.read(id, Outcome::Failed)?;
    service.need_own(Tenant::from(&caller), id).await?;
    answer(service.queue.report(report).await?).map(Json)
}

/// Says that work has begun.
#[utoipa::path(
    post, path = "/events/{id}/start", operation_id = "start_event", tag = "work", request_body = HolderBody,
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 200, description = "Recorded.", body = LogRow),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "This worker does not hold it.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "Not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn start(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    EventId(id): EventId,
    JsonBody(body): JsonBody<HolderBody>,
) -> Result<Json<LogRow>> {
    let holder = holder(id, body.worker_id, body.lease)?;
    service.need_own(Tenant::from(&caller), id).await?;
    Ok(Json(service.queue.started(holder).await?.into()))
}

/// Gives an event back: others can take it at once, and the attempt does not count.
#[utoipa::path(
    post, path = "/events/{id}/release", operation_id = "release_event", tag = "work", request_body = HolderBody,
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 204, description = "Given back."),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "This worker does not hold it.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "Not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn release(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    EventId(id): EventId,
    JsonBody(body): JsonBody<HolderBody>,
) -> Result<StatusCode> {
    let holder = holder(id, body.worker_id, body.lease)?;
    service.need_own(Tenant::from(&caller), id).await?;
    service.queue.give_back(holder).await?;
    if let Some(queue) = service.queue.queues_of(vec![id]).await?.pop().flatten() {
        service.wake(&queue);
    }
    Ok(StatusCode::NO_CONTENT)
}

/// A sign of life.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker_id": "worker-02:8742" }))]
pub(crate) struct HeartbeatBody {
    /// Who holds the event.
    #[schema(value_type = String, required = true, min_length = 1, max_length = 255, example = "worker-02:8742")]
    worker_id: Option<String>,
    /// The lease, as it was handed out; the one this worker holds if absent.
    lease: Option<i64>,
    /// Seconds from now until somebody else may take the event; if absent as the claim asked, else as the queue says.
    #[schema(minimum = 1, maximum = 86400)]
    lease_seconds: Option<u32>,
}

/// A lease as it stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HeartbeatAnswer {
    /// Which event: its number, `id` elsewhere.
    event_id: i64,
    /// The event's other id, `event_id` elsewhere.
    #[schema(example = "0HZXEQ5Y8JY5Z")]
    event_tsid: String,
    /// The lease.
    lease: i64,
    /// When somebody else may take the event.
    #[schema(value_type = String, format = DateTime)]
    lease_until: Timestamp,
    /// The attempt this is, from 1.
    attempts: u32,
}

/// Keeps an event.
#[utoipa::path(
    post, path = "/events/{id}/heartbeat", operation_id = "heartbeat", tag = "work", request_body = HeartbeatBody,
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 200, description = "Kept.", body = HeartbeatAnswer),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "This worker does not hold it: stop working on it.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "Not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn heartbeat(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    EventId(id): EventId,
    JsonBody(body): JsonBody<HeartbeatBody>,
) -> Result<Json<HeartbeatAnswer>> {
    if body.lease_seconds.is_some_and(|seconds| !(1..=86_400).contains(&seconds)) {
        return Err(ApiError::invalid("lease_seconds does not fit: it must be from 1 to 86400"));
    }
    let holder = holder(id, body.worker_id, body.lease)?;
    service.need_own(Tenant::from(&caller), id).await?;
    let unsaid = HeartbeatLease::AsClaimed { otherwise: service.options.lease };
    let lease = body.lease_seconds.map_or(unsaid, |seconds| HeartbeatLease::For(Duration::from_secs(seconds.into())));
    let held: Held = service.queue.heartbeat(Heartbeat { holder, lease }).await?;
    Ok(Json(HeartbeatAnswer {
        event_id: id.get(),
        event_tsid: held.event_id.to_string(),
        lease: held.token.0,
        lease_until: held.lease_until,
        attempts: held.attempts,
    }))
}

/// One report of many.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReportItem {
    /// Which event.
    #[schema(value_type = i64)]
    id: serde_json::Value,
    /// Who holds the event; whoever reports for all if absent.
    #[schema(min_length = 1, max_length = 255, example = "worker-02:8742")]
    worker_id: Option<String>,
    /// The lease, as it was handed out; the one this worker holds if absent.
    lease: Option<i64>,
    /// How long it took.
    #[schema(minimum = 0, example = 1250)]
    execution_time_ms: Option<i64>,
    /// The worker's own code, such as an HTTP status.
    #[schema(example = 200)]
    status_code: Option<i32>,
    /// What went wrong.
    error_message: Option<String>,
}

impl ReportItem {
    fn read(item: serde_json::Value, everybody: Option<&String>, outcome: Outcome) -> Result<Report> {
        let failed = |error: serde_json::Error| {
            let text = || ApiError::invalid(format!("the item cannot be read: {}", misfit::said(&error.to_string())));
            unknown::field(&error).unwrap_or_else(text)
        };
        let item: Self = misfit::from_value(item).map_err(failed)?;
        let body = ReportBody {
            worker_id: item.worker_id.or_else(|| everybody.cloned()),
            lease: item.lease,
            execution_time_ms: item.execution_time_ms,
            status_code: item.status_code,
            error_message: item.error_message,
        };
        body.read(entry_id(&item.id.to_string())?, outcome)
    }
}

/// Many reports.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker_id": "worker-02:8742", "events": [{ "id": 1, "execution_time_ms": 1250 }] }))]
pub(crate) struct ReportItems {
    /// Who reports, where an item does not say.
    worker_id: Option<String>,
    /// Up to 1,000.
    #[schema(value_type = Vec<ReportItem>, min_items = 1, max_items = 1000)]
    events: Vec<serde_json::Value>,
}

/// What became of each, in order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReportAnswers {
    results: Vec<ItemAnswer>,
}

/// What became of one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ItemAnswer {
    /// The status that it would have had alone: 400 with the code `max_retries_exceeded` for a failure that was recorded
    /// and left no retry.
    #[schema(example = 200)]
    status: u16,
    /// What was recorded, if it was.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    recorded: Option<ReportAnswer>,
    /// What is wrong otherwise.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    error: Option<ErrorBody>,
}

impl From<Result<ReportAnswer>> for ItemAnswer {
    fn from(answer: Result<ReportAnswer>) -> Self {
        match answer {
            Ok(recorded) => Self { status: StatusCode::OK.as_u16(), recorded: Some(recorded), error: None },
            Err(error) => Self { status: error.status().as_u16(), recorded: None, error: Some(*error.body) },
        }
    }
}

/// Says that events are done.
#[utoipa::path(
    post, path = "/events/complete", operation_id = "complete_events", tag = "work", request_body = ReportItems,
    responses(
        (status = 200, description = "An answer for each, in order.", body = ReportAnswers),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "Not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn complete_many(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    BatchBody(body): BatchBody<ReportItems>,
) -> Result<Json<ReportAnswers>> {
    report_many(&service, Tenant::from(&caller), body, Outcome::Completed).await
}

/// Says that attempts failed.
#[utoipa::path(
    post, path = "/events/fail", operation_id = "fail_events", tag = "work", request_body = ReportItems,
    responses(
        (status = 200, description = "An answer for each, in order.", body = ReportAnswers),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "Not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn fail_many(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    BatchBody(body): BatchBody<ReportItems>,
) -> Result<Json<ReportAnswers>> {
    report_many(&service, Tenant::from(&caller), body, Outcome::Failed).await
}

async fn report_many(
    service: &Service,
    tenant: Tenant,
    body: ReportItems,
    outcome: Outcome,
) -> Result<Json<ReportAnswers>> {
    service.check_batch("events", body.events.len())?;
    let everybody = body.worker_id.as_ref();
    let read = |item| ReportItem::read(item, everybody, outcome);
    let mut items: Vec<Result<Report>> = body.events.into_iter().map(read).collect();
    service.keep_own(tenant, &mut items).await?;
    let reports: Vec<Report> = items.iter().flatten().cloned().collect();
    let mut reported = service.queue.report_many(reports).await.into_iter();
    let result = |item: Result<Report>| {
        item?;
        let lost = || Err(ApiError::new(Code::Indeterminate, "the answer was lost"));
        answer(reported.next().map_or_else(lost, |reported| reported.map_err(Into::into))?)
    };
    let results = items.into_iter().map(result).map(ItemAnswer::from).collect();
    Ok(Json(ReportAnswers { results }))
}

impl Service {
    /// A client reports on its own events only. An unscoped caller needs no look.
    pub(crate) async fn need_own(&self, tenant: Tenant, id: EntryId) -> Result<()> {
        if tenant.0.is_none() {
            return Ok(());
        }
        let queue = self.queue.queues_of(vec![id]).await?.pop().flatten();
        if queue.is_some_and(|queue| tenant.owns_queue(&queue)) { Ok(()) } else { Err(ApiError::no_event(id)) }
    }

    async fn keep_own(&self, tenant: Tenant, items: &mut [Result<Report>]) -> Result<()> {
        if tenant.0.is_none() {
            return Ok(());
        }
        let ids: Vec<EntryId> = items.iter().flatten().map(|report| report.holder.id).collect();
        let mut queues = self.queue.queues_of(ids).await?.into_iter();
        for item in items {
            let Ok(report) = item else { continue };
            if !queues.next().flatten().is_some_and(|queue| tenant.owns_queue(&queue)) {
                *item = Err(ApiError::no_event(report.holder.id));
            }
        }
        Ok(())
    }

    /// Bounds of a batch.
    pub(crate) fn check_batch(&self, what: &str, count: usize) -> Result<()> {
        let most = self.options.limits.batch_items;
        if (1..=most).contains(&count) {
            return Ok(());
        }
        Err(ApiError::invalid(format!("{what} has {count} items: it must have 1 to {most}")))
    }
}
