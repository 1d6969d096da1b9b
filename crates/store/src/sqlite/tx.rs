//! What the verbs work with inside one transaction: the connection, the moment, and what is known of queues and lanes.
//! Knows nothing of threads and commits.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{CachedStatement, Connection, OptionalExtension};
use tidegate_core::{EntryId, QueueName, QueueSettings, QueueState, Timestamp};

use super::errors::damaged;
use super::queries::Sql;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Clock, StoreOptions};

/// Types with lanes of their own in one queue; further types share one lane per priority.
const OWN_LANES: usize = 256;

/// The process's clock, which never goes back, or the one that tests move.
#[derive(Debug)]
pub(super) struct Time {
    clock: Clock,
    last: AtomicI64,
}

impl Time {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, last: AtomicI64::new(0) }
    }

    /// Microseconds since 1970.
    pub(super) fn now(&self) -> i64 {
        if let Some(now) = self.clock.now() {
            return now.as_microsecond();
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
        self.last.fetch_max(now, Ordering::SeqCst).max(now)
    }

    /// Whether tests move it. Then nothing was ever down.
    pub(super) fn is_manual(&self) -> bool {
        matches!(self.clock, Clock::Manual(_))
    }
}

/// What stays the same as long as the store is open.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: StoreOptions,
    pub(super) sql: Sql,
    pub(super) time: Time,
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
            .query_row([name.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
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
        let name: String = self.prepare(&sql.queue_name)?.query_row([id], |row| row.get(0))?;
        self.queue(&QueueName::new(name)?)
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

    /// The lane of a type and priority; it is made when it is not there yet.
    pub(super) fn lane(&mut self, queue: usize, event_type: &str, priority: i16) -> Result<i64> {
        let known = &self.known.queues[queue];
        if let Some(lane) = known.lanes.find(event_type, priority) {
            return Ok(lane);
        }
        let own = known.lanes.by_type.contains_key(event_type) || known.lanes.by_type.len() < OWN_LANES;
        let (queue_id, own_type) = (known.id, own.then_some(event_type));
        let sql = self.sql();
        self.prepare(&sql.insert_lane)?.execute((queue_id, priority, own_type))?;
        let lane = self.conn.last_insert_rowid();
        self.bump_generation()?;
        self.known.queues[queue].lanes.add(lane, priority, own_type.map(Into::into));
        Ok(lane)
    }

    /// Tells other processes that queues or lanes changed.
    pub(super) fn bump_generation(&mut self) -> Result<()> {
        self.prepare(&self.sql().bump_generation)?.execute([])?;
        self.known.generation += 1;
        Ok(())
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

/// What this process knows of queues, lanes and leases. It holds until another connection changes the database or a
/// transaction of ours is rolled back.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) queues: Vec<Queue>,
    by_name: HashMap<QueueName, usize>,
    /// The configuration generation that it was read at.
    pub(super) generation: i64,
    /// The youngest heartbeat seen.
    pub(super) heartbeat: i64,
    pub(super) marks: Marks,
}

impl Known {
    fn add(&mut self, queue: Queue) -> usize {
        self.by_name.insert(queue.name.clone(), self.queues.len());
        self.queues.push(queue);
        self.queues.len() - 1
    }

    /// Forgets queues and lanes.
    pub(super) fn forget(&mut self) {
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
    }

    fn find(&self, event_type: &str, priority: i16) -> Option<i64> {
        if let Some(lanes) = self.by_type.get(event_type) {
            return lanes.iter().find(|lane| lane.0 == priority).map(|lane| lane.1);
        }
        if self.by_type.len() < OWN_LANES {
            return None;
        }
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

pub(super) fn moment(micros: i64) -> Result<Timestamp> {
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
