//! Jobs as they are shown: where each is in its life, and what the subscription says about it now, or what was said when it
//! was posted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate::{End, EntryId, EntryPhase, JobAttempt, JobState, JobView, Timestamp, Tsid};
use tidegate_core::cloud_event::CloudEvent;

use crate::gateway::ingest::{event_of, group_of};
use crate::gateway::subscriptions::Target;
use crate::gateway::tasks::TaskRules;
use crate::{DispatchMode, RetryStrategy, Subscription};

/// Why jobs are cancelled whose subscription is gone.
pub(crate) const DELETED: &str = "the subscription was deleted";
/// What the error of a job begins with that has expired.
const EXPIRED: &str = "expired: ";

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobStatus {
    /// Behind others of its group.
    Pending,
    /// It is delivered once it is due and its pool has a slot.
    Queued,
    /// A node delivers it.
    InProgress,
    /// Delivered.
    Completed,
    /// It failed for good, or its attempts are used up.
    Error,
    /// It will not be delivered.
    Cancelled,
}

impl JobStatus {
    /// Every status.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Queued, Self::InProgress, Self::Completed, Self::Error, Self::Cancelled];

    /// The name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Queued => "QUEUED",
            Self::InProgress => "IN_PROGRESS",
            Self::Completed => "COMPLETED",
            Self::Error => "ERROR",
            Self::Cancelled => "CANCELLED",
        }
    }

    /// The status of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }

    /// The status of a job that has ended so.
    #[must_use]
    pub const fn of_end(end: End) -> Self {
        match end {
            End::Completed => Self::Completed,
            End::Cancelled => Self::Cancelled,
            End::Failed | End::CompletedWithErrors => Self::Error,
        }
    }

    /// The states of jobs that have it.
    pub(super) fn states(self) -> Vec<JobState> {
        match self {
            Self::Pending => vec![JobState::Parked],
            Self::Queued => vec![JobState::Waiting],
            Self::InProgress => vec![JobState::Leased],
            Self::Completed => vec![JobState::Ended(End::Completed)],
            Self::Error => {
                vec![JobState::Kept, JobState::Ended(End::Failed), JobState::Ended(End::CompletedWithErrors)]
            }
            Self::Cancelled => vec![JobState::Ended(End::Cancelled)],
        }
    }
}

impl From<&EntryPhase> for JobStatus {
    fn from(phase: &EntryPhase) -> Self {
        match JobState::from(phase) {
            JobState::Waiting => Self::Queued,
            JobState::Parked => Self::Pending,
            JobState::Leased => Self::InProgress,
            JobState::Kept => Self::Error,
            JobState::Ended(end) => Self::of_end(end),
        }
    }
}

/// What a job was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// An event, under a subscription.
    Event,
    /// Itself: it was posted.
    Task,
}

impl JobKind {
    /// The name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Event => "EVENT",
            Self::Task => "TASK",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Event, Self::Task].into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Why a job was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// It was not delivered before its time was over.
    Expired,
    /// Its subscription was deleted.
    SubscriptionDeleted,
    /// Somebody cancelled it.
    Manual,
}

impl CancelReason {
    /// The name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "EXPIRED",
            Self::SubscriptionDeleted => "SUBSCRIPTION_DELETED",
            Self::Manual => "MANUAL",
        }
    }

    fn of(error: Option<&str>) -> Self {
        match error {
            Some(DELETED) => Self::SubscriptionDeleted,
            Some(error) if error.starts_with(EXPIRED) => Self::Expired,
            _ => Self::Manual,
        }
    }
}

/// What an attempt at a job goes by: that of an event by its subscription as it is now, that of a task by what was posted.
#[derive(Clone)]
pub struct JobTerms {
    /// Where its webhook goes.
    pub target_url: String,
    /// Whether the data alone is sent.
    pub data_only: bool,
    /// What a failure means for the rest of its group.
    pub mode: DispatchMode,
    /// The pool that limits it; the client's default pool if `None`.
    pub pool: Option<Tsid>,
    /// How long an attempt may take.
    pub timeout_seconds: u32,
    /// Attempts after the first one.
    pub max_retries: u32,
    /// The delays between attempts.
    pub retry_strategy: Option<RetryStrategy>,
    /// The account whose credentials it carries.
    pub service_account: Option<Tsid>,
    /// Headers that a task's webhook has besides, without values that look like credentials.
    pub headers: BTreeMap<String, String>,
    /// What a task carries for its sender: a JSON object.
    pub metadata: Option<Box<RawValue>>,
    /// Under what a task was created once.
    pub idempotency_key: Option<String>,
}

