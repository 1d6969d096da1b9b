//! What pull workers need of a store: reports on attempts, their audit, lists, workers, retention. Verbs and values; how
//! a database does it is in its own module.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::{
    Action, EntryId, Generation, LeaseToken, Outcome, QueueName, QueueSettings, Status, Timestamp, Tsid,
};

use crate::error::{Error, ErrorKind, Result};
use crate::store::{Batch, EntryPhase, EntryView};

/// Rows of the audit that are read at once.
const AUDIT_PAGE: usize = 1_000;

/// Works entries off for workers that are not in this process.
#[async_trait]
pub trait WorkStore: Send + Sync {
    /// Ends attempts: the entry ends or is put back for a retry, and the audit says so, in one transaction. A repeat of
    /// what this worker reported about this attempt answers the record (`repeated`) and writes nothing. `Fenced` for
    /// whoever holds nothing, `NotFound` for an unknown entry, `Invalid` where the queue requires a lease and none is named.
    async fn report(&self, items: Vec<Report>) -> Result<Batch<Reported>>;

    /// Records that workers began, a sign of life of theirs. A repeat answers the first record. `Fenced`, `NotFound` as for
    /// reports.
    async fn started(&self, items: Vec<Holder>) -> Result<Batch<AuditRow>>;

    /// Extends leases and answers what holds now. `Fenced`, `NotFound` as for reports.
    async fn heartbeat(&self, items: Vec<Heartbeat>) -> Result<Batch<Held>>;

    /// Puts entries back by hand: PROCESSING or FAILED become PENDING, anything else is a `Conflict`. The token rises, so
    /// that an old holder is fenced. From FAILED a new generation starts with all its retries; from PROCESSING the retry
    /// count stays as it was.
    async fn reset(&self, items: Vec<ByHand>) -> Result<Batch<()>>;

    /// The queues of entries, live or ended; `None` where there is none. Reads no facts: payloads may be large.
    async fn queues_of(&self, ids: Vec<EntryId>) -> Result<Vec<Option<QueueName>>>;

    /// The id of an entry's event, live or ended; `None` where there is none. Reads no fact.
    async fn event_of(&self, id: EntryId) -> Result<Option<Tsid>>;

    /// What happened to an entry, in order: at most `limit` rows with numbers above `after`.
    async fn audit_page(&self, id: EntryId, after: i64, limit: usize) -> Result<Vec<AuditRow>>;

    /// Everything that happened to an entry, in order, however much that is.
    async fn audit(&self, id: EntryId) -> Result<Vec<AuditRow>> {
        let mut rows: Vec<AuditRow> = Vec::new();
        loop {
            let after = rows.last().map_or(0, |row| row.id);
            let page = self.audit_page(id, after, AUDIT_PAGE).await?;
            let more = page.len() == AUDIT_PAGE;
            rows.extend(page);
            if !more {
                return Ok(rows);
            }
        }
    }

    /// Entries, live or ended, the youngest first.
    async fn list(&self, query: ListQuery) -> Result<Page>;

    /// Who is at work, by client and name: everybody seen within a day or holding something. Who holds something and was
    /// silent for `stale_after` is stale.
    async fn workers_page(&self, query: WorkersQuery) -> Result<WorkersPage>;

    /// Everybody who is at work, however many there are.
    async fn workers(&self, stale_after: Duration) -> Result<Vec<WorkerView>> {
        let query = WorkersQuery { stale_after, limit: usize::MAX, ..WorkersQuery::default() };
        Ok(self.workers_page(query).await?.workers)
    }

    /// Those of these tags under which something of a queue can be claimed now. None while the queue is paused.
    async fn claimable(&self, queue: &QueueName, tags: Vec<String>) -> Result<Vec<String>>;

    /// Forgets one small batch of old audit and log rows. Called again with `next` until that is `None`.
    async fn retain(&self, retention: Retention) -> Result<Retained>;
}

/// Who says something about which entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Which entry.
    pub id: EntryId,
    /// Who.
    pub worker: String,
    /// Under which lease; the one this worker holds when `None`.
    pub lease: Option<LeaseToken>,
}

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Whose attempt.
    pub holder: Holder,
    /// How it ended.
    pub outcome: Outcome,
    /// The worker's own code, such as an HTTP status.
    pub status_code: Option<i32>,
    /// How long it took.
    pub execution_time_ms: Option<i64>,
    /// What went wrong.
    pub error_message: Option<String>,
}

