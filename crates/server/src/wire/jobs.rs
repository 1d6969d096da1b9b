//! Dispatch jobs, those that block groups, and what is done to many.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate::{EntryId, Timestamp, Tsid, Why};
use tidegate_dispatch::{
    Acted, BlockedJobs, BlockedJobsPage, BulkAct, CancelReason, DispatchMode, Job, JobAct, JobKind, JobShown,
    JobStatus, JobTry, JobWhy, JobsFilter, JobsFound, RetryStrategy,
};
use utoipa::{IntoParams, ToSchema};

use super::event_types::limit;
use super::facts::quoted;
use super::payload::base64;
use super::pools::SlotsAnswer;
use crate::access::Visible;
use crate::cursor;
use crate::error::{ApiError, Result};
use crate::parameters::{flag, moment};

/// The most jobs that one request changes.
const MAX_BULK: usize = 10_000;
/// The highest rate at which one request changes jobs, per second.
const MAX_RATE: u32 = 100_000;
/// The longest reason, in bytes.
const MAX_REASON: usize = 1_000;

/// The id of a dispatch job in a path, as the document describes it.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub(crate) struct JobPath {
    /// The id of the dispatch job.
    #[param(min_length = 13, max_length = 13, example = "0HZXEQ5Y8JY5Z")]
    id: String,
}

/// Which dispatch jobs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobsParams {
    /// `PENDING`, `QUEUED`, `IN_PROGRESS`, `COMPLETED`, `ERROR` or `CANCELLED`.
    #[param(example = "ERROR")]
    status: Option<String>,
    /// `EVENT` or `TASK`.
    #[param(example = "EVENT")]
    kind: Option<String>,
    /// What it is: of an event's job the event's type.
    code: Option<String>,
    /// The subscription that it was made for.
    #[param(min_length = 13, max_length = 13)]
    subscription_id: Option<String>,
    /// The event that it was made for.
    #[param(min_length = 13, max_length = 13)]
    event_id: Option<String>,
    /// Its message group: of a subscription's job the subscription's code, with a colon and the event's group if that has one; of
    /// a task its own.
    message_group: Option<String>,
    /// The dispatch pool that limits it.
    #[param(min_length = 13, max_length = 13)]
    pool_id: Option<String>,
    /// Only those of this client; an unscoped caller sees those of all by default.
    #[param(min_length = 13, max_length = 13)]
    pub(crate) client_id: Option<String>,
    /// Only jobs made at this moment or later.
    #[param(format = DateTime)]
    from: Option<String>,
    /// Only jobs made before this moment.
    #[param(format = DateTime)]
    to: Option<String>,
    /// How many at most; 50 by default.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// Which groups to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GroupsParams {
    /// Must be `true`, the default: only groups in which nothing is delivered, because a job has failed that blocks them.
    #[param(value_type = Option<bool>)]
    blocked: Option<String>,
    /// Only those of this client; an unscoped caller sees those of all by default.
    #[param(min_length = 13, max_length = 13)]
    pub(crate) client_id: Option<String>,
    /// How many at most; 50 by default.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// Why something is done to a job.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(example = json!({ "reason": "the receiver was repaired" }))]
pub(crate) struct ActBody {
    /// The reason, for the audit.
    #[schema(max_length = 1000)]
    reason: Option<String>,
}

