//! What the verbs work with inside one transaction: the connection, the moment, and what is known of queues and lanes.
//! Knows nothing of threads and commits.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use rusqlite::{CachedStatement, Connection, OptionalExtension};
use tidegate_core::{EntryId, QueueName, QueueSettings, QueueState, Timestamp, Tsid};

use super::errors::damaged;
use super::queries::Sql;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Exhausted, StoreOptions};

pub(super) use super::time::Time;

/// Types with lanes of their own in one queue; further types share one lane per priority.
const OWN_LANES: usize = 256;

/// What stays the same as long as the store is open.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: StoreOptions,
    pub(super) sql: Sql,
    pub(super) time: Time,
    pub(super) exhausted: Exhausted,
}

/// One transaction, ours or a caller's.
pub(super) struct Tx<'c> {
    pub(super) conn: &'c Connection,
    pub(super) shared: &'c Shared,
    pub(super) known: &'c mut Known,
    /// The moment this job runs at.
    pub(super) now: i64,
    /// Queues in which something became claimable.
    pub(super) woken: &'c mut BTreeSet<QueueName>,
    /// The number of the next log row, once one was needed.
    log_seq: Option<i64>,
}

impl<'c> Tx<'c> {
    pub(super) fn new(
        conn: &'c Connection,
        shared: &'c Shared,
        known: &'c mut Known,
        woken: &'c mut BTreeSet<QueueName>,
    ) -> Self {
        Self { conn, shared, known, now: shared.time.now(), woken, log_seq: None }
    }

    /// Writes back what was kept in memory; part of the transaction.
    pub(super) fn finish(&mut self) -> Result<()> {
        if let Some(next) = self.log_seq.take() {
            self.prepare(&self.sql().save_log_seq)?.execute([next])?;
        }
        Ok(())
    }

    /// The number of the next log row.
    pub(super) fn log_seq(&mut self) -> Result<i64> {
        match self.log_seq {
            Some(next) => Ok(next),
            None => Ok(*self.log_seq.insert(self.number(&self.sql().next_log_seq)?)),
        }
    }

    /// So many numbers of log rows are used.
    pub(super) fn log_seq_used(&mut self, count: usize) {
        self.log_seq = self.log_seq.map(|next| next + count as i64);
    }

    pub(super) fn sql(&self) -> &'c Sql {
        &self.shared.sql
    }

    pub(super) fn prepare(&self, sql: &'c str) -> Result<CachedStatement<'c>> {
        Ok(self.conn.prepare_cached(sql)?)
    }

    /// A single number that one row holds.
    pub(super) fn number(&self, sql: &'c str) -> Result<i64> {
        Ok(self.prepare(sql)?.query_row([], |row| row.get(0))?)
    }

    /// The queue's place in [`Known`], or `None` when there is no such queue.
    pub(super) fn find_queue(&mut self, name: &QueueName) -> Result<Option<usize>> {
        if let Some(index) = self.known.by_name.get(name) {
            return Ok(Some(*index));
        }
        let sql = self.sql();
        let found = self
            .prepare(&sql.queue_by_name)?
            .query_row((name.name(), name.client().map(Tsid::to_i64)), |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })
            .optional()?;
        let Some((id, state, depth_limit, settings)) = found else { return Ok(None) };
        let lanes = self.load_lanes(id)?;
        let state = queue_state(state)?;
        let settings = read_settings(settings)?;
        Ok(Some(self.known.add(Queue { id, name: name.clone(), state, depth_limit, settings, lanes })))
    }

    /// The queue's place in [`Known`].
    pub(super) fn queue(&mut self, name: &QueueName) -> Result<usize> {
        self.find_queue(name)?.ok_or_else(|| no_queue(name))
    }

    /// The same by its number, for entries that are read back.
    pub(super) fn queue_by_id(&mut self, id: i64) -> Result<usize> {
        if let Some(index) = self.known.queues.iter().position(|queue| queue.id == id) {
            return Ok(index);
        }
        let sql = self.sql();
        let name = self.prepare(&sql.queue_name)?.query_row([id], |row| Ok(read_queue_name(row, 0, 1)))??;
        self.queue(&name)
    }

    fn load_lanes(&self, queue_id: i64) -> Result<Lanes> {
        let mut lanes = Lanes::default();
        let mut statement = self.prepare(&self.sql().lanes_of_queue)?;
        let mut rows = statement.query([queue_id])?;
        while let Some(row) = rows.next()? {
            lanes.add(row.get(0)?, row.get(1)?, row.get(2)?);
        }
        Ok(lanes)
    }

    /// The lane of a type and priority; it is made when it is not there yet, unless the queue has as many as it may.
    pub(super) fn lane(&mut self, queue: usize, event_type: &str, priority: i16) -> Result<Result<i64>> {
        let known = &self.known.queues[queue];
        if let Some(lane) = known.lanes.find(event_type, priority) {
            self.known.used.insert(lane);
            return Ok(Ok(lane));
        }
        let count = known.lanes.list.len();
        if count >= self.shared.options.max_lanes {
            return Ok(Err(crate::store::too_many_lanes(&known.name, count)));
        }
        let own = known.lanes.by_type.contains_key(event_type) || known.lanes.by_type.len() < OWN_LANES;
        self.add_lane(queue, own.then_some(event_type), priority).map(Ok)
    }

    /// The lane of an entry that is in the queue already: a shared one, where the queue has as many lanes as it may.
    pub(super) fn lane_of_arrival(&mut self, queue: usize, event_type: &str, priority: i16) -> Result<i64> {
        if let Ok(lane) = self.lane(queue, event_type, priority)? {
            return Ok(lane);
        }
        match self.known.queues[queue].lanes.shared(priority) {
            Some(lane) => Ok(lane),
            None => self.add_lane(queue, None, priority),
        }
    }

    fn add_lane(&mut self, queue: usize, own_type: Option<&str>, priority: i16) -> Result<i64> {
        let queue_id = self.known.queues[queue].id;
        let sql = self.sql();
        let lane = self.prepare(&sql.insert_lane)?.insert((queue_id, priority, own_type, self.now))?;
        self.known.catalogue = self.catalogue()?;
        self.known.queues[queue].lanes.add(lane, priority, own_type.map(Into::into));
        Ok(lane)
    }

    /// The catalogue's version as it stands; triggers raise it with every change of a queue or a lane.
    pub(super) fn catalogue(&self) -> Result<Version> {
        Version::read(self.conn, self.sql())
    }

    /// Says that something became claimable in a queue.
    pub(super) fn wake(&mut self, queue: usize) {
        let name = &self.known.queues[queue].name;
        if !self.woken.contains(name) {
            self.woken.insert(name.clone());
        }
    }

    pub(super) fn wake_id(&mut self, queue_id: i64) -> Result<()> {
        let queue = self.queue_by_id(queue_id)?;
        self.wake(queue);
        Ok(())
    }
}

