//! Helpers that cases share: a manual clock, single-item calls, waiting for a condition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Depth, End, EntryId, NewEvent, QueueName, Timestamp};

use super::{CallerTx, Fixture};
use crate::api::*;
use crate::error::{ErrorKind, Result};
use crate::values::*;

/// The lease of most claims in the cases.
pub(super) const LEASE: Duration = Duration::from_secs(60);
/// How long a case waits for something that must happen; reached only when the store is broken.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) type AnyStore = Arc<dyn Store>;

/// A case's database and clock.
#[derive(Debug, Clone)]
pub struct Scene {
    pub(super) fixture: Arc<dyn Fixture>,
    clock: ManualClock,
}

impl Scene {
    /// A scene on the fixture's database, with a manual clock.
    #[must_use]
    pub fn new(fixture: Arc<dyn Fixture>) -> Self {
        let start = Timestamp::from_second(1_780_000_000).expect("a valid moment");
        Self { fixture, clock: ManualClock::at(start) }
    }

    pub(super) fn is_sqlite(&self) -> bool {
        self.fixture.backend() == Backend::Sqlite
    }

    /// Options with the manual clock.
    pub(super) fn options(&self) -> StoreOptions {
        StoreOptions { clock: Clock::Manual(self.clock.clone()), ..StoreOptions::default() }
    }

    /// Opens the store on the manual clock.
    pub(super) async fn open(&self) -> AnyStore {
        self.open_with(self.options()).await
    }

    /// Opens the store on the database's own clock.
    pub(super) async fn open_on_database_time(&self) -> AnyStore {
        self.open_with(StoreOptions::default()).await
    }

    pub(super) async fn open_with(&self, options: StoreOptions) -> AnyStore {
        self.fixture.open(options).await.expect("the store opens")
    }

    pub(super) async fn begin(&self) -> Box<dyn CallerTx> {
        self.fixture.begin().await
    }

    /// Waits until some transaction waits for a lock; returns at once where the database cannot tell.
    pub(super) async fn until_blocked(&self) {
        eventually("a transaction waits", async || self.fixture.somebody_waits().await.unwrap_or(true)).await;
    }

    /// Moves the manual clock forward.
    pub(super) fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The moment `seconds` after the manual clock's now.
    pub(super) fn moment(&self, seconds: u64) -> Timestamp {
        tidegate_core::entry::later(self.now(), Duration::from_secs(seconds))
    }
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn default_queue() -> QueueName {
    QueueName::default()
}

pub(super) fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a queue's name")
}

/// An event of this type with a small payload.
pub(super) fn event(event_type: &str) -> NewEvent {
    NewEvent::new(event_type, "{}")
}

/// `count` events of type `t`, numbered in their payloads.
pub(super) fn events(count: usize) -> Vec<NewEvent> {
    (0..count).map(|number| NewEvent::new("t", number.to_string())).collect()
}

/// Publishes and returns the ids; every item must succeed.
pub(super) async fn publish(store: &AnyStore, events: Vec<NewEvent>) -> Vec<EntryId> {
    let answers = store.publish(events).await.expect("the batch is published");
    answers.into_iter().map(|answer| answer.expect("the event is published").id).collect()
}

pub(super) async fn publish_one(store: &AnyStore, event: NewEvent) -> EntryId {
    publish(store, vec![event]).await[0]
}

/// Publishes one event and returns the store's answer.
pub(super) async fn try_publish(store: &AnyStore, event: NewEvent) -> Result<Published> {
    only(store.publish(vec![event]).await)
}

/// The claim that most cases make: all types of the queue `default`, for [`LEASE`].
pub(super) fn want(max: usize) -> Claim {
    Claim {
        queue: default_queue(),
        types: None,
        max,
        lease: LEASE,
        worker: "w".into(),
        quotas: BTreeMap::new(),
        tags: None,
        audit: false,
    }
}

pub(super) fn want_types(max: usize, types: &[&str]) -> Claim {
    Claim { types: Some(types.iter().map(|name| (*name).to_owned()).collect()), ..want(max) }
}

pub(super) async fn claim(store: &AnyStore, max: usize) -> Vec<Claimed> {
    store.claim(want(max)).await.expect("the claim is answered")
}

/// Claims the one entry that must be claimable.
pub(super) async fn claim_one(store: &AnyStore) -> Claimed {
    let mut claimed = claim(store, 1).await;
    assert_eq!(claimed.len(), 1, "an entry is claimable");
    claimed.remove(0)
}

pub(super) async fn claim_ids(store: &AnyStore, max: usize) -> Vec<EntryId> {
    ids(&claim(store, max).await)
}

pub(super) fn ids(claimed: &[Claimed]) -> Vec<EntryId> {
    claimed.iter().map(|claimed| claimed.id).collect()
}

/// Ends a claimed entry under its token.
pub(super) fn end(claimed: &Claimed, end: End) -> Finalize {
    Finalize { id: claimed.id, token: Some(claimed.token), end, errors: None, results: None, attempt: None }
}

