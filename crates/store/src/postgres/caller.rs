//! Publishing and ending entries inside the caller's own transaction. Takes no lock that another publisher waits for:
//! missing lanes are made beforehand on a connection of the store, and grouped or delayed entries are written as
//! arrivals, which are sorted in after the commit. The caller's transaction may have any isolation level; where its
//! snapshot is too old, the error says so.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Object;
use futures_util::future::join;
use tidegate_core::{DedupMode, NewEvent, QueueState};
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::{IsolationLevel, Transaction};

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::deduplication::{Plan, Statements as _};
use crate::postgres::end::FinalizeColumns;
use crate::postgres::engine::catalogue::Catalog;
use crate::postgres::engine::connection::{Line, abandon};
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::postgres::engine::store::MAX_CATALOG_READS;
use crate::postgres::engine::store::PostgresStore;
use crate::postgres::flags::is_tagged;
use crate::postgres::items::{Columns, Item};
use crate::postgres::statements::deduplication::Drawn;
use crate::postgres::statements::publish::CallerRow;
use crate::postgres::tags::Ended;
use crate::values::{Family, Finalize, Finalized, Published};

impl PostgresStore {
    /// Publishes in the caller's transaction: the events exist once it commits. Call [`wake`](crate::Store::wake)
    /// afterwards, so that consumers claim them at once. After an error, roll the transaction back.
    ///
    /// Under REPEATABLE READ or SERIALIZABLE, a deduplication key that another transaction took since this one began is
    /// answered with `Busy`: roll back and run it again.
    ///
    /// # Errors
    /// As [`publish`](crate::Store::publish), for the first event that is refused; `Invalid` for one with an
    /// idempotency key.
    pub async fn publish_in(&self, tx: &Transaction<'_>, events: Vec<NewEvent>) -> Result<Vec<Published>> {
        let inner = &self.inner;
        inner.shared.database.outdated.refused()?;
        for event in &events {
            event.check(inner.shared.options.store.payload_limit)?;
            if event.idempotency.is_some() {
                return Err(Error::invalid("an idempotency key needs a transaction of its own: use publish"));
            }
        }
        for _ in 0..MAX_CATALOG_READS {
            let catalog = inner.catalog().await?;
            let unknown = events.iter().any(|event| catalog.queue(&event.queue).is_err());
            if unknown && !inner.catalog_stands(&catalog).await? {
                continue;
            }
            match inner.publish_in(tx, &catalog, &events).await {
                Err(Fault::StaleCatalog) => inner.reload_catalog().await?,
                published => return published.map_err(caller_error),
            }
        }
        Err(Fault::StaleCatalog.into_error())
    }

    /// Ends entries in the caller's transaction, so that effects in the same database happen exactly once. If a lease
    /// is no longer held, the transaction is aborted and can only be rolled back.
    ///
    /// # Errors
    /// `Fenced` when a lease is no longer held, or an entry does not exist or is named twice. `Busy` when the
    /// transaction's snapshot (under REPEATABLE READ or SERIALIZABLE) is older than the claim. Else what the database
    /// says.
    pub async fn finalize_in(&self, tx: &Transaction<'_>, items: Vec<Finalize>) -> Result<Vec<Finalized>> {
        // Sent together. An end does not depend on the catalogue, but this program may have become too old for it.
        let (checked, ended) = join(self.inner.check_schema(tx), self.inner.finalize_in(tx, items)).await;
        let fault = match (checked, ended) {
            (Ok(()), Ok(ended)) => return Ok(ended),
            // Whichever failed first aborted the transaction, and the other may have failed for that alone.
            (Err(checked), Err(ended)) if ended.is_aftermath() => checked,
            (_, Err(ended)) => ended,
            (Err(checked), Ok(_)) => checked,
        };
        abort(tx).await;
        self.inner.shared.database.outdated.refused()?;
        Err(caller_error(fault))
    }
}

/// How often a publish under a deduplication key is tried while other transactions take the key or claim its entry, and
/// the pause between two tries.
const MAX_KEY_ROUNDS: usize = 20;
const KEY_ROUND_PAUSE: Duration = Duration::from_millis(5);

/// The error for a fault in the caller's own transaction, which only the caller can run again.
fn caller_error(fault: Fault) -> Error {
    let Fault::Again(error) = fault else { return fault.into_error() };
    let message = format!("{error}; roll your transaction back and run it again (READ COMMITTED collides least)");
    Error::new(ErrorKind::Busy, message).with_source(error)
}

