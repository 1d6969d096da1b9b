//! What a claim is offered: the first claimable entries of each lane, or of each tag, and of these the first by priority
//! and number. Takes nothing.

use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use rusqlite::{Row, Statement};

use crate::error::Result;
use crate::sql::{self, FromRow, Only};
use crate::sqlite::engine::catalogue::{Lane, Lanes};
use crate::sqlite::engine::marks::Mark;
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::statements::claim::{ClaimableRow, OfferRow};
use crate::sqlite::tags::State;
use crate::sqlite::unreadable::Unreadable;
use crate::values::{Claim, Fact};

/// With fewer lanes than this, each lane is scanned.
const FEW_LANES: usize = 16;

/// An entry that can be claimed.
pub(super) struct Candidate {
    pub(super) row: ClaimableRow,
    /// `None` where the fact is missing from the table of events.
    pub(super) fact: Option<Fact>,
    /// Its lane; 0 where it was found by a tag.
    pub(super) lane: i64,
    /// The type of that lane, if it has one.
    pub(super) lane_type: Option<Arc<str>>,
    /// The lane, if the entry is fresh and every entry before it in the lane was offered or is leased.
    pub(super) fresh_in: Option<i64>,
}

/// Where an entry was found.
#[derive(Default, Clone, Copy)]
struct Of<'a> {
    /// `None` where it was found by a tag.
    lane: Option<&'a Lane>,
    /// It is fresh, and every entry before it in the lane was offered or is leased.
    is_next: bool,
}

impl Candidate {
    fn bytes(&self) -> usize {
        self.fact.as_ref().map_or(0, |fact| fact.payload.len())
    }
}

/// The first of all offered entries by priority and number, as many as fit by count and by bytes.
#[derive(Default)]
pub(super) struct Offers {
    pub(super) max: usize,
    /// Payload bytes that may still be taken.
    pub(super) bytes_left: usize,
    /// Whether the first entry may be larger than that.
    pub(super) may_exceed: bool,
    pub(super) bytes: usize,
    /// The first entry that did not fit by bytes: it and all after it wait for the next claim.
    pub(super) cut: Option<(i16, i64)>,
    pub(super) all: Vec<Option<Candidate>>,
    pub(super) best: BinaryHeap<(i16, i64, usize)>,
    /// The lanes whose fresh entries were scanned.
    pub(super) scanned: Vec<Scanned>,
    /// Entries whose stored values cannot be read.
    pub(super) unreadable: Vec<Unreadable>,
}

