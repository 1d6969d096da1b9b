//! Turns concurrent single calls of one verb into batches.
//!
//! A [`Batcher`] flushes at once when idle, else as soon as a flush returns. A flush is bounded by count and weight,
//! and callers wait for its answer. Waiting calls are bounded too: a call that is not admitted by the deadline gets
//! [`Busy`](crate::ErrorKind::Busy). Flushes run in tasks of their own, so a caller that goes away cancels nothing;
//! they run on the runtime that the batcher was created on, and every call is refused when that has ended. Knows
//! nothing about events or databases; a verb never waits for another because each has its own batcher.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio::sync::oneshot;

pub use super::flush::Flushed;
use super::flush::{Call, Core, Load, Reply};
pub use super::limits::{Admit, BatcherLimits};
use crate::error::{Result, lost, stranded};

/// Merges concurrent calls into flushes. Clones are handles of the same batcher.
pub struct Batcher<I, A> {
    core: Arc<Core<I, A>>,
}

impl<I, A> Clone for Batcher<I, A> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core) }
    }
}

impl<I, A> fmt::Debug for Batcher<I, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").field("name", &self.core.name).field("limits", &self.core.limits).finish()
    }
}

/// An admitted call. It is flushed whether or not the ticket is awaited.
#[derive(Debug)]
pub struct Ticket<T>(oneshot::Receiver<T>);

impl<A> Ticket<Result<A>> {
    /// Waits for the answer.
    ///
    /// # Errors
    /// The error of this item or of its whole flush.
    pub async fn answer(self) -> Result<A> {
        self.0.await.unwrap_or_else(|_| Err(lost()))
    }
}

impl<A> Ticket<Vec<Result<A>>> {
    /// Waits for the answers.
    ///
    /// # Errors
    /// `Indeterminate` when the flush ended without an answer; otherwise each item has its own result.
    pub async fn answers(self) -> Result<Vec<Result<A>>> {
        self.0.await.map_err(|_| lost())
    }
}

impl<I, A> Batcher<I, A>
where
    I: Clone + Send + 'static,
    A: Send + 'static,
{
    /// A batcher that flushes with `flush` on the current runtime. `name` is its label in metrics.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new<F, Fut>(name: &'static str, limits: BatcherLimits, weigh: fn(&I) -> usize, flush: F) -> Self
    where
        F: Fn(Vec<I>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<Result<A>>>> + Send + 'static,
    {
        let core = Core::new(name, limits, weigh, Box::new(move |items| Box::pin(flush(items))));
        Self { core: Arc::new(core) }
    }

    /// Sends one item and waits for its answer.
    ///
    /// # Errors
    /// `Busy` when it was not admitted in time, `Unavailable` when the batcher is closed, or the error of the flush.
    pub async fn call(&self, item: I) -> Result<A> {
        self.submit(item).await?.answer().await
    }

    /// Sends items in order, in as few flushes as the limits allow, one after the other. Once started it completes even
    /// if the caller goes away.
    pub async fn call_many(&self, items: Vec<I>) -> Vec<Result<A>> {
        let total = items.len();
        // Checked here, for several chunks run in a task of their own, where the check could not see the caller.
        if let Err(error) = self.core.limits.admit.check() {
            return (0..total).map(|_| Err(error.clone())).collect();
        }
        let mut chunks = self.split(items);
        if chunks.len() <= 1 {
            let Some(chunk) = chunks.pop_front() else { return Vec::new() };
            return self.call_chunk(chunk).await;
        }
        let batcher = self.clone();
        let all = self.core.runtime.spawn(async move {
            let mut answers = Vec::with_capacity(total);
            for chunk in chunks {
                answers.extend(batcher.call_chunk(chunk).await);
            }
            answers
        });
        all.await.unwrap_or_else(|_| {
            let error = if self.core.is_stranded() { stranded() } else { lost() };
            (0..total).map(|_| Err(error.clone())).collect()
        })
    }

    async fn call_chunk(&self, chunk: Vec<I>) -> Vec<Result<A>> {
        let length = chunk.len();
        let answers = match self.submit_many(chunk).await {
            Ok(ticket) => ticket.answers().await,
            Err(error) => Err(error),
        };
        answers.unwrap_or_else(|error| (0..length).map(|_| Err(error.clone())).collect())
    }

    /// Waits until one item is admitted.
    ///
    /// # Errors
    /// `Busy` when it was not admitted in time, `Unavailable` when the batcher is closed.
    pub async fn submit(&self, item: I) -> Result<Ticket<Result<A>>> {
        self.core.limits.admit.check()?;
        let weight = self.core.admitted_weight((self.core.weigh)(&item));
        self.core.admit(1, weight).await?;
        let (reply, ticket) = oneshot::channel();
        self.core.enqueue(Call { load: Load::One(item), weight, reply: Reply::One(reply) })?;
        Ok(Ticket(ticket))
    }

    /// Waits until items that go into the same flush are admitted. Together they should fit the limits of one flush.
    ///
    /// # Errors
    /// `Busy` when they were not admitted in time, `Unavailable` when the batcher is closed.
    pub async fn submit_many(&self, items: Vec<I>) -> Result<Ticket<Vec<Result<A>>>> {
        self.core.limits.admit.check()?;
        let weight = self.core.admitted_weight(items.iter().map(self.core.weigh).sum());
        self.core.admit(items.len(), weight).await?;
        let (reply, ticket) = oneshot::channel();
        self.core.enqueue(Call { load: Load::Many(items), weight, reply: Reply::Many(reply) })?;
        Ok(Ticket(ticket))
    }

    /// Splits items into chunks that each fit one flush.
    pub fn split(&self, items: Vec<I>) -> VecDeque<Vec<I>> {
        let limits = &self.core.limits;
        let fits = items.len() <= limits.batch_items
            && items.iter().map(self.core.weigh).try_fold(0_usize, usize::checked_add) <= Some(limits.batch_weight);
        if items.is_empty() || fits {
            return if items.is_empty() { VecDeque::new() } else { VecDeque::from([items]) };
        }
        let mut chunks = VecDeque::new();
        let mut chunk = Vec::new();
        let mut weight = 0;
        for item in items {
            let more = (self.core.weigh)(&item);
            if !chunk.is_empty() && (chunk.len() == limits.batch_items || weight + more > limits.batch_weight) {
                chunks.push_back(std::mem::take(&mut chunk));
                weight = 0;
            }
            weight += more;
            chunk.push(item);
        }
        chunks.push_back(chunk);
        chunks
    }

    /// Most flushes that run at once.
    #[must_use]
    pub fn at_once(&self) -> usize {
        self.core.limits.in_flight
    }

    /// Refuses further calls; admitted calls are still flushed.
    pub fn close(&self) {
        self.core.close();
    }

    /// Whether further calls are refused.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.core.is_closed()
    }

    /// Waits until no call waits and no flush runs.
    pub async fn idle(&self) {
        self.core.idle().await;
    }

    /// Whether two handles belong to the same batcher.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}
