//! [`Shared`] is what all handles of one opened queue share: the store, the batchers, the wake-ups, the meters.
//!
//! Handles own it. Background tasks hold only the parts they need or a weak reference, so that they end with the last
//! handle. Claim batchers are not in it, for the entries that they hand out refer to it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tidegate_core::QueueName;
use tidegate_store::{CatalogueVersion, Store};
use tokio::sync::{mpsc, oneshot, watch};

use super::native::{Native, NativeRef};
use crate::background::notes::{Notes, Probed};
use crate::background::release::{BackgroundTask, LateClaim, Release};
use crate::background::wake::WakeUps;
use crate::batch::activity::Activities;
use crate::batch::limits::BatcherLimits;
use crate::batch::shared_read::SharedRead;
use crate::batch::verbs::{Batchers, batcher_limits};
use crate::metrics::Meters;
use crate::options::Options;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) native: NativeRef,
    pub(crate) options: Options,
    pub(crate) meters: Arc<Meters>,
    pub(crate) wake_ups: Arc<WakeUps>,
    pub(crate) batchers: Batchers,
    pub(crate) activities: Activities,
    pub(crate) probed: Probed,
    pub(crate) catalogue_reads: SharedRead<CatalogueVersion>,
    pub(crate) notes: Arc<Mutex<Notes>>,
    tasks: mpsc::UnboundedSender<BackgroundTask>,
    stop: watch::Sender<bool>,
    closed: AtomicBool,
    /// Whether closing is done; locked meanwhile.
    closing: tokio::sync::Mutex<bool>,
}

/// What closing a queue closes besides the queue itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closes {
    /// The store, whose owner it is.
    Store,
    /// Nothing: the store is another queue's.
    Nothing,
}

/// What the background tasks of a queue listen to.
pub(crate) struct Signals {
    pub(crate) tasks: mpsc::UnboundedReceiver<BackgroundTask>,
    /// Changes when the queue is closed, and ends with the last handle.
    pub(crate) stopped: watch::Receiver<bool>,
}

impl Shared {
    pub(crate) fn new(options: Options, store: Arc<dyn Store>, native: Native) -> (Arc<Self>, Signals) {
        let meters = Arc::new(Meters::new(options.queue_labels));
        let wake_ups = Arc::new(WakeUps::new());
        let batchers = Batchers::new(&options, &store, &meters, &wake_ups);
        let (tasks, tasks_in) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        let shared = Self {
            store,
            native: NativeRef(native),
            options,
            meters,
            wake_ups,
            batchers,
            activities: Activities::default(),
            probed: Probed::default(),
            catalogue_reads: SharedRead::default(),
            notes: Arc::default(),
            tasks,
            stop,
            closed: AtomicBool::new(false),
            closing: tokio::sync::Mutex::new(false),
        };
        (Arc::new(shared), Signals { tasks: tasks_in, stopped })
    }

    /// Counts the exhausted entries that claims have ended.
    pub(crate) fn count_exhausted(&self) {
        for (queue, end, count) in self.store.take_exhausted() {
            self.meters.ended(&queue, end, count);
        }
    }

    /// The limits of a batcher; see [`batcher_limits`].
    pub(crate) fn batcher_limits(&self, on_postgres: usize) -> BatcherLimits {
        batcher_limits(&self.options, &self.store, on_postgres)
    }

    /// Releases a lease in the background. The attempt does not count.
    pub(crate) fn release_later(&self, release: Release) {
        // Fails only after the runtime has ended; then the lease runs out.
        let _ = self.tasks.send(BackgroundTask::Release(release));
    }

    /// Releases what a withdrawn claim still gets.
    pub(crate) fn release_late(&self, late: LateClaim) {
        // As above.
        let _ = self.tasks.send(BackgroundTask::Late(late));
    }

    /// Waits until the release of every lease dropped so far has been tried.
    pub(crate) async fn flush_releases(&self) {
        let (flushed, answer) = oneshot::channel();
        if self.tasks.send(BackgroundTask::Flush(flushed)).is_ok() {
            // Fails only when the background task has ended with its runtime.
            let _ = answer.await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Closes the queue, once: refuses claims, runs `last_claims`, flushes admitted calls, releases dropped entries,
    /// stops background tasks, closes the store if it is this queue's own.
    pub(crate) async fn close(&self, last_claims: impl Future<Output = ()>, closes: Closes) {
        let mut done = self.closing.lock().await;
        if *done {
            return;
        }
        self.closed.store(true, Ordering::Release);
        if closes == Closes::Store {
            self.store.cancel_waiting_claims();
        }
        last_claims.await;
        self.batchers.close_and_flush().await;
        self.flush_releases().await;
        self.batchers.release.close();
        self.batchers.release.idle().await;
        let _ = self.stop.send(true);
        self.wake_ups.wake_all();
        if closes == Closes::Store {
            self.store.close().await;
        }
        *done = true;
    }

    /// Wakes local waiters and tells the store that a caller's own transaction has committed.
    pub(crate) fn committed(&self, queues: BTreeSet<QueueName>) {
        queues.iter().for_each(|queue| self.wake_ups.wake(queue));
        self.wake_ups.logged();
        self.store.wake(queues);
    }
}
