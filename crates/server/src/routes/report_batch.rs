//! Reports of a worker on many events at once.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use tidegate::{AttemptOutcome, Report};

use crate::access::{Caller, NamedEntry};
use crate::callers::Worker;
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::extract::BatchBody;
use crate::service::Service;
use crate::wire::report_batch::{ItemAnswer, ReportAnswers, ReportItems};
use crate::wire::reports::{NamedReport, ReportAnswer};

/// Reports many events as completed.
#[utoipa::path(
    post, path = "/events/complete", operation_id = "complete_events", tag = "work", request_body = ReportItems,
    responses(
        (status = 200, description = "A result for each report, in order.", body = ReportAnswers),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn complete_many(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    BatchBody(body): BatchBody<ReportItems>,
) -> Result<Json<ReportAnswers>> {
    report_many(&service, &caller, body, AttemptOutcome::Completed).await
}

/// Reports many attempts as failed.
#[utoipa::path(
    post, path = "/events/fail", operation_id = "fail_events", tag = "work", request_body = ReportItems,
    responses(
        (status = 200, description = "A result for each report, in order.", body = ReportAnswers),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn fail_many(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    BatchBody(body): BatchBody<ReportItems>,
) -> Result<Json<ReportAnswers>> {
    report_many(&service, &caller, body, AttemptOutcome::Failed).await
}

async fn report_many(
    service: &Service,
    caller: &Caller,
    body: ReportItems,
    outcome: AttemptOutcome,
) -> Result<Json<ReportAnswers>> {
    let named = body.read(service.options.limits.batch_items)?;
    let items = own_reports(service, caller, named, outcome).await?;
    let reports: Vec<Report> = items.iter().flatten().cloned().collect();
    let mut reported = service.queue.report_many(reports).await.into_iter();
    let answer = |item: Result<Report>| -> Result<ReportAnswer> {
        item?;
        reported.next().ok_or_else(lost)??.try_into()
    };
    let results = items.into_iter().map(answer).map(ItemAnswer::from).collect();
    Ok(Json(ReportAnswers { results }))
}

/// The reports on entries that the caller may see, and 404 in place of the others.
async fn own_reports(
    service: &Service,
    caller: &Caller,
    named: Vec<Result<(NamedEntry, NamedReport)>>,
    outcome: AttemptOutcome,
) -> Result<Vec<Result<Report>>> {
    let entries: Vec<NamedEntry> = named.iter().flatten().map(|(entry, _)| *entry).collect();
    let mut own = caller.entries(&service.queue, &entries).await?.into_iter();
    let read = |item: Result<(NamedEntry, NamedReport)>| {
        let (_, report) = item?;
        Ok(report.of(own.next().ok_or_else(lost)??, outcome))
    };
    Ok(named.into_iter().map(read).collect())
}

fn lost() -> ApiError {
    let text = "the store gave no answer for this item: it may or may not have been recorded";
    ApiError::new(Code::Indeterminate, text)
}