/// What a report came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// The record.
    pub row: AuditRow,
    /// What followed.
    pub verdict: Verdict,
    /// Whether it had been recorded before, so that nothing was written.
    pub repeated: bool,
    /// The entry's queue, unless it had been recorded before.
    pub queue: Option<QueueName>,
    /// How long the worker had the entry, unless it had been recorded before.
    pub held_for: Option<Duration>,
    /// The event's attributes, JSON text, unless it had been recorded before.
    pub attributes: Option<String>,
}

/// What followed from a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The entry is COMPLETED.
    Completed,
    /// It is tried again.
    RetryScheduled {
        /// When.
        next_retry_at: Timestamp,
    },
    /// Its retries were used up: it is FAILED.
    Exhausted {
        /// Retries it had.
        retry_count: u32,
        /// Retries it may have.
        max_retries: u32,
    },
}

/// A sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// Whose.
    pub holder: Holder,
    /// For how long from now.
    pub lease: HeartbeatLease,
}

/// For how long a sign of life keeps an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeartbeatLease {
    /// For this long.
    For(Duration),
    /// As the claim asked, where the audit knows it, else as the queue says.
    AsClaimed {
        /// Where the queue does not say.
        otherwise: Duration,
    },
}

impl HeartbeatLease {
    /// How long that is, by what the claim asked and what the queue says.
    pub(crate) fn length(self, claimed_ms: Option<i64>, settings: &QueueSettings) -> Duration {
        let Self::AsClaimed { otherwise } = self else { return self.otherwise() };
        let claimed = claimed_ms.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0).map(Duration::from_millis);
        claimed.or(settings.lease_seconds.map(|seconds| Duration::from_secs(seconds.into()))).unwrap_or(otherwise)
    }

    /// What it is when nothing is known of the claim or the queue.
    #[must_use]
    pub fn otherwise(self) -> Duration {
        match self {
            Self::For(lease) | Self::AsClaimed { otherwise: lease } => lease,
        }
    }
}

/// A lease as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The id of the entry's event.
    pub event_id: Tsid,
    /// Its token.
    pub token: LeaseToken,
    /// When somebody else may take the entry.
    pub lease_until: Timestamp,
    /// The attempt it is, from 1.
    pub attempts: u32,
}

/// An entry to be put back, ended or started over by hand. The audit keeps who did it and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByHand {
    /// Which.
    pub id: EntryId,
    /// Who does it, where that is known.
    pub actor: Option<String>,
    /// Why.
    pub reason: Option<String>,
}

impl From<EntryId> for ByHand {
    fn from(id: EntryId) -> Self {
        Self { id, actor: None, reason: None }
    }
}

/// One row of the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// Its number; later rows of an entry have greater ones.
    pub id: i64,
    /// About which entry.
    pub entry: EntryId,
    /// The id of its event; `None` once the entry is forgotten.
    pub event_id: Option<Tsid>,
    /// What happened.
    pub action: Action,
    /// The worker that did it, or whose attempt it was.
    pub worker: Option<String>,
    /// Who did by hand what was done by hand, where that is known.
    pub actor: Option<String>,
    /// The entry's generation.
    pub generation: Generation,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The lease's token.
    pub token: LeaseToken,
    /// The worker's own code.
    pub status_code: Option<i32>,
    /// How long the attempt took.
    pub execution_time_ms: Option<i64>,
    /// What went wrong, or the reason of what was done by hand.
    pub message: Option<String>,
    /// When it is tried again, after a failure that is.
    pub next_retry_at: Option<Timestamp>,
    /// Retries used up, after a failure.
    pub retry_count: Option<u32>,
    /// Retries it may have, after a failure.
    pub max_retries: Option<u32>,
    /// When.
    pub created_at: Timestamp,
}

/// Which entries to list. Everything given must fit; of the tags one is enough.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListQuery {
    /// In this status.
    pub status: Option<Status>,
    /// With any of these tags; all when empty.
    pub tags: Vec<String>,
    /// In this queue.
    pub queue: Option<QueueName>,
    /// Of this type.
    pub event_type: Option<String>,
    /// Held or ended by this worker.
    pub worker: Option<String>,
    /// In this client's queues.
    pub client: Option<Tsid>,
    /// Published at this moment or later.
    pub from: Option<Timestamp>,
    /// Published before this moment.
    pub to: Option<Timestamp>,
    /// Entries before this one (a cursor).
    pub before: Option<EntryId>,
    /// How many at most.
    pub limit: usize,
    /// How many to pass over first.
    pub offset: usize,
}

