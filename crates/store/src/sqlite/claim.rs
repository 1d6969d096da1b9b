//! Claiming: which entries are next, and taking them under a lease.

use std::collections::{BTreeSet, BinaryHeap, HashSet};
use std::sync::Arc;

use rusqlite::types::ValueRef;
use rusqlite::{CachedStatement, Row, Statement};
use tidegate_core::name::check_text;
use tidegate_core::work::check_tag;
use tidegate_core::{End, LeaseToken, QueueState, Tsid};

use super::errors::damaged;
use super::settle::{Ending, end_live, live};
use super::tags::{self, State};
use super::tx::{Mark, Tx, entry_id, later, moment};
use super::unreadable::Unreadable;
use super::{facts, handlers, upkeep, work};
use crate::error::Result;
use crate::store::{Claim, Claimed, Fact, MAX_CLAIM_BYTES, exhausted_errors, missing_fact_errors};

/// Bytes that a waiting row keeps free for what a claim writes: three moments and a worker's name.
pub(super) const ROOM: usize = 48;
/// The bytes of three moments.
const MOMENTS: usize = 24;
/// Up to so many lanes are each looked at.
const FEW_LANES: usize = 16;
/// Where the columns of the fact begin in a candidate's row.
const FACT: usize = 10;

/// Leases up to `claim.max` entries. When there are too few, arrivals are sorted in and it looks once more.
pub(super) fn claim(tx: &mut Tx<'_>, claim: &Claim) -> Result<Vec<Claimed>> {
    check_text("worker", &claim.worker)?;
    for tag in claim.tags.iter().flatten() {
        check_tag(tag)?;
    }
    upkeep::survive_outage(tx)?;
    let queue = tx.queue(&claim.queue)?;
    if tx.known.queues[queue].state == QueueState::Paused || claim.max == 0 {
        return Ok(Vec::new());
    }
    let mut claimed = Vec::new();
    let mut sorted_in = false;
    loop {
        let taken = take(tx, queue, claim, &mut claimed)?;
        if claimed.len() == claim.max || (taken.cut && !claimed.is_empty()) {
            break;
        }
        // Entries that ended make room for others; and arrivals may be what is missing.
        if !taken.ended {
            if sorted_in || upkeep::sort_in(tx)? == 0 {
                break;
            }
            sorted_in = true;
        }
    }
    claimed.sort_unstable_by_key(|(priority, entry)| (*priority, entry.id));
    Ok(claimed.into_iter().map(|(_, entry)| entry).collect())
}

/// An entry that may be taken.
struct Candidate {
    id: i64,
    event_id: i64,
    generation: u32,
    attempts: u32,
    max_attempts: u32,
    token: i64,
    exhausted_as: i16,
    group: Option<String>,
    last_error: Option<String>,
    flags: Option<i64>,
    /// `None` where it is missing from the table of events.
    fact: Option<Fact>,
    /// The lane, where it waits by its number and everything before it was offered too.
    fresh_in: Option<i64>,
}

impl Candidate {
    fn bytes(&self) -> usize {
        self.fact.as_ref().map_or(0, |fact| fact.payload.len())
    }
}

/// What one look took.
struct Taken {
    /// An entry ended instead of being taken.
    ended: bool,
    /// There was more than one claim may have in bytes.
    cut: bool,
}

/// The first of all that the lanes offer, by priority and number, as many as fit in number and bytes.
#[derive(Default)]
struct Offers {
    max: usize,
    /// Bytes that may still be taken.
    room: usize,
    /// Whether the first may be larger than that.
    may_exceed: bool,
    bytes: usize,
    /// The first that did not fit in bytes: whatever comes after it waits for the next claim.
    cut: Option<(i16, i64)>,
    all: Vec<Option<Candidate>>,
    best: BinaryHeap<(i16, i64, usize)>,
    /// The fresh lanes that were looked at.
    scanned: Vec<Scanned>,
    /// Entries that nobody can work with.
    unreadable: Vec<Unreadable>,
}

