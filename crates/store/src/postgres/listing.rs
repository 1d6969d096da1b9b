//! Lists of entries and their totals on PostgreSQL. The list gate admits a list, which then runs in a read-only
//! transaction that the server cancels when it takes too long.

use std::collections::HashMap;
use std::future::Future;
use std::time::Instant;

use tidegate_core::{End, EntryId, QueueName, Status, Tsid};
use tokio_postgres::types::ToSql;

use crate::error::{Error, ErrorKind, Result};
use crate::list_gate::Kind;
use crate::listing::{
    COUNTED_ROWS, Found, Lanes, Listing, LivePart, MAX_LANES, Range, Searches, Source, Step, Total, check, ends_of,
    is_counted, needs_lanes, source, too_slow,
};
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::row::{count, tags};
use crate::postgres::engine::store::Inner;
use crate::postgres::statements::lists::{NearRow, SummaryRow};
use crate::sql::Only;
use crate::values::lists::next_retry_at;
use crate::values::{EntrySummary, ListQuery, Page};

type Params<'a> = Vec<&'a (dyn ToSql + Sync)>;

impl Inner {
    pub(super) async fn list(&self, query: ListQuery) -> Result<Page> {
        check(&query)?;
        let kind = Kind::of(&query);
        self.in_turn(kind, |tx| async move { self.list_with(&tx, &query).await }).await
    }

    /// Waits for the list gate, then reads in a transaction of its own, within `list_timeout`.
    pub(super) async fn in_turn<T, F>(&self, kind: Kind, work: impl FnOnce(Tx) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let limit = self.shared.options.store.list_timeout;
        let _turn = self.shared.lists.enter(kind).await?;
        let tx = self.shared.database.list_reader_patiently(limit).await?;
        let began = Instant::now();
        // On a timeout the connection is dropped and the server is asked to cancel the statement.
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
                    for row in tx.rows(&self.sql.lists.summaries, &[&found.ids]).await? {
                        entries.insert(row.id, row.try_into()?);
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
        let mut params: Params<'_> = vec![&step.before, &step.limit];
        if let Source::Ended(end) = source {
            let end = end.code();
            params.push(&end);
            return Ok(found(tx.rows(&sql.ended, &params).await?));
        }
        params.extend([&ends as &(dyn ToSql + Sync), &live]);
        match (source, &client) {
            (Source::Tags, None) => {
                params.push(&query.tags);
                Ok(found(tx.rows(&sql.of_tags, &params).await?))
            }
            (Source::Tags, Some(client)) => {
                params.extend([&query.tags as &(dyn ToSql + Sync), client]);
                Ok(found(tx.rows(&sql.of_tags_of_client, &params).await?))
            }
            (Source::Worker, of) => {
                params.extend([&step.stretches as &(dyn ToSql + Sync), &query.worker, &client]);
                let statement = if of.is_some() { &sql.of_worker_of_client } else { &sql.of_worker };
                Ok(found_near(&tx.rows(statement, &params).await?))
            }
            (Source::Lanes(lanes), _) => {
                let (name, of) = queue_parts(query);
                let lanes: Vec<i32> = lanes.lanes.iter().filter_map(|lane| i32::try_from(*lane).ok()).collect();
                params.extend([&step.stretches as &(dyn ToSql + Sync), &lanes, &client]);
                params.extend([&name as &(dyn ToSql + Sync), &of, &query.event_type]);
                Ok(found_near(&tx.rows(&sql.of_lanes, &params).await?))
            }
            (Source::Client, Some(client)) => {
                params.push(client);
                Ok(found(tx.rows(&sql.of_client, &params).await?))
            }
            _ => Ok(found(tx.rows(&sql.everything, &params).await?)),
        }
    }

    /// The lanes that hold what the query asks for; `None` if there are too many to merge.
    async fn lanes_of(&self, tx: &Tx, query: &ListQuery) -> Result<Option<Lanes>, Fault> {
        let client = query.client.map(Tsid::to_i64);
        let (name, of) = queue_parts(query);
        let limit = MAX_LANES as i64 + 1;
        let rows = tx.rows(&self.sql.lists.lanes_of, &[&client, &name, &of, &query.event_type, &limit]).await?;
        let mixed = rows.iter().any(|row| row.mixed) && (query.queue.is_some() || query.event_type.is_some());
        let lanes = rows.iter().map(|row| row.id.into()).collect();
        Ok((rows.len() <= MAX_LANES).then_some(Lanes { lanes, mixed }))
    }

    /// The numbers that entries of the query's time range can have.
    async fn range(&self, tx: &Tx, query: &ListQuery) -> Result<Range, Fault> {
        if query.from.is_none() && query.to.is_none() {
            return Ok(Range::EVERYTHING);
        }
        let sql = &self.sql.lists;
        let last = tx.row(&sql.last_number, &[]).await?.map_or(0, |Only(last)| last);
        let mut searches = Searches::new(query, last);
        loop {
            let pivots = searches.pivots();
            if pivots.is_empty() {
                return Ok(searches.range());
            }
            let rows = tx.rows(&sql.published_from, &[&pivots]).await?;
            let found = rows.into_iter().map(|row| (row.pivot, row.published_at.map(Into::into)));
            searches.learn(&found.collect::<Vec<_>>());
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
        let Some(row) = tx.row(statement, &params).await? else { return Ok(Total { rows: 0, capped: false }) };
        let total = row.counted + row.since_fitting - row.redriven + row.live_fitting;
        let capped = [row.since, row.redriven, row.live].into_iter().any(|rows| rows >= COUNTED_ROWS);
        Ok(Total { rows: u64::try_from(total).unwrap_or(0), capped })
    }
}

/// The name and the client of the query's queue.
fn queue_parts(query: &ListQuery) -> (Option<&str>, Option<i64>) {
    let queue = query.queue.as_ref();
    (queue.map(QueueName::name), queue.and_then(QueueName::client).map(Tsid::to_i64))
}

fn found(rows: Vec<Only<i64>>) -> Found {
    Found { ids: rows.into_iter().map(|Only(id)| id).collect(), down_to: None }
}

fn found_near(rows: &[NearRow]) -> Found {
    Found { ids: rows.iter().filter_map(|row| row.id).collect(), down_to: rows.first().and_then(|row| row.down_to) }
}

impl TryFrom<SummaryRow> for EntrySummary {
    type Error = Error;

    fn try_from(row: SummaryRow) -> Result<Self> {
        let status = match row.status {
            -2 => Status::Pending,
            -1 => Status::Processing,
            code => End::from_code(code)
                .ok_or_else(|| Error::new(ErrorKind::Corrupt, "an entry has an unknown end"))?
                .into(),
        };
        let client = row.client_id.map(Tsid::from_i64);
        let (attempts, updated_at) = (count(row.attempts), row.updated_at.into());
        Ok(Self {
            id: EntryId::new(row.id)?,
            event_id: Tsid::from_i64(row.event_id),
            queue: QueueName::of(client, row.name)?,
            event_type: row.event_type,
            title: row.title,
            tags: tags(row.tags.as_deref()),
            client,
            status,
            attempts,
            max_attempts: count(row.max_attempts),
            next_retry_at: next_retry_at(row.due_at.map(Into::into), attempts, updated_at)
                .filter(|_| status == Status::Pending),
            // A released entry keeps the name of its last holder in the row, but nobody holds it.
            worker: row.worker.filter(|_| status != Status::Pending),
            priority: row.priority,
            group: row.group_key,
            created_at: row.created_at.into(),
            updated_at,
        })
    }
}
