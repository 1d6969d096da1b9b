//! PostgreSQL: many nodes on one database.
//!
//! Claims by SKIP LOCKED on narrow rows, batches by `unnest`, no leader on the hot path. Owns connections, statements and
//! what happens when answers are lost; must not know handlers or coalescing. See ARCHITECTURE.md for the rules.

mod audit;
mod caller;
mod catalog;
mod claim;
mod claim_sizes;
mod connection;
mod dead_letters;
mod deduplication;
mod errors;
mod groups;
mod halves;
mod handlers;
mod headroom;
mod health;
mod indexes;
mod inspect;
mod items;
mod keys;
mod lanes;
mod list_sql;
mod listing;
mod maintenance;
mod marks;
mod migrate;
mod notify;
mod order;
#[cfg(test)]
mod plans;
mod probe;
mod projections;
mod projections_sql;
mod publish;
mod requests;
mod retain;
mod row;
mod schedules;
mod settle;
mod sql;
mod tag_marks;
mod tags;
mod tls;
mod upkeep;
mod url;
mod work;
mod work_sql;

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tidegate_core::{Depth, End, EntryId, Generation, NewEvent, QueueConfig, QueueName, Timestamp, Why};
use tokio::sync::broadcast;

pub use self::caller::{PostgresConnection, PostgresTx};
use self::catalog::{Catalog, Queue};
use self::claim::Contention;
use self::claim_sizes::ClaimSizes;
use self::connection::{Database, Prelude};
use self::errors::{Fault, at_open, specific};
use self::headroom::Headroom;
use self::lanes::LaneUse;
use self::maintenance::Maintenance;
use self::marks::Marks;
use self::notify::{Heard, Outbox};
use self::sql::Sql;
use self::tag_marks::TagMarks;
use crate::error::{Error, ErrorKind, Result};
use crate::handlers::HandlerStates;
use crate::keys::{KeyChanges, KeyStore};
use crate::store::{
    Backend, Batch, Census, Claim, Claimed, Consumer, DeadLetters, EntryView, Exhausted, Extend, Finalize, Finalized,
    Probe, Published, QueueChange, Requeue, Store, StoreOptions, Upkeep, Wake,
};
use crate::turns::Turns;
use crate::work::{ByHand, WorkStore};

/// How often a batch may find that the configuration changed under it.
const MAX_CATALOG_READS: usize = 24;

/// Settings of a PostgreSQL store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// What both databases share.
    pub store: StoreOptions,
    /// Connections at most, besides one that listens and one that keeps the heartbeat.
    pub max_connections: usize,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long a call waits for a free connection, and keeps trying after it lost one. It ends sooner when the database
    /// is known to be down.
    pub retry_for: Duration,
    /// How long one statement may take.
    pub statement_timeout: Duration,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            store: StoreOptions::default(),
            max_connections: 10,
            connect_timeout: Duration::from_secs(5),
            retry_for: Duration::from_secs(15),
            statement_timeout: Duration::from_secs(30),
        }
    }
}

impl PostgresOptions {
    /// The namespace as SQL writes it: quoted, since it may be a word of the language.
    fn schema(&self) -> String {
        format!("\"{}\"", self.store.namespace)
    }
}

