//! Where the items of an ingest go: a queue and a lane for each target, by the catalogue as it was read, and the room that
//! queues with a depth limit have.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tidegate_core::{NewEvent, QueueState};

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::catalogue::{Catalog, MissingLane, Queue};
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::{Inner, Opened};
use crate::postgres::fact_keys::{StoredKey, stored_keys};
use crate::values::ingest::no_own_lane;
use crate::values::{Family, Ingest, Target};

/// Where the targets of one family go: the statements and caches of the family, and its catalogue as it was read.
pub(super) struct Home<'a> {
    pub(super) family: Family,
    pub(super) inner: &'a Inner,
    pub(super) catalog: Arc<Catalog>,
}

/// An item, and a queue and a lane for each of its targets.
pub(super) struct Planned<'a> {
    pub(super) item: &'a Ingest,
    /// Why it cannot be written, if it cannot. A repeat is answered all the same.
    pub(super) targets: Result<Vec<Placed<'a>>>,
    /// Its keys as they are stored; none if something is wrong with the item itself.
    pub(super) keys: Vec<StoredKey>,
}

pub(super) struct Placed<'a> {
    pub(super) target: &'a Target,
    pub(super) queue_id: i32,
    pub(super) lane: i32,
    pub(super) max_attempts: u32,
}

/// The room that is left in queues with a depth limit, for each home.
pub(super) type Room = Vec<HashMap<i32, u64>>;

pub(super) fn no_answer() -> Error {
    Error::new(ErrorKind::Indeterminate, "the database gave no answer for this item")
}

/// The families of these items' targets.
pub(super) async fn homes<'a>(opened: &'a Opened, items: &[&Ingest]) -> Result<Vec<Home<'a>>> {
    let is_named = |family: &Family| items.iter().any(|item| item.targets.iter().any(|to| to.family == *family));
    let mut homes = Vec::new();
    for family in Family::ALL.into_iter().filter(is_named) {
        let inner = opened.family(family);
        homes.push(Home { family, inner, catalog: inner.catalog().await? });
    }
    Ok(homes)
}

pub(super) async fn reload(homes: &[Home<'_>]) -> Result<()> {
    for home in homes {
        home.inner.reload_catalog().await?;
    }
    Ok(())
}

/// Finds a queue and a lane for every target. Creates missing lanes in a transaction of its own and then answers
/// `StaleCatalog`.
pub(super) async fn plan<'a>(
    inner: &Inner,
    homes: &[Home<'_>],
    items: &[&'a Ingest],
) -> Result<Vec<Planned<'a>>, Fault> {
    let mut missing: Vec<HashSet<MissingLane>> = homes.iter().map(|_| HashSet::new()).collect();
    let limit = inner.shared.options.store.payload_limit;
    let mut plans = Vec::with_capacity(items.len());
    for item in items {
        let checked = item.check(limit);
        let keys = if checked.is_ok() { stored_keys(item) } else { Vec::new() };
        plans.push(Planned { item, targets: checked.and_then(|()| place(homes, item, &mut missing)), keys });
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
        match lane(homes[at].inner, queue, target, &item.fact, &missing[at])? {
            Ok(lane) => {
                let max_attempts = target.attempts_in(&queue.settings);
                targets.push(Placed { target, queue_id: queue.id, lane, max_attempts });
            }
            Err(lane) => lacking.push((at, lane)),
        }
    }
    for (at, lane) in lacking {
        missing[at].insert(lane);
    }
    Ok(targets)
}

/// The lane of a target in a queue that takes new entries, or the lane to make for it beside others.
fn lane(
    inner: &Inner,
    queue: &Queue,
    target: &Target,
    fact: &NewEvent,
    missing: &HashSet<MissingLane>,
) -> Result<Result<i32, MissingLane>> {
    if queue.state == QueueState::Draining {
        return Err(crate::values::queues::draining(&target.queue));
    }
    let of_queue = missing.iter().filter(|lane| lane.queue_id == queue.id);
    let types = queue.own_types().chain(of_queue.filter_map(|lane| lane.event_type.as_deref()));
    let event_type = target.type_among(fact, |own| queue.has_lanes_for(own), types);
    if target.needs_own_lane(fact) && !queue.is_own(event_type) {
        return Err(no_own_lane(&target.queue, event_type));
    }
    let lane = queue.lane(event_type, target.priority);
    match lane.is_err().then(|| queue.too_many_lanes(inner.shared.options.store.lanes_of(inner.family))).flatten() {
        Some(error) => Err(error),
        None => Ok(lane),
    }
}

impl<'a> Planned<'a> {
    /// Its targets of one family.
    pub(super) fn of<'b>(&'b self, home: &'b Home<'_>) -> impl Iterator<Item = &'b Placed<'a>> {
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

/// What queues with a depth limit take.
pub(super) async fn room(tx: &Tx, homes: &[Home<'_>], plans: &[Planned<'_>]) -> Result<Room, Fault> {
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

/// Takes the room that an item needs, in all families; `Full` if one of its queues has too little, and then none.
pub(super) fn take_room(homes: &[Home<'_>], plan: &Planned<'_>, room: &mut Room) -> Result<()> {
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
