//! Ingest: a fact, and any number of entries that refer to it.

use std::collections::{BTreeSet, HashMap};

use rusqlite::params;
use tidegate_core::id::ENTRY_ID_LIMIT;
use tidegate_core::{Availability, NewEvent, Place, QueueState, Tsid};

use crate::api;
use crate::error::{Error, ErrorKind, Result};
use crate::failpoint::ingest_failpoint;
use crate::sqlite::added;
use crate::sqlite::engine::catalogue::{current_version, no_queue};
use crate::sqlite::engine::jobs::Urgency;
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::{Tx, entry_id, later, micros, moment};
use crate::sqlite::fact_keys;
use crate::sqlite::flags::{ADDED, IN_ENVELOPE, KEEPS_PLACE, TAGGED};
use crate::sqlite::groups::promote_by_rank;
use crate::sqlite::publish::retry_text;
use crate::sqlite::statements::ingest::TERMS_AT_ONCE;
use crate::sqlite::tags::{self, State};
use crate::values::fact_keys::TERM;
use crate::values::ingest::{Part, in_parts, no_own_lane};
use crate::values::{
    AddTarget, AddedTarget, Batch, CatalogueVersion, Family, Ingest, IngestAnswer, IngestOutcome, Ingested, Target,
};

#[async_trait::async_trait]
impl api::Ingestion for SqliteStore {
    async fn ingest(&self, items: Vec<Ingest>, under: Option<CatalogueVersion>) -> Result<IngestAnswer> {
        let write = |part: Vec<Ingest>, under| self.write(Urgency::Publish, move |tx| ingest_under(tx, &part, under));
        in_parts(items, under, write).await
    }

    async fn add_targets(&self, items: Vec<AddTarget>) -> Result<Batch<AddedTarget>> {
        AddTarget::check_all(&items)?;
        self.write(Urgency::Publish, move |tx| added::add_targets(tx, &items)).await
    }
}

/// Ingests a batch, if the catalogue has this version.
fn ingest_under(tx: &mut Tx<'_>, items: &[Ingest], under: Option<CatalogueVersion>) -> Result<Part> {
    if let Some(under) = under {
        let present = current_version(tx.conn, tx.shared).map(CatalogueVersion::from)?;
        if present != under {
            return Ok(Part::Stale(present));
        }
    }
    ingest(tx, items).map(Part::Done)
}

/// Ingests a batch.
fn ingest(tx: &mut Tx<'_>, items: &[Ingest]) -> Result<Batch<Ingested>> {
    let first = tx.number(&tx.sql().publish.next_entry_id)?;
    let mut batch = Ingesting::new(tx, first);
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        answers.push(batch.ingest(item)?);
    }
    batch.write_terms()?;
    batch.save_next(first)?;
    Ok(answers)
}

/// The queue of a target: its family, and its index in what is known of that.
type QueueOf = (Family, usize);

/// Where a target goes.
pub(super) struct Planned {
    pub(super) queue: QueueOf,
    pub(super) lane: i64,
}

/// The fact that an entry is made for.
pub(super) struct Origin<'a> {
    pub(super) event_id: Tsid,
    /// Those of the entry.
    pub(super) tags: &'a [String],
    /// Whether the fact had been stored before.
    pub(super) is_added: bool,
}

/// A batch being ingested.
pub(super) struct Ingesting<'t, 'c> {
    pub(super) tx: &'t mut Tx<'c>,
    /// The next entry id.
    pub(super) next: i64,
    /// The number of entries in queues with a limit.
    depths: HashMap<QueueOf, i64>,
    /// What facts are found by: the term, the client and the fact. Written at the end, for all facts together.
    terms: Vec<([u8; TERM], i64, i64)>,
}

impl<'t, 'c> Ingesting<'t, 'c> {
    /// A batch whose first entry id is this.
    pub(super) fn new(tx: &'t mut Tx<'c>, next: i64) -> Self {
        Self { tx, next, depths: HashMap::new(), terms: Vec::new() }
    }

    /// Keeps the next entry id, if any was used since the first.
    pub(super) fn save_next(&mut self, first: i64) -> Result<()> {
        if self.next != first {
            self.tx.execute(&self.tx.sql().publish.save_entry_id, [self.next])?;
        }
        Ok(())
    }

    /// Answers a repeat, or writes the item. The outer error fails the batch.
    fn ingest(&mut self, item: &Ingest) -> Result<Result<Ingested>> {
        if let Err(error) = item.check(self.tx.shared.options.payload_limit) {
            return Ok(Err(error));
        }
        if let Some(answer) = fact_keys::repeated(self.tx, item)? {
            return Ok(answer);
        }
        match self.plan(item)? {
            Ok(planned) => Ok(Ok(self.write(item, &planned)?)),
            Err(refused) => Ok(Err(refused)),
        }
    }