impl fmt::Debug for JobTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No headers, no metadata: they may hold what is secret.
        f.debug_struct("JobTerms").field("mode", &self.mode).field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// What somebody noted about a failed job.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Note {
    ignored_at: Timestamp,
}

/// A job.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its id, which its webhooks carry.
    pub id: Tsid,
    /// Its number in the store.
    pub(crate) number: EntryId,
    /// What it was made for.
    pub kind: JobKind,
    /// Where it is in its life.
    pub status: JobStatus,
    /// The client that it belongs to.
    pub client: Option<Tsid>,
    /// What it delivers, an event or a task in the form of one; of a list, without its data.
    pub event: CloudEvent,
    /// The id of its event.
    pub event_id: Option<Tsid>,
    /// The subscription that it was made for.
    pub subscription: Option<Tsid>,
    /// Its message group.
    pub message_group: Option<String>,
    /// Order within the group.
    pub sequence: Option<i32>,
    /// What an attempt goes by; `None` once its subscription is gone or has no webhook, or where this program cannot read that.
    pub terms: Option<JobTerms>,
    /// When its delivery was to begin, while nothing was tried yet.
    pub scheduled_for: Option<Timestamp>,
    /// When it is cancelled instead.
    pub expires_at: Option<Timestamp>,
    /// Attempts so far, since it was made or retried manually.
    pub attempts: u32,
    /// When it is tried again.
    pub next_attempt_at: Option<Timestamp>,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// Why it was cancelled.
    pub cancel_reason: Option<CancelReason>,
    /// It is exhausted and blocks its group.
    pub is_kept: bool,
    /// Since when it is ignored.
    pub ignored_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl JobTerms {
    /// The terms of a subscription's jobs.
    fn of(subscription: &Subscription) -> Self {
        let body = &subscription.body;
        Self {
            target_url: body.target.to_string(),
            data_only: body.data_only,
            mode: body.mode,
            pool: body.dispatch_pool,
            timeout_seconds: body.timeout_seconds,
            max_retries: body.max_retries,
            retry_strategy: body.retry_strategy.clone(),
            service_account: body.service_account,
            headers: BTreeMap::new(),
            metadata: None,
            idempotency_key: None,
        }
    }

    fn of_task(rules: &TaskRules) -> Self {
        Self {
            target_url: rules.target_url.to_string(),
            data_only: rules.data_only,
            mode: rules.mode,
            pool: rules.dispatch_pool_id,
            timeout_seconds: rules.timeout_seconds,
            max_retries: rules.max_retries,
            retry_strategy: rules.retry_strategy.clone(),
            service_account: rules.service_account_id,
            headers: rules.shown_headers(),
            metadata: rules.metadata.clone(),
            idempotency_key: rules.idempotency_key.clone(),
        }
    }
}

impl Job {
    /// The job of an event, with its subscription as it is now.
    pub(super) fn of_event(view: JobView, subscription: Option<&Arc<Subscription>>) -> Self {
        let id = view.id();
        let next_attempt_at = view.entry.next_retry_at();
        let JobView { entry, lane_type } = view;
        let fact = &entry.fact;
        let event = event_of(fact);
        let status = JobStatus::from(&entry.phase);
        let last_error = entry.error.as_deref().map(last_error);
        let in_group = subscription.map(|one| group_of(one, event.message_group.as_deref()));
        let waits_first = entry.attempts == 0 && matches!(entry.phase, EntryPhase::Waiting { .. });
        let due = match entry.phase {
            EntryPhase::Waiting { due } if waits_first => due,
            _ => None,
        };
        let note = entry.results.as_deref().and_then(|text| serde_json::from_str::<Note>(text).ok());
        Self {
            id,
            number: entry.id,
            kind: JobKind::Event,
            status,
            client: entry.queue.client(),
            event_id: Some(entry.event_id),
            subscription: lane_type.as_deref().and_then(|lane| lane.parse().ok()),
            sequence: match (&entry.group, subscription) {
                (Some(_), _) => Some(entry.rank),
                (None, Some(subscription)) => Some(event.order().unwrap_or(subscription.body.sequence)),
                (None, None) => event.order(),
            },
            message_group: entry.group.or(in_group),
            terms: subscription.map(|one| JobTerms::of(one)),
            scheduled_for: due.filter(|due| *due > fact.created_at),
            expires_at: entry.expires_at,
            attempts: entry.attempts,
            next_attempt_at,
            cancel_reason: (status == JobStatus::Cancelled).then(|| CancelReason::of(last_error.as_deref())),
            last_error: last_error.filter(|_| status != JobStatus::Completed),
            is_kept: matches!(entry.phase, EntryPhase::Kept { .. }),
            ignored_at: note.map(|note| note.ignored_at),
            created_at: fact.created_at,
            updated_at: entry.updated_at,
            event,
        }
    }

