//! Publishing and finalising inside the caller's own transaction. Takes no lock that another publisher waits for: lanes
//! are made beforehand on a connection of ours, grouped and delayed entries are left as arrived and sorted in after the
//! commit. The caller's transaction may have any isolation level; where its snapshot is too old, the error says so.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Object;
use tidegate_core::{DedupMode, NewEvent, QueueState};
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::{IsolationLevel, Transaction};

use super::catalog::Catalog;
use super::connection::{Line, abandon};
use super::deduplication::{Drawn, Plan};
use super::errors::Fault;
use super::items::{Columns, Item, read_published};
use super::settle::FinalizeColumns;
use super::tags::Ended;
use super::{Inner, MAX_CATALOG_READS, PostgresStore};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Finalize, Finalized, Published};

impl PostgresStore {
    /// Publishes in the caller's transaction: it happens if and when that commits. Call [`wake`](crate::Store::wake)
    /// afterwards, so that consumers look at once. On an error roll the transaction back.
    ///
    /// Under REPEATABLE READ or SERIALIZABLE, a deduplication key that somebody else took since the transaction began is
    /// answered with `Busy`: roll back and run it again.
    ///
    /// # Errors
    /// As [`publish`](crate::Store::publish), for the first item that does not fit.
    pub async fn publish_in(&self, tx: &Transaction<'_>, events: Vec<NewEvent>) -> Result<Vec<Published>> {
        let inner = &self.inner;
        for event in &events {
            event.check(inner.options.store.payload_limit)?;
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
                published => return published.map_err(told_to_caller),
            }
        }
        Err(Fault::StaleCatalog.into_error())
    }

    /// Finalises in the caller's transaction, so that effects in the same database happen exactly once. A lease that is
    /// no longer held aborts the transaction: it can then only be rolled back.
    ///
    /// # Errors
    /// `Fenced` or `NotFound`, and what the database says. `Busy` when the transaction's snapshot (under REPEATABLE READ or
    /// SERIALIZABLE) is older than the claim.
    pub async fn finalize_in(&self, tx: &Transaction<'_>, items: Vec<Finalize>) -> Result<Vec<Finalized>> {
        self.inner.finalize_in(tx, items).await.map_err(told_to_caller)
    }
}

/// How often a key is looked at again that others take or claim meanwhile, and how long between.
const MAX_LOOKS: usize = 20;
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// An error in the caller's own transaction, which only the caller can run again.
fn told_to_caller(fault: Fault) -> Error {
    let Fault::Again(error) = fault else { return fault.into_error() };
    let message = format!("{error}; roll your transaction back and run it again (READ COMMITTED collides least)");
    Error::new(ErrorKind::Busy, message).with_source(error)
}

/// What a transaction of an application's own statements needs undone of our sessions' settings.
const PLAIN_SESSION: &str = "SET LOCAL enable_seqscan = on; SET LOCAL enable_bitmapscan = on; \
    SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on; SET LOCAL plan_cache_mode = auto";

/// A connection of the store's own, for a transaction of the application's statements. It goes back once the transaction
/// has ended with an answer; dropped before, the statement that may still run is stopped and the connection thrown away.
#[derive(Debug)]
pub struct PostgresConnection {
    client: Option<Object>,
    line: Arc<Line>,
    open: bool,
    /// Given back after the connection.
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
    /// A connection to begin a transaction on: what is written there, and what is published and finalised with
    /// [`publish_in`](Self::publish_in) and [`finalize_in`](Self::finalize_in), commits together. A quarter of the
    /// connections is never lent, so that the store itself can go on.
    ///
    /// # Errors
    /// When there is none to be had.
    pub async fn connection(&self) -> Result<PostgresConnection> {
        let database = &self.inner.database;
        let (client, turn) = database.lend().await.map_err(Fault::into_error)?;
        Ok(PostgresConnection { client: Some(client), line: Arc::clone(&database.line), open: false, _turn: turn })
    }
}

