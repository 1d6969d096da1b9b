//! SQLite: one file, one writer thread, a few readers.
//!
//! This file is the store's face: it turns each verb into a job for a thread and waits for the answer. The verbs
//! themselves are in the modules beside it, as functions of a transaction; none of them knows threads or futures.

mod checkpoint;
mod claim;
mod dead_letters;
mod errors;
mod facts;
mod handlers;
mod held;
mod inspect;
mod jobs;
mod keys;
mod lanes;
mod listing;
mod migrate;
mod open;
mod place;
mod plain_sql;
mod probe;
mod projections;
mod publish;
mod queries;
mod reader;
mod retain;
mod schedules;
mod settle;
mod standing;
mod tags;
#[cfg(test)]
mod tests;
mod time;
mod tx;
mod unreadable;
mod upkeep;
mod work;
mod writer;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use tidegate_core::{Depth, End, EntryId, Generation, NewEvent, QueueConfig, QueueName, Timestamp, Why};
use tokio::sync::{broadcast, watch};

use self::errors::closed;
pub use self::held::SqliteTx;
use self::jobs::{Jobs, Urgency, job};
pub use self::open::{SqliteOptions, Synchronous};
use self::tx::{Known, Shared, Tx};
use self::writer::Inbox;
use crate::error::{Error, ErrorKind, Result};
use crate::handlers::HandlerStates;
use crate::keys::{KeyChanges, KeyStore};
use crate::standing::Standing;
use crate::store::{
    Backend, Batch, Census, Claim, Claimed, Consumer, DeadLetters, EntryView, Extend, Finalize, Finalized, Probe,
    Published, QueueChange, Requeue, Store, Upkeep, Wake,
};
use crate::turns::{Kind, Turns};
use crate::work::{ByHand, WorkStore};

/// How long one round of upkeep removes expired keys: half of the time, however many there are.
const KEYS_BUDGET: Duration = Duration::from_millis(500);