    /// A task, with what was said about it.
    pub(super) fn of_task(view: JobView, rules: Option<&TaskRules>) -> Self {
        // The store keeps the order of jobs in groups alone.
        let is_in_group = view.entry.group.is_some();
        let job = Self::of_event(view, None);
        Self {
            kind: JobKind::Task,
            event_id: None,
            subscription: None,
            message_group: job.message_group.or_else(|| job.event.message_group.clone()),
            sequence: job.sequence.filter(|_| is_in_group).or(rules.map(|rules| rules.sequence)),
            terms: rules.map(JobTerms::of_task),
            ..job
        }
    }
}

/// The last of the errors that are stored of a job: a JSON list once it has ended, a text before.
fn last_error(stored: &str) -> String {
    match serde_json::from_str::<Vec<String>>(stored) {
        Ok(mut errors) => errors.pop().unwrap_or_default(),
        Err(_) => stored.to_owned(),
    }
}

/// An attempt at a job, as its record has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptRecord {
    /// When it began.
    pub attempted_at: Timestamp,
    /// How long it took.
    pub duration_millis: u64,
    /// What came of it.
    pub status: String,
    /// Where it went.
    pub target_url: String,
    /// The status of the answer.
    pub response_code: Option<u16>,
    /// The beginning of the answer's body.
    pub response_body: Option<String>,
    /// What went wrong.
    pub error_message: Option<String>,
    /// Whether that may pass.
    pub error_type: Option<String>,
}

/// An attempt at a job.
#[derive(Debug, Clone)]
pub struct JobTry {
    /// Which start of the job it belongs to: 1, and one more with each manual retry.
    pub generation: u32,
    /// Its number since then, from 1.
    pub attempt: u32,
    /// What was recorded; `None` if this program cannot read it.
    pub record: Option<AttemptRecord>,
}

impl From<JobAttempt> for JobTry {
    fn from(attempt: JobAttempt) -> Self {
        let JobAttempt { generation, attempt, record } = attempt;
        Self { generation, attempt, record: serde_json::from_str(&record).ok() }
    }
}

/// Whether a subscription's target is a webhook.
pub(super) fn is_webhook(subscription: &Subscription) -> bool {
    matches!(subscription.body.target, Target::Webhook(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_names_and_states_of_their_own() {
        let mut states = Vec::new();
        for status in JobStatus::ALL {
            assert_eq!(JobStatus::from_name(status.as_str()), Some(status));
            states.extend(status.states());
        }
        assert_eq!(states.len(), 8, "each state has one status");
        assert_eq!(JobStatus::from_name("queued"), None);
    }

    #[test]
    fn the_reason_of_a_cancelled_job_is_its_last_error() {
        let of = |stored: &str| CancelReason::of(Some(&last_error(stored)));
        assert_eq!(
            of(r#"["timeout","expired: nobody had completed it by 2030-01-01T00:00:00Z"]"#),
            CancelReason::Expired
        );
        assert_eq!(of(r#"["the subscription was deleted"]"#), CancelReason::SubscriptionDeleted);
        assert_eq!(of(r#"["cancelled by anybody: expired: no"]"#), CancelReason::Manual);
        assert_eq!(last_error("plain"), "plain");
    }
}
