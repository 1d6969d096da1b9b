//! Claiming: finds the next entries and leases them. Knows nothing of the worker beyond its name.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::CachedStatement;
use tidegate_core::attempt::check_tag;
use tidegate_core::claim::{Goal, Next, Scan, Search};
use tidegate_core::name::check_text;
use tidegate_core::{LeaseToken, QueueState, Tsid};

use crate::error::{Error, Result};
use crate::sql::Only;
use crate::sqlite::arrivals;
use crate::sqlite::audit::{audit_picked, audit_takeover};
use crate::sqlite::end::{Ending, end_live, end_or_keep};
use crate::sqlite::engine::marks::Mark;
use crate::sqlite::engine::row::end_of;
use crate::sqlite::engine::tx::{Tx, entry_id, later, moment};
use crate::sqlite::expiry::end_expired;
use crate::sqlite::flags;
use crate::sqlite::found::live;
use crate::sqlite::groups::{ASIDES_OF_CLAIM, promote_asides};
use crate::sqlite::handlers;
use crate::sqlite::offers::{Candidate, Offers, Scanned, offers, tagged_offers};
use crate::sqlite::statements::claim::{ClaimableRow, ROOM};
use crate::sqlite::tags::{self, State};
use crate::sqlite::unreadable::end_without_fact;
use crate::values::entries::exhausted_errors;
use crate::values::{Claim, Claimed, Family, MAX_CLAIM_BYTES};

/// The bytes of three moments.
const MOMENTS: usize = 24;

/// What a claim has taken so far.
#[derive(Default)]
struct Progress {
    claimed: Vec<(i16, Claimed)>,
    /// How many of each lane, if the claim has quotas.
    of_lane: HashMap<i64, usize>,
}

/// Leases up to `claim.max` entries. If there are too few, it sorts arrivals in, promotes what stepped aside and is due, and
/// tries once more.
pub(super) fn claim(tx: &mut Tx<'_>, claim: &Claim) -> Result<Vec<Claimed>> {
    check(tx.family, claim)?;
    crate::sqlite::heartbeat::survive_outage(tx)?;
    let queue = tx.queue(&claim.queue)?;
    if tx.known.queues[queue].state == QueueState::Paused || claim.max == 0 {
        return Ok(Vec::new());
    }
    let mut progress = Progress::default();
    let mut search = Search::new(Goal::All);
    loop {
        let before = progress.claimed.len();
        let taken = take(tx, queue, claim, &mut progress)?;
        let claimed = progress.claimed.len();
        if claimed == claim.max || (taken.cut && claimed > 0) {
            break;
        }
        let scan = Scan { took: claimed > before, ended: taken.ended, contended: false };
        if !prepare_scan(tx, queue, &mut search, scan)? {
            break;
        }
    }
    let mut claimed = progress.claimed;
    claimed.sort_unstable_by_key(|(priority, entry)| (*priority, entry.id));
    Ok(claimed.into_iter().map(|(_, entry)| entry).collect())
}

/// Refuses what no claim can ask for.
fn check(family: Family, claim: &Claim) -> Result<()> {
    check_text("worker", &claim.worker)?;
    for tag in claim.tags.iter().flatten() {
        check_tag(tag)?;
    }
    if claim.tags.is_some() && !claim.quotas.is_empty() {
        return Err(Error::invalid("claims by tag take no quotas"));
    }
    match family {
        Family::Jobs if claim.tags.is_some() => Err(Error::invalid("jobs have no tags to claim by")),
        Family::Jobs if claim.audit => Err(Error::invalid("jobs have no audit: claim them without")),
        Family::Entries | Family::Jobs => Ok(()),
    }
}

/// Does what is to be done between a scan that found too little and the next one. Returns whether there is a next one.
fn prepare_scan(tx: &mut Tx<'_>, queue: usize, search: &mut Search, scan: Scan) -> Result<bool> {
    // A mark is never above a claimable entry, so there is no need to start lower.
    match search.after(scan, || false) {
        Next::Scan => Ok(true),
        Next::SortArrivals => {
            let queue_id = tx.known.queues[queue].id;
            let sorted = arrivals::sort_in(tx)?;
            Ok(sorted + promote_asides(tx, queue_id, ASIDES_OF_CLAIM)? > 0)
        }
        Next::Answer | Next::Widen | Next::ScanFromBottom => Ok(false),
    }
}

/// The result of one scan.
struct Taken {
    /// An entry ended instead of being claimed.
    ended: bool,
    /// Further entries did not fit into the bytes of one claim.
    cut: bool,
}

