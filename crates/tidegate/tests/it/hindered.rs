//! A real store whose verbs a test can make fail, or hold back before they run or before they answer.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tidegate::*;
use tidegate_store::*;
use tokio::sync::{Semaphore, broadcast};

use crate::other_subjects::{other_subjects, pass_on};

/// What happens to calls of a verb.
#[derive(Debug, Clone, Default)]
enum Hindrance {
    #[default]
    None,
    Fails,
    /// Each call waits for a permit before it runs.
    Waits(Arc<Semaphore>),
    /// Each call runs, and waits for a permit before it answers.
    AnswersLate(Arc<Semaphore>),
}

/// One verb: its hindrance and its counters.
#[derive(Debug, Default)]
pub(crate) struct Verb {
    hindrance: Mutex<Hindrance>,
    /// Calls so far.
    pub(crate) calls: AtomicUsize,
    /// Calls that have run or were made to fail.
    pub(crate) done: AtomicUsize,
    running: AtomicUsize,
    /// The most calls at once so far.
    pub(crate) most: AtomicUsize,
}

impl Verb {
    fn set(&self, hindrance: Hindrance) {
        *self.hindrance.lock().unwrap() = hindrance;
    }

    /// From now on it works.
    pub(crate) fn work(&self) {
        self.set(Hindrance::None);
    }

    /// From now on it fails.
    pub(crate) fn fail(&self) {
        self.set(Hindrance::Fails);
    }

    /// From now on calls wait for permits before they run.
    pub(crate) fn hold(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        self.set(Hindrance::Waits(Arc::clone(&gate)));
        gate
    }

    /// From now on answers wait for permits.
    pub(crate) fn hold_answers(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        self.set(Hindrance::AnswersLate(Arc::clone(&gate)));
        gate
    }

    async fn call<T>(&self, real: impl Future<Output = Result<T>>) -> Result<T> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(self.running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let hindrance = self.hindrance.lock().unwrap().clone();
        if let Hindrance::Waits(gate) = &hindrance {
            gate.acquire().await.unwrap().forget();
        }
        let answer = match hindrance {
            Hindrance::Fails => Err(Error::new(ErrorKind::Unavailable, "failed by the test")),
            _ => real.await,
        };
        self.done.fetch_add(1, Ordering::SeqCst);
        if let Hindrance::AnswersLate(gate) = &hindrance {
            gate.acquire().await.unwrap().forget();
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
        answer
    }
}

/// The store of another queue, with four verbs that can be hindered.
#[derive(Debug)]
pub(crate) struct Hindered {
    inner: Arc<dyn Store>,
    pub(crate) claim: Verb,
    pub(crate) extend: Verb,
    pub(crate) finalize: Verb,
    pub(crate) requeue: Verb,
}

impl Hindered {
    /// Opens a second queue over the store of `queue`, for failures that only one process sees.
    pub(crate) async fn open(queue: &EventQueue, change: impl FnOnce(Builder) -> Builder) -> (Arc<Self>, EventQueue) {
        let store = Arc::new(Self {
            inner: Arc::clone(queue.store()),
            claim: Verb::default(),
            extend: Verb::default(),
            finalize: Verb::default(),
            requeue: Verb::default(),
        });
        let builder = EventQueue::builder().poll_interval(Duration::from_secs(3600)).worker("hindered");
        let hindered = change(builder).with_store(Arc::clone(&store) as Arc<dyn Store>).await.unwrap();
        (store, hindered)
    }
}

#[async_trait]
impl tidegate_store::Queue for Hindered {
    fn backend(&self) -> Backend {
        self.inner.backend()
    }

    async fn publish(&self, events: Vec<NewEvent>) -> Result<Batch<Published>> {
        self.inner.publish(events).await
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>> {
        self.claim.call(self.inner.claim(claim)).await
    }

    async fn finalize(&self, items: Vec<Finalize>) -> Result<Batch<Finalized>> {
        self.finalize.call(self.inner.finalize(items)).await
    }

    async fn extend(&self, items: Vec<Extend>) -> Result<Batch<Timestamp>> {
        self.extend.call(self.inner.extend(items)).await
    }

    async fn requeue(&self, items: Vec<Requeue>) -> Result<Batch<()>> {
        self.requeue.call(self.inner.requeue(items)).await
    }

    fn wakeups(&self) -> broadcast::Receiver<Wake> {
        self.inner.wakeups()
    }

    fn wake(&self, queues: BTreeSet<QueueName>) {
        self.inner.wake(queues);
    }

    /// The other queue closes the store.
    async fn close(&self) {}
}

#[async_trait]
impl tidegate_store::Entries for Hindered {
    async fn queues_of(&self, ids: Vec<EntryId>) -> Result<Vec<Option<QueueName>>> {
        self.inner.queues_of(ids).await
    }

    async fn event_of(&self, id: EntryId) -> Result<Option<Tsid>> {
        self.inner.event_of(id).await
    }

    async fn list(&self, query: ListQuery) -> Result<Page> {
        self.inner.list(query).await
    }

    async fn cancel_manually(&self, items: Vec<ManualAction>) -> Result<Batch<()>> {
        self.inner.cancel_manually(items).await
    }

    async fn redrive_manually(&self, items: Vec<ManualAction>) -> Result<Batch<Generation>> {
        self.inner.redrive_manually(items).await
    }

    async fn discard(&self, ids: Vec<EntryId>) -> Result<Batch<()>> {
        self.inner.discard(ids).await
    }

    async fn entries(&self, ids: Vec<EntryId>) -> Result<Vec<Option<EntryView>>> {
        self.inner.entries(ids).await
    }

    async fn dead_letters(&self, query: DeadLetters) -> Result<Vec<EntryView>> {
        self.inner.dead_letters(query).await
    }

    async fn why(&self, id: EntryId) -> Result<Why> {
        self.inner.why(id).await
    }
}

#[async_trait]
impl tidegate_store::Queues for Hindered {
    async fn claimable(&self, queue: &QueueName, tags: Vec<String>) -> Result<Vec<String>> {
        self.inner.claimable(queue, tags).await
    }

    async fn workers_page(&self, query: WorkersQuery) -> Result<WorkersPage> {
        self.inner.workers_page(query).await
    }

    async fn depth(&self, queue: &QueueName) -> Result<Depth> {
        self.inner.depth(queue).await
    }

    async fn census(&self) -> Result<Census> {
        self.inner.census().await
    }

    async fn queues(&self) -> Result<Vec<QueueConfig>> {
        self.inner.queues().await
    }

    async fn put_queue(&self, name: &QueueName, change: QueueChange) -> Result<QueueConfig> {
        self.inner.put_queue(name, change).await
    }

    async fn consumers_seen(&self, consumers: Vec<LiveConsumer>) -> Result<Batch<()>> {
        self.inner.consumers_seen(consumers).await
    }
}

#[async_trait]
impl tidegate_store::Maintenance for Hindered {
    async fn retain(&self, retention: Retention) -> Result<Retained> {
        self.inner.retain(retention).await
    }

    async fn maintain(&self) -> Result<Upkeep> {
        self.inner.maintain().await
    }
}

pass_on! { Hindered, HandlerStates, { }
    record_handled(items: Vec<HandlerState>) -> Batch<()>;
    handled(ids: Vec<EntryId>) -> Vec<HandlerHistory>;
    forget_handled(limit: usize) -> u64;
}
other_subjects!(pass_on, Hindered);

impl tidegate_store::Families for Hindered {
    fn family(&self, family: tidegate_store::Family) -> Arc<dyn Store> {
        self.inner.family(family)
    }
}