/// What a look at the fresh entries of a lane found.
struct Scanned {
    lane: i64,
    mark: Mark,
    /// The last entry taken, and how many were.
    last: i64,
    taken: i64,
    /// Nobody of the lane could be taken.
    all_leased: bool,
}

impl Offers {
    /// Whether an entry of this rank would be among the first.
    fn wants(&self, priority: i16, id: i64) -> bool {
        if self.cut.is_some_and(|cut| (priority, id) >= cut) {
            return false;
        }
        self.best.len() < self.max || self.best.peek().is_some_and(|worst| (priority, id) < (worst.0, worst.1))
    }

    /// Adds the entry of a row. One that cannot be read is noted instead; answers whether it could.
    fn offer(&mut self, priority: i16, row: &Row<'_>, fresh_in: Option<i64>) -> Result<bool> {
        match candidate(row, fresh_in) {
            Ok(candidate) => self.add(priority, candidate),
            Err(error) => {
                self.unreadable.push(Unreadable::new(row.get(0)?, error)?);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn add(&mut self, priority: i16, candidate: Candidate) {
        self.bytes += candidate.bytes();
        self.best.push((priority, candidate.id, self.all.len()));
        self.all.push(Some(candidate));
        if self.best.len() > self.max {
            self.drop_worst();
        }
        let least = usize::from(self.may_exceed);
        while self.bytes > self.room && self.best.len() > least {
            self.cut = self.drop_worst();
        }
    }

    /// Takes the last out again and answers where it stood.
    fn drop_worst(&mut self) -> Option<(i16, i64)> {
        let (priority, id, worst) = self.best.pop()?;
        if let Some(dropped) = self.all[worst].take() {
            self.bytes -= dropped.bytes();
        }
        Some((priority, id))
    }
}

/// Takes what is offered.
fn take(tx: &mut Tx<'_>, queue: usize, claim: &Claim, claimed: &mut Vec<(i16, Claimed)>) -> Result<Taken> {
    let held: usize = claimed.iter().map(|(_, entry)| entry.fact.payload.len()).sum();
    let room = MAX_CLAIM_BYTES.saturating_sub(held);
    let none = Offers { max: claim.max - claimed.len(), room, may_exceed: claimed.is_empty(), ..Offers::default() };
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
        let fact = match entry.fact {
            Some(fact) if entry.attempts < entry.max_attempts => fact,
            _ => {
                set_aside(tx, &entry)?;
                ended = true;
                continue;
            }
        };
        taking.add(id)?;
        if !fact.tags.is_empty() {
            tags::move_to(tx, id, &fact.tags, State::Leased, until)?;
        }
        if tags::is_audited(entry.flags) {
            work::audit_takeover(tx, id, LeaseToken(entry.token + 1))?;
        }
        let entry = Claimed {
            id: entry_id(id)?,
            event_id: Tsid::from_i64(entry.event_id),
            generation: entry.generation,
            attempts: entry.attempts + 1,
            max_attempts: entry.max_attempts,
            exhausted_as: exhausted_as(entry.exhausted_as)?,
            token: LeaseToken(entry.token + 1),
            claimed_at,
            lease_until,
            last_error: entry.last_error,
            group: entry.group,
            queue_retry: queue_retry.clone(),
            fact,
        };
        claimed.push((priority, entry));
    }
    taking.end()?;
    if claim.audit {
        work::audit_picked(tx, &claimed[first..], &claim.worker, claim.lease)?;
    }
    for scanned in scanned {
        move_mark(tx, &scanned, until)?;
    }
    Ok(Taken { ended, cut: cut.is_some() })
}

/// Writes leases, one statement per run of neighbours.
struct Taking<'c> {
    statement: CachedStatement<'c>,
    step: i64,
    run: Option<(i64, i64)>,
}

impl<'c> Taking<'c> {
    fn begin(tx: &Tx<'c>, until: i64, claim: &Claim) -> Result<Self> {
        let (sql, worker) = (tx.sql(), claim.worker.as_str());
        let mut statement = tx.prepare(if claim.audit { &sql.take_audited } else { &sql.take })?;
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

/// Lets the next claim of a lane start behind what is leased now.
fn move_mark(tx: &mut Tx<'_>, scanned: &Scanned, until: i64) -> Result<()> {
    let Mark { below, until: held } = scanned.mark;
    let step = tx.shared.options.ids.step;
    let mark = if scanned.taken > 0 && scanned.last == below + scanned.taken * step {
        // Nothing but what was taken now stands there.
        Mark { below: scanned.last, until: held.min(until) }
    } else if scanned.taken > 0 || scanned.all_leased {
        let upper = if scanned.all_leased { i64::MAX } else { scanned.last };
        let (last, first_end): (Option<i64>, Option<i64>) = tx
            .prepare(&tx.sql().leased_below)?
            .query_row((scanned.lane, below, upper, tx.now), |row| Ok((row.get(0)?, row.get(1)?)))?;
        let below = if scanned.all_leased { last.unwrap_or(below) } else { scanned.last };
        Mark { below, until: held.min(first_end.unwrap_or(i64::MAX)).min(if scanned.taken > 0 { until } else { held }) }
    } else {
        scanned.mark
    };
    tx.known.marks.set(scanned.lane, mark);
    Ok(())
}

/// What the lanes offer: each its first `max` of both paths, fresh ones by number, timed ones by their due moment.
fn offers(tx: &mut Tx<'_>, queue: usize, claim: &Claim, mut offers: Offers) -> Result<Offers> {
    let sql = &tx.shared.sql;
    let held = Held::new(tx, queue, claim)?;
    let known = &mut *tx.known;
    for lane in &known.queues[queue].lanes.list {
        // Lanes stand by priority: once there are enough, later priorities have nothing to add.
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
        let scan = Scan { lane: lane.id, priority: lane.priority, types, now: tx.now };
        let mark = known.marks.get(lane.id, tx.now);
        if held.fresh.as_ref().is_none_or(|held| held.contains(&lane.id)) {
            scan.fresh(&mut offers, &mut *tx.conn.prepare_cached(&sql.fresh)?, mark)?;
        }
        if held.timed.as_ref().is_none_or(|held| held.contains(&lane.id)) {
            scan.timed(&mut offers, &mut *tx.conn.prepare_cached(&sql.timed)?)?;
        }
    }
    Ok(offers)
}

/// The lanes of a queue that hold something, by path; `None` where the lanes are so few that each is looked at.
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
            fresh: Some(lanes_that_hold(tx, &sql.next_fresh_lane, lanes)?),
            timed: Some(lanes_that_hold(tx, &sql.next_timed_lane, lanes)?),
        })
    }
}

