//! What is published, claimed and ended, and entries as they are shown.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use tidegate_core::cloud_event::{CloudEvent, STRUCTURED, StoredEvent};
use tidegate_core::{End, EntryId, Generation, LeaseToken, QueueName, RetryPolicy, Timestamp, Tsid};

use crate::error::{Error, Result};

/// One answer per item, in the order of the items. A bad item never fails its neighbours.
pub type Batch<T> = Vec<Result<T>>;

/// The answer to a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The entry's number.
    pub id: EntryId,
    /// The event's id.
    pub event_id: Tsid,
    /// Whether the entry is new.
    pub outcome: PublishOutcome,
    /// The moment of publication, in database time.
    pub created_at: Timestamp,
    /// The attempts that the event got, by its own number or its queue's. Of a repeat: what a new entry would have got.
    pub max_attempts: u32,
}

/// Whether a publish created something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishOutcome {
    /// A new entry was created.
    Created,
    /// Nothing was written: the answer describes the first entry under the same key.
    Duplicate,
    /// The waiting entry under the same key got new contents.
    Replaced,
}

/// The most payload bytes one claim takes; a larger event is claimed alone.
pub const MAX_CLAIM_BYTES: usize = 8 << 20;

/// A request to lease entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The queue to claim from.
    pub queue: QueueName,
    /// Only events of these types; of all types when `None`.
    pub types: Option<Vec<String>>,
    /// The most entries to take.
    pub max: usize,
    /// How long the leases last.
    pub lease: Duration,
    /// The name of the worker that becomes the holder.
    pub worker: String,
    /// The most entries of each lane whose event type has a quota; a lane is a type and a priority. Types that share a
    /// lane are bound by the smallest quota among them.
    pub quotas: BTreeMap<String, usize>,
    /// Only entries with at least one of these tags; all entries when `None`.
    pub tags: Option<Vec<String>>,
    /// Whether to record the claim in the audit, in the same transaction.
    pub audit: bool,
}

/// An entry under a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The entry's number.
    pub id: EntryId,
    /// The event's id.
    pub event_id: Tsid,
    /// Its generation.
    pub generation: Generation,
    /// The number of this attempt, from 1.
    pub attempts: u32,
    /// The number of attempts after which the entry ends.
    pub max_attempts: u32,
    /// How the entry ends when its attempts are exhausted.
    pub exhausted_as: End,
    /// The token of the lease.
    pub token: LeaseToken,
    /// When the lease was taken, in database time.
    pub claimed_at: Timestamp,
    /// When the lease ends and another worker may claim the entry.
    pub lease_until: Timestamp,
    /// The error of the last attempt, if it reported one.
    pub last_error: Option<String>,
    /// Its group, if it has one.
    pub group: Option<String>,
    /// What a job was sorted by, its [`Target::lane_type`](crate::Target::lane_type); `None` for entries.
    pub lane_type: Option<Arc<str>>,
    /// The queue's retry policy, for an event without its own; `None` when the queue has none.
    pub queue_retry: Option<Arc<RetryPolicy>>,
    /// The event itself.
    pub fact: Fact,
}

/// An event as it was stored; it never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// The client that owns it; `None` when it belongs to none.
    pub client: Option<Tsid>,
    /// Its type.
    pub event_type: String,
    /// The payload as it was sent.
    pub payload: Bytes,
    /// The payload's media type.
    pub content_type: Option<String>,
    /// The system it came from.
    pub source: Option<String>,
    /// What it is about.
    pub subject: Option<String>,
    /// When it happened, if the publisher said so.
    pub time: Option<Timestamp>,
    /// The publisher's own id.
    pub external_id: Option<String>,
    /// Links the events of one request.
    pub correlation_id: Option<String>,
    /// The event that caused it.
    pub causation_id: Option<String>,
    /// Further attributes, JSON text.
    pub attributes: Option<String>,
    /// When it was published, in database time.
    pub created_at: Timestamp,
    /// A short title for people.
    pub title: Option<String>,
    /// A description for people.
    pub description: Option<String>,
    /// The tags that workers and lists select it by.
    pub tags: Vec<String>,
    /// The event's own retry policy; `None` when the queue's applies.
    pub retry: Option<RetryPolicy>,
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl Fact {
    /// The fact as an entry shows it that carries the whole event: its payload is the event with this id as a CloudEvent in
    /// structured mode.
    pub(crate) fn in_envelope(mut self, event_id: Tsid) -> Self {
        let event = CloudEvent::from_stored(&StoredEvent {
            event_type: &self.event_type,
            payload: &self.payload,
            content_type: self.content_type.as_deref(),
            source: self.source.as_deref(),
            subject: self.subject.as_deref(),
            time: self.time,
            external_id: self.external_id.as_deref(),
            correlation_id: self.correlation_id.as_deref(),
            causation_id: self.causation_id.as_deref(),
            attributes: self.attributes.as_deref(),
        });
        self.payload = event.to_structured(event_id);
        self.content_type = Some(STRUCTURED.to_owned());
        self
    }
}

