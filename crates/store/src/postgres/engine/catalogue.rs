//! The catalogue as last read: queues and their lanes. Every transaction compares its stamp with the database's, so
//! every node sees a change with its next batch. Then only what changed is read, or everything if the database's
//! history is another one (after a restore, or a failover that lost commits). Does no IO.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tidegate_core::{QueueConfig, QueueName, QueueSettings, QueueState, Tsid};

use crate::error::{Error, ErrorKind};
use crate::postgres::engine::errors::Fault;
use crate::postgres::statements::catalogue::ChangeRow;
use crate::values::Family;

/// The state of a lane that is kept only because the log refers to it.
const GONE: i16 = 2;

/// All queues and lanes of one catalogue version.
#[derive(Debug)]
pub(in crate::postgres) struct Catalog {
    /// The catalogue version; the next read asks for changes above it.
    pub(in crate::postgres) version: i64,
    /// The version's random stamp: equal stamps mean equal catalogues, even across a restore or a failover.
    pub(in crate::postgres) stamp: i64,
    queues: HashMap<QueueName, Arc<Queue>>,
    by_id: HashMap<i32, Arc<Queue>>,
    /// How many types of a queue get lanes of their own.
    own_types: usize,
}

/// A queue and its lanes.
#[derive(Debug, Clone)]
pub(in crate::postgres) struct Queue {
    pub(in crate::postgres) id: i32,
    pub(in crate::postgres) name: QueueName,
    pub(in crate::postgres) state: QueueState,
    pub(in crate::postgres) depth_limit: Option<u64>,
    pub(in crate::postgres) settings: QueueSettings,
    /// Sorted by priority; includes retired lanes, which take no more entries.
    pub(in crate::postgres) lanes: Vec<Lane>,
    /// Where each lane is in `lanes`.
    positions: HashMap<i32, usize>,
    by_type: HashMap<(i16, Option<String>), i32>,
    types: HashSet<String>,
    own_types: usize,
}

/// One (queue, type, priority). A lane that many types share has no type.
#[derive(Debug, Clone)]
pub(in crate::postgres) struct Lane {
    pub(in crate::postgres) id: i32,
    pub(in crate::postgres) priority: i16,
    pub(in crate::postgres) event_type: Option<String>,
    /// It takes no more entries, but is still claimed from.
    retired: bool,
}

/// A lane that does not exist yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::postgres) struct MissingLane {
    pub(in crate::postgres) queue_id: i32,
    pub(in crate::postgres) priority: i16,
    pub(in crate::postgres) event_type: Option<String>,
    /// Make it even beyond the queue's limit: an arrival has to go somewhere.
    pub(in crate::postgres) forced: bool,
}

/// What a row of the catalogue statement describes, by the statement's codes.
const QUEUE: i16 = 0;
const LANE: i16 = 1;
const REMOVED_QUEUE: i16 = 2;
const REMOVED_LANE: i16 = 3;

impl Catalog {
    /// An empty catalogue, under a version that no database has.
    pub(in crate::postgres) fn new(family: Family) -> Self {
        let own_types = family.own_types();
        Self { version: -1, stamp: 0, queues: HashMap::new(), by_id: HashMap::new(), own_types }
    }

    /// Applies the rows of the catalogue statement; `None` when nothing changed.
    pub(in crate::postgres) fn read(&self, rows: Vec<ChangeRow>) -> Result<Option<Self>, Fault> {
        let Some(first) = rows.first() else {
            return Err(Error::new(ErrorKind::Schema, "the schema was removed while in use").into());
        };
        let (version, stamp) = (first.version, first.stamp);
        if stamp == self.stamp && self.version >= 0 {
            return Ok(None);
        }
        let by_id = if first.everything { HashMap::new() } else { self.by_id.clone() };
        let mut changes = Changes { by_id, changed: BTreeMap::new(), own_types: self.own_types };
        for row in rows {
            match (row.kind, row.id) {
                (Some(QUEUE), Some(id)) => changes.queue(id, row)?,
                (Some(LANE), Some(id)) => changes.lane(id, row)?,
                (Some(REMOVED_QUEUE), Some(id)) => changes.remove_queue(id),
                (Some(REMOVED_LANE), Some(id)) => changes.remove_lane(id),
                _ => {}
            }
        }
        let by_id = changes.into_queues();
        let queues = by_id.values().map(|queue| (queue.name.clone(), Arc::clone(queue))).collect();
        Ok(Some(Self { version, stamp, queues, by_id, own_types: self.own_types }))
    }

