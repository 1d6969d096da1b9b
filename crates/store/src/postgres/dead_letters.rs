//! Dead letters: redrives, discards and lists them.

use std::collections::{BTreeMap, HashMap, HashSet};

use tidegate_core::{Action, EntryId, Generation};
use tokio_postgres::types::ToSql;

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::row::count;
use crate::postgres::engine::store::Inner;
use crate::postgres::flags::is_tagged;
use crate::postgres::statements::entries::RedrivenRow;
use crate::sql::Only;
use crate::values::{Batch, DeadLetters, EntryView, ManualAction};

/// Which ended entries are started over, besides kept ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Dead letters.
    Redrive,
    /// Those that failed; their tokens are raised.
    Reset,
    /// Those that failed or were cancelled.
    Retry,
}

impl Inner {
    pub(super) async fn redrive(&self, items: Vec<ManualAction>, which: Again) -> Result<Batch<Generation>> {
        let items = &items;
        let done = self.write(
            |tx| async move { self.redrive_items(&tx, items, which).await },
            |tx, (made, _)| {
                let first = made.iter().next().map(|(id, generation)| (*id, *generation as i32));
                async move {
                    let Some((id, generation)) = first else { return Ok(true) };
                    let rows = tx.rows(&self.sql.end.look_up, &[&vec![id]]).await?;
                    Ok(rows.iter().any(|row| row.generation >= generation))
                }
            },
        );
        let (mut made, queues) = done.await?;
        self.announce(queues);
        let ids = || items.iter().map(|item| &item.id);
        let refused = self.missing(ids().filter(|id| !made.contains_key(&id.get()))).await?;
        Ok(ids().map(|id| made.remove(&id.get()).ok_or_else(|| not_a_dead_letter(*id, &refused))).collect())
    }

    async fn redrive_items(
        &self,
        tx: &Tx,
        items: &[ManualAction],
        which: Again,
    ) -> Result<(HashMap<i64, Generation>, Vec<i32>), Fault> {
        let asked: BTreeMap<i64, &ManualAction> = items.iter().rev().map(|item| (item.id.get(), item)).collect();
        let ids: Vec<i64> = asked.keys().copied().collect();
        let (made, queues) = self.redrive_rows(tx, &ids, which).await?;
        let done: Vec<&ManualAction> = asked.into_values().filter(|item| made.contains_key(&item.id.get())).collect();
        if !done.is_empty() {
            self.audit_started_over(tx, &done, Action::Redriven).await?;
        }
        Ok((made, queues))
    }

    /// Starts new generations of ended and of kept entries; ids are sorted and distinct. Returns the generations by id, and
    /// the queues of these entries.
    pub(super) async fn redrive_rows(
        &self,
        tx: &Tx,
        ids: &[i64],
        which: Again,
    ) -> Result<(HashMap<i64, Generation>, Vec<i32>), Fault> {
        let reset = which == Again::Reset;
        let statement = if which == Again::Retry { &self.sql.jobs.retry } else { &self.sql.entries.redrive };
        let mut rows = tx.rows(statement, &[&self.now(), &ids, &i64::from(reset)]).await?;
        let tagged: Vec<i64> = rows.iter().filter(|row| is_tagged(row.flags)).map(|row| row.id).collect();
        self.put_tags(tx, &tagged).await?;
        let ended: HashSet<i64> = rows.iter().map(|row| row.id).collect();
        let rest: Vec<i64> = ids.iter().copied().filter(|id| !ended.contains(id)).collect();
        rows.extend(self.redrive_kept(tx, &rest, reset).await?);
        let groups = rows.iter().filter_map(|row| Some((row.queue_id, row.group_key.as_deref()?)));
        self.promote(tx, groups).await?;
        let made = rows.iter().map(|row| (row.id, count(row.generation))).collect();
        let queues: HashSet<i32> = rows.iter().map(|row| row.queue_id).collect();
        Ok((made, queues.into_iter().collect()))
    }

    async fn redrive_kept(&self, tx: &Tx, ids: &[i64], reset: bool) -> Result<Vec<RedrivenRow>, Fault> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows = tx.rows(&self.sql.entries.redrive_kept, &[&self.now(), &ids, &i64::from(reset)]).await?;
        let tagged: Vec<i64> = rows.iter().filter(|row| is_tagged(row.flags)).map(|row| row.id).collect();
        self.follow_tags(tx, &tagged).await?;
        Ok(rows)
    }

    pub(super) async fn discard(&self, ids: Vec<EntryId>) -> Result<Batch<()>> {
        let sql = &self.sql.entries;
        let sorted = &sorted(&ids);
        let done = self.write(
            |tx| async move {
                let rows = tx.rows(&sql.discard, &[sorted]).await?;
                Ok(rows.into_iter().map(|Only(id)| id).collect::<HashSet<i64>>())
            },
            |tx, done| {
                let first = done.iter().next().copied();
                async move {
                    let Some(id) = first else { return Ok(true) };
                    Ok(tx.row(&sql.discarded, &[&id]).await?.is_some())
                }
            },
        );
        let mut done = done.await?;
        let refused = self.missing(ids.iter().filter(|id| !done.contains(&id.get()))).await?;
        Ok(ids
            .iter()
            .map(|id| if done.remove(&id.get()) { Ok(()) } else { Err(not_a_dead_letter(*id, &refused)) })
            .collect())
    }

    pub(super) async fn dead_letters(&self, query: DeadLetters) -> Result<Vec<EntryView>> {
        let queue_id = self.queue(&query.queue).await?.id;
        let after = query.after.map_or(0, EntryId::get);
        let limit = query.limit.min(10_000) as i64;
        let params: [&(dyn ToSql + Sync); 4] = [&queue_id, &after, &query.event_type, &limit];
        let rows = self.read(|tx| async move { tx.rows(&self.sql.entries.dead_letters, &params).await }).await?;
        let ids = rows.into_iter().map(|Only(id)| EntryId::new(id)).collect::<Result<Vec<_>, _>>()?;
        Ok(self.entries(ids).await?.into_iter().flatten().collect())
    }

    /// Those of the ids that no entry has, live or ended.
    async fn missing<'a>(&self, ids: impl Iterator<Item = &'a EntryId>) -> Result<HashSet<i64>> {
        let ids: Vec<i64> = ids.map(|id| id.get()).collect();
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        let numbers = &ids;
        let rows = self.read(|tx| async move { tx.rows(&self.sql.end.look_up, &[numbers]).await }).await?;
        let known: HashSet<i64> = rows.iter().map(|row| row.id).collect();
        Ok(ids.into_iter().filter(|id| !known.contains(id)).collect())
    }
}

fn sorted(ids: &[EntryId]) -> Vec<i64> {
    let mut sorted: Vec<i64> = ids.iter().map(|id| id.get()).collect();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

fn not_a_dead_letter(id: EntryId, missing: &HashSet<i64>) -> Error {
    if missing.contains(&id.get()) {
        Error::no_entry(id)
    } else {
        Error::new(ErrorKind::Conflict, format!("entry {id} is not a dead letter"))
    }
}
