//! Reading: entries, why one is not running, and counts.

use tidegate_core::{EntryId, Place, QueueState, Timestamp, Tsid, Why};

use crate::error::{Error, Result};
use crate::sql::Only;
use crate::sqlite::engine::row::Moment;
use crate::sqlite::engine::tx::{Tx, entry_id, moment};
use crate::sqlite::queues::{has_consumer, queue};
use crate::sqlite::statements::entries::{ended_view, live_view};
use crate::values::{Census, DeadLetters, EntryPhase, EntryView, Fact, LiveConsumer};

/// Entries by number.
pub(super) fn entries(tx: &Tx<'_>, ids: &[EntryId]) -> Result<Vec<Option<EntryView>>> {
    ids.iter().map(|id| Ok(find(tx, *id)?.map(|found| found.view))).collect()
}

/// An entry, and what `why` needs besides.
struct Found {
    view: EntryView,
    queue_id: i64,
    /// The place of a live entry.
    place: Option<Place>,
    due: Option<Moment>,
}

fn find(tx: &Tx<'_>, id: EntryId) -> Result<Option<Found>> {
    let sql = &tx.sql().entries;
    if let Some(row) = tx.row(&sql.live, [id.get()])? {
        let ((entry, (live, _)), _) = &row;
        let (queue_id, place, due) = (entry.queue_id, Place::from_code(live.place), live.due_at);
        return Ok(Some(Found { view: live_view(id, row)?, queue_id, place, due }));
    }
    let Some(row) = tx.row(&sql.ended, [id.get()])? else { return Ok(None) };
    let queue_id = row.0.0.queue_id;
    Ok(Some(Found { view: ended_view(id, row)?, queue_id, place: None, due: None }))
}

/// The event of an entry, live or ended.
pub(super) fn event_of(tx: &Tx<'_>, id: EntryId) -> Result<Option<Tsid>> {
    let event = tx.row(&tx.sql().entries.event_of, [id.get()])?.and_then(|Only(event)| event);
    Ok(event.map(Tsid::from_i64))
}

/// Dead letters of a queue, oldest entry first.
pub(super) fn dead_letters(tx: &Tx<'_>, query: &DeadLetters) -> Result<Vec<EntryView>> {
    let sql = &tx.sql().entries;
    let queue_id = queue(tx, &query.queue)?.id;
    let after = query.after.map_or(0, EntryId::get);
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let ids = match &query.event_type {
        None => tx.rows(&sql.dead_letters, (queue_id, after, limit))?,
        Some(event_type) => tx.rows(&sql.dead_letters_of_type, (queue_id, after, limit, event_type))?,
    };
    let mut letters = Vec::with_capacity(ids.len());
    for Only(id) in ids {
        letters.extend(find(tx, entry_id(id)?)?.map(|found| found.view));
    }
    Ok(letters)
}

/// The first reason that applies, in the order of [`Why`].
pub(super) fn why(tx: &Tx<'_>, id: EntryId) -> Result<Why> {
    let Some(found) = find(tx, id)? else { return Err(Error::no_entry(id)) };
    let now = moment(tx.now)?;
    match found.view.phase {
        EntryPhase::Ended { end, at, .. } => return Ok(Why::Ended { end, at }),
        EntryPhase::Leased { worker, until, .. } if until > now => return Ok(Why::Leased { worker, until }),
        EntryPhase::Leased { worker, until, .. } => return Ok(Why::Abandoned { worker, since: until }),
        EntryPhase::Aside { due } if due > now => return Ok(Why::SteppedAside { at: due }),
        EntryPhase::Waiting { .. } | EntryPhase::Parked | EntryPhase::Aside { .. } => {}
        EntryPhase::Kept { end } => return Ok(Why::KeepsPlace { end }),
    }
    let sql = &tx.sql().entries;
    if let Some(group) = found.view.group
        && !found.place.is_some_and(Place::is_head)
    {
        // What is aside and due comes before all parked ones.
        let rank = if found.place == Some(Place::Aside) { i32::MIN } else { found.view.rank };
        let turn = (found.queue_id, &group, id.get(), rank, tx.now);
        let ahead = tx.row(&sql.ahead_in_group, turn)?.map_or(0, |Only(ahead)| ahead);
        if ahead > 0 {
            return Ok(Why::BehindInGroup { group, ahead: ahead.unsigned_abs() });
        }
    }
    if queue(tx, &found.view.queue)?.state == QueueState::Paused {
        return Ok(Why::QueuePaused);
    }
    if let Some(at) = found.due.map(Timestamp::from).filter(|due| *due > now) {
        return Ok(Why::DueAt { at });
    }
    let Fact { event_type, tags, .. } = found.view.fact;
    if !has_consumer(tx, found.queue_id, &LiveConsumer::wants_for(&event_type, &tags))? {
        return Ok(Why::NoLiveConsumer { event_type, tags });
    }
    let rank = (found.queue_id, found.view.priority, id.get(), tx.now);
    let ahead = tx.row(&sql.ahead_in_queue, rank)?.map_or(0, |Only(ahead)| ahead);
    Ok(Why::Ready { ahead: ahead.unsigned_abs() })
}

/// Counts of everything.
pub(super) fn census(tx: &Tx<'_>) -> Result<Census> {
    Ok(tx.row(&tx.sql().entries.census, [])?.map(Census::from).unwrap_or_default())
}
