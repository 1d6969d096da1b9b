//! Publishing: facts and entries in one statement, keys before entries, promotions last. Lock order: depth limits,
//! keys, groups, entries that are replaced.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tidegate_core::{DedupMode, NewEvent, QueueState};

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::deduplication::{Plan, Replaced};
use crate::postgres::engine::catalogue::Catalog;
use crate::postgres::engine::connection::{Begin, Prelude, Tx};
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::postgres::engine::store::MAX_CATALOG_READS;
use crate::postgres::engine::store::accept_catalog;
use crate::postgres::items::{Columns, Item, is_plain, mode};
use crate::postgres::statements::deduplication::Drawn;
use crate::postgres::statements::publish::{CarriedRow, PublishedRow};
use crate::sql::{Columns as _, FromRow as _};
use crate::values::{Batch, Family, PublishOutcome, Published};

/// Whether the event has a key that must be looked up before it is written.
fn is_keyed(event: &NewEvent) -> bool {
    event.deduplication.is_some() || event.idempotency.is_some()
}

/// Refuses items for draining queues for which `applies` holds; returns the others.
fn refuse_while_draining<'a>(
    catalog: &Catalog,
    items: Vec<&'a Item>,
    answers: &mut Vec<(usize, Result<Published>)>,
    applies: impl Fn(&Item) -> bool,
) -> Vec<&'a Item> {
    let is_refused = |item: &Item| {
        let queue = catalog.queue_by_id(item.queue_id);
        applies(item) && queue.is_some_and(|queue| queue.state == QueueState::Draining)
    };
    let (refused, rest): (Vec<&Item>, Vec<&Item>) = items.into_iter().partition(|item| is_refused(item));
    answers
        .extend(refused.into_iter().map(|item| (item.index, Err(crate::values::queues::draining(&item.event.queue)))));
    rest
}

