//! Claiming: finds the next entries and leases them. Knows nothing of the worker beyond its name.

use std::collections::{BTreeSet, BinaryHeap, HashSet};
use std::sync::Arc;

use rusqlite::{CachedStatement, Row, Statement};
use tidegate_core::attempt::check_tag;
use tidegate_core::claim::{Goal, Next, Scan, Search};
use tidegate_core::name::check_text;
use tidegate_core::{End, LeaseToken, QueueState, Tsid};

use crate::error::Result;
use crate::sql::{self, FromRow, Only};
use crate::sqlite::arrivals;
use crate::sqlite::audit::{audit_picked, audit_takeover};
use crate::sqlite::end::{Ending, end_live};
use crate::sqlite::engine::errors::damaged;
use crate::sqlite::engine::marks::Mark;
use crate::sqlite::engine::tx::{Tx, entry_id, later, moment};
use crate::sqlite::found::live;
use crate::sqlite::handlers;
use crate::sqlite::statements::claim::{ClaimableRow, OfferRow, ROOM};
use crate::sqlite::tags::{self, State};
use crate::sqlite::unreadable::{Unreadable, end_without_fact};
use crate::values::entries::exhausted_errors;
use crate::values::{Claim, Claimed, Fact, MAX_CLAIM_BYTES};

/// The bytes of three moments.
const MOMENTS: usize = 24;
/// With fewer lanes than this, each lane is scanned.
const FEW_LANES: usize = 16;

/// Leases up to `claim.max` entries. If there are too few, it sorts arrivals in and tries once more.
pub(super) fn claim(tx: &mut Tx<'_>, claim: &Claim) -> Result<Vec<Claimed>> {
    check_text("worker", &claim.worker)?;
    for tag in claim.tags.iter().flatten() {
        check_tag(tag)?;
    }
    crate::sqlite::heartbeat::survive_outage(tx)?;
    let queue = tx.queue(&claim.queue)?;
    if tx.known.queues[queue].state == QueueState::Paused || claim.max == 0 {
        return Ok(Vec::new());
    }
    let mut claimed = Vec::new();
    let mut search = Search::new(Goal::All);
    loop {
        let before = claimed.len();
        let taken = take(tx, queue, claim, &mut claimed)?;
        if claimed.len() == claim.max || (taken.cut && !claimed.is_empty()) {
            break;
        }
        let scan = Scan { took: claimed.len() > before, ended: taken.ended, contended: false };
        if !prepare_scan(tx, &mut search, scan)? {
            break;
        }
    }
    claimed.sort_unstable_by_key(|(priority, entry)| (*priority, entry.id));
    Ok(claimed.into_iter().map(|(_, entry)| entry).collect())
}

/// Does what is to be done between a scan that found too little and the next one. Returns whether there is a next one.
fn prepare_scan(tx: &mut Tx<'_>, search: &mut Search, scan: Scan) -> Result<bool> {
    // A mark is never above a claimable entry, so there is no need to start lower.
    match search.after(scan, || false) {
        Next::Scan => Ok(true),
        Next::SortArrivals => Ok(arrivals::sort_in(tx)? > 0),
        Next::Answer | Next::Widen | Next::ScanFromBottom => Ok(false),
    }
}

/// An entry that can be claimed.
struct Candidate {
    row: ClaimableRow,
    /// `None` where the fact is missing from the table of events.
    fact: Option<Fact>,
    /// The lane, if the entry is fresh and every entry before it in the lane was offered or is leased.
    fresh_in: Option<i64>,
}

impl Candidate {
    fn bytes(&self) -> usize {
        self.fact.as_ref().map_or(0, |fact| fact.payload.len())
    }
}

/// The result of one scan.
struct Taken {
    /// An entry ended instead of being claimed.
    ended: bool,
    /// Further entries did not fit into the bytes of one claim.
    cut: bool,
}

