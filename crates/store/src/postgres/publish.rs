//! Publishing: facts and entries in one statement, keys before entries, groups promoted last.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidegate_core::{DedupMode, NewEvent, QueueState};
use tokio_postgres::Row;

use super::catalog::{Catalog, MissingLane};
use super::connection::{Begin, Prelude, Tx};
use super::errors::Fault;
use super::items::{
    Columns, Item, KeyRow, Known, Replacement, client, is_plain, key, mode, other_body, read_known, read_published,
    read_replaced,
};
use super::{Inner, MAX_CATALOG_READS, accept_generation};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Batch, PublishOutcome, Published};

/// Whether keys are looked up before it is written.
fn is_keyed(event: &NewEvent) -> bool {
    event.deduplication.is_some() || event.idempotency.is_some()
}

impl Inner {
    /// Publishes a batch in one transaction; repeats of a key within the batch follow in rounds of their own.
    pub(super) async fn publish(&self, events: Vec<NewEvent>) -> Result<Batch<Published>> {
        let mut answers: Vec<Option<Result<Published>>> = (0..events.len()).map(|_| None).collect();
        let mut waiting = Vec::with_capacity(events.len());
        for (index, event) in events.into_iter().enumerate() {
            match event.check(self.options.store.payload_limit) {
                Err(error) => answers[index] = Some(Err(error.into())),
                Ok(()) => waiting.push((index, event)),
            }
        }
        while !waiting.is_empty() {
            let mut seen = HashSet::new();
            let mut is_first = |event: &NewEvent| {
                let dedup = event.deduplication.as_ref();
                let dedup = dedup.map(|dedup| (event.client, Some(event.queue.clone()), dedup.key.clone()));
                let request = event.idempotency.as_ref().map(|request| (event.client, None, request.key.clone()));
                let free = dedup.iter().chain(&request).all(|key| !seen.contains(key));
                seen.extend(dedup.into_iter().chain(request).filter(|_| free));
                free
            };
            let (round, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(_, event)| is_first(event));
            waiting = rest;
            let whole = round.len() == answers.len();
            match self.publish_round(round, &mut answers).await {
                Err(error) if whole => return Err(error),
                _ => {}
            }
        }
        let lost = || Err(Error::new(ErrorKind::Indeterminate, "the database gave no answer for this item"));
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect())
    }

    async fn publish_round(
        &self,
        events: Vec<(usize, NewEvent)>,
        answers: &mut [Option<Result<Published>>],
    ) -> Result<()> {
        let keyed = events.iter().any(|(_, event)| is_keyed(event));
        match self.try_round(&events, keyed).await {
            Ok(round) => {
                for (index, answer) in round {
                    answers[index] = Some(answer);
                }
                Ok(())
            }
            // A key that somebody else's open transaction holds must not hold up its neighbours.
            Err(error) if error.kind() == ErrorKind::Busy && keyed && events.len() > 1 => {
                let (keyed, free): (Vec<_>, Vec<_>) = events.into_iter().partition(|(_, event)| is_keyed(event));
                let alone = keyed.into_iter().map(|event| vec![event]);
                for part in std::iter::once(free).filter(|free| !free.is_empty()).chain(alone) {
                    // The error of a part is in its items' answers.
                    let _ = Box::pin(self.publish_round(part, answers)).await;
                }
                Ok(())
            }
            Err(error) => {
                for (index, _) in events {
                    answers[index] = Some(Err(error.clone()));
                }
                Err(error)
            }
        }
    }

    async fn try_round(&self, events: &[(usize, NewEvent)], keyed: bool) -> Result<Vec<(usize, Result<Published>)>> {
        for _ in 0..MAX_CATALOG_READS {
            let catalog = self.catalog().await?;
            match self.round_once(&catalog, events, keyed).await {
                Err(Fault::StaleCatalog) => self.reload_catalog().await?,
                answers => return answers.map_err(Fault::into_error),
            }
        }
        Err(Fault::StaleCatalog.into_error())
    }

    async fn round_once(
        &self,
        catalog: &Catalog,
        events: &[(usize, NewEvent)],
        keyed: bool,
    ) -> Result<Vec<(usize, Result<Published>)>, Fault> {
        let (items, mut answers) = self.place(catalog, events).await?;
        if !answers.is_empty() && !self.generation_stands(catalog).await? {
            return Err(Fault::StaleCatalog);
        }
        if items.is_empty() {
            return Ok(answers);
        }
        let items = &items;
        // Where the publish statement is the first, it also tells the transaction's prelude.
        let limited = |item: &Item| catalog.queue_by_id(item.queue_id).is_none_or(|queue| queue.depth_limit.is_some());
        let carried = !keyed && !items.iter().any(limited);
        let written = self
            .database
            .transact(
                if carried { Begin::Carried } else { Begin::Write },
                &|prelude| accept_generation(catalog, prelude),
                &|tx| async move { self.write_items(&tx, catalog, items, keyed).await }.boxed(),
                &|tx, written| self.confirm_publish(tx, written),
            )
            .await?;
        answers.extend(written);
        self.announce(items.iter().map(|item| item.queue_id));
        Ok(answers)
    }

    /// Finds each event's queue and lane, making lanes that are missing in a transaction of their own.
    pub(super) async fn place(
        &self,
        catalog: &Catalog,
        events: &[(usize, NewEvent)],
    ) -> Result<(Vec<Item>, Vec<(usize, Result<Published>)>), Fault> {
        let mut items = Vec::with_capacity(events.len());
        let mut answers = Vec::new();
        let mut missing = HashSet::new();
        for (index, event) in events {
            let queue = match catalog.queue(&event.queue) {
                Ok(queue) if queue.state == QueueState::Draining => {
                    let error = Error::new(ErrorKind::Full, format!("queue {} is draining", event.queue));
                    answers.push((*index, Err(error)));
                    continue;
                }
                Ok(queue) => queue,
                Err(error) => {
                    answers.push((*index, Err(error)));
                    continue;
                }
            };
            match queue.lane(&event.event_type, event.priority) {
                Ok(lane) => items.push(Item { index: *index, event: event.clone(), queue_id: queue.id, lane }),
                Err(lane) => {
                    missing.insert(lane);
                }
            }
        }
        if missing.is_empty() {
            return Ok((items, answers));
        }
        self.add_lanes(missing.into_iter().collect()).await?;
        Err(Fault::StaleCatalog)
    }

    /// Makes lanes and lets every process know.
    pub(super) async fn add_lanes(&self, mut lanes: Vec<MissingLane>) -> Result<(), Fault> {
        // Many new types at once could pass the limit together; what is over it goes to the shared lane next time.
        lanes.sort_by(|a, b| (a.queue_id, a.priority, &a.event_type).cmp(&(b.queue_id, b.priority, &b.event_type)));
        lanes.truncate(super::catalog::MAX_OWN_TYPES / 4);
        let queue_ids: Vec<i32> = lanes.iter().map(|lane| lane.queue_id).collect();
        let priorities: Vec<i16> = lanes.iter().map(|lane| lane.priority).collect();
        let types: Vec<Option<&str>> = lanes.iter().map(|lane| lane.event_type.as_deref()).collect();
        self.database
            .transact(
                Begin::Write,
                &|_| Ok(()),
                &|tx| {
                    let (queue_ids, priorities, types) = (&queue_ids, &priorities, &types);
                    async move {
                        tx.query(&self.sql.bump_generation, &[]).await?;
                        tx.query(&self.sql.add_lanes, &[queue_ids, priorities, types]).await?;
                        Ok(())
                    }
                    .boxed()
                },
                &|_, ()| async { Ok(false) }.boxed(),
            )
            .await
    }

    pub(super) async fn write_items(
        &self,
        tx: &Tx,
        catalog: &Catalog,
        items: &[Item],
        keyed: bool,
    ) -> Result<Vec<(usize, Result<Published>)>, Fault> {
        let mut answers = Vec::with_capacity(items.len());
        let mut fresh: Vec<&Item> = items.iter().collect();
        let mut takeover = HashSet::new();
        if keyed {
            fresh = self.answer_known_requests(tx, fresh, &mut answers).await?;
            fresh = self.answer_known_keys(tx, fresh, &mut takeover, &mut answers).await?;
        }
        let accepted = self.within_limits(tx, catalog, fresh, &mut answers).await?;
        if accepted.is_empty() {
            return Ok(answers);
        }
        let ids = if keyed { Some(self.draw_ids(tx, accepted.len()).await?) } else { None };
        let columns = Columns::new(&accepted, ids.as_deref(), self.now(), false);
        let rows = if ids.is_none() && accepted.iter().all(|item| is_plain(&item.event)) {
            tx.query(&self.sql.publish_plain, &columns.plain_params()).await?
        } else {
            tx.query(&self.sql.publish, &columns.params()).await?
        };
        if let Some(row) = rows.first() {
            tx.set_prelude(row.get(3), Prelude { generation: row.get(4), heartbeat_young: true });
        }
        let published = read_published(&rows)?;
        if keyed {
            self.take_keys(tx, &accepted, &published, &takeover).await?;
            self.take_requests(tx, &accepted, &published).await?;
        }
        let groups: Vec<(i32, &str)> =
            accepted.iter().filter_map(|item| Some((item.queue_id, item.event.group.as_deref()?))).collect();
        self.promote(tx, groups).await?;
        answers.extend(accepted.iter().zip(published).map(|(item, published)| (item.index, Ok(published))));
        Ok(answers)
    }

    pub(super) async fn draw_ids(&self, tx: &Tx, count: usize) -> Result<Vec<i64>, Fault> {
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        let mut ids: Vec<i64> = tx.query(&self.sql.draw_ids, &[&count]).await?.iter().map(|row| row.get(0)).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Answers repeats; what remains is new. Keys of entries that no longer wait are taken over.
    async fn answer_known_keys<'a>(
        &self,
        tx: &Tx,
        items: Vec<&'a Item>,
        takeover: &mut HashSet<usize>,
        answers: &mut Vec<(usize, Result<Published>)>,
    ) -> Result<Vec<&'a Item>, Fault> {
        let clients: Vec<i64> = items.iter().map(|item| client(item)).collect();
        let scopes: Vec<i64> = items.iter().map(|item| i64::from(item.queue_id)).collect();
        let keys: Vec<Option<&str>> = items.iter().map(|item| key(item)).collect();
        let types: Vec<&str> = items.iter().map(|item| item.event.event_type.as_str()).collect();
        let payloads: Vec<&[u8]> = items.iter().map(|item| item.event.payload.as_ref()).collect();
        let rows = tx.query(&self.sql.known_keys, &[&self.now(), &clients, &scopes, &keys, &types, &payloads]).await?;
        let known: HashMap<usize, &Row> = rows.iter().map(|row| (row.get::<_, i32>(0) as usize - 1, row)).collect();
        let mut fresh = Vec::new();
        for (position, item) in items.into_iter().enumerate() {
            let Some(row) = known.get(&position) else {
                fresh.push(item);
                continue;
            };
            let Known { first, same, waiting } = read_known(row)?;
            match mode(item) {
                DedupMode::KeepFirst if same => answers.push((item.index, Ok(first))),
                DedupMode::KeepFirst => answers.push((item.index, Err(other_body(key(item).unwrap_or_default())))),
                DedupMode::ReplaceWaiting => {
                    let replaced = if waiting { self.replace_fact(tx, item, first).await? } else { None };
                    match replaced {
                        Some(published) => answers.push((item.index, Ok(published))),
                        None => {
                            takeover.insert(item.index);
                            fresh.push(item);
                        }
                    }
                }
            }
        }
        Ok(fresh)
    }

    async fn replace_fact(&self, tx: &Tx, item: &Item, first: Published) -> Result<Option<Published>, Fault> {
        let replacement = Replacement::new(item, first.id, self.now());
        let rows = tx.query(&self.sql.replace_fact, &replacement.params()).await?;
        self.put_tags(tx, &rows.iter().map(|row| row.get(2)).collect::<Vec<_>>()).await?;
        Ok(rows.first().map(|row| read_replaced(row, first)))
    }

    async fn take_keys(
        &self,
        tx: &Tx,
        items: &[&Item],
        published: &[Published],
        takeover: &HashSet<usize>,
    ) -> Result<(), Fault> {
        for taking_over in [false, true] {
            let mut rows: Vec<KeyRow<'_>> = items
                .iter()
                .zip(published)
                .filter(|(item, _)| takeover.contains(&item.index) == taking_over)
                .filter_map(|(item, made)| KeyRow::new(item, made))
                .collect();
            if rows.is_empty() {
                continue;
            }
            rows.sort_unstable();
            let clients: Vec<i64> = rows.iter().map(|row| row.client).collect();
            let scopes: Vec<i64> = rows.iter().map(|row| row.scope).collect();
            let keys: Vec<&str> = rows.iter().map(|row| row.key).collect();
            let entries: Vec<i64> = rows.iter().map(|row| row.entry).collect();
            let events: Vec<i64> = rows.iter().map(|row| row.event).collect();
            let windows: Vec<i64> = rows.iter().map(|row| row.window).collect();
            let taken = tx
                .query(
                    &self.sql.take_keys,
                    &[&self.now(), &clients, &scopes, &keys, &entries, &events, &windows, &taking_over],
                )
                .await?;
            if taken.len() < rows.len() {
                // Somebody else took a key since we looked: look again.
                return Err(Fault::Again(Error::new(ErrorKind::Busy, "a deduplication key was taken meanwhile")));
            }
        }
        Ok(())
    }

    /// Lets through what the queues' depth limits allow, in order. Near a limit, publishers of the queue go one by one.
    async fn within_limits<'a>(
        &self,
        tx: &Tx,
        catalog: &Catalog,
        items: Vec<&'a Item>,
        answers: &mut Vec<(usize, Result<Published>)>,
    ) -> Result<Vec<&'a Item>, Fault> {
        let mut wanted: BTreeMap<i32, u64> = BTreeMap::new();
        for item in &items {
            let limited = catalog.queue_by_id(item.queue_id).is_some_and(|queue| queue.depth_limit.is_some());
            if limited {
                *wanted.entry(item.queue_id).or_default() += 1;
            }
        }
        if wanted.is_empty() {
            return Ok(items);
        }
        let mut room: HashMap<i32, u64> = HashMap::new();
        for (queue_id, count) in wanted {
            let limit = catalog.queue_by_id(queue_id).and_then(|queue| queue.depth_limit).unwrap_or(u64::MAX);
            if self.headroom.take(queue_id, limit, count) {
                room.insert(queue_id, count);
                continue;
            }
            tx.query(&self.sql.lock_groups, &[&vec![self.lock_key(queue_id, "\0depth")]]).await?;
            let bound = i64::try_from(limit).unwrap_or(i64::MAX);
            let rows = tx.query(&self.sql.count_entries, &[&queue_id, &bound]).await?;
            let held = rows.first().map_or(0, |row| row.get::<_, i64>(0)) as u64;
            let left = limit.saturating_sub(held);
            self.headroom.learn(queue_id, limit, left.saturating_sub(count));
            room.insert(queue_id, left);
        }
        let mut accepted = Vec::with_capacity(items.len());
        for item in items {
            match room.get_mut(&item.queue_id) {
                Some(0) => {
                    let error = Error::new(ErrorKind::Full, format!("queue {} is full", item.event.queue));
                    answers.push((item.index, Err(error)));
                }
                Some(left) => {
                    *left -= 1;
                    accepted.push(item);
                }
                None => accepted.push(item),
            }
        }
        Ok(accepted)
    }

    fn confirm_publish<'a>(
        &'a self,
        tx: Arc<Tx>,
        written: &[(usize, Result<Published>)],
    ) -> BoxFuture<'a, Result<bool, Fault>> {
        let made = written.iter().find_map(|(_, answer)| {
            answer.as_ref().ok().filter(|published| published.outcome != PublishOutcome::Duplicate)
        });
        let event_id = made.map(|made| made.event_id.to_i64());
        async move {
            let Some(event_id) = event_id else { return Ok(true) };
            let rows = tx.query(&self.sql.fact_exists, &[&event_id]).await?;
            Ok(rows.first().is_some_and(|row| row.get(0)))
        }
        .boxed()
    }
}
