//! Publishing and finalising inside the caller's own transaction. Takes no lock that another publisher waits for: lanes
//! are made beforehand on a connection of ours, grouped and delayed entries are left as arrived and sorted in after the
//! commit.

use deadpool_postgres::Object;
use tidegate_core::{DedupMode, NewEvent, QueueState};
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::Transaction;

use super::catalog::Catalog;
use super::errors::Fault;
use super::items::{
    Columns, Item, KeyRow, Known, Replacement, client, other_body, read_known, read_published, read_replaced,
};
use super::settle::FinalizeColumns;
use super::tags::Ended;
use super::{Inner, MAX_CATALOG_READS, PostgresStore};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Finalize, Finalized, Published};

impl PostgresStore {
    /// Publishes in the caller's transaction: it happens if and when that commits. Call [`wake`](crate::Store::wake)
    /// afterwards, so that consumers look at once. On an error roll the transaction back.
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
            if unknown && !inner.generation_stands(&catalog).await? {
                continue;
            }
            match inner.publish_in(tx, &catalog, &events).await {
                Err(Fault::StaleCatalog) => inner.reload_catalog().await?,
                published => return published.map_err(Fault::into_error),
            }
        }
        Err(Fault::StaleCatalog.into_error())
    }

    /// Finalises in the caller's transaction, so that effects in the same database happen exactly once. A lease that is
    /// no longer held aborts the transaction: it can then only be rolled back.
    ///
    /// # Errors
    /// `Fenced` or `NotFound`, and what the database says.
    pub async fn finalize_in(&self, tx: &Transaction<'_>, items: Vec<Finalize>) -> Result<Vec<Finalized>> {
        self.inner.finalize_in(tx, items).await.map_err(Fault::into_error)
    }
}

/// What a transaction of an application's own statements needs undone of our sessions' settings.
const PLAIN_SESSION: &str = "SET LOCAL enable_seqscan = on; SET LOCAL enable_bitmapscan = on; \
    SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on; SET LOCAL plan_cache_mode = auto";

/// A connection of the store's own, for a transaction of the application's statements. It goes back with its end.
#[derive(Debug)]
pub struct PostgresConnection {
    client: Object,
    /// Given back after the connection.
    _turn: OwnedSemaphorePermit,
}

impl PostgresStore {
    /// A connection to begin a transaction on: what is written there, and what is published and finalised with
    /// [`publish_in`](Self::publish_in) and [`finalize_in`](Self::finalize_in), commits together. A quarter of the
    /// connections is never lent, so that the store itself can go on.
    ///
    /// # Errors
    /// When there is none to be had.
    pub async fn connection(&self) -> Result<PostgresConnection> {
        let (client, turn) = self.inner.database.lend().await.map_err(Fault::into_error)?;
        Ok(PostgresConnection { client, _turn: turn })
    }
}