/// Events in PostgreSQL.
#[derive(Debug)]
pub struct PostgresStore {
    inner: Arc<Inner>,
    /// The listening connection, and the probe.
    tasks: Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

/// What all verbs share.
#[derive(Debug)]
pub(crate) struct Inner {
    me: Weak<Self>,
    options: PostgresOptions,
    database: Database,
    /// A connection of the heartbeat's own: whatever holds up the others, leases expire when they should.
    heart: Database,
    /// When its clock was last seen going back.
    went_back: Mutex<Option<Instant>>,
    sql: Sql,
    projections: projections_sql::Sql,
    catalog: RwLock<Arc<Catalog>>,
    /// Looks at the catalogue that were begun, and the last of them that came to its end.
    looks: AtomicU64,
    looked: tokio::sync::Mutex<u64>,
    marks: Marks,
    lane_use: LaneUse,
    maintenance: Maintenance,
    tag_marks: TagMarks,
    headroom: Headroom,
    contention: Contention,
    exhausted: Exhausted,
    outbox: Arc<Outbox>,
    wakes: broadcast::Sender<Wake>,
    partitions_at: Mutex<Option<Instant>>,
    key_changes: KeyChanges,
    claim_sizes: ClaimSizes,
    sweep: Mutex<groups::Sweep>,
    lists: Turns,
}

impl PostgresStore {
    /// Connects, checks or migrates the schema, and starts listening for wake-ups.
    ///
    /// # Errors
    /// `Invalid` for a bad URL or login, `Unavailable` when the database cannot be reached or is read-only, `Schema` when
    /// its schema does not fit this program.
    pub async fn open(url: &str, options: PostgresOptions) -> Result<Self> {
        options.store.check()?;
        let target = connection::target(url, &options)?;
        let (mut client, driver) = target.connect_driven().await.map_err(at_open)?;
        connection::refuse_shared_sessions(&client, &target).await.map_err(specific)?;
        migrate::migrate(&mut client, &options).await.map_err(specific)?;
        drop(client);
        driver.abort();
        let channel = options.store.namespace.clone();
        let database = Database::new(connection::pool(target.clone(), &options)?, target.clone(), &options);
        let one = PostgresOptions { max_connections: 1, ..options.clone() };
        let heart = Database::new(connection::pool(target.clone(), &one)?, target.clone(), &one);
        // Whatever lists do, most connections are left to the others.
        let lists = Turns::new(options.store.max_lists.min(options.max_connections / 2));
        let inner = Arc::new_cyclic(|me| Inner {
            me: me.clone(),
            database,
            heart,
            went_back: Mutex::default(),
            sql: Sql::new(&options.schema()),
            projections: projections_sql::Sql::new(&options.schema()),
            options,
            catalog: RwLock::default(),
            looks: AtomicU64::new(0),
            looked: tokio::sync::Mutex::default(),
            marks: Marks::default(),
            lane_use: LaneUse::default(),
            maintenance: Maintenance::default(),
            tag_marks: TagMarks::default(),
            headroom: Headroom::default(),
            contention: Contention::new(),
            exhausted: Exhausted::default(),
            outbox: Arc::default(),
            wakes: broadcast::channel(64).0,
            partitions_at: Mutex::default(),
            key_changes: KeyChanges::default(),
            claim_sizes: ClaimSizes::default(),
            sweep: Mutex::default(),
            lists,
        });
        inner.reload_catalog().await?;
        if inner.options.store.migrate {
            inner.add_partitions().await?;
        }
        let probe = tokio::spawn(health::run(Arc::clone(&inner.database.line.health), target.clone()));
        let listener = tokio::spawn(notify::run(Arc::downgrade(&inner), target, channel));
        Ok(Self { inner, tasks: Mutex::new(vec![listener, probe]) })
    }

    fn end_tasks(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }

    /// Connects as a store would, with the URL's TLS parameters, for a look at the database from outside. The task drives
    /// the connection until the client is dropped.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn connect(url: &str) -> Result<(tokio_postgres::Client, tokio::task::JoinHandle<()>)> {
        let mut target = tls::Target::read(url)?;
        if target.config.get_connect_timeout().is_none() {
            target.config.connect_timeout(PostgresOptions::default().connect_timeout);
        }
        target.connect_driven().await.map_err(at_open)
    }

    /// Runs work that only reads in a task of its own; a caller that goes away stops it.
    async fn attended<T, F>(&self, work: impl FnOnce(Arc<Inner>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut task = tokio::task::JoinSet::new();
        task.spawn(work(Arc::clone(&self.inner)));
        match task.join_next().await {
            Some(Ok(answer)) => answer,
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => Err(Error::new(ErrorKind::Unavailable, "the runtime stopped before the database answered")),
        }
    }

    /// Runs work in a task of its own: a caller that goes away neither stops it by half nor leaves a transaction open.
    async fn detached<T, F>(&self, work: impl FnOnce(Arc<Inner>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        match tokio::spawn(work(Arc::clone(&self.inner))).await {
            Ok(answer) => answer,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Error::new(ErrorKind::Indeterminate, "the runtime stopped before the database answered")),
        }
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.end_tasks();
    }
}

impl Inner {
    /// The moment to use instead of the database's, if any.
    fn now(&self) -> Option<Timestamp> {
        self.options.store.clock.now()
    }

