//! Ingest: facts, and any number of entries that refer to each. Numbers are drawn and known keys looked up first, then keys,
//! facts, terms and entries are written, promotions come last. Lock order as for publishing: depth limits, keys, groups.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{join, join4};
use tidegate_core::{EntryId, NewEvent, QueueState, Tsid};

use crate::api;
use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::bisect::halves;
use crate::postgres::engine::catalogue::{Catalog, MissingLane, Queue};
use crate::postgres::engine::connection::{Begin, Prelude, Tx};
use crate::postgres::engine::errors::{Fault, all, both};
use crate::postgres::engine::store::{Inner, MAX_CATALOG_READS, Opened, PostgresStore, accept_catalog};
use crate::postgres::fact_keys::Known;
use crate::postgres::ingest_rows::{write_facts, write_targets, write_terms};
use crate::postgres::statements::deduplication::Drawn;
use crate::values::ingest::{Part, changed_meanwhile, in_parts, no_own_lane};
use crate::values::{Batch, CatalogueVersion, Family, Ingest, IngestAnswer, IngestOutcome, Ingested, Target};

#[async_trait::async_trait]
impl api::Ingestion for PostgresStore {
    async fn ingest(&self, items: Vec<Ingest>, under: Option<CatalogueVersion>) -> Result<IngestAnswer> {
        let opened = Arc::clone(&self.opened);
        self.detached(|inner| async move { inner.ingest(&opened, items, under).await }).await
    }
}

/// Where the targets of one family go: the statements and caches of the family, and its catalogue as it was read.
pub(super) struct Home<'a> {
    pub(super) family: Family,
    pub(super) inner: &'a Inner,
    catalog: Arc<Catalog>,
}

/// An item, and a queue and a lane for each of its targets.
pub(super) struct Planned<'a> {
    pub(super) item: &'a Ingest,
    /// Why it cannot be written, if it cannot. A repeat is answered all the same.
    pub(super) targets: Result<Vec<Placed<'a>>>,
    /// It has keys, and nothing is wrong with the item itself.
    pub(super) is_keyed: bool,
}

pub(super) struct Placed<'a> {
    pub(super) target: &'a Target,
    pub(super) queue_id: i32,
    pub(super) lane: i32,
}

/// An item to be written, under numbers that were drawn for it.
pub(super) struct Numbered<'a> {
    pub(super) item: &'a Ingest,
    targets: &'a [Placed<'a>],
    /// One for each target; a single one, which makes the fact's id, where there is none.
    drawn: &'a [Drawn],
}

/// The room that is left in queues with a depth limit, for each home.
type Room = Vec<HashMap<i32, u64>>;

impl Inner {
    async fn ingest(
        &self,
        opened: &Opened,
        items: Vec<Ingest>,
        under: Option<CatalogueVersion>,
    ) -> Result<IngestAnswer> {
        in_parts(items, under, |part, under| async move { self.ingest_part(opened, &part, under).await }).await
    }

