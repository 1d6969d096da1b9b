//! Claims. The cost of the claim statement follows what it takes, not the backlog. Around it: the low-water marks,
//! entries whose attempts are used up, and a second scan, from the bottom of the lanes, when the first one found
//! nothing.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join;
use tidegate_core::claim::{Goal, Next, Retry, Rollback, Scan, Search};
use tidegate_core::{End, EntryId, LeaseToken, QueueState, RetryPolicy, Timestamp, Tsid};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::error::{Error, Result};
use crate::postgres::engine::catalogue::{Catalog, Lane, Queue};
use crate::postgres::engine::claim_sizes::MAX_CLAIM;
use crate::postgres::engine::connection::{Begin, Prelude, Tx};
use crate::postgres::engine::errors::{Fault, both};
use crate::postgres::engine::marks::Mark;
use crate::postgres::engine::row::count;
use crate::postgres::engine::store::Inner;
use crate::postgres::engine::store::MAX_CATALOG_READS;
use crate::postgres::engine::store::accept_catalog;
use crate::postgres::flags::{is_added, is_audited, is_in_envelope, is_kept, is_tagged};
use crate::postgres::groups::{Groups, borrowed};
use crate::postgres::items::micros;
use crate::postgres::statements::claim::{ClaimRow, EventId, LeasedRow};
use crate::postgres::statements::facts::FactRow;
use crate::postgres::tags::TagPaths;
use crate::postgres::undeliverable::{Undelivered, end_without_fact, exhausted_as, undelivered};
use crate::sql::{Columns, FromRow, Only, Statement};
use crate::values::{Claim, Claimed, Fact, Family, Finalize, HandlerHistory, MAX_CLAIM_BYTES};

/// Payload bytes that one claim hands out at most, as a statement's parameter.
const MAX_BYTES: i64 = MAX_CLAIM_BYTES as i64;
/// Up to this many lanes are each scanned; past it a claim steps along the index from one lane that holds something to
/// the next.
const FEW_LANES: usize = 16;

/// Entries that are aside and due, in the queue of a claim that found too little, of which a claim looks for groups that
/// have no head. Upkeep looks further.
const ASIDES: i64 = 1000;

/// What one claim transaction found.
#[derive(Debug, Default)]
struct Found {
    /// What was claimed, each with its priority.
    claimed: Vec<(i16, Claimed)>,
    /// The lane and number of each claimed entry.
    places: Vec<(i32, i64)>,
    /// Entries ended, or were kept, instead of being claimed.
    ended: bool,
    /// How these are told, without those that were kept, and told as exhausted, before.
    undelivered: Vec<End>,
    /// Rows that were offered; more than were taken means that other claims were taking them.
    offered: usize,
    /// The scan of a tag started at its mark, and may be repeated from the bottom.
    may_rescan: bool,
    /// Groups without a head in which something is aside and due; `None` if they were not looked for.
    asides: Option<Groups>,
}

/// What one claim has tried so far.
#[derive(Debug)]
struct Tried {
    search: Search,
    /// What is aside and due was promoted.
    asides: bool,
    /// How many entries were claimed from each lane, if the claim has quotas.
    taken: HashMap<i32, usize>,
}

/// One scan of a claim.
#[derive(Debug, Clone, Copy)]
struct Ask<'a> {
    claim: &'a Claim,
    /// The most entries to take.
    max: usize,
    /// How many times as many rows to offer.
    widen: usize,
    /// Whether the scan ignores the marks.
    from_bottom: bool,
    /// How many entries earlier scans took from each lane, if the claim has quotas.
    taken: &'a HashMap<i32, usize>,
}

