//! The builders of projections: name, version, settings, handlers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_core::{End, RetryPolicy};
use tidegate_store::{Fact, ProjectionId};
use tokio::sync::watch;

use super::core::{Core, Meters, Settings};
use super::documents::Documents;
use super::event::{BoxError, FoldAnswer, LoggedEvent, decode};
use super::handle::{Projection, ProjectionForm};
use super::kind::Form;
use super::sql::Sql;
use crate::error::{Error, Result};
use crate::queue::EventQueue;
use crate::queue::transactions::db_tx::DbTx;

/// Describes a projection over the event log: its name and version, then one of two forms.
///
/// [`documents`](Self::documents) folds events into documents by key:
///
/// ```
/// # async fn example(queue: tidegate::EventQueue) -> tidegate::Result<()> {
/// use serde::{Deserialize, Serialize};
/// use tidegate::EventLogProjectionBuilder;
///
/// #[derive(Deserialize)]
/// struct OrderPlaced { customer: String, amount: u64 }
/// #[derive(Serialize, Deserialize, Default)]
/// struct Total { orders: u64, amount: u64 }
///
/// let totals = EventLogProjectionBuilder::new("customer_totals")
///     .documents::<Total>()
///     .on::<OrderPlaced, _, _>(
///         "order.placed",
///         |event| event.data.customer.clone(),
///         |total, event| {
///             let total = total.unwrap_or_default();
///             Some(Total { orders: total.orders + 1, amount: total.amount + event.data.amount })
///         },
///     )
///     .open(&queue)
///     .await?;
/// tokio::spawn({
///     let totals = totals.clone();
///     async move { totals.run(std::future::pending()).await }
/// });
/// let ann = totals.get("ann").await?;
/// # Ok(()) }
/// ```
///
/// [`sql`](Self::sql) hands each event to a handler that writes in the projection's transaction:
///
/// ```
/// # async fn example(queue: tidegate::EventQueue) -> tidegate::Result<()> {
/// # #[derive(serde::Deserialize)]
/// # struct OrderPlaced { customer: String, amount: i64 }
/// use tidegate::EventLogProjectionBuilder;
/// let projection = EventLogProjectionBuilder::new("orders")
///     .sql()
///     .setup(|tx, version| Box::pin(async move {
///         let table = format!("CREATE TABLE IF NOT EXISTS orders_{version} (customer TEXT, amount BIGINT)");
///         tx.execute(&table, &[]).await?;
///         Ok(())
///     }))
///     .on::<OrderPlaced>("order.placed", |tx, event| Box::pin(async move {
///         let row = [event.data.customer.into(), event.data.amount.into()];
///         tx.execute("INSERT INTO orders_1 VALUES ($1, $2)", &row).await?;
///         Ok(())
///     }))
///     .open(&queue)
///     .await?;
/// # drop(projection);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct EventLogProjectionBuilder {
    name: String,
    version: i32,
    settings: Settings,
}

impl EventLogProjectionBuilder {
    /// A projection of this name, in version 1.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), version: 1, settings: Settings::default() }
    }

    /// Sets the version, 1 or more. Raise it when handlers change what they make of events: the new version reads the
    /// log from its oldest row while the old one continues, and takes over once it has caught up.
    #[must_use]
    pub fn version(mut self, version: i32) -> Self {
        self.version = version;
        self
    }

    /// Sets the most events of one transaction, from 1 to 10,000; 100 by default.
    #[must_use]
    pub fn batch_size(mut self, events: usize) -> Self {
        self.settings.batch = events.clamp(1, 10_000);
        self
    }

    /// Sets which ends of entries it reads; only COMPLETED by default.
    #[must_use]
    pub fn sees(mut self, ends: impl IntoIterator<Item = End>) -> Self {
        self.settings.ends = ends.into_iter().collect();
        self
    }

    /// Sets the delays before a failed event is retried; 1 s doubling to 60 s by default.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.settings.retry = policy;
        self
    }

    /// Sets the length of the reader's lease, after which another process takes over from a reader that died; 15 s by
    /// default.
    #[must_use]
    pub fn reader_lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease.max(Duration::from_millis(10));
        self
    }

    /// Sets how often it reads the log without a wake-up; 500 ms by default. Entries that end in this process wake it
    /// at once.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.settings.poll = interval.max(Duration::from_millis(1));
        self
    }

    /// Folds events into documents by key, stored as JSON of `S`.
    #[must_use]
    pub fn documents<S: Serialize + DeserializeOwned + Send + Sync + 'static>(self) -> FormBuilder<Documents<S>> {
        FormBuilder { base: self, form: Documents::new(), twice: None }
    }

    /// Passes events to handlers that write with SQL.
    #[must_use]
    pub fn sql(self) -> FormBuilder<Sql> {
        FormBuilder { base: self, form: Sql::default(), twice: None }
    }
}

/// Adds handlers to a projection and opens it.
pub struct FormBuilder<F> {
    base: EventLogProjectionBuilder,
    form: F,
    /// An event type that was given two handlers, which `open` refuses.
    twice: Option<String>,
}

impl<F> fmt::Debug for FormBuilder<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FormBuilder").field("base", &self.base).finish_non_exhaustive()
    }
}

