//! Claims. The cost of the claim statement follows what it takes, not the backlog. Around it: the low-water marks,
//! entries whose attempts are used up, and a second scan, from the bottom of the lanes, when the first one found
//! nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join;
use tidegate_core::claim::{Goal, Next, Retry, Rollback, Scan, Search};
use tidegate_core::{End, EntryId, LeaseToken, QueueState, RetryPolicy, Timestamp, Tsid};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::error::Result;
use crate::postgres::engine::catalogue::{Catalog, Lane, Queue};
use crate::postgres::engine::claim_sizes::MAX_CLAIM;
use crate::postgres::engine::connection::{Begin, Prelude, Tx};
use crate::postgres::engine::errors::{Fault, both};
use crate::postgres::engine::marks::Mark;
use crate::postgres::engine::row::count;
use crate::postgres::engine::store::Inner;
use crate::postgres::engine::store::MAX_CATALOG_READS;
use crate::postgres::engine::store::accept_catalog;
use crate::postgres::groups::{Groups, borrowed};
use crate::postgres::items::micros;
use crate::postgres::statements::claim::{ClaimRow, EventId, LeasedRow};
use crate::postgres::statements::facts::FactRow;
use crate::postgres::tags::{self, TagPaths};
use crate::postgres::undeliverable::{end_exhausted, end_missing, exhausted_as};
use crate::sql::{Columns, FromRow, Only, Statement};
use crate::values::{Claim, Claimed, Finalize, HandlerHistory, MAX_CLAIM_BYTES};

/// Payload bytes that one claim hands out at most, as a statement's parameter.
const MAX_BYTES: i64 = MAX_CLAIM_BYTES as i64;
/// Up to this many lanes are each scanned; past it a claim steps along the index from one lane that holds something to
/// the next.
const FEW_LANES: usize = 16;

/// What one claim transaction found.
#[derive(Debug, Default)]
struct Found {
    /// What was claimed, each with its priority.
    claimed: Vec<(i16, Claimed)>,
    /// The lane and number of each claimed entry.
    places: Vec<(i32, i64)>,
    /// How entries ended whose attempts were used up, or whose fact is missing.
    exhausted: Vec<End>,
    /// Rows that were offered; more than were taken means that other claims were taking them.
    offered: usize,
    /// The scan of a tag started at its mark, and may be repeated from the bottom.
    may_rescan: bool,
}

impl Inner {
    pub(super) async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>> {
        tidegate_core::name::check_text("worker id", &claim.worker)?;
        for tag in claim.tags.iter().flatten() {
            tidegate_core::attempt::check_tag(tag)?;
        }
        let mut wanted = claim.max.min(MAX_CLAIM);
        let mut claimed = Vec::new();
        let mut search = Search::new(Goal::Any);
        while claimed.len() < wanted {
            self.queue(&claim.queue).await?;
            let catalog = self.catalog().await?;
            let queue = catalog.queue(&claim.queue)?;
            if queue.state == QueueState::Paused && self.catalog_stands(&catalog).await? {
                break;
            }
            if claimed.is_empty() {
                wanted = self.claim_sizes.of(queue.id, wanted);
            }
            let (left, widen) = (wanted - claimed.len(), self.contention.factor());
            let scans_again = match self.claim_once(&catalog, queue, &claim, left, widen, search.is_from_bottom()).await
            {
                Ok(mut found) => {
                    found.exhausted.iter().for_each(|end| self.exhausted.add(&claim.queue, *end));
                    let scan = found.scan();
                    claimed.append(&mut found.claimed);
                    if claimed.len() >= wanted {
                        self.claim_sizes.took(queue.id, claimed.len());
                        self.contention.fell();
                        break;
                    }
                    self.prepare_scan(&mut search, scan, &claim, widen, found.may_rescan).await?
                }
                Err(fault) => self.recover(&mut search, fault, queue.id, !claimed.is_empty()).await?,
            };
            if !scans_again {
                break;
            }
        }
        self.tend_marks();
        claimed.sort_by_key(|(priority, claimed)| (*priority, claimed.id));
        Ok(claimed.into_iter().map(|(_, claimed)| claimed).collect())
    }