/// Claims the first of what is offered.
fn take(tx: &mut Tx<'_>, queue: usize, claim: &Claim, progress: &mut Progress) -> Result<Taken> {
    let Progress { claimed, of_lane } = progress;
    let held: usize = claimed.iter().map(|(_, entry)| entry.fact.payload.len()).sum();
    let bytes_left = MAX_CLAIM_BYTES.saturating_sub(held);
    let none =
        Offers { max: claim.max - claimed.len(), bytes_left, may_exceed: claimed.is_empty(), ..Offers::default() };
    let Offers { mut all, best, mut scanned, cut, unreadable, .. } = match &claim.tags {
        None => offers(tx, queue, claim, of_lane, none)?,
        Some(tags) => tagged_offers(tx, queue, claim, tags, none)?,
    };
    let until = later(tx.now, claim.lease)?;
    let (claimed_at, lease_until) = (moment(tx.now)?, moment(until)?);
    let queue_retry = tx.known.queues[queue].settings.retry.clone().map(Arc::new);
    let mut taking = Taking::begin(tx, until, claim)?;
    let first = claimed.len();
    claimed.reserve(best.len());
    for entry in &unreadable {
        entry.end(tx)?;
    }
    let mut ended = !unreadable.is_empty();
    for (priority, id, index) in best.into_sorted_vec() {
        let Some(entry) = all[index].take() else { continue };
        if let Some(scanned) = scanned.iter_mut().find(|scanned| Some(scanned.lane) == entry.fresh_in) {
            (scanned.last, scanned.taken) = (id, scanned.taken + 1);
        }
        let (row, fact, lane, lane_type) = match entry {
            Candidate { row, fact: Some(fact), lane, lane_type, .. } if row.is_deliverable(tx.now) => {
                (row, fact, lane, lane_type)
            }
            entry => {
                end_undeliverable(tx, &entry)?;
                ended = true;
                continue;
            }
        };
        taking.add(id)?;
        if !claim.quotas.is_empty() {
            *of_lane.entry(lane).or_default() += 1;
        }
        if !fact.tags.is_empty() {
            tags::move_to(tx, id, &fact.tags, State::Leased, until)?;
        }
        let token = LeaseToken(row.token + 1);
        if flags::is_audited(row.flags) {
            audit_takeover(tx, id, token)?;
        }
        let event_id = Tsid::from_i64(row.event_id);
        let mut fact = if flags::is_in_envelope(row.flags) { fact.in_envelope(event_id) } else { fact };
        if flags::is_added(row.flags)
            && let Some(Only(made_at)) = tx.row(&tx.sql().added.made_at, (row.event_id, id))?
        {
            fact.created_at = moment(made_at)?;
        }
        let entry = Claimed {
            id: entry_id(id)?,
            event_id,
            generation: row.generation,
            attempts: row.attempts + 1,
            max_attempts: row.max_attempts,
            exhausted_as: end_of(row.exhausted_as)?,
            token,
            claimed_at,
            lease_until,
            last_error: row.last_error,
            group: row.group_key,
            lane_type: lane_type.filter(|_| tx.family == Family::Jobs),
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

/// Ends an entry that cannot be delivered: its attempts are exhausted, its expiry has passed, or its fact is missing. This
/// counts as a claim, so its token rises. The results of its handlers go into the log, where a redrive finds them. An
/// exhausted entry that keeps its place stays live.
fn end_undeliverable(tx: &mut Tx<'_>, entry: &Candidate) -> Result<()> {
    let ClaimableRow { id, event_id, .. } = entry.row;
    let Some(live) = live(tx, id)? else { return Ok(()) };
    let (last_error, is_kept) = (entry.row.last_error.as_deref(), flags::is_kept(entry.row.flags));
    if flags::is_audited(entry.row.flags) && !is_kept {
        audit_takeover(tx, id, LeaseToken(entry.row.token + 1))?;
    }
    if is_kept || entry.fact.is_some() && entry.row.has_expired(tx.now) {
        return end_expired(tx, id, &live, last_error, true);
    }
    let errors = if entry.fact.is_some() {
        exhausted_errors(entry.row.max_attempts, last_error)
    } else {
        end_without_fact(tx, id, event_id, last_error)?
    };
    let results = handlers::history(tx, id)?.results();
    let end = live.exhausted_as()?;
    let ending = Ending { errors: Some(&errors), results: results.as_deref(), raise_token: true, ..Ending::new(end) };
    tx.count_ended(live.queue_id, end)?;
    if entry.fact.is_some() { end_or_keep(tx, id, &live, &ending) } else { end_live(tx, id, &live, &ending) }
}

impl ClaimableRow {
    fn has_expired(&self, now: i64) -> bool {
        self.expires_at.is_some_and(|expires| expires <= now)
    }

    /// Whether a worker may have it: it is neither exhausted nor past its expiry.
    fn is_deliverable(&self, now: i64) -> bool {
        self.attempts < self.max_attempts && !self.has_expired(now) && !flags::is_kept(self.flags)
    }
}
