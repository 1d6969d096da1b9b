//! Batches of reports.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::reports::{NamedReport, ReportAnswer, ReportBody};
use crate::access::NamedEntry;
use crate::error::{ApiError, ErrorBody, Result};
use crate::parameters::{check_count, entry_id};
use crate::{unknown_fields, wrong_type};

/// One report of a batch.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReportItem {
    /// The id of the event.
    #[schema(value_type = i64)]
    id: serde_json::Value,
    /// The worker that holds the event; the batch's `worker_id` if absent.
    #[schema(min_length = 1, max_length = 255, example = "worker-02:8742")]
    worker_id: Option<String>,
    /// The lease token from the claim; if absent, the one that this worker holds.
    lease: Option<i64>,
    /// How long the attempt took, in milliseconds.
    #[schema(minimum = 0, example = 1250)]
    execution_time_ms: Option<i64>,
    /// The worker's own status code, such as an HTTP status.
    #[schema(example = 200)]
    status_code: Option<i32>,
    /// What went wrong, for a failed attempt.
    error_message: Option<String>,
}

impl ReportItem {
    fn read(item: serde_json::Value, default_worker: Option<&String>) -> Result<(NamedEntry, NamedReport)> {
        let failed = |error: serde_json::Error| {
            let text = || ApiError::invalid(format!("the item is invalid: {}", wrong_type::said(&error.to_string())));
            unknown_fields::field(&error).unwrap_or_else(text)
        };
        let item: Self = wrong_type::from_value(item).map_err(failed)?;
        let body = ReportBody {
            worker_id: item.worker_id.or_else(|| default_worker.cloned()),
            lease: item.lease,
            execution_time_ms: item.execution_time_ms,
            status_code: item.status_code,
            error_message: item.error_message,
        };
        Ok((entry_id(&item.id.to_string())?, body.try_into()?))
    }
}

/// A batch of reports.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker_id": "worker-02:8742", "events": [{ "id": 1, "execution_time_ms": 1250 }] }))]
pub(crate) struct ReportItems {
    /// The worker of items that name none.
    worker_id: Option<String>,
    /// The reports, up to 1,000.
    #[schema(value_type = Vec<ReportItem>, min_items = 1, max_items = 1000)]
    events: Vec<serde_json::Value>,
}

impl ReportItems {
    /// The reports, or what is wrong with each, in order. 400 when there are none or more than `most`.
    pub(crate) fn read(self, most: usize) -> Result<Vec<Result<(NamedEntry, NamedReport)>>> {
        check_count(self.events.len(), most)?;
        let default_worker = self.worker_id.as_ref();
        Ok(self.events.into_iter().map(|item| ReportItem::read(item, default_worker)).collect())
    }
}

/// The result of each report, in order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReportAnswers {
    pub(crate) results: Vec<ItemAnswer>,
}

/// The result of one report.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ItemAnswer {
    /// The HTTP status that the report would have had alone. 400 with the code `max_retries_exceeded` means that the
    /// failure was recorded and no retry is left.
    #[schema(example = 200)]
    status: u16,
    /// The recorded report, if it succeeded.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    recorded: Option<ReportAnswer>,
    /// The error, if it failed.
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
