//! The store itself: what its families share, and what the verbs of one family share.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Instant;

use tidegate_core::{QueueName, Timestamp};
use tokio::sync::broadcast;

use super::catalogue::{Catalog, Queue};
use super::claim_sizes::ClaimSizes;
use super::connection::{Database, Prelude, Tx};
use super::contention::Contention;
use super::errors::Fault;
use super::headroom::Headroom;
use super::lane_use::LaneUse;
use super::marks::Marks;
use super::notify::Outbox;
use super::options::PostgresOptions;
use super::sweep::Sweep;
use super::tag_marks::TagMarks;
use super::turns::Turns;
use crate::error::{Error, ErrorKind, Result};
use crate::list_gate::ListGate;
use crate::postgres::statements::Sql;
use crate::values::{Exhausted, Family, KeyChanges, Wake};

/// How often a batch is planned again because the catalogue has changed, before it fails as busy.
pub(in crate::postgres) const MAX_CATALOG_READS: usize = 24;

/// A store on PostgreSQL: the verbs of one family, over connections that all families share.
#[derive(Debug)]
pub struct PostgresStore {
    pub(in crate::postgres) inner: Arc<Inner>,
    pub(in crate::postgres) opened: Arc<Opened>,
}

/// All families of an open store, and the tasks beside their verbs, which end when this is dropped.
#[derive(Debug)]
pub(in crate::postgres) struct Opened {
    pub(in crate::postgres) families: [Arc<Inner>; 2],
    /// The tasks of the listening connection and of the health probe.
    pub(in crate::postgres) tasks: Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

/// What the families share.
#[derive(Debug)]
pub(in crate::postgres) struct Shared {
    pub(in crate::postgres) options: PostgresOptions,
    pub(in crate::postgres) database: Database,
    /// A connection for the heartbeat alone: whatever blocks the others, leases expire when they should.
    pub(in crate::postgres) heart: Database,
    /// When the database's clock was last seen going back.
    pub(in crate::postgres) went_back: Mutex<Option<Instant>>,
    /// The statements of each family.
    pub(in crate::postgres) statements: [Arc<Sql>; 2],
    pub(in crate::postgres) turns: Turns,
    pub(in crate::postgres) outbox: Arc<Outbox>,
    pub(in crate::postgres) partitions_at: Mutex<Option<Instant>>,
    pub(in crate::postgres) key_changes: KeyChanges,
    pub(in crate::postgres) lists: ListGate,
}

/// What all verbs of a family share.
#[derive(Debug)]
pub(in crate::postgres) struct Inner {
    pub(in crate::postgres) me: Weak<Self>,
    pub(in crate::postgres) family: Family,
    pub(in crate::postgres) shared: Arc<Shared>,
    pub(in crate::postgres) sql: Arc<Sql>,
    pub(in crate::postgres) catalog: RwLock<Arc<Catalog>>,
    /// How many reads of the catalogue were begun.
    pub(in crate::postgres) reads_begun: AtomicU64,
    /// The last read of the catalogue that succeeded, counted as in `reads_begun`.
    pub(in crate::postgres) last_read: tokio::sync::Mutex<u64>,
    pub(in crate::postgres) marks: Marks,
    pub(in crate::postgres) lane_use: LaneUse,
    pub(in crate::postgres) tag_marks: TagMarks,
    pub(in crate::postgres) headroom: Headroom,
    pub(in crate::postgres) contention: Contention,
    pub(in crate::postgres) exhausted: Exhausted,
    pub(in crate::postgres) wakes: broadcast::Sender<Wake>,
    pub(in crate::postgres) claim_sizes: ClaimSizes,
    pub(in crate::postgres) sweep: Mutex<Sweep>,
}

impl Opened {
    pub(in crate::postgres) fn family(&self, family: Family) -> &Arc<Inner> {
        &self.families[family as usize]
    }

    pub(in crate::postgres) fn end_tasks(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.end_tasks();
    }
}

impl PostgresStore {
    /// The verbs of one family.
    pub(in crate::postgres) fn of(&self, family: Family) -> Self {
        Self { inner: Arc::clone(self.opened.family(family)), opened: Arc::clone(&self.opened) }
    }

