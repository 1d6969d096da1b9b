//! The trait every database implements, and the values that cross it.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_core::name::check_text;
use tidegate_core::{
    Depth, End, EntryId, Generation, IdSpace, LeaseToken, NewEvent, PayloadLimit, QueueConfig, QueueName,
    QueueSettings, QueueState, RetryPolicy, Timestamp, Tsid, Why,
};
use tokio::sync::broadcast;

use crate::error::{Error, Result};
use crate::handlers::HandlerStates;
use crate::keys::KeyStore;
use crate::projections::Projections;
use crate::standing::Standing;
use crate::work::{ByHand, WorkStore};

/// One answer per item, in the items' order. One bad item never fails its neighbours.
pub type Batch<T> = Vec<Result<T>>;

/// The version of the schema that this program writes.
pub const SCHEMA_VERSION: i32 = 13;

/// A database that keeps events.
///
/// Every write verb is one transaction over a batch. The outer error means that nothing of the batch happened (or, when
/// it is [`ErrorKind::Indeterminate`](crate::ErrorKind::Indeterminate), that it may have); otherwise each item has its
/// own answer. All futures may be dropped at any moment: the work then completes or not, but never by half.
#[async_trait]
pub trait Store: std::fmt::Debug + Send + Sync + 'static {
    /// Which database this is.
    fn backend(&self) -> Backend;

    /// Writes events and their entries. The ids of one call rise in the order of its items.
    async fn publish(&self, events: Vec<NewEvent>) -> Result<Batch<Published>>;

    /// Leases up to `claim.max` eligible entries, first by priority, then in order, with payloads of at most
    /// [`MAX_CLAIM_BYTES`] together: fewer than asked for does not mean that there are no more. Entries whose attempts are
    /// used up end here instead. Nothing to claim is an empty answer.
    async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>>;

    /// Moves entries to the log. Under a token: `Fenced` unless it is held; a repeat under the token that ended it is
    /// `Ok` with `repeated`. Without one: whoever holds it, it ends; one that has ended is `Ok` with `repeated`.
    async fn finalize(&self, items: Vec<Finalize>) -> Result<Batch<Finalized>>;

    /// Moves the end of leases to `lease` from now and answers the new end.
    async fn extend(&self, items: Vec<Extend>) -> Result<Batch<Timestamp>>;

    /// Gives leases back, at once or delayed, with or without counting the attempt.
    async fn requeue(&self, items: Vec<Requeue>) -> Result<Batch<()>>;

    /// Ends live entries as `CANCELLED`, whoever holds them. `AlreadyEnded` and `NotFound` are told apart.
    async fn cancel(&self, ids: Vec<EntryId>) -> Result<Batch<()>> {
        self.cancel_by_hand(ids.into_iter().map(ByHand::from).collect()).await
    }

    /// The same; the audit says who did it.
    async fn cancel_by_hand(&self, items: Vec<ByHand>) -> Result<Batch<()>>;

    /// Starts a new generation of dead letters. Anything else is a `Conflict`.
    async fn redrive(&self, ids: Vec<EntryId>) -> Result<Batch<Generation>> {
        self.redrive_by_hand(ids.into_iter().map(ByHand::from).collect()).await
    }

    /// The same; the audit says who did it.
    async fn redrive_by_hand(&self, items: Vec<ByHand>) -> Result<Batch<Generation>>;

    /// Takes dead letters out of the list without redriving them: their log row is marked superseded.
    async fn discard(&self, ids: Vec<EntryId>) -> Result<Batch<()>>;

    /// Entries with their facts, live or ended; `None` where there is none.
    async fn entries(&self, ids: Vec<EntryId>) -> Result<Vec<Option<EntryView>>>;

    /// Dead letters of a queue, oldest entry first.
    async fn dead_letters(&self, query: DeadLetters) -> Result<Vec<EntryView>>;

    /// Why an entry is not running.
    async fn why(&self, id: EntryId) -> Result<Why>;

    /// What a queue holds, in one snapshot.
    async fn depth(&self, queue: &QueueName) -> Result<Depth>;

    /// Everything counted in one snapshot; checks and metrics use it.
    async fn census(&self) -> Result<Census>;

    /// All queues.
    async fn queues(&self) -> Result<Vec<QueueConfig>>;

    /// One queue as it stands now; `None` when there is none. Costs a look at the catalogue's version, however many queues
    /// there are, and never writes.
    async fn queue(&self, name: &QueueName) -> Result<Option<QueueConfig>> {
        Ok(self.queues().await?.into_iter().find(|queue| queue.name == *name))
    }

    /// Creates a queue, or changes what the change names. One that changes nothing writes nothing.
    async fn put_queue(&self, name: &QueueName, change: QueueChange) -> Result<QueueConfig>;

    /// Says that these consumers are alive; `why` and the worker list use it. No two are of one worker and queue.
    async fn consumers_seen(&self, consumers: Vec<Consumer>) -> Result<Batch<()>>;

    /// Keeps the store's heartbeat, without which no lease expires, and does nothing else. Answers how long the store had
    /// been down, when that was found out now; all leases were moved by it. To be called several times within
    /// [`outage_after`](StoreOptions::outage_after), and not behind anything that may take long.
    async fn beat(&self) -> Result<Option<Duration>> {
        Ok(self.maintain().await?.outage)
    }

    /// Makes this process the one that does a task for all, or keeps it so, for as long as `lease`; false when another one is.
    async fn elect(&self, _task: &'static str, _lease: Duration) -> Result<bool> {
        Ok(true)
    }

    /// For how long the first entry of each queue could have been claimed; `None` where there is none to claim.
    async fn oldest(&self) -> Result<Vec<(QueueName, Option<Duration>)>> {
        Ok(Vec::new())
    }

    /// What each queue holds.
    async fn depths(&self) -> Result<Vec<(QueueName, Depth)>> {
        Ok(Vec::new())
    }

    /// Entries that claims have ended since the last call, by queue and end: nobody else is told of those.
    fn take_exhausted(&self) -> Vec<(QueueName, End, u64)> {
        Vec::new()
    }

    /// Regular upkeep: the store's heartbeat (leases do not expire while the store was down), due promotions of groups
    /// and arrivals, expired keys, partitions to come. Cheap when there is nothing to do; called about once a second.
    async fn maintain(&self) -> Result<Upkeep>;

    /// Tries whether a write and a claim would succeed now, with as little as possible and changing nothing. Called about
    /// once a second; a caller that does not wait for the answer loses nothing.
    ///
    /// # Errors
    /// What a write or a claim would meet.
    async fn probe(&self) -> Result<Probe> {
        Ok(Probe::default())
    }

    /// What handlers answered, where this store keeps it.
    fn handler_states(&self) -> Option<&dyn HandlerStates> {
        None
    }

    /// Readers of the log, where the store keeps them.
    fn projections(&self) -> Option<&dyn Projections> {
        None
    }

    /// What pull workers need, where this store has it.
    fn work(&self) -> Option<&dyn WorkStore> {
        None
    }

    /// API keys, where this store keeps them.
    fn keys(&self) -> Option<&dyn KeyStore> {
        None
    }

    /// Lets a claim stand until something becomes claimable for it, where the store answers such claims (`None`: it does
    /// not, or has no room for another). What was claimable before is found by [`claim`](Self::claim) or by
    /// [`Standing::look`].
    fn stand(&self, _claim: Claim) -> Option<Standing> {
        None
    }

    /// Gives up all claims that stand.
    fn dismiss(&self) {}

    /// Refuses a caller that could never be answered: one that holds a transaction which everything else of this store
    /// waits for. To be asked in the caller's own task, before the call is handed to another.
    ///
    /// # Errors
    /// `Invalid`, with what to do instead.
    fn check_caller(&self) -> Result<()> {
        Ok(())
    }

    /// Hints that something became claimable. Missing one costs time, never an event.
    fn wakeups(&self) -> broadcast::Receiver<Wake>;

    /// Says that the caller's own transaction, in which it published, has committed.
    fn wake(&self, queues: BTreeSet<QueueName>);

    /// Its schedules, where it has any.
    fn schedules(&self) -> Option<&dyn crate::schedules::Schedules> {
        None
    }

    /// Stops background work and closes connections. Calling it twice is fine.
    async fn close(&self);
}