/// What is done to which dispatch jobs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({ "action": "retry", "subscriptionId": "0HZXEQ5Y8JY5Z", "from": "2030-01-01T00:00:00Z" }))]
pub(crate) struct BulkBody {
    /// `retry`, `cancel` or `ignore`.
    #[schema(example = "retry")]
    action: String,
    /// Only jobs with this status; if absent, all to which it can be done, but what was cancelled or ignored is not retried.
    status: Option<String>,
    /// Only jobs of this kind.
    kind: Option<String>,
    /// Only jobs with this code: of an event's job the event's type.
    code: Option<String>,
    /// Only jobs of this subscription.
    subscription_id: Option<String>,
    /// Only jobs of this event.
    event_id: Option<String>,
    /// Only jobs of this message group.
    message_group: Option<String>,
    /// Only jobs that this dispatch pool limits.
    pool_id: Option<String>,
    /// Only those of this client; for an unscoped caller those of all if absent.
    pub(crate) client_id: Option<String>,
    /// Only jobs made at this moment or later.
    #[schema(format = DateTime)]
    from: Option<String>,
    /// Only jobs made before this moment.
    #[schema(format = DateTime)]
    to: Option<String>,
    /// The reason, for the audit.
    #[schema(max_length = 1000)]
    reason: Option<String>,
    /// How many jobs to change at most; 1,000 if absent.
    #[schema(minimum = 1, maximum = 10000)]
    limit: Option<usize>,
    /// How many to change per second at most; 1,000 if absent.
    #[schema(minimum = 1, maximum = 100000)]
    per_second: Option<u32>,
    /// `nextCursor` of the previous answer.
    cursor: Option<String>,
}

/// What became of it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BulkAnswer {
    /// How many jobs were changed.
    done: usize,
    /// How many match, but cannot be changed so, or have changed meanwhile.
    refused: usize,
    /// Whether more may match: repeat the request with `cursor`.
    more: bool,
    /// Where to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// A dispatch job.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DispatchJobAnswer {
    /// The id, which its webhooks have as `webhook-id`.
    #[schema(value_type = String, example = "0HZXEQ5Y8JY5Z")]
    id: Tsid,
    /// `EVENT` or `TASK`.
    #[schema(example = "EVENT")]
    kind: &'static str,
    /// `PENDING` (behind others of its group), `QUEUED` (also between attempts), `IN_PROGRESS`, `COMPLETED`, `ERROR` or
    /// `CANCELLED`.
    #[schema(example = "QUEUED")]
    status: &'static str,
    /// The client that it belongs to.
    #[schema(value_type = Option<String>)]
    client_id: Option<Tsid>,
    /// What it is: of an event's job the event's type.
    code: String,
    /// Where it comes from.
    source: String,
    /// What it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// The id that it has there.
    #[serde(skip_serializing_if = "Option::is_none")]
    external_id: Option<String>,
    /// Shared by what belongs to one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    /// The event that it delivers. A task has none, and no subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    event_id: Option<Tsid>,
    /// The subscription that it was made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    subscription_id: Option<Tsid>,
    /// Where its webhook goes: of an event's job as its subscription has it now. Absent once that is deleted, as is what else it
    /// says.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_url: Option<String>,
    /// Headers that a task's webhook has besides. Values that look like credentials are shown as `***`. Not in lists.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    headers: BTreeMap<String, String>,
    /// Whether the payload alone is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_only: Option<bool>,
    /// `IMMEDIATE`, `NEXT_ON_ERROR` or `BLOCK_ON_ERROR`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "IMMEDIATE")]
    mode: Option<DispatchMode>,
    /// Its message group.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_group: Option<String>,
    /// Order within the group: lower goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<i32>,
    /// The pool that limits it; the client's default pool if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    dispatch_pool_id: Option<Tsid>,
    /// The account whose credentials it carries, and whose secret signs it if it is a task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    service_account_id: Option<Tsid>,
    /// How long an attempt may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_seconds: Option<u32>,
    /// Attempts after the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_retries: Option<u32>,
    /// The delays between attempts; exponential from 3 s to 10 min if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    retry_strategy: Option<RetryStrategy>,
    /// When its delivery begins, while it was not tried yet and waits for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    scheduled_for: Option<Timestamp>,
    /// From when on it is cancelled instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// Attempts since it was made, or retried manually.
    attempt_count: u32,
    /// When it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    next_attempt_at: Option<Timestamp>,
    /// What went wrong last.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// Whether it is exhausted and blocks its group.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    blocks_group: bool,
    /// Since when it is ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    ignored_at: Option<Timestamp>,
    /// Why it was cancelled: `EXPIRED`, `SUBSCRIPTION_DELETED` or `MANUAL`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "EXPIRED")]
    cancel_reason: Option<&'static str>,
    /// Under what a task was created once.
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    /// What a task carries for its sender. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    /// The media type of the payload; JSON if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_content_type: Option<String>,
    /// What is delivered: any JSON as it was sent, or text. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Value, required = false)]
    payload: Option<Box<RawValue>>,
    /// What is delivered, if it is neither JSON nor text. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    /// The attempts, in order, those before manual retries included. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<Vec<AttemptAnswer>>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// An attempt at a dispatch job. Of one that this server cannot read, because a newer one has written it, only the numbers