    /// Runs read-only work in a task of its own, which is aborted when the caller goes away.
    pub(in crate::postgres) async fn attended<T, F>(&self, work: impl FnOnce(Arc<Inner>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.inner.shared.database.outdated.refused()?;
        let mut task = tokio::task::JoinSet::new();
        task.spawn(work(Arc::clone(&self.inner)));
        match task.join_next().await {
            Some(Ok(answer)) => answer,
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => Err(Error::new(ErrorKind::Unavailable, "the runtime stopped before the database answered")),
        }
    }

    /// Runs work in a task of its own: a caller that goes away neither interrupts it nor leaves a transaction open.
    pub(in crate::postgres) async fn detached<T, F>(&self, work: impl FnOnce(Arc<Inner>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.inner.shared.database.outdated.refused()?;
        match tokio::spawn(work(Arc::clone(&self.inner))).await {
            Ok(answer) => answer,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Error::new(ErrorKind::Indeterminate, "the runtime stopped before the database answered")),
        }
    }
}

impl Inner {
    pub(in crate::postgres) fn new(family: Family, shared: &Arc<Shared>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            family,
            shared: Arc::clone(shared),
            sql: Arc::clone(&shared.statements[family as usize]),
            catalog: RwLock::new(Arc::new(Catalog::new(family))),
            reads_begun: AtomicU64::new(0),
            last_read: tokio::sync::Mutex::default(),
            marks: Marks::default(),
            lane_use: LaneUse::default(),
            tag_marks: TagMarks::default(),
            headroom: Headroom::default(),
            contention: Contention::new(),
            exhausted: Exhausted::default(),
            wakes: broadcast::channel(64).0,
            claim_sizes: ClaimSizes::default(),
            sweep: Mutex::default(),
        })
    }

    /// The moment to use instead of the database's clock, if tests set one.
    pub(in crate::postgres) fn now(&self) -> Option<Timestamp> {
        self.shared.options.store.clock.now()
    }

    /// The moment by which upkeep decides what to do. It never decides what can be claimed.
    pub(in crate::postgres) fn moment(&self) -> Timestamp {
        self.now().unwrap_or_else(Timestamp::now)
    }

    /// The catalogue as last read.
    pub(in crate::postgres) async fn catalog(&self) -> Result<Arc<Catalog>> {
        Ok(Arc::clone(&self.catalog.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Reads what changed in the catalogue, and whether this program may still run on the schema. Callers that come during a read share the next one.
    pub(in crate::postgres) async fn reload_catalog(&self) -> Result<()> {
        let begun = self.reads_begun.load(Ordering::SeqCst);
        let mut last_read = self.last_read.lock().await;
        if *last_read > begun {
            return Ok(());
        }
        let this_read = self.reads_begun.fetch_add(1, Ordering::SeqCst) + 1;
        let known = self.catalog().await?;
        let (version, stamp) = (known.version, known.stamp);
        let changes = |tx: Arc<Tx>| async move { tx.rows(&self.sql.catalogue.changes, &[&version, &stamp]).await };
        let rows = self.read(changes).await?;
        if let Some(first) = rows.first() {
            self.shared.database.outdated.check(first.schema_version, first.oldest_compatible)?;
        }
        if let Some(read) = known.read(rows).map_err(Fault::into_error)? {
            *self.catalog.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(read);
        }
        *last_read = this_read;
        Ok(())
    }

    /// A queue by name. Reads the catalogue again if it is not known yet: another process may have created it.
    pub(in crate::postgres) async fn queue(&self, name: &QueueName) -> Result<Arc<Queue>> {
        if let Ok(queue) = self.catalog().await?.queue(name) {
            return Ok(Arc::clone(queue));
        }
        self.reload_catalog().await?;
        Ok(Arc::clone(self.catalog().await?.queue(name)?))
    }

    /// Reads the catalogue again, and says whether this one is still current.
    pub(in crate::postgres) async fn catalog_stands(&self, catalog: &Catalog) -> Result<bool> {
        self.reload_catalog().await?;
        Ok(self.catalog().await?.stamp == catalog.stamp)
    }
}

/// Stops a transaction that was planned under another catalogue than the current one.
pub(in crate::postgres) fn accept_catalog(catalog: &Catalog, prelude: Prelude) -> Result<(), Fault> {
    if prelude.stamp == catalog.stamp { Ok(()) } else { Err(Fault::StaleCatalog) }
}
