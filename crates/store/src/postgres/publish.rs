//! Publishing: facts and entries in one statement, keys before entries, groups promoted last. Locks are taken in one order:
//! depth limits, keys, groups, entries that are replaced.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidegate_core::{DedupMode, NewEvent, QueueState};

use super::catalog::Catalog;
use super::connection::{Begin, Prelude, Tx};
use super::deduplication::{Drawn, Plan, Replaced};
use super::errors::Fault;
use super::items::{Columns, Item, is_plain, mode, read_published};
use super::{Inner, MAX_CATALOG_READS, accept_catalog};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Batch, PublishOutcome, Published};

/// Whether keys are looked up before it is written.
fn is_keyed(event: &NewEvent) -> bool {
    event.deduplication.is_some() || event.idempotency.is_some()
}

/// Refuses what is new to queues that are draining, of those that are meant.
fn refuse_while_draining<'a>(
    catalog: &Catalog,
    items: Vec<&'a Item>,
    answers: &mut Vec<(usize, Result<Published>)>,
    meant: impl Fn(&Item) -> bool,
) -> Vec<&'a Item> {
    let is_refused = |item: &Item| {
        let queue = catalog.queue_by_id(item.queue_id);
        meant(item) && queue.is_some_and(|queue| queue.state == QueueState::Draining)
    };
    let (refused, rest): (Vec<&Item>, Vec<&Item>) = items.into_iter().partition(|item| is_refused(item));
    answers.extend(refused.into_iter().map(|item| (item.index, Err(crate::store::draining(&item.event.queue)))));
    rest
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
                let dedup = dedup.map(|dedup| (event.owner(), Some(event.queue.clone()), dedup.key.clone()));
                let request = event.idempotency.as_ref().map(|request| (event.owner(), None, request.key.clone()));
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
            // A value that the database cannot store must not fail its neighbours: halved until it is alone.
            Err(error) if error.kind() == ErrorKind::Invalid && events.len() > 1 => {
                let mut first = events;
                let rest = first.split_off(first.len() / 2);
                for half in [first, rest] {
                    let _ = Box::pin(self.publish_round(half, answers)).await;
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
        if !answers.is_empty() && !self.catalog_stands(catalog).await? {
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
                &|prelude| accept_catalog(catalog, prelude),
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
                // What has a key may be a repeat, which is answered all the same.
                Ok(queue) if queue.state == QueueState::Draining && !is_keyed(event) => {
                    answers.push((*index, Err(crate::store::draining(&event.queue))));
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
                Err(lane) => match queue.too_many_lanes(self.options.store.max_lanes) {
                    Some(error) => answers.push((*index, Err(error))),
                    None => drop(missing.insert(lane)),
                },
            }
        }
        if missing.is_empty() {
            return Ok((items, answers));
        }
        self.add_lanes(missing.into_iter().collect()).await?;
        Err(Fault::StaleCatalog)
    }

    pub(super) async fn write_items(
        &self,
        tx: &Tx,
        catalog: &Catalog,
        items: &[Item],
        keyed: bool,
    ) -> Result<Vec<(usize, Result<Published>)>, Fault> {
        let mut answers = Vec::with_capacity(items.len());
        let mut plan = Plan { fresh: items.iter().collect(), ..Plan::default() };
        if keyed {
            let fresh = self.answer_known_requests(tx, plan.fresh, &mut answers).await?;
            let replaces = |item: &Item| mode(item) == DedupMode::ReplaceWaiting;
            let fresh = refuse_while_draining(catalog, fresh, &mut answers, replaces);
            plan = self.plan_keys(tx, fresh, &mut answers).await?;
            plan.fresh = refuse_while_draining(catalog, plan.fresh, &mut answers, |_| true);
        }
        let fresh = std::mem::take(&mut plan.fresh);
        let accepted = self.within_limits(tx, catalog, fresh, &mut answers).await?;
        if accepted.is_empty() && plan.replaced.is_empty() {
            return Ok(answers);
        }
        let drawn = if keyed { self.draw_ids(tx, accepted.len() + plan.replaced.len()).await? } else { Vec::new() };
        let (given, others) = drawn.split_at(if keyed { accepted.len() } else { 0 });
        if keyed {
            let new: Vec<(&Item, Drawn)> = accepted.iter().copied().zip(given.iter().copied()).collect();
            if !self.take_keys(tx, &plan, &new, others).await? {
                return Err(look_again("a deduplication key was taken meanwhile"));
            }
        }
        let published = self.write_new(tx, &accepted, given).await?;
        if keyed {
            self.take_requests(tx, &accepted, &published).await?;
        }
        let made = self.replace_and_promote(tx, &accepted, &plan.replaced, others).await?;
        answers.extend(accepted.iter().zip(published).map(|(item, published)| (item.index, Ok(published))));
        answers.extend(plan.replaced.iter().zip(made).map(|(replaced, made)| (replaced.item.index, Ok(made))));
        Ok(answers)
    }

    /// Writes new facts and entries, under numbers that were drawn before or are drawn now.
    async fn write_new(&self, tx: &Tx, items: &[&Item], given: &[Drawn]) -> Result<Vec<Published>, Fault> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<i64> = given.iter().map(|drawn| drawn.id).collect();
        let ids = (!ids.is_empty()).then_some(ids);
        // Events that have their ids already must hold the moment that those hold.
        let now = given.first().map(|drawn| drawn.now).or_else(|| self.now());
        let columns = Columns::new(items, ids.as_deref(), now, false);
        let rows = if ids.is_none() && items.iter().all(|item| is_plain(&item.event)) {
            tx.query(&self.sql.publish_plain, &columns.plain_params()).await?
        } else {
            tx.query(&self.sql.publish, &columns.params()).await?
        };
        if let Some(row) = rows.first() {
            tx.set_prelude(row.get(3), Prelude { stamp: row.get(4), heartbeat_near: true });
        }
        read_published(&rows)
    }

    /// The last part of a publish: under the locks of all groups concerned, replaces what waits and promotes.
    async fn replace_and_promote(
        &self,
        tx: &Tx,
        accepted: &[&Item],
        replaced: &[Replaced<'_>],
        drawn: &[Drawn],
    ) -> Result<Vec<Published>, Fault> {
        let new = accepted.iter().filter_map(|item| Some((item.queue_id, item.event.group.as_deref()?)));
        let others = replaced.iter().filter_map(|one| Some((one.item.queue_id, one.group.as_deref()?)));
        let groups: BTreeSet<(i32, &str)> = new.chain(others).collect();
        self.lock_groups(tx, &groups).await?;
        let Some(made) = self.replace(tx, replaced, drawn).await? else {
            return Err(look_again("an event that was to be replaced was claimed meanwhile"));
        };
        self.promote_locked(tx, groups).await?;
        Ok(made)
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
        let mut near = Vec::new();
        for (queue_id, count) in wanted {
            let limit = catalog.queue_by_id(queue_id).and_then(|queue| queue.depth_limit).unwrap_or(u64::MAX);
            if self.headroom.take(queue_id, limit, count) {
                room.insert(queue_id, count);
            } else {
                near.push((queue_id, count, limit));
            }
        }
        let locks: BTreeSet<i64> = near.iter().map(|(queue_id, ..)| self.depth_stripe(*queue_id)).collect();
        if !locks.is_empty() {
            tx.query(&self.sql.lock_stripes, &[&locks.into_iter().collect::<Vec<i64>>()]).await?;
        }
        for (queue_id, count, limit) in near {
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

/// What was looked at is another by now: the transaction runs again.
fn look_again(why: &str) -> Fault {
    Fault::Again(Error::new(ErrorKind::Busy, format!("{why}; try again")))
}