/// The first of all offered entries by priority and number, as many as fit by count and by bytes.
#[derive(Default)]
struct Offers {
    max: usize,
    /// Payload bytes that may still be taken.
    bytes_left: usize,
    /// Whether the first entry may be larger than that.
    may_exceed: bool,
    bytes: usize,
    /// The first entry that did not fit by bytes: it and all after it wait for the next claim.
    cut: Option<(i16, i64)>,
    all: Vec<Option<Candidate>>,
    best: BinaryHeap<(i16, i64, usize)>,
    /// The lanes whose fresh entries were scanned.
    scanned: Vec<Scanned>,
    /// Entries whose stored values cannot be read.
    unreadable: Vec<Unreadable>,
}

/// The result of scanning the fresh entries of a lane.
struct Scanned {
    lane: i64,
    mark: Mark,
    /// The last entry taken, and how many were.
    last: i64,
    taken: i64,
    /// No entry of the lane was claimable.
    all_leased: bool,
}

impl Offers {
    /// Whether an entry with this priority and number would be among the first.
    fn wants(&self, priority: i16, id: i64) -> bool {
        if self.cut.is_some_and(|cut| (priority, id) >= cut) {
            return false;
        }
        self.best.len() < self.max || self.best.peek().is_some_and(|worst| (priority, id) < (worst.0, worst.1))
    }

