//! The catalogue as this process knows it: queues and their lanes. A transaction begins by forgetting what other processes
//! have changed since; what is not known is read when it is needed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rusqlite::Connection;
use tidegate_core::{QueueName, QueueSettings, QueueState};

use crate::error::{Error, ErrorKind, Result};
use crate::sql::{FromRow, Only};
use crate::sqlite::engine::errors::damaged;
use crate::sqlite::engine::marks::Marks;
use crate::sqlite::engine::shared::Shared;
use crate::sqlite::statements::Sql;
use crate::sqlite::statements::catalogue::{Compatibility, Version};
use crate::values::Family;

/// The catalogue version.
///
/// # Errors
/// `Schema` when another process has upgraded the schema beyond this program.
pub(in crate::sqlite) fn current_version(conn: &Connection, shared: &Shared) -> Result<Version> {
    let mut statement = conn.prepare_cached(&shared.sql.entries.catalogue.version)?;
    let (version, read) = statement.query_row([], |row| Ok(<(Version, Compatibility)>::read(row, 0)))??;
    shared.outdated.check(read.schema_version, read.oldest_compatible)?;
    Ok(version)
}

/// Whether a version with its stamp belongs to this database's history.
pub(in crate::sqlite) fn is_known(conn: &Connection, sql: &Sql, number: i64, stamp: i64) -> Result<bool> {
    Ok(conn.prepare_cached(&sql.catalogue.is_known)?.exists((number, stamp))?)
}

/// What this process caches about queues, lanes and leases. It is valid until another connection changes the database
/// or a transaction of ours is rolled back.
#[derive(Debug, Default)]
pub(in crate::sqlite) struct Known {
    pub(in crate::sqlite) queues: Vec<Queue>,
    pub(in crate::sqlite) by_name: HashMap<QueueName, usize>,
    /// The catalogue version at which it was read.
    pub(in crate::sqlite) catalogue: Version,
    /// The latest heartbeat seen.
    pub(in crate::sqlite) heartbeat: i64,
    pub(in crate::sqlite) marks: Marks,
    /// Lanes that were used since uses were last written.
    pub(in crate::sqlite) used: HashSet<i64>,
    /// When the lanes were last maintained.
    pub(in crate::sqlite) tended: i64,
    /// The last group in which upkeep has looked for something that is aside and due.
    pub(in crate::sqlite) aside_after: Option<(i64, String)>,
}

impl Known {
    pub(in crate::sqlite) fn add(&mut self, queue: Queue) -> usize {
        self.by_name.insert(queue.name.clone(), self.queues.len());
        self.queues.push(queue);
        self.queues.len() - 1
    }

    /// Forgets queues that were changed since the known catalogue version, or everything if the database has another
    /// history. Called at the start of a transaction.
    pub(in crate::sqlite) fn catch_up(&mut self, conn: &Connection, shared: &Shared, family: Family) -> Result<()> {
        let (now, sql) = (current_version(conn, shared)?, shared.sql.of(family));
        if now == self.catalogue {
            return Ok(());
        }
        let known = self.catalogue;
        let ours = known.number <= now.number && is_known(conn, sql, known.number, known.stamp)?;
        if ours {
            let mut statement = conn.prepare_cached(&sql.catalogue.changed)?;
            let mut rows = statement.query([known.number])?;
            let mut changed = HashSet::new();
            while let Some(row) = rows.next()? {
                let Only(queue) = Only::<i64>::read(row, 0)?;
                changed.insert(queue);
            }
            self.queues.retain(|queue| !changed.contains(&queue.id));
            self.by_name = self.queues.iter().enumerate().map(|(at, queue)| (queue.name.clone(), at)).collect();
        } else {
            self.forget();
        }
        self.catalogue = now;
        Ok(())
    }

    /// Forgets queues, lanes and the catalogue version: one that was raised and rolled back does not exist.
    pub(in crate::sqlite) fn forget(&mut self) {
        self.catalogue = Version::default();
        self.queues.clear();
        self.by_name.clear();
        self.marks.clear();
        self.heartbeat = 0;
    }
}

#[derive(Debug)]
pub(in crate::sqlite) struct Queue {
    pub(in crate::sqlite) id: i64,
    pub(in crate::sqlite) name: QueueName,
    pub(in crate::sqlite) state: QueueState,
    pub(in crate::sqlite) depth_limit: Option<i64>,
    pub(in crate::sqlite) settings: QueueSettings,
    pub(in crate::sqlite) lanes: Lanes,
}

/// The lanes of one queue.
#[derive(Debug, Default)]
pub(in crate::sqlite) struct Lanes {
    /// Sorted by priority, most urgent first.
    pub(in crate::sqlite) list: Vec<Lane>,
    /// Sorted by number.
    pub(in crate::sqlite) ids: Vec<i64>,
    pub(in crate::sqlite) by_type: HashMap<Arc<str>, Vec<(i16, i64)>>,
    /// How many types get lanes of their own.
    own_types: usize,
}

#[derive(Debug)]
pub(in crate::sqlite) struct Lane {
    pub(in crate::sqlite) id: i64,
    pub(in crate::sqlite) priority: i16,
    /// `None` where many types share it.
    pub(in crate::sqlite) event_type: Option<Arc<str>>,
}

impl Lanes {
    pub(in crate::sqlite) fn of(family: Family) -> Self {
        Self { own_types: family.own_types(), ..Self::default() }
    }

    pub(in crate::sqlite) fn add(&mut self, id: i64, priority: i16, event_type: Option<Arc<str>>) {
        if let Some(event_type) = &event_type {
            self.by_type.entry(event_type.clone()).or_default().push((priority, id));
        }
        let position = self.list.partition_point(|lane| lane.priority <= priority);
        self.list.insert(position, Lane { id, priority, event_type });
        let position = self.ids.partition_point(|other| *other < id);
        self.ids.insert(position, id);
    }

    /// Whether a type has lanes of its own, or would get one.
    pub(in crate::sqlite) fn is_own(&self, event_type: &str) -> bool {
        self.by_type.contains_key(event_type) || self.by_type.len() < self.own_types
    }

    pub(in crate::sqlite) fn find(&self, event_type: &str, priority: i16) -> Option<i64> {
        if let Some(lanes) = self.by_type.get(event_type) {
            return lanes.iter().find(|lane| lane.0 == priority).map(|lane| lane.1);
        }
        if self.by_type.len() < self.own_types {
            return None;
        }
        self.shared(priority)
    }

    /// The lane shared by types without a lane of their own.
    pub(in crate::sqlite) fn shared(&self, priority: i16) -> Option<i64> {
        self.list.iter().find(|lane| lane.event_type.is_none() && lane.priority == priority).map(|lane| lane.id)
    }
}

pub(in crate::sqlite) fn no_queue(name: &QueueName) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no queue {name}"))
}

/// Reads the stored settings of a queue.
pub(in crate::sqlite) fn read_settings(text: Option<String>) -> Result<QueueSettings> {
    let read = |text: String| {
        serde_json::from_str(&text).map_err(|error| damaged("a queue's settings cannot be read").with_source(error))
    };
    text.map(read).transpose().map(Option::unwrap_or_default)
}

pub(in crate::sqlite) fn queue_state(code: i16) -> Result<QueueState> {
    QueueState::from_code(code).ok_or_else(|| damaged("a queue has an unknown state"))
}
