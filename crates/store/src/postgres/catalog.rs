//! The catalogue as last read: queues and their lanes. Every transaction compares its stamp with the database's, so a
//! change is seen by the next batch on every node; then only what changed is read, unless the database's history is
//! another one (a restore, a failover that lost commits): then everything is.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tidegate_core::{QueueConfig, QueueName, QueueSettings, QueueState};
use tokio_postgres::Row;

use super::errors::Fault;
use super::row;
use crate::error::{Error, ErrorKind};

/// Types in one queue that get lanes of their own; further ones share one lane per priority.
pub(super) const MAX_OWN_TYPES: usize = 256;

/// A lane in this state is kept for the log's sake only.
const GONE: i16 = 2;

/// All queues and lanes of one version.
#[derive(Debug)]
pub(super) struct Catalog {
    /// Which version, to be told what changed since.
    pub(super) version: i64,
    /// The version's random stamp: equal stamps mean equal catalogues, whatever happened to the database.
    pub(super) stamp: i64,
    queues: HashMap<QueueName, Arc<Queue>>,
    by_id: HashMap<i32, Arc<Queue>>,
}

impl Default for Catalog {
    /// Knows nothing, under a version that no database has.
    fn default() -> Self {
        Self { version: -1, stamp: 0, queues: HashMap::new(), by_id: HashMap::new() }
    }
}

/// A queue and its lanes.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    pub(super) id: i32,
    pub(super) name: QueueName,
    pub(super) state: QueueState,
    pub(super) depth_limit: Option<u64>,
    pub(super) settings: QueueSettings,
    /// By priority; those that take no more entries included.
    pub(super) lanes: Vec<Lane>,
    priorities: HashMap<i32, i16>,
    by_type: HashMap<(i16, Option<String>), i32>,
    types: HashSet<String>,
}

/// One (queue, type, priority); many types share one without a type.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    pub(super) id: i32,
    pub(super) priority: i16,
    pub(super) event_type: Option<String>,
    /// It takes no more entries.
    retired: bool,
}

/// A lane that does not exist yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct MissingLane {
    pub(super) queue_id: i32,
    pub(super) priority: i16,
    pub(super) event_type: Option<String>,
    /// It is made beyond the queue's limit: what has arrived must go somewhere.
    pub(super) forced: bool,
}

/// What a row of the catalogue statement tells; the codes are the statement's.
const QUEUE: i16 = 0;
const LANE: i16 = 1;
const REMOVED_QUEUE: i16 = 2;
const REMOVED_LANE: i16 = 3;

impl Catalog {
    /// Applies the rows of the catalogue statement; `None` when this catalogue still stands.
    pub(super) fn read(&self, rows: &[Row]) -> Result<Option<Self>, Fault> {
        let Some(first) = rows.first() else {
            return Err(Error::new(ErrorKind::Schema, "the schema was removed while in use").into());
        };
        let (version, stamp, everything): (i64, i64, bool) = (first.get(0), first.get(1), first.get(2));
        if stamp == self.stamp && self.version >= 0 {
            return Ok(None);
        }
        let by_id = if everything { HashMap::new() } else { self.by_id.clone() };
        let mut changes = Changes { by_id, changed: BTreeMap::new() };
        for row in rows {
            match row.get::<_, Option<i16>>(3) {
                Some(QUEUE) => changes.queue(row)?,
                Some(LANE) => changes.lane(row),
                Some(REMOVED_QUEUE) => changes.remove_queue(row.get(4)),
                Some(REMOVED_LANE) => changes.remove_lane(row.get(4)),
                _ => {}
            }
        }
        let by_id = changes.finish();
        let queues = by_id.values().map(|queue| (queue.name.clone(), Arc::clone(queue))).collect();
        Ok(Some(Self { version, stamp, queues, by_id }))
    }

    /// A queue by name.
    pub(super) fn queue(&self, name: &QueueName) -> Result<&Arc<Queue>, Error> {
        self.queues
            .get(name)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no queue {name}: create it first")))
    }

    /// A queue by number.
    pub(super) fn queue_by_id(&self, id: i32) -> Option<&Arc<Queue>> {
        self.by_id.get(&id)
    }

    /// All queues.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Arc<Queue>> {
        self.queues.values()
    }
}

/// A catalogue under change: queues that nothing changes are shared with the one before.
struct Changes {
    by_id: HashMap<i32, Arc<Queue>>,
    changed: BTreeMap<i32, Queue>,
}

impl Changes {
    /// A queue that may be changed; `None` when there is none.
    fn change(&mut self, id: i32) -> Option<&mut Queue> {
        if let Some(queue) = self.by_id.remove(&id) {
            self.changed.insert(id, Arc::unwrap_or_clone(queue));
        }
        self.changed.get_mut(&id)
    }

    fn queue(&mut self, row: &Row) -> Result<(), Fault> {
        let id: i32 = row.get(4);
        let read = read_queue(row, id)?;
        match self.change(id) {
            Some(known) => {
                (known.name, known.state, known.depth_limit, known.settings) =
                    (read.name, read.state, read.depth_limit, read.settings);
            }
            None => {
                self.changed.insert(id, read);
            }
        }
        Ok(())
    }

