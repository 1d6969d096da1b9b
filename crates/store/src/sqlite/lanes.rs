//! Removes lanes that are empty and unused, and finds lanes for entries whose lane is gone. This needs no further
//! synchronisation: under SQLite's write lock, every writer that puts an entry into a lane knows which lanes there are.

use std::collections::{BTreeMap, HashSet};

use crate::error::Result;
use crate::sql::Only;
use crate::sqlite::engine::row::Shown;
use crate::sqlite::engine::tx::Tx;

/// How often the lanes are maintained, in microseconds.
const EVERY: i64 = 15 * 1_000_000;
/// An empty lane that was not used for this long is removed, in microseconds.
const IDLE: i64 = 600 * 1_000_000;
/// How often the last use of a lane is written, in microseconds.
const NOTE_EVERY: i64 = 120 * 1_000_000;
/// The most lanes that one round removes.
const AT_ONCE: i64 = 256;
/// A queue with more parked entries than this keeps its lanes: finding the lanes of those entries would cost too much.
const MAX_PARKED: usize = 10_000;

/// Does one round of lane maintenance, if it is time for one.
pub(super) fn tend(tx: &mut Tx<'_>) -> Result<()> {
    // If the clock was set back, do not wait until it has caught up.
    if (0..EVERY).contains(&(tx.now - tx.known.tended)) {
        return Ok(());
    }
    tx.known.tended = tx.now;
    let sql = tx.sql();
    for lane in std::mem::take(&mut tx.known.used) {
        tx.execute(&sql.lanes.note_used, (lane, tx.now, tx.now - NOTE_EVERY))?;
    }
    let strays = rescue(tx)?;
    let idle = idle(tx)?;
    for lane in &idle {
        tx.execute(&sql.lanes.remove, [lane])?;
    }
    tx.execute(&sql.lanes.forget, [AT_ONCE])?;
    if strays || !idle.is_empty() {
        tx.known.forget();
        tx.known.catalogue = tx.catalogue()?;
    }
    Ok(())
}

/// Unused lanes that hold no entry, neither claimable nor parked.
fn idle(tx: &Tx<'_>) -> Result<Vec<i64>> {
    let sql = tx.sql();
    let mut by_queue: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for lane in tx.rows(&sql.lanes.idle, (tx.now - IDLE, AT_ONCE))? {
        by_queue.entry(lane.queue_id).or_default().push(lane.id);
    }
    let mut free = Vec::new();
    for (queue, lanes) in by_queue {
        let parked = tx.rows(&sql.lanes.parked, (queue, MAX_PARKED as i64 + 1))?;
        if parked.len() <= MAX_PARKED {
            let held: HashSet<i64> = parked.into_iter().map(|Only(lane)| lane).collect();
            free.extend(lanes.into_iter().filter(|lane| !held.contains(lane)));
        }
    }
    Ok(free)
}

/// Turns entries in removed lanes, which an older program may leave there, into arrivals. Returns whether it found any.
fn rescue(tx: &Tx<'_>) -> Result<bool> {
    let sql = tx.sql();
    let mut rescued = 0;
    for (find, rescue) in
        [(&sql.lanes.fresh_strays, &sql.lanes.rescue_fresh), (&sql.lanes.timed_strays, &sql.lanes.rescue_timed)]
    {
        for stray in tx.rows(find, [])? {
            rescued += tx.execute(rescue, (stray.id, -1000 - stray.priority))?;
        }
    }
    if rescued > 0 {
        tracing::info!(rescued, "found entries in removed lanes, sorting them in again");
    }
    Ok(rescued > 0)
}

/// Gives an entry that is live again a lane, if the one it had is gone.
pub(super) fn find_again(tx: &mut Tx<'_>, id: i64, queue_id: i64, event_id: i64) -> Result<()> {
    let sql = tx.sql();
    let Some(lane) = tx.row(&sql.lanes.of_entry, [id])? else { return Ok(()) };
    if lane.state == 0 {
        return Ok(());
    }
    let lane_type = match lane.was_type {
        Some(Shown(lane_type)) => Some(lane_type),
        None => tx.row(&sql.lanes.type_of, [event_id])?.map(|Only(event_type)| event_type),
    };
    let queue = tx.queue_by_id(queue_id)?;
    let lane = tx.lane_of_arrival(queue, lane_type.as_deref().unwrap_or_default(), lane.priority)?;
    tx.execute(&sql.lanes.set, (id, lane))?;
    Ok(())
}