/// Which database a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// SQLite, one file on one machine.
    Sqlite,
    /// PostgreSQL, many nodes.
    Postgres,
}

/// What a store decides time by.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The database's own clock.
    #[default]
    Database,
    /// A clock that tests move.
    Manual(ManualClock),
}

impl Clock {
    /// The moment to use instead of the database's, if any.
    #[must_use]
    pub fn now(&self) -> Option<Timestamp> {
        match self {
            Self::Database => None,
            Self::Manual(clock) => Some(clock.now()),
        }
    }
}

/// A clock that tests move by hand.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that stands at this moment (whole microseconds).
    #[must_use]
    pub fn at(start: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(start.as_microsecond())))
    }

    /// Moves it on.
    pub fn advance(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        self.0.fetch_add(micros, Ordering::SeqCst);
    }

    /// Where it stands.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_microsecond(self.0.load(Ordering::SeqCst)).unwrap_or(Timestamp::MAX)
    }
}

/// Settings that both databases share.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The schema (Postgres) or the prefix without its underscore (SQLite) that everything lives under.
    pub namespace: String,
    /// Which numbers entry ids are drawn from; fixed by the first start.
    pub ids: IdSpace,
    /// The largest payload.
    pub payload_limit: PayloadLimit,
    /// Whether to migrate an older schema at start. Without it an older schema, or one that still lacks indexes, is an error.
    pub migrate: bool,
    /// What decides time.
    pub clock: Clock,
    /// How long a write waits for a lock that somebody else holds before it answers `Busy`.
    pub lock_timeout: Duration,
    /// How long a gap in the store's heartbeat counts as an outage during which no lease expired.
    pub outage_after: Duration,
    /// Lanes that one queue has at most: pairs of an event type and a priority. One more is refused.
    pub max_lanes: usize,
    /// How long a list may take; one that takes longer is stopped.
    pub list_timeout: Duration,
    /// Lists that run at once, at most. A few more wait for a turn; the rest are refused as `Busy`.
    pub max_lists: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            namespace: "tidegate".into(),
            ids: IdSpace::default(),
            payload_limit: PayloadLimit::default(),
            migrate: true,
            clock: Clock::Database,
            lock_timeout: Duration::from_secs(5),
            outage_after: Duration::from_secs(5),
            max_lanes: 4096,
            list_timeout: Duration::from_secs(2),
            max_lists: 4,
        }
    }
}