impl PostgresConnection {
    /// Begins a transaction; dropped, it is rolled back.
    ///
    /// # Errors
    /// When the connection is gone.
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

/// An open transaction of the application's statements.
pub struct PostgresTx<'a> {
    tx: Transaction<'a>,
    line: &'a Line,
    /// Whether the connection is still in it, as far as is known.
    open: &'a mut bool,
}

impl fmt::Debug for PostgresTx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTx").finish_non_exhaustive()
    }
}

impl<'a> PostgresTx<'a> {
    /// The transaction, for statements.
    #[must_use]
    pub fn transaction(&self) -> &Transaction<'a> {
        &self.tx
    }

    /// Commits.
    ///
    /// # Errors
    /// `Indeterminate` when the answer was lost, `Conflict` when a statement had failed and nobody said so, which rolls
    /// everything back; else what the database says.
    pub async fn commit(self) -> Result<()> {
        // A COMMIT after a statement that failed is answered like any other, though it rolls back. A statement before it,
        // in the same message, is then refused.
        match self.line.answer(self.tx.batch_execute("SELECT 1; COMMIT")).await {
            Ok(()) => {
                *self.open = false;
                // Dropped, it would send a ROLLBACK after the COMMIT. It owns nothing.
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

    /// Rolls back. Without an answer the connection is thrown away.
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
            // What keeps the first under its key may be a repeat, which is answered all the same.
            let may_repeat = event.deduplication.as_ref().is_some_and(|dedup| dedup.mode == DedupMode::KeepFirst);
            if queue.state == QueueState::Draining && !may_repeat {
                return Err(crate::store::draining(&event.queue).into());
            }
            match queue.lane(&event.event_type, event.priority) {
                Ok(lane) => items.push(Item { index, event: event.clone(), queue_id: queue.id, lane }),
                Err(lane) => match queue.too_many_lanes(self.options.store.max_lanes) {
                    Some(error) if self.catalog_stands(catalog).await? => return Err(error.into()),
                    Some(_) => return Err(Fault::StaleCatalog),
                    None => missing.push(lane),
                },
            }
        }
        if !missing.is_empty() {
            // On a connection of ours: in the caller's transaction it would make others wait for its end.
            self.add_lanes(missing).await?;
            return Err(Fault::StaleCatalog);
        }
        let ns = &self.options.schema();
        let sql = format!(
            "SELECT catalogue_stamp, current_setting('transaction_isolation') = 'read committed', \
             pg_current_xact_id()::text FROM {ns}.meta"
        );
        let rows = tx.query(&sql, &[]).await?;
        let known = rows.first().map(|row| (row.get::<_, i64>(0), row.get::<_, bool>(1)));
        let current = match known {
            Some((stamp, _)) if stamp == catalog.stamp => true,
            // The caller's snapshot never changes: whether the catalogue is current, another connection knows.
            Some((_, false)) => self.catalog_stands(catalog).await?,
            _ => false,
        };
        if !current {
            return Err(Fault::StaleCatalog);
        }
        let mut published = Vec::with_capacity(items.len());
        for item in &items {
            published.push(match &item.event.deduplication {
                None => self.insert_in(tx, catalog, item, None).await?,
                Some(_) => self.publish_keyed_in(tx, catalog, item).await?,
            });
        }
        Ok(published)
    }

    /// Writes a new entry, under numbers that were drawn before or are drawn now.
    async fn insert_in(
        &self,
        tx: &Transaction<'_>,
        catalog: &Catalog,
        item: &Item,
        drawn: Option<Drawn>,
    ) -> Result<Published, Fault> {
        let queue = catalog.queue_by_id(item.queue_id);
        if queue.is_some_and(|queue| queue.state == QueueState::Draining) {
            return Err(crate::store::draining(&item.event.queue).into());
        }
        let limit = queue.and_then(|queue| queue.depth_limit);
        if let Some(limit) = limit {
            let bound = i64::try_from(limit).unwrap_or(i64::MAX);
            let held: i64 = tx.query_one(&self.sql.count_entries, &[&item.queue_id, &bound]).await?.get(0);
            if held >= bound {
                return Err(Error::new(ErrorKind::Full, format!("queue {} is full", item.event.queue)).into());
            }
        }
        let ids = drawn.map(|drawn| vec![drawn.id]);
        let now = drawn.map(|drawn| drawn.now).or_else(|| self.now());
        let columns = Columns::new(&[item], ids.as_deref(), now, true);
        let rows = tx.query(&self.sql.publish, &columns.params()).await?;
        let made = read_published(&rows)?.pop();
        Ok(made.ok_or_else(|| Error::new(ErrorKind::Corrupt, "nothing was written"))?)
    }

    /// Publishes under a key: answers a repeat, replaces what waits, or takes the key for a new entry.
    async fn publish_keyed_in(&self, tx: &Transaction<'_>, catalog: &Catalog, item: &Item) -> Result<Published, Fault> {
        for look in 0..MAX_LOOKS {
            if look > 0 {
                tokio::time::sleep(LOOK_AGAIN_AFTER).await;
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
        let mut sorted: Vec<&Finalize> = items.iter().collect();
        sorted.sort_by_key(|item| item.id);
        sorted.dedup_by_key(|item| item.id);
        // One by one, in the order of ids: how a statement with many would walk is up to the caller's session.
        let mut rows = Vec::with_capacity(sorted.len());
        for item in sorted {
            rows.extend(tx.query(&self.sql.finalize, &FinalizeColumns::new(&[item]).params(&self.now())).await?);
        }
        if rows.len() == items.len() {
            if let Some(ended) = Ended::new(&rows) {
                tx.execute(&self.sql.work.end_tags, &ended.params()).await?;
            }
            // Followers in the groups left are promoted after the commit: until then nobody may run them.
            let groups = rows.iter().filter_map(|row| Some((row.get::<_, i32>(1), row.get::<_, Option<&str>>(2)?)));
            let (queue_ids, names): (Vec<i32>, Vec<&str>) = groups.unzip();
            if !names.is_empty() {
                tx.query(&self.sql.note_groups, &[&queue_ids, &names]).await?;
            }
            return Ok(items.iter().map(|item| Finalized { repeated: false, end: item.end }).collect());
        }
        let moved: std::collections::HashSet<i64> = rows.iter().map(|row| row.get(0)).collect();
        let stale = items.iter().find(|item| !moved.contains(&item.id.get()));
        let id = stale.map_or(0, |item| item.id.get());
        let unseen = match stale {
            Some(item) => self.is_unseen(tx, item).await?,
            None => false,
        };
        // An error inside the transaction is the only way to make sure that it cannot commit.
        let abort =
            format!("DO $$ BEGIN RAISE EXCEPTION 'tidegate: the lease of entry {id} is no longer held'; END $$");
        let _ = tx.batch_execute(&abort).await;
        if unseen {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "the transaction began before entry {id} was claimed and cannot see that it is: roll back and run it \
                     again, begin it after the claim, or use READ COMMITTED"
                ),
            )
            .into());
        }
        Err(Error::fenced().into())
    }

    /// Whether a lease does stand, but the caller's transaction has a snapshot from before it.
    async fn is_unseen(&self, tx: &Transaction<'_>, item: &Finalize) -> Result<bool, Fault> {
        let sql = "SELECT current_setting('transaction_isolation') = 'read committed'";
        if tx.query_one(sql, &[]).await?.get(0) {
            return Ok(false);
        }
        let reader = self.database.reader().await?;
        let rows = reader.query(&self.sql.look_up, &[&vec![item.id.get()]]).await?;
        Ok(rows.iter().any(|row| {
            let (token, leased): (i64, bool) = (row.get(1), row.get(3));
            item.token.is_none_or(|held| leased && held.0 == token)
        }))
    }
}
