//! The queues and lanes of a transaction: found in what the process knows, else read or made.

use tidegate_core::{End, QueueName, Tsid};

use crate::error::Result;
use crate::sqlite::engine::catalogue::{Lanes, Queue, current_version, no_queue, queue_state, read_settings};
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::statements::catalogue::{QueueRow, Version};
use crate::values::Family;

impl Tx<'_> {
    /// The queue's index in [`Known`]; `None` when there is no such queue.
    pub(in crate::sqlite) fn find_queue(&mut self, name: &QueueName) -> Result<Option<usize>> {
        if let Some(index) = self.known.by_name.get(name) {
            return Ok(Some(*index));
        }
        let params = (name.name(), name.client().map(Tsid::to_i64));
        let Some(row) = self.row(&self.sql().catalogue.queue_by_name, params)? else { return Ok(None) };
        let QueueRow { id, state, depth_limit, settings } = row;
        let lanes = self.load_lanes(id)?;
        let state = queue_state(state)?;
        let settings = read_settings(settings)?;
        Ok(Some(self.known.add(Queue { id, name: name.clone(), state, depth_limit, settings, lanes })))
    }

    /// The queue's index in [`Known`].
    pub(in crate::sqlite) fn queue(&mut self, name: &QueueName) -> Result<usize> {
        self.find_queue(name)?.ok_or_else(|| no_queue(name))
    }

    /// The same by the queue's id, for entries that were read from the database.
    pub(in crate::sqlite) fn queue_by_id(&mut self, id: i64) -> Result<usize> {
        if let Some(index) = self.known.queues.iter().position(|queue| queue.id == id) {
            return Ok(index);
        }
        let row = self.row(&self.sql().catalogue.queue_name, [id])?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        self.queue(&QueueName::of(row.client_id.map(Tsid::from_i64), row.name)?)
    }

    fn load_lanes(&self, queue_id: i64) -> Result<Lanes> {
        let mut lanes = Lanes::of(self.family);
        for lane in self.rows(&self.sql().catalogue.lanes, [queue_id])? {
            lanes.add(lane.id, lane.priority, lane.event_type);
        }
        Ok(lanes)
    }

    /// The lane of a type and priority. It is created if necessary, unless the queue has as many as it may.
    pub(in crate::sqlite) fn lane(&mut self, queue: usize, event_type: &str, priority: i16) -> Result<Result<i64>> {
        let known = &self.known.queues[queue];
        if let Some(lane) = known.lanes.find(event_type, priority) {
            self.known.used.insert(lane);
            return Ok(Ok(lane));
        }
        let count = known.lanes.list.len();
        if count >= self.shared.options.lanes_of(self.family) {
            return Ok(Err(crate::values::queues::too_many_lanes(&known.name, count)));
        }
        let own = known.lanes.is_own(event_type);
        self.add_lane(queue, own.then_some(event_type), priority).map(Ok)
    }

    /// The lane of an entry that is in the queue already: a shared one if the queue has as many lanes as it may.
    pub(in crate::sqlite) fn lane_of_arrival(&mut self, queue: usize, event_type: &str, priority: i16) -> Result<i64> {
        if let Ok(lane) = self.lane(queue, event_type, priority)? {
            return Ok(lane);
        }
        // Jobs are found by the types of their lanes: they have no shared ones.
        if self.family == Family::Jobs {
            return self.add_lane(queue, Some(event_type), priority);
        }
        match self.known.queues[queue].lanes.shared(priority) {
            Some(lane) => Ok(lane),
            None => self.add_lane(queue, None, priority),
        }
    }

    fn add_lane(&mut self, queue: usize, own_type: Option<&str>, priority: i16) -> Result<i64> {
        let queue_id = self.known.queues[queue].id;
        let add = &self.sql().lanes.add;
        let lane = self.prepare(add)?.insert((queue_id, priority, own_type, self.now))?;
        self.known.catalogue = self.catalogue()?;
        self.known.queues[queue].lanes.add(lane, priority, own_type.map(Into::into));
        Ok(lane)
    }

    /// Counts an entry that was ended without its holder, or is exhausted and kept.
    pub(in crate::sqlite) fn count_ended(&mut self, queue_id: i64, end: End) -> Result<()> {
        let queue = self.queue_by_id(queue_id)?;
        self.shared.exhausted.of(self.family).add(&self.known.queues[queue].name, end);
        Ok(())
    }

    /// The present catalogue version. Triggers raise it with every change of a queue or a lane.
    pub(in crate::sqlite) fn catalogue(&self) -> Result<Version> {
        current_version(self.conn, self.shared)
    }
}
