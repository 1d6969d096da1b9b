//! Deduplication keys of entries: what a repeat answers, who takes a key, and replacing what waits under one. Works in our
//! transactions and in the caller's own. Rows are locked in one order: keys, then (by `publish`) groups, then entries.

use std::collections::HashMap;

use tidegate_core::{DedupMode, EntryId, NewEvent, Timestamp, Tsid};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Transaction};

use super::Inner;
use super::connection::Tx;
use super::errors::Fault;
use super::items::{Item, client, key, micros, mode, other_body, retry, tags};
use super::row::{moment, optional_moment};
use crate::error::{Error, Result};
use crate::store::{PublishOutcome, Published};

/// Where statements run.
pub(super) trait Statements: Sync {
    fn rows(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> impl Future<Output = Result<Vec<Row>, Fault>> + Send;
}

impl Statements for Tx {
    async fn rows(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Fault> {
        self.query(sql, params).await
    }
}

impl Statements for Transaction<'_> {
    async fn rows(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Fault> {
        Ok(self.query(sql, params).await?)
    }
}

/// What is to become of items, by what their keys stand for.
#[derive(Debug, Default)]
pub(super) struct Plan<'a> {
    /// New entries.
    pub(super) fresh: Vec<&'a Item>,
    /// Entries that wait and get other contents.
    pub(super) replaced: Vec<Replaced<'a>>,
    /// The entries that keys of `fresh` stood for and that no longer wait, by the items' indexes.
    pub(super) taken_over: HashMap<usize, i64>,
}

/// An entry that waits and gets other contents.
#[derive(Debug)]
pub(super) struct Replaced<'a> {
    pub(super) item: &'a Item,
    pub(super) first: Published,
    /// Its group; its queue is the item's.
    pub(super) group: Option<String>,
}

/// The numbers of an entry to come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drawn {
    pub(super) id: i64,
    pub(super) event_id: i64,
    pub(super) now: Timestamp,
}

/// A key on its way into the database, in the order in which keys are locked.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KeyRow<'a> {
    client: i64,
    scope: i64,
    key: &'a str,
    entry: i64,
    event: i64,
    window: i64,
    /// The entry that the key must still stand for, unless it is free.
    seen: Option<i64>,
}

impl<'a> KeyRow<'a> {
    fn new(item: &'a Item, entry: i64, event: i64, seen: Option<i64>) -> Option<Self> {
        let dedup = item.event.deduplication.as_ref()?;
        let (client, scope, window) = (client(item), i64::from(item.queue_id), micros(dedup.window));
        Some(Self { client, scope, key: &dedup.key, entry, event, window, seen })
    }
}