    /// Does what is to be done between a scan that found too little and the next one. Returns whether there is a next
    /// one.
    async fn prepare_scan(
        &self,
        search: &mut Search,
        mut scan: Scan,
        claim: &Claim,
        widen: usize,
        may_rescan_tags: bool,
    ) -> Result<bool> {
        let may_start_lower = || match &claim.tags {
            None => self.marks.may_look(Instant::now()),
            Some(_) => may_rescan_tags,
        };
        loop {
            match search.after(scan, may_start_lower) {
                Next::Answer => return Ok(false),
                Next::Scan | Next::ScanFromBottom => return Ok(true),
                Next::Widen if self.contention.grew(widen) => return Ok(true),
                Next::Widen => scan.contended = false,
                Next::SortArrivals => {
                    if self.sort_arrivals().await? > 0 {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Does what is to be done after a scan that was rolled back. Returns whether there is another one. `claimed`:
    /// earlier scans claimed something.
    async fn recover(&self, search: &mut Search, fault: Fault, queue_id: i32, claimed: bool) -> Result<bool> {
        let why = match fault {
            Fault::Oversized(_) => Rollback::Oversized,
            Fault::StaleCatalog | Fault::StaleHeartbeat => Rollback::Stale,
            fault => return Err(fault.into_error()),
        };
        match search.after_rollback(why, claimed, MAX_CATALOG_READS) {
            Retry::Scan => {}
            Retry::Answer => return Ok(false),
            Retry::Fail => return Err(fault.into_error()),
        }
        match fault {
            Fault::Oversized(fits) => self.claim_sizes.fitted(queue_id, fits),
            Fault::StaleHeartbeat => drop(self.beat().await?),
            _ => self.reload_catalog().await?,
        }
        Ok(true)
    }

    /// Runs one claim transaction, of at most `max` entries. `widen` says how many times as many rows to offer;
    /// `from_bottom` has the scans ignore the marks.
    async fn claim_once(
        &self,
        catalog: &Catalog,
        queue: &Queue,
        claim: &Claim,
        max: usize,
        widen: usize,
        from_bottom: bool,
    ) -> Result<Found, Fault> {
        let at = Instant::now();
        let of: Vec<&Lane> = queue.lanes_for(claim.types.as_deref()).collect();
        let marks = match from_bottom {
            true => vec![Mark::BOTTOM; of.len()],
            false => self.marks.of(of.iter().map(|lane| lane.id), at, self.now()),
        };
        let may_step = of.len() > FEW_LANES && self.marks.may_step(at);
        let lanes = Lanes::new(&of, &marks, may_step, claim.types.is_some());
        if of.is_empty() {
            // No lane can hold these types; that may have changed since the catalogue was read.
            return if self.catalog_stands(catalog).await? { Ok(Found::default()) } else { Err(Fault::StaleCatalog) };
        }
        let tags = TagPaths::new(&self.tag_marks, queue, claim, from_bottom);
        let sources = &Sources { lanes, tags };
        let mut found = self
            .transact(
                Begin::Lazy,
                |prelude| self.accept_claim(catalog, prelude),
                |tx| async move { self.take(&tx, queue, sources, claim, max, widen).await },
                |tx, found: &Found| {
                    let first = found.claimed.first();
                    let first = first.map(|(_, first)| (first.id.get(), first.token.0, first.claimed_at));
                    async move {
                        let Some((id, token, at)) = first else { return Ok(false) };
                        let stands = tx.row(&self.sql.claim.lease_stands, &[&id, &token, &claim.worker, &at]).await?;
                        Ok(stands.is_some_and(|Only(stands)| stands))
                    }
                },
            )
            .await?;
        match &sources.tags {
            Some(paths) => {
                found.may_rescan = paths.may_look(&self.tag_marks);
                paths.learn(&self.tag_marks, &found.claimed);
            }
            None if from_bottom => self.marks.looked(at, Instant::now()),
            None => {}
        }
        self.lane_use.claimed(found.places.iter().map(|(lane, _)| *lane));
        self.marks.claimed(found.places.drain(..));
        Ok(found)
    }

    fn accept_claim(&self, catalog: &Catalog, prelude: Prelude) -> Result<(), Fault> {
        accept_catalog(catalog, prelude)?;
        self.accept_clock(prelude)
    }

    async fn take(
        &self,
        tx: &Tx,
        queue: &Queue,
        sources: &Sources<'_>,
        claim: &Claim,
        max: usize,
        widen: usize,
    ) -> Result<Found, Fault> {
        let (max, widen) = (max as i64, widen as i64);
        let rows = match &sources.tags {
            None => self.lease(tx, &sources.lanes, claim, max, widen).await?,
            Some(paths) => self.lease_tagged(tx, queue, claim, paths, max, widen).await?,
        };
        let offered = rows.first().and_then(|row| row.offered).unwrap_or(0);
        let mut found = Found { offered: offered as usize, ..Found::default() };
        let leased: Vec<LeasedRow> = rows.into_iter().filter_map(|row| row.leased).collect();
        let Some(first) = leased.first() else { return Ok(found) };
        tx.set_leases_at(first.processing_started_at.into());
        let mut facts = self.facts_of(tx, &leased).await?;
        let queue_retry = queue.settings.retry.clone().map(Arc::new);
        let mut exhausted = Vec::new();
        let mut audited = Vec::new();
        let mut untagged = Vec::new();
        for row in leased {
            if tags::is_audited(row.flags) && row.token > 1 {
                audited.push((row.id, row.token));
            }
            if row.attempts > row.max_attempts {
                exhausted.push(end_exhausted(&row)?);
                continue;
            }
            match facts.remove(&row.event_id) {
                Some(fact) => {
                    found.places.push((row.lane, row.id));
                    let priority = queue.priority_of(row.lane).unwrap_or(0);
                    found.claimed.push((priority, claimed(row, fact, queue_retry.clone())?));
                }
                None => {
                    if tags::is_tagged(row.flags) {
                        untagged.push(row.id);
                    }
                    exhausted.push(end_missing(&row)?);
                }
            }
        }
        if !untagged.is_empty() {
            // Only their events said which tags they had.
            tx.execute(&self.sql.tags.forget, &[&untagged]).await?;
        }
        self.lease_tags(tx, &found.claimed).await?;
        let worker = claim.audit.then_some((claim.worker.as_str(), claim.lease));
        self.audit_claim(tx, &audited, &found.claimed, worker).await?;
        found.exhausted = exhausted.iter().map(|item| item.end).collect();
        self.end_undeliverable(tx, exhausted).await?;
        Ok(found)
    }

    /// Ends claimed entries that cannot be delivered.
    async fn end_undeliverable(&self, tx: &Tx, mut items: Vec<Finalize>) -> Result<(), Fault> {
        if items.is_empty() {
            return Ok(());
        }
        items.sort_by_key(|item| item.id);
        self.add_results(tx, &mut items).await?;
        let mut freed = Groups::new();
        self.move_to_log(tx, &items, &mut freed).await?;
        self.promote(tx, borrowed(&freed)).await?;
        Ok(())
    }

    /// Adds what handlers answered to entries whose attempts are used up: a redrive reads it from the log row.
    async fn add_results(&self, tx: &Tx, exhausted: &mut [Finalize]) -> Result<(), Fault> {
        let ids: Vec<i64> = exhausted.iter().map(|item| item.id.get()).collect();
        let histories = self.handled_in(tx, &ids).await?;
        for item in exhausted {
            item.results = histories.get(&item.id.get()).and_then(HandlerHistory::results);
        }
        Ok(())
    }

    /// Runs the claim statement that fits the number of lanes.
    async fn lease(&self, tx: &Tx, lanes: &Lanes, claim: &Claim, max: i64, widen: i64) -> Result<Vec<ClaimRow>, Fault> {
        let (sql, now, lease, offers) = (&self.sql.claim, self.now(), micros(claim.lease), max * widen);
        let lanes = &self.filled(tx, lanes).await?;
        if lanes.ids.is_empty() {
            return Ok(Vec::new());
        }
        if let ([lane], [mark], [due], [false]) = (&*lanes.ids, &*lanes.marks, &*lanes.due_marks, &*lanes.shared) {
            let params: [&(dyn ToSql + Sync); 7] = [&now, lane, mark, due, &max, &lease, &claim.worker];
            return tx.rows(if claim.audit { &sql.of_one_audited } else { &sql.of_one }, &params).await;
        }
        let params: [&(dyn ToSql + Sync); 11] = [
            &now,
            &lanes.ids,
            &lanes.priorities,
            &lanes.marks,
            &lanes.due_marks,
            &lanes.shared,
            &max,
            &lease,
            &claim.worker,
            &claim.types,
            &offers,
        ];
        tx.rows(if claim.audit { &sql.of_many_audited } else { &sql.of_many }, &params).await
    }

    /// The lanes of a claim without the empty ones, as far as stepping over them is allowed. Asked for first: where a
    /// single lane is left, the faster statement for one lane can be used.
    async fn filled(&self, tx: &Tx, lanes: &Lanes) -> Result<LaneColumns, Fault> {
        let mut filled = lanes.each.clone();
        let stepped = &lanes.stepped;
        if stepped.ids.is_empty() {
            return Ok(filled);
        }
        let began = Instant::now();
        for Only(lane) in tx.rows(&self.sql.claim.filled_lanes, &[&stepped.ids]).await? {
            if let Ok(at) = stepped.ids.binary_search(&lane) {
                filled.add(lane, stepped.priorities[at], Mark::BOTTOM, stepped.shared[at]);
            }
        }
        self.marks.stepped(stepped.ids.len(), began, Instant::now());
        Ok(filled)
    }

    /// The facts of leased entries, by event id. Not joined to the claim: a join would look up the partition for each
    /// one. Draws the transaction's id in the same round trip, now that it is clear that the transaction writes.
    async fn facts_of(&self, tx: &Tx, leased: &[LeasedRow]) -> Result<HashMap<i64, FactRow>, Fault> {
        let mut ids: Vec<i64> = leased.iter().map(|row| row.event_id).collect();
        ids.sort_unstable();
        let share = if ids.len() > 1 { MAX_BYTES / ids.len() as i64 } else { i64::MAX };
        let entries = leased.iter().map(|row| row.id);
        let (lowest, highest) = entries.fold((i64::MAX, 0), |(low, high), id| (low.min(id), high.max(id)));
        let mut facts = HashMap::with_capacity(ids.len());
        if (highest - lowest) / self.options.store.ids.step < ids.len() as i64 {
            self.facts_between(tx, &ids, share, &mut facts).await?;
        }
        if facts.len() < ids.len() {
            let rest: Vec<i64> = ids.iter().copied().filter(|id| !facts.contains_key(id)).collect();
            let rows = facts_and_xid(tx, &self.sql.claim.facts, &[&rest, &share]).await?;
            read_facts(&rows, &rest, &mut facts)?;
        }
        if facts.values().all(|fact| fact.payload.is_some()) {
            return Ok(facts);
        }
        // A payload above an equal share was left out: find out whether all of them fit together.
        let facts = tx.rows(&self.sql.claim.facts_bounded, &[&ids, &MAX_BYTES]).await?;
        let fits = facts.iter().filter(|(_, fact)| fact.payload.is_some()).count();
        if fits < facts.len() {
            return Err(Fault::Oversized(fits));
        }
        Ok(facts.into_iter().map(|(id, fact)| (id.event_id, fact)).collect())
    }

    /// Adds the facts of a run of entries. Their events are usually neighbours too, except for concurrent publishers
    /// and clock differences, so one walk along the primary key finds all or most of them. It passes over at most as
    /// many other events as there are ids.
    async fn facts_between(
        &self,
        tx: &Tx,
        ids: &[i64],
        share: i64,
        facts: &mut HashMap<i64, FactRow>,
    ) -> Result<(), Fault> {
        let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return Ok(()) };
        let limit = ids.len() as i64 * 2;
        let rows = facts_and_xid(tx, &self.sql.claim.facts_between, &[first, last, &limit, &share]).await?;
        Ok(read_facts(&rows, ids, facts)?)
    }
}

impl Found {
    fn scan(&self) -> Scan {
        let (taken, ended) = (self.claimed.len(), !self.exhausted.is_empty());
        Scan { took: taken > 0, ended, contended: self.offered > taken }
    }
}

/// Where a claim takes entries from: its lanes or, if it names tags, those.
#[derive(Debug)]
struct Sources<'a> {
    lanes: Lanes,
    tags: Option<TagPaths<'a>>,
}

/// The lanes of a claim as the statements' arrays: `each` are all scanned; of `stepped`, sorted by id, only those that
/// hold something.
#[derive(Debug, Default)]
struct Lanes {
    each: LaneColumns,
    stepped: LaneColumns,
}

#[derive(Debug, Clone, Default)]
struct LaneColumns {
    ids: Vec<i32>,
    priorities: Vec<i16>,
    marks: Vec<i64>,
    due_marks: Vec<Timestamp>,
    /// Many types share the lane and only some are wanted.
    shared: Vec<bool>,
}

impl Lanes {
    /// A lane with a mark is scanned from there, never stepped to: below the mark there may be many dead rows.
    fn new(of: &[&Lane], marks: &[Mark], may_step: bool, by_type: bool) -> Self {
        let mut lanes = Self::default();
        let mut stepped: Vec<&Lane> = Vec::new();
        let shared = |lane: &Lane| by_type && lane.event_type.is_none();
        for (lane, mark) in of.iter().zip(marks) {
            if may_step && *mark == Mark::BOTTOM {
                stepped.push(*lane);
            } else {
                lanes.each.add(lane.id, lane.priority, *mark, shared(lane));
            }
        }
        stepped.sort_unstable_by_key(|lane| lane.id);
        stepped.into_iter().for_each(|lane| lanes.stepped.add(lane.id, lane.priority, Mark::BOTTOM, shared(lane)));
        lanes
    }
}

impl LaneColumns {
    fn add(&mut self, id: i32, priority: i16, mark: Mark, shared: bool) {
        self.ids.push(id);
        self.priorities.push(priority);
        self.marks.push(mark.id);
        self.due_marks.push(mark.due);
        self.shared.push(shared);
    }
}

fn claimed(row: LeasedRow, fact: FactRow, queue_retry: Option<Arc<RetryPolicy>>) -> Result<Claimed> {
    Ok(Claimed {
        id: EntryId::new(row.id)?,
        event_id: Tsid::from_i64(row.event_id),
        generation: count(row.generation),
        attempts: count(row.attempts),
        max_attempts: count(row.max_attempts),
        exhausted_as: exhausted_as(row.id, row.exhausted_as)?,
        token: LeaseToken(row.token),
        claimed_at: row.processing_started_at.into(),
        lease_until: row.lease_until.into(),
        last_error: row.last_error,
        group: row.group_key,
        queue_retry,
        fact: fact.into(),
    })
}

/// Reads facts and draws the transaction's id, in one round trip.
async fn facts_and_xid(
    tx: &Tx,
    statement: &Statement<(EventId, FactRow)>,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Fault> {
    let (drawn, facts) = join(tx.draw_xid(), tx.query(statement, params)).await;
    let ((), facts) = both(drawn, facts)?;
    Ok(facts)
}

/// Adds the wanted facts, whose ids are sorted. Others are not read further than their id.
fn read_facts(rows: &[Row], wanted: &[i64], facts: &mut HashMap<i64, FactRow>) -> Result<()> {
    for row in rows {
        let EventId { event_id } = EventId::read(row, 0)?;
        if wanted.binary_search(&event_id).is_ok() {
            facts.insert(event_id, FactRow::read(row, EventId::COUNT)?);
        }
    }
    Ok(())
}
