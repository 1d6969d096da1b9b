//! What a publish in the caller's own transaction returns.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use tidegate_core::QueueName;
use tidegate_store::Published;

use crate::shared::{Shared, wake};

/// Proof of a publish that commits, or not, with the caller's transaction. Call [`wake`](Self::wake) after the commit
/// and consumers look at once; without it they find the event a moment later.
#[derive(Debug)]
#[must_use = "call wake() after the commit, so that consumers look at once"]
pub struct Receipt {
    published: Vec<Published>,
    queues: BTreeSet<QueueName>,
    shared: Arc<Shared>,
}

impl Receipt {
    pub(crate) fn new(published: Vec<Published>, queues: BTreeSet<QueueName>, shared: Arc<Shared>) -> Self {
        Self { published, queues, shared }
    }

    /// Says that the transaction has committed.
    pub fn wake(self) {
        wake(&self.shared, self.queues);
    }

    /// What was published, without waking anybody.
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