    /// A queue by name.
    pub(in crate::postgres) fn queue(&self, name: &QueueName) -> Result<&Arc<Queue>, Error> {
        self.queues
            .get(name)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no queue {name}: create it first")))
    }

    /// A queue by its id.
    pub(in crate::postgres) fn queue_by_id(&self, id: i32) -> Option<&Arc<Queue>> {
        self.by_id.get(&id)
    }

    /// All queues.
    pub(in crate::postgres) fn queues(&self) -> impl Iterator<Item = &Arc<Queue>> {
        self.queues.values()
    }
}

/// A catalogue that changes are applied to; unchanged queues are shared with the one before.
struct Changes {
    by_id: HashMap<i32, Arc<Queue>>,
    changed: BTreeMap<i32, Queue>,
    own_types: usize,
}

impl Changes {
    /// A queue, to be changed; `None` when there is no such queue.
    fn change(&mut self, id: i32) -> Option<&mut Queue> {
        if let Some(queue) = self.by_id.remove(&id) {
            self.changed.insert(id, Arc::unwrap_or_clone(queue));
        }
        self.changed.get_mut(&id)
    }

    fn queue(&mut self, id: i32, row: ChangeRow) -> Result<(), Fault> {
        let read = Queue { own_types: self.own_types, ..read_queue(id, row)? };
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

    fn lane(&mut self, id: i32, row: ChangeRow) -> Result<(), Fault> {
        let (Some(queue_id), Some(state), Some(priority)) = (row.queue_id, row.state, row.priority) else {
            return Err(Error::new(ErrorKind::Corrupt, format!("lane {id} has a bad row")).into());
        };
        let Some(queue) = self.change(queue_id) else { return Ok(()) };
        if queue.positions.contains_key(&id) {
            queue.lanes.retain(|lane| lane.id != id);
        }
        if state < GONE {
            queue.lanes.push(Lane { id, event_type: row.event_type, priority, retired: state > 0 });
        }
        Ok(())
    }

    fn remove_queue(&mut self, id: i32) {
        self.by_id.remove(&id);
        self.changed.remove(&id);
    }

    fn remove_lane(&mut self, id: i32) {
        let holds = |queue: &Queue| queue.positions.contains_key(&id);
        let of = self.by_id.values().find(|queue| holds(queue)).map(|queue| queue.id);
        let of = of.or_else(|| self.changed.values().find(|queue| holds(queue)).map(|queue| queue.id));
        if let Some(queue) = of.and_then(|of| self.change(of)) {
            queue.lanes.retain(|lane| lane.id != id);
        }
    }

    /// All queues, with the changed ones indexed again.
    fn into_queues(mut self) -> HashMap<i32, Arc<Queue>> {
        for (id, mut queue) in std::mem::take(&mut self.changed) {
            queue.index();
            self.by_id.insert(id, Arc::new(queue));
        }
        self.by_id
    }
}

fn read_queue(id: i32, row: ChangeRow) -> Result<Queue, Fault> {
    let damaged = |what: &str| Fault::Final(Error::new(ErrorKind::Corrupt, format!("queue {id} has a bad {what}")));
    let name = QueueName::of(row.client_id.map(Tsid::from_i64), row.name.unwrap_or_default());
    Ok(Queue {
        id,
        name: name.map_err(|_| damaged("name"))?,
        state: row.state.and_then(QueueState::from_code).ok_or_else(|| damaged("state"))?,
        depth_limit: row.depth_limit.map(|limit| u64::try_from(limit).unwrap_or(0)),
        settings: read_settings(row.settings.as_deref()).map_err(|_| damaged("setting"))?,
        lanes: Vec::new(),
        positions: HashMap::new(),
        by_type: HashMap::new(),
        types: HashSet::new(),
        own_types: 0,
    })
}

/// Reads a queue's stored settings; the defaults where none are stored.
pub(in crate::postgres) fn read_settings(text: Option<&str>) -> Result<QueueSettings, serde_json::Error> {
    text.map(serde_json::from_str).transpose().map(Option::unwrap_or_default)
}

impl Queue {
    /// Sorts the lanes and rebuilds the maps that find them. Retired lanes are found by id only.
    fn index(&mut self) {
        self.lanes.sort_by_key(|lane| (lane.priority, lane.id));
        self.positions = self.lanes.iter().enumerate().map(|(position, lane)| (lane.id, position)).collect();
        let open = || self.lanes.iter().filter(|lane| !lane.retired);
        self.by_type = open().map(|lane| ((lane.priority, lane.event_type.clone()), lane.id)).collect();
        self.types = open().filter_map(|lane| lane.event_type.clone()).collect();
    }

