//! Tells the router of this node for which subscriptions jobs were made. A hint: it hears of those of other nodes later.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tidegate::Tsid;
use tokio::sync::Notify;

/// The subscriptions for which jobs were made since somebody asked.
#[derive(Debug, Default)]
pub(crate) struct MadeJobs {
    is_heard: AtomicBool,
    subscriptions: Mutex<HashSet<Tsid>>,
    notify: Notify,
}

impl MadeJobs {
    /// Keeps what is added from now on.
    pub(super) fn listen(&self) {
        self.is_heard.store(true, Ordering::Relaxed);
    }

    /// Jobs were made for these, and are committed.
    pub(super) fn add(&self, subscriptions: impl Iterator<Item = Tsid>) {
        if !self.is_heard.load(Ordering::Relaxed) {
            return;
        }
        let mut known = self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(subscriptions);
        if !known.is_empty() {
            drop(known);
            self.notify.notify_one();
        }
    }

    /// Waits for jobs, and returns for whom they were made.
    pub(crate) async fn next(&self) -> HashSet<Tsid> {
        loop {
            let made = std::mem::take(&mut *self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner));
            if !made.is_empty() {
                return made;
            }
            self.notify.notified().await;
        }
    }
}
