//! Queues: their configuration, their depths, and the consumers that are alive.

use std::collections::HashMap;
use std::time::Duration;

use tidegate_core::{Depth, QueueConfig, QueueName, QueueSettings, QueueState, Tsid};

use crate::error::Result;
use crate::sql::{FromRow as _, Only};
use crate::sqlite::engine::catalogue::{no_queue, queue_state};
use crate::sqlite::engine::errors::damaged;
use crate::sqlite::engine::tx::Tx;
use crate::values::queues::settings_text;
use crate::values::{Batch, LiveConsumer, QueueChange};

/// How long after it was last seen a consumer counts as alive, in microseconds.
const ALIVE: i64 = 60 * 1_000_000;
/// How long a consumer is remembered, in microseconds.
const CONSUMERS_KEPT: i64 = 24 * 3600 * 1_000_000;

/// A queue as reads need it.
pub(super) struct Found {
    pub(super) id: i64,
    pub(super) state: QueueState,
}

/// A queue by name, without its lanes.
pub(super) fn queue(tx: &Tx<'_>, name: &QueueName) -> Result<Found> {
    let found = tx.row(&tx.sql().queues.by_name, (name.name(), name.client().map(Tsid::to_i64)))?;
    let row = found.ok_or_else(|| no_queue(name))?;
    Ok(Found { id: row.id, state: queue_state(row.state)? })
}

/// The configuration of a queue; `None` when there is none of that name.
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

/// The configuration of all queues.
pub(super) fn queues(tx: &Tx<'_>) -> Result<Vec<QueueConfig>> {
    tx.rows(&tx.sql().queues.configs, [])?.into_iter().map(QueueConfig::try_from).collect()
}

/// Creates a queue, or applies the fields of the change that are set. A change without effect writes nothing.
pub(super) fn put_queue(tx: &mut Tx<'_>, name: &QueueName, change: QueueChange) -> Result<QueueConfig> {
    let sql = &tx.sql().queues;
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
            tx.execute(&sql.put, (tx.known.queues[queue].id, state.code(), limit, text))?;
            let known = &mut tx.known.queues[queue];
            (known.state, known.depth_limit, known.settings) = (state, limit, config.settings.clone());
            if resumes {
                tx.wake(queue);
            }
        }
        None => {
            let client = name.client().map(Tsid::to_i64);
            tx.execute(&sql.insert, (name.name(), state.code(), limit, tx.now, text, client))?;
        }
    }
    tx.known.catalogue = tx.catalogue()?;
    Ok(config)
}

/// The number of entries in a queue, by state.
pub(super) fn depth(tx: &Tx<'_>, name: &QueueName) -> Result<Depth> {
    let queue_id = queue(tx, name)?.id;
    Ok(tx.row(&tx.sql().queues.depth, (tx.now, queue_id))?.map(Depth::from).unwrap_or_default())
}

/// The number of entries in each queue, by state.
pub(super) fn depths(tx: &Tx<'_>) -> Result<Vec<(QueueName, Depth)>> {
    let rows = tx.rows(&tx.sql().queues.depths, [tx.now])?;
    rows.into_iter().map(|(depth, name)| Ok((name.try_into()?, depth.into()))).collect()
}

/// For how long the first claimable entry of each queue has been claimable.
pub(super) fn oldest(tx: &Tx<'_>) -> Result<Vec<(QueueName, Option<Duration>)>> {
    let sql = &tx.sql().queues;
    let mut since: HashMap<i64, i64> = HashMap::new();
    for statement in [&sql.oldest_fresh, &sql.oldest_timed] {
        for row in tx.rows(statement, [tx.now])? {
            if let Some(at) = row.since {
                let first = since.entry(row.queue_id).or_insert(at);
                *first = at.min(*first);
            }
        }
    }
    let age = |at: &i64| Duration::from_micros(u64::try_from(tx.now - at).unwrap_or(0));
    let names = tx.rows(&sql.names, [])?;
    names.into_iter().map(|(name, Only(id))| Ok((name.try_into()?, since.get(&id).map(age)))).collect()
}

/// Records that consumers are alive.
pub(super) fn consumers_seen(tx: &mut Tx<'_>, consumers: &[LiveConsumer]) -> Result<Batch<()>> {
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
        tx.execute(&tx.sql().queues.consumer_seen, (&consumer.worker, queue_id, types, tx.now))?;
        answers.push(Ok(()));
    }
    Ok(answers)
}

/// Whether a consumer that takes one of these, types or marked tags, is alive.
pub(super) fn has_consumer(tx: &Tx<'_>, queue_id: i64, wanted: &[String]) -> Result<bool> {
    let mut statement = tx.prepare(&tx.sql().queues.consumers_since)?;
    let mut rows = statement.query((queue_id, tx.now - ALIVE))?;
    while let Some(row) = rows.next()? {
        let Only(Some(types)) = Only::<Option<String>>::read(row, 0)? else { return Ok(true) };
        let types: Vec<String> = serde_json::from_str(&types)
            .map_err(|error| damaged("a consumer's types cannot be read").with_source(error))?;
        if types.iter().any(|of| wanted.contains(of)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes consumers that were not seen for long.
pub(super) fn forget_consumers(tx: &Tx<'_>) -> Result<()> {
    tx.execute(&tx.sql().queues.forget_consumers, [tx.now - CONSUMERS_KEPT]).map(drop)
}