    /// The moment by which upkeep decides what is due, never what may be claimed.
    fn moment(&self) -> Timestamp {
        self.now().unwrap_or_else(Timestamp::now)
    }

    /// The configuration as last read.
    async fn catalog(&self) -> Result<Arc<Catalog>> {
        Ok(Arc::clone(&self.catalog.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Reads what changed in the catalogue. Callers that come while somebody reads share the next look.
    async fn reload_catalog(&self) -> Result<()> {
        let asked = self.looks.load(Ordering::SeqCst);
        let mut looked = self.looked.lock().await;
        if *looked > asked {
            return Ok(());
        }
        let look = self.looks.fetch_add(1, Ordering::SeqCst) + 1;
        let known = self.catalog().await?;
        let rows = self.database.read_patiently(&self.sql.catalog, &[&known.version, &known.stamp]).await?;
        if let Some(read) = known.read(&rows).map_err(Fault::into_error)? {
            *self.catalog.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(read);
        }
        *looked = look;
        Ok(())
    }

    /// A queue, also one that another process made since the configuration was read.
    async fn queue(&self, name: &QueueName) -> Result<Arc<Queue>> {
        if let Ok(queue) = self.catalog().await?.queue(name) {
            return Ok(Arc::clone(queue));
        }
        self.reload_catalog().await?;
        Ok(Arc::clone(self.catalog().await?.queue(name)?))
    }

    /// Whether the catalogue is still the one last read; if not, it is read again.
    async fn catalog_stands(&self, catalog: &Catalog) -> Result<bool> {
        self.reload_catalog().await?;
        Ok(self.catalog().await?.stamp == catalog.stamp)
    }

    /// Tells consumers here and in other processes that these queues got work.
    fn announce(&self, queues: impl IntoIterator<Item = i32>) {
        let queues: BTreeSet<i32> = queues.into_iter().collect();
        if queues.is_empty() {
            return;
        }
        self.wake_local(&queues);
        self.outbox.add(&queues, false);
    }

    fn wake_local(&self, queues: &BTreeSet<i32>) {
        let catalog = self.catalog.read().unwrap_or_else(PoisonError::into_inner);
        let names = queues.iter().map(|id| catalog.queue_by_id(*id).map(|queue| queue.name.clone()));
        let wake = names.collect::<Option<BTreeSet<QueueName>>>().map_or(Wake::Any, Wake::Queues);
        // Nobody listening is fine.
        let _ = self.wakes.send(wake);
    }

    /// Takes in a notification of another process (or our own).
    fn heard(&self, payload: &str) {
        match notify::read(payload) {
            Heard::Queues(queues) => self.wake_local(&queues),
            Heard::Late => self.look_late(),
        }
    }

    /// A caller's own transaction committed: sort its arrivals in, look below the marks, then wake consumers.
    fn look_late(&self) {
        let Some(inner) = self.me.upgrade() else { return };
        tokio::spawn(async move {
            if let Err(error) = inner.sort_arrivals().await {
                tracing::debug!(%error, "arrivals are sorted in later");
            }
            if let Err(fault) = inner.probe_below().await {
                tracing::debug!(error = %fault.into_error(), "late entries are found later");
            }
            let _ = inner.wakes.send(Wake::Any);
        });
    }
}

/// A transaction goes on only under the catalogue it was planned with.
fn accept_catalog(catalog: &Catalog, prelude: Prelude) -> Result<(), Fault> {
    if prelude.stamp == catalog.stamp { Ok(()) } else { Err(Fault::StaleCatalog) }
}

#[async_trait]
impl Store for PostgresStore {
    fn backend(&self) -> Backend {
        Backend::Postgres
    }

    async fn publish(&self, events: Vec<NewEvent>) -> Result<Batch<Published>> {
        self.detached(|inner| async move { inner.publish(events).await }).await
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>> {
        self.detached(|inner| async move { inner.claim(claim).await }).await
    }

    async fn finalize(&self, items: Vec<Finalize>) -> Result<Batch<Finalized>> {
        self.detached(|inner| async move { inner.finalize(items).await }).await
    }

    async fn extend(&self, items: Vec<Extend>) -> Result<Batch<Timestamp>> {
        self.detached(|inner| async move { inner.extend(items).await }).await
    }

    async fn requeue(&self, items: Vec<Requeue>) -> Result<Batch<()>> {
        self.detached(|inner| async move { inner.requeue(items).await }).await
    }

    async fn depths(&self) -> Result<Vec<(QueueName, Depth)>> {
        self.detached(|inner| async move { inner.depths().await }).await
    }

    fn take_exhausted(&self) -> Vec<(QueueName, End, u64)> {
        self.inner.exhausted.take()
    }

    async fn cancel_by_hand(&self, items: Vec<ByHand>) -> Result<Batch<()>> {
        self.detached(|inner| async move { inner.cancel(items).await }).await
    }

    async fn redrive_by_hand(&self, items: Vec<ByHand>) -> Result<Batch<Generation>> {
        self.detached(|inner| async move { inner.redrive(items).await }).await
    }

    async fn discard(&self, ids: Vec<EntryId>) -> Result<Batch<()>> {
        self.detached(|inner| async move { inner.discard(ids).await }).await
    }

    async fn entries(&self, ids: Vec<EntryId>) -> Result<Vec<Option<EntryView>>> {
        self.detached(|inner| async move { inner.entries(ids).await }).await
    }

    async fn dead_letters(&self, query: DeadLetters) -> Result<Vec<EntryView>> {
        self.detached(|inner| async move { inner.dead_letters(query).await }).await
    }

    async fn why(&self, id: EntryId) -> Result<Why> {
        self.detached(|inner| async move { inner.why(id).await }).await
    }

    async fn depth(&self, queue: &QueueName) -> Result<Depth> {
        let queue = queue.clone();
        self.detached(|inner| async move { inner.depth(&queue).await }).await
    }

    async fn census(&self) -> Result<Census> {
        self.detached(|inner| async move { inner.census().await }).await
    }

    async fn queues(&self) -> Result<Vec<QueueConfig>> {
        self.detached(|inner| async move { inner.queues().await }).await
    }

    async fn queue(&self, name: &QueueName) -> Result<Option<QueueConfig>> {
        let name = name.clone();
        self.detached(|inner| async move { inner.queue_config(&name).await }).await
    }

    async fn put_queue(&self, name: &QueueName, change: QueueChange) -> Result<QueueConfig> {
        let name = name.clone();
        self.detached(|inner| async move { inner.put_queue(&name, change).await }).await
    }

    async fn consumers_seen(&self, consumers: Vec<Consumer>) -> Result<Batch<()>> {
        self.detached(|inner| async move { inner.consumers_seen(consumers).await }).await
    }

    async fn beat(&self) -> Result<Option<Duration>> {
        self.detached(|inner| async move { inner.beat().await }).await
    }

    async fn oldest(&self) -> Result<Vec<(QueueName, Option<Duration>)>> {
        self.detached(|inner| async move { inner.oldest().await }).await
    }

    async fn elect(&self, task: &'static str, lease: Duration) -> Result<bool> {
        self.detached(|inner| async move { inner.elect(task, lease).await }).await
    }

    async fn maintain(&self) -> Result<Upkeep> {
        self.detached(|inner| async move { inner.maintain().await }).await
    }

    async fn probe(&self) -> Result<Probe> {
        self.detached(|inner| async move { inner.probe().await }).await
    }

    fn handler_states(&self) -> Option<&dyn HandlerStates> {
        Some(self)
    }

    fn projections(&self) -> Option<&dyn crate::projections::Projections> {
        Some(self)
    }

    fn work(&self) -> Option<&dyn WorkStore> {
        Some(self)
    }

    fn keys(&self) -> Option<&dyn KeyStore> {
        Some(self)
    }

    fn wakeups(&self) -> broadcast::Receiver<Wake> {
        self.inner.wakes.subscribe()
    }

    fn wake(&self, _queues: BTreeSet<QueueName>) {
        self.inner.look_late();
        self.inner.outbox.add(&BTreeSet::new(), true);
    }

    fn schedules(&self) -> Option<&dyn crate::schedules::Schedules> {
        Some(self)
    }

    async fn close(&self) {
        self.end_tasks();
        self.inner.resign().await;
        self.inner.database.pool.close();
        self.inner.heart.pool.close();
    }
}
