//! Ingest: facts, and any number of entries that refer to each. Numbers are drawn first, then facts and entries are
//! written, promotions come last. Lock order as for publishing: depth limits, then groups.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::join;
use tidegate_core::{Availability, EntryId, Expiry, NewEvent, QueueState, Timestamp, Tsid};
use tokio_postgres::types::ToSql;

use crate::api;
use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::bisect::in_halves;
use crate::postgres::engine::catalogue::{Catalog, MissingLane, Queue};
use crate::postgres::engine::connection::{Begin, Tx};
use crate::postgres::engine::errors::{Fault, both};
use crate::postgres::engine::store::{Inner, MAX_CATALOG_READS, Opened, PostgresStore, accept_catalog};
use crate::postgres::items::{micros, place_of, retry, tags};
use crate::postgres::statements::deduplication::Drawn;
use crate::values::ingest::{in_parts, no_own_lane};
use crate::values::{Batch, Family, Ingest, Ingested, Target};

#[async_trait::async_trait]
impl api::Ingestion for PostgresStore {
    async fn ingest(&self, items: Vec<Ingest>) -> Result<Batch<Ingested>> {
        let opened = Arc::clone(&self.opened);
        self.detached(|inner| async move { inner.ingest(&opened, items).await }).await
    }
}

/// Where the targets of one family go: the statements and caches of the family, and its catalogue as it was read.
struct Home<'a> {
    family: Family,
    inner: &'a Inner,
    catalog: Arc<Catalog>,
}

/// An item whose targets have a queue and a lane each.
struct Planned<'a> {
    item: &'a Ingest,
    targets: Vec<Placed<'a>>,
}

struct Placed<'a> {
    target: &'a Target,
    queue_id: i32,
    lane: i32,
}

/// An item to be written, under numbers that were drawn for it.
struct Numbered<'a> {
    planned: &'a Planned<'a>,
    /// One for each target; a single one, which makes the fact's id, where there is none.
    drawn: &'a [Drawn],
}

impl Inner {
    async fn ingest(&self, opened: &Opened, items: Vec<Ingest>) -> Result<Batch<Ingested>> {
        in_parts(items, |part| async move { self.ingest_in_halves(opened, &part).await }).await
    }

    async fn ingest_in_halves<'a>(&'a self, opened: &'a Opened, items: &'a [Ingest]) -> Result<Batch<Ingested>> {
        in_halves(items.iter().collect(), &|items: Vec<&'a Ingest>| {
            async move { self.ingest_part(opened, &items).await }.boxed()
        })
        .await
    }

    /// Writes items in one transaction, planned again while the catalogue changes.
    async fn ingest_part(&self, opened: &Opened, items: &[&Ingest]) -> Result<Batch<Ingested>> {
        for _ in 0..MAX_CATALOG_READS {
            let homes = homes(opened, items).await?;
            match ingest_once(self, &homes, items).await {
                Err(Fault::StaleCatalog) => reload(&homes).await?,
                answers => return answers.map_err(Fault::into_error),
            }
        }
        Err(Fault::StaleCatalog.into_error())
    }
}

/// The families of these items' targets.
async fn homes<'a>(opened: &'a Opened, items: &[&Ingest]) -> Result<Vec<Home<'a>>> {
    let is_named = |family: &Family| items.iter().any(|item| item.targets.iter().any(|to| to.family == *family));
    let mut homes = Vec::new();
    for family in Family::ALL.into_iter().filter(is_named) {
        let inner = opened.family(family);
        homes.push(Home { family, inner, catalog: inner.catalog().await? });
    }
    Ok(homes)
}

