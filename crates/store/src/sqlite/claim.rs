//! Claiming: which entries are next, and taking them under a lease.

use std::collections::{BTreeSet, BinaryHeap};

use rusqlite::{CachedStatement, Row, Statement};
use tidegate_core::name::check_text;
use tidegate_core::work::check_tag;
use tidegate_core::{End, LeaseToken, QueueState, Tsid};

use super::errors::damaged;
use super::settle::{Ending, end_live, live};
use super::tags::{self, State};
use super::tx::{Mark, Tx, entry_id, later, moment};
use super::{facts, upkeep, work};
use crate::error::Result;
use crate::store::{Claim, Claimed, Fact, exhausted_errors};

/// Bytes that a waiting row keeps free for what a claim writes: three moments and a worker's name.
pub(super) const ROOM: usize = 48;
/// The bytes of three moments.
const MOMENTS: usize = 24;
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
        let ended = take(tx, queue, claim, &mut claimed)?;
        if claimed.len() == claim.max {
            break;
        }
        // Entries that ended make room for others; and arrivals may be what is missing.
        if !ended {
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
    fact: Fact,
    /// The lane, where it waits by its number and everything before it was offered too.
    fresh_in: Option<i64>,
}

/// The first of all that the lanes offer, by priority and number.
#[derive(Default)]
struct Offers {
    max: usize,
    all: Vec<Option<Candidate>>,
    best: BinaryHeap<(i16, i64, usize)>,
    /// The fresh lanes that were looked at.
    scanned: Vec<Scanned>,
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
        self.best.len() < self.max || self.best.peek().is_some_and(|worst| (priority, id) < (worst.0, worst.1))
    }

    fn add(&mut self, priority: i16, candidate: Candidate) {
        self.best.push((priority, candidate.id, self.all.len()));
        self.all.push(Some(candidate));
        if self.best.len() > self.max
            && let Some((_, _, worst)) = self.best.pop()
        {
            self.all[worst] = None;
        }
    }
}

/// Takes what is offered; answers whether an entry ended instead.
fn take(tx: &mut Tx<'_>, queue: usize, claim: &Claim, claimed: &mut Vec<(i16, Claimed)>) -> Result<bool> {
    let max = claim.max - claimed.len();
    let Offers { mut all, best, mut scanned, .. } = match &claim.tags {
        None => offers(tx, queue, claim, max)?,
        Some(tags) => tagged_offers(tx, queue, claim, tags, max)?,
    };
    let until = later(tx.now, claim.lease)?;
    let (claimed_at, lease_until) = (moment(tx.now)?, moment(until)?);
    let mut taking = Taking::begin(tx, until, claim)?;
    let first = claimed.len();
    claimed.reserve(best.len());
    let mut ended = false;
    for (priority, id, index) in best.into_sorted_vec() {
        let Some(entry) = all[index].take() else { continue };
        if let Some(lane) = entry.fresh_in
            && let Some(scanned) = scanned.iter_mut().find(|scanned| scanned.lane == lane)
        {
            (scanned.last, scanned.taken) = (id, scanned.taken + 1);
        }
        if entry.attempts >= entry.max_attempts {
            exhaust(tx, &entry)?;
            ended = true;
            continue;
        }
        taking.add(id)?;
        if !entry.fact.tags.is_empty() {
            tags::move_to(tx, id, &entry.fact.tags, State::Leased, until)?;
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
            fact: entry.fact,
        };
        claimed.push((priority, entry));
    }
    taking.end()?;
    if claim.audit {
        work::audit_picked(tx, &claimed[first..], &claim.worker)?;
    }
    for scanned in scanned {
        move_mark(tx, &scanned, until)?;
    }
    Ok(ended)
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
fn offers(tx: &mut Tx<'_>, queue: usize, claim: &Claim, max: usize) -> Result<Offers> {
    let mut offers = Offers { max, ..Offers::default() };
    let known = &mut *tx.known;
    let sql = &tx.shared.sql;
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
        scan.fresh(&mut offers, &mut *tx.conn.prepare_cached(&sql.fresh)?, mark)?;
        scan.timed(&mut offers, &mut *tx.conn.prepare_cached(&sql.timed)?)?;
    }
    Ok(offers)
}

/// What the tags offer: each its first `max` that are ready, due, or abandoned.
fn tagged_offers(tx: &Tx<'_>, queue: usize, claim: &Claim, tags: &[String], max: usize) -> Result<Offers> {
    let mut offers = Offers { max, ..Offers::default() };
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
                    let of = row.get_ref(FACT + 1)?.as_str().map_err(rusqlite::Error::from)?;
                    if claim.types.as_ref().is_some_and(|types| !types.iter().any(|wanted| wanted == of)) {
                        continue;
                    }
                    offered += 1;
                    if offers.wants(priority, id) && seen.insert(id) {
                        offers.add(priority, candidate(row, None)?);
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
            if self.is_wanted(row)? {
                offers.add(self.priority, candidate(row, (!skipped).then_some(self.lane))?);
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
            if !self.is_wanted(row)? {
                continue;
            }
            offered += 1;
            if offers.wants(self.priority, row.get(0)?) {
                offers.add(self.priority, candidate(row, None)?);
            }
        }
        Ok(())
    }

    fn is_wanted(&self, row: &Row<'_>) -> Result<bool> {
        let Some(types) = self.types else { return Ok(true) };
        let of = row.get_ref(FACT + 1)?.as_str().map_err(rusqlite::Error::from)?;
        Ok(types.iter().any(|wanted| wanted == of))
    }
}

fn candidate(row: &Row<'_>, fresh_in: Option<i64>) -> Result<Candidate> {
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
        fact: facts::read(row, FACT)?,
        fresh_in,
    })
}

/// Ends an entry whose attempts are used up. The claim that found it counts as a claim, so its token rises.
fn exhaust(tx: &mut Tx<'_>, entry: &Candidate) -> Result<()> {
    let end = exhausted_as(entry.exhausted_as)?;
    let errors = exhausted_errors(entry.max_attempts, entry.last_error.as_deref());
    let ending = Ending { end, worker: None, errors: Some(&errors), results: None, raise_token: true };
    if tags::is_audited(entry.flags) {
        work::audit_takeover(tx, entry.id, LeaseToken(entry.token + 1))?;
    }
    let Some(live) = live(tx, entry.id)? else { return Ok(()) };
    end_live(tx, entry.id, &live, &ending)
}

fn exhausted_as(code: i16) -> Result<End> {
    End::from_code(code).ok_or_else(|| damaged("an entry has an unknown end"))
}