impl StoreOptions {
    /// Checks what can be checked without a database.
    ///
    /// # Errors
    /// When the namespace is not a plain lower-case identifier, or the id space does not fit.
    pub fn check(&self) -> Result<()> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let name = &self.namespace;
        if name.is_empty()
            || name.len() > 40
            || !name.chars().all(plain)
            || !name.starts_with(|c: char| c.is_alphabetic())
        {
            return Err(Error::invalid(format!(
                "{name:?} cannot be a namespace: use 1 to 40 of a-z, 0-9 and _, starting with a letter"
            )));
        }
        IdSpace::new(self.ids.offset, self.ids.step)?;
        Ok(())
    }
}

/// What a publish made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The entry's number.
    pub id: EntryId,
    /// The event's id.
    pub event_id: Tsid,
    /// Whether it is new.
    pub outcome: PublishOutcome,
    /// The moment of publication, in database time.
    pub created_at: Timestamp,
}

/// Whether a publish made something new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishOutcome {
    /// A new entry.
    Created,
    /// The first entry under the same key.
    Duplicate,
    /// The waiting entry under the same key has new contents.
    Replaced,
}

/// Bytes of payloads that one claim takes at most; an event that alone has more goes alone.
pub const MAX_CLAIM_BYTES: usize = 8 << 20;

