//! Claiming. The statement is flat: its cost follows what it takes. Around it: the marks, entries whose attempts are used
//! up, and the second look when the first found too little.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::join;
use tidegate_core::{End, EntryId, LeaseToken, QueueState, RetryPolicy, Timestamp, Tsid};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::catalog::{Catalog, Lane, Queue};
use super::connection::{Begin, Prelude, Tx};
use super::errors::{Fault, both};
use super::groups::{Groups, borrowed};
use super::items::micros;
use super::marks::{Advance, First, Mark, Marks};
use super::row;
use super::tags::{self, TagPaths};
use super::{Inner, MAX_CATALOG_READS, accept_catalog};
use crate::error::{Error, ErrorKind, Result};
use crate::handlers::HandlerHistory;
use crate::store::{Claim, Claimed, Fact, Finalize, MAX_CLAIM_BYTES};

/// Columns of the claim statements.
const EXHAUSTED_AS: usize = 11;
const FLAGS: usize = 12;
const OFFERED: usize = 13;

/// Bytes that one claim takes at most, as a parameter.
const MAX_BYTES: i64 = MAX_CLAIM_BYTES as i64;
/// Up to so many lanes are each looked at.
const FEW_LANES: usize = 16;
/// Entries that one claim takes at most.
pub(super) const MAX_CLAIM: usize = 10_000;

/// What one transaction of a claim found.
#[derive(Debug, Default)]
struct Found {
    claimed: Vec<(i16, Claimed)>,
    /// The lanes and numbers of what was claimed.
    places: Vec<(i32, i64)>,
    /// Entries that ended because their attempts were used up.
    exhausted: Vec<End>,
    /// Rows that were offered; more than were taken means that others were taking them.
    offered: usize,
    /// The scan of a tag started above the bottom, and may start there now.
    may_look: bool,
}