/// Steps from one lane that holds something to the next, so that empty lanes cost nothing. Every step passes at least one
/// of the queue's lanes, whatever other queues hold.
fn lanes_that_hold<'c>(tx: &Tx<'c>, next: &'c str, lanes: &[i64]) -> Result<HashSet<i64>> {
    let mut held = HashSet::new();
    let Some(last) = lanes.last() else { return Ok(held) };
    let mut next = tx.prepare(next)?;
    let mut rest = lanes;
    while let Some(first) = rest.first() {
        let found: Option<i64> = next.query_row((first, last), |row| row.get(0))?;
        let Some(found) = found else { break };
        rest = &rest[rest.partition_point(|lane| *lane < found)..];
        if rest.first() == Some(&found) {
            held.insert(found);
            rest = &rest[1..];
        }
    }
    Ok(held)
}

/// What the tags offer: each its first `max` that are ready, due, or abandoned.
fn tagged_offers(tx: &Tx<'_>, queue: usize, claim: &Claim, tags: &[String], mut offers: Offers) -> Result<Offers> {
    let max = offers.max;
    let known = &tx.known.queues[queue];
    let priorities: BTreeSet<i16> = known.lanes.list.iter().map(|lane| lane.priority).collect();
    let tags: BTreeSet<&String> = tags.iter().collect();
    let mut seen = BTreeSet::new();
    let mut scan = tx.prepare(&tx.sql().tagged)?;
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
                    let id: i64 = row.get(0)?;
                    // Ready ones come by their number: nothing better follows.
                    if state == State::Ready && !offers.wants(priority, id) {
                        break;
                    }
                    if claim.types.as_ref().is_some_and(|types| !is_of(row, types)) {
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

/// A look at one lane.
struct Scan<'a> {
    lane: i64,
    priority: i16,
    /// Which types to take, where the lane holds several.
    types: Option<&'a [String]>,
    now: i64,
}

impl Scan<'_> {
    fn fresh(&self, offers: &mut Offers, scan: &mut Statement<'_>, mark: Mark) -> Result<()> {
        let mut rows = scan.query((self.lane, self.now, mark.below))?;
        let (mut offered, mut all_leased, mut skipped) = (0, true, false);
        while let Some(row) = rows.next()? {
            all_leased = false;
            let id = row.get(0)?;
            if offered == offers.max || !offers.wants(self.priority, id) {
                break;
            }
            if self.is_wanted(row) {
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
        let mut rows = scan.query((self.lane, self.now))?;
        let mut offered = 0;
        while offered < offers.max
            && let Some(row) = rows.next()?
        {
            if !self.is_wanted(row) {
                continue;
            }
            offered += 1;
            if offers.wants(self.priority, row.get(0)?) {
                offers.offer(self.priority, row, None)?;
            }
        }
        Ok(())
    }

    fn is_wanted(&self, row: &Row<'_>) -> bool {
        self.types.is_none_or(|types| is_of(row, types))
    }
}

/// Whether a candidate is of one of these types. One whose fact is missing is of none.
fn is_of(row: &Row<'_>, types: &[String]) -> bool {
    row.get_ref(FACT + 1).is_ok_and(|of| of.as_str().is_ok_and(|of| types.iter().any(|wanted| wanted == of)))
}

fn candidate(row: &Row<'_>, fresh_in: Option<i64>) -> Result<Candidate> {
    let is_missing = row.get_ref(FACT + 1)? == ValueRef::Null;
    Ok(Candidate {
        id: row.get(0)?,
        event_id: row.get(1)?,
        generation: row.get(2)?,
        attempts: row.get(3)?,
        max_attempts: row.get(4)?,
        token: row.get(5)?,
        exhausted_as: row.get(6)?,
        group: row.get(7)?,
        last_error: row.get(8)?,
        flags: row.get(9)?,
        fact: if is_missing { None } else { Some(facts::read(row, FACT)?) },
        fresh_in,
    })
}

/// Ends an entry that cannot be given to anybody: its attempts are used up, or its fact is missing. The claim that found it
/// counts as a claim, so its token rises. What its handlers answered goes into the log, where a redrive finds it.
fn set_aside(tx: &mut Tx<'_>, entry: &Candidate) -> Result<()> {
    let end = exhausted_as(entry.exhausted_as)?;
    let last_error = entry.last_error.as_deref();
    let errors = if entry.fact.is_some() {
        exhausted_errors(entry.max_attempts, last_error)
    } else {
        end_without_fact(tx, entry.id, entry.event_id, last_error)?
    };
    let results = handlers::history(tx, entry.id)?.results();
    let ending = Ending { end, worker: None, errors: Some(&errors), results: results.as_deref(), raise_token: true };
    if tags::is_audited(entry.flags) {
        work::audit_takeover(tx, entry.id, LeaseToken(entry.token + 1))?;
    }
    let Some(live) = live(tx, entry.id)? else { return Ok(()) };
    let queue = tx.queue_by_id(live.queue_id)?;
    tx.shared.exhausted.add(&tx.known.queues[queue].name, end);
    end_live(tx, entry.id, &live, &ending)
}

/// Prepares the end of an entry whose fact is missing: which tags it had is not known any more. Answers its errors.
pub(super) fn end_without_fact(tx: &Tx<'_>, id: i64, event_id: i64, last_error: Option<&str>) -> Result<String> {
    tracing::error!(entry = id, event_id, "the event of an entry is missing: the entry is a dead letter now");
    tx.prepare(&tx.sql().forget_tags)?.execute([id])?;
    Ok(missing_fact_errors(event_id, last_error))
}

fn exhausted_as(code: i16) -> Result<End> {
    End::from_code(code).ok_or_else(|| damaged("an entry has an unknown end"))
}