    /// Writes items in one transaction; in several, where that fails because of some of them.
    async fn ingest_part<'a>(
        &'a self,
        opened: &'a Opened,
        items: &'a [Ingest],
        under: Option<CatalogueVersion>,
    ) -> Result<Part> {
        let all: Vec<&Ingest> = items.iter().collect();
        let done = self.ingest_together(opened, &all, under).await;
        let Err(error) = &done else { return done };
        let is_keyed = |item: &Ingest| !item.keys.is_empty();
        let apart = |items: Vec<&'a Ingest>| {
            async move {
                match self.ingest_together(opened, &items, under).await? {
                    Part::Done(answers, _) => Ok(answers),
                    Part::Stale(_) => Err(changed_meanwhile()),
                }
            }
            .boxed()
        };
        match error.kind() {
            // A value that the database cannot store must not fail the other items.
            ErrorKind::Invalid if items.len() > 1 => Ok(Part::Done(halves(all, &apart).await, under)),
            // A key that another transaction holds must not block the other items: first those without keys, then each of
            // the others alone.
            ErrorKind::Busy if items.len() > 1 && items.iter().any(is_keyed) => {
                let (keyed, free): (Vec<usize>, Vec<usize>) = (0..items.len()).partition(|at| is_keyed(&items[*at]));
                let alone = keyed.into_iter().map(|at| vec![at]);
                let mut answers: Vec<Option<Result<Ingested>>> = items.iter().map(|_| None).collect();
                for part in std::iter::once(free).filter(|free| !free.is_empty()).chain(alone) {
                    let written = apart(part.iter().map(|at| &items[*at]).collect()).await;
                    let written = written.unwrap_or_else(|error| part.iter().map(|_| Err(error.clone())).collect());
                    part.into_iter().zip(written).for_each(|(at, answer)| answers[at] = Some(answer));
                }
                Ok(Part::Done(
                    answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(no_answer()))).collect(),
                    under,
                ))
            }
            _ => done,
        }
    }

    /// Writes items in one transaction, planned again while the catalogue changes; under a version of it, only while it
    /// has that one.
    async fn ingest_together(
        &self,
        opened: &Opened,
        items: &[&Ingest],
        under: Option<CatalogueVersion>,
    ) -> Result<Part> {
        for _ in 0..MAX_CATALOG_READS {
            let homes = homes(opened, items).await?;
            match ingest_once(self, &homes, items, under).await {
                Ok(answers) => return Ok(Part::Done(answers, under)),
                Err(Fault::StaleCatalog) => {}
                Err(fault) => return Err(fault.into_error()),
            }
            if let Some(under) = under {
                let present = self.catalogue_version().await?;
                if present != under {
                    return Ok(Part::Stale(present));
                }
            }
            reload(&homes).await?;
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
async fn ingest_once(
    inner: &Inner,
    homes: &[Home<'_>],
    items: &[&Ingest],
    under: Option<CatalogueVersion>,
) -> Result<Batch<Ingested>, Fault> {
    let accept =
        |stamp: i64| if under.is_none_or(|under| under.stamp == stamp) { Ok(()) } else { Err(Fault::StaleCatalog) };
    homes.iter().try_for_each(|home| accept(home.catalog.stamp))?;
    let plans = &plan(inner, homes, items).await?;
    if plans.iter().any(|plan| plan.targets.is_err()) {
        for home in homes {
            if !home.inner.catalog_stands(&home.catalog).await? {
                return Err(Fault::StaleCatalog);
            }
        }
    }
    if under.is_none() && plans.iter().all(|plan| plan.targets.is_err() && !plan.is_keyed) {
        return Ok(plans
            .iter()
            .map(|plan| Err(plan.targets.as_ref().err().map_or_else(no_answer, Error::clone)))
            .collect());
    }
    let answers = inner
        .transact(
            Begin::Write,
            |prelude: Prelude| {
                accept(prelude.stamp)?;
                homes.iter().try_for_each(|home| accept_catalog(&home.catalog, prelude))
            },
            |tx| async move { write(inner, &tx, homes, plans).await },
            // It took place if its first new fact is there.
            |tx, answers| {
                let is_new = |ingested: &&Ingested| ingested.outcome == IngestOutcome::New;
                let first = answers.iter().flatten().find(is_new).map(|ingested| ingested.event_id.to_i64());
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
        home.inner.announce(plans.iter().flat_map(|plan| plan.of(home)).map(|placed| placed.queue_id));
    }
    Ok(answers)
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Indeterminate, "the database gave no answer for this item")
}

/// Finds a queue and a lane for every target. Creates missing lanes in a transaction of its own and then answers
/// `StaleCatalog`.
async fn plan<'a>(inner: &Inner, homes: &[Home<'_>], items: &[&'a Ingest]) -> Result<Vec<Planned<'a>>, Fault> {
    let mut missing: Vec<HashSet<MissingLane>> = homes.iter().map(|_| HashSet::new()).collect();
    let limit = inner.shared.options.store.payload_limit;
    let mut plans = Vec::with_capacity(items.len());
    for item in items {
        let checked = item.check(limit);
        let is_keyed = checked.is_ok() && !item.keys.is_empty();
        plans.push(Planned { item, targets: checked.and_then(|()| place(homes, item, &mut missing)), is_keyed });
    }
    let mut has_new = false;
    for (home, missing) in homes.iter().zip(missing).filter(|(_, missing)| !missing.is_empty()) {
        home.inner.add_lanes(missing.into_iter().collect()).await?;
        has_new = true;
    }
    if has_new { Err(Fault::StaleCatalog) } else { Ok(plans) }
}

/// Places the targets of one item; adds the lanes that it lacks to those of its families.
fn place<'a>(homes: &[Home<'_>], item: &'a Ingest, missing: &mut [HashSet<MissingLane>]) -> Result<Vec<Placed<'a>>> {
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
    Ok(targets)
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
        self.targets.iter().flatten().filter(|placed| placed.target.family == home.family)
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
async fn write(inner: &Inner, tx: &Tx, homes: &[Home<'_>], plans: &[Planned<'_>]) -> Result<Batch<Ingested>, Fault> {
    let mut room = room(tx, homes, plans).await?;
    let numbers = plans.iter().filter_map(|plan| plan.targets.as_ref().ok()).map(|targets| targets.len().max(1)).sum();
    let (known, drawn) = join(inner.known_facts(tx, plans), inner.draw_ids(tx, numbers)).await;
    let (known, drawn) = both(known, drawn)?;
    let (answers, numbered) = decide(homes, plans, known, &drawn, &mut room)?;
    if let Some(Drawn { now, .. }) = drawn.first().filter(|_| !numbered.is_empty()) {
        // Keys first: who waits for one has locked nothing else.
        let (keys, facts, terms, targets) = join4(
            inner.take_facts(tx, &numbered),
            write_facts(inner, tx, now, &numbered),
            write_terms(inner, tx, &numbered),
            write_targets(tx, homes, now, &numbered),
        )
        .await;
        all([keys, facts, terms, targets])?;
    }
    for home in homes {
        let placed = numbered.iter().flat_map(|one| one.of(home));
        let groups = placed.filter_map(|(placed, _)| Some((placed.queue_id, placed.target.group.as_deref()?)));
        home.inner.promote(tx, groups).await?;
    }
    Ok(answers)
}

/// What queues with a depth limit take.
async fn room(tx: &Tx, homes: &[Home<'_>], plans: &[Planned<'_>]) -> Result<Room, Fault> {
    let mut room = Vec::with_capacity(homes.len());
    for home in homes {
        let mut wanted: BTreeMap<i32, u64> = BTreeMap::new();
        for (queue_id, count) in plans.iter().flat_map(|plan| plan.limited(home)) {
            *wanted.entry(queue_id).or_default() += count;
        }
        let is_limited = !wanted.is_empty();
        room.push(if is_limited { home.inner.allowed(tx, &home.catalog, wanted).await? } else { HashMap::new() });
    }
    Ok(room)
}

/// Answers each item in order: a repeat with the first fact, one without room with an error, and any other with its
/// numbers, under which it is to be written.
fn decide<'a>(
    homes: &[Home<'_>],
    plans: &'a [Planned<'a>],
    mut known: Known,
    mut drawn: &'a [Drawn],
    room: &mut Room,
) -> Result<(Batch<Ingested>, Vec<Numbered<'a>>), Fault> {
    let (mut answers, mut numbered) = (Vec::with_capacity(plans.len()), Vec::with_capacity(plans.len()));
    for plan in plans {
        if plan.is_keyed
            && let Some(answer) = known.repeated(plan.item).transpose()
        {
            answers.push(answer);
            continue;
        }
        let targets = match &plan.targets {
            Ok(targets) => take_room(homes, plan, room).map(|()| targets),
            Err(refused) => Err(refused.clone()),
        };
        match targets {
            Err(refused) => answers.push(Err(refused)),
            Ok(targets) => {
                let (own, rest) = drawn.split_at(targets.len().max(1).min(drawn.len()));
                let one = Numbered { item: plan.item, targets, drawn: own };
                drawn = rest;
                if let Some(fact) = one.fact() {
                    known.add(plan.item, fact);
                }
                answers.push(one.answer());
                numbered.push(one);
            }
        }
    }
    Ok((answers, numbered))
}

/// Takes the room that an item needs, in all families; `Full` if one of its queues has too little, and then none.
fn take_room(homes: &[Home<'_>], plan: &Planned<'_>, room: &mut Room) -> Result<()> {
    let counts: Vec<BTreeMap<i32, u64>> = homes.iter().map(|home| plan.limited(home)).collect();
    for ((home, counts), room) in homes.iter().zip(&counts).zip(room.iter()) {
        let left = |queue_id: &i32| room.get(queue_id).copied().unwrap_or(0);
        let full = counts.iter().find(|(queue_id, count)| left(queue_id) < **count);
        if let Some(queue) = full.and_then(|(queue_id, _)| home.catalog.queue_by_id(*queue_id)) {
            return Err(Error::new(ErrorKind::Full, format!("queue {} is full", queue.name)));
        }
    }
    for (counts, room) in counts.into_iter().zip(room) {
        for (queue_id, count) in counts {
            room.entry(queue_id).and_modify(|left| *left -= count);
        }
    }
    Ok(())
}

impl<'a> Numbered<'a> {
    /// The fact's id and moment.
    pub(super) fn fact(&self) -> Option<&'a Drawn> {
        self.drawn.first()
    }

    /// The range of numbers that the fact remembers; empty for a fact without targets.
    pub(super) fn range(&self) -> Option<(i64, i64)> {
        let (first, last) = (self.drawn.first()?.id, self.drawn.last()?.id);
        let is_empty = self.targets.is_empty();
        (!self.item.is_single()).then_some((first, if is_empty { first - 1 } else { last }))
    }

    /// Its targets of one family, with their numbers.
    pub(super) fn of(&self, home: &Home<'_>) -> impl Iterator<Item = (&'a Placed<'a>, &'a Drawn)> {
        let family = home.family;
        self.targets.iter().zip(self.drawn).filter(move |(placed, _)| placed.target.family == family)
    }

    fn answer(&self) -> Result<Ingested> {
        let Some(fact) = self.fact() else { return Err(no_answer()) };
        let numbers = self.targets.iter().zip(self.drawn).map(|(_, drawn)| EntryId::new(drawn.id));
        let (targets, outcome) = (numbers.collect::<Result<_, _>>()?, IngestOutcome::New);
        Ok(Ingested { event_id: Tsid::from_i64(fact.event_id), created_at: fact.now, targets, outcome })
    }
}