    /// Adds the entry of a row, or records that it cannot be read. Returns whether it was added.
    fn offer(&mut self, priority: i16, row: &Row<'_>, fresh_in: Option<i64>) -> Result<bool> {
        match candidate(row, fresh_in) {
            Ok(candidate) => self.add(priority, candidate),
            Err(error) => {
                self.unreadable.push(Unreadable::new(OfferRow::number(row)?, error)?);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn add(&mut self, priority: i16, candidate: Candidate) {
        self.bytes += candidate.bytes();
        self.best.push((priority, candidate.row.id, self.all.len()));
        self.all.push(Some(candidate));
        if self.best.len() > self.max {
            self.drop_worst();
        }
        let least = usize::from(self.may_exceed);
        while self.bytes > self.bytes_left && self.best.len() > least {
            self.cut = self.drop_worst();
        }
    }

    /// Removes the last of the offered entries, and returns its priority and number.
    fn drop_worst(&mut self) -> Option<(i16, i64)> {
        let (priority, id, worst) = self.best.pop()?;
        if let Some(dropped) = self.all[worst].take() {
            self.bytes -= dropped.bytes();
        }
        Some((priority, id))
    }
}

/// Claims the first of what is offered.
fn take(tx: &mut Tx<'_>, queue: usize, claim: &Claim, claimed: &mut Vec<(i16, Claimed)>) -> Result<Taken> {
    let held: usize = claimed.iter().map(|(_, entry)| entry.fact.payload.len()).sum();
    let bytes_left = MAX_CLAIM_BYTES.saturating_sub(held);
    let none =
        Offers { max: claim.max - claimed.len(), bytes_left, may_exceed: claimed.is_empty(), ..Offers::default() };
    let Offers { mut all, best, mut scanned, cut, unreadable, .. } = match &claim.tags {
        None => offers(tx, queue, claim, none)?,
        Some(tags) => tagged_offers(tx, queue, claim, tags, none)?,
    };
    let until = later(tx.now, claim.lease)?;
    let (claimed_at, lease_until) = (moment(tx.now)?, moment(until)?);
    let queue_retry = tx.known.queues[queue].settings.retry.clone().map(Arc::new);
    let mut taking = Taking::begin(tx, until, claim)?;
    let first = claimed.len();
    claimed.reserve(best.len());
    for entry in &unreadable {
        entry.set_aside(tx)?;
    }
    let mut ended = !unreadable.is_empty();
    for (priority, id, index) in best.into_sorted_vec() {
        let Some(entry) = all[index].take() else { continue };
        if let Some(lane) = entry.fresh_in
            && let Some(scanned) = scanned.iter_mut().find(|scanned| scanned.lane == lane)
        {
            (scanned.last, scanned.taken) = (id, scanned.taken + 1);
        }
        let (row, fact) = match entry {
            Candidate { row, fact: Some(fact), .. } if row.attempts < row.max_attempts => (row, fact),
            entry => {
                set_aside(tx, &entry)?;
                ended = true;
                continue;
            }
        };
        taking.add(id)?;
        if !fact.tags.is_empty() {
            tags::move_to(tx, id, &fact.tags, State::Leased, until)?;
        }
        let token = LeaseToken(row.token + 1);
        if tags::is_audited(row.flags) {
            audit_takeover(tx, id, token)?;
        }
        let entry = Claimed {
            id: entry_id(id)?,
            event_id: Tsid::from_i64(row.event_id),
            generation: row.generation,
            attempts: row.attempts + 1,
            max_attempts: row.max_attempts,
            exhausted_as: exhausted_as(row.exhausted_as)?,
            token,
            claimed_at,
            lease_until,
            last_error: row.last_error,
            group: row.group_key,
            queue_retry: queue_retry.clone(),
            fact,
        };
        claimed.push((priority, entry));
    }
    taking.end()?;
    if claim.audit {
        audit_picked(tx, &claimed[first..], &claim.worker, claim.lease)?;
    }
    for scanned in scanned {
        move_mark(tx, &scanned, until)?;
    }
    Ok(Taken { ended, cut: cut.is_some() })
}

/// Writes leases, with one statement per run of neighbours.
struct Taking<'c> {
    statement: CachedStatement<'c>,
    step: i64,
    run: Option<(i64, i64)>,
}

impl<'c> Taking<'c> {
    fn begin(tx: &Tx<'c>, until: i64, claim: &Claim) -> Result<Self> {
        let (sql, worker) = (tx.sql(), claim.worker.as_str());
        let mut statement = tx.prepare(if claim.audit { &sql.claim.take_audited } else { &sql.claim.take })?;
        statement.raw_bind_parameter(3, until)?;
        statement.raw_bind_parameter(4, tx.now)?;
        statement.raw_bind_parameter(5, worker)?;
        statement.raw_bind_parameter(6, ROOM.saturating_sub(MOMENTS + worker.len()) as i64)?;
        Ok(Self { statement, step: tx.shared.options.ids.step, run: None })
    }

    fn add(&mut self, id: i64) -> Result<()> {
        match &mut self.run {
            Some((_, last)) if *last + self.step == id => *last = id,
            _ => {
                self.end()?;
                self.run = Some((id, id));
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        if let Some((first, last)) = self.run.take() {
            self.statement.raw_bind_parameter(1, first)?;
            self.statement.raw_bind_parameter(2, last)?;
            self.statement.raw_execute()?;
        }
        Ok(())
    }
}

/// Lets the next claim of a lane start above what is leased now.
fn move_mark(tx: &mut Tx<'_>, scanned: &Scanned, until: i64) -> Result<()> {
    let Mark { below, until: held } = scanned.mark;
    let step = tx.shared.options.ids.step;
    let mark = if scanned.taken > 0 && scanned.last == below + scanned.taken * step {
        // There is nothing between the mark and the last entry but what was taken now.
        Mark { below: scanned.last, until: held.min(until) }
    } else if scanned.taken > 0 || scanned.all_leased {
        let upper = if scanned.all_leased { i64::MAX } else { scanned.last };
        let leased = tx.row(&tx.sql().claim.leased_below, (scanned.lane, below, upper, tx.now))?;
        let (last, first_end) = leased.map_or((None, None), |leased| (leased.last, leased.first_end));
        let below = if scanned.all_leased { last.unwrap_or(below) } else { scanned.last };
        Mark { below, until: held.min(first_end.unwrap_or(i64::MAX)).min(if scanned.taken > 0 { until } else { held }) }
    } else {
        scanned.mark
    };
    tx.known.marks.set(scanned.lane, mark);
    Ok(())
}

/// What the lanes offer: of each the first `max` fresh entries by number and the first `max` timed ones by due moment.
fn offers(tx: &mut Tx<'_>, queue: usize, claim: &Claim, mut offers: Offers) -> Result<Offers> {
    let sql = &tx.shared.sql;
    let held = Held::new(tx, queue, claim)?;
    let known = &mut *tx.known;
    for lane in &known.queues[queue].lanes.list {
        // Lanes are sorted by priority: once there are enough entries, later priorities cannot add any.
        if !offers.wants(lane.priority, 0) {
            break;
        }
        let wanted = match (&claim.types, &lane.event_type) {
            (Some(types), Some(of)) => types.iter().any(|wanted| **wanted == **of),
            _ => true,
        };
        if !wanted {
            continue;
        }
        let types = if lane.event_type.is_none() { claim.types.as_deref() } else { None };
        let scan = LaneScan { lane: lane.id, priority: lane.priority, types, now: tx.now };
        let mark = known.marks.get(lane.id, tx.now);
        if held.fresh.as_ref().is_none_or(|held| held.contains(&lane.id)) {
            scan.fresh(&mut offers, &mut *tx.conn.prepare_cached(&sql.claim.fresh)?, mark)?;
        }
        if held.timed.as_ref().is_none_or(|held| held.contains(&lane.id)) {
            scan.timed(&mut offers, &mut *tx.conn.prepare_cached(&sql.claim.timed)?)?;
        }
    }
    Ok(offers)
}

/// The lanes of a queue that hold something, by place; `None` when the lanes are so few that each is scanned.
struct Held {
    fresh: Option<HashSet<i64>>,
    timed: Option<HashSet<i64>>,
}

impl Held {
    fn new(tx: &Tx<'_>, queue: usize, claim: &Claim) -> Result<Self> {
        let lanes = &tx.known.queues[queue].lanes.ids;
        if claim.types.is_some() || lanes.len() < FEW_LANES {
            return Ok(Self { fresh: None, timed: None });
        }
        let sql = tx.sql();
        Ok(Self {
            fresh: Some(lanes_that_hold(tx, &sql.claim.next_fresh_lane, lanes)?),
            timed: Some(lanes_that_hold(tx, &sql.claim.next_timed_lane, lanes)?),
        })
    }
}

/// Steps from one lane that holds something to the next, so that empty lanes cost nothing. Every step passes at least
/// one of the queue's lanes, whatever other queues hold.
fn lanes_that_hold<'c>(
    tx: &Tx<'c>,
    next: &'c sql::Statement<Only<Option<i64>>>,
    lanes: &[i64],
) -> Result<HashSet<i64>> {
    let mut held = HashSet::new();
    let Some(last) = lanes.last() else { return Ok(held) };
    let mut next = tx.prepare(next)?;
    let mut rest = lanes;
    while let Some(first) = rest.first() {
        let found = next.query((first, last))?.next()?.map(|row| Only::<Option<i64>>::read(row, 0)).transpose()?;
        let Some(Only(Some(found))) = found else { break };
        rest = &rest[rest.partition_point(|lane| *lane < found)..];
        if rest.first() == Some(&found) {
            held.insert(found);
            rest = &rest[1..];
        }
    }
    Ok(held)
}

/// What the tags offer: of each tag the first `max` entries that are ready, due, or abandoned.
fn tagged_offers(tx: &Tx<'_>, queue: usize, claim: &Claim, tags: &[String], mut offers: Offers) -> Result<Offers> {
    let max = offers.max;
    let known = &tx.known.queues[queue];
    let priorities: BTreeSet<i16> = known.lanes.list.iter().map(|lane| lane.priority).collect();
    let tags: BTreeSet<&String> = tags.iter().collect();
    let mut seen = BTreeSet::new();
    let mut scan = tx.prepare(&tx.sql().claim.tagged)?;
    let wanted = Wanted::new(&scan, claim.types.as_deref())?;
    for priority in priorities {
        if !offers.wants(priority, 0) {
            break;
        }
        for tag in &tags {
            for (state, upto) in [(State::Ready, i64::MAX), (State::Timed, tx.now), (State::Leased, tx.now)] {
                let mut rows = scan.query((known.id, *tag, state as i64, priority, upto, tx.now))?;
                let mut offered = 0;
                while offered < max
                    && let Some(row) = rows.next()?
                {
                    let id = OfferRow::number(row)?;
                    // Ready entries are sorted by number: no better one follows.
                    if state == State::Ready && !offers.wants(priority, id) {
                        break;
                    }
                    if !wanted.has(row) {
                        continue;
                    }
                    offered += 1;
                    if offers.wants(priority, id) && seen.insert(id) {
                        offers.offer(priority, row, None)?;
                    }
                }
            }
        }
    }
    Ok(offers)
}

/// A scan of one lane.
struct LaneScan<'a> {
    lane: i64,
    priority: i16,
    /// The types to take, where the lane is shared by several.
    types: Option<&'a [String]>,
    now: i64,
}

impl LaneScan<'_> {
    fn fresh(&self, offers: &mut Offers, scan: &mut Statement<'_>, mark: Mark) -> Result<()> {
        let wanted = Wanted::new(scan, self.types)?;
        let mut rows = scan.query((self.lane, self.now, mark.below))?;
        let (mut offered, mut all_leased, mut skipped) = (0, true, false);
        while let Some(row) = rows.next()? {
            all_leased = false;
            let id = OfferRow::number(row)?;
            if offered == offers.max || !offers.wants(self.priority, id) {
                break;
            }
            if wanted.has(row) {
                skipped |= !offers.offer(self.priority, row, (!skipped).then_some(self.lane))?;
                offered += 1;
            } else {
                skipped = true;
            }
        }
        offers.scanned.push(Scanned { lane: self.lane, mark, last: 0, taken: 0, all_leased });
        Ok(())
    }

    fn timed(&self, offers: &mut Offers, scan: &mut Statement<'_>) -> Result<()> {
        let wanted = Wanted::new(scan, self.types)?;
        let mut rows = scan.query((self.lane, self.now))?;
        let mut offered = 0;
        while offered < offers.max
            && let Some(row) = rows.next()?
        {
            if !wanted.has(row) {
                continue;
            }
            offered += 1;
            if offers.wants(self.priority, OfferRow::number(row)?) {
                offers.offer(self.priority, row, None)?;
            }
        }
        Ok(())
    }
}

/// The types that a claim takes, compared with the rows of its scan without reading these.
struct Wanted<'a> {
    types: Option<&'a [String]>,
    /// The position of the type in a row.
    column: usize,
}

