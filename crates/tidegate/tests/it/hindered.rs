//! A real store whose verbs a test can fail and hold up, before they happen or before they are answered.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tidegate::*;
use tidegate_store::{
    Batch, ByHand, Census, Claim, Consumer, DeadLetters, Extend, HandlerStates, QueueChange, Upkeep, Wake, WorkStore,
};
use tokio::sync::{Semaphore, broadcast};

/// What a verb does to whoever calls it.
#[derive(Debug, Clone, Default)]
enum Hindrance {
    #[default]
    None,
    Fails,
    /// Each call waits for a permit before it happens.
    Waits(Arc<Semaphore>),
    /// Each call happens, and waits for a permit before it is answered.
    AnswersLate(Arc<Semaphore>),
}

/// One verb.
#[derive(Debug, Default)]
pub(crate) struct Verb {
    hindrance: Mutex<Hindrance>,
    /// Calls so far.
    pub(crate) calls: AtomicUsize,
    /// Calls that happened.
    pub(crate) done: AtomicUsize,
    running: AtomicUsize,
    /// Most calls at once.
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

    /// From now on calls wait for permits before they happen.
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

/// The store of another queue, with hindrances of its own.
#[derive(Debug)]
pub(crate) struct Hindered {
    inner: Arc<dyn Store>,
    pub(crate) claim: Verb,
    pub(crate) extend: Verb,
    pub(crate) finalize: Verb,
    pub(crate) requeue: Verb,
}

impl Hindered {
    /// A second queue over the store of another, for what goes wrong in only one process.
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
impl Store for Hindered {
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

    async fn cancel_by_hand(&self, items: Vec<ByHand>) -> Result<Batch<()>> {
        self.inner.cancel_by_hand(items).await
    }

    async fn redrive_by_hand(&self, items: Vec<ByHand>) -> Result<Batch<Generation>> {
        self.inner.redrive_by_hand(items).await
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

    async fn consumers_seen(&self, consumers: Vec<Consumer>) -> Result<Batch<()>> {
        self.inner.consumers_seen(consumers).await
    }

    async fn maintain(&self) -> Result<Upkeep> {
        self.inner.maintain().await
    }

    fn handler_states(&self) -> Option<&dyn HandlerStates> {
        self.inner.handler_states()
    }

    fn work(&self) -> Option<&dyn WorkStore> {
        self.inner.work()
    }

    fn wakeups(&self) -> broadcast::Receiver<Wake> {
        self.inner.wakeups()
    }

    fn wake(&self, queues: BTreeSet<QueueName>) {
        self.inner.wake(queues);
    }

    /// The store is the other queue's to close.
    async fn close(&self) {}
}
