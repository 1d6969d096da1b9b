//! Lists of entries, their totals, and the counts behind those, on PostgreSQL.

use std::collections::HashMap;

use futures_util::FutureExt;
use tidegate_core::{End, EntryId, Status, Tsid};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Inner;
use super::connection::{Begin, Tx};
use super::errors::Fault;
use super::row;
use crate::error::{Error, ErrorKind, Result};
use crate::listing::{Dialect, Listing, candidates, check, is_counted};
use crate::work::{EntrySummary, ListQuery, Page, next_retry_at};

const DIALECT: Dialect = Dialect { parameter: '$', tables: '.' };
/// Steps of counting in one round of upkeep.
const ROUNDS: usize = 10;

impl Inner {
    pub(super) async fn list(&self, query: ListQuery) -> Result<Page> {
        check(&query)?;
        let reader = self.database.reader_patiently().await?;
        self.list_with(&reader, &query).await.map_err(Fault::into_error)
    }

    async fn list_with(&self, reader: &Tx, query: &ListQuery) -> Result<Page, Fault> {
        let total = if is_counted(query) { Some(self.total(reader, query).await?) } else { None };
        let mut listing = Listing::new(query);
        if total.is_some_and(|total| query.offset as u64 >= total) {
            return Ok(listing.finish(total));
        }
        let sql = candidates(query, DIALECT).replace("{ns}", &self.options.schema());
        while let Some(step) = listing.step() {
            let each = step.limit.saturating_add(step.skip);
            let mut params: Vec<&(dyn ToSql + Sync)> = vec![&step.before, &each, &step.limit, &step.skip];
            params.extend(query.tags.iter().map(|tag| tag as &(dyn ToSql + Sync)));
            let rows = reader.query(&sql, &params).await?;
            let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            let mut found: HashMap<i64, EntrySummary> = HashMap::with_capacity(ids.len());
            for row in reader.query(&self.sql.work.summaries, &[&ids]).await? {
                found.insert(row.get(0), read_summary(&row)?);
            }
            listing.add(step, &ids, |id| found.remove(&id));
        }
        Ok(listing.finish(total))
    }

    async fn total(&self, reader: &Tx, query: &ListQuery) -> Result<u64, Fault> {
        let ends = End::ALL.into_iter().filter(|end| query.status.is_none_or(|status| status.end() == Some(*end)));
        let ends: Vec<i16> = ends.map(End::code).collect();
        let live: i32 = match query.status {
            None => 1,
            Some(Status::Pending) => 2,
            Some(Status::Processing) => 3,
            Some(_) => 0,
        };
        let rows = match query.tags.first() {
            None => reader.query(&self.sql.work.total, &[&ends, &live]).await?,
            Some(tag) => reader.query(&self.sql.work.tag_total, &[&ends, &live, tag]).await?,
        };
        Ok(rows.first().map_or(0, |row| u64::try_from(row.get::<_, i64>(0)).unwrap_or(0)))
    }

    /// Adds log rows of finished transactions to the counts, so that totals need not read them.
    pub(super) async fn count_log(&self) -> Result<()> {
        for _ in 0..ROUNDS {
            let reader = self.database.reader().await.map_err(Fault::into_error)?;
            let rows = reader.query(&self.sql.work.uncounted, &[]).await.map_err(Fault::into_error)?;
            drop(reader);
            let Some(row) = rows.first() else { break };
            let (uncounted, anew): (bool, bool) = (row.get(0), row.get(1));
            if !uncounted && !anew {
                break;
            }
            let counted = self
                .database
                .transact(
                    Begin::Write,
                    &|_| Ok(()),
                    &|tx| async move { self.count_some(&tx, anew).await }.boxed(),
                    // The counts stand where they stand: the next round goes on from there.
                    &|_, ()| async { Ok(true) }.boxed(),
                )
                .await;
            counted.map_err(Fault::into_error)?;
        }
        Ok(())
    }

    async fn count_some(&self, tx: &Tx, anew: bool) -> Result<(), Fault> {
        let sql = &self.sql.work;
        let rows = tx.query(&sql.lock_counts, &[]).await?;
        let Some(from) = rows.first().map(|row| row.get::<_, String>(0)) else { return Ok(()) };
        if anew {
            tx.execute(&sql.forget_counts, &[]).await?;
            return Ok(());
        }
        let rows = tx.query(&sql.count_upto, &[&from]).await?;
        let Some(upto) = rows.first().map(|row| row.get::<_, String>(0)) else { return Ok(()) };
        tx.execute(&sql.count_tags, &[&from, &upto]).await?;
        tx.execute(&sql.count_log, &[&from, &upto]).await?;
        Ok(())
    }
}

fn read_summary(row: &Row) -> Result<EntrySummary> {
    let code: i16 = row.get(9);
    let status = match code {
        -2 => Status::Pending,
        -1 => Status::Processing,
        code => {
            End::from_code(code).ok_or_else(|| Error::new(ErrorKind::Corrupt, "an entry has an unknown end"))?.into()
        }
    };
    let (attempts, updated_at) = (row::count(row.get(3)), row::moment(row, 8));
    Ok(EntrySummary {
        id: EntryId::new(row.get(0))?,
        event_id: Tsid::from_i64(row.get(1)),
        queue: row::queue(row, 2, 14)?,
        event_type: row.get(11),
        title: row.get(12),
        tags: row::tags(row.get(13)),
        client: row.get::<_, Option<i64>>(14).map(Tsid::from_i64),
        status,
        attempts,
        max_attempts: row::count(row.get(4)),
        next_retry_at: next_retry_at(row::optional_moment(row, 10), attempts, updated_at)
            .filter(|_| status == Status::Pending),
        // One that was given back keeps the name of its last holder in the row; nobody holds it.
        worker: row.get::<_, Option<String>>(7).filter(|_| status != Status::Pending),
        priority: row.get(5),
        group: row.get(6),
        created_at: row::moment(row, 15),
        updated_at,
    })
}
