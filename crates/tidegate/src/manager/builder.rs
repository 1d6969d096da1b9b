//! How a manager is put together: handlers, middleware, settings.

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

use super::attempt::{Plan, Planned, Surroundings};
use super::handler::{Delivered, Event, EventHandler, Middleware, Registered};
use super::meters::HandlerMeters;
use super::{EventManager, Inner};
use crate::coalescer::Coalescer;
use crate::db_tx::DbTx;
use crate::error::{Error, Result};
use crate::queue::EventQueue;

/// Settings of an [`EventManager`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ManagerOptions {
    /// How often it looks for events by itself, should a wake-up be lost; 100 ms by default.
    pub poll_interval: Duration,
    /// How many events it has in hand at once at most; 100 by default.
    pub concurrency: usize,
    /// How long a claim holds before its heartbeat; the queue's (60 s) by default.
    pub lease: Option<Duration>,
    /// How long a handler may take; 5 min by default.
    pub timeout: Duration,
    /// When an event is tried again; the queue's policy by default.
    pub retry: Option<RetryPolicy>,
    /// How long a shutdown waits for running handlers; 30 s by default.
    pub grace: Duration,
    /// How often handler states of ended events are removed; 60 s by default.
    pub cleanup_interval: Duration,
    /// Whether events that no handler here wants are claimed and completed; off by default, for other services may own
    /// them.
    pub complete_unhandled: bool,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_millis(100),
            concurrency: 100,
            lease: None,
            timeout: Duration::from_secs(300),
            retry: None,
            grace: Duration::from_secs(30),
            cleanup_interval: Duration::from_secs(60),
            complete_unhandled: false,
        }
    }
}

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

impl ManagerBuilder {
    pub(crate) fn new(queue: EventQueue) -> Self {
        Self { queue, options: ManagerOptions::default(), handlers: Vec::new(), middleware: Vec::new() }
    }

    /// Adds a handler that is a type of its own. This is the recommended way.
    #[must_use]
    pub fn register<H: EventHandler>(mut self, handler: H) -> Self {
        self.handlers.push(Registered::of_type(handler));
        self
    }

    /// Adds a closure under an id. It answers a [`Handled`], or a `Result` whose error is transient.
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

    /// Adds a closure that gets events of one type as they are, whatever their payload.
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

    /// Adds a closure that gets events of every type as they are. The manager then claims every type.
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
    /// be short, for on SQLite all other writers wait.
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

    /// Runs around every handler; the first added is the outermost.
    #[must_use]
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Changes settings.
    #[must_use]
    pub fn options(mut self, change: impl FnOnce(&mut ManagerOptions)) -> Self {
        change(&mut self.options);
        self
    }

    /// How often it looks for events by itself.
    #[must_use]
    pub fn poll_interval(self, interval: Duration) -> Self {
        self.options(|options| options.poll_interval = interval)
    }

    /// How many events it has in hand at once at most.
    #[must_use]
    pub fn concurrency(self, events: usize) -> Self {
        self.options(|options| options.concurrency = events)
    }

    /// How long a claim holds before its heartbeat.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.options(|options| options.lease = Some(lease))
    }

    /// How long a handler may take.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.options(|options| options.timeout = timeout)
    }

    /// When an event is tried again.
    #[must_use]
    pub fn retry(self, retry: RetryPolicy) -> Self {
        self.options(|options| options.retry = Some(retry))
    }

    /// How long a shutdown waits for running handlers.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        self.options(|options| options.grace = grace)
    }

    /// Whether events that no handler here wants are claimed and completed.
    #[must_use]
    pub fn complete_unhandled(self, complete: bool) -> Self {
        self.options(|options| options.complete_unhandled = complete)
    }

    /// Puts it together.
    ///
    /// # Errors
    /// `Invalid` when an id is missing, too long or used twice, when there is nothing to do, or when a setting does not
    /// fit.
    pub fn build(self) -> Result<EventManager> {
        self.check()?;
        let shared = self.queue.shared();
        let recorder = recorder(self.queue.store(), shared.lane_limits(1));
        let any: Vec<&Registered> = self.handlers.iter().filter(|handler| handler.event_type.is_none()).collect();
        let mut by_type: BTreeMap<&str, Vec<&Registered>> = BTreeMap::new();
        for handler in &self.handlers {
            if let Some(event_type) = &handler.event_type {
                by_type.entry(event_type).or_insert_with(|| any.clone()).push(handler);
            }
        }
        let plan = |handlers: &[&Registered]| Arc::new(Plan::new(handlers.iter().map(|h| self.planned(h)).collect()));
        let plans: HashMap<String, Arc<Plan>> =
            by_type.iter().map(|(event_type, handlers)| ((*event_type).to_owned(), plan(handlers))).collect();
        let any = (!any.is_empty()).then(|| plan(&any));
        let mut consumer = self.queue.consumer();
        if any.is_none() && !self.options.complete_unhandled {
            consumer = consumer.types(plans.keys().cloned())?;
        }
        if let Some(lease) = self.options.lease {
            consumer = consumer.lease(lease)?;
        }
        let around = Arc::new(Surroundings { queue: self.queue, middleware: self.middleware, recorder });
        let inner = Inner {
            options: self.options,
            around,
            consumer,
            plans,
            any,
            stop: watch::channel(false).0,
            running: AtomicUsize::new(0),
            loops: AtomicUsize::new(0),
            trouble: Mutex::default(),
        };
        Ok(EventManager { inner: Arc::new(inner) })
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

/// The lane that makes successes durable.
fn recorder(store: &Arc<dyn Store>, limits: crate::coalescer::LaneLimits) -> Coalescer<HandlerState, ()> {
    let store = Arc::clone(store);
    let weigh = |state: &HandlerState| 64 + state.handler.len() + state.result.len();
    Coalescer::new("record", limits, weigh, move |states| {
        let store = Arc::clone(&store);
        async move {
            match store.handler_states() {
                Some(kept) => kept.record_handled(states).await,
                None => Ok(states.iter().map(|_| Ok(())).collect()),
            }
        }
    })
}
