//! Deduplication keys: answering repeats, taking keys, and replacing the entry that waits under a key. Works in the
//! store's transactions and in the caller's own. Rows are locked in one order: keys, then (by `publish`) groups, then
//! entries.

use std::collections::HashMap;

use tidegate_core::{DedupMode, EntryId, NewEvent, Timestamp, Tsid};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Transaction};

use crate::error::Result;
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::postgres::items::{Item, age, client, expiry, key, micros, mode, other_body, retry, tags};
use crate::postgres::statements::deduplication::{Drawn, KnownKey, ReplacedRow};
use crate::sql::{FromRow, Statement};
use crate::values::{PublishOutcome, Published};

/// The parameters of a statement.
type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A transaction to run statements in: the store's or the caller's own.
pub(super) trait Statements: Sync {
    /// Runs a statement and reads its rows.
    fn rows<R: FromRow<Row>>(
        &self,
        statement: &Statement<R>,
        params: Params<'_>,
    ) -> impl Future<Output = Result<Vec<R>, Fault>> + Send;

    /// Runs a statement and returns how many rows it changed.
    fn execute(&self, statement: &Statement, params: Params<'_>) -> impl Future<Output = Result<u64, Fault>> + Send;
}

impl Statements for Tx {
    async fn rows<R: FromRow<Row>>(&self, statement: &Statement<R>, params: Params<'_>) -> Result<Vec<R>, Fault> {
        self.rows(statement, params).await
    }

    async fn execute(&self, statement: &Statement, params: Params<'_>) -> Result<u64, Fault> {
        self.execute(statement, params).await
    }
}

impl Statements for Transaction<'_> {
    async fn rows<R: FromRow<Row>>(&self, statement: &Statement<R>, params: Params<'_>) -> Result<Vec<R>, Fault> {
        let rows = self.query(&**statement, params).await?;
        Ok(rows.iter().map(|row| R::read(row, 0)).collect::<Result<_>>()?)
    }

    async fn execute(&self, statement: &Statement, params: Params<'_>) -> Result<u64, Fault> {
        Ok(self.execute(&**statement, params).await?)
    }
}

/// What to do with items, by the entries that their keys refer to.
#[derive(Debug, Default)]
pub(super) struct Plan<'a> {
    /// Items that become new entries.
    pub(super) fresh: Vec<&'a Item>,
    /// Waiting entries that get another fact.
    pub(super) replaced: Vec<Replaced<'a>>,
    /// Entries that no longer wait, whose keys items of `fresh` take over; by the items' indexes.
    pub(super) taken_over: HashMap<usize, i64>,
}

/// A waiting entry that gets another fact.
#[derive(Debug)]
pub(super) struct Replaced<'a> {
    pub(super) item: &'a Item,
    /// What the first publish under the key answered.
    pub(super) first: Published,
    /// The entry's group; its queue is the item's.
    pub(super) group: Option<String>,
}

