//! Claiming: which entries are next, and taking them under a lease.

use std::collections::BinaryHeap;

use rusqlite::{OptionalExtension, Row};
use tidegate_core::name::check_text;
use tidegate_core::{End, LeaseToken, QueueState, Tsid};

use super::errors::damaged;
use super::settle::{Ending, end_entry, promote};
use super::tx::{Mark, Tx, entry_id, later, moment};
use super::{facts, upkeep};
use crate::error::Result;
use crate::store::{Claim, Claimed, exhausted_errors};

/// Bytes that a waiting row keeps free for what a claim writes: three moments and a worker's name.
pub(super) const ROOM: usize = 48;
/// The bytes of three moments.
const MOMENTS: usize = 24;

/// Leases up to `claim.max` entries. When there are too few, arrivals are sorted in and it looks once more.
pub(super) fn claim(tx: &mut Tx<'_>, claim: &Claim) -> Result<Vec<Claimed>> {
    check_text("worker", &claim.worker)?;
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
    /// The lane, where it waits by its number and the lane is of one type.
    fresh_in: Option<i64>,
}

/// The first of all that the lanes offer, by priority and number.
#[derive(Default)]
struct Offers {
    max: usize,
    all: Vec<Candidate>,
    best: BinaryHeap<(i16, i64, usize)>,
    /// What the scans of fresh lanes learned: the lane, its mark, and the last entry seen if none could be taken.
    scanned: Vec<(i64, Mark)>,
}

impl Offers {
    /// Whether an entry of this rank would be among the first.
    fn wants(&self, priority: i16, id: i64) -> bool {
        self.best.len() < self.max || self.best.peek().is_some_and(|worst| (priority, id) < (worst.0, worst.1))
    }

    fn add(&mut self, priority: i16, candidate: Candidate) {
        self.best.push((priority, candidate.id, self.all.len()));
        self.all.push(candidate);
        if self.best.len() > self.max {
            self.best.pop();
        }
    }
}

/// Takes what is offered; answers whether an entry ended instead.
fn take(tx: &mut Tx<'_>, queue: usize, claim: &Claim, claimed: &mut Vec<(i16, Claimed)>) -> Result<bool> {
    let offers = offers(tx, queue, claim, claim.max - claimed.len())?;
    let now = tx.now;
    let until = later(now, claim.lease)?;
    let (claimed_at, lease_until) = (moment(now)?, moment(until)?);
    let sql = tx.sql();
    let mut take = tx.prepare(&sql.take)?;
    take.raw_bind_parameter(2, until)?;
    take.raw_bind_parameter(3, now)?;
    take.raw_bind_parameter(4, claim.worker.as_str())?;
    take.raw_bind_parameter(5, ROOM.saturating_sub(MOMENTS + claim.worker.len()) as i64)?;
    let mut fact = tx.prepare(&sql.fact)?;
    let mut all: Vec<Option<Candidate>> = offers.all.into_iter().map(Some).collect();
    let mut marks = offers.scanned;
    claimed.reserve(offers.best.len());
    let mut ended = false;
    for (priority, _, index) in offers.best.into_sorted_vec() {
        let Some(entry) = all[index].take() else { continue };
        if let Some(lane) = entry.fresh_in
            && let Some((_, mark)) = marks.iter_mut().find(|(of, _)| *of == lane)
        {
            *mark = Mark { below: mark.below.max(entry.id), until: mark.until.min(until) };
        }
        if entry.attempts >= entry.max_attempts {
            exhaust(tx, queue, &entry)?;
            ended = true;
            continue;
        }
        take.raw_bind_parameter(1, entry.id)?;
        take.raw_execute()?;
        let found = fact.query_row([entry.event_id], |row| Ok(facts::read(row, 0))).optional()?;
        let entry = Claimed {
            id: entry_id(entry.id)?,
            event_id: Tsid::from_i64(entry.event_id),
            generation: entry.generation,
            attempts: entry.attempts + 1,
            max_attempts: entry.max_attempts,
            token: LeaseToken(entry.token + 1),
            claimed_at,
            lease_until,
            last_error: entry.last_error,
            group: entry.group,
            fact: found.ok_or_else(|| damaged("an entry's event is missing"))??,
        };
        claimed.push((priority, entry));
    }
    for (lane, mark) in marks {
        tx.known.marks.set(lane, mark);
    }
    Ok(ended)
}

