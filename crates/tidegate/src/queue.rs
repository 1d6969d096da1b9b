//! The queue that applications hold: publishing, claiming, finalising.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::{End, EntryId, LeaseToken, NewEvent, QueueName, Timestamp};
use tidegate_store::{Backend, ByHand, Extend, Finalize, Finalized, Published, QueueChange, Requeue, RequeueAt, Store};
use tracing::{Instrument, Span};

use crate::consumer::{ClaimKey, Consumer};
use crate::delivery::{QueuedEvent, may_end_later, verdict};
use crate::error::{Result, lost};
use crate::options::{Builder, Options, check_lease};
use crate::shared::{Ending, Native, Shared};
use crate::trace;
use crate::wake::delay_of;

/// A durable queue. Clones are cheap handles of the same one.
///
/// Background work ends with the last handle; [`close`](Self::close) ends it in good order.
#[derive(Debug, Clone)]
pub struct EventQueue {
    pub(crate) consumer: Consumer,
    /// Whom the audit names for what is done by hand through this handle.
    actor: Option<Arc<str>>,
}

impl EventQueue {
    /// Opens the database at `address` with default settings: `sqlite:PATH`, a plain path, or `postgres://…`.
    ///
    /// # Errors
    /// `Invalid` for an address that can never work, `Unavailable` when the database cannot be reached, `Schema` when
    /// its schema does not fit.
    pub async fn open(address: impl AsRef<str>) -> Result<Self> {
        Self::builder().open(address).await
    }

    /// Starts with default settings.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Uses any store with default settings.
    ///
    /// # Errors
    /// When the queue cannot be set up in the store.
    pub async fn from_store(store: Arc<dyn Store>) -> Result<Self> {
        Self::builder().with_store(store).await
    }

    pub(crate) async fn start(options: Options, store: Arc<dyn Store>, native: Native) -> Result<Self> {
        make_queue(&*store, &options.queue).await?;
        let key = ClaimKey {
            queue: options.queue.clone(),
            types: None,
            lease: options.lease,
            worker: options.worker.clone(),
            tags: None,
            audit: false,
        };
        let shared = Shared::start(options, store, native);
        Ok(Self::over(&shared, key))
    }

    fn over(shared: &Arc<Shared>, key: ClaimKey) -> Self {
        let consumer = Consumer::new(shared, key);
        // Clones of a handle share its lane from the start.
        consumer.lane();
        Self { consumer, actor: None }
    }

