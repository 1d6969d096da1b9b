//! Looking after a queue: states, depth, dead letters, reasons.

use std::time::Duration;

use tidegate_core::{Depth, EntryId, Generation, QueueConfig, QueueName, QueueState, Why};
use tidegate_store::{DeadLetters, EntryView, ErrorKind, QueueChange};

use crate::error::{Error, Result};
use crate::queue::EventQueue;

/// Dead letters looked at in one step.
const PAGE: usize = 100;
/// How often a draining queue is looked at.
const DRAIN_LOOK: Duration = Duration::from_millis(100);

/// Which dead letters to redrive or discard, and how fast.
///
/// ```
/// # async fn example(queue: tidegate::EventQueue) -> tidegate::Result<()> {
/// use tidegate::DeadLetterFilter;
/// let redriven = queue.redrive_all(DeadLetterFilter::new().event_type("mail.wanted").per_second(50)).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetterFilter {
    /// Only of this type.
    pub event_type: Option<String>,
    /// Only those whose errors contain this text.
    pub error_contains: Option<String>,
    /// Only entries after this one.
    pub after: Option<EntryId>,
    /// At most this many.
    pub limit: usize,
    /// At most this many per second.
    pub per_second: u32,
}

impl Default for DeadLetterFilter {
    fn default() -> Self {
        Self { event_type: None, error_contains: None, after: None, limit: usize::MAX, per_second: 1_000 }
    }
}

impl DeadLetterFilter {
    /// All of them, 1,000 per second.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only of this type.
    #[must_use]
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// Only those whose errors contain this text.
    #[must_use]
    pub fn error_contains(mut self, text: impl Into<String>) -> Self {
        self.error_contains = Some(text.into());
        self
    }

    /// Only entries after this one.
    #[must_use]
    pub fn after(mut self, id: EntryId) -> Self {
        self.after = Some(id);
        self
    }

    /// At most this many.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// At most this many per second.
    #[must_use]
    pub fn per_second(mut self, rate: u32) -> Self {
        self.per_second = rate;
        self
    }

    fn takes(&self, entry: &EntryView) -> bool {
        let Some(text) = &self.error_contains else { return true };
        entry.error.as_ref().is_some_and(|error| error.contains(text.as_str()))
    }
}

impl EventQueue {
    async fn change(&self, change: QueueChange) -> Result<QueueConfig> {
        self.shared().store.put_queue(self.name(), change).await
    }

    async fn set_state(&self, state: QueueState) -> Result<QueueConfig> {
        self.change(QueueChange { state: Some(state), ..QueueChange::default() }).await
    }

    /// Stops delivery; publishes are still accepted.
    ///
    /// # Errors
    /// The store's.
    pub async fn pause(&self) -> Result<QueueConfig> {
        self.set_state(QueueState::Paused).await
    }

    /// Accepts and delivers again.
    ///
    /// # Errors
    /// The store's.
    pub async fn resume(&self) -> Result<QueueConfig> {
        let config = self.set_state(QueueState::Active).await?;
        crate::shared::wake(self.shared(), [self.name().clone()].into());
        Ok(config)
    }

    /// Refuses new events and delivers the rest; [`drained`](Self::drained) waits for the end of it.
    ///
    /// # Errors
    /// The store's.
    pub async fn drain(&self) -> Result<QueueConfig> {
        self.set_state(QueueState::Draining).await
    }

    /// Waits until the queue holds nothing, up to `timeout`; says whether it does.
    ///
    /// # Errors
    /// The store's.
    pub async fn drained(&self, timeout: Duration) -> Result<bool> {
        let started = tokio::time::Instant::now();
        loop {
            if self.depth().await?.total() == 0 {
                return Ok(true);
            }
            if started.elapsed() >= timeout {
                return Ok(false);
            }
            tokio::time::sleep(DRAIN_LOOK.min(timeout.saturating_sub(started.elapsed()))).await;
        }
    }

    /// What the queue holds.
    ///
    /// # Errors
    /// The store's.
    pub async fn depth(&self) -> Result<Depth> {
        self.shared().store.depth(self.name()).await
    }

    /// Refuses publishes beyond this many entries, or lifts the limit.
    ///
    /// # Errors
    /// The store's.
    pub async fn set_depth_limit(&self, limit: Option<u64>) -> Result<QueueConfig> {
        self.change(QueueChange { depth_limit: Some(limit), ..QueueChange::default() }).await
    }

    /// The queue's settings.
    ///
    /// # Errors
    /// `NotFound` when the queue was removed, else the store's.
    pub async fn config(&self) -> Result<QueueConfig> {
        let found = self.config_of(self.name()).await?;
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no queue {}", self.name())))
    }

    /// The settings of any queue of the database; `None` when there is no such queue.
    ///
    /// # Errors
    /// The store's.
    pub async fn config_of(&self, queue: &QueueName) -> Result<Option<QueueConfig>> {
        self.shared().store.queue(queue).await
    }

    /// All queues of the database.
    ///
    /// # Errors
    /// The store's.
    pub async fn queues(&self) -> Result<Vec<QueueConfig>> {
        self.shared().store.queues().await
    }

    /// Removes a projection that is no longer wanted, with all its versions and documents, whichever process made it: it holds
    /// no row of the log back any more. False when there is none of that name. A process that still reads for it is fenced;
    /// one that starts it again starts it anew, from the oldest row of the log.
    ///
    /// # Errors
    /// `Invalid` when this store keeps no projections, else the store's.
    pub async fn remove_projection(&self, name: &str) -> Result<bool> {
        let projections = self.shared().store.projections();
        let projections = projections.ok_or_else(|| Error::invalid("this store keeps no projections"))?;
        let removed = projections.remove(name).await?;
        while projections.sweep(name).await? {}
        Ok(removed)
    }