async fn reload(homes: &[Home<'_>]) -> Result<()> {
    for home in homes {
        home.inner.reload_catalog().await?;
    }
    Ok(())
}

/// Plans and writes items under the catalogues that were read.
async fn ingest_once(inner: &Inner, homes: &[Home<'_>], items: &[&Ingest]) -> Result<Batch<Ingested>, Fault> {
    let plans = plan(inner, homes, items).await?;
    if plans.iter().any(Result::is_err) {
        for home in homes {
            if !home.inner.catalog_stands(&home.catalog).await? {
                return Err(Fault::StaleCatalog);
            }
        }
    }
    if plans.iter().all(Result::is_err) {
        return Ok(plans.into_iter().map(|plan| Err(plan.err().unwrap_or_else(no_answer))).collect());
    }
    let plans = &plans;
    let answers = inner
        .transact(
            Begin::Write,
            |prelude| homes.iter().try_for_each(|home| accept_catalog(&home.catalog, prelude)),
            |tx| async move { write(inner, &tx, homes, plans).await },
            // It took place if its first fact is there.
            |tx, answers| {
                let first = answers.iter().flatten().next().map(|ingested| ingested.event_id.to_i64());
                async move {
                    match first {
                        Some(event_id) => inner.fact_exists(&tx, event_id).await,
                        None => Ok(true),
                    }
                }
            },
        )
        .await?;
    for home in homes {
        home.inner.announce(plans.iter().flatten().flat_map(|plan| plan.of(home)).map(|placed| placed.queue_id));
    }
    Ok(answers)
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Indeterminate, "the database gave no answer for this item")
}

/// Finds a queue and a lane for every target. Creates missing lanes in a transaction of its own and then answers
/// `StaleCatalog`.
async fn plan<'a>(inner: &Inner, homes: &[Home<'_>], items: &[&'a Ingest]) -> Result<Vec<Result<Planned<'a>>>, Fault> {
    let mut missing: Vec<HashSet<MissingLane>> = homes.iter().map(|_| HashSet::new()).collect();
    let limit = inner.shared.options.store.payload_limit;
    let mut plans = Vec::with_capacity(items.len());
    for item in items {
        plans.push(item.check(limit).and_then(|()| plan_one(homes, item, &mut missing)));
    }
    let mut has_new = false;
    for (home, missing) in homes.iter().zip(missing).filter(|(_, missing)| !missing.is_empty()) {
        home.inner.add_lanes(missing.into_iter().collect()).await?;
        has_new = true;
    }
    if has_new { Err(Fault::StaleCatalog) } else { Ok(plans) }
}

/// Plans one item; adds the lanes that it lacks to those of its families.
fn plan_one<'a>(homes: &[Home<'_>], item: &'a Ingest, missing: &mut [HashSet<MissingLane>]) -> Result<Planned<'a>> {
    let mut targets = Vec::with_capacity(item.targets.len());
    let mut lacking = Vec::new();
    for target in &item.targets {
        let Some(at) = homes.iter().position(|home| home.family == target.family) else {
            return Err(no_answer());
        };
        let queue = homes[at].catalog.queue(&target.queue)?;
        match lane(homes[at].inner, queue, target, &item.fact)? {
            Ok(lane) => targets.push(Placed { target, queue_id: queue.id, lane }),
            Err(lane) => lacking.push((at, lane)),
        }
    }
    for (at, lane) in lacking {
        missing[at].insert(lane);
    }
    Ok(Planned { item, targets })
}

/// The lane of a target in a queue that takes new entries, or the lane to make for it.
fn lane(inner: &Inner, queue: &Queue, target: &Target, fact: &NewEvent) -> Result<Result<i32, MissingLane>> {
    if queue.state == QueueState::Draining {
        return Err(crate::values::queues::draining(&target.queue));
    }
    let event_type = target.type_of_lane(fact);
    if target.needs_own_lane(fact) && !queue.is_own(event_type) {
        return Err(no_own_lane(&target.queue, event_type));
    }
    let lane = queue.lane(event_type, target.priority);
    match lane.is_err().then(|| queue.too_many_lanes(inner.shared.options.store.max_lanes)).flatten() {
        Some(error) => Err(error),
        None => Ok(lane),
    }
}

impl<'a> Planned<'a> {
    /// Its targets of one family.
    fn of<'b>(&'b self, home: &'b Home<'_>) -> impl Iterator<Item = &'b Placed<'a>> {
        self.targets.iter().filter(|placed| placed.target.family == home.family)
    }

    /// How many of them are in each queue that has a depth limit.
    fn limited(&self, home: &Home<'_>) -> BTreeMap<i32, u64> {
        let is_limited = |queue_id| home.catalog.queue_by_id(queue_id).is_some_and(|queue| queue.depth_limit.is_some());
        let mut counts = BTreeMap::new();
        for placed in self.of(home).filter(|placed| is_limited(placed.queue_id)) {
            *counts.entry(placed.queue_id).or_default() += 1;
        }
        counts
    }
}

/// Writes planned items in a transaction.
async fn write(
    inner: &Inner,
    tx: &Tx,
    homes: &[Home<'_>],
    plans: &[Result<Planned<'_>>],
) -> Result<Batch<Ingested>, Fault> {
    let mut answers: Vec<Option<Result<Ingested>>> =
        plans.iter().map(|plan| plan.as_ref().err().map(|error| Err(error.clone()))).collect();
    refuse_full(tx, homes, plans, &mut answers).await?;
    let accepted: Vec<(usize, &Planned<'_>)> = (plans.iter().enumerate())
        .filter(|(at, _)| answers[*at].is_none())
        .filter_map(|(at, plan)| Some((at, plan.as_ref().ok()?)))
        .collect();
    let drawn = inner.draw_ids(tx, accepted.iter().map(|(_, plan)| plan.targets.len().max(1)).sum()).await?;
    let numbered = numbered(&accepted, &drawn);
    if let Some(Drawn { now, .. }) = drawn.first() {
        let (facts, entries) =
            join(write_facts(inner, tx, now, &numbered), write_targets(tx, homes, now, &numbered)).await;
        both(facts, entries)?;
    }
    for home in homes {
        let placed = numbered.iter().flat_map(|one| one.planned.of(home));
        let groups = placed.filter_map(|placed| Some((placed.queue_id, placed.target.group.as_deref()?)));
        home.inner.promote(tx, groups).await?;
    }
    for ((at, _), one) in accepted.iter().zip(&numbered) {
        answers[*at] = one.answer().transpose();
    }
    Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(no_answer()))).collect())
}