    fn lane(&mut self, row: &Row) {
        let (id, state): (i32, i16) = (row.get(4), row.get(8));
        let Some(queue) = self.change(row.get(5)) else { return };
        if queue.priorities.contains_key(&id) {
            queue.lanes.retain(|lane| lane.id != id);
        }
        if state < GONE {
            queue.lanes.push(Lane { id, event_type: row.get(11), priority: row.get(12), retired: state > 0 });
        }
    }

    fn remove_queue(&mut self, id: i32) {
        self.by_id.remove(&id);
        self.changed.remove(&id);
    }

    fn remove_lane(&mut self, id: i32) {
        let holds = |queue: &Queue| queue.priorities.contains_key(&id);
        let of = self.by_id.values().find(|queue| holds(queue)).map(|queue| queue.id);
        let of = of.or_else(|| self.changed.values().find(|queue| holds(queue)).map(|queue| queue.id));
        if let Some(queue) = of.and_then(|of| self.change(of)) {
            queue.lanes.retain(|lane| lane.id != id);
        }
    }

    fn finish(mut self) -> HashMap<i32, Arc<Queue>> {
        for (id, mut queue) in std::mem::take(&mut self.changed) {
            queue.index();
            self.by_id.insert(id, Arc::new(queue));
        }
        self.by_id
    }
}

fn read_queue(row: &Row, id: i32) -> Result<Queue, Fault> {
    let damaged = |what: &str| Fault::Final(Error::new(ErrorKind::Corrupt, format!("queue {id} has a bad {what}")));
    let limit: Option<i64> = row.get(9);
    Ok(Queue {
        id,
        name: row::queue(row, 6, 7).map_err(|_| damaged("name"))?,
        state: QueueState::from_code(row.get(8)).ok_or_else(|| damaged("state"))?,
        depth_limit: limit.map(|limit| u64::try_from(limit).unwrap_or(0)),
        settings: read_settings(row.get(10)).map_err(|_| damaged("setting"))?,
        lanes: Vec::new(),
        priorities: HashMap::new(),
        by_type: HashMap::new(),
        types: HashSet::new(),
    })
}

/// What pull workers get in a queue, as it is stored.
pub(super) fn read_settings(text: Option<&str>) -> Result<QueueSettings, serde_json::Error> {
    text.map(serde_json::from_str).transpose().map(Option::unwrap_or_default)
}

impl Queue {
    /// Makes the lanes findable.
    fn index(&mut self) {
        self.lanes.sort_by_key(|lane| (lane.priority, lane.id));
        self.priorities = self.lanes.iter().map(|lane| (lane.id, lane.priority)).collect();
        let open = || self.lanes.iter().filter(|lane| !lane.retired);
        self.by_type = open().map(|lane| ((lane.priority, lane.event_type.clone()), lane.id)).collect();
        self.types = open().filter_map(|lane| lane.event_type.clone()).collect();
    }

    /// The lane an event goes to, or the one to be made for it.
    pub(super) fn lane(&self, event_type: &str, priority: i16) -> Result<i32, MissingLane> {
        let own = self.types.contains(event_type) || self.types.len() < MAX_OWN_TYPES;
        let key = (priority, own.then(|| event_type.to_owned()));
        match self.by_type.get(&key) {
            Some(id) => Ok(*id),
            None => Err(MissingLane { queue_id: self.id, priority, event_type: key.1, forced: false }),
        }
    }

    /// The lane of an event that is in the queue already, in a shared one where the queue has `limit` lanes.
    pub(super) fn lane_of_arrival(&self, event_type: &str, priority: i16, limit: usize) -> Result<i32, MissingLane> {
        self.lane(event_type, priority).or_else(|missing| {
            if self.lanes.len() < limit {
                return Err(missing);
            }
            let shared = self.by_type.get(&(priority, None)).copied();
            shared.ok_or(MissingLane { event_type: None, forced: true, ..missing })
        })
    }

    /// Why no further lane is made.
    pub(super) fn too_many_lanes(&self, limit: usize) -> Option<Error> {
        (self.lanes.len() >= limit).then(|| crate::store::too_many_lanes(&self.name, self.lanes.len()))
    }

    /// The priority of a lane that is known.
    pub(super) fn priority_of(&self, lane: i32) -> Option<i16> {
        self.priorities.get(&lane).copied()
    }

    /// The lanes a claim looks at: all, or those that can hold the wanted types.
    pub(super) fn lanes_for<'a>(&'a self, types: Option<&'a [String]>) -> impl Iterator<Item = &'a Lane> + 'a {
        self.lanes.iter().filter(move |lane| match (types, &lane.event_type) {
            (Some(types), Some(event_type)) => types.contains(event_type),
            _ => true,
        })
    }

    /// What everybody may know of it.
    pub(super) fn config(&self) -> QueueConfig {
        QueueConfig {
            name: self.name.clone(),
            state: self.state,
            depth_limit: self.depth_limit,
            settings: self.settings.clone(),
        }
    }
}