/// One entry to be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finalize {
    /// The entry.
    pub id: EntryId,
    /// The lease that must be held; `None` to end the entry whether it is held or not.
    pub token: Option<LeaseToken>,
    /// How it ends.
    pub end: End,
    /// What went wrong, a JSON list of errors; `None` when nothing did.
    pub errors: Option<String>,
    /// The results of handlers to keep in the log, a JSON object by handler.
    pub results: Option<String>,
    /// The record of the attempt at a job, JSON text of at most [`MAX_ATTEMPT_BYTES`](crate::MAX_ATTEMPT_BYTES); see
    /// [`job_attempts`](crate::Dispatch::job_attempts).
    pub attempt: Option<String>,
}

/// The answer to a finalize. An entry that keeps its place stays live when its holder ends it as a dead letter; the
/// answer is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finalized {
    /// Whether the entry had ended before, so that nothing was written.
    pub repeated: bool,
    /// How the entry ended, as the log has it.
    pub end: End,
}

/// One lease to be extended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extend {
    /// The entry.
    pub id: EntryId,
    /// The lease that must be held.
    pub token: LeaseToken,
    /// How long the lease lasts from now.
    pub lease: Duration,
}

/// One lease to be given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requeue {
    /// The entry.
    pub id: EntryId,
    /// The lease that must be held.
    pub token: LeaseToken,
    /// When the entry may be claimed again.
    pub when: RequeueAt,
    /// Whether the attempt counts: after a failure it does, after a release, a snooze or a shutdown it does not.
    pub counts: bool,
    /// Whether an entry of a group steps aside until it is due, so that the others of its group run. Not with
    /// [`RequeueAt::Now`].
    pub aside: bool,
    /// What went wrong, if anything did.
    pub error: Option<String>,
    /// The record of the attempt at a job, as in [`Finalize::attempt`]. Only where the attempt counts.
    pub attempt: Option<String>,
}

/// When a requeued entry may be claimed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequeueAt {
    /// At once, in its present place.
    Now,
    /// At this moment of database time, or at once if it has passed.
    At(Timestamp),
    /// After this time, by database time.
    After(Duration),
}

/// An entry as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryView {
    /// The entry's number.
    pub id: EntryId,
    /// The event's id.
    pub event_id: Tsid,
    /// Its queue.
    pub queue: QueueName,
    /// Its generation.
    pub generation: Generation,
    /// Attempts so far.
    pub attempts: u32,
    /// The number of attempts after which it ends.
    pub max_attempts: u32,
    /// The token of its last lease.
    pub token: LeaseToken,
    /// Lower values are claimed first.
    pub priority: i16,
    /// Its group, if it has one.
    pub group: Option<String>,
    /// Its order within the group, before that of publication.
    pub rank: i32,
    /// When it is cancelled if nobody works on it.
    pub expires_at: Option<Timestamp>,
    /// Where it is in its life.
    pub phase: EntryPhase,
    /// The errors it ended with (JSON text), or the error of its last attempt.
    pub error: Option<String>,
    /// The results of its handlers, once it has ended.
    pub results: Option<String>,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// The event itself.
    pub fact: Fact,
}

