//! The configuration as last read: queues and their lanes. Every transaction compares its generation with the
//! database's, so a change is seen by the next batch on every node.

use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;

use tidegate_core::{QueueName, QueueSettings, QueueState};
use tokio_postgres::Row;

use super::errors::Fault;
use crate::error::{Error, ErrorKind};

/// Types in one queue that get lanes of their own; further ones share one lane per priority.
pub(super) const MAX_OWN_TYPES: usize = 256;

/// All queues and lanes of one generation.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    pub(super) generation: i64,
    queues: HashMap<QueueName, Arc<Queue>>,
    by_id: HashMap<i32, Arc<Queue>>,
}

/// A queue and its lanes.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) id: i32,
    pub(super) name: QueueName,
    pub(super) state: QueueState,
    pub(super) depth_limit: Option<u64>,
    pub(super) settings: QueueSettings,
    pub(super) lanes: Vec<Lane>,
    by_type: HashMap<(i16, Option<String>), i32>,
    types: HashSet<String>,
}

/// One (queue, type, priority); many types share one without a type.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    pub(super) id: i32,
    pub(super) priority: i16,
    pub(super) event_type: Option<String>,
}

/// A lane that does not exist yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct MissingLane {
    pub(super) queue_id: i32,
    pub(super) priority: i16,
    pub(super) event_type: Option<String>,
}

impl Catalog {
    /// Reads the rows of the catalog statement.
    pub(super) fn read(rows: &[Row]) -> Result<Self, Fault> {
        let mut queues: HashMap<i32, Queue> = HashMap::new();
        let mut generation = 0;
        for row in rows {
            generation = row.get(0);
            let id: i32 = row.get(1);
            let queue = match queues.entry(id) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(read_queue(row, id)?),
            };
            if let Some(lane) = row.get::<_, Option<i32>>(5) {
                queue.add_lane(Lane { id: lane, event_type: row.get(6), priority: row.get(7) });
            }
        }
        let mut catalog = Self { generation, ..Self::default() };
        for (id, mut queue) in queues {
            queue.lanes.sort_by_key(|lane| (lane.priority, lane.id));
            let queue = Arc::new(queue);
            catalog.queues.insert(queue.name.clone(), Arc::clone(&queue));
            catalog.by_id.insert(id, queue);
        }
        Ok(catalog)
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

fn read_queue(row: &Row, id: i32) -> Result<Queue, Fault> {
    let damaged = |what: &str| Fault::Final(Error::new(ErrorKind::Corrupt, format!("queue {id} has a bad {what}")));
    let limit: Option<i64> = row.get(4);
    Ok(Queue {
        id,
        name: QueueName::new(row.get::<_, String>(2)).map_err(|_| damaged("name"))?,
        state: QueueState::from_code(row.get(3)).ok_or_else(|| damaged("state"))?,
        depth_limit: limit.map(|limit| u64::try_from(limit).unwrap_or(0)),
        settings: read_settings(row.get(8)).map_err(|_| damaged("setting"))?,
        lanes: Vec::new(),
        by_type: HashMap::new(),
        types: HashSet::new(),
    })
}

/// What pull workers get in a queue, as it is stored.
pub(super) fn read_settings(text: Option<&str>) -> Result<QueueSettings, serde_json::Error> {
    text.map(serde_json::from_str).transpose().map(Option::unwrap_or_default)
}

impl Queue {
    fn add_lane(&mut self, lane: Lane) {
        self.by_type.insert((lane.priority, lane.event_type.clone()), lane.id);
        if let Some(event_type) = &lane.event_type {
            self.types.insert(event_type.clone());
        }
        self.lanes.push(lane);
    }

    /// The lane an event goes to, or the one to be made for it.
    pub(super) fn lane(&self, event_type: &str, priority: i16) -> Result<i32, MissingLane> {
        let own = self.types.contains(event_type) || self.types.len() < MAX_OWN_TYPES;
        let key = (priority, own.then(|| event_type.to_owned()));
        match self.by_type.get(&key) {
            Some(id) => Ok(*id),
            None => Err(MissingLane { queue_id: self.id, priority, event_type: key.1 }),
        }
    }

    /// The lanes a claim looks at: all, or those that can hold the wanted types.
    pub(super) fn lanes_for<'a>(&'a self, types: Option<&'a [String]>) -> impl Iterator<Item = &'a Lane> + 'a {
        self.lanes.iter().filter(move |lane| match (types, &lane.event_type) {
            (Some(types), Some(event_type)) => types.contains(event_type),
            _ => true,
        })
    }
}
