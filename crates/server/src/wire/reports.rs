//! Reports of workers on events that they hold: bodies, and the values that they are checked into.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::{
    Action, AttemptOutcome, EntryId, Heartbeat, HeartbeatLease, Held, Holder, LeaseToken, Report, ReportResult,
    Reported, Timestamp,
};
use utoipa::ToSchema;

use crate::error::{ApiError, Result};

/// The longest error message that is accepted, in bytes.
const MAX_MESSAGE: usize = 64 << 10;
/// The lengths of a lease that are accepted, in seconds.
const LEASES: std::ops::RangeInclusive<u32> = 1..=86_400;

/// The worker that reports.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker_id": "worker-02:8742" }))]
pub(crate) struct HolderBody {
    /// The worker that holds the event.
    #[schema(value_type = String, required = true, min_length = 1, max_length = 255, example = "worker-02:8742")]
    worker_id: Option<String>,
    /// The lease token from the claim; if absent, the one that this worker holds.
    lease: Option<i64>,
}

/// A worker that names itself as the holder of an event.
#[derive(Debug)]
pub(crate) struct NamedHolder {
    worker: String,
    lease: Option<LeaseToken>,
}

impl NamedHolder {
    /// 400 when the worker is missing or its name is not valid.
    fn new(worker: Option<String>, lease: Option<i64>) -> Result<Self> {
        let worker = worker.ok_or_else(|| ApiError::invalid("worker_id is required"))?;
        tidegate_core::name::check_text("worker_id", &worker).map_err(tidegate::Error::from)?;
        Ok(Self { worker, lease: lease.map(LeaseToken) })
    }

    /// It, as the holder of this entry.
    pub(crate) fn of(self, id: EntryId) -> Holder {
        Holder { id, worker: self.worker, lease: self.lease }
    }
}

impl TryFrom<HolderBody> for NamedHolder {
    type Error = ApiError;

    fn try_from(body: HolderBody) -> Result<Self> {
        Self::new(body.worker_id, body.lease)
    }
}

/// The outcome of an attempt.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker_id": "worker-02:8742", "execution_time_ms": 1250, "status_code": 200 }))]
pub(crate) struct ReportBody {
    /// The worker that holds the event.
    #[schema(value_type = String, required = true, min_length = 1, max_length = 255, example = "worker-02:8742")]
    pub(super) worker_id: Option<String>,
    /// The lease token from the claim; if absent, the one that this worker holds.
    pub(super) lease: Option<i64>,
    /// How long the attempt took, in milliseconds.
    #[schema(minimum = 0, example = 1250)]
    pub(super) execution_time_ms: Option<i64>,
    /// The worker's own status code, such as an HTTP status.
    #[schema(example = 200)]
    pub(super) status_code: Option<i32>,
    /// What went wrong, for a failed attempt.
    pub(super) error_message: Option<String>,
}

/// A checked report, before it is known whether its worker may report on the event.
#[derive(Debug)]
pub(crate) struct NamedReport {
    holder: NamedHolder,
    status_code: Option<i32>,
    execution_time_ms: Option<i64>,
    error_message: Option<String>,
}

impl NamedReport {
    /// It, as the report on this entry.
    pub(crate) fn of(self, id: EntryId, outcome: AttemptOutcome) -> Report {
        Report {
            holder: self.holder.of(id),
            outcome,
            status_code: self.status_code,
            execution_time_ms: self.execution_time_ms,
            error_message: self.error_message,
        }
    }
}

impl TryFrom<ReportBody> for NamedReport {
    type Error = ApiError;

    fn try_from(body: ReportBody) -> Result<Self> {
        if body.execution_time_ms.is_some_and(|time| time < 0) {
            return Err(ApiError::invalid("execution_time_ms must be 0 or more"));
        }
        if body.error_message.as_ref().is_some_and(|text| text.len() > MAX_MESSAGE || text.contains('\0')) {
            let text = format!("error_message must be at most {MAX_MESSAGE} bytes without NUL characters");
            return Err(ApiError::invalid(text));
        }
        Ok(Self {
            holder: NamedHolder::new(body.worker_id, body.lease)?,
            status_code: body.status_code,
            execution_time_ms: body.execution_time_ms,
            error_message: body.error_message,
        })
    }
}