/// A request for work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// From which queue.
    pub queue: QueueName,
    /// Only these types; all when `None`.
    pub types: Option<Vec<String>>,
    /// How many at most.
    pub max: usize,
    /// For how long.
    pub lease: Duration,
    /// Who asks.
    pub worker: String,
    /// Only entries with any of these tags; all when `None`.
    pub tags: Option<Vec<String>>,
    /// Whether the audit says who picked what, in the same transaction.
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
    /// The attempt this is, from 1.
    pub attempts: u32,
    /// Attempts before it ends with errors.
    pub max_attempts: u32,
    /// How it ends then.
    pub exhausted_as: End,
    /// The lease's token.
    pub token: LeaseToken,
    /// When the lease was taken, in database time.
    pub claimed_at: Timestamp,
    /// When somebody else may take it.
    pub lease_until: Timestamp,
    /// The error of the last attempt, if it left one.
    pub last_error: Option<String>,
    /// Its FIFO group.
    pub group: Option<String>,
    /// When a failed attempt of an event without a policy of its own is tried again, where the queue says so.
    pub queue_retry: Option<Arc<RetryPolicy>>,
    /// The fact.
    pub fact: Fact,
}

/// The immutable event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// The tenant that owns it.
    pub client: Option<Tsid>,
    /// Its type.
    pub event_type: String,
    /// The payload's bytes as they were sent.
    pub payload: Bytes,
    /// The payload's media type.
    pub content_type: Option<String>,
    /// The system it came from.
    pub source: Option<String>,
    /// The thing it is about.
    pub subject: Option<String>,
    /// When it happened, if the producer said so.
    pub time: Option<Timestamp>,
    /// The producer's own id.
    pub external_id: Option<String>,
    /// Links events of one request.
    pub correlation_id: Option<String>,
    /// The event that caused it.
    pub causation_id: Option<String>,
    /// Further attributes, JSON text.
    pub attributes: Option<String>,
    /// When it was published, in database time.
    pub created_at: Timestamp,
    /// What people call it.
    pub title: Option<String>,
    /// What people say about it.
    pub description: Option<String>,
    /// What pull workers choose it by.
    pub tags: Vec<String>,
    /// When a failed attempt is tried again, where the event says so.
    pub retry: Option<RetryPolicy>,
}

/// One entry to be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finalize {
    /// Which.
    pub id: EntryId,
    /// Under which lease; anybody's when `None`.
    pub token: Option<LeaseToken>,
    /// How.
    pub end: End,
    /// What went wrong, JSON text (a list of errors), if anything did.
    pub errors: Option<String>,
    /// What handlers answered, JSON text, if anybody wants it kept.
    pub results: Option<String>,
}

/// What a finalisation found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finalized {
    /// Whether it had ended before, so that nothing was written.
    pub repeated: bool,
    /// How it stands in the log.
    pub end: End,
}

/// One lease to be extended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extend {
    /// Which entry.
    pub id: EntryId,
    /// Under which lease.
    pub token: LeaseToken,
    /// For how long from now.
    pub lease: Duration,
}

/// One lease to be given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requeue {
    /// Which entry.
    pub id: EntryId,
    /// Under which lease.
    pub token: LeaseToken,
    /// When it may be claimed again.
    pub when: RequeueAt,
    /// Whether the attempt counts: it does after a failure, not after a release, a snooze or a shutdown.
    pub counts: bool,
    /// What went wrong, if something did.
    pub error: Option<String>,
}

/// When a returned entry may be claimed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequeueAt {
    /// At once, where it was.
    Now,
    /// At a moment of database time; one that is past means now.
    At(Timestamp),
    /// This long from now, in database time.
    After(Duration),
}

/// An entry as anybody may look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryView {
    /// Its number.
    pub id: EntryId,
    /// The event's id.
    pub event_id: Tsid,
    /// Its queue.
    pub queue: QueueName,
    /// Its generation.
    pub generation: Generation,
    /// Attempts so far.
    pub attempts: u32,
    /// Attempts before it ends with errors.
    pub max_attempts: u32,
    /// Its last token.
    pub token: LeaseToken,
    /// Lower goes first.
    pub priority: i16,
    /// Its FIFO group.
    pub group: Option<String>,
    /// Where it is in its life.
    pub phase: EntryPhase,
    /// The errors it ended with (JSON text), or the error of its last attempt.
    pub error: Option<String>,
    /// What handlers answered, once it ended.
    pub results: Option<String>,
    /// When anything last happened to it.
    pub updated_at: Timestamp,
    /// The fact.
    pub fact: Fact,
}