/// A version of the catalogue. The stamp is random: two histories of one file may share a number, never a stamp.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    number: i64,
    stamp: i64,
}

impl Version {
    fn read(conn: &Connection, sql: &Sql) -> Result<Self> {
        let read = |row: &rusqlite::Row<'_>| Ok(Self { number: row.get(0)?, stamp: row.get(1)? });
        Ok(conn.prepare_cached(&sql.catalogue)?.query_row([], read)?)
    }
}

/// What this process knows of queues, lanes and leases. It holds until another connection changes the database or a
/// transaction of ours is rolled back.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) queues: Vec<Queue>,
    by_name: HashMap<QueueName, usize>,
    /// The catalogue's version that it was read at.
    pub(super) catalogue: Version,
    /// The youngest heartbeat seen.
    pub(super) heartbeat: i64,
    pub(super) marks: Marks,
    /// Lanes that were used since that was last written down.
    pub(super) used: HashSet<i64>,
    /// When lanes were last looked after.
    pub(super) tended: i64,
}

impl Known {
    fn add(&mut self, queue: Queue) -> usize {
        self.by_name.insert(queue.name.clone(), self.queues.len());
        self.queues.push(queue);
        self.queues.len() - 1
    }

    /// Forgets queues that others changed since the version known, or all where this is another history. Called at the
    /// start of a transaction.
    pub(super) fn catch_up(&mut self, conn: &Connection, sql: &Sql) -> Result<()> {
        let now = Version::read(conn, sql)?;
        if now == self.catalogue {
            return Ok(());
        }
        let known = self.catalogue;
        let ours = known.number <= now.number
            && conn.prepare_cached(&sql.catalogue_known)?.exists((known.number, known.stamp))?;
        if ours {
            let mut changes = conn.prepare_cached(&sql.catalogue_changes)?;
            let changed = changes.query_map([known.number], |row| row.get(0))?;
            let changed = changed.collect::<rusqlite::Result<HashSet<i64>>>()?;
            self.queues.retain(|queue| !changed.contains(&queue.id));
            self.by_name = self.queues.iter().enumerate().map(|(at, queue)| (queue.name.clone(), at)).collect();
        } else {
            self.forget();
        }
        self.catalogue = now;
        Ok(())
    }

    /// Forgets queues and lanes, and the version with them: one that was raised and rolled back is nobody's.
    pub(super) fn forget(&mut self) {
        self.catalogue = Version::default();
        self.queues.clear();
        self.by_name.clear();
        self.marks.clear();
        self.heartbeat = 0;
    }
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) id: i64,
    pub(super) name: QueueName,
    pub(super) state: QueueState,
    pub(super) depth_limit: Option<i64>,
    pub(super) settings: QueueSettings,
    pub(super) lanes: Lanes,
}

