//! Queues and those who use them: settings, depths, consumers, workers.

use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::{Depth, QueueConfig, QueueName};

use crate::error::Result;
use crate::values::{Batch, Census, LiveConsumer, QueueChange, WorkerView, WorkersPage, WorkersQuery};

/// The verbs for queues, their counts, and their consumers.
#[async_trait]
pub trait Queues: std::fmt::Debug + Send + Sync + 'static {
    /// The number of entries in a queue by state, in one snapshot.
    async fn depth(&self, queue: &QueueName) -> Result<Depth>;

    /// Counts of everything in one snapshot, for checks and metrics.
    async fn census(&self) -> Result<Census>;

    /// All queues.
    async fn queues(&self) -> Result<Vec<QueueConfig>>;

    /// One queue as it is now; `None` when there is none of that name. Costs one check of the catalogue version,
    /// however many queues there are, and never writes.
    async fn queue(&self, name: &QueueName) -> Result<Option<QueueConfig>> {
        Ok(self.queues().await?.into_iter().find(|queue| queue.name == *name))
    }

    /// Creates a queue, or applies the fields of the change that are set. A change without effect writes nothing.
    async fn put_queue(&self, name: &QueueName, change: QueueChange) -> Result<QueueConfig>;

    /// Records that these consumers are alive, for `why` and the worker list. They must differ in worker or queue.
    async fn consumers_seen(&self, consumers: Vec<LiveConsumer>) -> Result<Batch<()>>;

    /// For how long the first claimable entry of each queue has been claimable; `None` for a queue without one.
    async fn oldest(&self) -> Result<Vec<(QueueName, Option<Duration>)>> {
        Ok(Vec::new())
    }

    /// The number of entries in every queue, by state.
    async fn depths(&self) -> Result<Vec<(QueueName, Depth)>> {
        Ok(Vec::new())
    }

    /// The workers by client and name: all that were seen within a day or hold something. One that holds something and
    /// has been silent for `stale_after` is stale.
    async fn workers_page(&self, query: WorkersQuery) -> Result<WorkersPage>;

    /// All workers, however many there are.
    async fn workers(&self, stale_after: Duration) -> Result<Vec<WorkerView>> {
        let query = WorkersQuery { stale_after, limit: usize::MAX, ..WorkersQuery::default() };
        Ok(self.workers_page(query).await?.workers)
    }

    /// Of these tags, those under which something of the queue can be claimed now. None while the queue is paused.
    async fn claimable(&self, queue: &QueueName, tags: Vec<String>) -> Result<Vec<String>>;
}