/// Where an entry is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryPhase {
    /// Can be claimed, from `due` on where one is set.
    Waiting {
        /// When.
        due: Option<Timestamp>,
    },
    /// Behind the head of its group, or just arrived from a caller's own transaction.
    Parked,
    /// Held by a worker.
    Leased {
        /// Who.
        worker: String,
        /// Since when.
        since: Timestamp,
        /// Until when.
        until: Timestamp,
    },
    /// In the log.
    Ended {
        /// How.
        end: End,
        /// When.
        at: Timestamp,
        /// Who ended it, where a worker did.
        worker: Option<String>,
        /// Redriven or discarded since.
        superseded: bool,
    },
}

/// Which dead letters to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetters {
    /// Of which queue.
    pub queue: QueueName,
    /// Only of this type.
    pub event_type: Option<String>,
    /// After this entry.
    pub after: Option<EntryId>,
    /// How many at most.
    pub limit: usize,
}

/// Everything counted in one snapshot: `events = live + ended`, where every event has one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Census {
    /// Facts.
    pub events: u64,
    /// Waiting, delayed or parked entries.
    pub waiting: u64,
    /// Leased entries.
    pub leased: u64,
    /// Log rows that are not superseded by a later generation.
    pub ended: u64,
}

/// What to change of a queue; `None` leaves a setting as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueChange {
    /// Whether it accepts and delivers.
    pub state: Option<QueueState>,
    /// Entries it holds at most (`Some(None)` lifts the limit).
    pub depth_limit: Option<Option<u64>>,
    /// What pull workers get.
    pub settings: SettingsChange,
}

/// What to change of what pull workers get; `None` leaves a setting as it is, `Some(None)` takes it back to its default.
///
/// Stores merge it into what stands, in the transaction that writes it: two changes at once both count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SettingsChange {
    /// Seconds that a lease lasts when its claimer names none.
    pub lease_seconds: Option<Option<u32>>,
    /// Retries of an event that names none.
    pub max_retries: Option<Option<u32>>,
    /// When a failed attempt of an event without a policy of its own is tried again.
    pub retry: Option<Option<RetryPolicy>>,
    /// Whether workers must name their lease when they report.
    pub require_lease: Option<bool>,
}

impl From<QueueSettings> for SettingsChange {
    fn from(all: QueueSettings) -> Self {
        Self {
            lease_seconds: Some(all.lease_seconds),
            max_retries: Some(all.max_retries),
            retry: Some(all.retry),
            require_lease: Some(all.require_lease),
        }
    }
}

impl QueueChange {
    /// The queue as the change leaves it.
    pub(crate) fn apply(self, to: &mut QueueConfig) -> Result<()> {
        if self.depth_limit.flatten().is_some_and(|limit| i64::try_from(limit).is_err()) {
            return Err(Error::invalid("a depth limit must be below 2^63"));
        }
        to.state = self.state.unwrap_or(to.state);
        to.depth_limit = self.depth_limit.unwrap_or(to.depth_limit);
        let (settings, change) = (&mut to.settings, self.settings);
        settings.lease_seconds = change.lease_seconds.unwrap_or(settings.lease_seconds);
        settings.max_retries = change.max_retries.unwrap_or(settings.max_retries);
        settings.require_lease = change.require_lease.unwrap_or(settings.require_lease);
        if let Some(retry) = change.retry {
            settings.retry = retry;
        }
        Ok(())
    }
}

/// Counts entries that claims end.
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

/// A consumer that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    /// Who.
    pub worker: String,
    /// Of which queue.
    pub queue: QueueName,
    /// Of which types, whatever their tags; all when `None`.
    pub types: Option<Vec<String>>,
    /// Of which tags besides.
    pub tags: Vec<WantedTag>,
}

/// A tag that a consumer asks for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WantedTag {
    /// The tag.
    pub tag: String,
    /// Only of this type; of all when `None`.
    pub event_type: Option<String>,
}

/// What sets tags apart in what is stored of a consumer: no type and no tag has it.
const TAG_MARK: char = '\u{1}';