/// are shown.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AttemptAnswer {
    /// Its number since the job was made, or retried manually.
    attempt_number: u32,
    /// 1, and one more for each manual retry before it.
    generation: u32,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    attempted_at: Option<Timestamp>,
    /// When its outcome was known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    completed_at: Option<Timestamp>,
    /// How long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_millis: Option<u64>,
    /// `SUCCESS`, `CLIENT_ERROR`, `SERVER_ERROR`, `TIMEOUT` or `CONNECTION_ERROR`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "SUCCESS")]
    status: Option<String>,
    /// Where it went.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_url: Option<String>,
    /// The status of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    response_code: Option<u16>,
    /// The beginning of the answer's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    response_body: Option<String>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<String>,
    /// `TRANSIENT`, `PERMANENT` or `UNKNOWN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<String>,
}

/// A page of dispatch jobs.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DispatchJobsAnswer {
    /// The jobs, youngest first, without payload, attempts, headers and metadata.
    items: Vec<DispatchJobAnswer>,
    /// Where the next page begins; absent on the last one. A page looks at a bounded number of jobs, so it may be short, even
    /// empty, although there is a next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// A group in which nothing is delivered.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GroupAnswer {
    /// The group.
    message_group: String,
    /// The client that it belongs to.
    #[schema(value_type = Option<String>)]
    client_id: Option<Tsid>,
    /// Whether a failed job blocks it.
    blocked: bool,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    blocked_since: Timestamp,
    /// Why: what went wrong with that job last.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// How many jobs wait behind it, counted up to 1,000: then a `+` follows.
    #[schema(example = "1000+")]
    waiting: String,
    /// The job that blocks it.
    blocked_by: DispatchJobAnswer,
}

/// A page of groups.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GroupsAnswer {
    /// The groups.
    items: Vec<GroupAnswer>,
    /// Where the next page begins; absent on the last one. A page looks at a bounded number of groups, so it may be short, even
    /// empty, although there is a next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Why a dispatch job is not delivered: the first reason that applies.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobWhyAnswer {
    /// The id of the job.
    #[schema(value_type = String)]
    job_id: String,
    /// `ended`, `in_progress`, `abandoned` (its node is gone; it is delivered again), `behind_in_group`, `blocks_group`,
    /// `stepped_aside`, `subscription_deleted`, `subscription_without_webhook` (it sends to a queue now), `subscription_unreadable`
    /// (by this server: a newer one has written it), `subscription_paused`, `no_credentials` (what it is signed with or carries is
    /// not there, or cannot be read by this server), `pool_suspended`, `paused`, `due_at`, `no_router` (this server does not
    /// deliver, and no other seems to), `pool_full` (all its slots are in use), `pool_rate_limited` or `ready`.
    #[schema(example = "due_at")]
    reason: &'static str,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<&'static str>,
    /// When it ended, or is due; with `pool_rate_limited` from when on its pool has a delivery that no node has reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    at: Option<Timestamp>,
    /// Until when the node has it that delivers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
    /// Since when its node is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// Its group.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_group: Option<String>,
    /// How many jobs go first, as far as they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead: Option<u64>,
    /// The service account that lacks credentials; absent if it is the subscription's own secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    service_account_id: Option<Tsid>,
    /// The pool that is suspended, full or limited; absent for the default pool of its client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pool_id: Option<Tsid>,
    /// With `pool_full`: the slots that nodes hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<Vec<SlotsAnswer>>,
}

