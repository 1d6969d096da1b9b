//! Tells the router of this node which jobs were made. A hint: it hears of those of other nodes later.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate::{QueueName, Tsid};
use tokio::sync::Notify;

/// Hears of jobs that were made.
#[derive(Debug, Default)]
pub(crate) struct MadeJobs {
    is_heard: AtomicBool,
    made: Mutex<Made>,
    notify: Notify,
}

/// What jobs were made since somebody asked.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// The subscriptions for which some were.
    pub(crate) subscriptions: HashSet<Tsid>,
    /// The queues in which tasks wait.
    pub(crate) tasks: BTreeSet<QueueName>,
}

impl MadeJobs {
    /// Keeps what is added from now on.
    pub(super) fn listen(&self) {
        self.is_heard.store(true, Ordering::Relaxed);
    }

    /// Whether a router of this process listens, or has.
    pub(super) fn is_heard(&self) -> bool {
        self.is_heard.load(Ordering::Relaxed)
    }

    /// Jobs were made for these subscriptions, and are committed.
    pub(super) fn add(&self, subscriptions: impl Iterator<Item = Tsid>) {
        self.tell(|made| made.subscriptions.extend(subscriptions));
    }

    /// Tasks were made in these queues, and are committed.
    pub(super) fn add_tasks(&self, queues: impl Iterator<Item = QueueName>) {
        self.tell(|made| made.tasks.extend(queues));
    }

    /// Waits for jobs, and returns which were made.
    pub(crate) async fn next(&self) -> Made {
        loop {
            let made = std::mem::take(&mut *self.lock());
            if !made.is_empty() {
                return made;
            }
            self.notify.notified().await;
        }
    }

    fn tell(&self, add: impl FnOnce(&mut Made)) {
        if !self.is_heard.load(Ordering::Relaxed) {
            return;
        }
        let mut made = self.lock();
        add(&mut made);
        if !made.is_empty() {
            drop(made);
            self.notify.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Made {
    fn is_empty(&self) -> bool {
        self.subscriptions.is_empty() && self.tasks.is_empty()
    }
}
