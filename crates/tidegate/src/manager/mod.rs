//! The manager: claims events, runs every handler that applies, records what they answered, and ends, retries or
//! releases. [`run`] is its loop, [`attempt`] one attempt at one event, [`handler`] what applications write.

mod attempt;
mod builder;
mod chunk;
mod handler;
mod meters;
mod run;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use self::attempt::{Plan, Surroundings};
pub use self::builder::{ManagerBuilder, ManagerOptions};
pub use self::handler::{Delivered, Event, EventHandler, Invocation, Middleware};
pub(crate) use self::run::LAST_CLAIM;
use self::run::{Mode, Run};
use crate::consumer::Consumer;
use crate::error::{Error, Result};
use crate::queue::EventQueue;
use crate::upkeep::Health;

/// Records of ended events that one step of the cleanup removes.
const CLEANUP_STEP: usize = 1_000;

/// Works off a queue with handlers. Clones are handles of the same manager.
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

pub(crate) struct Inner {
    options: ManagerOptions,
    around: Arc<Surroundings>,
    consumer: Consumer,
    plans: HashMap<String, Arc<Plan>>,
    /// Handlers of every type, for types that have no plan of their own.
    any: Option<Arc<Plan>>,
    stop: watch::Sender<bool>,
    running: AtomicUsize,
    loops: AtomicUsize,
    trouble: Mutex<Option<(Instant, Error)>>,
}

/// How a manager fares.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ManagerHealth {
    /// Process loops that run in this process.
    pub loops: usize,
    /// Events in hand: claimed, and not ended or given back yet.
    pub running: usize,
    /// The last error of claiming and how long ago it was, since claiming last succeeded.
    pub trouble: Option<(Duration, Error)>,
    /// The queue's own health.
    pub queue: Health,
}

impl ManagerHealth {
    /// Whether a loop runs, it can claim, and the queue works.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.loops > 0 && self.trouble.is_none() && self.queue.is_good()
    }
}

impl fmt::Debug for EventManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventManager")
            .field("queue", self.inner.around.queue.name())
            .field("types", &self.inner.plans.keys())
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

impl EventManager {
    /// Starts with default settings over this queue.
    #[must_use]
    pub fn builder(queue: &EventQueue) -> ManagerBuilder {
        ManagerBuilder::new(queue.clone())
    }

    /// Claims and handles events until [`shutdown`](Self::shutdown); then waits for running handlers up to the grace
    /// period and releases the rest. It survives handlers that panic and a database that goes away for a while.
    ///
    /// Dropped instead, it stops at once: what was in hand is released, and no attempt is used up.
    ///
    /// # Errors
    /// When the queue was closed.
    pub async fn run_process_loop(&self) -> Result<()> {
        let mut stop = self.inner.stop.subscribe();
        let stopped = async move {
            // An error would mean that the manager is gone, and it is held here.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        Run::new(Arc::clone(&self.inner), Mode::Forever).run(stopped).await.map(drop)
    }

    /// As [`run_process_loop`](Self::run_process_loop), until a future of the caller's own is ready.
    ///
    /// # Errors
    /// When the queue was closed.
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

    /// Handles what can be claimed now, also what handlers publish meanwhile, and answers how many attempts that took.
    /// What is due later stays; with a manual clock, move it and drain again.
    ///
    /// # Errors
    /// When events cannot be claimed.
    pub async fn drain(&self) -> Result<u64> {
        Run::new(Arc::clone(&self.inner), Mode::Drain).run(std::future::pending()).await
    }

    /// Ends every process loop of this manager in good order. A loop that starts later ends at once.
    pub fn shutdown(&self) {
        self.inner.stop.send_replace(true);
    }

    /// Removes the handler states of events that have ended, and answers how many. The process loop does it every
    /// minute.
    ///
    /// # Errors
    /// The store's.
    pub async fn cleanup_finalized_events(&self) -> Result<u64> {
        self.inner.cleanup().await
    }

    /// How it fares.
    pub async fn health(&self) -> ManagerHealth {
        let inner = &self.inner;
        let queue = inner.around.queue.health().await;
        let trouble = inner.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        ManagerHealth {
            loops: inner.loops.load(Ordering::Relaxed),
            running: inner.running.load(Ordering::Relaxed),
            trouble: trouble.as_ref().map(|(at, error)| (at.elapsed(), error.clone())),
            queue,
        }
    }

    /// The queue it works off.
    #[must_use]
    pub fn queue(&self) -> &EventQueue {
        &self.inner.around.queue
    }
}

impl Inner {
    pub(crate) async fn cleanup(&self) -> Result<u64> {
        let Some(states) = self.around.queue.store().handler_states() else { return Ok(0) };
        let mut forgotten = 0;
        loop {
            let step = states.forget_handled(CLEANUP_STEP).await?;
            forgotten += step;
            if step < CLEANUP_STEP as u64 {
                return Ok(forgotten);
            }
        }
    }

    fn plan(&self, event_type: &str) -> Option<&Arc<Plan>> {
        self.plans.get(event_type).or(self.any.as_ref())
    }

    fn note(&self, trouble: Option<Error>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble.map(|error| (Instant::now(), error));
    }
}