impl Inner {
    pub(super) async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>> {
        tidegate_core::name::check_text("worker id", &claim.worker)?;
        for tag in claim.tags.iter().flatten() {
            tidegate_core::work::check_tag(tag)?;
        }
        let mut wanted = claim.max.min(MAX_CLAIM);
        let mut claimed = Vec::new();
        let mut sorted = false;
        let mut looked = false;
        let mut tries = 0;
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
            let left = wanted - claimed.len();
            let widen = self.contention.factor();
            let from_bottom = looked;
            let began = Instant::now();
            match self.claim_once(&catalog, queue, &claim, left, widen, from_bottom).await {
                Ok(found) => {
                    if from_bottom && claim.tags.is_none() {
                        self.marks.looked(began, Instant::now());
                    }
                    let (taken, offered) = (found.claimed.len(), found.offered);
                    let ended = !found.exhausted.is_empty();
                    found.exhausted.iter().for_each(|end| self.exhausted.add(&claim.queue, *end));
                    claimed.extend(found.claimed);
                    if claimed.len() >= wanted {
                        self.claim_sizes.took(queue.id, claimed.len());
                        self.contention.fell();
                        break;
                    }
                    if ended {
                        continue;
                    }
                    // Others are taking what was offered: offer more than we want.
                    if offered > taken && self.contention.grew(widen) {
                        continue;
                    }
                    if taken > 0 {
                        break;
                    }
                    if !sorted {
                        sorted = true;
                        if self.sort_arrivals().await? > 0 {
                            continue;
                        }
                    }
                    let may_look = match &claim.tags {
                        None => self.marks.may_look(Instant::now()),
                        Some(_) => found.may_look,
                    };
                    if !looked && may_look {
                        looked = true;
                        continue;
                    }
                    break;
                }
                // What was claimed before fills the answer; else the next try takes as many as fit.
                Err(Fault::Oversized(_)) if !claimed.is_empty() => break,
                Err(Fault::Oversized(fits)) => {
                    tries += 1;
                    if tries == MAX_CATALOG_READS {
                        return Err(Fault::Oversized(fits).into_error());
                    }
                    self.claim_sizes.fitted(queue.id, fits);
                }
                Err(fault @ (Fault::StaleCatalog | Fault::StaleHeartbeat)) => {
                    tries += 1;
                    if tries == MAX_CATALOG_READS {
                        // Nothing claimed would say that there is nothing to do.
                        if claimed.is_empty() {
                            return Err(fault.into_error());
                        }
                        break;
                    }
                    match fault {
                        Fault::StaleHeartbeat => drop(self.beat().await?),
                        _ => self.reload_catalog().await?,
                    }
                }
                Err(fault) => return Err(fault.into_error()),
            }
        }
        self.tend_marks();
        claimed.sort_by_key(|(priority, claimed)| (*priority, claimed.id));
        Ok(claimed.into_iter().map(|(_, claimed)| claimed).collect())
    }

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
            // No lane of these types exists; that may have changed since the catalog was read.
            return if self.catalog_stands(catalog).await? { Ok(Found::default()) } else { Err(Fault::StaleCatalog) };
        }
        let tags = TagPaths::new(&self.tag_marks, queue, claim, from_bottom);
        let sources = &Sources { lanes, tags };
        let mut found = self
            .database
            .transact(
                Begin::Lazy,
                &|prelude| self.accept_claim(catalog, prelude),
                &|tx| async move { self.take(&tx, queue, sources, claim, max, widen).await }.boxed(),
                &|tx, found: &Found| {
                    let first =
                        found.claimed.first().map(|(_, first)| (first.id.get(), first.token.0, first.claimed_at));
                    async move {
                        let Some((id, token, at)) = first else { return Ok(false) };
                        let rows = tx.query(&self.sql.lease_stands, &[&id, &token, &claim.worker, &at]).await?;
                        Ok(rows.first().is_some_and(|row| row.get(0)))
                    }
                    .boxed()
                },
            )
            .await?;
        if let Some(paths) = &sources.tags {
            found.may_look = paths.may_look(&self.tag_marks);
            paths.learn(&self.tag_marks, &found.claimed);
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
        let offered: Option<i64> = rows.first().and_then(|row| row.get(OFFERED));
        let mut found = Found { offered: offered.unwrap_or(0) as usize, ..Found::default() };
        let rows: Vec<&Row> = rows.iter().filter(|row| row.get::<_, Option<i64>>(0).is_some()).collect();
        let Some(row) = rows.first() else { return Ok(found) };
        tx.set_leases_at(row.get(6));
        let mut facts = self.facts_of(tx, &rows).await?;
        let queue_retry = queue.settings.retry.clone().map(Arc::new);
        let mut exhausted = Vec::new();
        let mut audited = Vec::new();
        let mut untagged = Vec::new();
        for row in rows {
            if tags::is_audited(row.get(FLAGS)) && row.get::<_, i64>(5) > 1 {
                audited.push((row.get(0), row.get(5)));
            }
            let (attempts, max_attempts): (i32, i32) = (row.get(3), row.get(4));
            if attempts > max_attempts {
                exhausted.push(end_exhausted(row)?);
                continue;
            }
            let lane: i32 = row.get(10);
            let priority = queue.priority_of(lane).unwrap_or(0);
            match facts.remove(&row.get(1)) {
                Some(fact) => {
                    found.places.push((lane, row.get(0)));
                    found.claimed.push((priority, read_claimed(row, fact, queue_retry.clone())?));
                }
                None => {
                    if tags::is_tagged(row.get(FLAGS)) {
                        untagged.push(row.get::<_, i64>(0));
                    }
                    exhausted.push(end_missing(row)?);
                }
            }
        }
        if !untagged.is_empty() {
            // Which tags they had is not known any more.
            tx.execute(&self.sql.forget_tags, &[&untagged]).await?;
        }
        self.lease_tags(tx, &found.claimed).await?;
        let worker = claim.audit.then_some((claim.worker.as_str(), claim.lease));
        self.audit_claim(tx, &audited, &found.claimed, worker).await?;
        found.exhausted = exhausted.iter().map(|item| item.end).collect();
        if !exhausted.is_empty() {
            exhausted.sort_by_key(|item| item.id);
            self.add_results(tx, &mut exhausted).await?;
            let mut freed = Groups::new();
            self.move_to_log(tx, &exhausted, &mut freed).await?;
            self.promote(tx, borrowed(&freed)).await?;
        }
        Ok(found)
    }

    /// What their handlers answered goes into the log with entries whose attempts are used up: a redrive finds it there.
    async fn add_results(&self, tx: &Tx, exhausted: &mut [Finalize]) -> Result<(), Fault> {
        let ids: Vec<i64> = exhausted.iter().map(|item| item.id.get()).collect();
        let histories = self.handled_in(tx, &ids).await?;
        for item in exhausted {
            item.results = histories.get(&item.id.get()).and_then(HandlerHistory::results);
        }
        Ok(())
    }

    /// Runs the claim statement that fits the number of lanes.
    async fn lease(&self, tx: &Tx, lanes: &Lanes, claim: &Claim, max: i64, widen: i64) -> Result<Vec<Row>, Fault> {
        let (now, lease, offers) = (self.now(), micros(claim.lease), max * widen);
        let lanes = &self.filled(tx, lanes).await?;
        if lanes.ids.is_empty() {
            return Ok(Vec::new());
        }
        if let ([lane], [mark], [due], [false]) = (&*lanes.ids, &*lanes.marks, &*lanes.due_marks, &*lanes.shared) {
            let params: [&(dyn ToSql + Sync); 7] = [&now, lane, mark, due, &max, &lease, &claim.worker];
            let statement = if claim.audit { &self.sql.claim_of_one_audited } else { &self.sql.claim_of_one };
            return tx.query(statement, &params).await;
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
        let statement = if claim.audit { &self.sql.claim_of_many_audited } else { &self.sql.claim_of_many };
        tx.query(statement, &params).await
    }

    /// The lanes of a claim without those that hold nothing, as far as stepping over them is allowed. Which lane it is, where
    /// only one is left, the faster statement needs to be told.
    async fn filled(&self, tx: &Tx, lanes: &Lanes) -> Result<LaneColumns, Fault> {
        let mut filled = lanes.each.clone();
        let stepped = &lanes.stepped;
        if stepped.ids.is_empty() {
            return Ok(filled);
        }
        let began = Instant::now();
        for row in tx.query(&self.sql.filled_lanes, &[&stepped.ids]).await? {
            if let Ok(at) = stepped.ids.binary_search(&row.get(0)) {
                filled.add(stepped.ids[at], stepped.priorities[at], Mark::BOTTOM, stepped.shared[at]);
            }
        }
        self.marks.stepped(stepped.ids.len(), began, Instant::now());
        Ok(filled)
    }

    /// The facts of leased entries, by event id. Asked for apart: a join would look for each one's partition anew. The
    /// transaction's id comes along, now that it is clear that it writes.
    async fn facts_of(&self, tx: &Tx, rows: &[&Row]) -> Result<HashMap<i64, Fact>, Fault> {
        let mut ids: Vec<i64> = rows.iter().map(|row| row.get(1)).collect();
        ids.sort_unstable();
        let share = if ids.len() > 1 { MAX_BYTES / ids.len() as i64 } else { i64::MAX };
        let entries = rows.iter().map(|row| row.get::<_, i64>(0));
        let (lowest, highest) = entries.fold((i64::MAX, 0), |(low, high), id| (low.min(id), high.max(id)));
        let mut facts = match (highest - lowest) / self.options.store.ids.step < ids.len() as i64 {
            true => self.facts_between(tx, &ids, share).await?,
            false => Vec::new(),
        };
        if facts.len() < ids.len() {
            let found: HashSet<i64> = facts.iter().map(event_id).collect();
            let rest: Vec<i64> = ids.iter().copied().filter(|id| !found.contains(id)).collect();
            facts.extend(facts_and_xid(tx, &self.sql.facts, &[&rest, &share]).await?);
        }
        if facts.iter().all(has_payload) {
            return Ok(facts.iter().map(read_fact).collect());
        }
        // One has more than its share: whether they fit together is another question.
        let facts = tx.query(&self.sql.facts_bounded, &[&ids, &MAX_BYTES]).await?;
        let fits = facts.iter().filter(|row| has_payload(row)).count();
        if fits < facts.len() {
            return Err(Fault::Oversized(fits));
        }
        Ok(facts.iter().map(read_fact).collect())
    }

    /// Entries without a gap have events without a gap, but for what publishers at the same time and clocks did: one walk
    /// along the primary key finds them, or most of them. Others' events in between are passed over, as many as ours at
    /// most.
    async fn facts_between(&self, tx: &Tx, ids: &[i64], share: i64) -> Result<Vec<Row>, Fault> {
        let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return Ok(Vec::new()) };
        let limit = ids.len() as i64 * 2;
        let mut rows = facts_and_xid(tx, &self.sql.facts_between, &[first, last, &limit, &share]).await?;
        rows.retain(|row| ids.binary_search(&event_id(row)).is_ok());
        Ok(rows)
    }

    /// Moves marks up and probes below them, off the caller's path.
    fn tend_marks(&self) {
        let at = Instant::now();
        let advance = self.marks.should_advance(at);
        let probe = self.marks.should_probe(at);
        if advance.is_none() && !probe {
            return;
        }
        let Some(inner) = self.me.upgrade() else { return };
        let mut looks = Looks { inner, advance, probe };
        tokio::spawn(async move {
            if let Some(advance) = looks.advance
                && let Err(error) = looks.inner.advance_marks(advance).await
            {
                tracing::debug!(error = %error.into_error(), "marks stay where they are");
            }
            looks.end_advance();
            if looks.probe
                && let Err(error) = looks.inner.probe_below().await
            {
                tracing::debug!(error = %error.into_error(), "no probe below the marks");
            }
        });
    }

    /// Moves up the marks of lanes that were claimed from lately: those of others would stay where they are.
    async fn advance_marks(&self, advance: Advance) -> Result<(), Fault> {
        let began = Instant::now();
        let lanes = self.marks.lately_claimed(began);
        if lanes.is_empty() {
            return Ok(());
        }
        let marks = self.marks.of(lanes.iter().copied(), began, self.now());
        let now = self.database_time().await?;
        let look = match advance {
            Advance::ToFirst => FirstRow::Any,
            Advance::PastLeases => FirstRow::Unleased { now, passing: Some(Marks::lasting(now)) },
        };
        let seen = Instant::now();
        let first = self.first_rows(&lanes, (&marks, &vec![Mark::TOP; lanes.len()]), look).await?;
        if advance == Advance::PastLeases {
            self.marks.passed(seen, Instant::now());
        }
        let from: HashMap<i32, Mark> = lanes.iter().copied().zip(marks.iter().copied()).collect();
        for (lane, first) in first {
            let from = from.get(&lane).copied().unwrap_or(Mark::BOTTOM);
            self.marks.seen(lane, from, first, advance, (now, seen));
        }
        Ok(())
    }

    /// Looks whether something can be claimed below the marks.
    pub(super) async fn probe_below(&self) -> Result<(), Fault> {
        let began = Instant::now();
        let (lanes, marks): (Vec<i32>, Vec<Mark>) = self.marks.raised(began).into_iter().unzip();
        if lanes.is_empty() {
            return Ok(());
        }
        let now = self.database_time().await?;
        let look = FirstRow::Unleased { now, passing: None };
        let rows = self.first_rows(&lanes, (&vec![Mark::BOTTOM; lanes.len()], &marks), look).await?;
        for (lane, first) in rows {
            self.marks.found_below(lane, first.id, first.due);
        }
        self.marks.probed(&lanes, began, Instant::now());
        Ok(())
    }

    /// The first rows of lanes from their marks on, and below others.
    async fn first_rows(
        &self,
        lanes: &[i32],
        (from, below): (&[Mark], &[Mark]),
        look: FirstRow,
    ) -> Result<Vec<(i32, First)>, Fault> {
        let split =
            |marks: &[Mark]| -> (Vec<i64>, Vec<Timestamp>) { marks.iter().map(|mark| (mark.id, mark.due)).unzip() };
        let ((ids, dues), (ids_below, dues_below)) = (split(from), split(below));
        let (now, passing) = match look {
            FirstRow::Any => (None, None),
            FirstRow::Unleased { now, passing } => (Some(now), passing),
        };
        let params: [&(dyn ToSql + Sync); 7] = [&lanes, &ids, &dues, &now, &passing, &ids_below, &dues_below];
        let rows = self.database.reader().await?.query(&self.sql.first_rows, &params).await?;
        let first = |row: &Row| First {
            id: row.get(1),
            due: row::optional_moment(row, 2),
            last_held: row.get(3),
            held: row.get(4),
            held_due: row::optional_moment(row, 5),
            until: row::optional_moment(row, 6),
        };
        Ok(rows.iter().map(|row| (row.get(0), first(row))).collect())
    }

    pub(super) async fn database_time(&self) -> Result<Timestamp, Fault> {
        let rows = self
            .database
            .reader()
            .await?
            .query("SELECT coalesce($1::timestamptz, clock_timestamp())", &[&self.now()])
            .await?;
        Ok(rows.first().map_or(Timestamp::UNIX_EPOCH, |row| row.get(0)))
    }
}