impl Inner {
    /// Publishes a batch in one transaction. Repeats of a key within the batch follow in further transactions.
    pub(super) async fn publish(&self, events: Vec<NewEvent>) -> Result<Batch<Published>> {
        let mut answers: Vec<Option<Result<Published>>> = (0..events.len()).map(|_| None).collect();
        let mut waiting = Vec::with_capacity(events.len());
        for (index, event) in events.into_iter().enumerate() {
            match self.check_event(&event) {
                Err(error) => answers[index] = Some(Err(error)),
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

    fn check_event(&self, event: &NewEvent) -> Result<()> {
        event.check(self.shared.options.store.payload_limit)?;
        if self.family == Family::Jobs && !event.tags.is_empty() {
            return Err(Error::invalid("jobs have no tags: publish them without"));
        }
        Ok(())
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
            // A key that another open transaction holds must not block the other events: they are written first, then
            // those with keys one by one.
            Err(error) if error.kind() == ErrorKind::Busy && keyed && events.len() > 1 => {
                let (keyed, free): (Vec<_>, Vec<_>) = events.into_iter().partition(|(_, event)| is_keyed(event));
                let alone = keyed.into_iter().map(|event| vec![event]);
                for part in std::iter::once(free).filter(|free| !free.is_empty()).chain(alone) {
                    // The error of a part is in its items' answers.
                    let _ = Box::pin(self.publish_round(part, answers)).await;
                }
                Ok(())
            }
            // A value that the database cannot store must not fail the other events: halve the batch until it is alone.
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
        // If the publish statement is the first of the transaction, it also returns what the prelude would.
        let limited = |item: &Item| catalog.queue_by_id(item.queue_id).is_none_or(|queue| queue.depth_limit.is_some());
        let carried = !keyed && !items.iter().any(limited);
        let written = self
            .transact(
                if carried { Begin::Carried } else { Begin::Write },
                |prelude| accept_catalog(catalog, prelude),
                |tx| async move { self.write_items(&tx, catalog, items, keyed).await },
                // It took place if its first new fact is there.
                |tx, written| {
                    let made = written.iter().find_map(|(_, answer)| new_event(answer));
                    async move {
                        match made {
                            Some(event_id) => self.fact_exists(&tx, event_id).await,
                            None => Ok(true),
                        }
                    }
                },
            )
            .await?;
        answers.extend(written);
        self.announce(items.iter().map(|item| item.queue_id));
        Ok(answers)
    }

    /// Finds each event's queue and lane. Creates missing lanes in a transaction of its own and then answers
    /// `StaleCatalog`.
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
                // An event with a key may be a repeat, which is answered even while the queue is draining.
                Ok(queue) if queue.state == QueueState::Draining && !is_keyed(event) => {
                    answers.push((*index, Err(crate::values::queues::draining(&event.queue))));
                    continue;
                }
                Ok(queue) => queue,
                Err(error) => {
                    answers.push((*index, Err(error)));
                    continue;
                }
            };
            match queue.lane(&event.event_type, event.priority) {
                Ok(lane) => items.push(Item::new(*index, event, queue, lane)),
                Err(lane) => match queue.too_many_lanes(self.shared.options.store.lanes_of(self.family)) {
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

    /// Writes items in a transaction: answers repeats, applies depth limits, takes keys, writes facts and entries,
    /// replaces what waits, and promotes.
    pub(super) async fn write_items(
        &self,
        tx: &Tx,
        catalog: &Catalog,
        items: &[Item],
        keyed: bool,
    ) -> Result<Vec<(usize, Result<Published>)>, Fault> {
        let mut answers = self.write_placed(tx, catalog, items, keyed).await?;
        let by_index: HashMap<usize, &Item> = items.iter().map(|item| (item.index, item)).collect();
        for (index, answer) in &mut answers {
            if let (Ok(published), Some(item)) = (answer, by_index.get(index)) {
                *published = item.published(*published);
            }
        }
        Ok(answers)
    }

    async fn write_placed(
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
                return Err(run_again("another transaction took a deduplication key"));
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

    /// Writes new facts and entries, under numbers that were drawn before (`given`) or are drawn now.
    async fn write_new(&self, tx: &Tx, items: &[&Item], given: &[Drawn]) -> Result<Vec<Published>, Fault> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<i64> = given.iter().map(|drawn| drawn.id).collect();
        let ids = (!ids.is_empty()).then_some(ids);
        // The moment of publication must be the one that event ids drawn before contain.
        let now = given.first().map(|drawn| drawn.now).or_else(|| self.now());
        let columns = Columns::new(items, ids.as_deref(), now, false);
        let rows = if ids.is_none() && items.iter().all(|item| is_plain(&item.event)) {
            tx.query(&self.sql.publish.write_plain, &columns.plain_params()).await?
        } else {
            tx.query(&self.sql.publish.write, &columns.params()).await?
        };
        // Every row has the same prelude: only the first one's is read.
        if let Some(row) = rows.first() {
            let CarriedRow { xid, stamp } = CarriedRow::read(row, PublishedRow::COUNT)?;
            tx.set_prelude(xid, Prelude { stamp, heartbeat_near: true });
        }
        let read = |row| PublishedRow::read(row, 0)?.try_into();
        let mut published = rows.iter().map(read).collect::<Result<Vec<Published>>>()?;
        // The items' order is that of their numbers.
        published.sort_unstable_by_key(|one| one.id);
        Ok(published)
    }

    /// The last part of a publish: locks all groups concerned, replaces waiting entries and promotes.
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
            return Err(run_again("the entry to replace was claimed meanwhile"));
        };
        self.promote_locked(tx, groups).await?;
        Ok(made)
    }

    /// Accepts items up to the queues' depth limits, in order, and answers the others with `Full`. Near a limit,
    /// publishers of the queue take turns under a lock.
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
        let mut allowed = self.allowed(tx, catalog, wanted).await?;
        let mut accepted = Vec::with_capacity(items.len());
        for item in items {
            match allowed.get_mut(&item.queue_id) {
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

    /// How many of the wanted entries queues with a depth limit take, by queue.
    pub(super) async fn allowed(
        &self,
        tx: &Tx,
        catalog: &Catalog,
        wanted: BTreeMap<i32, u64>,
    ) -> Result<HashMap<i32, u64>, Fault> {
        let mut allowed: HashMap<i32, u64> = HashMap::new();
        let mut near = Vec::new();
        for (queue_id, count) in wanted {
            let limit = catalog.queue_by_id(queue_id).and_then(|queue| queue.depth_limit).unwrap_or(u64::MAX);
            if self.headroom.take(queue_id, limit, count) {
                allowed.insert(queue_id, count);
            } else {
                near.push((queue_id, count, limit));
            }
        }
        let locks: BTreeSet<i64> = near.iter().map(|(queue_id, ..)| self.depth_stripe(*queue_id)).collect();
        if !locks.is_empty() {
            tx.execute(&self.sql.groups.lock_stripes, &[&locks.into_iter().collect::<Vec<i64>>()]).await?;
        }
        for (queue_id, count, limit) in near {
            let bound = i64::try_from(limit).unwrap_or(i64::MAX);
            let held = tx.row(&self.sql.publish.count_entries, &[&queue_id, &bound]).await?;
            let left = limit.saturating_sub(held.map_or(0, |held| held.0) as u64);
            self.headroom.learn(queue_id, limit, left.saturating_sub(count));
            allowed.insert(queue_id, left);
        }
        Ok(allowed)
    }

    /// Whether a fact exists.
    pub(super) async fn fact_exists(&self, tx: &Tx, event_id: i64) -> Result<bool, Fault> {
        let exists = tx.row(&self.sql.publish.fact_exists, &[&event_id]).await?;
        Ok(exists.is_some_and(|exists| exists.0))
    }
}

/// The event that a publish wrote, if it wrote one.
fn new_event(answer: &Result<Published>) -> Option<i64> {
    let made = answer.as_ref().ok().filter(|published| published.outcome != PublishOutcome::Duplicate)?;
    Some(made.event_id.to_i64())
}

/// What the transaction has read is outdated: it has to run again.
fn run_again(why: &str) -> Fault {
    Fault::Again(Error::new(ErrorKind::Busy, format!("{why}; try again")))
}