    /// Finds a queue and a lane for every target. Writes nothing but lanes, so that a refused item leaves no row.
    pub(super) fn plan(&mut self, item: &Ingest) -> Result<Result<Vec<Planned>>> {
        let mut queues = Vec::with_capacity(item.targets.len());
        for target in &item.targets {
            match self.tx.in_family(target.family, |tx| queue(tx, target))? {
                Ok(queue) => queues.push((target.family, queue)),
                Err(refused) => return Ok(Err(refused)),
            }
        }
        if let Some(refused) = self.full(&queues)? {
            return Ok(Err(refused));
        }
        let mut planned = Vec::with_capacity(queues.len());
        for (target, queue) in item.targets.iter().zip(&queues) {
            match self.tx.in_family(target.family, |tx| lane(tx, queue.1, target, &item.fact))? {
                Ok(lane) => planned.push(Planned { queue: *queue, lane }),
                Err(refused) => return Ok(Err(refused)),
            }
        }
        let last = self.next + (planned.len().max(1) as i64 - 1) * self.tx.shared.options.ids.step;
        if last >= ENTRY_ID_LIMIT {
            return Ok(Err(Error::new(ErrorKind::Full, "all entry ids are used up")));
        }
        for queue in &queues {
            if let Some(depth) = self.depths.get_mut(queue) {
                *depth += 1;
            }
        }
        Ok(Ok(planned))
    }

    /// The error for an item with these queues, if one of them is limited and has no room for all of its targets. Entries
    /// are counted once per batch, then tracked.
    fn full(&mut self, queues: &[QueueOf]) -> Result<Option<Error>> {
        let mut wanted: HashMap<QueueOf, i64> = HashMap::new();
        for queue in queues {
            *wanted.entry(*queue).or_default() += 1;
        }
        for (queue, count) in wanted {
            let known = self.depths.get(&queue).copied();
            let limited = self.tx.in_family(queue.0, |tx| depth_and_limit(tx, queue.1, known))?;
            let Some((depth, limit, name)) = limited else { continue };
            self.depths.insert(queue, depth);
            if depth + count > limit {
                return Ok(Some(Error::new(ErrorKind::Full, format!("queue {name} is full"))));
            }
        }
        Ok(None)
    }

    /// Writes the fact with its keys and terms, and its entries, then promotes in their groups.
    fn write(&mut self, item: &Ingest, planned: &[Planned]) -> Result<Ingested> {
        ingest_failpoint("planned");
        let step = self.tx.shared.options.ids.step;
        let numbers: Vec<i64> = (0..planned.len() as i64).map(|at| self.next + at * step).collect();
        let event_id = self.write_fact(item, numbers.last().copied())?;
        fact_keys::take(self.tx, item, event_id)?;
        ingest_failpoint("keys");
        self.next += numbers.len().max(1) as i64 * step;
        let mut groups = BTreeSet::new();
        for ((target, planned), number) in item.targets.iter().zip(planned).zip(&numbers) {
            let (family, queue) = planned.queue;
            let tags = if family == Family::Entries { &item.fact.tags[..] } else { &[] };
            let origin = Origin { event_id, tags, is_added: false };
            self.tx.in_family(family, |tx| write_entry(tx, *number, &origin, (target, queue, planned.lane)))?;
            groups.extend(target.group.as_deref().map(|group| (family as usize, queue, group)));
        }
        ingest_failpoint("targets");
        for (family, queue, group) in groups {
            self.tx.in_family(Family::ALL[family], |tx| {
                let queue_id = tx.known.queues[queue].id;
                promote_by_rank(tx, queue_id, group)
            })?;
        }
        ingest_failpoint("promoted");
        let targets = numbers.into_iter().map(entry_id).collect::<Result<_>>()?;
        Ok(Ingested { event_id, created_at: moment(self.tx.now)?, targets, outcome: IngestOutcome::New })
    }

    /// Writes the fact, under an id made from the next number. `last` is the number of its last entry.
    fn write_fact(&mut self, item: &Ingest, last: Option<i64>) -> Result<Tsid> {
        let (fact, first, step) = (&item.fact, self.next, self.tx.shared.options.ids.step);
        let event_id = Tsid::from_parts(self.tx.now / 1000, first);
        let range = (!item.is_single()).then_some((first, last.unwrap_or(first - step)));
        let terms = item.term_hashes();
        self.tx.execute(
            &self.tx.sql().ingest.put_fact,
            params![
                event_id.to_i64(),
                self.tx.now,
                fact.client.map(Tsid::to_i64),
                fact.event_type,
                fact.content_type,
                fact.source,
                fact.subject,
                fact.time.map(micros),
                fact.external_id,
                fact.correlation_id,
                fact.causation_id,
                fact.attributes,
                &fact.payload[..],
                fact.title,
                fact.description,
                tags::write(&fact.tags),
                retry_text(fact)?,
                range.map(|(first, _)| first),
                range.map(|(_, last)| last),
                range.map(|_| item.targets.len() as i64),
                (!terms.is_empty()).then(|| terms.concat()),
            ],
        )?;
        ingest_failpoint("facts");
        self.terms.extend(terms.into_iter().map(|term| (term, item.client(), event_id.to_i64())));
        Ok(event_id)
    }