impl WantedTag {
    fn stored(tag: &str, event_type: Option<&str>) -> String {
        match event_type {
            None => format!("{TAG_MARK}{tag}"),
            Some(event_type) => format!("{TAG_MARK}{tag}{TAG_MARK}{event_type}"),
        }
    }
}

impl Consumer {
    /// Checks what can be checked without a database.
    pub(crate) fn check(&self) -> Result<()> {
        check_text("worker", &self.worker)?;
        for event_type in self.types.iter().flatten() {
            check_text("event type", event_type)?;
        }
        for wanted in &self.tags {
            check_text("tag", &wanted.tag)?;
            wanted.event_type.as_ref().map_or(Ok(()), |event_type| check_text("event type", event_type))?;
        }
        Ok(())
    }

    /// What is stored of what it takes, in one list: types, and marked tags. `None` when it takes everything.
    pub(crate) fn wants(&self) -> Option<Vec<String>> {
        let mut wants = self.types.clone()?;
        wants.extend(self.tags.iter().map(|tag| WantedTag::stored(&tag.tag, tag.event_type.as_deref())));
        Some(wants)
    }

    /// What of that list would take an event.
    pub(crate) fn wants_for(event_type: &str, tags: &[String]) -> Vec<String> {
        let mut wants = vec![event_type.to_owned()];
        for tag in tags {
            wants.extend([WantedTag::stored(tag, None), WantedTag::stored(tag, Some(event_type))]);
        }
        wants
    }
}

/// What one round of upkeep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Upkeep {
    /// Entries that became claimable: arrivals sorted in, group heads promoted.
    pub promoted: u64,
    /// Deduplication keys forgotten.
    pub keys_expired: u64,
    /// How long the store had been down, when that was found out now; all leases were moved by it.
    pub outage: Option<Duration>,
    /// Groups that had waiting entries and none to claim, and whose first is claimable now. That never happens by itself:
    /// rows were removed by hand, or by a fault.
    pub groups_mended: u64,
}

/// What a store that can be written to says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Probe {
    /// The length of SQLite's write-ahead log, where there is one.
    pub wal_bytes: Option<u64>,
}

/// A hint that something became claimable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wake {
    /// In these queues.
    Queues(BTreeSet<QueueName>),
    /// Perhaps anywhere (another process wrote, or hints were lost).
    Any,
}

/// A queue has as many lanes as it may.
pub(crate) fn too_many_lanes(queue: &QueueName, lanes: usize) -> Error {
    Error::new(
        crate::error::ErrorKind::Full,
        format!(
            "queue {queue} has {lanes} lanes (pairs of an event type and a priority), its limit (max_lanes): publish with \
             fewer types or priorities, wait until unused lanes are removed, or raise the limit"
        ),
    )
}

/// The queue takes nothing new.
pub(crate) fn draining(queue: &QueueName) -> Error {
    Error::new(crate::error::ErrorKind::Full, format!("queue {} is draining", queue.name()))
}

/// The key of a request was used for another one.
pub(crate) fn other_request(key: &str) -> Error {
    Error::new(
        crate::error::ErrorKind::Conflict,
        format!("idempotency key {key:?} was used for another request: use another key or the same request"),
    )
}

/// The errors an entry ends with when a claim finds its attempts used up.
pub(crate) fn exhausted_errors(max_attempts: u32, last_error: Option<&str>) -> String {
    let abandoned = format!("abandoned: all {max_attempts} attempts were used up without a verdict");
    let errors: Vec<&str> = last_error.into_iter().chain([abandoned.as_str()]).collect();
    serde_json::to_string(&errors).unwrap_or(abandoned)
}

/// The errors an entry ends with when a claim finds that its event is missing.
pub(crate) fn missing_fact_errors(event_id: i64, last_error: Option<&str>) -> String {
    let missing = format!(
        "the event of this entry (id {event_id}) is missing from the table of events, so nobody can be given it: \
         restore that row from a backup and redrive the entry, or discard it"
    );
    let errors: Vec<&str> = last_error.into_iter().chain([missing.as_str()]).collect();
    serde_json::to_string(&errors).unwrap_or(missing)
}