impl Inner {
    /// Answers repeats; what remains is new, or replaces what waits.
    pub(super) async fn plan_keys<'a>(
        &self,
        tx: &impl Statements,
        items: Vec<&'a Item>,
        answers: &mut Vec<(usize, Result<Published>)>,
    ) -> Result<Plan<'a>, Fault> {
        let clients: Vec<i64> = items.iter().map(|item| client(item)).collect();
        let scopes: Vec<i64> = items.iter().map(|item| i64::from(item.queue_id)).collect();
        let keys: Vec<Option<&str>> = items.iter().map(|item| key(item)).collect();
        let types: Vec<&str> = items.iter().map(|item| item.event.event_type.as_str()).collect();
        let payloads: Vec<&[u8]> = items.iter().map(|item| item.event.payload.as_ref()).collect();
        let rows = tx.rows(&self.sql.known_keys, &[&self.now(), &clients, &scopes, &keys, &types, &payloads]).await?;
        let known: HashMap<usize, &Row> = rows.iter().map(|row| (row.get::<_, i32>(0) as usize - 1, row)).collect();
        let mut plan = Plan::default();
        for (position, item) in items.into_iter().enumerate() {
            let Some(row) = known.get(&position) else {
                plan.fresh.push(item);
                continue;
            };
            let first = read_first(row)?;
            let (same, waiting): (bool, bool) = (row.get(4), row.get(5));
            match mode(item) {
                DedupMode::KeepFirst if same => answers.push((item.index, Ok(first))),
                DedupMode::KeepFirst => answers.push((item.index, Err(other_body(key(item).unwrap_or_default())))),
                DedupMode::ReplaceWaiting if waiting => {
                    plan.replaced.push(Replaced { item, first, group: row.get(6) });
                }
                DedupMode::ReplaceWaiting => {
                    plan.taken_over.insert(item.index, first.id.get());
                    plan.fresh.push(item);
                }
            }
        }
        Ok(plan)
    }

    /// Draws the numbers of entries to come, in rising order.
    pub(super) async fn draw_ids(&self, tx: &impl Statements, count: usize) -> Result<Vec<Drawn>, Fault> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        let rows = tx.rows(&self.sql.draw_ids, &[&self.now(), &count]).await?;
        let read = |row: &Row| Drawn { id: row.get(0), event_id: row.get(1), now: row.get(2) };
        let mut drawn: Vec<Drawn> = rows.iter().map(read).collect();
        drawn.sort_unstable_by_key(|drawn| drawn.id);
        Ok(drawn)
    }

    /// Takes the keys of new entries (each with its numbers), and those under which others are replaced. False when one
    /// of them stands for something else by now, and it is to be looked at again; in a transaction of ours none is taken
    /// then, since it is rolled back.
    pub(super) async fn take_keys(
        &self,
        tx: &impl Statements,
        plan: &Plan<'_>,
        fresh: &[(&Item, Drawn)],
        replaced: &[Drawn],
    ) -> Result<bool, Fault> {
        let new = fresh.iter().filter_map(|(item, drawn)| {
            KeyRow::new(item, drawn.id, drawn.event_id, plan.taken_over.get(&item.index).copied())
        });
        let others = plan.replaced.iter().zip(replaced).filter_map(|(replaced, drawn)| {
            let entry = replaced.first.id.get();
            KeyRow::new(replaced.item, entry, drawn.event_id, Some(entry))
        });
        let mut rows: Vec<KeyRow<'_>> = new.chain(others).collect();
        if rows.is_empty() {
            return Ok(true);
        }
        rows.sort_unstable();
        let clients: Vec<i64> = rows.iter().map(|row| row.client).collect();
        let scopes: Vec<i64> = rows.iter().map(|row| row.scope).collect();
        let keys: Vec<&str> = rows.iter().map(|row| row.key).collect();
        let entries: Vec<i64> = rows.iter().map(|row| row.entry).collect();
        let events: Vec<i64> = rows.iter().map(|row| row.event).collect();
        let windows: Vec<i64> = rows.iter().map(|row| row.window).collect();
        let seen: Vec<Option<i64>> = rows.iter().map(|row| row.seen).collect();
        let params: [&(dyn ToSql + Sync); 8] =
            [&self.now(), &clients, &scopes, &keys, &entries, &events, &windows, &seen];
        let taken = tx.rows(&self.sql.take_keys, &params).await?;
        Ok(taken.len() == rows.len())
    }

    /// Gives waiting entries, whose keys are taken, other contents, in two statements: the second sees what is there once
    /// the first has the locks. `None` when one no longer waits, or is being claimed, and it is to be looked at again.
    pub(super) async fn replace(
        &self,
        tx: &impl Statements,
        replaced: &[Replaced<'_>],
        drawn: &[Drawn],
    ) -> Result<Option<Vec<Published>>, Fault> {
        let Some(Drawn { now, .. }) = drawn.first() else { return Ok(Some(Vec::new())) };
        let mut ids: Vec<i64> = replaced.iter().map(|replaced| replaced.first.id.get()).collect();
        ids.sort_unstable();
        if tx.rows(&self.sql.lock_waiting, &[&ids]).await?.len() < ids.len() {
            return Ok(None);
        }
        let contents = Contents::new(replaced, drawn);
        let rows = tx.rows(&self.sql.replace_facts, &contents.params(now)).await?;
        let made: HashMap<i64, &Row> = rows.iter().map(|row| (row.get(0), row)).collect();
        let tagged = replaced.iter().filter(|replaced| !replaced.item.event.tags.is_empty());
        let tagged: Vec<i64> = tagged.map(|replaced| replaced.first.id.get()).collect();
        if let Some(first) = tagged.iter().min() {
            tx.rows(&self.sql.work.put_tags, &[&tagged]).await?;
            self.tag_marks.lower(*first);
        }
        let answer = |replaced: &Replaced<'_>| {
            made.get(&replaced.first.id.get()).map(|row| Published {
                event_id: Tsid::from_i64(row.get(1)),
                created_at: moment(row, 2),
                outcome: PublishOutcome::Replaced,
                ..replaced.first
            })
        };
        Ok(replaced.iter().map(answer).collect())
    }
}

fn read_first(row: &Row) -> Result<Published, Fault> {
    Ok(Published {
        id: EntryId::new(row.get(1)).map_err(Error::from)?,
        event_id: Tsid::from_i64(row.get(2)),
        outcome: PublishOutcome::Duplicate,
        created_at: optional_moment(row, 3).unwrap_or(Timestamp::UNIX_EPOCH),
    })
}

/// The arrays of the statement that replaces facts.
struct Contents<'a> {
    entries: Vec<i64>,
    events: Vec<i64>,
    types: Vec<&'a str>,
    payloads: Vec<&'a [u8]>,
    times: Vec<Option<Timestamp>>,
    texts: [Vec<Option<&'a str>>; 9],
    tags: Vec<Option<String>>,
    retries: Vec<Option<String>>,
}

impl<'a> Contents<'a> {
    fn new(replaced: &'a [Replaced<'a>], drawn: &[Drawn]) -> Self {
        let events = || replaced.iter().map(|replaced| &replaced.item.event);
        let text = |read: fn(&NewEvent) -> &Option<String>| -> Vec<Option<&'a str>> {
            events().map(|event| read(event).as_deref()).collect()
        };
        Self {
            entries: replaced.iter().map(|replaced| replaced.first.id.get()).collect(),
            events: drawn.iter().map(|drawn| drawn.event_id).collect(),
            types: events().map(|event| event.event_type.as_str()).collect(),
            payloads: events().map(|event| event.payload.as_ref()).collect(),
            times: events().map(|event| event.time).collect(),
            texts: [
                text(|event| &event.content_type),
                text(|event| &event.source),
                text(|event| &event.subject),
                text(|event| &event.external_id),
                text(|event| &event.correlation_id),
                text(|event| &event.causation_id),
                text(|event| &event.attributes),
                text(|event| &event.title),
                text(|event| &event.description),
            ],
            tags: events().map(tags).collect(),
            retries: events().map(retry).collect(),
        }
    }

    /// The parameters in the statement's order.
    fn params<'b>(&'b self, now: &'b Timestamp) -> [&'b (dyn ToSql + Sync); 17] {
        let [content_type, source, subject, external_id, correlation_id, causation_id, attributes, title, description] =
            &self.texts;
        [
            now,
            &self.entries,
            &self.events,
            &self.types,
            &self.payloads,
            content_type,
            source,
            subject,
            &self.times,
            external_id,
            correlation_id,
            causation_id,
            attributes,
            title,
            description,
            &self.tags,
            &self.retries,
        ]
    }
}