/// The lanes of one queue.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// By priority, first things first.
    pub(super) list: Vec<Lane>,
    /// By number.
    pub(super) ids: Vec<i64>,
    by_type: HashMap<Box<str>, Vec<(i16, i64)>>,
}

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) id: i64,
    pub(super) priority: i16,
    /// `None` where many types share it.
    pub(super) event_type: Option<Box<str>>,
}

impl Lanes {
    fn add(&mut self, id: i64, priority: i16, event_type: Option<Box<str>>) {
        if let Some(event_type) = &event_type {
            self.by_type.entry(event_type.clone()).or_default().push((priority, id));
        }
        let position = self.list.partition_point(|lane| lane.priority <= priority);
        self.list.insert(position, Lane { id, priority, event_type });
        let position = self.ids.partition_point(|other| *other < id);
        self.ids.insert(position, id);
    }

    fn find(&self, event_type: &str, priority: i16) -> Option<i64> {
        if let Some(lanes) = self.by_type.get(event_type) {
            return lanes.iter().find(|lane| lane.0 == priority).map(|lane| lane.1);
        }
        if self.by_type.len() < OWN_LANES {
            return None;
        }
        self.shared(priority)
    }

    /// The lane that types without one of their own share.
    fn shared(&self, priority: i16) -> Option<i64> {
        self.list.iter().find(|lane| lane.event_type.is_none() && lane.priority == priority).map(|lane| lane.id)
    }
}

/// Where the first entry of each lane stands that is not under a lease, so that a claim does not step over all leased
/// ones again. A mark holds until the first of the leases below it runs out or one is given back.
#[derive(Debug, Default)]
pub(super) struct Marks(HashMap<i64, Mark>);

#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    /// Everything of the lane up to this entry is leased or gone,
    pub(super) below: i64,
    /// at least until then.
    pub(super) until: i64,
}

impl Marks {
    pub(super) fn get(&mut self, lane: i64, now: i64) -> Mark {
        let mark = self.0.entry(lane).or_insert(Mark { below: 0, until: i64::MAX });
        if mark.until <= now {
            *mark = Mark { below: 0, until: i64::MAX };
        }
        *mark
    }

    pub(super) fn set(&mut self, lane: i64, mark: Mark) {
        self.0.insert(lane, mark);
    }

    /// A lease now ends at this moment.
    pub(super) fn lease_ends(&mut self, until: i64) {
        for mark in self.0.values_mut() {
            mark.until = mark.until.min(until);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// A queue from the columns of its name and its client.
pub(super) fn read_queue_name(row: &rusqlite::Row<'_>, name: usize, client: usize) -> Result<QueueName> {
    let client = row.get::<_, Option<i64>>(client)?.map(Tsid::from_i64);
    Ok(QueueName::of(client, row.get::<_, String>(name)?)?)
}

pub(super) fn no_queue(name: &QueueName) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no queue {name}"))
}

/// What pull workers get in a queue, as it is stored.
pub(super) fn read_settings(text: Option<String>) -> Result<QueueSettings> {
    let read = |text: String| {
        serde_json::from_str(&text).map_err(|error| damaged("a queue's settings cannot be read").with_source(error))
    };
    text.map(read).transpose().map(Option::unwrap_or_default)
}

pub(super) fn queue_state(code: i16) -> Result<QueueState> {
    QueueState::from_code(code).ok_or_else(|| damaged("a queue has an unknown state"))
}

/// A stored moment; one beyond the library's reach is shown as the first or the last that there is.
pub(super) fn moment(micros: i64) -> Result<Timestamp> {
    let micros = micros.clamp(Timestamp::MIN.as_second() * 1_000_000, Timestamp::MAX.as_second() * 1_000_000);
    Timestamp::from_microsecond(micros).map_err(|error| damaged("a stored moment is out of range").with_source(error))
}

/// A moment as the database stores it; the last microseconds of time cannot be read back, so it stops before them.
pub(super) fn micros(at: Timestamp) -> i64 {
    at.as_microsecond().clamp(Timestamp::MIN.as_second() * 1_000_000, Timestamp::MAX.as_second() * 1_000_000)
}

pub(super) fn later(now: i64, duration: Duration) -> Result<i64> {
    Ok(micros(tidegate_core::entry::later(moment(now)?, duration)))
}

pub(super) fn entry_id(raw: i64) -> Result<EntryId> {
    EntryId::new(raw).map_err(|error| damaged("a stored entry id is out of range").with_source(error))
}
