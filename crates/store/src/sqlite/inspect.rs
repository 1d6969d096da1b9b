//! Reading: entries, why one is not running, depths and counts.

use std::collections::HashMap;
use std::time::Duration;

use rusqlite::{OptionalExtension, Row};
use tidegate_core::{Depth, End, EntryId, LeaseToken, QueueConfig, QueueName, QueueState, Tsid, Why};

use super::errors::damaged;
use super::facts;
use super::tx::{Tx, entry_id, moment, no_queue, queue_state, read_queue_name, read_settings};
use super::unreadable::shown;
use crate::error::{Error, Result};
use crate::store::{Census, Consumer, DeadLetters, EntryPhase, EntryView, Fact};

/// How long ago a consumer was seen to count as alive, in microseconds.
const ALIVE: i64 = 60 * 1_000_000;

/// Entries by number.
pub(super) fn entries(tx: &Tx<'_>, ids: &[EntryId]) -> Result<Vec<Option<EntryView>>> {
    ids.iter().map(|id| Ok(find(tx, *id)?.map(|found| found.view))).collect()
}

/// A view, and what `why` needs besides.
struct Found {
    view: EntryView,
    queue_id: i64,
    /// 0 to 3 while it lives.
    place: i16,
    due: Option<i64>,
}

fn find(tx: &Tx<'_>, id: EntryId) -> Result<Option<Found>> {
    let sql = tx.sql();
    let mut live = tx.prepare(&sql.view_live)?;
    let mut rows = live.query([id.get()])?;
    if let Some(row) = rows.next()? {
        let (place, due) = (row.get(10)?, row.get(11)?);
        let phase = live_phase(row, place, due)?;
        return Ok(Some(Found { view: view(row, id, phase)?, queue_id: row.get(15)?, place, due }));
    }
    let mut ended = tx.prepare(&sql.view_ended)?;
    let mut rows = ended.query([id.get()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let phase = EntryPhase::Ended {
        end: End::from_code(row.get(10)?).ok_or_else(|| damaged("an entry has an unknown end"))?,
        at: moment(row.get(11)?)?,
        worker: row.get(14)?,
        superseded: row.get(12)?,
    };
    Ok(Some(Found { view: view(row, id, phase)?, queue_id: row.get(15)?, place: 0, due: None }))
}

fn live_phase(row: &Row<'_>, place: i16, due: Option<i64>) -> Result<EntryPhase> {
    if let Some(until) = row.get::<_, Option<i64>>(12)? {
        return Ok(EntryPhase::Leased {
            worker: row.get::<_, Option<String>>(14)?.unwrap_or_default(),
            since: moment(row.get::<_, Option<i64>>(13)?.unwrap_or(until))?,
            until: moment(until)?,
        });
    }
    Ok(match place {
        0 | 1 => EntryPhase::Waiting { due: due.map(moment).transpose()? },
        _ => EntryPhase::Parked,
    })
}

fn view(row: &Row<'_>, id: EntryId, phase: EntryPhase) -> Result<EntryView> {
    Ok(EntryView {
        id,
        event_id: Tsid::from_i64(row.get(0)?),
        queue: read_queue_name(row, 1, 17)?,
        generation: row.get(2)?,
        attempts: row.get(3)?,
        max_attempts: row.get(4)?,
        token: LeaseToken(row.get(5)?),
        priority: row.get(6)?,
        group: shown(row, 7)?,
        error: row.get(8)?,
        results: row.get(9)?,
        phase,
        updated_at: moment(row.get(16)?)?,
        fact: facts::show(row, 18)?,
    })
}

/// Dead letters of a queue, oldest entry first.
pub(super) fn dead_letters(tx: &Tx<'_>, query: &DeadLetters) -> Result<Vec<EntryView>> {
    let sql = tx.sql();
    let (queue_id, _) = queue(tx, &query.queue)?;
    let after = query.after.map_or(0, EntryId::get);
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let ids: Vec<i64> = match &query.event_type {
        None => tx
            .prepare(&sql.dead_letters)?
            .query_map((queue_id, after, limit), |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?,
        Some(event_type) => tx
            .prepare(&sql.dead_letters_of_type)?
            .query_map((queue_id, after, limit, event_type), |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?,
    };
    let mut letters = Vec::with_capacity(ids.len());
    for id in ids {
        letters.extend(find(tx, entry_id(id)?)?.map(|found| found.view));
    }
    Ok(letters)
}

fn queue(tx: &Tx<'_>, name: &QueueName) -> Result<(i64, QueueState)> {
    let found: Option<(i64, i16)> = tx
        .prepare(&tx.sql().queue_by_name)?
        .query_row((name.name(), name.client().map(Tsid::to_i64)), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (id, state) = found.ok_or_else(|| no_queue(name))?;
    Ok((id, queue_state(state)?))
}

/// The first reason that applies, in the order of [`Why`].
pub(super) fn why(tx: &Tx<'_>, id: EntryId) -> Result<Why> {
    let Some(found) = find(tx, id)? else { return Err(Error::no_entry(id)) };
    let now = moment(tx.now)?;
    match found.view.phase {
        EntryPhase::Ended { end, at, .. } => return Ok(Why::Ended { end, at }),
        EntryPhase::Leased { worker, until, .. } if until > now => return Ok(Why::Leased { worker, until }),
        EntryPhase::Leased { worker, until, .. } => return Ok(Why::Abandoned { worker, since: until }),
        EntryPhase::Waiting { .. } | EntryPhase::Parked => {}
    }
    let sql = tx.sql();
    if let Some(group) = found.view.group
        && found.place >= 2
    {
        let ahead: i64 =
            tx.prepare(&sql.ahead_in_group)?.query_row((found.queue_id, &group, id.get()), |row| row.get(0))?;
        if ahead > 0 {
            return Ok(Why::BehindInGroup { group, ahead: ahead.unsigned_abs() });
        }
    }
    if queue(tx, &found.view.queue)?.1 == QueueState::Paused {
        return Ok(Why::QueuePaused);
    }
    if let Some(due) = found.due.filter(|due| *due > tx.now) {
        return Ok(Why::DueAt { at: moment(due)? });
    }
    let Fact { event_type, tags, .. } = found.view.fact;
    if !has_consumer(tx, found.queue_id, &Consumer::wants_for(&event_type, &tags))? {
        return Ok(Why::NoLiveConsumer { event_type, tags });
    }
    let rank = (found.queue_id, found.view.priority, id.get(), tx.now);
    let ahead: i64 = tx.prepare(&sql.ahead_in_queue)?.query_row(rank, |row| row.get(0))?;
    Ok(Why::Ready { ahead: ahead.unsigned_abs() })
}

fn has_consumer(tx: &Tx<'_>, queue_id: i64, wanted: &[String]) -> Result<bool> {
    let mut statement = tx.prepare(&tx.sql().consumers_since)?;
    let mut rows = statement.query((queue_id, tx.now - ALIVE))?;
    while let Some(row) = rows.next()? {
        let Some(types) = row.get::<_, Option<String>>(0)? else { return Ok(true) };
        let types: Vec<String> = serde_json::from_str(&types)
            .map_err(|error| damaged("a consumer's types cannot be read").with_source(error))?;
        if types.iter().any(|of| wanted.contains(of)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a queue holds.
pub(super) fn depth(tx: &Tx<'_>, name: &QueueName) -> Result<Depth> {
    let (queue_id, _) = queue(tx, name)?;
    let depth = tx.prepare(&tx.sql().depth)?.query_row((queue_id, tx.now), |row| {
        let count = |at| row.get::<_, i64>(at).map(i64::unsigned_abs);
        Ok(Depth { ready: count(0)?, delayed: count(1)?, parked: count(2)?, leased: count(3)? })
    })?;
    Ok(depth)
}

/// What each queue holds.
pub(super) fn depths(tx: &Tx<'_>) -> Result<Vec<(QueueName, Depth)>> {
    let mut statement = tx.prepare(&tx.sql().depths)?;
    let mut rows = statement.query([tx.now])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let count = |at| row.get::<_, Option<i64>>(at).map(|count| count.unwrap_or(0).unsigned_abs());
        let depth = Depth { ready: count(0)?, delayed: count(1)?, parked: count(2)?, leased: count(3)? };
        found.push((read_queue_name(row, 4, 5)?, depth));
    }
    Ok(found)
}

/// Everything counted.
pub(super) fn census(tx: &Tx<'_>) -> Result<Census> {
    let census = tx.prepare(&tx.sql().census)?.query_row([], |row| {
        let count = |at| row.get::<_, i64>(at).map(i64::unsigned_abs);
        Ok(Census { events: count(0)?, waiting: count(1)?, leased: count(2)?, ended: count(3)? })
    })?;
    Ok(census)
}

/// For how long the first entry of each queue could have been claimed.
pub(super) fn oldest(tx: &Tx<'_>) -> Result<Vec<(QueueName, Option<Duration>)>> {
    let sql = tx.sql();
    let mut since: HashMap<i64, i64> = HashMap::new();
    for statement in [&sql.oldest_fresh, &sql.oldest_timed] {
        let mut statement = tx.prepare(statement)?;
        let mut rows = statement.query([tx.now])?;
        while let Some(row) = rows.next()? {
            if let (queue, Some(at)) = (row.get(0)?, row.get::<_, Option<i64>>(1)?) {
                let first = since.entry(queue).or_insert(at);
                *first = at.min(*first);
            }
        }
    }
    let mut queues = Vec::new();
    let mut statement = tx.prepare(&sql.queue_ids)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let first = since.get(&row.get(0)?);
        let age = first.map(|at| Duration::from_micros(u64::try_from(tx.now - at).unwrap_or(0)));
        queues.push((read_queue_name(row, 1, 2)?, age));
    }
    Ok(queues)
}

/// One queue.
pub(super) fn queue_config(tx: &mut Tx<'_>, name: &QueueName) -> Result<Option<QueueConfig>> {
    Ok(tx.find_queue(name)?.map(|queue| {
        let known = &tx.known.queues[queue];
        QueueConfig {
            name: known.name.clone(),
            state: known.state,
            depth_limit: known.depth_limit.map(i64::unsigned_abs),
            settings: known.settings.clone(),
        }
    }))
}

/// All queues.
pub(super) fn queues(tx: &Tx<'_>) -> Result<Vec<QueueConfig>> {
    let mut statement = tx.prepare(&tx.sql().queues)?;
    let mut rows = statement.query([])?;
    let mut queues = Vec::new();
    while let Some(row) = rows.next()? {
        queues.push(QueueConfig {
            name: read_queue_name(row, 0, 4)?,
            state: queue_state(row.get(1)?)?,
            depth_limit: row.get::<_, Option<i64>>(2)?.map(i64::unsigned_abs),
            settings: read_settings(row.get(3)?)?,
        });
    }
    Ok(queues)
}
