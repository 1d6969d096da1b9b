//! Regular upkeep: heartbeat and outages, arrivals, expired keys, queues and consumers.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::Row;
use tidegate_core::{End, QueueConfig, QueueName, QueueSettings, QueueState, Tsid};

use super::claim::end_without_fact;
use super::settle::{Ending, end_live, live, promote};
use super::tags;
use super::tx::{Tx, no_queue};
use super::unreadable::Unreadable;
use crate::error::Result;
use crate::store::{Batch, Consumer, QueueChange, Upkeep};

/// Arrivals sorted in by one transaction.
const ARRIVALS: i64 = 1000;
/// Keys forgotten by one transaction.
pub(super) const KEYS: i64 = 1000;
/// How long a consumer is remembered, in microseconds.
const CONSUMERS_KEPT: i64 = 24 * 3600 * 1_000_000;

/// One round of upkeep.
pub(super) fn maintain(tx: &mut Tx<'_>) -> Result<Upkeep> {
    let outage = beat(tx)?;
    super::lanes::tend(tx)?;
    let promoted = sort_in(tx)?;
    let keys_expired = forget_keys(tx)?;
    tx.prepare(&tx.sql().forget_consumers)?.execute([tx.now - CONSUMERS_KEPT])?;
    Ok(Upkeep { promoted, keys_expired, outage, groups_mended: 0 })
}

/// Forgets some expired keys; as many as [`KEYS`] when there are more.
pub(super) fn forget_keys(tx: &mut Tx<'_>) -> Result<u64> {
    Ok(tx.prepare(&tx.sql().forget_keys)?.execute((tx.now, KEYS))? as u64)
}

/// Makes a process the one that does a task, or keeps it so.
pub(super) fn elect(tx: &mut Tx<'_>, task: &str, holder: &str, lease: Duration) -> Result<bool> {
    let until = super::tx::later(tx.now, lease)?;
    Ok(tx.prepare(&tx.sql().elect)?.execute((task, holder, until, tx.now))? > 0)
}

/// Before a claim takes anything over: if nobody kept the heartbeat, no lease ran out meanwhile.
pub(super) fn survive_outage(tx: &mut Tx<'_>) -> Result<()> {
    let limit = outage_after(tx);
    if !tx.shared.time.is_manual() && tx.now - tx.known.heartbeat > limit {
        let last = tx.number(&tx.sql().heartbeat)?;
        tx.known.heartbeat = last;
        if tx.now - last > limit {
            beat(tx)?;
        }
    }
    Ok(())
}

/// Writes the heartbeat. A long gap since the last one is an outage: all leases held since are moved by it.
pub(super) fn beat(tx: &mut Tx<'_>) -> Result<Option<Duration>> {
    if tx.shared.time.is_manual() {
        return Ok(None);
    }
    let sql = tx.sql();
    let last = tx.number(&sql.heartbeat)?;
    // Another process may have seen a later moment than this one.
    tx.shared.time.at_least(last);
    let gap = tx.now - last;
    let outage = gap > outage_after(tx);
    if outage {
        let moved = tx.prepare(&sql.move_leases)?.execute((last, gap))?;
        tx.prepare(&sql.move_tag_leases)?.execute((last, gap))?;
        tracing::warn!(gap_ms = gap / 1000, moved, "the store was down or blocked: leases were moved by the gap");
    }
    tx.prepare(&sql.beat)?.execute([tx.now.max(last)])?;
    tx.known.heartbeat = tx.now.max(last);
    Ok(outage.then(|| Duration::from_micros(gap.unsigned_abs())))
}

fn outage_after(tx: &Tx<'_>) -> i64 {
    i64::try_from(tx.shared.options.outage_after.as_micros()).unwrap_or(i64::MAX)
}

/// An entry that a caller's own transaction wrote.
struct Arrival {
    id: i64,
    queue_id: i64,
    lane: i64,
    due: Option<i64>,
    group: Option<String>,
    /// `None` where its fact is missing.
    event_type: Option<String>,
    flags: Option<i64>,
}

/// Gives arrivals their lane and place; answers how many entries became claimable.
pub(super) fn sort_in(tx: &mut Tx<'_>) -> Result<u64> {
    let sql = tx.sql();
    if !tx.prepare(&sql.any_arrived)?.exists([])? {
        return Ok(0);
    }
    let (arrivals, unreadable) = arrivals(tx)?;
    for entry in unreadable {
        entry.set_aside(tx)?;
    }
    let mut groups = BTreeSet::new();
    let mut claimable = 0;
    let mut statement = tx.prepare(&sql.sort_in)?;
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
        if let Some(group) = arrival.group {
            statement.execute((arrival.id, lane, 2, arrival.due))?;
            groups.insert((arrival.queue_id, group));
        } else {
            let due = arrival.due.unwrap_or(tx.now).max(tx.now);
            statement.execute((arrival.id, lane, 1, due))?;
            claimable += 1;
            tx.wake(queue);
        }
        if tags::is_tagged(arrival.flags) {
            tags::follow(tx, arrival.id)?;
        }
    }
    for (queue_id, group) in groups {
        claimable += u64::from(promote(tx, queue_id, &group)?);
    }
    Ok(claimable)
}