/// Part of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// The entries, youngest first.
    pub items: Vec<EntrySummary>,
    /// How many there are in all (before and after this page), as far as they were counted.
    pub total: u64,
    /// Whether there may be more than `total`.
    pub total_capped: bool,
    /// Where the next page begins, unless this is the last. A page may be short though there is a next one.
    pub next: Option<EntryId>,
}

/// An entry in a list: no payload, no description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntrySummary {
    /// Its number.
    pub id: EntryId,
    /// The event's id.
    pub event_id: Tsid,
    /// Its queue.
    pub queue: QueueName,
    /// Its type.
    pub event_type: String,
    /// What people call it.
    pub title: Option<String>,
    /// Its tags.
    pub tags: Vec<String>,
    /// Whose it is: its queue's client.
    pub client: Option<Tsid>,
    /// Where it is in its life.
    pub status: Status,
    /// Attempts so far.
    pub attempts: u32,
    /// Attempts it may have.
    pub max_attempts: u32,
    /// When it may be claimed, where that is later than now or was.
    pub next_retry_at: Option<Timestamp>,
    /// Who holds or ended it.
    pub worker: Option<String>,
    /// Lower goes first.
    pub priority: i16,
    /// Its FIFO group.
    pub group: Option<String>,
    /// When it was published.
    pub created_at: Timestamp,
    /// When anything last happened to it.
    pub updated_at: Timestamp,
}

impl EntrySummary {
    /// Retries used up.
    #[must_use]
    pub fn retry_count(&self) -> u32 {
        tidegate_core::work::retry_count(self.attempts, self.status == Status::Pending)
    }
}

impl EntryView {
    /// Where it is in its life, by name.
    #[must_use]
    pub fn status(&self) -> Status {
        match self.phase {
            EntryPhase::Waiting { .. } | EntryPhase::Parked => Status::Pending,
            EntryPhase::Leased { .. } => Status::Processing,
            EntryPhase::Ended { end, .. } => end.into(),
        }
    }

    /// Retries used up.
    #[must_use]
    pub fn retry_count(&self) -> u32 {
        tidegate_core::work::retry_count(self.attempts, self.status() == Status::Pending)
    }

    /// Retries it may have.
    #[must_use]
    pub fn max_retries(&self) -> u32 {
        self.max_attempts.saturating_sub(1)
    }

    /// When it is tried again, while it waits for that.
    #[must_use]
    pub fn next_retry_at(&self) -> Option<Timestamp> {
        match self.phase {
            EntryPhase::Waiting { due } => next_retry_at(due, self.attempts, self.updated_at),
            _ => None,
        }
    }
}

/// A due moment is that of a retry when there was an attempt, and when it was set for later than the moment it was set at.
pub(crate) fn next_retry_at(due: Option<Timestamp>, attempts: u32, updated_at: Timestamp) -> Option<Timestamp> {
    due.filter(|due| attempts > 0 && *due > updated_at)
}

/// A worker as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerView {
    /// Its name.
    pub worker: String,
    /// The client in whose queues it works: the same name in two clients' queues is two workers.
    pub client: Option<Tsid>,
    /// When it was last heard of.
    pub seen_at: Timestamp,
    /// The queues it was seen in.
    pub queues: Vec<QueueName>,
    /// What it holds, up to 100.
    pub holds: Vec<EntryId>,
    /// How many it holds.
    pub held: u64,
    /// Whether it holds something and was silent for too long.
    pub stale: bool,
}

/// A worker's client and name, by which workers are sorted.
pub type WorkerKey = (Option<Tsid>, String);

/// Which workers to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkersQuery {
    /// In this client's queues.
    pub client: Option<Tsid>,
    /// Those after this one (a cursor).
    pub after: Option<WorkerKey>,
    /// How many at most.
    pub limit: usize,
    /// How long one that holds something may be silent.
    pub stale_after: Duration,
}

/// Part of the list of workers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkersPage {
    /// The workers, by client and name.
    pub workers: Vec<WorkerView>,
    /// After whom the next page begins, unless this is the last.
    pub next: Option<WorkerKey>,
}

