//! Dead letters: redrive, discard, list.

use std::collections::{BTreeMap, HashMap, HashSet};

use futures_util::FutureExt;
use tidegate_core::{Action, EntryId, Generation};

use super::Inner;
use super::connection::{Begin, Tx};
use super::errors::Fault;
use super::row;
use super::tags::tagged;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Batch, DeadLetters, EntryView};
use crate::work::ByHand;

impl Inner {
    pub(super) async fn redrive(&self, items: Vec<ByHand>) -> Result<Batch<Generation>> {
        let items = &items;
        let done = self
            .database
            .transact(
                Begin::Write,
                &|_| Ok(()),
                &|tx| async move { self.redrive_items(&tx, items).await }.boxed(),
                &|tx, (made, _): &(HashMap<i64, Generation>, Vec<i32>)| {
                    let first = made.iter().next().map(|(id, generation)| (*id, *generation as i32));
                    async move {
                        let Some((id, generation)) = first else { return Ok(true) };
                        let rows = tx.query(&self.sql.look_up, &[&vec![id]]).await?;
                        Ok(rows.iter().any(|row| row.get::<_, i32>(4) >= generation))
                    }
                    .boxed()
                },
            )
            .await;
        let (mut made, queues) = done.map_err(Fault::into_error)?;
        self.announce(queues);
        let ids = || items.iter().map(|item| &item.id);
        let refused = self.missing(ids().filter(|id| !made.contains_key(&id.get()))).await?;
        Ok(ids().map(|id| made.remove(&id.get()).ok_or_else(|| not_a_dead_letter(*id, &refused))).collect())
    }

    async fn redrive_items(&self, tx: &Tx, items: &[ByHand]) -> Result<(HashMap<i64, Generation>, Vec<i32>), Fault> {
        let asked: BTreeMap<i64, &ByHand> = items.iter().rev().map(|item| (item.id.get(), item)).collect();
        let ids: Vec<i64> = asked.keys().copied().collect();
        let (made, queues) = self.redrive_rows(tx, &ids, false).await?;
        let done: Vec<&ByHand> = asked.into_values().filter(|item| made.contains_key(&item.id.get())).collect();
        if !done.is_empty() {
            self.audit_started_over(tx, &done, Action::Redriven).await?;
        }
        Ok((made, queues))
    }

    /// Starts new generations; ids are sorted and distinct. A reset takes only FAILED ones and raises their tokens.
    pub(super) async fn redrive_rows(
        &self,
        tx: &Tx,
        ids: &[i64],
        reset: bool,
    ) -> Result<(HashMap<i64, Generation>, Vec<i32>), Fault> {
        let rows = tx.query(&self.sql.redrive, &[&self.now(), &ids, &i64::from(reset)]).await?;
        self.put_tags(tx, &tagged(&rows, 0, 4)).await?;
        let groups = rows.iter().filter_map(|row| Some((row.get::<_, i32>(2), row.get::<_, Option<&str>>(3)?)));
        self.promote(tx, groups).await?;
        let made = rows.iter().map(|row| (row.get(0), row::count(row.get(1)))).collect();
        let queues: HashSet<i32> = rows.iter().map(|row| row.get(2)).collect();
        Ok((made, queues.into_iter().collect()))
    }

    pub(super) async fn discard(&self, ids: Vec<EntryId>) -> Result<Batch<()>> {
        let ids = &ids;
        let done: Result<HashSet<i64>, Fault> = self
            .database
            .transact(
                Begin::Write,
                &|_| Ok(()),
                &|tx| {
                    async move {
                        let rows = tx.query(&self.sql.discard, &[&sorted(ids)]).await?;
                        Ok(rows.iter().map(|row| row.get(0)).collect())
                    }
                    .boxed()
                },
                &|tx, done: &HashSet<i64>| {
                    let first = done.iter().next().copied();
                    async move {
                        let Some(id) = first else { return Ok(true) };
                        Ok(!tx.query(&self.sql.discarded, &[&id]).await?.is_empty())
                    }
                    .boxed()
                },
            )
            .await;
        let mut done = done.map_err(Fault::into_error)?;
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
        let reader = self.database.reader().await.map_err(Fault::into_error)?;
        let rows = reader.query(&self.sql.dead_letters, &[&queue_id, &after, &query.event_type, &limit]).await;
        let ids = rows
            .map_err(Fault::into_error)?
            .iter()
            .map(|row| EntryId::new(row.get(0)))
            .collect::<Result<Vec<_>, _>>()?;
        drop(reader);
        Ok(self.entries(ids).await?.into_iter().flatten().collect())
    }

    /// Those of the ids that no entry has at all.
    async fn missing<'a>(&self, ids: impl Iterator<Item = &'a EntryId>) -> Result<HashSet<i64>> {
        let ids: Vec<i64> = ids.map(|id| id.get()).collect();
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        let reader = self.database.reader().await.map_err(Fault::into_error)?;
        let rows = reader.query(&self.sql.look_up, &[&ids]).await.map_err(Fault::into_error)?;
        let known: HashSet<i64> = rows.iter().map(|row| row.get(0)).collect();
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