/// What has arrived, and what of it cannot be read.
fn arrivals(tx: &Tx<'_>) -> Result<(Vec<Arrival>, Vec<Unreadable>)> {
    let mut statement = tx.prepare(&tx.sql().arrived)?;
    let mut rows = statement.query([ARRIVALS])?;
    let (mut arrivals, mut unreadable) = (Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        match arrival(row) {
            Ok(arrival) => arrivals.push(arrival),
            Err(error) => unreadable.push(Unreadable::new(row.get(0)?, error.into())?),
        }
    }
    Ok((arrivals, unreadable))
}

fn arrival(row: &Row<'_>) -> rusqlite::Result<Arrival> {
    Ok(Arrival {
        id: row.get(0)?,
        queue_id: row.get(1)?,
        lane: row.get(2)?,
        due: row.get(3)?,
        group: row.get(4)?,
        event_type: row.get(5)?,
        flags: row.get(6)?,
    })
}

/// Ends an arrival whose fact is missing, and with it the lane where it would wait.
fn end_unreadable(tx: &mut Tx<'_>, id: i64) -> Result<()> {
    let Some(live) = live(tx, id)? else { return Ok(()) };
    let errors = end_without_fact(tx, id, live.event_id, None)?;
    let end = End::CompletedWithErrors;
    end_live(tx, id, &live, &Ending { end, worker: None, errors: Some(&errors), results: None, raise_token: false })
}

/// Creates a queue, or changes what the change names. A change that changes nothing writes nothing.
pub(super) fn put_queue(tx: &mut Tx<'_>, name: &QueueName, change: QueueChange) -> Result<QueueConfig> {
    let sql = tx.sql();
    let found = tx.find_queue(name)?;
    let mut config = QueueConfig {
        name: name.clone(),
        state: QueueState::default(),
        depth_limit: None,
        settings: QueueSettings::default(),
    };
    if let Some(queue) = found {
        let known = &tx.known.queues[queue];
        config.state = known.state;
        config.depth_limit = known.depth_limit.map(i64::unsigned_abs);
        config.settings = known.settings.clone();
    }
    let (before, resumes) = (config.clone(), change.state == Some(QueueState::Active));
    change.apply(&mut config)?;
    let limit = config.depth_limit.and_then(|limit| i64::try_from(limit).ok());
    let (state, text) = (config.state, settings_text(&config.settings)?);
    match found {
        Some(queue) if config == before => {
            if resumes {
                tx.wake(queue);
            }
            return Ok(config);
        }
        Some(queue) => {
            tx.prepare(&sql.update_queue)?.execute((tx.known.queues[queue].id, state.code(), limit, text))?;
            let known = &mut tx.known.queues[queue];
            (known.state, known.depth_limit, known.settings) = (state, limit, config.settings.clone());
            if resumes {
                tx.wake(queue);
            }
        }
        None => {
            let client = name.client().map(Tsid::to_i64);
            tx.prepare(&sql.insert_queue)?.execute((name.name(), state.code(), limit, tx.now, text, client))?;
        }
    }
    tx.known.catalogue = tx.catalogue()?;
    Ok(config)
}

/// Settings as they are stored; none at all where everything is at its default.
fn settings_text(settings: &QueueSettings) -> Result<Option<String>> {
    crate::work::settings_text(settings)
}

/// Remembers that a consumer is alive.
pub(super) fn consumers_seen(tx: &mut Tx<'_>, consumers: &[Consumer]) -> Result<Batch<()>> {
    let mut answers = Vec::with_capacity(consumers.len());
    for consumer in consumers {
        if let Err(error) = consumer.check() {
            answers.push(Err(error));
            continue;
        }
        let Some(queue) = tx.find_queue(&consumer.queue)? else {
            answers.push(Err(no_queue(&consumer.queue)));
            continue;
        };
        let queue_id = tx.known.queues[queue].id;
        let types = consumer.wants().map(|wants| serde_json::Value::from(wants).to_string());
        tx.prepare(&tx.sql().consumer_seen)?.execute((&consumer.worker, queue_id, types, tx.now))?;
        answers.push(Ok(()));
    }
    Ok(answers)
}