/// What to forget: one small batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// Audit rows older than this.
    pub audit: Option<Duration>,
    /// Ended entries older than this, with their facts: never one that can be redriven, nor one that a projection has not
    /// read.
    pub log: Option<Duration>,
    /// Dead letters older than this too, though they could be redriven.
    pub dead_letters: Option<Duration>,
    /// Rows to look at in this batch, at most.
    pub batch: usize,
    /// Where the last batch of this round stopped.
    pub from: Option<EntryId>,
}

/// What one batch of retention did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retained {
    /// Audit rows removed.
    pub audit: u64,
    /// Ended entries removed.
    pub entries: u64,
    /// Where to go on; `None` once the round is through.
    pub next: Option<EntryId>,
}

/// Settings as databases store them; nothing where everything is at its default.
pub(crate) fn settings_text(settings: &QueueSettings) -> Result<Option<String>> {
    if *settings == QueueSettings::default() {
        return Ok(None);
    }
    if settings.retry.as_ref().is_some_and(|policy| !policy.is_sane()) {
        return Err(Error::invalid(
            "the retry policy is out of range: delays must be at most 100 years, jitter 0 to 1",
        ));
    }
    if settings.lease_seconds.is_some_and(|lease| lease == 0 || lease > 24 * 3600) {
        return Err(Error::invalid("a lease must last 1 second to 24 hours"));
    }
    serde_json::to_string(settings)
        .map(Some)
        .map_err(|error| Error::invalid("the settings cannot be written").with_source(error))
}

/// A report that names no lease in a queue that requires one.
pub(crate) fn lease_required() -> Error {
    Error::invalid("this queue requires workers to name their lease: send the `lease` that the claim answered")
}

/// An entry that cannot be put back by hand.
pub(crate) fn not_resettable(id: EntryId, what: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("entry {id} cannot be reset: only PROCESSING and FAILED can, and {what}"))
}

/// The errors that a failed entry ends with, as JSON text.
pub(crate) fn error_list(message: Option<&str>) -> String {
    serde_json::Value::from(vec![message.unwrap_or("failed without a message")]).to_string()
}

/// A worker speaks of an attempt that it has ended itself: nothing was taken from it.
pub(crate) fn already_reported() -> Error {
    Error::new(ErrorKind::AlreadyEnded, "this worker has already reported on this attempt")
}

/// What a repeated report answers: what was recorded.
pub(crate) fn replay(row: AuditRow) -> Result<Reported> {
    let verdict = match (row.action, row.next_retry_at) {
        (Action::Completed, _) => Verdict::Completed,
        (_, Some(next_retry_at)) => Verdict::RetryScheduled { next_retry_at },
        (_, None) => {
            Verdict::Exhausted { retry_count: row.retry_count.unwrap_or(0), max_retries: row.max_retries.unwrap_or(0) }
        }
    };
    Ok(Reported { row, verdict, repeated: true, queue: None, held_for: None, attributes: None })
}

/// How long an entry was held, by database time.
pub(crate) fn held_for(since: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    Duration::try_from(now.duration_since(since?)).ok()
}

/// Workers by client and name.
pub(crate) type Workers = BTreeMap<WorkerKey, WorkerView>;

/// Notes that a worker was heard of.
pub(crate) fn seen(known: &mut Workers, worker: String, queue: QueueName, at: Timestamp) -> &mut WorkerView {
    let client = queue.client();
    let view = known.entry((client, worker.clone())).or_insert_with(|| WorkerView {
        worker,
        client,
        seen_at: at,
        queues: Vec::new(),
        holds: Vec::new(),
        held: 0,
        stale: false,
    });
    view.seen_at = view.seen_at.max(at);
    if !view.queues.contains(&queue) {
        view.queues.push(queue);
    }
    view
}

/// A page of the workers, with who is stale: holds something and was silent for too long.
pub(crate) fn judge_workers(known: Workers, now: Timestamp, query: &WorkersQuery) -> WorkersPage {
    let limit = jiff::SignedDuration::try_from(query.stale_after).unwrap_or(jiff::SignedDuration::MAX);
    let judge = |mut view: WorkerView| {
        view.stale = view.held > 0 && now.duration_since(view.seen_at) > limit;
        view
    };
    let is_after = |key: &WorkerKey| query.after.as_ref().is_none_or(|after| key > after);
    let mut rest = known.into_iter().filter(|(key, _)| is_after(key));
    let (mut workers, mut last) = (Vec::new(), None);
    for (key, view) in rest.by_ref().take(query.limit) {
        workers.push(judge(view));
        last = Some(key);
    }
    let next = if rest.next().is_some() { last } else { None };
    WorkersPage { workers, next }
}