/// Makes sure that the caller's transaction cannot commit: only an error inside of it does.
async fn abort(tx: &Transaction<'_>) {
    // It fails, as it must.
    let _ = tx.batch_execute("DO $$ BEGIN RAISE EXCEPTION 'tidegate: entries could not be ended'; END $$").await;
}

/// Gives the application's own statements PostgreSQL's default planner settings, which the store's sessions change.
const PLAIN_SESSION: &str = "SET LOCAL enable_seqscan = on; SET LOCAL enable_bitmapscan = on; \
    SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on; SET LOCAL plan_cache_mode = auto";

/// A connection of the store, lent for a transaction of the application's own statements. It returns to the pool once
/// the transaction has ended with an answer. Dropped before that, a statement that still runs is cancelled and the
/// connection is closed.
#[derive(Debug)]
pub struct PostgresConnection {
    client: Option<Object>,
    line: Arc<Line>,
    /// Whether a transaction may still be open on it.
    open: bool,
    /// Declared last, so that it is given back after the connection.
    _turn: OwnedSemaphorePermit,
}

impl Drop for PostgresConnection {
    fn drop(&mut self) {
        if let (true, Some(client)) = (self.open, self.client.take()) {
            abandon(client, &self.line);
        }
    }
}

impl PostgresStore {
    /// Lends a connection to begin a transaction on: what is written there, and what is published and ended with
    /// [`publish_in`](Self::publish_in) and [`finalize_in`](Self::finalize_in), commits together. A quarter of the
    /// connections is never lent, so that the store itself can go on.
    ///
    /// # Errors
    /// `Busy` when no connection becomes free in time, `Unavailable` when the database cannot be reached.
    pub async fn connection(&self) -> Result<PostgresConnection> {
        let database = &self.inner.shared.database;
        let (client, turn) = database.lend().await.map_err(Fault::into_error)?;
        Ok(PostgresConnection { client: Some(client), line: Arc::clone(&database.line), open: false, _turn: turn })
    }
}

impl PostgresConnection {
    /// Begins a READ COMMITTED transaction. Dropping it rolls it back.
    ///
    /// # Errors
    /// `Unavailable` when the connection is gone.
    pub async fn begin(&mut self) -> Result<PostgresTx<'_>> {
        let Self { client, line, open, .. } = self;
        let Some(client) = client else { return Err(Error::new(ErrorKind::Unavailable, "the connection is gone")) };
        *open = true;
        let client: &mut tokio_postgres::Client = client;
        let begun = line.answer(async {
            let tx = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
            tx.batch_execute(PLAIN_SESSION).await?;
            Ok(tx)
        });
        let tx = begun.await.map_err(Fault::into_error)?;
        Ok(PostgresTx { tx, line, open })
    }
}

/// An open transaction for the application's own statements.
pub struct PostgresTx<'a> {
    tx: Transaction<'a>,
    line: &'a Line,
    /// The connection's flag: whether it may still be in this transaction.
    open: &'a mut bool,
}

impl fmt::Debug for PostgresTx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTx").finish_non_exhaustive()
    }
}

impl<'a> PostgresTx<'a> {
    /// The transaction, to run statements in.
    #[must_use]
    pub fn transaction(&self) -> &Transaction<'a> {
        &self.tx
    }

    /// Commits the transaction.
    ///
    /// # Errors
    /// `Indeterminate` when the answer was lost; `Conflict` when a statement had failed and its error was ignored, and
    /// everything was rolled back; else what the database says.
    pub async fn commit(self) -> Result<()> {
        // After a failed statement, COMMIT rolls back and still reports success. A statement sent before it in the same
        // message is refused in that state.
        match self.line.answer(self.tx.batch_execute("SELECT 1; COMMIT")).await {
            Ok(()) => {
                *self.open = false;
                // Dropping it would send a ROLLBACK after the COMMIT. It owns nothing, so nothing leaks.
                std::mem::forget(self.tx);
                Ok(())
            }
            Err(Fault::Lost(cause)) => Err(Error::new(
                ErrorKind::Indeterminate,
                "the answer to a commit was lost: it may or may not have happened",
            )
            .with_source(cause)),
            Err(fault) => {
                self.rollback().await;
                Err(fault.into_error())
            }
        }
    }

    /// Rolls the transaction back. If that is not answered, the connection is closed when it is dropped.
    pub async fn rollback(self) {
        *self.open = self.line.answer(self.tx.rollback()).await.is_err();
    }
}