/// The filters that lists and bulk requests share, as texts.
struct Texts<'a> {
    status: Option<&'a str>,
    kind: Option<&'a str>,
    subscription: Option<&'a str>,
    event: Option<&'a str>,
    pool: Option<&'a str>,
    from: Option<&'a str>,
    to: Option<&'a str>,
}

impl Texts<'_> {
    fn read(&self, visible: Visible) -> Result<JobsFilter> {
        let id = |name: &str, text: Option<&str>| {
            let bad = |_| ApiError::invalid(format!("{name} must be an id: 13 characters"));
            text.map(|text| text.parse::<Tsid>().map_err(bad)).transpose()
        };
        let status = self.status.map(|name| {
            let bad = || {
                ApiError::invalid(format!("status must be one of {}", names(&JobStatus::ALL.map(JobStatus::as_str))))
            };
            JobStatus::from_name(name).ok_or_else(bad)
        });
        let bad_kind = || ApiError::invalid("kind must be EVENT or TASK");
        Ok(JobsFilter {
            client: visible.client(),
            status: status.transpose()?,
            kind: self.kind.map(|name| JobKind::from_name(name).ok_or_else(bad_kind)).transpose()?,
            code: None,
            subscription: id("subscriptionId", self.subscription)?,
            event: id("eventId", self.event)?,
            message_group: None,
            pool: id("poolId", self.pool)?,
            from: moment("from", self.from)?,
            to: moment("to", self.to)?,
        })
    }
}

fn names(all: &[&str]) -> String {
    all.join(", ")
}

impl JobsParams {
    /// Which jobs, where the page begins, and how many, of what the caller may see.
    pub(crate) fn read(self, visible: Visible) -> Result<(JobsFilter, Option<EntryId>, usize)> {
        let texts = Texts {
            status: self.status.as_deref(),
            kind: self.kind.as_deref(),
            subscription: self.subscription_id.as_deref(),
            event: self.event_id.as_deref(),
            pool: self.pool_id.as_deref(),
            from: self.from.as_deref(),
            to: self.to.as_deref(),
        };
        let filter = texts.read(visible)?;
        let filter = JobsFilter { code: self.code, message_group: self.message_group, ..filter };
        let before = self.cursor.as_deref().map(|text| cursor::read_job(text, visible.client())).transpose()?;
        Ok((filter, before, limit(self.limit.as_deref())?))
    }
}

impl GroupsParams {
    /// After which group the page begins, and how many.
    pub(crate) fn read(&self, visible: Visible) -> Result<(Option<(i64, String)>, usize)> {
        if !flag("blocked", Some(self.blocked.as_deref().unwrap_or("true")))? {
            return Err(ApiError::invalid("blocked must be true: groups that nothing blocks are not listed"));
        }
        let after = self.cursor.as_deref().map(|text| cursor::read_group(text, visible.client())).transpose()?;
        Ok((after, limit(self.limit.as_deref())?))
    }
}

impl ActBody {
    /// The reason. 400 when it cannot be stored.
    pub(crate) fn reason(self) -> Result<Option<String>> {
        checked_reason(self.reason)
    }
}

fn checked_reason(reason: Option<String>) -> Result<Option<String>> {
    if reason.as_ref().is_some_and(|reason| reason.len() > MAX_REASON || reason.contains('\0')) {
        return Err(ApiError::invalid("reason must be at most 1000 bytes without NUL characters"));
    }
    Ok(reason)
}

