//! Tag rows: where a tagged entry waits, by each of its tags. Entries without tags have none and cost nothing here.

use std::collections::BTreeSet;

use tidegate_core::{Place, QueueName, QueueState};

use crate::error::Result;
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::statements::tags::PlaceRow;

/// Where a tagged entry waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Ready = 0,
    Timed = 1,
    Parked = 2,
    Leased = 3,
}

/// The tags of a fact.
pub(super) fn of_fact(tx: &Tx<'_>, event_id: i64) -> Result<Vec<String>> {
    let tags = tx.row(&tx.sql().tags.of_fact, [event_id])?;
    Ok(crate::sqlite::engine::row::tags(tags.and_then(|tags| tags.0).map(|text| text.0)))
}

/// Tags as they are to be stored.
pub(super) fn write(tags: &[String]) -> Option<String> {
    (!tags.is_empty()).then(|| tags.join(","))
}

/// Writes the tag rows of an entry that is live again or whose fact was replaced, at its present place.
pub(super) fn put(tx: &Tx<'_>, id: i64, tags: &[String]) -> Result<()> {
    let Some(place) = tx.row(&tx.sql().tags.place, [id])? else { return Ok(()) };
    put_at(tx, id, (place.queue_id, place.client_id), place.priority, place.rank(id), tags)
}

/// Writes the tag rows of an entry in this state and at this rank.
pub(super) fn put_at(
    tx: &Tx<'_>,
    id: i64,
    (queue_id, client): (i64, Option<i64>),
    priority: i16,
    (state, rank): (State, i64),
    tags: &[String],
) -> Result<()> {
    let mut statement = tx.prepare(&tx.sql().tags.put)?;
    for tag in tags {
        statement.execute((tag, id, queue_id, state as i64, priority, rank, client))?;
    }
    Ok(())
}

/// Moves the tag rows of a live entry to its present place.
pub(super) fn follow(tx: &Tx<'_>, id: i64) -> Result<()> {
    let Some(place) = tx.row(&tx.sql().tags.place, [id])? else { return Ok(()) };
    let (state, rank) = place.rank(id);
    move_to(tx, id, &of_fact(tx, place.event_id)?, state, rank)
}

/// Moves tag rows to this state and rank.
pub(super) fn move_to(tx: &Tx<'_>, id: i64, tags: &[String], state: State, rank: i64) -> Result<()> {
    let mut statement = tx.prepare(&tx.sql().tags.follow)?;
    for tag in tags {
        statement.execute((tag, id, state as i64, rank))?;
    }
    Ok(())
}

/// Removes the tag rows of a live entry.
pub(super) fn remove(tx: &Tx<'_>, id: i64, tags: &[String]) -> Result<()> {
    let mut statement = tx.prepare(&tx.sql().tags.remove)?;
    for tag in tags {
        statement.execute((tag, id))?;
    }
    Ok(())
}

/// Moves the tag rows of an entry that ended to the log.
pub(super) fn end(tx: &Tx<'_>, id: i64, event_id: i64, queue_id: i64, status: i16) -> Result<()> {
    let tags = of_fact(tx, event_id)?;
    remove(tx, id, &tags)?;
    let client = tx.row(&tx.sql().tags.client_of_queue, [queue_id])?.and_then(|client| client.0);
    let mut statement = tx.prepare(&tx.sql().tags.put_ended)?;
    for tag in &tags {
        statement.execute((tag, status, id, client))?;
    }
    Ok(())
}

/// Removes the tag rows of an ended entry from the log.
pub(super) fn remove_ended(tx: &Tx<'_>, id: i64, tags: &[String], status: i16) -> Result<()> {
    let mut statement = tx.prepare(&tx.sql().tags.remove_ended)?;
    for tag in tags {
        statement.execute((tag, status, id))?;
    }
    Ok(())
}

/// Of these tags, those under which something can be claimed now.
pub(super) fn claimable(tx: &mut Tx<'_>, queue: &QueueName, mut tags: Vec<String>) -> Result<Vec<String>> {
    let queue = tx.queue(queue)?;
    let known = &tx.known.queues[queue];
    if known.state == QueueState::Paused {
        return Ok(Vec::new());
    }
    let priorities: BTreeSet<i16> = known.lanes.list.iter().map(|lane| lane.priority).collect();
    let mut probe = tx.prepare(&tx.sql().tags.claimable)?;
    let mut found = Vec::new();
    let states = [(State::Ready, i64::MAX), (State::Timed, tx.now), (State::Leased, tx.now)];
    for tag in tags.drain(..) {
        for (priority, (state, upto)) in priorities.iter().flat_map(|priority| states.map(|state| (priority, state))) {
            if probe.exists((known.id, &tag, state as i64, priority, upto))? {
                found.push(tag);
                break;
            }
        }
    }
    Ok(found)
}

impl PlaceRow {
    /// The state and rank of the entry's tag rows.
    fn rank(&self, id: i64) -> (State, i64) {
        match (self.lease_until, Place::from_code(self.place)) {
            (Some(until), _) => (State::Leased, until),
            (None, Some(Place::Fresh)) => (State::Ready, id),
            (None, Some(Place::Timed)) => (State::Timed, self.due_at.unwrap_or(0)),
            (None, _) => (State::Parked, id),
        }
    }
}
