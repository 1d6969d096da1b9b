//! The store itself: what its clones share, and the frames in which verbs run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;
use tokio::sync::watch;

use super::catalogue::current_version;
use super::errors::closed;
use super::families::PerFamily;
use super::inbox::Inbox;
use super::jobs::{self, Jobs, Urgency, job};
use super::own_calls;
use super::reader;
use super::shared::Shared;
use super::tx::Tx;
use crate::error::{Error, ErrorKind, Result};
use crate::list_gate::{Kind, ListGate};
use crate::values::{Family, KeyChanges};

/// A store in a SQLite file. Clones share it; it closes with the last one.
///
/// ```
/// # async fn example() -> tidegate_store::Result<()> {
/// use tidegate_core::NewEvent;
/// use tidegate_store::Queue;
/// use tidegate_store::sqlite::{SqliteOptions, SqliteStore};
/// let store = SqliteStore::open("events.db", SqliteOptions::default()).await?;
/// let published = store.publish(vec![NewEvent::new("order.created", "{}")]).await?;
/// # drop(published);
/// store.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SqliteStore {
    pub(in crate::sqlite) inner: Arc<Inner>,
    /// The family whose tables its verbs work on.
    pub(in crate::sqlite) family: Family,
}

pub(in crate::sqlite) struct Inner {
    pub(in crate::sqlite) path: PathBuf,
    /// The name under which this process is elected for maintenance.
    pub(in crate::sqlite) name: String,
    pub(in crate::sqlite) keeping: Keeping,
    pub(in crate::sqlite) shared: Arc<Shared>,
    pub(in crate::sqlite) inbox: Arc<Inbox>,
    pub(in crate::sqlite) reads: Arc<Jobs>,
    /// Lists have their own readers, so that nothing else waits for them.
    pub(in crate::sqlite) lists: Arc<Jobs>,
    pub(in crate::sqlite) list_gate: ListGate,
    /// Closes when the last thread has closed its connection.
    pub(in crate::sqlite) threads: watch::Receiver<()>,
    pub(in crate::sqlite) key_changes: KeyChanges,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.path)
            .field("options", &self.shared.options)
            .field("writes", &self.inbox.jobs)
            .field("reads", &self.reads)
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// Refuses new jobs. The threads finish those that wait, then end.
    pub(in crate::sqlite) fn close(&self) {
        self.inbox.jobs.close();
        self.reads.close();
        self.lists.close();
        self.inbox.checkpoints.close();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

/// Where the database is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sqlite) enum Keeping {
    /// In a file, with a write-ahead log.
    File,
    /// In this process's memory, under a name that other connections of the process can open. A reader and the writer
    /// would lock each other out there, so the writer's connection also reads.
    Memory,
}

impl SqliteStore {
    /// The file, or the URI of a database in memory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The same store with the verbs of a family.
    #[must_use]
    pub fn of_family(&self, family: Family) -> Self {
        Self { inner: Arc::clone(&self.inner), family }
    }

    /// The handle for what is not a family's own.
    pub(in crate::sqlite) fn entries_handle(&self) -> Self {
        self.of_family(Family::Entries)
    }

    /// Runs a verb inside the caller's transaction; if it fails, only the verb is undone.
    pub(in crate::sqlite) fn within<T>(
        &self,
        conn: &Connection,
        work: impl FnOnce(&mut Tx<'_>) -> Result<T>,
    ) -> Result<T> {
        self.check_running()?;
        self.inner.inbox.place.check()?;
        if conn.is_autocommit() {
            return Err(Error::new(
                ErrorKind::Conflict,
                "the connection has no open transaction: it was not begun, or SQLite has rolled it back after an error",
            ));
        }
        conn.execute_batch("SAVEPOINT tidegate")?;
        let mut states = PerFamily::default();
        let mut tx = Tx::new(conn, &self.inner.shared, &mut states, self.family);
        let begun = begin_writing(&tx).and_then(|()| current_version(conn, &self.inner.shared).map(drop));
        let outcome = begun.and_then(|()| work(&mut tx)).and_then(|answer| tx.finish().map(|()| answer));
        if !conn.is_autocommit() {
            conn.execute_batch(if outcome.is_ok() {
                "RELEASE tidegate"
            } else {
                "ROLLBACK TO tidegate; RELEASE tidegate"
            })?;
        }
        outcome
    }

    pub(in crate::sqlite) fn check_running(&self) -> Result<()> {
        self.inner.shared.outdated.refused()?;
        self.inner.inbox.stopped.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    pub(in crate::sqlite) fn enqueue(&self, urgency: Urgency, job: jobs::Queued) -> Result<()> {
        self.check_running()?;
        own_calls::refuse_own_call(&self.inner.inbox)?;
        self.inner.inbox.jobs.push(urgency, job)
    }

    pub(in crate::sqlite) async fn write<T, F>(&self, urgency: Urgency, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T> + Send + 'static,
    {
        let (job, answer) = job(self.family, work);
        self.enqueue(urgency, job)?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Reads for a list: admitted by the list gate, on a reader for lists, within `list_timeout`, and only as long as
    /// the caller waits for it.
    pub(in crate::sqlite) async fn read_list<T, F>(&self, kind: Kind, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T> + Send + 'static,
    {
        self.check_running()?;
        let _permit = self.inner.list_gate.enter(kind).await?;
        let gone = Arc::new(AtomicBool::new(false));
        let _caller = CancelOnDrop(gone.clone());
        let limit = self.inner.shared.options.list_timeout;
        let work = move |tx: &mut Tx<'_>| reader::watched(limit, gone, || work(tx));
        if self.inner.keeping == Keeping::Memory {
            return self.write(Urgency::End, work).await;
        }
        let (job, answer) = job(self.family, work);
        self.inner.lists.push(Urgency::End, job)?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    pub(in crate::sqlite) async fn read<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T> + Send + 'static,
    {
        if self.inner.keeping == Keeping::Memory {
            return self.write(Urgency::End, work).await;
        }
        self.check_running()?;
        let (job, answer) = job(self.family, work);
        self.inner.reads.push(Urgency::End, job)?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }
}

/// Tells a running list, when dropped, that its caller is gone.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Takes the write lock before anything is read. In a deferred transaction that has read already, SQLite does not wait
/// for the lock, and refuses it if another connection committed since; in one that has not, it waits for
/// `busy_timeout`.
fn begin_writing(tx: &Tx<'_>) -> Result<()> {
    tx.prepare(&tx.sql().transactions.begin_writing)?.execute([]).map(drop).map_err(|error| match Error::from(error) {
        busy if busy.kind() == ErrorKind::Busy => Error::new(
            ErrorKind::Busy,
            "another connection writes, or has written since this transaction first read: begin it with BEGIN IMMEDIATE \
             and try again",
        )
        .with_source(busy),
        error => error,
    })
}
