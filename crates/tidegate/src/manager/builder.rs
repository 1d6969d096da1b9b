//! The builder of a manager: handlers, middleware, settings, and their checks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tidegate_core::name::check_text;
use tidegate_core::{Handled, RetryPolicy};
use tidegate_store::{Claimed, HandlerState, Store};
use tokio::sync::watch;

use super::attempt::{AttemptContext, HandlerSet, Planned};
use super::handle::EventManager;
use super::handler::{Delivered, Event, EventHandler, Middleware, Registered};
use super::inner::Inner;
use super::meters::HandlerMeters;
use super::options::ManagerOptions;
use crate::batch::batcher::Batcher;
use crate::batch::limits::BatcherLimits;
use crate::error::{Error, Result};
use crate::queue::EventQueue;
use crate::queue::transactions::db_tx::DbTx;

/// Builds an [`EventManager`].
pub struct ManagerBuilder {
    queue: EventQueue,
    options: ManagerOptions,
    handlers: Vec<Registered>,
    middleware: Vec<Arc<dyn Middleware>>,
}

impl std::fmt::Debug for ManagerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManagerBuilder")
            .field("options", &self.options)
            .field("handlers", &self.handlers)
            .finish_non_exhaustive()
    }
}

impl EventManager {
    /// A builder with default settings for this queue.
    #[must_use]
    pub fn builder(queue: &EventQueue) -> ManagerBuilder {
        let (queue, options) = (queue.clone(), ManagerOptions::default());
        ManagerBuilder { queue, options, handlers: Vec::new(), middleware: Vec::new() }
    }
}

impl ManagerBuilder {
    /// Adds a handler that is a type of its own, which is recommended.
    #[must_use]
    pub fn register<H: EventHandler>(mut self, handler: H) -> Self {
        self.handlers.push(Registered::of_type(handler));
        self
    }

    /// Adds a closure under an id. It returns a [`Handled`], or a `Result` whose error is transient.
    #[must_use]
    pub fn on<E, F, Fut, R>(mut self, id: impl Into<String>, handle: F) -> Self
    where
        E: Event,
        F: Fn(Delivered<E>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: Into<Handled>,
    {
        self.handlers.push(Registered::closure::<E, F, Fut, R>(id.into().into(), handle));
        self
    }

    /// Adds a closure that gets claimed events of one type without decoding their payload.
    #[must_use]
    pub fn on_raw<F, Fut, R>(mut self, id: impl Into<String>, event_type: impl Into<String>, handle: F) -> Self
    where
        F: Fn(Arc<Claimed>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: Into<Handled>,
    {
        self.handlers.push(Registered::raw(id.into().into(), Some(event_type.into()), handle));
        self
    }

    /// Adds a closure that gets claimed events of every type without decoding their payload. The manager then claims
    /// every type.
    #[must_use]
    pub fn on_any<F, Fut, R>(mut self, id: impl Into<String>, handle: F) -> Self
    where
        F: Fn(Arc<Claimed>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: Into<Handled>,
    {
        self.handlers.push(Registered::raw(id.into().into(), None, handle));
        self
    }

    /// Adds a closure that writes in the transaction that ends the event: what it writes and publishes commits with
    /// that end, exactly once, or not at all. It runs after all other handlers of the event have succeeded, and should
    /// be short: on SQLite all other writers wait.
    ///
    /// ```
    /// # use tidegate::{Delivered, Event, EventManager, EventQueue, NewEvent, Result};
    /// # #[derive(serde::Deserialize)] struct Paid { account: String, cents: i64 }
    /// # impl Event for Paid { const TYPE: &'static str = "paid"; }
    /// # fn example(queue: EventQueue) -> Result<EventManager> {
    /// EventManager::builder(&queue)
    ///     .handler_tx("ledger", |paid: Delivered<Paid>, tx| {
    ///         Box::pin(async move {
    ///             let sql = "UPDATE accounts SET cents = cents + $1 WHERE name = $2";
    ///             tx.execute(sql, &[paid.cents.into(), paid.account.as_str().into()]).await?;
    ///             tx.publish(NewEvent::new("balance.changed", "{}")).await?;
    ///             Ok::<_, tidegate::Error>(())
    ///         })
    ///     })
    ///     .build()
    /// # }
    /// ```
    #[must_use]
    pub fn handler_tx<E, R, F>(mut self, id: impl Into<String>, handle: F) -> Self
    where
        E: Event,
        R: Into<Handled> + Send + 'static,
        F: for<'a> Fn(Delivered<E>, &'a DbTx<'a>) -> BoxFuture<'a, R> + Send + Sync + 'static,
    {
        self.handlers.push(Registered::in_tx::<E, F, R>(id.into().into(), handle));
        self
    }

    /// Sets how long the handler added last may take.
    #[must_use]
    pub fn timeout_of_last(mut self, timeout: Duration) -> Self {
        if let Some(handler) = self.handlers.last_mut() {
            handler.timeout = Some(timeout);
        }
        self
    }

    /// Adds middleware around every handler; the first added is the outermost.
    #[must_use]
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Changes any setting.
    #[must_use]
    pub fn options(mut self, change: impl FnOnce(&mut ManagerOptions)) -> Self {
        change(&mut self.options);
        self
    }

    /// Sets how often it polls without a wake-up.
    #[must_use]
    pub fn poll_interval(self, interval: Duration) -> Self {
        self.options(|options| options.poll_interval = interval)
    }

    /// Sets the most events that are claimed and not ended or given back yet.
    #[must_use]
    pub fn concurrency(self, events: usize) -> Self {
        self.options(|options| options.concurrency = events)
    }

    /// Sets the length of a lease, which heartbeats extend.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.options(|options| options.lease = Some(lease))
    }

    /// Sets how long a handler may take.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.options(|options| options.timeout = timeout)
    }

    /// Sets the delays between attempts, for events and queues without a retry policy of their own.
    #[must_use]
    pub fn retry(self, retry: RetryPolicy) -> Self {
        self.options(|options| options.retry = Some(retry))
    }

    /// Sets how long a shutdown waits for running handlers.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        self.options(|options| options.grace = grace)
    }