impl Inner {
    pub(super) async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>> {
        check(&claim, self.family)?;
        let mut wanted = claim.max.min(MAX_CLAIM);
        let mut claimed = Vec::new();
        let mut tried = Tried { search: Search::new(Goal::Any), asides: false, taken: HashMap::new() };
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
            let (max, widen) = (wanted - claimed.len(), self.contention.factor());
            let from_bottom = tried.search.is_from_bottom();
            let ask = Ask { claim: &claim, max, widen, from_bottom, taken: &tried.taken };
            let scans_again = match self.claim_once(&catalog, queue, ask).await {
                Ok(mut found) => {
                    found.undelivered.iter().for_each(|end| self.exhausted.add(&claim.queue, *end));
                    let scan = found.scan();
                    claimed.append(&mut found.claimed);
                    if claimed.len() >= wanted {
                        self.claim_sizes.took(queue.id, claimed.len());
                        self.contention.fell();
                        break;
                    }
                    tried.count(&claim, &found);
                    self.prepare_scan(&mut tried, scan, &found, (&claim, queue.id), widen).await?
                }
                Err(fault) => self.recover(&mut tried.search, fault, queue.id, !claimed.is_empty()).await?,
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
        tried: &mut Tried,
        mut scan: Scan,
        found: &Found,
        (claim, queue_id): (&Claim, i32),
        widen: usize,
    ) -> Result<bool> {
        let may_start_lower = || match &claim.tags {
            None => self.marks.may_look(Instant::now()),
            Some(_) => found.may_rescan,
        };
        loop {
            match tried.search.after(scan, may_start_lower) {
                Next::Answer => return self.promote_asides(tried, found, queue_id).await,
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

    /// Promotes what is aside and due in the queue, once in a claim. Returns whether something was promoted.
    async fn promote_asides(&self, tried: &mut Tried, found: &Found, queue_id: i32) -> Result<bool> {
        if std::mem::replace(&mut tried.asides, true) {
            return Ok(false);
        }
        let promoted = match &found.asides {
            Some(groups) => self.promote_groups(groups).await?,
            None => self.promote_due_asides(&[queue_id], ASIDES).await?,
        };
        Ok(promoted > 0)
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

    /// Runs one claim transaction.
    async fn claim_once(&self, catalog: &Catalog, queue: &Queue, ask: Ask<'_>) -> Result<Found, Fault> {
        let Ask { claim, from_bottom, .. } = ask;
        let at = Instant::now();
        let quotas = &Quotas::new(queue, ask);
        let of: Vec<&Lane> =
            queue.lanes_for(claim.types.as_deref()).filter(|lane| quotas.left_of(lane.id) > 0).collect();
        let marks = match from_bottom {
            true => vec![Mark::BOTTOM; of.len()],
            false => self.marks.of(of.iter().map(|lane| lane.id), at, self.now()),
        };
        let may_step = of.len() > FEW_LANES && self.marks.may_step(at);
        let lanes = Lanes::new(&of, &marks, may_step, claim.types.is_some(), quotas);
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
                |tx| async move { self.take(&tx, queue, sources, ask).await },
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
        self.marks.claimed(found.places.iter().copied());
        Ok(found)
    }

    /// When entries were made that were added to their facts.
    async fn made_at(&self, tx: &Tx, leased: &[LeasedRow]) -> Result<HashMap<i64, Timestamp>, Fault> {
        let added = leased.iter().filter(|row| is_added(row.flags));
        let (facts, numbers): (Vec<i64>, Vec<i64>) = added.map(|row| (row.event_id, row.id)).unzip();
        if numbers.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = tx.rows(&self.sql.added.made_at, &[&facts, &numbers]).await?;
        Ok(rows.into_iter().map(|row| (row.entry_id, row.made_at.into())).collect())
    }

    fn accept_claim(&self, catalog: &Catalog, prelude: Prelude) -> Result<(), Fault> {
        accept_catalog(catalog, prelude)?;
        self.accept_clock(prelude)
    }

    async fn take(&self, tx: &Tx, queue: &Queue, sources: &Sources<'_>, ask: Ask<'_>) -> Result<Found, Fault> {
        let claim = ask.claim;
        let (max, widen) = (ask.max as i64, ask.widen as i64);
        let rows = match &sources.tags {
            None => self.lease(tx, &sources.lanes, claim, max, widen).await?,
            Some(paths) => self.lease_tagged(tx, queue, claim, paths, max, widen).await?,
        };
        let offered = rows.first().and_then(|row| row.offered).unwrap_or(0);
        let mut found = Found { offered: offered as usize, ..Found::default() };
        let leased: Vec<LeasedRow> = rows.into_iter().filter_map(|row| row.leased).collect();
        let Some(first) = leased.first() else { return Ok(found) };
        tx.set_leases_at(first.processing_started_at.into());
        let looks_aside = leased.len() < ask.max;
        let mut facts = match looks_aside {
            false => self.facts_of(tx, &leased).await?,
            true => {
                // In the same round trip: where it found too little, a claim looks for what is aside.
                let (facts, asides) = join(self.facts_of(tx, &leased), self.due_asides(tx, &[queue.id], ASIDES)).await;
                let (facts, asides) = both(facts, asides)?;
                found.asides = Some(asides);
                facts
            }
        };
        let queue_retry = queue.settings.retry.clone().map(Arc::new);
        // Several entries may have one fact.
        let shared = facts.len() < leased.len();
        let added = self.made_at(tx, &leased).await?;
        let mut rest = Rest::default();
        for row in leased {
            if is_audited(row.flags) && row.token > 1 {
                rest.audited.push((row.id, row.token));
            }
            let was_kept = is_kept(row.flags);
            let fact = if shared { facts.get(&row.event_id).cloned() } else { facts.remove(&row.event_id) };
            if fact.is_none() && is_tagged(row.flags) {
                rest.untagged.push(row.id);
            }
            match (undelivered(&row)?, fact) {
                (Some(undelivered), _) => {
                    rest.told.extend((!was_kept).then(|| undelivered.end()));
                    rest.add(undelivered);
                }
                (None, None) => {
                    let last_error = row.last_error.as_deref();
                    let end = end_without_fact(row.id, row.exhausted_as, row.event_id, last_error)?;
                    rest.told.push(end.end);
                    rest.ends.push(end);
                }
                (None, Some(mut fact)) => {
                    fact.created_at = added.get(&row.id).copied().unwrap_or(fact.created_at);
                    found.places.push((row.lane, row.id));
                    let lane = queue.lane_of(row.lane);
                    let priority = lane.map_or(0, |lane| lane.priority);
                    let of_job = lane.filter(|_| self.family == Family::Jobs);
                    let lane_type = of_job.and_then(|lane| lane.event_type.as_deref()).map(Arc::from);
                    found.claimed.push((priority, claimed(row, fact, lane_type, queue_retry.clone())?));
                }
            }
        }
        self.lease_tags(tx, &found.claimed).await?;
        let worker = claim.audit.then_some((claim.worker.as_str(), claim.lease));
        self.audit_claim(tx, &rest.audited, &found.claimed, worker).await?;
        found.undelivered = std::mem::take(&mut rest.told);
        found.ended = !(rest.ends.is_empty() && rest.kept.is_empty());
        self.end_rest(tx, rest).await?;
        Ok(found)
    }

    /// Ends or keeps claimed entries that are not delivered.
    async fn end_rest(&self, tx: &Tx, mut rest: Rest) -> Result<(), Fault> {
        if !rest.untagged.is_empty() {
            // Only their events said which tags they had.
            tx.execute(&self.sql.tags.forget, &[&rest.untagged]).await?;
        }
        if !rest.uncounted.is_empty() {
            tx.execute(&self.sql.claim.take_back, &[&rest.uncounted]).await?;
        }
        rest.kept.sort_by_key(|item| item.id);
        self.keep(tx, &rest.kept.iter().collect::<Vec<_>>()).await?;
        self.end_for_good(tx, rest.ends).await?;
        Ok(())
    }

    /// Ends entries that nobody reports on, with what their handlers answered. Returns the queues in which others were
    /// promoted.
    pub(super) async fn end_for_good(&self, tx: &Tx, mut items: Vec<Finalize>) -> Result<BTreeSet<i32>, Fault> {
        if items.is_empty() {
            return Ok(BTreeSet::new());
        }
        items.sort_by_key(|item| item.id);
        self.add_results(tx, &mut items).await?;
        let mut freed = Groups::new();
        self.move_to_log(tx, &items, &mut freed).await?;
        self.promote(tx, borrowed(&freed)).await
    }

    /// Adds what handlers answered: a redrive reads it from the log row.
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
        if let ([lane], [mark], [due], [false]) = (&*lanes.ids, &*lanes.marks, &*lanes.due_marks, &*lanes.shared)
            && lanes.quotas.iter().all(|quota| *quota >= max)
        {
            let params: [&(dyn ToSql + Sync); 7] = [&now, lane, mark, due, &max, &lease, &claim.worker];
            return tx.rows(if claim.audit { &sql.of_one_audited } else { &sql.of_one }, &params).await;
        }
        let params: [&(dyn ToSql + Sync); 12] = [
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
            &lanes.quotas,
        ];
        if !claim.quotas.is_empty() {
            let within = if claim.audit { &sql.within_quotas_audited } else { &sql.within_quotas };
            return tx.rows(within, &params).await;
        }
        tx.rows(if claim.audit { &sql.of_many_audited } else { &sql.of_many }, &params[..11]).await
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
                filled.add(lane, stepped.priorities[at], Mark::BOTTOM, stepped.shared[at], stepped.quotas[at]);
            }
        }
        self.marks.stepped(stepped.ids.len(), began, Instant::now());
        Ok(filled)
    }

    /// The facts of leased entries, by event id. Not joined to the claim: a join would look up the partition for each
    /// one. Draws the transaction's id in the same round trip, now that it is clear that the transaction writes.
    async fn facts_of(&self, tx: &Tx, leased: &[LeasedRow]) -> Result<HashMap<i64, Fact>, Fault> {
        let mut ids: Vec<i64> = leased.iter().map(|row| row.event_id).collect();
        ids.sort_unstable();
        ids.dedup();
        let share = if leased.len() > 1 { MAX_BYTES / leased.len() as i64 } else { i64::MAX };
        let entries = leased.iter().map(|row| row.id);
        let (lowest, highest) = entries.fold((i64::MAX, 0), |(low, high), id| (low.min(id), high.max(id)));
        let mut facts = HashMap::with_capacity(ids.len());
        if (highest - lowest) / self.shared.options.store.ids.step < leased.len() as i64 {
            self.facts_between(tx, &ids, share, &mut facts).await?;
        }
        if facts.len() < ids.len() {
            let rest: Vec<i64> = ids.iter().copied().filter(|id| !facts.contains_key(id)).collect();
            let rows = facts_and_xid(tx, &self.sql.claim.facts, &[&rest, &share]).await?;
            read_facts(&rows, &rest, &mut facts)?;
        }
        if facts.values().all(|fact| fact.payload.is_some()) {
            return Ok(facts.into_iter().map(|(id, fact)| (id, fact.into())).collect());
        }
        // A payload above an equal share was left out: find out whether all of them fit together.
        let facts = tx.rows(&self.sql.claim.facts_bounded, &[&ids, &MAX_BYTES]).await?;
        let fits = facts.iter().filter(|(_, fact)| fact.payload.is_some()).count();
        if fits < facts.len() {
            return Err(Fault::Oversized(fits));
        }
        let facts: HashMap<i64, Fact> = facts.into_iter().map(|(id, fact)| (id.event_id, fact.into())).collect();
        match fitting(leased, &facts) {
            fits if fits < leased.len() => Err(Fault::Oversized(fits)),
            _ => Ok(facts),
        }
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
        let taken = self.claimed.len();
        Scan { took: taken > 0, ended: self.ended, contended: self.offered > taken }
    }
}

impl Tried {
    /// Counts what a scan took from each lane, if that matters.
    fn count(&mut self, claim: &Claim, found: &Found) {
        if !claim.quotas.is_empty() {
            found.places.iter().for_each(|(lane, _)| *self.taken.entry(*lane).or_default() += 1);
        }
    }
}

/// What is to be written about claimed entries besides their leases.
#[derive(Debug, Default)]
struct Rest {
    ends: Vec<Finalize>,
    kept: Vec<Finalize>,
    /// Those of `ends` for which this claim was no attempt.
    uncounted: Vec<i64>,
    /// Entries that were claimed with an audit before, with their new tokens.
    audited: Vec<(i64, i64)>,
    /// Tagged entries without a fact.
    untagged: Vec<i64>,
    /// How entries ended, without those that were kept before and told as exhausted then.
    told: Vec<End>,
}

impl Rest {
    fn add(&mut self, undelivered: Undelivered) {
        match undelivered {
            Undelivered::Ends(item) => self.ends.push(item),
            Undelivered::Kept(item) => self.kept.push(item),
            Undelivered::EndsUncounted(item) => {
                self.uncounted.push(item.id.get());
                self.ends.push(item);
            }
        }
    }
}

/// How many entries a claim may still take from lanes, by their ids; as many as it wants from lanes that are not in it.
#[derive(Debug, Default)]
struct Quotas(HashMap<i32, i64>);

impl Quotas {
    fn new(queue: &Queue, ask: Ask<'_>) -> Self {
        let claim = ask.claim;
        if claim.quotas.is_empty() {
            return Self::default();
        }
        let is_wanted =
            |event_type: &str| claim.types.as_ref().is_none_or(|types| types.iter().any(|t| t == event_type));
        // Types without lanes of their own share one.
        let of_shared = claim.quotas.iter().filter(|(of, _)| !queue.has_lanes_for(of) && is_wanted(of));
        let of_shared = of_shared.map(|(_, quota)| *quota).min();
        let left = |lane: &Lane| {
            let quota = match &lane.event_type {
                Some(event_type) => claim.quotas.get(event_type).copied(),
                None => of_shared,
            }?;
            let left = quota.saturating_sub(ask.taken.get(&lane.id).copied().unwrap_or(0));
            Some((lane.id, i64::try_from(left).unwrap_or(i64::MAX)))
        };
        Self(queue.lanes.iter().filter_map(left).collect())
    }

    fn left_of(&self, lane: i32) -> i64 {
        self.0.get(&lane).copied().unwrap_or(i64::MAX)
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
    /// The most entries to take from the lane.
    quotas: Vec<i64>,
}

impl Lanes {
    /// A lane with a mark is scanned from there, never stepped to: below the mark there may be many dead rows.
    fn new(of: &[&Lane], marks: &[Mark], may_step: bool, by_type: bool, quotas: &Quotas) -> Self {
        let mut lanes = Self::default();
        let mut stepped: Vec<&Lane> = Vec::new();
        let shared = |lane: &Lane| by_type && lane.event_type.is_none();
        for (lane, mark) in of.iter().zip(marks) {
            if may_step && *mark == Mark::BOTTOM {
                stepped.push(*lane);
            } else {
                lanes.each.add(lane.id, lane.priority, *mark, shared(lane), quotas.left_of(lane.id));
            }
        }
        stepped.sort_unstable_by_key(|lane| lane.id);
        for lane in stepped {
            lanes.stepped.add(lane.id, lane.priority, Mark::BOTTOM, shared(lane), quotas.left_of(lane.id));
        }
        lanes
    }
}

impl LaneColumns {
    fn add(&mut self, id: i32, priority: i16, mark: Mark, shared: bool, quota: i64) {
        self.ids.push(id);
        self.priorities.push(priority);
        self.marks.push(mark.id);
        self.due_marks.push(mark.due);
        self.shared.push(shared);
        self.quotas.push(quota);
    }
}

fn check(claim: &Claim, family: Family) -> Result<()> {
    if family == Family::Jobs && (claim.tags.is_some() || claim.audit) {
        return Err(Error::invalid("jobs have neither tags nor an audit: claim them without"));
    }
    tidegate_core::name::check_text("worker id", &claim.worker)?;
    for tag in claim.tags.iter().flatten() {
        tidegate_core::attempt::check_tag(tag)?;
    }
    if claim.tags.is_some() && !claim.quotas.is_empty() {
        return Err(Error::invalid("claims by tag take no quotas"));
    }
    Ok(())
}

fn claimed(
    row: LeasedRow,
    fact: Fact,
    lane_type: Option<Arc<str>>,
    queue_retry: Option<Arc<RetryPolicy>>,
) -> Result<Claimed> {
    let event_id = Tsid::from_i64(row.event_id);
    Ok(Claimed {
        id: EntryId::new(row.id)?,
        event_id,
        generation: count(row.generation),
        attempts: count(row.attempts),
        max_attempts: count(row.max_attempts),
        exhausted_as: exhausted_as(row.id, row.exhausted_as)?,
        token: LeaseToken(row.token),
        claimed_at: row.processing_started_at.into(),
        lease_until: row.lease_until.into(),
        last_error: row.last_error,
        group: row.group_key,
        lane_type,
        queue_retry,
        fact: if is_in_envelope(row.flags) { fact.in_envelope(event_id) } else { fact },
    })
}

/// How many of the leased entries fit into one claim, at least one: a fact counts with each of its entries.
fn fitting(leased: &[LeasedRow], facts: &HashMap<i64, Fact>) -> usize {
    let size = |row: &LeasedRow| facts.get(&row.event_id).map_or(0, |fact| fact.payload.len());
    let sizes = leased.iter().scan(0, |sum, row| {
        *sum += size(row);
        Some(*sum)
    });
    sizes.take_while(|sum| *sum <= MAX_CLAIM_BYTES).count().max(1)
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