impl BulkBody {
    /// What to do to which jobs, and why.
    pub(crate) fn read(self, visible: Visible) -> Result<(BulkAct, Option<String>)> {
        let act = JobAct::from_name(&self.action)
            .ok_or_else(|| ApiError::invalid("action must be retry, cancel or ignore"))?;
        let texts = Texts {
            status: self.status.as_deref(),
            kind: self.kind.as_deref(),
            subscription: self.subscription_id.as_deref(),
            event: self.event_id.as_deref(),
            pool: self.pool_id.as_deref(),
            from: self.from.as_deref(),
            to: self.to.as_deref(),
        };
        let filter = texts.read(visible)?;
        let (limit, per_second) = (self.limit.unwrap_or(1_000), self.per_second.unwrap_or(1_000));
        if !(1..=MAX_BULK).contains(&limit) || !(1..=MAX_RATE).contains(&per_second) {
            return Err(ApiError::invalid("limit must be from 1 to 10000 and perSecond from 1 to 100000"));
        }
        let before = self.cursor.as_deref().map(|text| cursor::read_job(text, visible.client())).transpose()?;
        let filter = JobsFilter { code: self.code, message_group: self.message_group, ..filter };
        Ok((BulkAct { act, filter, before, limit, per_second }, checked_reason(self.reason)?))
    }
}

impl BulkAnswer {
    pub(crate) fn of(acted: &Acted, visible: Visible) -> Self {
        Self {
            done: acted.done,
            refused: acted.refused,
            more: acted.next.is_some(),
            next_cursor: acted.next.map(|next| cursor::of_job(visible.client(), next)),
        }
    }
}

impl DispatchJobAnswer {
    /// A job with its payload and attempts.
    pub(crate) fn of_shown(shown: JobShown) -> Result<Self> {
        let (event, terms) = (&shown.job.event, shown.job.terms.as_ref());
        let headers = terms.map(|terms| terms.headers.clone()).unwrap_or_default();
        let metadata = terms.and_then(|terms| terms.metadata.clone());
        let (payload, payload_base64) = match (event.json(), event.text(), &event.data) {
            (Some(json), ..) => (Some(json.to_owned()), None),
            (None, Some(text), _) => (Some(quoted(text)?), None),
            (None, None, Some(data)) => (None, Some(base64(&data.bytes))),
            (None, None, None) => (None, None),
        };
        let attempts = Some(shown.attempts.into_iter().map(AttemptAnswer::from).collect());
        Ok(Self { headers, metadata, payload, payload_base64, attempts, ..Self::from(shown.job) })
    }
}

impl From<Job> for DispatchJobAnswer {
    fn from(job: Job) -> Self {
        let (terms, event) = (job.terms.as_ref(), job.event);
        Self {
            id: job.id,
            kind: job.kind.as_str(),
            status: job.status.as_str(),
            client_id: job.client,
            code: event.event_type,
            source: event.source,
            subject: event.subject,
            external_id: event.id,
            correlation_id: event.correlation_id,
            event_id: job.event_id,
            subscription_id: job.subscription,
            target_url: terms.map(|terms| terms.target_url.clone()),
            headers: BTreeMap::new(),
            data_only: terms.map(|terms| terms.data_only),
            mode: terms.map(|terms| terms.mode),
            message_group: job.message_group,
            sequence: job.sequence,
            dispatch_pool_id: terms.and_then(|terms| terms.pool),
            service_account_id: terms.and_then(|terms| terms.service_account),
            timeout_seconds: terms.map(|terms| terms.timeout_seconds),
            max_retries: terms.map(|terms| terms.max_retries),
            retry_strategy: terms.and_then(|terms| terms.retry_strategy.clone()),
            scheduled_for: job.scheduled_for,
            expires_at: job.expires_at,
            attempt_count: job.attempts,
            next_attempt_at: job.next_attempt_at,
            last_error: job.last_error,
            blocks_group: job.is_kept,
            ignored_at: job.ignored_at,
            cancel_reason: job.cancel_reason.map(CancelReason::as_str),
            idempotency_key: terms.and_then(|terms| terms.idempotency_key.clone()),
            metadata: None,
            payload_content_type: event.datacontenttype,
            payload: None,
            payload_base64: None,
            attempts: None,
            created_at: job.created_at,
            updated_at: job.updated_at,
        }
    }
}