/// A store in a SQLite file. Clones share it; it closes with the last one.
///
/// ```
/// # async fn example() -> tidegate_store::Result<()> {
/// use tidegate_core::NewEvent;
/// use tidegate_store::Store;
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
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    /// Under which this process is elected for maintenance.
    name: String,
    keeping: open::Keeping,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    reads: Arc<Jobs>,
    /// Lists have readers of their own, so that nothing else waits for them.
    lists: Arc<Jobs>,
    list_turns: Turns,
    /// Ends when the last thread has closed its connection.
    threads: watch::Receiver<()>,
    key_changes: KeyChanges,
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
    /// What waits is still done; then the threads end.
    fn close(&self) {
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

impl SqliteStore {
    /// Opens the file, creates it if it is not there, and brings its tables up to date.
    ///
    /// # Errors
    /// `Unavailable` when the file cannot be opened or written, `Corrupt` when it is not a database, `Schema` when its
    /// tables do not fit this program, `Invalid` when the options do not fit, `Busy` when somebody holds its lock.
    pub async fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self> {
        open::open(path.as_ref().to_owned(), options).await
    }

    /// Opens a new, empty database in this process's memory; it is gone with its last connection. For tests: everything
    /// behaves as in a file, and nothing is durable. Other connections of this process reach it by [`path`](Self::path).
    ///
    /// # Errors
    /// `Invalid` when the options do not fit.
    pub async fn open_in_memory(options: SqliteOptions) -> Result<Self> {
        open::open_in_memory(options).await
    }

    /// The file, or the URI of a database in memory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Runs a closure in a transaction of its own on the store's writer: what it writes, and what it publishes and
    /// finalises with [`publish_in`](Self::publish_in) and [`finalize_in`](Self::finalize_in), commits together. An
    /// error or a panic rolls it back. Other writers wait meanwhile, so it should be short and must not wait for this
    /// store: a call of it from within is refused.
    ///
    /// # Errors
    /// The closure's own, or what the commit met.
    pub async fn transaction<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let (job, answer) = job(move |tx: &mut Tx<'_>| work(tx.conn));
        self.enqueue(Urgency::Alone, job)?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Publishes within the caller's own transaction on the same file. All events or none: the first that is refused
    /// is the error, and the transaction is as before the call. After the commit, [`Store::wake`] tells consumers.
    ///
    /// # Errors
    /// As [`Store::publish`]; `Busy` when another connection holds the write lock, or has written since this transaction
    /// first read. A transaction that reads before it publishes is best begun with `BEGIN IMMEDIATE`.
    pub fn publish_in(&self, conn: &Connection, events: Vec<NewEvent>) -> Result<Vec<Published>> {
        if events.iter().any(|event| event.idempotency.is_some()) {
            return Err(Error::invalid("an idempotency key needs a transaction of its own: use publish"));
        }
        self.within(conn, |tx| publish::publish(tx, &events)?.into_iter().collect())
    }

    /// Finalises within the caller's own transaction on the same file, so that its effects happen exactly once: a
    /// lease that is no longer held, even because this same lease ended the entry before, rolls the caller's whole
    /// transaction back.
    ///
    /// # Errors
    /// `Fenced` after such a rollback; otherwise as [`Store::finalize`], with the transaction as before the call.
    pub fn finalize_in(&self, conn: &Connection, items: Vec<Finalize>) -> Result<Vec<Finalized>> {
        let outcome = self.within(conn, |tx| {
            let answers: Vec<Finalized> = settle::finalize(tx, &items)?.into_iter().collect::<Result<_>>()?;
            let again = answers.iter().zip(&items).any(|(answer, item)| answer.repeated && item.token.is_some());
            if again { Err(Error::fenced()) } else { Ok(answers) }
        });
        if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Fenced) && !conn.is_autocommit() {
            conn.execute_batch("ROLLBACK")?;
        }
        outcome
    }

    /// Runs a verb inside a caller's transaction, undone by itself when it fails.
    fn within<T>(&self, conn: &Connection, work: impl FnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        self.check_running()?;
        self.inner.inbox.place.check()?;
        if conn.is_autocommit() {
            return Err(Error::new(
                ErrorKind::Conflict,
                "the connection has no open transaction: it was not begun, or SQLite has rolled it back after an error",
            ));
        }
        conn.execute_batch("SAVEPOINT tidegate")?;
        let (mut known, mut woken) = (Known::default(), BTreeSet::new());
        let mut tx = Tx::new(conn, &self.inner.shared, &mut known, &mut woken);
        let outcome = begin_writing(&tx).and_then(|()| work(&mut tx)).and_then(|answer| tx.finish().map(|()| answer));
        if !conn.is_autocommit() {
            conn.execute_batch(if outcome.is_ok() {
                "RELEASE tidegate"
            } else {
                "ROLLBACK TO tidegate; RELEASE tidegate"
            })?;
        }
        outcome
    }

    fn check_running(&self) -> Result<()> {
        self.inner.inbox.stopped.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn enqueue(&self, urgency: Urgency, job: jobs::Queued) -> Result<()> {
        self.check_running()?;
        held::refuse_own_call(&self.inner.inbox)?;
        self.inner.inbox.jobs.push(urgency, job)
    }

    async fn write<T, F>(&self, urgency: Urgency, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T> + Send + 'static,
    {
        let (job, answer) = job(work);
        self.enqueue(urgency, job)?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Reads for a list: in a turn and on a connection of its own, within the time that a list may take, and only as long as
    /// somebody waits for it.
    async fn read_list<T, F>(&self, kind: Kind, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T> + Send + 'static,
    {
        self.check_running()?;
        let _turn = self.inner.list_turns.enter(kind).await?;
        let gone = Arc::new(AtomicBool::new(false));
        let _caller = Attendance(gone.clone());
        let limit = self.inner.shared.options.list_timeout;
        let work = move |tx: &mut Tx<'_>| reader::watched(limit, gone, || work(tx));
        if self.inner.keeping == open::Keeping::Memory {
            return self.write(Urgency::Finish, work).await;
        }
        let (job, answer) = job(work);
        self.inner.lists.push(Urgency::Finish, job)?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn read<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Tx<'_>) -> Result<T> + Send + 'static,
    {
        if self.inner.keeping == open::Keeping::Memory {
            return self.write(Urgency::Finish, work).await;
        }
        self.check_running()?;
        let (job, answer) = job(work);
        self.inner.reads.push(Urgency::Finish, job)?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }
}

/// Whether the caller of a list is still there.
struct Attendance(Arc<AtomicBool>);

impl Drop for Attendance {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Takes the write lock before anything is read. In a deferred transaction that has read, SQLite neither waits for the lock
/// nor lets it be taken over what others committed since; in one that has not, it waits as the connection says.
fn begin_writing(tx: &Tx<'_>) -> Result<()> {
    tx.prepare(&tx.sql().begin_writing)?.execute([]).map(drop).map_err(|error| match Error::from(error) {
        busy if busy.kind() == ErrorKind::Busy => Error::new(
            ErrorKind::Busy,
            "another connection writes, or has written since this transaction first read: begin it with BEGIN IMMEDIATE \
             and try again",
        )
        .with_source(busy),
        error => error,
    })
}

#[async_trait]
impl Store for SqliteStore {
    fn backend(&self) -> Backend {
        Backend::Sqlite
    }

    async fn publish(&self, events: Vec<NewEvent>) -> Result<Batch<Published>> {
        self.write(Urgency::Publish, move |tx| publish::publish(tx, &events)).await
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>> {
        let (mut job, answer) = job(move |tx: &mut Tx<'_>| claim::claim(tx, &claim));
        // Entries taken for a caller who is gone would wait for their lease to end.
        job.skippable = true;
        self.enqueue(Urgency::Claim, job)?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn finalize(&self, items: Vec<Finalize>) -> Result<Batch<Finalized>> {
        self.write(Urgency::Finish, move |tx| settle::finalize(tx, &items)).await
    }

    async fn extend(&self, items: Vec<Extend>) -> Result<Batch<Timestamp>> {
        self.write(Urgency::Finish, move |tx| settle::extend(tx, &items)).await
    }

    async fn requeue(&self, items: Vec<Requeue>) -> Result<Batch<()>> {
        self.write(Urgency::Finish, move |tx| settle::requeue(tx, &items)).await
    }

    async fn depths(&self) -> Result<Vec<(QueueName, Depth)>> {
        self.read(|tx| inspect::depths(tx)).await
    }

    fn take_exhausted(&self) -> Vec<(QueueName, End, u64)> {
        self.inner.shared.exhausted.take()
    }

    async fn cancel_by_hand(&self, items: Vec<ByHand>) -> Result<Batch<()>> {
        self.write(Urgency::Finish, move |tx| settle::cancel(tx, &items)).await
    }

    async fn redrive_by_hand(&self, items: Vec<ByHand>) -> Result<Batch<Generation>> {
        self.write(Urgency::Publish, move |tx| dead_letters::redrive(tx, &items)).await
    }

    async fn discard(&self, ids: Vec<EntryId>) -> Result<Batch<()>> {
        self.write(Urgency::Publish, move |tx| dead_letters::discard(tx, &ids)).await
    }

    async fn entries(&self, ids: Vec<EntryId>) -> Result<Vec<Option<EntryView>>> {
        self.read(move |tx| inspect::entries(tx, &ids)).await
    }

    async fn dead_letters(&self, query: DeadLetters) -> Result<Vec<EntryView>> {
        self.read(move |tx| inspect::dead_letters(tx, &query)).await
    }

    async fn why(&self, id: EntryId) -> Result<Why> {
        self.read(move |tx| inspect::why(tx, id)).await
    }

    async fn depth(&self, queue: &QueueName) -> Result<Depth> {
        let queue = queue.clone();
        self.read(move |tx| inspect::depth(tx, &queue)).await
    }

    async fn census(&self) -> Result<Census> {
        self.read(|tx| inspect::census(tx)).await
    }

    async fn queues(&self) -> Result<Vec<QueueConfig>> {
        self.read(|tx| inspect::queues(tx)).await
    }

    async fn queue(&self, name: &QueueName) -> Result<Option<QueueConfig>> {
        let name = name.clone();
        self.read(move |tx| inspect::queue_config(tx, &name)).await
    }

    async fn put_queue(&self, name: &QueueName, change: QueueChange) -> Result<QueueConfig> {
        let name = name.clone();
        self.write(Urgency::Finish, move |tx| upkeep::put_queue(tx, &name, change)).await
    }

    async fn consumers_seen(&self, consumers: Vec<Consumer>) -> Result<Batch<()>> {
        self.write(Urgency::Claim, move |tx| upkeep::consumers_seen(tx, &consumers)).await
    }

    async fn beat(&self) -> Result<Option<Duration>> {
        self.write(Urgency::Finish, upkeep::beat).await
    }

    async fn oldest(&self) -> Result<Vec<(QueueName, Option<Duration>)>> {
        self.read(|tx| inspect::oldest(tx)).await
    }

    async fn elect(&self, task: &'static str, lease: Duration) -> Result<bool> {
        let holder = self.inner.name.clone();
        self.write(Urgency::Publish, move |tx| upkeep::elect(tx, task, &holder, lease)).await
    }

    async fn maintain(&self) -> Result<Upkeep> {
        let mut upkeep = self.write(Urgency::Finish, upkeep::maintain).await?;
        let began = std::time::Instant::now();
        let mut forgotten = upkeep.keys_expired;
        // In small transactions behind everything else, as long as there are any and the round has time.
        while forgotten >= upkeep::KEYS as u64 && began.elapsed() < KEYS_BUDGET {
            forgotten = self.write(Urgency::Publish, upkeep::forget_keys).await?;
            upkeep.keys_expired += forgotten;
        }
        self.count_log().await?;
        Ok(upkeep)
    }

    async fn probe(&self) -> Result<Probe> {
        let (mut job, answer) = job(probe::probe);
        // Should nobody wait any more, the next one tells.
        job.skippable = true;
        self.enqueue(Urgency::Finish, job)?;
        answer.await.unwrap_or_else(|_| Err(closed()))?;
        self.inner.inbox.checkpoints.check()?;
        Ok(Probe { wal_bytes: self.inner.inbox.place.wal_bytes() })
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

    fn stand(&self, claim: Claim) -> Option<Standing> {
        let (number, answer) = self.inner.inbox.standing.stand(claim)?;
        Some(Standing::new(number, self.inner.inbox.clone(), answer))
    }

    fn dismiss(&self) {
        self.inner.inbox.standing.dismiss();
    }

    fn check_caller(&self) -> Result<()> {
        held::refuse_own_call(&self.inner.inbox)
    }

    fn wakeups(&self) -> broadcast::Receiver<Wake> {
        let receiver = self.inner.inbox.wake.subscribe();
        // The writer looks for other connections' commits only while somebody listens: it must hear of the first.
        self.inner.inbox.jobs.nudge();
        receiver
    }

    fn wake(&self, queues: BTreeSet<QueueName>) {
        // A hint with nobody listening, or to a closed store, is nothing lost.
        let _ = self.inner.inbox.wake.send(Wake::Queues(queues));
        let (job, _) = job(upkeep::sort_in);
        let _ = self.enqueue(Urgency::Finish, job);
    }

    fn schedules(&self) -> Option<&dyn crate::schedules::Schedules> {
        Some(self)
    }

    async fn close(&self) {
        let holder = self.inner.name.clone();
        // A store that is closed already, or has stopped, resigns by letting its lease run out.
        let _ = self.write(Urgency::Finish, move |tx| Ok(tx.prepare(&tx.sql().resign)?.execute([&holder])?)).await;
        self.inner.close();
        let mut threads = self.inner.threads.clone();
        while threads.changed().await.is_ok() {}
    }
}