    /// Ends an entry as CANCELLED, whoever holds it.
    ///
    /// # Errors
    /// `AlreadyEnded`, `NotFound`.
    pub async fn cancel(&self, id: EntryId) -> Result<()> {
        self.shared().lanes.cancel.call(self.by_hand(id, None)).await?;
        let queue = self.queue_of(id).await;
        self.shared().meters.ended(&queue, tidegate_core::End::Cancelled, 1);
        self.shared().bells.ring(&queue); // perhaps the next of its group
        Ok(())
    }

    /// The queue of an entry, as far as that can be found out: this handle's otherwise.
    async fn queue_of(&self, id: EntryId) -> QueueName {
        let found = match self.store().work() {
            Some(work) => work.queues_of(vec![id]).await.ok().and_then(|queues| queues.into_iter().next().flatten()),
            None => None,
        };
        found.unwrap_or_else(|| self.name().clone())
    }

    /// Why an entry is not running.
    ///
    /// # Errors
    /// `NotFound` when there is no such entry.
    pub async fn why(&self, id: EntryId) -> Result<Why> {
        let shared = self.shared();
        match shared.store.why(id).await? {
            // A worker that has just polled for the first time is told to the store by upkeep, which may be about to.
            Why::NoLiveConsumer { .. } => {
                crate::upkeep::announce(shared).await?;
                shared.store.why(id).await
            }
            why => Ok(why),
        }
    }

    /// One entry with its event, live or ended.
    ///
    /// # Errors
    /// The store's.
    pub async fn entry(&self, id: EntryId) -> Result<Option<EntryView>> {
        Ok(self.entries(vec![id]).await?.pop().flatten())
    }

    /// Entries with their events, live or ended; `None` where there is none.
    ///
    /// # Errors
    /// The store's.
    pub async fn entries(&self, ids: Vec<EntryId>) -> Result<Vec<Option<EntryView>>> {
        self.shared().store.entries(ids).await
    }

    /// Dead letters of this queue, oldest entry first: up to `limit` after `after`.
    ///
    /// # Errors
    /// The store's.
    pub async fn dead_letters(&self, after: Option<EntryId>, limit: usize) -> Result<Vec<EntryView>> {
        let query = DeadLetters { queue: self.name().clone(), event_type: None, after, limit };
        self.shared().store.dead_letters(query).await
    }

    /// Starts a dead letter over, as a new generation.
    ///
    /// # Errors
    /// `Conflict` when it is not a dead letter, `NotFound` when there is no such entry.
    pub async fn redrive(&self, id: EntryId) -> Result<Generation> {
        let answer = one(self.shared().store.redrive_by_hand(vec![self.by_hand(id, None)]).await?, id)?;
        self.shared().bells.ring(self.name());
        Ok(answer)
    }

    /// Takes a dead letter off the list without redriving it.
    ///
    /// # Errors
    /// `Conflict` when it is not a dead letter, `NotFound` when there is no such entry.
    pub async fn discard(&self, id: EntryId) -> Result<()> {
        one(self.shared().store.discard(vec![id]).await?, id)
    }

    /// Starts over all dead letters that the filter takes, no faster than it says, and answers how many. Each is
    /// redriven at most once per call, even if it dies again meanwhile.
    ///
    /// # Errors
    /// `Invalid` when the rate is zero, else the store's; what was redriven before stays so.
    pub async fn redrive_all(&self, filter: DeadLetterFilter) -> Result<u64> {
        self.sweep(filter, Sweep::Redrive).await
    }

    /// Takes all dead letters that the filter takes off the list, and answers how many.
    ///
    /// # Errors
    /// `Invalid` when the rate is zero, else the store's; what was discarded before stays so.
    pub async fn discard_all(&self, filter: DeadLetterFilter) -> Result<u64> {
        self.sweep(filter, Sweep::Discard).await
    }

    async fn sweep(&self, filter: DeadLetterFilter, what: Sweep) -> Result<u64> {
        if filter.per_second == 0 {
            return Err(Error::invalid("a rate of zero would never come to an end: use at least 1 per second"));
        }
        let step = PAGE.min(filter.per_second as usize);
        let mut next_at = tokio::time::Instant::now();
        let mut after = filter.after;
        let mut done = 0;
        while (done as usize) < filter.limit {
            let query =
                DeadLetters { queue: self.name().clone(), event_type: filter.event_type.clone(), after, limit: step };
            let page = self.shared().store.dead_letters(query).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            let room = filter.limit - done as usize;
            let ids: Vec<EntryId> =
                page.iter().filter(|entry| filter.takes(entry)).map(|entry| entry.id).take(room).collect();
            if ids.is_empty() {
                continue;
            }
            tokio::time::sleep_until(next_at).await;
            next_at = tokio::time::Instant::now() + Duration::from_secs(1) * ids.len() as u32 / filter.per_second;
            // Somebody else may have been faster with one of them: that is not ours to count.
            done += match what {
                Sweep::Redrive => {
                    let items = ids.into_iter().map(|id| self.by_hand(id, None)).collect();
                    count_ok(&self.shared().store.redrive_by_hand(items).await?)
                }
                Sweep::Discard => count_ok(&self.shared().store.discard(ids).await?),
            };
            self.shared().bells.ring(self.name());
        }
        Ok(done)
    }
}

#[derive(Debug, Clone, Copy)]
enum Sweep {
    Redrive,
    Discard,
}

fn count_ok<T>(answers: &[Result<T>]) -> u64 {
    answers.iter().filter(|answer| answer.is_ok()).count() as u64
}

fn one<T>(answers: Vec<Result<T>>, id: EntryId) -> Result<T> {
    answers.into_iter().next().unwrap_or_else(|| Err(Error::no_entry(id)))
}