    /// A handle whose cancellations, redrives and resets the audit keeps under this name.
    ///
    /// ```
    /// # async fn example(queue: tidegate::EventQueue, id: tidegate::EntryId) -> tidegate::Result<()> {
    /// queue.acting_as("ann@example.com").cancel(id).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn acting_as(&self, actor: impl AsRef<str>) -> Self {
        Self { consumer: self.consumer.clone(), actor: Some(actor.as_ref().into()) }
    }

    /// What the audit keeps of something done by hand through this handle.
    pub(crate) fn by_hand(&self, id: EntryId, reason: Option<String>) -> ByHand {
        ByHand { id, actor: self.actor.as_deref().map(Into::into), reason }
    }

    /// Another queue in the same database, over the same lanes and connections. It is made if it does not exist.
    ///
    /// # Errors
    /// `Invalid` when the name is not one, else the store's.
    pub async fn named(&self, queue: impl Into<String>) -> Result<Self> {
        self.of(QueueName::new(queue)?).await
    }

    /// The same for a queue that may be a client's.
    ///
    /// # Errors
    /// The store's.
    pub async fn of(&self, queue: QueueName) -> Result<Self> {
        let shared = self.shared();
        make_queue(&*shared.store, &queue).await?;
        let key = ClaimKey { queue, ..self.consumer.key.clone() };
        Ok(Self { actor: self.actor.clone(), ..Self::over(shared, key) })
    }

    /// The queue's name.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.consumer.key.queue
    }

    /// Which database is behind it.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.shared().store.backend()
    }

    /// The store behind it.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared().store
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.consumer.shared
    }

    /// An event that names no queue of its own goes into this one.
    pub(crate) fn address(&self, event: &mut NewEvent) {
        if event.queue == QueueName::default() && self.name() != &event.queue {
            event.queue = self.name().clone();
        }
    }

    /// Publishes an event and waits until it is durable. Concurrent calls share transactions. An event whose queue is
    /// `default` goes into this handle's queue.
    ///
    /// # Errors
    /// `Invalid` (what to change is said), `Conflict` (the deduplication key stands for another event), `Full` (depth
    /// limit, or draining), `Busy` (too much at once), or the store's.
    pub async fn publish(&self, mut event: NewEvent) -> Result<Published> {
        self.address(&mut event);
        let lane = self.shared().lanes.for_publish(std::slice::from_ref(&event));
        let span = trace::publish(&event);
        lane.call(event).instrument(span).await
    }

    /// Publishes events in their order, in transactions of at most 1,000 events and 8 MiB, and answers each. One bad
    /// event never fails its neighbours.
    pub async fn publish_many(&self, mut events: Vec<NewEvent>) -> Vec<Result<Published>> {
        events.iter_mut().for_each(|event| self.address(event));
        // They live as long as the call.
        let _spans: Vec<Span> = events.iter().map(trace::publish).filter(|span| !span.is_none()).collect();
        self.shared().lanes.for_publish(&events).call_many(events).await
    }

    /// A handle that claims, to be narrowed to types, or given another lease or name.
    #[must_use]
    pub fn consumer(&self) -> Consumer {
        self.consumer.clone()
    }

    /// Claims the next entry, or none, without waiting for one.
    ///
    /// # Errors
    /// The store's.
    pub async fn poll(&self) -> Result<Option<QueuedEvent>> {
        self.consumer.poll().await
    }

    /// Claims up to `count` entries without waiting for them.
    ///
    /// # Errors
    /// The store's.
    pub async fn poll_many(&self, count: usize) -> Result<Vec<QueuedEvent>> {
        self.consumer.poll_many(count).await
    }

    /// Claims the next entry, waiting up to `timeout` for one.
    ///
    /// # Errors
    /// The store's.
    pub async fn next(&self, timeout: Duration) -> Result<Option<QueuedEvent>> {
        self.consumer.next(timeout).await
    }

    /// Claims up to `count` entries, waiting up to `timeout` for the first.
    ///
    /// # Errors
    /// The store's.
    pub async fn wait_many(&self, count: usize, timeout: Duration) -> Result<Vec<QueuedEvent>> {
        self.consumer.wait_many(count, timeout).await
    }

    /// Ends an entry by its bare id, whoever holds it: COMPLETED, or COMPLETED_WITH_ERRORS when errors are given. One
    /// that has ended stays as it ended.
    ///
    /// # Errors
    /// `NotFound` when there is no such entry.
    pub async fn finalize<E: Into<String>>(
        &self,
        id: EntryId,
        errors: impl IntoIterator<Item = E>,
    ) -> Result<Finalized> {
        let (end, errors) = verdict(errors);
        self.finish(Finalize { id, token: None, end, errors, results: None }).await
    }

    /// Ends an entry in any way, under a lease or by bare id.
    ///
    /// # Errors
    /// `Fenced` when a lease is named that is not held, `NotFound` when there is no such entry.
    pub async fn finish(&self, item: Finalize) -> Result<Finalized> {
        self.shared().lanes.finish.call(Ending { item, queue: self.name().clone() }).await
    }

    /// Ends a batch as COMPLETED, with as little work per entry as can be, and answers each in order. Like single
    /// verdicts, it outlasts a short outage. If the caller goes away meanwhile, what was handed over is still ended and
    /// the rest released.
    pub async fn finalize_many(&self, events: Vec<QueuedEvent>) -> Vec<Result<Finalized>> {
        self.end_many(events.into_iter().map(|event| (completed(&event), event)).collect()).await
    }

    /// Ends a batch, each in its own way, and answers each in order.
    pub(crate) async fn end_many(&self, ends: Vec<(Finalize, QueuedEvent)>) -> Vec<Result<Finalized>> {
        let most = self.shared().options.limits.batch_items.max(1);
        let mut answers = Vec::with_capacity(ends.len());
        let mut rest = ends;
        while !rest.is_empty() {
            let tail = if rest.len() > most { rest.split_off(most) } else { Vec::new() };
            let mut batch = std::mem::replace(&mut rest, tail);
            answers.extend(self.finish_batch(&mut batch).await);
            self.count_finished(&batch);
        }
        answers
    }

    async fn finish_batch(&self, batch: &mut [(Finalize, QueuedEvent)]) -> Vec<Result<Finalized>> {
        let mut answers = self.try_finish(batch.iter_mut().collect()).await;
        let Some(mut pause) = batch.first().map(|(_, event)| event.patience()) else { return answers };
        loop {
            let failed = |answer: &Result<Finalized>| answer.as_ref().is_err_and(may_end_later);
            if !answers.iter().any(failed) || self.shared().is_closed() || !pause.again().await {
                return answers;
            }
            let (open, ends): (Vec<_>, Vec<_>) =
                answers.iter_mut().zip(batch.iter_mut()).filter(|(answer, _)| failed(answer)).unzip();
            for (answer, again) in open.into_iter().zip(self.try_finish(ends).await) {
                *answer = again;
            }
        }
    }

    /// One flush. An entry whose end is still open afterwards is ours to release again.
    async fn try_finish(&self, mut ends: Vec<&mut (Finalize, QueuedEvent)>) -> Vec<Result<Finalized>> {
        let queue = |event: &QueuedEvent| event.queue().unwrap_or_else(|| self.name()).clone();
        let items = ends.iter().map(|(item, event)| Ending { item: item.clone(), queue: queue(event) }).collect();
        let ticket = match self.shared().lanes.finish.submit_many(items).await {
            Ok(ticket) => ticket,
            Err(error) => return ends.iter().map(|_| Err(error.clone())).collect(),
        };
        let origins: Vec<_> = ends.iter_mut().map(|(_, event)| event.disarm()).collect();
        let answered = ticket.answers().await;
        let answers = answered.unwrap_or_else(|error| ends.iter().map(|_| Err(error.clone())).collect());
        for ((end, origin), answer) in ends.into_iter().zip(origins).zip(&answers) {
            if answer.as_ref().is_err_and(may_end_later) {
                end.1.arm(origin);
            }
        }
        answers
    }

    fn count_finished(&self, batch: &[(Finalize, QueuedEvent)]) {
        let shared = self.shared();
        let now = Instant::now();
        let mut grouped = false;
        for (_, event) in batch {
            shared.meters.claim_to_finish.record(now.duration_since(event.claimed_since()).as_secs_f64());
            grouped |= event.group.is_some();
        }
        if grouped {
            shared.bells.ring(self.name()); // the next of their groups
        }
    }

    /// Moves the end of a lease, named by id and token, to `lease` from now.
    ///
    /// # Errors
    /// `Fenced` when the lease is not held.
    pub async fn extend(&self, id: EntryId, token: LeaseToken, lease: Duration) -> Result<Timestamp> {
        check_lease(lease)?;
        self.shared().lanes.extend.call(Extend { id, token, lease }).await
    }

    /// Gives a lease back, named by id and token. The attempt does not count.
    ///
    /// # Errors
    /// `Fenced` when the lease is not held.
    pub async fn release(&self, id: EntryId, token: LeaseToken) -> Result<()> {
        self.requeue(Requeue { id, token, when: RequeueAt::Now, counts: false, error: None }).await
    }

    /// Gives a lease back for later. The attempt does not count.
    ///
    /// # Errors
    /// `Fenced` when the lease is not held.
    pub async fn snooze(&self, id: EntryId, token: LeaseToken, delay: Duration) -> Result<()> {
        self.requeue(Requeue { id, token, when: RequeueAt::After(delay), counts: false, error: None }).await
    }

    /// Gives a lease back in any way.
    ///
    /// # Errors
    /// `Fenced` when the lease is not held.
    pub async fn requeue(&self, item: Requeue) -> Result<()> {
        let shared = self.shared();
        let (when, counts) = (item.when, item.counts);
        shared.lanes.requeue.call(item).await?;
        if counts {
            shared.meters.retried.increment(1)
        } else {
            shared.meters.released.increment(1)
        }
        match delay_of(when) {
            None => shared.bells.ring(self.name()),
            Some(delay) => shared.bells.ring_after(self.name(), delay),
        }
        Ok(())
    }

    /// Stops claiming, flushes what was handed in and what was dropped, ends background work and closes the store.
    /// Entries that callers still hold keep their lease; it can only run out then. Calling it twice is fine.
    pub async fn close(&self) {
        let shared = Arc::clone(self.shared());
        // In a task of its own, so that giving up on it halfway leaves nothing half closed.
        let closing = tokio::spawn(async move { shared.close().await });
        if closing.await.is_err() {
            tracing::error!(error = %lost(), "closing the queue did not come to its end");
        }
    }
}

/// Makes a queue unless it exists; then nothing is written.
async fn make_queue(store: &dyn Store, queue: &QueueName) -> Result<()> {
    if store.queue(queue).await?.is_none() {
        store.put_queue(queue, QueueChange::default()).await?;
    }
    Ok(())
}

fn completed(event: &QueuedEvent) -> Finalize {
    Finalize { id: event.id, token: Some(event.token), end: End::Completed, errors: None, results: None }
}
