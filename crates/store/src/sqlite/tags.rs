//! Tags: where a tagged entry waits, by each of its tags. Entries without tags are never looked at here.

use std::collections::BTreeSet;

use rusqlite::OptionalExtension;
use tidegate_core::{QueueName, QueueState};

use super::tx::Tx;
use super::unreadable::shown;
use crate::error::Result;

/// The bits of `flags`.
pub(super) const TAGGED: i64 = 1;
pub(super) const AUDITED: i64 = 2;

/// Where a tagged entry waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Ready = 0,
    Timed = 1,
    Parked = 2,
    Leased = 3,
}

/// Whether an entry has tags.
pub(super) fn is_tagged(flags: Option<i64>) -> bool {
    flags.is_some_and(|flags| flags & TAGGED != 0)
}

/// Whether the audit knows of a claim of an entry.
pub(super) fn is_audited(flags: Option<i64>) -> bool {
    flags.is_some_and(|flags| flags & AUDITED != 0)
}

/// The tags of a fact.
pub(super) fn of_fact(tx: &Tx<'_>, event_id: i64) -> Result<Vec<String>> {
    let text = tx.prepare(&tx.sql().tags_of_fact)?.query_row([event_id], |row| shown(row, 0)).optional()?.flatten();
    Ok(read(text))
}

/// Tags as they are stored.
pub(super) fn read(text: Option<String>) -> Vec<String> {
    text.map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default()
}

/// Tags as they shall be stored.
pub(super) fn write(tags: &[String]) -> Option<String> {
    (!tags.is_empty()).then(|| tags.join(","))
}

/// Writes the tags of an entry that is live again or whose fact was replaced, wherever it waits.
pub(super) fn put(tx: &Tx<'_>, id: i64, tags: &[String]) -> Result<()> {
    let Some(place) = Place::of(tx, id)? else { return Ok(()) };
    put_at(tx, id, &place, tags)
}

fn put_at(tx: &Tx<'_>, id: i64, place: &Place, tags: &[String]) -> Result<()> {
    let (state, rank) = place.rank(id);
    let mut statement = tx.prepare(&tx.sql().put_tag)?;
    for tag in tags {
        statement.execute((tag, id, place.queue_id, state as i64, place.priority, rank, place.client))?;
    }
    Ok(())
}

/// Writes the tags of a new entry.
pub(super) fn put_new(
    tx: &Tx<'_>,
    id: i64,
    (queue_id, client): (i64, Option<i64>),
    priority: i16,
    (state, rank): (State, i64),
    tags: &[String],
) -> Result<()> {
    let mut statement = tx.prepare(&tx.sql().put_tag)?;
    for tag in tags {
        statement.execute((tag, id, queue_id, state as i64, priority, rank, client))?;
    }
    Ok(())
}

/// Moves the tags of a live entry to where it waits now.
pub(super) fn follow(tx: &Tx<'_>, id: i64) -> Result<()> {
    let Some(place) = Place::of(tx, id)? else { return Ok(()) };
    let (state, rank) = place.rank(id);
    move_to(tx, id, &of_fact(tx, place.event_id)?, state, rank)
}

/// Moves tags.
pub(super) fn move_to(tx: &Tx<'_>, id: i64, tags: &[String], state: State, rank: i64) -> Result<()> {
    let mut statement = tx.prepare(&tx.sql().move_tag)?;
    for tag in tags {
        statement.execute((tag, id, state as i64, rank))?;
    }
    Ok(())
}

/// Removes the tags of a live entry.
pub(super) fn remove(tx: &Tx<'_>, id: i64, tags: &[String]) -> Result<()> {
    let mut statement = tx.prepare(&tx.sql().delete_tag)?;
    for tag in tags {
        statement.execute((tag, id))?;
    }
    Ok(())
}

/// An entry ended: its tags go to the log.
pub(super) fn end(tx: &Tx<'_>, id: i64, event_id: i64, queue_id: i64, status: i16) -> Result<()> {
    let tags = of_fact(tx, event_id)?;
    remove(tx, id, &tags)?;
    let client: Option<i64> =
        tx.prepare(&tx.sql().client_of_queue)?.query_row([queue_id], |row| row.get(0)).optional()?.flatten();
    let mut statement = tx.prepare(&tx.sql().put_log_tag)?;
    for tag in &tags {
        statement.execute((tag, status, id, client))?;
    }
    Ok(())
}

/// Takes the tags of an ended entry out of the log.
pub(super) fn remove_ended(tx: &Tx<'_>, id: i64, tags: &[String], status: i16) -> Result<()> {
    let mut statement = tx.prepare(&tx.sql().delete_log_tag)?;
    for tag in tags {
        statement.execute((tag, status, id))?;
    }
    Ok(())
}

/// Those of these tags under which something can be claimed now.
pub(super) fn claimable(tx: &mut Tx<'_>, queue: &QueueName, mut tags: Vec<String>) -> Result<Vec<String>> {
    let queue = tx.queue(queue)?;
    let known = &tx.known.queues[queue];
    if known.state == QueueState::Paused {
        return Ok(Vec::new());
    }
    let priorities: BTreeSet<i16> = known.lanes.list.iter().map(|lane| lane.priority).collect();
    let mut probe = tx.prepare(&tx.sql().probe_tag)?;
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

struct Place {
    event_id: i64,
    queue_id: i64,
    place: i16,
    due: Option<i64>,
    lease_until: Option<i64>,
    priority: i16,
    client: Option<i64>,
}

impl Place {
    fn of(tx: &Tx<'_>, id: i64) -> Result<Option<Self>> {
        let found = tx.prepare(&tx.sql().where_is)?.query_row([id], |row| {
            Ok(Self {
                event_id: row.get(0)?,
                queue_id: row.get(1)?,
                place: row.get(2)?,
                due: row.get(3)?,
                lease_until: row.get(4)?,
                priority: row.get(5)?,
                client: row.get(6)?,
            })
        });
        Ok(found.optional()?)
    }

    fn rank(&self, id: i64) -> (State, i64) {
        match (self.lease_until, self.place) {
            (Some(until), _) => (State::Leased, until),
            (None, 0) => (State::Ready, id),
            (None, 1) => (State::Timed, self.due.unwrap_or(0)),
            (None, _) => (State::Parked, id),
        }
    }
}

/// Reads a retry policy back. One that cannot be read is as good as none: the queue's applies.
pub(super) fn read_retry(text: Option<String>) -> Option<tidegate_core::RetryPolicy> {
    text.and_then(|text| serde_json::from_str(&text).ok())
}