/// What the lanes offer: each its first `max` of both paths, fresh ones by number, timed ones by their due moment.
fn offers(tx: &mut Tx<'_>, queue: usize, claim: &Claim, max: usize) -> Result<Offers> {
    let mut offers = Offers { max, ..Offers::default() };
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
        let shared_by = if lane.event_type.is_none() { claim.types.as_deref() } else { None };
        let sql = &tx.shared.sql;
        let (fresh, timed) = match shared_by {
            None => (&sql.fresh, &sql.timed),
            Some(_) => (&sql.fresh_shared, &sql.timed_shared),
        };
        let mark = if shared_by.is_none() { Some(known.marks.get(lane.id, tx.now)) } else { None };
        let scan = Scan { lane: lane.id, priority: lane.priority, types: shared_by, now: tx.now };
        scan.fresh(&mut offers, &mut *tx.conn.prepare_cached(fresh)?, mark)?;
        scan.timed(&mut offers, &mut *tx.conn.prepare_cached(timed)?)?;
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
    fn fresh(&self, offers: &mut Offers, scan: &mut rusqlite::Statement<'_>, mark: Option<Mark>) -> Result<()> {
        let mut learned = mark.unwrap_or(Mark { below: 0, until: i64::MAX });
        let mut rows = scan.query((self.lane, learned.below))?;
        let (mut offered, mut all_leased) = (0, true);
        while let Some(row) = rows.next()? {
            let id = row.get(0)?;
            if offered == offers.max || !offers.wants(self.priority, id) {
                break;
            }
            if let Some(until) = self.lease(row)? {
                learned.until = learned.until.min(until);
                if all_leased {
                    learned.below = id;
                }
                continue;
            }
            all_leased = false;
            if self.is_wanted(row)? {
                offers.add(self.priority, candidate(row, mark.map(|_| self.lane))?);
                offered += 1;
            }
        }
        if mark.is_some() {
            offers.scanned.push((self.lane, learned));
        }
        Ok(())
    }

    fn timed(&self, offers: &mut Offers, scan: &mut rusqlite::Statement<'_>) -> Result<()> {
        let mut rows = scan.query((self.lane, self.now))?;
        let mut offered = 0;
        while let Some(row) = rows.next()? {
            if offered == offers.max {
                break;
            }
            if self.lease(row)?.is_some() || !self.is_wanted(row)? {
                continue;
            }
            offered += 1;
            if offers.wants(self.priority, row.get(0)?) {
                offers.add(self.priority, candidate(row, None)?);
            }
        }
        Ok(())
    }

    /// Until when somebody holds it.
    fn lease(&self, row: &Row<'_>) -> Result<Option<i64>> {
        let until: Option<i64> = row.get(9)?;
        Ok(until.filter(|until| *until > self.now))
    }

    fn is_wanted(&self, row: &Row<'_>) -> Result<bool> {
        let Some(types) = self.types else { return Ok(true) };
        let of = row.get_ref(10)?.as_str().map_err(rusqlite::Error::from)?;
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
        fresh_in,
    })
}

/// Ends an entry whose attempts are used up. The claim that found it counts as a claim, so its token rises.
fn exhaust(tx: &mut Tx<'_>, queue: usize, entry: &Candidate) -> Result<()> {
    let end = End::from_code(entry.exhausted_as).ok_or_else(|| damaged("an entry has an unknown end"))?;
    let errors = exhausted_errors(entry.max_attempts, entry.last_error.as_deref());
    let ending = Ending { end, worker: None, errors: Some(&errors), results: None, raise_token: true };
    end_entry(tx, entry.id, &ending)?;
    if let Some(group) = &entry.group {
        let queue_id = tx.known.queues[queue].id;
        promote(tx, queue_id, group)?;
    }
    Ok(())
}