    /// Whether a type has lanes of its own, or would get one.
    pub(in crate::postgres) fn is_own(&self, event_type: &str) -> bool {
        self.types.contains(event_type) || self.types.len() < self.own_types
    }

    /// The lane an event goes to, or the lane to make for it.
    pub(in crate::postgres) fn lane(&self, event_type: &str, priority: i16) -> Result<i32, MissingLane> {
        let key = (priority, self.is_own(event_type).then(|| event_type.to_owned()));
        match self.by_type.get(&key) {
            Some(id) => Ok(*id),
            None => Err(MissingLane { queue_id: self.id, priority, event_type: key.1, forced: false }),
        }
    }

    /// Whether events of this type go to lanes of their own.
    pub(in crate::postgres) fn has_lanes_for(&self, event_type: &str) -> bool {
        self.types.contains(event_type)
    }

    /// The types that have lanes of their own.
    pub(in crate::postgres) fn own_types(&self) -> impl Iterator<Item = &str> {
        self.types.iter().map(String::as_str)
    }

    /// The lane of an arrival. One that has no lane yet goes to a shared lane where the queue has `limit` lanes; but a job
    /// is found by the type of its lane, and always has one of its own.
    pub(in crate::postgres) fn lane_of_arrival(
        &self,
        family: Family,
        event_type: &str,
        priority: i16,
        limit: usize,
    ) -> Result<i32, MissingLane> {
        self.lane(event_type, priority).or_else(|missing| {
            if self.lanes.len() < limit {
                return Err(missing);
            }
            if family == Family::Jobs {
                return Err(MissingLane { forced: true, ..missing });
            }
            let shared = self.by_type.get(&(priority, None)).copied();
            shared.ok_or(MissingLane { event_type: None, forced: true, ..missing })
        })
    }

    /// The error for an event that needs a further lane, if the queue has `limit` lanes.
    pub(in crate::postgres) fn too_many_lanes(&self, limit: usize) -> Option<Error> {
        (self.lanes.len() >= limit).then(|| crate::values::queues::too_many_lanes(&self.name, self.lanes.len()))
    }

    /// A lane; `None` when this catalogue does not have it.
    pub(in crate::postgres) fn lane_of(&self, id: i32) -> Option<&Lane> {
        self.positions.get(&id).and_then(|position| self.lanes.get(*position))
    }

    /// The lanes a claim scans: all, or those that can hold the wanted types.
    pub(in crate::postgres) fn lanes_for<'a>(
        &'a self,
        types: Option<&'a [String]>,
    ) -> impl Iterator<Item = &'a Lane> + 'a {
        let types: Option<HashSet<&str>> = types.map(|types| types.iter().map(String::as_str).collect());
        self.lanes.iter().filter(move |lane| match (&types, &lane.event_type) {
            (Some(types), Some(event_type)) => types.contains(event_type.as_str()),
            _ => true,
        })
    }

    /// The queue's configuration, as the store's callers see it.
    pub(in crate::postgres) fn config(&self) -> QueueConfig {
        QueueConfig {
            name: self.name.clone(),
            state: self.state,
            depth_limit: self.depth_limit,
            settings: self.settings.clone(),
        }
    }
}
