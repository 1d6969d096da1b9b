//! Reports on attempts, heartbeats, and the audit.

use std::time::Duration;

use tidegate_core::{
    Action, AttemptOutcome, EntryId, Generation, LeaseToken, QueueName, QueueSettings, Timestamp, Tsid,
};

use crate::error::{Error, ErrorKind, Result};

/// An entry and the worker that says it holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The entry.
    pub id: EntryId,
    /// The worker's name.
    pub worker: String,
    /// The lease that must be held; `None` for whichever lease this worker holds.
    pub lease: Option<LeaseToken>,
}

/// A worker's report that its attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The entry and the worker.
    pub holder: Holder,
    /// The attempt outcome.
    pub outcome: AttemptOutcome,
    /// The worker's own code, such as an HTTP status.
    pub status_code: Option<i32>,
    /// How long the attempt took, in milliseconds.
    pub execution_time_ms: Option<i64>,
    /// What went wrong.
    pub error_message: Option<String>,
}

/// The answer to a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// The audit row that records it.
    pub row: AuditRow,
    /// What follows for the entry.
    pub result: ReportResult,
    /// Whether this had been reported before, so that nothing was written.
    pub repeated: bool,
    /// The entry's queue; `None` for a repeat.
    pub queue: Option<QueueName>,
    /// How long the worker held the entry; `None` for a repeat.
    pub held_for: Option<Duration>,
    /// The event's attributes, JSON text; `None` for a repeat or when it has none.
    pub attributes: Option<String>,
}

/// What follows from a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportResult {
    /// The entry is COMPLETED.
    Completed,
    /// The entry is tried again.
    RetryScheduled {
        /// When it is due again.
        next_retry_at: Timestamp,
    },
    /// All retries were used: the entry is FAILED.
    Exhausted {
        /// Retries that were made.
        retry_count: u32,
        /// Retries that were allowed.
        max_retries: u32,
    },
}

/// A heartbeat of a worker about one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The entry and the worker.
    pub holder: Holder,
    /// How long the lease lasts from now.
    pub lease: HeartbeatLease,
}

/// How long a heartbeat extends a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeartbeatLease {
    /// By this much from now.
    For(Duration),
    /// By the lease of the claim if the audit has it, else by the queue's setting.
    AsClaimed {
        /// Used if the queue has no setting either.
        otherwise: Duration,
    },
}

impl HeartbeatLease {
    /// The length to extend by, given the lease of the claim in milliseconds and the queue's settings.
    pub(crate) fn length(self, claimed_ms: Option<i64>, settings: &QueueSettings) -> Duration {
        let Self::AsClaimed { otherwise } = self else { return self.otherwise() };
        let claimed = claimed_ms.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0).map(Duration::from_millis);
        claimed.or(settings.lease_seconds.map(|seconds| Duration::from_secs(seconds.into()))).unwrap_or(otherwise)
    }

    /// The length if neither the claim's lease nor the queue's setting is known.
    #[must_use]
    pub fn otherwise(self) -> Duration {
        match self {
            Self::For(lease) | Self::AsClaimed { otherwise: lease } => lease,
        }
    }
}

/// A lease that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The id of the entry's event.
    pub event_id: Tsid,
    /// The token of the lease.
    pub token: LeaseToken,
    /// When the lease ends and another worker may claim the entry.
    pub lease_until: Timestamp,
    /// The number of this attempt, from 1.
    pub attempts: u32,
}

/// One row of the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// Its number; later rows of an entry have greater ones.
    pub id: i64,
    /// The entry that it is about.
    pub entry: EntryId,
    /// The id of its event; `None` once retention has removed the entry.
    pub event_id: Option<Tsid>,
    /// The step that it records: picked, started, completed and so on.
    pub action: Action,
    /// The worker that did it, or whose attempt it was; `None` for a manual action.
    pub worker: Option<String>,
    /// Who did a manual action, if known.
    pub actor: Option<String>,
    /// The entry's generation.
    pub generation: Generation,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The token of the lease.
    pub token: LeaseToken,
    /// The worker's own code, such as an HTTP status.
    pub status_code: Option<i32>,
    /// How long the attempt took, in milliseconds.
    pub execution_time_ms: Option<i64>,
    /// What went wrong, or the reason for a manual action.
    pub message: Option<String>,
    /// When the entry is tried again, after a failure that is retried.
    pub next_retry_at: Option<Timestamp>,
    /// Retries made so far, after a failure.
    pub retry_count: Option<u32>,
    /// Retries allowed, after a failure.
    pub max_retries: Option<u32>,
    /// When it was recorded.
    pub created_at: Timestamp,
}

/// Why workers do not report about jobs: the audit is what repeated reports are answered from.
pub(crate) const NO_REPORTS: &str = "jobs have no audit: finalize or requeue them";

/// The error for a report without a lease in a queue that requires one.
pub(crate) fn lease_required() -> Error {
    Error::invalid("this queue requires workers to name their lease: send the `lease` from the answer to the claim")
}

/// The error for an entry that cannot be reset.
pub(crate) fn not_resettable(id: EntryId, what: &str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("entry {id} cannot be reset: only PROCESSING, FAILED and kept entries can, and {what}"),
    )
}

/// The errors that a failed entry ends with, as JSON text.
pub(crate) fn error_list(message: Option<&str>) -> String {
    serde_json::Value::from(vec![message.unwrap_or("failed without a message")]).to_string()
}

/// The error for a worker that refers to an attempt it has reported on: nothing was taken from it.
pub(crate) fn already_reported() -> Error {
    Error::new(ErrorKind::AlreadyEnded, "this worker has already reported on this attempt")
}

/// The answer to a repeated report, from the recorded row.
pub(crate) fn replay(row: AuditRow) -> Result<Reported> {
    let result = match (row.action, row.next_retry_at) {
        (Action::Completed, _) => ReportResult::Completed,
        (_, Some(next_retry_at)) => ReportResult::RetryScheduled { next_retry_at },
        (_, None) => ReportResult::Exhausted {
            retry_count: row.retry_count.unwrap_or(0),
            max_retries: row.max_retries.unwrap_or(0),
        },
    };
    Ok(Reported { row, result, repeated: true, queue: None, held_for: None, attributes: None })
}

/// How long an entry was held, by database time.
pub(crate) fn held_for(since: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    Duration::try_from(now.duration_since(since?)).ok()
}
