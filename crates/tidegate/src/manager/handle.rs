//! [`EventManager`]: the handle of a manager, which runs its loops and reports on its health.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::inner::Inner;
use super::plan::Mode;
use super::run::Run;
use crate::error::{Error, Result};
use crate::queue::EventQueue;
use crate::queue::health::Health;

/// Claims the events of a queue and runs handlers for them. Clones are handles of the same manager.
///
/// ```
/// use tidegate::{Delivered, Event, EventManager, EventQueue, Handled};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct OrderCreated { id: u64 }
/// impl Event for OrderCreated { const TYPE: &'static str = "order.created"; }
///
/// # async fn example(queue: EventQueue) -> tidegate::Result<()> {
/// let manager = EventManager::builder(&queue)
///     .on("send-mail", |order: Delivered<OrderCreated>| async move {
///         println!("a mail about order {}", order.id);
///         Handled::Success
///     })
///     .on("bill", |order: Delivered<OrderCreated>| async move {
///         if order.attempts() == 1 { Handled::transient("the bank is closed") } else { Handled::Success }
///     })
///     .build()?;
/// queue.publish(OrderCreated { id: 7 }.to_new()?).await?;
/// manager.run_process_loop().await?; // until manager.shutdown()
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct EventManager {
    inner: Arc<Inner>,
}

/// The health of a manager.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ManagerHealth {
    /// Process loops of this manager that run.
    pub loops: usize,
    /// Events that were claimed and have not been ended or given back yet.
    pub running: usize,
    /// The last error of claiming, and how long ago it was; `None` after a success.
    pub trouble: Option<(Duration, Error)>,
    /// The health of the queue.
    pub queue: Health,
}

impl ManagerHealth {
    /// Whether a loop runs, claims succeed, and the queue is healthy.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.loops > 0 && self.trouble.is_none() && self.queue.is_good()
    }
}

impl fmt::Debug for EventManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventManager")
            .field("queue", self.inner.context.queue.name())
            .field("types", &self.inner.by_type.keys())
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

impl EventManager {
    pub(super) fn new(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// Claims and handles events until [`shutdown`](Self::shutdown); then waits for running handlers up to the grace
    /// period and releases the rest. Panics of handlers and outages of the database do not end it.
    ///
    /// Dropping the future stops it at once: all claimed events are released, and their attempts do not count.
    ///
    /// # Errors
    /// `Unavailable` when the queue was closed.
    pub async fn run_process_loop(&self) -> Result<()> {
        let mut stop = self.inner.stop.subscribe();
        let stopped = async move {
            // Cannot fail: the sender is in `inner`, which the run holds.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        Run::new(Arc::clone(&self.inner), Mode::Forever).run(stopped).await.map(drop)
    }

    /// As [`run_process_loop`](Self::run_process_loop), until `shutdown` completes or [`shutdown`](Self::shutdown) is
    /// called.
    ///
    /// # Errors
    /// `Unavailable` when the queue was closed.
    pub async fn run_until(&self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let mut stop = self.inner.stop.subscribe();
        let stopped = async move {
            tokio::select! {
                () = shutdown => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        };
        Run::new(Arc::clone(&self.inner), Mode::Forever).run(stopped).await.map(drop)
    }

    /// Handles events until none can be claimed now, including those that handlers publish meanwhile, and returns the
    /// number of attempts. Entries that are due later are left; with a manual clock, move it and drain again.
    ///
    /// # Errors
    /// Any error of the store while claiming.
    pub async fn drain(&self) -> Result<u64> {
        Run::new(Arc::clone(&self.inner), Mode::Drain).run(std::future::pending()).await
    }

    /// Stops every process loop of this manager in order. A loop that is started later ends at once.
    pub fn shutdown(&self) {
        self.inner.stop.send_replace(true);
    }

    /// Removes the handler states of events that have ended, and returns how many. The process loop does this every
    /// [`cleanup_interval`](crate::ManagerOptions::cleanup_interval).
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn cleanup_finalized_events(&self) -> Result<u64> {
        self.inner.cleanup().await
    }

    /// The health of the manager and of its queue.
    pub async fn health(&self) -> ManagerHealth {
        let inner = &self.inner;
        let queue = inner.context.queue.health().await;
        let trouble = inner.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        ManagerHealth {
            loops: inner.loops.load(Ordering::Relaxed),
            running: inner.running.load(Ordering::Relaxed),
            trouble: trouble.as_ref().map(|(at, error)| (at.elapsed(), error.clone())),
            queue,
        }
    }

    /// The queue that it claims from.
    #[must_use]
    pub fn queue(&self) -> &EventQueue {
        &self.inner.context.queue
    }
}
