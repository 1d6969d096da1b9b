//! Claiming entries from the handle's queue, and finding out what could be claimed.

use std::time::Duration;

use tidegate_core::QueueName;

use super::EventQueue;
use super::consumer::Consumer;
use super::delivery::QueuedEvent;
use crate::error::Result;

impl EventQueue {
    /// A handle that claims from this queue; it can be narrowed to types or tags, or given another lease or worker.
    #[must_use]
    pub fn consumer(&self) -> Consumer {
        self.consumer.clone()
    }

    /// Claims the next entry, or none, without waiting for one.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn poll(&self) -> Result<Option<QueuedEvent>> {
        self.consumer.poll().await
    }

    /// Claims up to `count` entries without waiting for them.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn poll_many(&self, count: usize) -> Result<Vec<QueuedEvent>> {
        self.consumer.poll_many(count).await
    }

    /// Claims the next entry, waiting up to `timeout` for one.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn next(&self, timeout: Duration) -> Result<Option<QueuedEvent>> {
        self.consumer.next(timeout).await
    }

    /// Claims up to `count` entries, waiting up to `timeout` for the first.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn wait_many(&self, count: usize, timeout: Duration) -> Result<Vec<QueuedEvent>> {
        self.consumer.wait_many(count, timeout).await
    }

    /// Returns those of these tags that have something to claim now.
    ///
    /// # Errors
    /// `NotFound` when there is no such queue, or any error of the store.
    pub async fn claimable(&self, queue: &QueueName, tags: Vec<String>) -> Result<Vec<String>> {
        self.store().claimable(queue, tags).await
    }
}
