//! The queue as a whole, as operators see it: its state, its depth, its settings, and the other queues of the database.

use std::time::Duration;

use tidegate_core::{Depth, QueueConfig, QueueName, QueueState};
use tidegate_store::{ErrorKind, QueueChange};

use super::EventQueue;
use crate::error::{Error, Result};

/// How often the depth of a draining queue is checked.
const DRAIN_POLL: Duration = Duration::from_millis(100);

impl EventQueue {
    async fn change(&self, change: QueueChange) -> Result<QueueConfig> {
        self.shared().store.put_queue(self.name(), change).await
    }

    async fn set_state(&self, state: QueueState) -> Result<QueueConfig> {
        let config = self.change(QueueChange { state: Some(state), ..QueueChange::default() }).await?;
        if state != QueueState::Paused {
            // What the queue held while it was paused is claimable now.
            self.shared().committed([self.name().clone()].into());
        }
        Ok(config)
    }

    /// Pauses the queue: nothing is claimed, publishes are still accepted.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn pause(&self) -> Result<QueueConfig> {
        self.set_state(QueueState::Paused).await
    }

    /// Makes a paused or draining queue active again.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn resume(&self) -> Result<QueueConfig> {
        self.set_state(QueueState::Active).await
    }

    /// Drains the queue: publishes are refused, entries are still claimed. [`drained`](Self::drained) waits until it is
    /// empty.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn drain(&self) -> Result<QueueConfig> {
        self.set_state(QueueState::Draining).await
    }

    /// Waits up to `timeout` until the queue has no live entries; returns whether it is empty.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn drained(&self, timeout: Duration) -> Result<bool> {
        let started = tokio::time::Instant::now();
        loop {
            if self.depth().await?.total() == 0 {
                return Ok(true);
            }
            if started.elapsed() >= timeout {
                return Ok(false);
            }
            tokio::time::sleep(DRAIN_POLL.min(timeout.saturating_sub(started.elapsed()))).await;
        }
    }

    /// The number of live entries, by state.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn depth(&self) -> Result<Depth> {
        self.shared().store.depth(self.name()).await
    }

    /// Sets how many live entries the queue takes before it refuses publishes; `None` removes the limit.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn set_depth_limit(&self, limit: Option<u64>) -> Result<QueueConfig> {
        self.change(QueueChange { depth_limit: Some(limit), ..QueueChange::default() }).await
    }

    /// The queue's settings.
    ///
    /// # Errors
    /// `NotFound` when the queue was removed, or any error of the store.
    pub async fn config(&self) -> Result<QueueConfig> {
        let found = self.config_of(self.name()).await?;
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no queue {}", self.name())))
    }

    /// The settings of any queue of the database; `None` when there is no such queue.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn config_of(&self, queue: &QueueName) -> Result<Option<QueueConfig>> {
        self.shared().store.queue(queue).await
    }

    /// All queues of the database.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn queues(&self) -> Result<Vec<QueueConfig>> {
        self.shared().store.queues().await
    }
}
