//! Queues by name: found without being created, changed, and counted.

use tidegate_core::{Depth, QueueConfig, QueueName, QueueState};
use tidegate_store::QueueChange;

use crate::error::Result;
use crate::queue::EventQueue;

/// A queue and how many live entries it has.
#[derive(Debug, Clone)]
pub struct QueueStatus {
    /// Its state and settings.
    pub config: QueueConfig,
    /// Its live entries, by state.
    pub depth: Depth,
}

impl QueueStatus {
    /// Whether the queue is draining and has no live entries left.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.config.state == QueueState::Draining && self.depth.total() == 0
    }
}

impl EventQueue {
    /// The settings of a queue; `None` when there is no such queue. Every client has a queue `default`: it is created
    /// when it is first named.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn find_config(&self, queue: &QueueName) -> Result<Option<QueueConfig>> {
        let found = self.config_of(queue).await?;
        if found.is_none() && queue.client().is_some() && queue.name() == QueueName::DEFAULT {
            return self.of(queue.clone()).await?.config().await.map(Some);
        }
        Ok(found)
    }

    /// A handle of a queue; `None` when there is no such queue. As [`find_config`](Self::find_config), it creates a
    /// client's `default`, and no other.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn find(&self, queue: &QueueName) -> Result<Option<Self>> {
        match self.find_config(queue).await? {
            Some(config) => self.of(config.name).await.map(Some),
            None => Ok(None),
        }
    }

    /// Changes a queue, or creates it with these settings. What the change does not name stays as it is.
    ///
    /// # Errors
    /// `Invalid` for settings out of range, or any error of the store.
    pub async fn change_queue(&self, queue: &QueueName, change: QueueChange) -> Result<QueueConfig> {
        self.shared().store.put_queue(queue, change).await
    }

    /// The settings of a queue and how many live entries it has; `None` when there is no such queue.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn queue_status(&self, queue: &QueueName) -> Result<Option<QueueStatus>> {
        let Some(config) = self.find_config(queue).await? else { return Ok(None) };
        let depth = self.shared().store.depth(&config.name).await?;
        Ok(Some(QueueStatus { config, depth }))
    }
}