/// Answers items with `Full` that have more targets than their queues take, in order. Such an item takes no room, in
/// neither family.
async fn refuse_full(
    tx: &Tx,
    homes: &[Home<'_>],
    plans: &[Result<Planned<'_>>],
    answers: &mut [Option<Result<Ingested>>],
) -> Result<(), Fault> {
    let mut room: Vec<HashMap<i32, u64>> = Vec::with_capacity(homes.len());
    for home in homes {
        let mut wanted: BTreeMap<i32, u64> = BTreeMap::new();
        for (queue_id, count) in plans.iter().flatten().flat_map(|plan| plan.limited(home)) {
            *wanted.entry(queue_id).or_default() += count;
        }
        let is_limited = !wanted.is_empty();
        room.push(if is_limited { home.inner.allowed(tx, &home.catalog, wanted).await? } else { HashMap::new() });
    }
    for (plan, answer) in plans.iter().zip(answers.iter_mut()).filter(|(_, answer)| answer.is_none()) {
        let Ok(plan) = plan else { continue };
        let counts: Vec<BTreeMap<i32, u64>> = homes.iter().map(|home| plan.limited(home)).collect();
        let full = homes.iter().zip(&counts).zip(&room).find_map(|((home, counts), room)| {
            let left = |queue_id: &i32| room.get(queue_id).copied().unwrap_or(0);
            let (queue_id, _) = counts.iter().find(|(queue_id, count)| left(queue_id) < **count)?;
            home.catalog.queue_by_id(*queue_id)
        });
        if let Some(queue) = full {
            *answer = Some(Err(Error::new(ErrorKind::Full, format!("queue {} is full", queue.name))));
            continue;
        }
        for (counts, room) in counts.into_iter().zip(&mut room) {
            for (queue_id, count) in counts {
                room.entry(queue_id).and_modify(|left| *left -= count);
            }
        }
    }
    Ok(())
}

/// Gives each item its part of the numbers.
fn numbered<'a>(accepted: &[(usize, &'a Planned<'a>)], mut drawn: &'a [Drawn]) -> Vec<Numbered<'a>> {
    let mut numbered = Vec::with_capacity(accepted.len());
    for (_, planned) in accepted {
        let (own, rest) = drawn.split_at(planned.targets.len().max(1).min(drawn.len()));
        numbered.push(Numbered { planned, drawn: own });
        drawn = rest;
    }
    numbered
}

impl Numbered<'_> {
    /// The fact's id and moment.
    fn fact(&self) -> Option<&Drawn> {
        self.drawn.first()
    }

    /// The range of numbers that the fact remembers; empty for a fact without targets.
    fn range(&self) -> Option<(i64, i64)> {
        let (first, last) = (self.drawn.first()?.id, self.drawn.last()?.id);
        let is_empty = self.planned.targets.is_empty();
        (!self.planned.item.is_single()).then_some((first, if is_empty { first - 1 } else { last }))
    }

    fn targets(&self) -> impl Iterator<Item = (&Placed<'_>, &Drawn)> {
        self.planned.targets.iter().zip(self.drawn)
    }

    fn answer(&self) -> Result<Option<Ingested>> {
        let Some(fact) = self.fact() else { return Ok(None) };
        let targets = self.targets().map(|(_, drawn)| EntryId::new(drawn.id)).collect::<Result<_, _>>()?;
        Ok(Some(Ingested { event_id: Tsid::from_i64(fact.event_id), created_at: fact.now, targets }))
    }
}