impl Inner {
    async fn publish_in(
        &self,
        tx: &Transaction<'_>,
        catalog: &Catalog,
        events: &[NewEvent],
    ) -> Result<Vec<Published>, Fault> {
        let mut items = Vec::with_capacity(events.len());
        let mut missing = Vec::new();
        for (index, event) in events.iter().enumerate() {
            let queue = catalog.queue(&event.queue)?;
            // An event that keeps the first under its key may be a repeat, which is answered even while draining.
            let may_repeat = event.deduplication.as_ref().is_some_and(|dedup| dedup.mode == DedupMode::KeepFirst);
            if queue.state == QueueState::Draining && !may_repeat {
                return Err(crate::values::queues::draining(&event.queue).into());
            }
            match queue.lane(&event.event_type, event.priority) {
                Ok(lane) => items.push(Item::new(index, event, queue, lane)),
                Err(lane) => match queue.too_many_lanes(self.shared.options.store.lanes_of(self.family)) {
                    Some(error) if self.catalog_stands(catalog).await? => return Err(error.into()),
                    Some(_) => return Err(Fault::StaleCatalog),
                    None => missing.push(lane),
                },
            }
        }
        if !missing.is_empty() {
            // On a connection of the store: in the caller's transaction, other publishers would wait for its end.
            self.add_lanes(missing).await?;
            return Err(Fault::StaleCatalog);
        }
        let seen = tx.rows(&self.sql.publish.caller, &[]).await?.pop();
        let current = match seen {
            Some((CallerRow { stamp, .. }, _)) if stamp == catalog.stamp => true,
            // The caller's snapshot never changes, so another connection has to check whether the catalogue is current.
            Some((CallerRow { reads_committed: false, .. }, _)) => self.catalog_stands(catalog).await?,
            _ => false,
        };
        if !current {
            return Err(Fault::StaleCatalog);
        }
        let mut published = Vec::with_capacity(items.len());
        for item in &items {
            let made = match &item.event.deduplication {
                None => self.insert_in(tx, catalog, item, None).await?,
                Some(_) => self.publish_keyed_in(tx, catalog, item).await?,
            };
            published.push(item.published(made));
        }
        Ok(published)
    }

    /// Refuses a schema that has become too new for this program.
    async fn check_schema(&self, tx: &Transaction<'_>) -> Result<(), Fault> {
        if let Some(read) = tx.rows(&self.sql.catalogue.compatibility, &[]).await?.first() {
            self.shared.database.outdated.check(read.schema_version, read.oldest_compatible)?;
        }
        Ok(())
    }

    /// Writes a new entry, under the numbers given or, without any, under new ones.
    async fn insert_in(
        &self,
        tx: &Transaction<'_>,
        catalog: &Catalog,
        item: &Item,
        drawn: Option<Drawn>,
    ) -> Result<Published, Fault> {
        let queue = catalog.queue_by_id(item.queue_id);
        if queue.is_some_and(|queue| queue.state == QueueState::Draining) {
            return Err(crate::values::queues::draining(&item.event.queue).into());
        }
        let limit = queue.and_then(|queue| queue.depth_limit);
        if let Some(limit) = limit {
            let bound = i64::try_from(limit).unwrap_or(i64::MAX);
            let held = tx.rows(&self.sql.publish.count_entries, &[&item.queue_id, &bound]).await?;
            if held.iter().any(|held| held.0 >= bound) {
                return Err(Error::new(ErrorKind::Full, format!("queue {} is full", item.event.queue)).into());
            }
        }
        let ids = drawn.map(|drawn| vec![drawn.id]);
        let now = drawn.map(|drawn| drawn.now).or_else(|| self.now());
        let columns = Columns::new(&[item], ids.as_deref(), now, true);
        let made = tx.rows(&self.sql.publish.write, &columns.params()).await?.pop();
        let (made, _) = made.ok_or_else(|| Error::new(ErrorKind::Corrupt, "the publish statement returned no row"))?;
        Ok(made.try_into()?)
    }

