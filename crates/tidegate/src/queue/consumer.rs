//! [`Consumer`]: claims from one queue, and waits for something to claim. Knows nothing of what happens to an entry
//! after it was claimed.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tidegate_core::name::check_text;
use tidegate_store::ErrorKind;
use tokio::sync::watch;

use super::delivery::QueuedEvent;
use super::shared::Shared;
use crate::batch::claim_key::ClaimKey;
use crate::batch::claims::{ClaimBatcher, ClaimBatchers, LAST_CLAIM};
use crate::batch::waiting::WaitingClaimGuard;
use crate::error::{Error, Result};
use crate::moments::distant;
use crate::options::check_lease;

/// A handle that claims from one queue, perhaps only some types or tags, perhaps with another lease or worker name.
///
/// ```
/// # async fn example(queue: tidegate::EventQueue) -> tidegate::Result<()> {
/// use std::time::Duration;
/// let mails = queue.consumer().types(["mail.wanted"])?.lease(Duration::from_secs(300))?;
/// while let Some(event) = mails.next(Duration::from_secs(10)).await? {
///     event.complete().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Consumer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) claims: Arc<ClaimBatchers>,
    pub(crate) key: ClaimKey,
    /// Looked up or created at the first poll.
    batcher: OnceLock<Arc<ClaimBatcher>>,
}

impl Consumer {
    pub(crate) fn new(shared: Arc<Shared>, claims: Arc<ClaimBatchers>, key: ClaimKey) -> Self {
        Self { shared, claims, key, batcher: OnceLock::new() }
    }

    /// The same consumer with other claim parameters.
    pub(super) fn changed(&self, change: impl FnOnce(&mut ClaimKey)) -> Self {
        let mut key = self.key.clone();
        change(&mut key);
        Self::new(Arc::clone(&self.shared), Arc::clone(&self.claims), key)
    }

    /// The batcher, shared by all handles with the same claim parameters.
    pub(crate) fn batcher(&self) -> &Arc<ClaimBatcher> {
        self.batcher.get_or_init(|| self.claims.of(&self.shared, &self.key))
    }

    /// Claims only entries of these event types.
    ///
    /// # Errors
    /// `Invalid` when the list is empty or contains an invalid event type.
    pub fn types<T: Into<String>>(&self, types: impl IntoIterator<Item = T>) -> Result<Self> {
        let mut types: Vec<String> = types.into_iter().map(Into::into).collect();
        types.sort_unstable();
        types.dedup();
        if types.is_empty() {
            return Err(Error::invalid("a consumer of no types would never get anything: name one, or leave it out"));
        }
        for event_type in &types {
            check_text("event type", event_type)?;
        }
        Ok(self.changed(|key| key.types = Some(types)))
    }

    /// Claims only entries with any of these tags.
    ///
    /// # Errors
    /// `Invalid` when the list is empty or contains an invalid tag.
    pub fn tags<T: Into<String>>(&self, tags: impl IntoIterator<Item = T>) -> Result<Self> {
        let mut tags: Vec<String> = tags.into_iter().map(Into::into).collect();
        tags.sort_unstable();
        tags.dedup();
        if tags.is_empty() {
            return Err(Error::invalid("a consumer of no tags would never get anything: name one, or leave it out"));
        }
        for tag in &tags {
            tidegate_core::attempt::check_tag(tag)?;
        }
        Ok(self.changed(|key| key.tags = Some(tags)))
    }

    /// Has the audit record which worker claimed which entry.
    #[must_use]
    pub fn audited(&self) -> Self {
        self.changed(|key| key.audit = true)
    }

    /// Claims with leases of this length.
    ///
    /// # Errors
    /// `Invalid` when the lease is not between 1 ms and 366 days.
    pub fn lease(&self, lease: Duration) -> Result<Self> {
        check_lease(lease)?;
        Ok(self.changed(|key| key.lease = lease))
    }

    /// Claims under this worker name.
    ///
    /// # Errors
    /// `Invalid` when the name is empty, too long, or has control characters.
    pub fn worker(&self, worker: impl Into<String>) -> Result<Self> {
        let worker = worker.into();
        check_text("worker", &worker)?;
        Ok(self.changed(|key| key.worker = worker))
    }