impl<S: Serialize + DeserializeOwned + Send + Sync + 'static> FormBuilder<Documents<S>> {
    /// Handles an event type whose payload is JSON of `E`. `key` returns the key of the document that the event
    /// changes, or `None`; `fold` returns the new state from the old one (`None`: no document), or an error.
    #[must_use]
    pub fn on<E, K, A>(
        self,
        event_type: impl Into<String>,
        key: impl Fn(&LoggedEvent<E>) -> K + Send + Sync + 'static,
        fold: impl Fn(Option<S>, LoggedEvent<E>) -> A + Send + Sync + 'static,
    ) -> Self
    where
        E: DeserializeOwned + Send + 'static,
        K: Into<Option<String>>,
        A: FoldAnswer<S>,
    {
        self.add(event_type.into(), decode::<E>, key, fold)
    }

    /// Handles an event type by the bytes of its payload.
    #[must_use]
    pub fn on_bytes<K, A>(
        self,
        event_type: impl Into<String>,
        key: impl Fn(&LoggedEvent<Bytes>) -> K + Send + Sync + 'static,
        fold: impl Fn(Option<S>, LoggedEvent<Bytes>) -> A + Send + Sync + 'static,
    ) -> Self
    where
        K: Into<Option<String>>,
        A: FoldAnswer<S>,
    {
        self.add(event_type.into(), bytes_of, key, fold)
    }

    fn add<E, K, A>(
        mut self,
        event_type: String,
        read: fn(&Fact) -> Result<E, String>,
        key: impl Fn(&LoggedEvent<E>) -> K + Send + Sync + 'static,
        fold: impl Fn(Option<S>, LoggedEvent<E>) -> A + Send + Sync + 'static,
    ) -> Self
    where
        E: Send + 'static,
        K: Into<Option<String>>,
        A: FoldAnswer<S>,
    {
        if !self.form.add(event_type.clone(), read, key, fold) {
            self.twice = Some(event_type);
        }
        self
    }
}

fn bytes_of(fact: &Fact) -> Result<Bytes, String> {
    Ok(fact.payload.clone())
}

impl FormBuilder<Sql> {
    /// Handles an event type whose payload is JSON of `E`. What the handler writes commits with the position, so each
    /// event counts once; an error rolls the event back and stops the projection. When an event of a batch fails, the
    /// batch is rolled back and the events before it are handled again, so handlers must do nothing but write in the
    /// transaction.
    #[must_use]
    pub fn on<E>(
        self,
        event_type: impl Into<String>,
        handler: impl for<'a> Fn(&'a DbTx<'a>, LoggedEvent<E>) -> BoxFuture<'a, Result<(), BoxError>>
        + Send
        + Sync
        + 'static,
    ) -> Self
    where
        E: DeserializeOwned + Send + 'static,
    {
        self.add(event_type.into(), decode::<E>, handler)
    }

    /// Handles an event type by the bytes of its payload.
    #[must_use]
    pub fn on_bytes(
        self,
        event_type: impl Into<String>,
        handler: impl for<'a> Fn(&'a DbTx<'a>, LoggedEvent<Bytes>) -> BoxFuture<'a, Result<(), BoxError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.add(event_type.into(), bytes_of, handler)
    }

    fn add<E: Send + 'static>(
        mut self,
        event_type: String,
        read: fn(&Fact) -> Result<E, String>,
        handler: impl for<'a> Fn(&'a DbTx<'a>, LoggedEvent<E>) -> BoxFuture<'a, Result<(), BoxError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        if !self.form.add(event_type.clone(), read, handler) {
            self.twice = Some(event_type);
        }
        self
    }

    /// Sets a hook that runs before the version reads its first event, with its number: create its tables here. It may
    /// run more than once.
    #[must_use]
    pub fn setup(
        mut self,
        hook: impl for<'a> Fn(&'a DbTx<'a>, i32) -> BoxFuture<'a, Result<(), BoxError>> + Send + Sync + 'static,
    ) -> Self {
        self.form.set_setup(Arc::new(hook));
        self
    }

    /// Sets a hook that runs in the transaction in which the version becomes active, with its number: point views at
    /// its tables and drop the old ones here.
    #[must_use]
    pub fn switch(
        mut self,
        hook: impl for<'a> Fn(&'a DbTx<'a>, i32) -> BoxFuture<'a, Result<(), BoxError>> + Send + Sync + 'static,
    ) -> Self {
        self.form.set_switch(Arc::new(hook));
        self
    }
}

impl<F: ProjectionForm> FormBuilder<F> {
    /// Registers the projection in the queue's database. Nothing is read before [`Projection::run`] or
    /// [`Projection::catch_up`].
    ///
    /// # Errors
    /// `Invalid` when the name is not 1 to 255 bytes of text, the version is below 1, there is no handler, or two for
    /// one type; or any error of the store.
    pub async fn open(self, queue: &EventQueue) -> Result<Projection<F>> {
        let Self { base, form, twice } = self;
        let id = ProjectionId::new(base.name, base.version)?;
        if let Some(event_type) = twice {
            return Err(Error::invalid(format!("projection {id} has two handlers for {event_type:?}: keep one")));
        }
        let mut types = Form::types(&form);
        if types.is_empty() {
            return Err(Error::invalid(format!("projection {id} has no handler: add one with on()")));
        }
        types.sort();
        queue.projection_store().register(&id).await?;
        let core = Core {
            queue: queue.clone(),
            meters: Meters::new(&id.name),
            id,
            settings: base.settings,
            types,
            progress: watch::Sender::new(0),
        };
        Ok(Projection::new(core, form))
    }
}
