//! Removing lanes that are empty and that nobody used for long, and finding lanes again for entries whose lane is gone. Under
//! SQLite's write lock everybody who puts an entry into a lane knows which lanes there are.

use std::collections::{BTreeMap, HashSet};

use rusqlite::OptionalExtension;

use super::tx::Tx;
use crate::error::Result;

/// How often lanes are looked after, in microseconds.
const EVERY: i64 = 15 * 1_000_000;
/// A lane that is empty and was not used for this long is removed.
const IDLE: i64 = 600 * 1_000_000;
/// How often a use is written down.
const NOTE_EVERY: i64 = 120 * 1_000_000;
/// Lanes that one round removes at most.
const AT_ONCE: i64 = 256;
/// With more parked entries than this, a queue's lanes are left as they are: looking for their lanes would cost too much.
const MAX_PARKED: usize = 10_000;

/// One round, if it is time for one.
pub(super) fn tend(tx: &mut Tx<'_>) -> Result<()> {
    // A clock that was set back is no reason to wait for it.
    if (0..EVERY).contains(&(tx.now - tx.known.tended)) {
        return Ok(());
    }
    tx.known.tended = tx.now;
    let sql = tx.sql();
    for lane in std::mem::take(&mut tx.known.used) {
        tx.prepare(&sql.note_lane)?.execute((lane, tx.now, tx.now - NOTE_EVERY))?;
    }
    let strays = rescue(tx)?;
    let idle = idle(tx)?;
    for lane in &idle {
        tx.prepare(&sql.remove_lane)?.execute([lane])?;
    }
    tx.prepare(&sql.forget_lanes)?.execute([AT_ONCE])?;
    if strays || !idle.is_empty() {
        tx.known.forget();
        tx.known.catalogue = tx.catalogue()?;
    }
    Ok(())
}

/// Lanes that hold nothing, neither to claim nor parked.
fn idle(tx: &Tx<'_>) -> Result<Vec<i64>> {
    let sql = tx.sql();
    let mut by_queue: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    let mut statement = tx.prepare(&sql.idle_lanes)?;
    let mut rows = statement.query((tx.now - IDLE, AT_ONCE))?;
    while let Some(row) = rows.next()? {
        by_queue.entry(row.get(1)?).or_default().push(row.get(0)?);
    }
    let mut free = Vec::new();
    for (queue, lanes) in by_queue {
        let parked = tx
            .prepare(&sql.parked_lanes)?
            .query_map((queue, MAX_PARKED as i64 + 1), |row| row.get(0))?
            .collect::<rusqlite::Result<Vec<i64>>>()?;
        if parked.len() <= MAX_PARKED {
            let held: HashSet<i64> = parked.into_iter().collect();
            free.extend(lanes.into_iter().filter(|lane| !held.contains(lane)));
        }
    }
    Ok(free)
}

/// Makes arrivals of entries in lanes that are gone, as an older program may leave them; whether there were any.
fn rescue(tx: &Tx<'_>) -> Result<bool> {
    let sql = tx.sql();
    let mut rescued = 0;
    for (find, rescue) in [(&sql.fresh_strays, &sql.rescue_fresh), (&sql.timed_strays, &sql.rescue_timed)] {
        let strays = tx
            .prepare(find)?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
        for (lane, priority) in strays {
            rescued += tx.prepare(rescue)?.execute((lane, -1000 - priority))?;
        }
    }
    if rescued > 0 {
        tracing::info!(rescued, "entries in lanes that were removed are sorted in again");
    }
    Ok(rescued > 0)
}

/// Gives an entry that lives again a lane, if the one it had is gone.
pub(super) fn find_again(tx: &mut Tx<'_>, id: i64, queue_id: i64, event_id: i64) -> Result<()> {
    let sql = tx.sql();
    let lane: Option<(i64, i16)> =
        tx.prepare(&sql.lane_of_entry)?.query_row([id], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((state, priority)) = lane else { return Ok(()) };
    if state == 0 {
        return Ok(());
    }
    let event_type: Option<String> = tx.prepare(&sql.fact_body)?.query_row([event_id], |row| row.get(0)).optional()?;
    let queue = tx.queue_by_id(queue_id)?;
    let lane = tx.lane_of_arrival(queue, event_type.as_deref().unwrap_or_default(), priority)?;
    tx.prepare(&sql.set_lane)?.execute((id, lane))?;
    Ok(())
}
