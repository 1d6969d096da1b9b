//! Lists of entries, their totals, and the counts behind those, on PostgreSQL. Lists run in turns of their own, each in a
//! transaction that only reads and that the server ends when it takes too long.

use std::collections::HashMap;
use std::future::Future;
use std::time::Instant;

use futures_util::FutureExt;
use tidegate_core::{End, EntryId, Status, Tsid};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Inner;
use super::connection::{Begin, Tx};
use super::errors::Fault;
use super::row;
use crate::error::{Error, ErrorKind, Result};
use crate::listing::{
    COUNTED_ROWS, Found, Lanes, Listing, LivePart, MAX_LANES, Range, Searches, Source, Step, Total, check, ends_of,
    is_counted, needs_lanes, source, too_slow,
};
use crate::turns::Kind;
use crate::work::{EntrySummary, ListQuery, Page, next_retry_at};

/// Steps of counting in one round of upkeep.
const ROUNDS: usize = 10;

type Params<'a> = Vec<&'a (dyn ToSql + Sync)>;

impl Inner {
    pub(super) async fn list(&self, query: ListQuery) -> Result<Page> {
        check(&query)?;
        let kind = Kind::of(&query);
        self.in_turn(kind, |tx| async move { self.list_with(&tx, &query).await }).await
    }