    /// Sets whether events without a handler are claimed and completed.
    #[must_use]
    pub fn complete_unhandled(self, complete: bool) -> Self {
        self.options(|options| options.complete_unhandled = complete)
    }

    /// Builds the manager.
    ///
    /// # Errors
    /// `Invalid` when an id is missing, too long or used twice, when there is no handler, or when a setting is not
    /// valid.
    pub fn build(self) -> Result<EventManager> {
        self.check()?;
        let shared = self.queue.shared();
        let recorder = recorder(self.queue.store(), shared.batcher_limits(1));
        let any: Vec<&Registered> = self.handlers.iter().filter(|handler| handler.event_type.is_none()).collect();
        let mut by_type: BTreeMap<&str, Vec<&Registered>> = BTreeMap::new();
        for handler in &self.handlers {
            if let Some(event_type) = &handler.event_type {
                by_type.entry(event_type).or_insert_with(|| any.clone()).push(handler);
            }
        }
        let set =
            |handlers: &[&Registered]| Arc::new(HandlerSet::new(handlers.iter().map(|h| self.planned(h)).collect()));
        let by_type: HashMap<String, Arc<HandlerSet>> =
            by_type.iter().map(|(event_type, handlers)| ((*event_type).to_owned(), set(handlers))).collect();
        let any = (!any.is_empty()).then(|| set(&any));
        let mut consumer = self.queue.consumer();
        if any.is_none() && !self.options.complete_unhandled {
            consumer = consumer.types(by_type.keys().cloned())?;
        }
        if let Some(lease) = self.options.lease {
            consumer = consumer.lease(lease)?;
        }
        let context = Arc::new(AttemptContext { queue: self.queue, middleware: self.middleware, recorder });
        let inner = Inner {
            options: self.options,
            context,
            consumer,
            by_type,
            any,
            stop: watch::channel(false).0,
            running: AtomicUsize::new(0),
            loops: AtomicUsize::new(0),
            trouble: Mutex::default(),
        };
        Ok(EventManager::new(inner))
    }

    fn planned(&self, handler: &Registered) -> Planned {
        Planned {
            timeout: handler.timeout.unwrap_or(self.options.timeout),
            meters: HandlerMeters::new(&handler.id),
            handler: handler.clone(),
        }
    }

    fn check(&self) -> Result<()> {
        let mut ids = BTreeSet::new();
        for handler in &self.handlers {
            check_text("handler id", &handler.id)?;
            if !ids.insert(&handler.id) {
                return Err(Error::invalid(format!(
                    "two handlers have the id {:?}: results are kept by id, so give each its own",
                    handler.id
                )));
            }
            if let Some(event_type) = &handler.event_type {
                check_text("event type", event_type)?;
            }
        }
        if self.handlers.is_empty() && !self.options.complete_unhandled {
            return Err(Error::invalid("a manager without handlers would do nothing: register one"));
        }
        let options = &self.options;
        if options.concurrency == 0 || options.poll_interval.is_zero() || options.cleanup_interval.is_zero() {
            return Err(Error::invalid("concurrency, poll interval and cleanup interval must be above zero"));
        }
        if options.timeout.is_zero() || self.handlers.iter().any(|h| h.timeout.is_some_and(|t| t.is_zero())) {
            return Err(Error::invalid("a timeout of zero would fail every event"));
        }
        Ok(())
    }
}

/// The batcher that records successes of handlers.
fn recorder(store: &Arc<dyn Store>, limits: BatcherLimits) -> Batcher<HandlerState, ()> {
    let store = Arc::clone(store);
    let weigh = |state: &HandlerState| 64 + state.handler.len() + state.result.len();
    Batcher::new("record", limits, weigh, move |states| {
        let store = Arc::clone(&store);
        async move { store.record_handled(states).await }
    })
}
