//! What layers above need to store facts and make jobs: limits for batchers of their own, and queues of jobs.

use tidegate_core::QueueName;
use tidegate_store::{Family, QueueChange};

use crate::batch::batcher::BatcherLimits;
use crate::batch::verbs::batcher_limits;
use crate::error::Result;
use crate::queue::EventQueue;

impl EventQueue {
    /// The limits of a batcher over this queue's database, with one flush at a time on SQLite and by default so many on
    /// PostgreSQL.
    #[must_use]
    pub fn batcher_limits(&self, on_postgres: usize) -> BatcherLimits {
        batcher_limits(&self.shared().options, &self.shared().store, on_postgres)
    }

    /// Creates a queue of jobs, unless it exists.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn make_job_queue(&self, queue: &QueueName) -> Result<()> {
        self.shared().store.family(Family::Jobs).put_queue(queue, QueueChange::default()).await.map(drop)
    }
}