/// A recorded report.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReportAnswer {
    /// The number of the event, called `id` elsewhere.
    event_id: i64,
    /// The id of the stored event, called `event_id` elsewhere; null once retention has removed it.
    #[schema(required, example = "0HZXEQ5Y8JY5Z")]
    event_tsid: Option<String>,
    /// The worker that reported.
    worker_id: Option<String>,
    /// COMPLETED or FAILED.
    #[schema(value_type = String, example = "COMPLETED")]
    action: Action,
    /// The worker's own status code.
    status_code: Option<i32>,
    /// What went wrong, for a failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<String>,
    /// How long the attempt took, in milliseconds.
    execution_time_ms: Option<i64>,
    /// True after a failure: the event is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_scheduled: Option<bool>,
    /// When the event is tried again, after a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    next_retry_at: Option<Timestamp>,
    /// When the report was recorded.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

impl TryFrom<Reported> for ReportAnswer {
    type Error = ApiError;

    /// An error when the report left no retry.
    fn try_from(reported: Reported) -> Result<Self> {
        let row = reported.row;
        let (retry_scheduled, next_retry_at) = match reported.result {
            ReportResult::Completed => (None, None),
            ReportResult::RetryScheduled { next_retry_at } => (Some(true), Some(next_retry_at)),
            ReportResult::Exhausted { retry_count, max_retries } => {
                return Err(ApiError::max_retries(retry_count, max_retries));
            }
        };
        Ok(Self {
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
}

/// A heartbeat.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker_id": "worker-02:8742" }))]
pub(crate) struct HeartbeatBody {
    /// The worker that holds the event.
    #[schema(value_type = String, required = true, min_length = 1, max_length = 255, example = "worker-02:8742")]
    worker_id: Option<String>,
    /// The lease token from the claim; if absent, the one that this worker holds.
    lease: Option<i64>,
    /// How many seconds the lease lasts from now; if absent, as long as the claim asked for, or else as set for the
    /// queue.
    #[schema(minimum = 1, maximum = 86400)]
    lease_seconds: Option<u32>,
}

/// A checked heartbeat, before it is known whether its worker may extend the lease.
#[derive(Debug)]
pub(crate) struct NamedHeartbeat {
    holder: NamedHolder,
    lease: Option<Duration>,
}

impl NamedHeartbeat {
    /// It, for the lease of this entry. Without a length of its own the lease stays as long as the claim asked for, or
    /// else lasts for `otherwise`.
    pub(crate) fn of(self, id: EntryId, otherwise: Duration) -> Heartbeat {
        let lease = self.lease.map_or(HeartbeatLease::AsClaimed { otherwise }, HeartbeatLease::For);
        Heartbeat { holder: self.holder.of(id), lease }
    }
}

impl TryFrom<HeartbeatBody> for NamedHeartbeat {
    type Error = ApiError;

    fn try_from(body: HeartbeatBody) -> Result<Self> {
        if body.lease_seconds.is_some_and(|seconds| !LEASES.contains(&seconds)) {
            return Err(ApiError::invalid("lease_seconds must be between 1 and 86400"));
        }
        let lease = body.lease_seconds.map(|seconds| Duration::from_secs(seconds.into()));
        Ok(Self { holder: NamedHolder::new(body.worker_id, body.lease)?, lease })
    }
}

/// An extended lease.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HeartbeatAnswer {
    /// The number of the event, called `id` elsewhere.
    event_id: i64,
    /// The id of the stored event, called `event_id` elsewhere.
    #[schema(example = "0HZXEQ5Y8JY5Z")]
    event_tsid: String,
    /// The lease token.
    lease: i64,
    /// When the lease expires unless another heartbeat extends it.
    #[schema(value_type = String, format = DateTime)]
    lease_until: Timestamp,
    /// The number of this attempt, from 1.
    attempts: u32,
}

impl HeartbeatAnswer {
    pub(crate) fn of(id: EntryId, held: &Held) -> Self {
        Self {
            event_id: id.get(),
            event_tsid: held.event_id.to_string(),
            lease: held.token.0,
            lease_until: held.lease_until,
            attempts: held.attempts,
        }
    }
}
