//! Rows of an event's audit.

use serde::Serialize;
use tidegate::{Action, AuditRow, Timestamp};
use utoipa::ToSchema;

/// One row of an event's audit: what a worker or an operator did to it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LogRow {
    /// The number of the row; later rows have greater ones.
    #[schema(example = 5001)]
    id: i64,
    /// The number of the event, called `id` elsewhere.
    event_id: i64,
    /// The id of the stored event, called `event_id` elsewhere; null once retention has removed it.
    #[schema(required, example = "0HZXEQ5Y8JY5Z")]
    event_tsid: Option<String>,
    /// The worker that did it, or whose attempt it concerns.
    worker_id: Option<String>,
    /// Who did a manual action: the name of the key, or the subject of the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    /// What was done: PICKED, STARTED, COMPLETED, FAILED, RELEASED, ABANDONED, RESET, CANCELLED or REDRIVEN.
    #[schema(value_type = String, example = "PICKED")]
    action: Action,
    /// The worker's own status code.
    #[serde(skip_serializing_if = "Option::is_none")]
    status_code: Option<i32>,
    /// The error that the worker reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<String>,
    /// The reason given for a manual action.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// How long the attempt took, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_time_ms: Option<i64>,
    /// The number of the attempt, from 1.
    attempt: u32,
    /// When it happened.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

impl From<AuditRow> for LogRow {
    fn from(row: AuditRow) -> Self {
        let (reason, error_message) = match row.action {
            action if action.is_manual() => (row.message, None),
            _ => (None, row.message),
        };
        Self {
            id: row.id,
            event_id: row.entry.get(),
            event_tsid: row.event_id.map(|id| id.to_string()),
            worker_id: row.worker,
            actor: row.actor,
            action: row.action,
            status_code: row.status_code,
            error_message,
            reason,
            execution_time_ms: row.execution_time_ms,
            attempt: row.attempt,
            created_at: row.created_at,
        }
    }
}