    /// Reads in a turn and a transaction of its own, within the time that a list may take.
    pub(super) async fn in_turn<T, F>(&self, kind: Kind, work: impl FnOnce(Tx) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let limit = self.options.store.list_timeout;
        let _turn = self.lists.enter(kind).await?;
        let tx = self.database.list_reader_patiently(limit).await?;
        let began = Instant::now();
        // Given up, the connection is thrown away and the server is told to stop.
        match tokio::time::timeout(limit, work(tx)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) if began.elapsed() >= limit => Err(too_slow(limit)),
            Ok(Err(fault)) => Err(fault.into_error()),
            Err(_) => Err(too_slow(limit)),
        }
    }

    async fn list_with(&self, tx: &Tx, query: &ListQuery) -> Result<Page, Fault> {
        let total = if is_counted(query) { Some(self.total(tx, query).await?) } else { None };
        let lanes = if needs_lanes(query) { self.lanes_of(tx, query).await? } else { None };
        let source = source(query, lanes);
        let range = self.range(tx, query).await?;
        let mut listing = Listing::new(query, &source, range);
        let beyond = |total: Total| !total.capped && query.offset as u64 >= total.rows;
        if !total.is_some_and(beyond) {
            while let Some(step) = listing.step() {
                let found = self.candidates(tx, query, &source, step).await?;
                let mut entries: HashMap<i64, EntrySummary> = HashMap::new();
                if step.read {
                    for row in tx.query(&self.sql.lists.summaries, &[&found.ids]).await? {
                        entries.insert(row.get(0), read_summary(&row)?);
                    }
                }
                listing.add(step, &found, |id| entries.remove(&id));
            }
        }
        tx.end_reading().await?;
        Ok(listing.finish(total))
    }

    async fn candidates(&self, tx: &Tx, query: &ListQuery, source: &Source, step: Step) -> Result<Found, Fault> {
        let sql = &self.sql.lists;
        let (ends, live) = (ends_of(query.status), LivePart::of(query.status) as i32);
        let client = query.client.map(Tsid::to_i64);
        let queue = query.queue.as_ref().map(|queue| (queue.name(), queue.client().map(Tsid::to_i64)));
        let (name, of) = (queue.map(|queue| queue.0), queue.and_then(|queue| queue.1));
        let mut params: Params<'_> = vec![&step.before, &step.limit];
        let end: i16;
        let mut lanes: Vec<i32> = Vec::new();
        let statement = match source {
            Source::Ended(one) => {
                end = one.code();
                params.push(&end);
                &sql.list_ended
            }
            source => {
                params.extend([&ends as &(dyn ToSql + Sync), &live]);
                match (source, &client) {
                    (Source::Tags, None) => {
                        params.push(&query.tags);
                        &sql.list_tags
                    }
                    (Source::Tags, Some(client)) => {
                        params.extend([&query.tags as &(dyn ToSql + Sync), client]);
                        &sql.list_tags_client
                    }
                    (Source::Worker, of) => {
                        params.extend([&step.stretches as &(dyn ToSql + Sync), &query.worker, &client]);
                        if of.is_some() { &sql.list_worker_client } else { &sql.list_worker }
                    }
                    (Source::Lanes(found), _) => {
                        lanes.extend(found.lanes.iter().filter_map(|lane| i32::try_from(*lane).ok()));
                        params.extend([&step.stretches as &(dyn ToSql + Sync), &lanes, &client]);
                        params.extend([&name as &(dyn ToSql + Sync), &of, &query.event_type]);
                        &sql.list_lanes
                    }
                    (Source::Client, Some(client)) => {
                        params.push(client);
                        &sql.list_client
                    }
                    _ => &sql.list_all,
                }
            }
        };
        let rows = tx.query(statement, &params).await?;
        // Lists by stretches say how far they looked, in every row, and have a row without a number where they found none.
        let down_to = rows.first().and_then(|row| row.try_get::<_, Option<i64>>(1).ok().flatten());
        Ok(Found { ids: rows.iter().filter_map(|row| row.get(0)).collect(), down_to })
    }

    /// The lanes of what is wanted; none where there are too many to merge.
    async fn lanes_of(&self, tx: &Tx, query: &ListQuery) -> Result<Option<Lanes>, Fault> {
        let client = query.client.map(Tsid::to_i64);
        let queue = query.queue.as_ref().map(|queue| (queue.name(), queue.client().map(Tsid::to_i64)));
        let (name, of) = (queue.map(|queue| queue.0), queue.and_then(|queue| queue.1));
        let limit = MAX_LANES as i64 + 1;
        let rows = tx.query(&self.sql.lists.lanes_of, &[&client, &name, &of, &query.event_type, &limit]).await?;
        let mixed = rows.iter().any(|row| row.get(1)) && (query.queue.is_some() || query.event_type.is_some());
        let lanes = rows.iter().map(|row| i64::from(row.get::<_, i32>(0))).collect();
        Ok((rows.len() <= MAX_LANES).then_some(Lanes { lanes, mixed }))
    }

    /// The numbers that a time range can have.
    async fn range(&self, tx: &Tx, query: &ListQuery) -> Result<Range, Fault> {
        if query.from.is_none() && query.to.is_none() {
            return Ok(Range::EVERYTHING);
        }
        let sql = &self.sql.lists;
        let last = tx.query(&sql.last_number, &[]).await?.first().map_or(0, |row| row.get(0));
        let mut searches = Searches::new(query, last);
        loop {
            let pivots = searches.pivots();
            if pivots.is_empty() {
                return Ok(searches.range());
            }
            let rows = tx.query(&sql.moments, &[&pivots]).await?;
            let found: Vec<_> = rows.iter().map(|row| (row.get(0), row::optional_moment(row, 1))).collect();
            searches.learn(&found);
        }
    }

    async fn total(&self, tx: &Tx, query: &ListQuery) -> Result<Total, Fault> {
        let sql = &self.sql.lists;
        let (ends, live) = (ends_of(query.status), LivePart::of(query.status) as i32);
        let client = query.client.map(Tsid::to_i64);
        let mut params: Params<'_> = vec![&ends, &live, &COUNTED_ROWS];
        let statement = match (query.tags.first(), &client) {
            (None, None) => &sql.total,
            (Some(tag), None) => {
                params.push(tag);
                &sql.tag_total
            }
            (None, Some(client)) => {
                params.push(client);
                &sql.client_total
            }
            (Some(tag), Some(client)) => {
                params.extend([tag as &(dyn ToSql + Sync), client]);
                &sql.client_tag_total
            }
        };
        let rows = tx.query(statement, &params).await?;
        let part = |column: usize| rows.first().map_or(0, |row| row.get::<_, i64>(column));
        let (counted, since, again, looked_at) = (part(0), part(1), part(3), part(4));
        let total = counted + part(2) - again + part(5);
        let capped = [since, again, looked_at].into_iter().any(|rows| rows >= COUNTED_ROWS);
        Ok(Total { rows: u64::try_from(total).unwrap_or(0), capped })
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