async fn write_facts(inner: &Inner, tx: &Tx, now: &Timestamp, items: &[Numbered<'_>]) -> Result<(), Fault> {
    let facts = || items.iter().map(|one| &one.planned.item.fact);
    let text = |read: fn(&NewEvent) -> &Option<String>| -> Vec<Option<&str>> {
        facts().map(|fact| read(fact).as_deref()).collect()
    };
    let ids: Vec<i64> = items.iter().filter_map(|one| Some(one.fact()?.event_id)).collect();
    let clients: Vec<Option<i64>> = facts().map(|fact| fact.client.map(Tsid::to_i64)).collect();
    let types: Vec<&str> = facts().map(|fact| fact.event_type.as_str()).collect();
    let payloads: Vec<&[u8]> = facts().map(|fact| fact.payload.as_ref()).collect();
    let times: Vec<Option<Timestamp>> = facts().map(|fact| fact.time).collect();
    let tags: Vec<Option<String>> = facts().map(tags).collect();
    let retries: Vec<Option<String>> = facts().map(retry).collect();
    let (firsts, lasts): (Vec<Option<i64>>, Vec<Option<i64>>) = items.iter().map(|one| one.range().unzip()).unzip();
    let params: [&(dyn ToSql + Sync); 19] = [
        now,
        &ids,
        &clients,
        &types,
        &payloads,
        &text(|fact| &fact.content_type),
        &text(|fact| &fact.source),
        &text(|fact| &fact.subject),
        &times,
        &text(|fact| &fact.external_id),
        &text(|fact| &fact.correlation_id),
        &text(|fact| &fact.causation_id),
        &text(|fact| &fact.attributes),
        &text(|fact| &fact.title),
        &text(|fact| &fact.description),
        &tags,
        &retries,
        &firsts,
        &lasts,
    ];
    tx.execute(&inner.sql.ingest.write_facts, &params).await.map(drop)
}

/// Writes the targets, family by family.
async fn write_targets(tx: &Tx, homes: &[Home<'_>], now: &Timestamp, items: &[Numbered<'_>]) -> Result<(), Fault> {
    for home in homes {
        let mut columns = Columns::default();
        for one in items {
            let own = one.targets().filter(|(placed, _)| placed.target.family == home.family);
            own.for_each(|(placed, drawn)| columns.add(placed, drawn.id, one));
        }
        if !columns.ids.is_empty() {
            tx.execute(&home.inner.sql.ingest.write_targets, &columns.params(now)).await?;
        }
    }
    Ok(())
}

/// The arrays of the statement that writes targets.
#[derive(Default)]
struct Columns<'a> {
    ids: Vec<i64>,
    events: Vec<Option<i64>>,
    dues: Vec<Option<Timestamp>>,
    delays: Vec<Option<i64>>,
    clients: Vec<Option<i64>>,
    lanes: Vec<i32>,
    queues: Vec<i32>,
    max_attempts: Vec<i32>,
    places: Vec<i16>,
    exhausted: Vec<i16>,
    groups: Vec<Option<&'a str>>,
    priorities: Vec<i16>,
    tags: Vec<Option<String>>,
    ranks: Vec<i32>,
    expiries: Vec<Option<Timestamp>>,
    ages: Vec<Option<i64>>,
    keeps_places: Vec<bool>,
}

impl<'a> Columns<'a> {
    fn add(&mut self, placed: &Placed<'a>, id: i64, item: &Numbered<'_>) {
        let target = placed.target;
        let (due, delay) = match target.available {
            Availability::Now => (None, None),
            Availability::At(at) => (Some(at), None),
            Availability::After(delay) => (None, Some(micros(delay))),
        };
        self.ids.push(id);
        self.events.push(item.fact().map(|fact| fact.event_id));
        self.dues.push(due);
        self.delays.push(delay);
        self.clients.push(target.queue.client().map(Tsid::to_i64));
        self.lanes.push(placed.lane);
        self.queues.push(placed.queue_id);
        self.max_attempts.push(target.max_attempts as i32);
        self.places.push(place_of(target.group.as_deref(), target.available, false));
        self.exhausted.push(target.exhausted_as.code());
        self.groups.push(target.group.as_deref());
        self.priorities.push(target.priority);
        // Jobs have no tags.
        self.tags.push(tags(&item.planned.item.fact).filter(|_| target.family == Family::Entries));
        let (expiry, age) = match target.expires {
            None => (None, None),
            Some(Expiry::At(at)) => (Some(at), None),
            Some(Expiry::After(age)) => (None, Some(micros(age))),
        };
        self.ranks.push(target.rank);
        self.expiries.push(expiry);
        self.ages.push(age);
        self.keeps_places.push(target.keeps_place);
    }

    fn params<'b>(&'b self, now: &'b Timestamp) -> [&'b (dyn ToSql + Sync); 18] {
        [
            now,
            &self.ids,
            &self.events,
            &self.dues,
            &self.delays,
            &self.clients,
            &self.lanes,
            &self.queues,
            &self.max_attempts,
            &self.places,
            &self.exhausted,
            &self.groups,
            &self.priorities,
            &self.tags,
            &self.ranks,
            &self.expiries,
            &self.ages,
            &self.keeps_places,
        ]
    }
}