/// Ends an entry by its id, without a token.
pub(super) fn end_by_id(id: EntryId, end: End) -> Finalize {
    Finalize { id, token: None, end, errors: None, results: None, attempt: None }
}

pub(super) async fn finalize(store: &AnyStore, item: Finalize) -> Result<Finalized> {
    only(store.finalize(vec![item]).await)
}

pub(super) async fn complete(store: &AnyStore, claimed: &Claimed) {
    let finalized = finalize(store, end(claimed, End::Completed)).await.expect("the entry ends");
    assert_eq!(finalized, Finalized { repeated: false, end: End::Completed });
}

/// Releases a lease: the entry is claimable at once, and the attempt does not count.
pub(super) fn release(claimed: &Claimed) -> Requeue {
    Requeue {
        id: claimed.id,
        token: claimed.token,
        when: RequeueAt::Now,
        counts: false,
        aside: false,
        error: None,
        attempt: None,
    }
}

/// Gives a lease back after a failed attempt, which counts.
pub(super) fn retry(claimed: &Claimed, when: RequeueAt) -> Requeue {
    Requeue {
        id: claimed.id,
        token: claimed.token,
        when,
        counts: true,
        aside: false,
        error: Some("it failed".into()),
        attempt: None,
    }
}

pub(super) async fn requeue(store: &AnyStore, item: Requeue) -> Result<()> {
    only(store.requeue(vec![item]).await)
}

pub(super) async fn extend(store: &AnyStore, claimed: &Claimed, lease: Duration) -> Result<Timestamp> {
    only(store.extend(vec![Extend { id: claimed.id, token: claimed.token, lease }]).await)
}

pub(super) async fn cancel(store: &AnyStore, id: EntryId) -> Result<()> {
    only(store.cancel(vec![id]).await)
}

pub(super) async fn redrive(store: &AnyStore, id: EntryId) -> Result<tidegate_core::Generation> {
    only(store.redrive(vec![id]).await)
}

pub(super) async fn discard(store: &AnyStore, id: EntryId) -> Result<()> {
    only(store.discard(vec![id]).await)
}

/// The answer to a batch of one.
pub(super) fn only<T: std::fmt::Debug>(answers: Result<Batch<T>>) -> Result<T> {
    let mut answers = answers.expect("the batch is answered");
    assert_eq!(answers.len(), 1, "one answer per item: {answers:?}");
    answers.remove(0)
}

/// The class of the error of a call that must have been refused.
pub(super) fn kind<T: std::fmt::Debug>(answer: Result<T>) -> ErrorKind {
    answer.expect_err("the call is refused").kind()
}

/// `None` where an item succeeded, else the class of its error.
pub(super) fn kinds<T>(answers: &[Result<T>]) -> Vec<Option<ErrorKind>> {
    answers.iter().map(|answer| answer.as_ref().err().map(crate::Error::kind)).collect()
}

pub(super) async fn view(store: &AnyStore, id: EntryId) -> EntryView {
    let mut views = store.entries(vec![id]).await.expect("entries are shown");
    views.remove(0).unwrap_or_else(|| panic!("there is no entry {id}"))
}

pub(super) async fn depth(store: &AnyStore) -> Depth {
    store.depth(&default_queue()).await.expect("the depth is counted")
}

/// How an entry ended; `None` while it is live.
pub(super) fn ended(view: &EntryView) -> Option<End> {
    match view.phase {
        EntryPhase::Ended { end, .. } => Some(end),
        _ => None,
    }
}

/// Counts everything, and checks what must hold at any moment where all facts were published: each has one entry, which
/// is waiting, leased or ended.
pub(super) async fn census(store: &AnyStore) -> Census {
    let census = store.census().await.expect("everything is counted");
    assert_eq!(census.events, census.entries(), "{census:?}");
    census
}

pub(super) async fn dead_letters(store: &AnyStore) -> Vec<EntryId> {
    let query = DeadLetters { queue: default_queue(), event_type: None, after: None, limit: 1000 };
    store.dead_letters(query).await.expect("dead letters are listed").iter().map(|view| view.id).collect()
}

/// Claims until `count` entries have come, with upkeep after each empty claim: arrivals and late commits take a while.
pub(super) async fn claim_until(store: &AnyStore, count: usize) -> Vec<Claimed> {
    let mut taken = Vec::new();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while taken.len() < count {
        assert!(tokio::time::Instant::now() < deadline, "only {} of {count} entries came", taken.len());
        let came = claim(store, count - taken.len()).await;
        if came.is_empty() {
            store.maintain().await.expect("upkeep runs");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        taken.extend(came);
    }
    taken
}

/// Waits until a condition holds.
pub(super) async fn eventually<F, Answer>(what: &str, mut condition: F)
where
    F: FnMut() -> Answer,
    Answer: Future<Output = bool>,
{
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