impl PostgresConnection {
    /// Begins a transaction; dropped, it is rolled back.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn begin(&mut self) -> Result<Transaction<'_>> {
        let client: &mut tokio_postgres::Client = &mut self.client;
        let tx = client.transaction().await?;
        tx.batch_execute(PLAIN_SESSION).await?;
        Ok(tx)
    }

    /// Commits a transaction.
    ///
    /// # Errors
    /// `Indeterminate` when the answer was lost, else what the database says.
    pub async fn commit(tx: Transaction<'_>) -> Result<()> {
        match tx.commit().await.map_err(Fault::from) {
            Ok(()) => Ok(()),
            Err(Fault::Lost(cause)) => Err(Error::new(
                ErrorKind::Indeterminate,
                "the answer to a commit was lost: it may or may not have happened",
            )
            .with_source(cause)),
            Err(fault) => Err(fault.into_error()),
        }
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
            if queue.state == QueueState::Draining {
                return Err(Error::new(ErrorKind::Full, format!("queue {} is draining", event.queue)).into());
            }
            match queue.lane(&event.event_type, event.priority) {
                Ok(lane) => items.push(Item { index, event: event.clone(), queue_id: queue.id, lane }),
                Err(lane) => missing.push(lane),
            }
        }
        if !missing.is_empty() {
            // On a connection of ours: in the caller's transaction it would make others wait for its end.
            self.add_lanes(missing).await?;
            return Err(Fault::StaleCatalog);
        }
        let rows = tx
            .query(&format!("SELECT generation, pg_current_xact_id() FROM {}.meta", self.options.store.namespace), &[])
            .await?;
        if rows.first().map(|row| row.get::<_, i64>(0)) != Some(catalog.generation) {
            return Err(Fault::StaleCatalog);
        }
        let mut published = Vec::with_capacity(items.len());
        for item in &items {
            match self.repeat_in(tx, item).await? {
                Some(repeat) => published.push(repeat),
                None => published.push(self.insert_in(tx, catalog, item).await?),
            }
        }
        Ok(published)
    }

    async fn insert_in(&self, tx: &Transaction<'_>, catalog: &Catalog, item: &Item) -> Result<Published, Fault> {
        let limit = catalog.queue_by_id(item.queue_id).and_then(|queue| queue.depth_limit);
        if let Some(limit) = limit {
            let bound = i64::try_from(limit).unwrap_or(i64::MAX);
            let held: i64 = tx.query_one(&self.sql.count_entries, &[&item.queue_id, &bound]).await?.get(0);
            if held >= bound {
                return Err(Error::new(ErrorKind::Full, format!("queue {} is full", item.event.queue)).into());
            }
        }
        let columns = Columns::new(&[item], None, self.now(), true);
        let rows = tx.query(&self.sql.publish, &columns.params()).await?;
        let made = read_published(&rows)?.pop().ok_or_else(|| Error::new(ErrorKind::Corrupt, "nothing was written"))?;
        if let (Some(dedup), Some(key)) = (&item.event.deduplication, KeyRow::new(item, &made)) {
            let takes_over = dedup.mode == DedupMode::ReplaceWaiting;
            let (clients, scopes, keys) = (vec![key.client], vec![key.scope], vec![key.key]);
            let (entries, events, windows) = (vec![key.entry], vec![key.event], vec![key.window]);
            let taken = tx
                .query(
                    &self.sql.take_keys,
                    &[&self.now(), &clients, &scopes, &keys, &entries, &events, &windows, &takes_over],
                )
                .await?;
            if taken.is_empty() {
                return Err(Error::new(ErrorKind::Busy, "the deduplication key was taken meanwhile; try again").into());
            }
        }
        Ok(made)
    }

    /// What a repeated key answers in the caller's transaction.
    async fn repeat_in(&self, tx: &Transaction<'_>, item: &Item) -> Result<Option<Published>, Fault> {
        let Some(dedup) = &item.event.deduplication else { return Ok(None) };
        let scope = i64::from(item.queue_id);
        let payload: &[u8] = &item.event.payload;
        let rows = tx
            .query(
                &self.sql.known_keys,
                &[
                    &self.now(),
                    &vec![client(item)],
                    &vec![scope],
                    &vec![&dedup.key],
                    &vec![&item.event.event_type],
                    &vec![payload],
                ],
            )
            .await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let Known { first, same, waiting } = read_known(row)?;
        match dedup.mode {
            DedupMode::KeepFirst if same => Ok(Some(first)),
            DedupMode::KeepFirst => Err(other_body(&dedup.key).into()),
            DedupMode::ReplaceWaiting if !waiting => Ok(None),
            DedupMode::ReplaceWaiting => {
                let replacement = Replacement::new(item, first.id, self.now());
                let rows = tx.query(&self.sql.replace_fact, &replacement.params()).await?;
                let ids: Vec<i64> = rows.iter().map(|row| row.get(2)).collect();
                tx.execute(&self.sql.work.put_tags, &[&ids]).await?;
                Ok(rows.first().map(|row| read_replaced(row, first)))
            }
        }
    }

    async fn finalize_in(&self, tx: &Transaction<'_>, items: Vec<Finalize>) -> Result<Vec<Finalized>, Fault> {
        let mut sorted: Vec<&Finalize> = items.iter().collect();
        sorted.sort_by_key(|item| item.id);
        sorted.dedup_by_key(|item| item.id);
        let rows = tx.query(&self.sql.finalize, &FinalizeColumns::new(&sorted).params(&self.now())).await?;
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
        // An error inside the transaction is the only way to make sure that it cannot commit.
        let abort =
            format!("DO $$ BEGIN RAISE EXCEPTION 'tidegate: the lease of entry {id} is no longer held'; END $$");
        let _ = tx.batch_execute(&abort).await;
        Err(Error::fenced().into())
    }
}
