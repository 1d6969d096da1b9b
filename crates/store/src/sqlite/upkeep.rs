//! Regular upkeep: heartbeat and outages, arrivals, expired keys, queues and consumers.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_core::{QueueConfig, QueueName, QueueSettings, QueueState};

use super::settle::promote;
use super::tx::{Tx, no_queue};
use crate::error::{Error, Result};
use crate::store::{Batch, Consumer, QueueChange, Upkeep};

/// Arrivals sorted in by one transaction.
const ARRIVALS: i64 = 1000;
/// Keys forgotten by one transaction.
const KEYS: i64 = 1000;
/// How long a consumer is remembered, in microseconds.
const CONSUMERS_KEPT: i64 = 24 * 3600 * 1_000_000;

/// One round of upkeep.
pub(super) fn maintain(tx: &mut Tx<'_>) -> Result<Upkeep> {
    let outage = beat(tx)?;
    let promoted = sort_in(tx)?;
    let sql = tx.sql();
    let keys_expired = tx.prepare(&sql.forget_keys)?.execute((tx.now, KEYS))? as u64;
    tx.prepare(&sql.forget_consumers)?.execute([tx.now - CONSUMERS_KEPT])?;
    Ok(Upkeep { promoted, keys_expired, outage })
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
fn beat(tx: &mut Tx<'_>) -> Result<Option<Duration>> {
    if tx.shared.time.is_manual() {
        return Ok(None);
    }
    let sql = tx.sql();
    let last = tx.number(&sql.heartbeat)?;
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
    event_type: String,
}

/// Gives arrivals their lane and place; answers how many entries became claimable.
pub(super) fn sort_in(tx: &mut Tx<'_>) -> Result<u64> {
    let sql = tx.sql();
    if !tx.prepare(&sql.any_arrived)?.exists([])? {
        return Ok(0);
    }
    let arrivals = tx
        .prepare(&sql.arrived)?
        .query_map([ARRIVALS], |row| {
            Ok(Arrival {
                id: row.get(0)?,
                queue_id: row.get(1)?,
                lane: row.get(2)?,
                due: row.get(3)?,
                group: row.get(4)?,
                event_type: row.get(5)?,
            })
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let mut groups = BTreeSet::new();
    let mut claimable = 0;
    let mut statement = tx.prepare(&sql.sort_in)?;
    for arrival in arrivals {
        let queue = tx.queue_by_id(arrival.queue_id)?;
        let lane = if arrival.lane < 0 {
            let priority = i16::try_from(-1000 - arrival.lane).unwrap_or_default();
            tx.lane(queue, &arrival.event_type, priority)?
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
    }
    for (queue_id, group) in groups {
        claimable += u64::from(promote(tx, queue_id, &group)?);
    }
    Ok(claimable)
}

/// Creates a queue, or changes what the change names.
pub(super) fn put_queue(tx: &mut Tx<'_>, name: &QueueName, change: QueueChange) -> Result<QueueConfig> {
    let limit = match change.depth_limit {
        Some(Some(limit)) => {
            let limit = i64::try_from(limit).map_err(|_| Error::invalid("the depth limit is too large"))?;
            Some(Some(limit))
        }
        Some(None) => Some(None),
        None => None,
    };
    let sql = tx.sql();
    let (state, depth_limit, settings) = match tx.find_queue(name)? {
        Some(queue) => {
            let known = &tx.known.queues[queue];
            let (state, limit) = (change.state.unwrap_or(known.state), limit.unwrap_or(known.depth_limit));
            let settings = change.settings.unwrap_or_else(|| known.settings.clone());
            tx.prepare(&sql.update_queue)?.execute((known.id, state.code(), limit, settings_text(&settings)?))?;
            let known = &mut tx.known.queues[queue];
            (known.state, known.depth_limit, known.settings) = (state, limit, settings.clone());
            if change.state == Some(QueueState::Active) {
                tx.wake(queue);
            }
            (state, limit, settings)
        }
        None => {
            let (state, limit) = (change.state.unwrap_or_default(), limit.flatten());
            let settings = change.settings.unwrap_or_default();
            let text = settings_text(&settings)?;
            tx.prepare(&sql.insert_queue)?.execute((name.as_str(), state.code(), limit, tx.now, text))?;
            (state, limit, settings)
        }
    };
    tx.bump_generation()?;
    Ok(QueueConfig { name: name.clone(), state, depth_limit: depth_limit.map(i64::unsigned_abs), settings })
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
        let types = consumer.types.as_ref().map(|types| serde_json::Value::from(types.as_slice()).to_string());
        tx.prepare(&tx.sql().consumer_seen)?.execute((&consumer.worker, queue_id, types, tx.now))?;
        answers.push(Ok(()));
    }
    Ok(answers)
}