    /// Publishes under a deduplication key: answers a repeat, replaces the waiting entry, or takes the key for a new
    /// one.
    async fn publish_keyed_in(&self, tx: &Transaction<'_>, catalog: &Catalog, item: &Item) -> Result<Published, Fault> {
        for round in 0..MAX_KEY_ROUNDS {
            if round > 0 {
                tokio::time::sleep(KEY_ROUND_PAUSE).await;
            }
            let mut answers = Vec::new();
            let plan: Plan<'_> = self.plan_keys(tx, vec![item], &mut answers).await?;
            if let Some((_, answer)) = answers.pop() {
                return Ok(answer?);
            }
            let drawn = self.draw_ids(tx, 1).await?;
            let Some(one) = drawn.first().copied() else { break };
            let new: Vec<(&Item, Drawn)> = plan.fresh.iter().map(|item| (*item, one)).collect();
            if !self.take_keys(tx, &plan, &new, &drawn).await? {
                continue;
            }
            if plan.replaced.is_empty() {
                return self.insert_in(tx, catalog, item, Some(one)).await;
            }
            if let Some(made) = self.replace(tx, &plan.replaced, &drawn).await?.and_then(|mut made| made.pop()) {
                return Ok(made);
            }
        }
        Err(Error::new(ErrorKind::Busy, "the deduplication key is being taken by others; roll back and try again")
            .into())
    }

    async fn finalize_in(&self, tx: &Transaction<'_>, items: Vec<Finalize>) -> Result<Vec<Finalized>, Fault> {
        items.iter().try_for_each(|item| item.check(Family::Entries))?;
        let mut sorted: Vec<&Finalize> = items.iter().collect();
        sorted.sort_by_key(|item| item.id);
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(Error::new(ErrorKind::Fenced, format!("entry {} is named twice", pair[0].id)).into());
        }
        // One statement per entry, in the order of ids: in which order one statement would lock many rows depends on
        // the plan, and that on the settings of the caller's session.
        let mut rows = Vec::with_capacity(sorted.len());
        let mut kept = Vec::new();
        for item in sorted {
            let ended = tx.rows(&self.sql.end.finalize, &FinalizeColumns::new(&[item]).params(&self.now())).await?;
            if ended.is_empty() {
                kept.extend(self.keep_in(tx, item).await?);
            }
            rows.extend(ended);
        }
        let moved: HashSet<i64> = rows.iter().map(|row| row.id).chain(kept).collect();
        let Some(stale) = items.iter().find(|item| !moved.contains(&item.id.get())) else {
            if let Some(ended) = Ended::new(&rows) {
                tx.execute(&*self.sql.tags.end, &ended.params()).await?;
            }
            // The next entries of these groups are promoted after the commit, by the notes: until then they may not
            // run.
            let groups = rows.iter().filter_map(|row| Some((row.queue_id, row.group_key.as_deref()?)));
            let (queue_ids, names): (Vec<i32>, Vec<&str>) = groups.unzip();
            if !names.is_empty() {
                tx.execute(&*self.sql.groups.note, &[&queue_ids, &names]).await?;
            }
            return Ok(items.iter().map(|item| Finalized { repeated: false, end: item.end }).collect());
        };
        let id = stale.id;
        if self.is_unseen(tx, stale).await? {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "the transaction began before entry {id} was claimed and cannot see the claim: roll back and run \
                     it again, begin it after the claim, or use READ COMMITTED"
                ),
            )
            .into());
        }
        Err(Error::fenced().into())
    }

    /// Keeps an entry in its place, if it does so when its holder ends it as a dead letter. Returns its number then.
    async fn keep_in(&self, tx: &Transaction<'_>, item: &Finalize) -> Result<Option<i64>, Fault> {
        if item.token.is_none() || !item.end.is_dead_letter() {
            return Ok(None);
        }
        let columns = FinalizeColumns::new(&[item]);
        let Some(row) = tx.rows(&self.sql.end.keep, &columns.params(&self.now())).await?.pop() else {
            return Ok(None);
        };
        if is_tagged(row.flags) {
            tx.execute(&*self.sql.tags.follow, &[&vec![row.id]]).await?;
        }
        Ok(Some(row.id))
    }

    /// Whether the lease is held, but the snapshot of the caller's transaction is older than the claim.
    async fn is_unseen(&self, tx: &Transaction<'_>, item: &Finalize) -> Result<bool, Fault> {
        if tx.rows(&self.sql.publish.reads_committed, &[]).await?.iter().any(|reads_committed| reads_committed.0) {
            return Ok(false);
        }
        let reader = self.shared.database.reader().await?;
        let rows = reader.rows(&self.sql.end.look_up, &[&vec![item.id.get()]]).await?;
        Ok(rows.iter().any(|row| item.token.is_none_or(|held| row.leased && held.0 == row.token)))
    }
}
