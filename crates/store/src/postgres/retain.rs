//! Forgetting what is old, in small batches, on PostgreSQL. Finding it takes no lock; only what goes is locked, and looked at
//! again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tidegate_core::EntryId;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Inner;
use super::connection::{Begin, Tx};
use super::errors::Fault;
use super::items::micros;
use crate::error::Result;
use crate::work::{Retained, Retention};

/// How long one batch looks for something that can go.
const LOOK_FOR: Duration = Duration::from_millis(100);

/// Columns of the statement that finds old rows.
const IS_OLD: usize = 5;
const IS_YOUNG: usize = 6;
const CLIENT: usize = 7;

/// What a look at the log found.
#[derive(Debug, Default)]
struct Found {
    ids: Vec<i64>,
    next: Option<i64>,
}

impl Inner {
    pub(super) async fn retain(&self, retention: Retention) -> Result<Retained> {
        let batch = retention.batch.clamp(1, 10_000) as i64;
        let mut retained = Retained::default();
        if let Some(age) = retention.audit {
            let params: [&(dyn ToSql + Sync); 3] = [&self.now(), &micros(age), &batch];
            let reader = self.database.reader().await.map_err(Fault::into_error)?;
            retained.audit = reader.execute(&self.sql.work.forget_audit, &params).await.map_err(Fault::into_error)?;
        }
        if retention.log.is_none() && retention.dead_letters.is_none() {
            return Ok(retained);
        }
        let found = self.find_old(&retention, batch).await.map_err(Fault::into_error)?;
        retained.next = found.next.map(EntryId::new).transpose()?;
        if !found.ids.is_empty() {
            let (retention, ids) = (&retention, &found.ids);
            let forgotten = self
                .database
                .transact(
                    Begin::Write,
                    &|_| Ok(()),
                    &|tx| async move { self.forget_entries(&tx, retention, ids).await }.boxed(),
                    // What is gone is gone; what is not is found again.
                    &|_, _| async { Ok(true) }.boxed(),
                )
                .await;
            retained.entries = forgotten.map_err(Fault::into_error)?;
        }
        Ok(retained)
    }

    /// Walks the log by number, until something can go, for a while at most. It ends where everything is younger than what may
    /// go: entries end after they were published.
    async fn find_old(&self, retention: &Retention, batch: i64) -> Result<Found, Fault> {
        let began = Instant::now();
        let mut from = retention.from.map_or(0, EntryId::get);
        loop {
            let (log, dead) = ages(retention);
            let params: [&(dyn ToSql + Sync); 5] = [&self.now(), &log, &dead, &from, &batch];
            let rows = self.database.reader().await?.query(&self.sql.work.old_rows, &params).await?;
            let full = rows.len() as i64 == batch;
            let mut entries: Vec<&[Row]> = rows.chunk_by(|a, b| a.get::<_, i64>(0) == b.get::<_, i64>(0)).collect();
            // The last entry of a full batch may have further generations.
            if full && entries.len() > 1 {
                entries.pop();
            }
            let done: Option<i64> = entries.last().and_then(|rows| rows.first()).map(|row| row.get(0));
            let young = rows.iter().all(|row| row.get::<_, Option<bool>>(IS_YOUNG) == Some(true));
            let ids: Vec<i64> = entries.into_iter().filter_map(may_go).collect();
            let next = if full && !young { done } else { None };
            match next {
                Some(next) if ids.is_empty() && began.elapsed() < LOOK_FOR => from = next,
                next => return Ok(Found { ids, next }),
            }
        }
    }

    /// Locks these entries, and removes those that still may go.
    async fn forget_entries(&self, tx: &Tx, retention: &Retention, ids: &[i64]) -> Result<u64, Fault> {
        let sql = &self.sql.work;
        // Whoever counts waits, so that every row is counted once and taken off once.
        tx.query(&sql.lock_counts, &[]).await?;
        let (log, dead) = ages(retention);
        let params: [&(dyn ToSql + Sync); 4] = [&self.now(), &log, &dead, &ids];
        let rows = tx.query(&sql.lock_old_rows, &params).await?;
        let entries: Vec<&[Row]> = rows.chunk_by(|a, b| a.get::<_, i64>(0) == b.get::<_, i64>(0)).collect();
        let gone = Gone::new(&entries);
        if !gone.ids.is_empty() {
            let (events, statuses, clients) = &gone.tagged;
            tx.execute(&sql.forget_entries, &[&gone.ids, &gone.events, events, statuses, clients]).await?;
            tx.execute(&sql.forget_stretches, &[&gone.ids]).await?;
            let [completed, errors, failed, cancelled] = gone.counts;
            tx.execute(&sql.uncount, &[&completed, &errors, &failed, &cancelled]).await?;
            if !gone.clients.is_empty() {
                let clients: Vec<i64> = gone.clients.keys().map(|(client, _)| *client).collect();
                let statuses: Vec<i16> = gone.clients.keys().map(|(_, status)| *status).collect();
                let rows: Vec<i64> = gone.clients.values().copied().collect();
                tx.execute(&sql.uncount_clients, &[&clients, &statuses, &rows]).await?;
            }
        }
        Ok(gone.ids.len() as u64)
    }
}

/// How old entries and dead letters must be, in microseconds.
fn ages(retention: &Retention) -> (Option<i64>, Option<i64>) {
    (retention.log.map(micros), retention.dead_letters.map(micros))
}

/// The number of an entry that may go, with all its generations.
fn may_go(rows: &[Row]) -> Option<i64> {
    let last = rows.last()?;
    // A last row that was redriven belongs to a live entry.
    let lives = last.get::<_, i16>(3) == 1;
    let old = rows.iter().all(|row| row.get::<_, Option<bool>>(IS_OLD) == Some(true));
    (!lives && old).then(|| last.get(0))
}

/// Entries to be removed, as arrays.
#[derive(Default)]
struct Gone {
    ids: Vec<i64>,
    events: Vec<i64>,
    /// One for each log row of a tagged entry: its event, how it ended, and its client.
    tagged: (Vec<i64>, Vec<i16>, Vec<Option<i64>>),
    counts: [i64; 4],
    /// Rows by client and how they ended.
    clients: BTreeMap<(i64, i16), i64>,
}

impl Gone {
    fn new(entries: &[&[Row]]) -> Self {
        let mut gone = Self::default();
        for rows in entries {
            let (Some(id), Some(last)) = (may_go(rows), rows.last()) else { continue };
            gone.ids.push(id);
            gone.events.push(last.get(1));
            for row in *rows {
                let status: i16 = row.get(2);
                if let Some(count) = usize::try_from(status).ok().and_then(|status| gone.counts.get_mut(status)) {
                    *count += 1;
                }
                let client: Option<i64> = row.get(CLIENT);
                if let Some(client) = client {
                    *gone.clients.entry((client, status)).or_default() += 1;
                }
                if row.get::<_, i16>(4) & 1 != 0 {
                    gone.tagged.0.push(row.get(1));
                    gone.tagged.1.push(status);
                    gone.tagged.2.push(client);
                }
            }
        }
        gone
    }
}