/// Where an entry is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryPhase {
    /// Claimable, from `due` on where that is set.
    Waiting {
        /// When it becomes claimable.
        due: Option<Timestamp>,
    },
    /// Behind the head of its group, or an arrival from a caller's own transaction that is not sorted in yet.
    Parked,
    /// Stepped aside after a failure: others of its group run.
    Aside {
        /// When its retry is due.
        due: Timestamp,
    },
    /// Exhausted, and keeps its place: nothing else of its group runs.
    Kept {
        /// How it ends when it expires.
        end: End,
    },
    /// Held by a worker.
    Leased {
        /// The holder.
        worker: String,
        /// When the lease was taken.
        since: Timestamp,
        /// When the lease ends.
        until: Timestamp,
    },
    /// In the log.
    Ended {
        /// How it ended.
        end: End,
        /// When it ended.
        at: Timestamp,
        /// The worker that ended it, if one did.
        worker: Option<String>,
        /// Whether it was redriven or discarded since.
        superseded: bool,
    },
}

/// Which dead letters to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetters {
    /// The queue to list.
    pub queue: QueueName,
    /// Only events of this type.
    pub event_type: Option<String>,
    /// Only entries with a greater number (a cursor).
    pub after: Option<EntryId>,
    /// The most entries to return.
    pub limit: usize,
}

/// Counts of everything in one snapshot. A published fact has one entry, an ingested one has any number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Census {
    /// Stored facts.
    pub events: u64,
    /// Live entries that no worker holds: waiting, delayed, parked, aside or kept.
    pub waiting: u64,
    /// Leased entries.
    pub leased: u64,
    /// Log rows that are not superseded by a later generation.
    pub ended: u64,
}

impl Census {
    /// All entries, live and ended.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.waiting + self.leased + self.ended
    }
}

/// Counts the entries that claims end, until they are taken.
#[derive(Debug, Default)]
pub(crate) struct Exhausted(Mutex<HashMap<(QueueName, i16), u64>>);

impl Exhausted {
    pub(crate) fn add(&self, queue: &QueueName, end: End) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((queue.clone(), end.code())).or_default() += 1;
    }

    pub(crate) fn take(&self) -> Vec<(QueueName, End, u64)> {
        let counts = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        counts.into_iter().filter_map(|((queue, end), count)| Some((queue, End::from_code(end)?, count))).collect()
    }
}

/// A hint that something may be claimable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wake {
    /// In these queues.
    Queues(BTreeSet<QueueName>),
    /// Possibly in any queue: another process wrote, or hints were lost.
    Any,
}

/// The error for an idempotency key that was used for another request.
pub(crate) fn other_request(key: &str) -> Error {
    Error::new(
        crate::error::ErrorKind::Conflict,
        format!("idempotency key {key:?} was used for another request: use another key or the same request"),
    )
}

/// The errors of an entry that ends because a claim finds its attempts exhausted, as JSON text.
pub(crate) fn exhausted_errors(max_attempts: u32, last_error: Option<&str>) -> String {
    let abandoned = format!("abandoned: all {max_attempts} attempts were used, the last one without an outcome");
    let errors: Vec<&str> = last_error.into_iter().chain([abandoned.as_str()]).collect();
    serde_json::to_string(&errors).unwrap_or(abandoned)
}

/// The errors of an entry that ends because its expiry has passed, as JSON text.
pub(crate) fn expired_errors(expired_at: Timestamp, last_error: Option<&str>) -> String {
    let expired = format!("expired: nobody had completed it by {expired_at}");
    let errors: Vec<&str> = last_error.into_iter().chain([expired.as_str()]).collect();
    serde_json::to_string(&errors).unwrap_or(expired)
}

/// The errors of an entry that ends because a claim finds its event missing, as JSON text.
pub(crate) fn missing_fact_errors(event_id: i64, last_error: Option<&str>) -> String {
    let missing = format!(
        "the event of this entry (id {event_id}) is missing from the table of events, so it cannot be delivered: \
         restore that row from a backup and redrive the entry, or discard it"
    );
    let errors: Vec<&str> = last_error.into_iter().chain([missing.as_str()]).collect();
    serde_json::to_string(&errors).unwrap_or(missing)
}

/// What an operator does to an entry: cancel, redrive or reset. The audit keeps who did it and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManualAction {
    /// The entry.
    pub id: EntryId,
    /// Who does it, if known.
    pub actor: Option<String>,
    /// Why, if a reason was given.
    pub reason: Option<String>,
}

impl From<EntryId> for ManualAction {
    fn from(id: EntryId) -> Self {
        Self { id, actor: None, reason: None }
    }
}
