//! Arrivals: entries of callers' own transactions, sorted in after the commit.

use std::collections::BTreeSet;

use tidegate_core::{End, Place};

use crate::error::Result;
use crate::sql::FromRow as _;
use crate::sqlite::end::{Ending, end_live};
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::flags;
use crate::sqlite::found::live;
use crate::sqlite::groups::promote_by_rank;
use crate::sqlite::statements::groups::Arrival;
use crate::sqlite::tags;
use crate::sqlite::unreadable::{Unreadable, end_without_fact};

/// The most arrivals that one transaction sorts in.
const ARRIVALS: i64 = 1000;

/// Sorts arrivals into their lanes and places, and returns how many entries became claimable.
pub(super) fn sort_in(tx: &mut Tx<'_>) -> Result<u64> {
    let sql = tx.sql();
    if !tx.prepare(&sql.groups.any_arrivals)?.exists([])? {
        return Ok(0);
    }
    let (arrivals, unreadable) = arrivals(tx)?;
    for entry in unreadable {
        entry.end(tx)?;
    }
    let mut groups = BTreeSet::new();
    let mut claimable = 0;
    let mut statement = tx.prepare(&sql.groups.sort_in)?;
    for arrival in arrivals {
        let queue = tx.queue_by_id(arrival.queue_id)?;
        let lane = if arrival.lane < 0 {
            let Some(event_type) = &arrival.event_type else {
                end_unreadable(tx, arrival.id)?;
                continue;
            };
            let priority = i16::try_from(-1000 - arrival.lane).unwrap_or_default();
            tx.lane_of_arrival(queue, event_type, priority)?
        } else {
            arrival.lane
        };
        if let Some(group) = arrival.group_key {
            statement.execute((arrival.id, lane, Place::Parked.code(), arrival.due_at))?;
            groups.insert((arrival.queue_id, group));
        } else {
            let due = arrival.due_at.unwrap_or(tx.now).max(tx.now);
            statement.execute((arrival.id, lane, Place::Timed.code(), due))?;
            claimable += 1;
            tx.wake(queue);
        }
        if flags::is_tagged(arrival.flags) {
            tags::follow(tx, arrival.id)?;
        }
    }
    for (queue_id, group) in groups {
        claimable += u64::from(promote_by_rank(tx, queue_id, &group)?);
    }
    Ok(claimable)
}

/// The arrivals that can be read, and those that cannot.
fn arrivals(tx: &Tx<'_>) -> Result<(Vec<Arrival>, Vec<Unreadable>)> {
    let mut statement = tx.prepare(&tx.sql().groups.arrivals)?;
    let mut rows = statement.query([ARRIVALS])?;
    let (mut arrivals, mut unreadable) = (Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        match Arrival::read(row, 0) {
            Ok(arrival) => arrivals.push(arrival),
            Err(error) => unreadable.push(Unreadable::new(row.get("id")?, error)?),
        }
    }
    Ok((arrivals, unreadable))
}

/// Ends an arrival whose fact is missing: without its type there is no lane for it.
fn end_unreadable(tx: &mut Tx<'_>, id: i64) -> Result<()> {
    let Some(live) = live(tx, id)? else { return Ok(()) };
    let errors = end_without_fact(tx, id, live.event_id, None)?;
    end_live(tx, id, &live, &Ending { errors: Some(&errors), ..Ending::new(End::CompletedWithErrors) })
}