    /// Claims the next entry, or none, without waiting for one.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn poll(&self) -> Result<Option<QueuedEvent>> {
        Ok(self.claim(1).await?.pop())
    }

    /// Claims up to `count` entries without waiting for them.
    ///
    /// # Errors
    /// Any error of the store; entries claimed before it are released.
    pub async fn poll_many(&self, count: usize) -> Result<Vec<QueuedEvent>> {
        let most = self.shared.options.limits.batch_items.max(1);
        let mut events = self.claim(count.min(most)).await?;
        let mut full = events.len() == most;
        while full && events.len() < count {
            let more = self.claim((count - events.len()).min(most)).await?;
            full = more.len() == most;
            events.extend(more);
        }
        Ok(events)
    }

    async fn claim(&self, count: usize) -> Result<Vec<QueuedEvent>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        self.batcher().claim(count).await
    }

    /// Claims the next entry, waiting up to `timeout` for one. It polls again at every wake-up, and after the poll
    /// interval without one.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn next(&self, timeout: Duration) -> Result<Option<QueuedEvent>> {
        Ok(self.wait_many(1, timeout).await?.pop())
    }

    /// Claims up to `count` entries, waiting up to `timeout` for the first.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn wait_many(&self, count: usize, timeout: Duration) -> Result<Vec<QueuedEvent>> {
        self.wait_many_every(count, timeout, self.shared.options.poll_interval).await
    }

    /// As [`wait_many`](Self::wait_many), with another poll interval.
    pub(crate) async fn wait_many_every(
        &self,
        count: usize,
        timeout: Duration,
        interval: Duration,
    ) -> Result<Vec<QueuedEvent>> {
        let mut wakes = self.batcher().wake_up.listen();
        let deadline = distant(timeout);
        loop {
            // A claim under way at the deadline may still be answered, but a store that hangs must not prolong the wait
            // any further: entries that it claims too late are released.
            let polled_at = Instant::now();
            let last = deadline.max(tokio::time::Instant::now()) + LAST_CLAIM;
            let Ok(polled) = tokio::time::timeout_at(last, self.poll_many(count)).await else {
                return Err(Error::new(ErrorKind::Unavailable, "the database did not answer in time"));
            };
            let events = polled?;
            if !events.is_empty() || count == 0 {
                return Ok(events);
            }
            let now = tokio::time::Instant::now();
            if now >= deadline {
                return Ok(events);
            }
            let Some(waiting) = WaitingClaimGuard::begin(self.batcher(), count) else {
                // The sender outlives this call, so an error cannot happen; it would only cause another poll.
                let _ = tokio::time::timeout_at(self.alarm(polled_at, deadline, interval), wakes.changed()).await;
                continue;
            };
            if let Some(events) = self.wait_with_claim(waiting, &mut wakes, (polled_at, deadline, interval)).await {
                return events;
            }
        }
    }

    /// Waits with a waiting claim. `None`: the store cancelled it, and there may be something to claim.
    async fn wait_with_claim(
        &self,
        mut waiting: WaitingClaimGuard<'_>,
        wakes: &mut watch::Receiver<u64>,
        (mut polled_at, deadline, interval): (Instant, tokio::time::Instant, Duration),
    ) -> Option<Result<Vec<QueuedEvent>>> {
        loop {
            if let Some(events) = waiting.wait(self.alarm(polled_at, deadline, interval), wakes).await {
                return Some(events);
            }
            if waiting.is_cancelled() {
                return None;
            }
            if tokio::time::Instant::now() >= deadline {
                return Some(waiting.withdraw().await.unwrap_or_else(|| Ok(Vec::new())));
            }
            polled_at = Instant::now();
            waiting.poll();
        }
    }

    /// When to poll again without a wake-up.
    fn alarm(&self, polled_at: Instant, deadline: tokio::time::Instant, interval: Duration) -> tokio::time::Instant {
        let alarm = deadline.min(distant(interval));
        self.batcher().wake_up.next_moment(polled_at).map_or(alarm, |moment| alarm.min(moment.into()))
    }
}