/// The result of scanning the fresh entries of a lane.
pub(super) struct Scanned {
    pub(super) lane: i64,
    pub(super) mark: Mark,
    /// The last entry taken, and how many were.
    pub(super) last: i64,
    pub(super) taken: i64,
    /// No entry of the lane was claimable.
    pub(super) all_leased: bool,
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
    fn offer(&mut self, priority: i16, row: &Row<'_>, of: Of<'_>) -> Result<bool> {
        match candidate(row, of) {
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

    /// Adds what a lane with a quota offers.
    fn merge(&mut self, mut lane: Self) {
        for (priority, id, index) in std::mem::take(&mut lane.best).into_sorted_vec() {
            if let Some(candidate) = lane.all[index].take().filter(|_| self.wants(priority, id)) {
                self.add(priority, candidate);
            }
        }
        self.scanned.append(&mut lane.scanned);
        self.unreadable.append(&mut lane.unreadable);
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

/// What the lanes offer: of each the first `max` fresh entries by number and the first `max` timed ones by due moment, and of
/// these no more than its quota leaves, given how many were taken of each lane before.
pub(super) fn offers(
    tx: &mut Tx<'_>,
    queue: usize,
    claim: &Claim,
    taken: &HashMap<i64, usize>,
    mut offers: Offers,
) -> Result<Offers> {
    let sql = tx.sql();
    let held = Held::new(tx, queue, claim)?;
    let types: Option<HashSet<&str>> = claim.types.as_ref().map(|types| types.iter().map(String::as_str).collect());
    let known = &mut *tx.known;
    for lane in &known.queues[queue].lanes.list {
        // Lanes are sorted by priority: once there are enough entries, later priorities cannot add any.
        if !offers.wants(lane.priority, 0) {
            break;
        }
        let wanted = match (&types, &lane.event_type) {
            (Some(types), Some(of)) => types.contains(&**of),
            _ => true,
        };
        if !wanted {
            continue;
        }
        let left = quota(&known.queues[queue].lanes, lane, claim)
            .map(|quota| quota.saturating_sub(taken.get(&lane.id).copied().unwrap_or(0)));
        if left == Some(0) {
            continue;
        }
        let types = if lane.event_type.is_none() { claim.types.as_deref() } else { None };
        let scan = LaneScan { lane, types, max: offers.max, now: tx.now };
        let mut limited =
            left.map(|left| Offers { max: left.min(offers.max), bytes_left: usize::MAX, ..Offers::default() });
        let into = limited.as_mut().unwrap_or(&mut offers);
        let mark = known.marks.get(lane.id, tx.now);
        if held.fresh.as_ref().is_none_or(|held| held.contains(&lane.id)) {
            scan.fresh(into, &mut *tx.conn.prepare_cached(&sql.claim.fresh)?, mark)?;
        }
        if held.timed.as_ref().is_none_or(|held| held.contains(&lane.id)) {
            scan.timed(into, &mut *tx.conn.prepare_cached(&sql.claim.timed)?)?;
        }
        if let Some(limited) = limited {
            offers.merge(limited);
        }
    }
    Ok(offers)
}

/// The quota of a lane; `None` where it has none. A lane that types share is bound by the smallest quota of the wanted types
/// that have no lane of their own.
fn quota(lanes: &Lanes, lane: &Lane, claim: &Claim) -> Option<usize> {
    let is_wanted = |event_type: &String| claim.types.as_ref().is_none_or(|types| types.contains(event_type));
    match &lane.event_type {
        Some(event_type) => claim.quotas.get(&**event_type).copied(),
        None => {
            let shared =
                claim.quotas.iter().filter(|(of, _)| is_wanted(of) && !lanes.by_type.contains_key(of.as_str()));
            shared.map(|(_, quota)| *quota).min()
        }
    }
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
pub(super) fn tagged_offers(
    tx: &Tx<'_>,
    queue: usize,
    claim: &Claim,
    tags: &[String],
    mut offers: Offers,
) -> Result<Offers> {
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
                        offers.offer(priority, row, Of::default())?;
                    }
                }
            }
        }
    }
    Ok(offers)
}

/// A scan of one lane.
struct LaneScan<'a> {
    lane: &'a Lane,
    /// The types to take, where the lane is shared by several.
    types: Option<&'a [String]>,
    /// The most entries that each place offers.
    max: usize,
    now: i64,
}

impl LaneScan<'_> {
    fn fresh(&self, offers: &mut Offers, scan: &mut Statement<'_>, mark: Mark) -> Result<()> {
        let wanted = Wanted::new(scan, self.types)?;
        let mut rows = scan.query((self.lane.id, self.now, mark.below))?;
        let (mut offered, mut all_leased, mut skipped) = (0, true, false);
        while let Some(row) = rows.next()? {
            all_leased = false;
            let id = OfferRow::number(row)?;
            if offered == self.max || !offers.wants(self.lane.priority, id) {
                break;
            }
            if wanted.has(row) {
                let of = Of { lane: Some(self.lane), is_next: !skipped };
                skipped |= !offers.offer(self.lane.priority, row, of)?;
                offered += 1;
            } else {
                skipped = true;
            }
        }
        offers.scanned.push(Scanned { lane: self.lane.id, mark, last: 0, taken: 0, all_leased });
        Ok(())
    }

    fn timed(&self, offers: &mut Offers, scan: &mut Statement<'_>) -> Result<()> {
        let wanted = Wanted::new(scan, self.types)?;
        let mut rows = scan.query((self.lane.id, self.now))?;
        let mut offered = 0;
        while offered < self.max
            && let Some(row) = rows.next()?
        {
            if !wanted.has(row) {
                continue;
            }
            offered += 1;
            if offers.wants(self.lane.priority, OfferRow::number(row)?) {
                offers.offer(self.lane.priority, row, Of { lane: Some(self.lane), is_next: false })?;
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

fn candidate(row: &Row<'_>, of: Of<'_>) -> Result<Candidate> {
    let OfferRow { entry, fact } = OfferRow::read(row, 0)?;
    let lane = of.lane.map_or(0, |lane| lane.id);
    Ok(Candidate {
        row: entry,
        fact: fact.map(Fact::from),
        lane,
        lane_type: of.lane.and_then(|lane| lane.event_type.clone()),
        fresh_in: of.is_next.then_some(lane),
    })
}