impl<'a> Wanted<'a> {
    fn new(scan: &Statement<'_>, types: Option<&'a [String]>) -> Result<Self> {
        let column = if types.is_some() { scan.column_index(OfferRow::EVENT_TYPE)? } else { 0 };
        Ok(Self { types, column })
    }

    /// Whether a row has one of these types. One whose fact is missing has none.
    fn has(&self, row: &Row<'_>) -> bool {
        let is = |types: &[String], of: &str| types.iter().any(|wanted| wanted == of);
        let has = |types| row.get_ref(self.column).is_ok_and(|of| of.as_str().is_ok_and(|of| is(types, of)));
        self.types.is_none_or(has)
    }
}

fn candidate(row: &Row<'_>, fresh_in: Option<i64>) -> Result<Candidate> {
    let OfferRow { entry, fact } = OfferRow::read(row, 0)?;
    Ok(Candidate { row: entry, fact: fact.map(Fact::from), fresh_in })
}

/// Ends an entry that cannot be delivered: its attempts are exhausted, or its fact is missing. This counts as a claim,
/// so its token rises. The results of its handlers go into the log, where a redrive finds them.
fn set_aside(tx: &mut Tx<'_>, entry: &Candidate) -> Result<()> {
    let ClaimableRow { id, event_id, .. } = entry.row;
    let end = exhausted_as(entry.row.exhausted_as)?;
    let last_error = entry.row.last_error.as_deref();
    let errors = if entry.fact.is_some() {
        exhausted_errors(entry.row.max_attempts, last_error)
    } else {
        end_without_fact(tx, id, event_id, last_error)?
    };
    let results = handlers::history(tx, id)?.results();
    let ending = Ending { end, worker: None, errors: Some(&errors), results: results.as_deref(), raise_token: true };
    if tags::is_audited(entry.row.flags) {
        audit_takeover(tx, id, LeaseToken(entry.row.token + 1))?;
    }
    let Some(live) = live(tx, id)? else { return Ok(()) };
    let queue = tx.queue_by_id(live.queue_id)?;
    tx.shared.exhausted.add(&tx.known.queues[queue].name, end);
    end_live(tx, id, &live, &ending)
}

fn exhausted_as(code: i16) -> Result<End> {
    End::from_code(code).ok_or_else(|| damaged("an entry has an unknown end"))
}