/// Looks at the marks that are under way. They end with it, also where the runtime that they run on ends first.
struct Looks {
    inner: Arc<Inner>,
    advance: Option<Advance>,
    probe: bool,
}

impl Looks {
    fn end_advance(&mut self) {
        if self.advance.take().is_some() {
            self.inner.marks.advanced(Instant::now());
        }
    }
}

impl Drop for Looks {
    fn drop(&mut self) {
        self.end_advance();
        if self.probe {
            self.inner.marks.probe_ended();
        }
    }
}

/// Which row of a lane is its first.
#[derive(Debug, Clone, Copy)]
enum FirstRow {
    /// Under a lease or not.
    Any,
    /// The first that is under no lease at a moment. Where leases are passed for good, only those that began before another
    /// moment are, and what is to be known of them is told.
    Unleased { now: Timestamp, passing: Option<Timestamp> },
}

/// Where a claim looks: in its lanes, or, where it names tags, by those.
#[derive(Debug)]
struct Sources<'a> {
    lanes: Lanes,
    tags: Option<TagPaths<'a>>,
}

/// The lanes of a claim as the statements' arrays: those that are each looked at, and those of which only the ones that hold
/// something are, by number.
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
    /// It holds many types, and not all are wanted.
    shared: Vec<bool>,
}