/// A key to be written; the fields are in the order in which keys are sorted and locked.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KeyRow<'a> {
    client: i64,
    scope: i64,
    key: &'a str,
    entry: i64,
    event: i64,
    window: i64,
    /// The entry that the key must still refer to, unless the key is free or expired.
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
    /// Answers repeats; the other items become new entries or replace waiting ones.
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
        let params: [&(dyn ToSql + Sync); 6] = [&self.now(), &clients, &scopes, &keys, &types, &payloads];
        let known = tx.rows(&self.sql.deduplication.known, &params).await?;
        let mut known: HashMap<usize, KnownKey> = known.into_iter().map(|key| (key.ord as usize - 1, key)).collect();
        let mut plan = Plan::default();
        for (position, item) in items.into_iter().enumerate() {
            let Some(known) = known.remove(&position) else {
                plan.fresh.push(item);
                continue;
            };
            let first = first(&known)?;
            match mode(item) {
                DedupMode::KeepFirst if known.same => answers.push((item.index, Ok(first))),
                DedupMode::KeepFirst => answers.push((item.index, Err(other_body(key(item).unwrap_or_default())))),
                DedupMode::ReplaceWaiting if known.waiting => {
                    plan.replaced.push(Replaced { item, first, group: known.group_key });
                }
                DedupMode::ReplaceWaiting => {
                    plan.taken_over.insert(item.index, first.id.get());
                    plan.fresh.push(item);
                }
            }
        }
        Ok(plan)
    }

    /// Draws the numbers of new entries, in rising order.
    pub(super) async fn draw_ids(&self, tx: &impl Statements, count: usize) -> Result<Vec<Drawn>, Fault> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        let mut drawn = tx.rows(&self.sql.deduplication.draw_ids, &[&self.now(), &count]).await?;
        drawn.sort_unstable_by_key(|drawn| drawn.id);
        Ok(drawn)
    }

    /// Takes the keys of new entries (each with its numbers), and those under which entries are replaced. False when
    /// one of the keys refers to another entry by now, so that the plan has to be made again; the store's own
    /// transactions are then rolled back and take none of them.
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
        let taken = tx.execute(&self.sql.deduplication.take, &params).await?;
        Ok(taken == rows.len() as u64)
    }

    /// Replaces the facts of waiting entries whose keys were taken, in two statements: the second one sees what is
    /// there once the first has the locks. `None` when an entry no longer waits or is being claimed, so that the plan
    /// has to be made again.
    pub(super) async fn replace(
        &self,
        tx: &impl Statements,
        replaced: &[Replaced<'_>],
        drawn: &[Drawn],
    ) -> Result<Option<Vec<Published>>, Fault> {
        let Some(Drawn { now, .. }) = drawn.first() else { return Ok(Some(Vec::new())) };
        let mut ids: Vec<i64> = replaced.iter().map(|replaced| replaced.first.id.get()).collect();
        ids.sort_unstable();
        if tx.rows(&self.sql.deduplication.lock_waiting, &[&self.now(), &ids]).await?.len() < ids.len() {
            return Ok(None);
        }
        let contents = Contents::new(replaced, drawn);
        let made = tx.rows(&self.sql.deduplication.replace, &contents.params(now)).await?;
        let made: HashMap<i64, ReplacedRow> = made.into_iter().map(|row| (row.id, row)).collect();
        let tagged = replaced.iter().filter(|replaced| !replaced.item.event.tags.is_empty());
        let tagged: Vec<i64> = tagged.map(|replaced| replaced.first.id.get()).collect();
        if let Some(first) = tagged.iter().min() {
            tx.execute(&self.sql.tags.put, &[&tagged]).await?;
            self.tag_marks.lower(*first);
        }
        let answer = |replaced: &Replaced<'_>| {
            made.get(&replaced.first.id.get()).map(|row| Published {
                event_id: Tsid::from_i64(row.new_id),
                created_at: row.created_at.into(),
                outcome: PublishOutcome::Replaced,
                ..replaced.first
            })
        };
        Ok(replaced.iter().map(answer).collect())
    }
}

/// The entry that a key refers to, as the answer to a repeat.
fn first(key: &KnownKey) -> Result<Published> {
    Ok(Published {
        id: EntryId::new(key.entry_id)?,
        event_id: Tsid::from_i64(key.event_id),
        outcome: PublishOutcome::Duplicate,
        created_at: key.created_at.map_or(Timestamp::UNIX_EPOCH, Timestamp::from),
        max_attempts: 0, // see `Item::published`
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
    expiries: Vec<Option<Timestamp>>,
    ages: Vec<Option<i64>>,
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
            expiries: events().map(expiry).collect(),
            ages: events().map(age).collect(),
        }
    }

    /// The parameters in the statement's order.
    fn params<'b>(&'b self, now: &'b Timestamp) -> [&'b (dyn ToSql + Sync); 19] {
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
            &self.expiries,
            &self.ages,
        ]
    }
}