    /// Writes the terms in the order of their index, many with one statement: each descends from where the last one was put.
    fn write_terms(&mut self) -> Result<()> {
        self.terms.sort_unstable();
        let (many, rest) = self.terms.as_chunks::<TERMS_AT_ONCE>();
        let sql = &self.tx.sql().ingest;
        for (statement, chunks) in
            [(&sql.put_terms, many.as_flattened().chunks(TERMS_AT_ONCE)), (&sql.put_term, rest.chunks(1))]
        {
            if chunks.len() == 0 {
                continue;
            }
            let mut statement = self.tx.prepare(statement)?;
            for chunk in chunks {
                for (at, (term, client, event)) in chunk.iter().enumerate() {
                    statement.raw_bind_parameter(at * 3 + 1, term)?;
                    statement.raw_bind_parameter(at * 3 + 2, client)?;
                    statement.raw_bind_parameter(at * 3 + 3, event)?;
                }
                statement.raw_execute()?;
            }
        }
        ingest_failpoint("terms");
        Ok(())
    }
}

/// The queue of a target, if it takes new entries.
fn queue(tx: &mut Tx<'_>, target: &Target) -> Result<Result<usize>> {
    let Some(queue) = tx.find_queue(&target.queue)? else { return Ok(Err(no_queue(&target.queue))) };
    if tx.known.queues[queue].state == QueueState::Draining {
        return Ok(Err(crate::values::queues::draining(&target.queue)));
    }
    Ok(Ok(queue))
}

/// How many entries a queue has, as far as it is not known yet, how many it may have, and its name; `None` for a queue
/// without a limit.
fn depth_and_limit(tx: &mut Tx<'_>, queue: usize, known: Option<i64>) -> Result<Option<(i64, i64, String)>> {
    let of = &tx.known.queues[queue];
    let Some(limit) = of.depth_limit else { return Ok(None) };
    let (id, name) = (of.id, of.name.to_string());
    let depth = match known {
        Some(depth) => depth,
        None => tx.row(&tx.sql().publish.count_entries, (id, limit))?.map_or(0, |count| count.0),
    };
    Ok(Some((depth, limit, name)))
}

fn lane(tx: &mut Tx<'_>, queue: usize, target: &Target, fact: &NewEvent) -> Result<Result<i64>> {
    let lanes = &tx.known.queues[queue].lanes;
    let types = lanes.by_type.keys().map(AsRef::as_ref);
    let event_type = target.type_among(fact, |own| lanes.by_type.contains_key(own), types);
    if target.needs_own_lane(fact) && !lanes.is_own(event_type) {
        return Ok(Err(no_own_lane(&target.queue, event_type)));
    }
    tx.lane(queue, event_type, target.priority)
}

/// Writes an entry or a job of the transaction's family.
pub(super) fn write_entry(
    tx: &mut Tx<'_>,
    id: i64,
    origin: &Origin<'_>,
    (target, queue, lane): (&Target, usize, i64),
) -> Result<()> {
    let (now, tags) = (tx.now, origin.tags);
    let due = match target.available {
        Availability::Now => None,
        Availability::At(at) => Some(micros(at).max(now)),
        Availability::After(delay) => Some(later(now, delay)?),
    };
    let (place, rank) = match (&target.group, due) {
        (Some(_), _) => (Place::Parked, (State::Parked, id)),
        (None, Some(due)) => (Place::Timed, (State::Timed, due)),
        (None, None) => (Place::Fresh, (State::Ready, id)),
    };
    let expires = target.expires.map(|expiry| Ok::<_, Error>(micros(expiry.moment(moment(now)?)))).transpose()?;
    let flags = [
        (!tags.is_empty(), TAGGED),
        (target.keeps_place, KEEPS_PLACE),
        (target.in_envelope, IN_ENVELOPE),
        (origin.is_added, ADDED),
    ];
    let flags = flags.into_iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, bit)| flags | bit);
    let (queue_id, max_attempts) = {
        let of = &tx.known.queues[queue];
        (of.id, target.attempts_in(&of.settings))
    };
    let client = target.queue.client().map(Tsid::to_i64);
    tx.execute(
        &tx.sql().publish.put_entry,
        params![
            id,
            origin.event_id.to_i64(),
            due,
            client,
            lane,
            queue_id,
            max_attempts,
            place.code(),
            target.exhausted_as.code(),
            target.group,
            Some(flags).filter(|flags| *flags != 0),
            expires,
            target.rank,
        ],
    )?;
    if let Some(task) = &target.task {
        tx.execute(&tx.sql().dispatch.put_task, params![id, task])?;
    }
    tags::put_at(tx, id, (queue_id, client), target.priority, rank, tags)?;
    if target.group.is_none() && due.is_none_or(|due| due <= now) {
        tx.wake(queue);
    }
    Ok(())
}