impl From<JobTry> for AttemptAnswer {
    fn from(attempt: JobTry) -> Self {
        let JobTry { generation, attempt: attempt_number, record } = attempt;
        let Some(record) = record else {
            return Self {
                attempt_number,
                generation,
                attempted_at: None,
                completed_at: None,
                duration_millis: None,
                status: None,
                target_url: None,
                response_code: None,
                response_body: None,
                error_message: None,
                error_type: None,
            };
        };
        let took = std::time::Duration::from_millis(record.duration_millis);
        Self {
            attempt_number,
            generation,
            attempted_at: Some(record.attempted_at),
            completed_at: record.attempted_at.checked_add(took).ok(),
            duration_millis: Some(record.duration_millis),
            status: Some(record.status),
            target_url: Some(record.target_url),
            response_code: record.response_code,
            response_body: record.response_body,
            error_message: record.error_message,
            error_type: record.error_type,
        }
    }
}

impl DispatchJobsAnswer {
    pub(crate) fn of(page: JobsFound, visible: Visible) -> Self {
        let next_cursor = page.next.map(|next| cursor::of_job(visible.client(), next));
        Self { items: page.jobs.into_iter().map(DispatchJobAnswer::from).collect(), next_cursor }
    }
}

impl GroupsAnswer {
    pub(crate) fn of(page: BlockedJobsPage, visible: Visible) -> Self {
        let next_cursor = page.next.map(|(queue, group)| cursor::of_group(visible.client(), queue, &group));
        Self { items: page.groups.into_iter().map(GroupAnswer::from).collect(), next_cursor }
    }
}

impl From<BlockedJobs> for GroupAnswer {
    fn from(group: BlockedJobs) -> Self {
        let job = DispatchJobAnswer::from(group.job);
        Self {
            message_group: group.group,
            client_id: job.client_id,
            blocked: true,
            blocked_since: group.since,
            reason: job.last_error.clone(),
            waiting: counted(group.behind, group.is_capped),
            blocked_by: job,
        }
    }
}

/// A number that was counted up to a bound.
pub(crate) fn counted(number: u64, is_capped: bool) -> String {
    if is_capped { format!("{number}+") } else { number.to_string() }
}

impl JobWhyAnswer {
    pub(crate) fn of(id: &str, why: JobWhy) -> Self {
        let of = |reason| Self { job_id: id.to_owned(), reason, ..Self::default() };
        let why = match why {
            JobWhy::SubscriptionDeleted => return of("subscription_deleted"),
            JobWhy::SubscriptionPaused => return of("subscription_paused"),
            JobWhy::NoCredentials { account } => {
                return Self { service_account_id: account, ..of("no_credentials") };
            }
            JobWhy::NoWebhook => return of("subscription_without_webhook"),
            JobWhy::SubscriptionUnreadable => return of("subscription_unreadable"),
            JobWhy::NoRouter => return of("no_router"),
            JobWhy::PoolFull { pool, slots } => {
                let slots = slots.iter().map(SlotsAnswer::from).collect();
                return Self { pool_id: pool, slots: Some(slots), ..of("pool_full") };
            }
            JobWhy::PoolLimited { pool, at } => {
                return Self { pool_id: Some(pool), at: Some(at), ..of("pool_rate_limited") };
            }
            JobWhy::PoolSuspended { pool } => return Self { pool_id: Some(pool), ..of("pool_suspended") },
            JobWhy::Store(why) => why,
        };
        match why {
            Why::Ended { end, at } => Self { end: Some(JobStatus::of_end(end).as_str()), at: Some(at), ..of("ended") },
            Why::Leased { until, .. } => Self { until: Some(until), ..of("in_progress") },
            Why::Abandoned { since, .. } => Self { since: Some(since), ..of("abandoned") },
            Why::BehindInGroup { group, ahead } => {
                Self { message_group: Some(group), ahead: Some(ahead), ..of("behind_in_group") }
            }
            Why::KeepsPlace { .. } => of("blocks_group"),
            Why::SteppedAside { at } => Self { at: Some(at), ..of("stepped_aside") },
            Why::QueuePaused => of("paused"),
            Why::DueAt { at } => Self { at: Some(at), ..of("due_at") },
            Why::NoLiveConsumer { .. } => of("ready"),
            Why::Ready { ahead } => Self { ahead: Some(ahead), ..of("ready") },
        }
    }
}
