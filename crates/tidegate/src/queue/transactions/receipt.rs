//! The result of a publish in the caller's own transaction.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use tidegate_core::QueueName;
use tidegate_store::Published;

use crate::queue::shared::Shared;

/// A publish that commits or rolls back with the caller's transaction. Call [`wake`](Self::wake) after the commit to
/// wake waiting consumers; without it they find the event at their next poll.
#[derive(Debug)]
#[must_use = "call wake() after the commit, so that waiting consumers claim at once"]
pub struct Receipt {
    published: Vec<Published>,
    queues: BTreeSet<QueueName>,
    shared: Arc<Shared>,
}

impl Receipt {
    pub(crate) fn new(published: Vec<Published>, queues: BTreeSet<QueueName>, shared: Arc<Shared>) -> Self {
        Self { published, queues, shared }
    }

    /// Wakes waiting consumers. To be called after the transaction has committed.
    pub fn wake(self) {
        self.shared.committed(self.queues);
    }

    /// Returns what was published, without waking consumers.
    #[must_use]
    pub fn into_published(self) -> Vec<Published> {
        self.published
    }
}

impl Deref for Receipt {
    type Target = [Published];

    fn deref(&self) -> &[Published] {
        &self.published
    }
}