impl Lanes {
    /// A lane with a mark is looked at from there: below it there may be much that is gone.
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

fn read_claimed(row: &Row, fact: Fact, queue_retry: Option<Arc<RetryPolicy>>) -> Result<Claimed, Fault> {
    Ok(Claimed {
        id: EntryId::new(row.get(0)).map_err(Error::from)?,
        event_id: Tsid::from_i64(row.get(1)),
        generation: row::count(row.get(2)),
        attempts: row::count(row.get(3)),
        max_attempts: row::count(row.get(4)),
        exhausted_as: exhausted_as(row)?,
        token: LeaseToken(row.get(5)),
        claimed_at: row.get(6),
        lease_until: row.get(7),
        last_error: row.get(8),
        group: row.get(9),
        queue_retry,
        fact,
    })
}

/// Reads facts, and draws the transaction's id beside it.
async fn facts_and_xid(tx: &Tx, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Fault> {
    let (drawn, facts) = join(tx.draw_xid(), tx.query(sql, params)).await;
    let ((), facts) = both(drawn, facts)?;
    Ok(facts)
}

fn event_id(row: &Row) -> i64 {
    row.get(row::FACT_COLUMNS)
}

fn has_payload(row: &Row) -> bool {
    row.get::<_, Option<&[u8]>>(row::PAYLOAD).is_some()
}

fn read_fact(row: &Row) -> (i64, Fact) {
    (event_id(row), row::fact(row, 0))
}

fn exhausted_as(row: &Row) -> Result<End, Fault> {
    read_end(row.get(0), row.get(EXHAUSTED_AS))
}

fn read_end(id: i64, code: i16) -> Result<End, Fault> {
    let bad = || Error::new(ErrorKind::Corrupt, format!("entry {id} has a bad end"));
    Ok(End::from_code(code).ok_or_else(bad)?)
}

/// A claimed entry whose fact is missing.
fn end_missing(row: &Row) -> Result<Finalize, Fault> {
    let (id, event_id, token): (i64, i64, i64) = (row.get(0), row.get(1), row.get(5));
    let last_error: Option<String> = row.get(8);
    let item = end_without_fact(id, row.get(EXHAUSTED_AS), event_id, last_error.as_deref())?;
    Ok(Finalize { token: Some(LeaseToken(token)), ..item })
}

/// Sets an entry aside whose fact is missing. It concerns no other.
pub(super) fn end_without_fact(
    id: i64,
    exhausted_as: i16,
    event_id: i64,
    last_error: Option<&str>,
) -> Result<Finalize, Fault> {
    tracing::error!(entry = id, event_id, "the event of an entry is missing: the entry is a dead letter now");
    Ok(Finalize {
        id: EntryId::new(id).map_err(Error::from)?,
        token: None,
        end: read_end(id, exhausted_as)?,
        errors: Some(crate::store::missing_fact_errors(event_id, last_error)),
        results: None,
    })
}

/// An entry that was abandoned once too often.
fn end_exhausted(row: &Row) -> Result<Finalize, Fault> {
    let max_attempts: i32 = row.get(4);
    let last_error: Option<String> = row.get(8);
    let end = exhausted_as(row)?;
    Ok(Finalize {
        id: EntryId::new(row.get(0)).map_err(Error::from)?,
        token: Some(LeaseToken(row.get(5))),
        end,
        errors: Some(crate::store::exhausted_errors(row::count(max_attempts), last_error.as_deref())),
        results: None,
    })
}

/// How many claimers of many lanes seem to be at work: a claim offers that many times what it wants, so that each finds
/// enough that nobody else is taking.
#[derive(Debug)]
pub(super) struct Contention(AtomicUsize);

impl Contention {
    /// Sixteenths of a factor, so that it falls slowly.
    const ONE: usize = 16;
    const MAX: usize = 32 * Self::ONE;

    pub(super) fn new() -> Self {
        Self(AtomicUsize::new(Self::ONE))
    }

    fn factor(&self) -> usize {
        self.0.load(Ordering::Relaxed).div_ceil(Self::ONE)
    }

    /// Notes that others took what this factor offered; false when it cannot grow further.
    fn grew(&self, factor: usize) -> bool {
        let next = (factor * 2 * Self::ONE).min(Self::MAX);
        self.0.fetch_max(next, Ordering::Relaxed) < next
    }

    fn fell(&self) {
        let now = self.0.load(Ordering::Relaxed);
        if now > Self::ONE {
            let _ = self.0.compare_exchange(now, now - 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
