//! Rooms for subscribers that wait for the same: only the first of each looks, the others cost nothing.
//!
//! A room's turn goes round in the order of arrival. Whoever has it waits; whoever gets an event, gives up or hangs up
//! passes the turn on. So two thousand workers that wait for the same cost as much as one.
//!
//! A wake-up of the queue says only that something came, and would have all rooms look. So a room is rung by what is
//! published here under its tags, and one look for all of them, at the store's hints and now and then, says which others
//! to ring.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{Consumer, EventQueue, QueueName, QueuedEvent};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

/// The look for all rooms comes so long after a hint, to be one for many hints,
const HINT_PAUSE: Duration = Duration::from_millis(5);
/// without any hint after this long, for what became due,
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// and not before it has rested so many times as long as it took.
const REST: u32 = 4;

/// What those in one room have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RoomKey {
    pub(crate) queue: QueueName,
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) lease: Duration,
}

#[derive(Debug, Default)]
struct Room {
    turn: tokio::sync::Mutex<()>,
    bell: Notify,
}

/// All rooms.
#[derive(Debug, Default)]
pub(crate) struct Rooms(Mutex<Doors>);

#[derive(Debug, Default)]
struct Doors {
    all: HashMap<RoomKey, Arc<Room>>,
    /// The rooms to ring for a tag; those that wait for anything stand under `None`.
    by_tag: HashMap<QueueName, HashMap<Option<String>, Vec<Arc<Room>>>>,
}

impl Doors {
    fn open(&mut self, key: &RoomKey) -> Arc<Room> {
        if let Some(room) = self.all.get(key) {
            return Arc::clone(room);
        }
        let room = Arc::<Room>::default();
        let of_queue = self.by_tag.entry(key.queue.clone()).or_default();
        for tag in key.bells() {
            of_queue.entry(tag).or_default().push(Arc::clone(&room));
        }
        self.all.insert(key.clone(), Arc::clone(&room));
        room
    }

    fn close(&mut self, key: &RoomKey) {
        let (Some(room), Some(of_queue)) = (self.all.remove(key), self.by_tag.get_mut(&key.queue)) else { return };
        for tag in key.bells() {
            let Some(rooms) = of_queue.get_mut(&tag) else { continue };
            rooms.retain(|other| !Arc::ptr_eq(other, &room));
            if rooms.is_empty() {
                of_queue.remove(&tag);
            }
        }
        if of_queue.is_empty() {
            self.by_tag.remove(&key.queue);
        }
    }

    fn ring(&self, queue: &QueueName, tags: impl IntoIterator<Item = Option<String>>) {
        let Some(of_queue) = self.by_tag.get(queue) else { return };
        for tag in tags {
            of_queue.get(&tag).into_iter().flatten().for_each(|room| room.bell.notify_one());
        }
    }
}

impl RoomKey {
    /// What a room is rung for.
    fn bells(&self) -> Vec<Option<String>> {
        self.tags.as_ref().map_or_else(|| vec![None], |tags| tags.iter().cloned().map(Some).collect())
    }
}

/// Somebody's stay in a room. The last to leave takes the room away.
#[derive(Debug)]
struct Visit<'a> {
    rooms: &'a Rooms,
    key: RoomKey,
    room: Arc<Room>,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mut doors = self.rooms.doors();
        // Ours and the maps': nobody else is in it, and nobody can come in meanwhile.
        if Arc::strong_count(&self.room) == 2 + self.key.tags.as_ref().map_or(1, Vec::len) {
            doors.close(&self.key);
        }
    }
}

impl Rooms {
    fn doors(&self) -> MutexGuard<'_, Doors> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, key: RoomKey) -> Visit<'_> {
        let room = self.doors().open(&key);
        Visit { rooms: self, key, room }
    }

    /// Rings the rooms of a queue that wait for one of these tags, or for anything.
    pub(crate) fn came(&self, queue: &QueueName, tags: &[String]) {
        self.doors().ring(queue, tags.iter().cloned().map(Some).chain([None]));
    }

    /// Rings all rooms of a queue.
    pub(crate) fn ring(&self, queue: &QueueName) {
        let doors = self.doors();
        let of_queue = doors.by_tag.get(queue).into_iter().flat_map(HashMap::values);
        of_queue.flatten().for_each(|room| room.bell.notify_one());
    }

    /// Looks for all rooms that wait to be rung, until the store is gone.
    pub(crate) async fn look(&self, queue: &EventQueue) {
        let mut hints = queue.store().wakeups();
        let mut rested = Instant::now();
        loop {
            // No hint is a reason to look, too, and so is one that was missed.
            if let Ok(Err(RecvError::Closed)) = tokio::time::timeout(LOOK_EVERY, hints.recv()).await {
                return;
            }
            tokio::time::sleep_until(rested.max(Instant::now() + HINT_PAUSE)).await;
            hints = hints.resubscribe(); // what came meanwhile is looked for now
            let started = Instant::now();
            for (name, tags) in self.looked_for() {
                match queue.claimable(&name, tags).await {
                    Ok(found) => self.came(&name, &found),
                    Err(error) => tracing::debug!(%error, "waiting subscribers are told later"),
                }
            }
            rested = Instant::now() + started.elapsed() * REST;
        }
    }

    /// The tags that rooms wait for, by queue.
    fn looked_for(&self) -> Vec<(QueueName, Vec<String>)> {
        let doors = self.doors();
        let tags = |of_queue: &HashMap<Option<String>, _>| of_queue.keys().flatten().cloned().collect();
        doors.by_tag.iter().map(|(queue, of_queue)| (queue.clone(), tags(of_queue))).collect()
    }

    /// Claims up to `count` entries, waiting up to `wait` for the first.
    pub(crate) async fn claim(
        &self,
        key: RoomKey,
        consumer: &Consumer,
        count: usize,
        wait: Duration,
    ) -> tidegate::Result<Vec<QueuedEvent>> {
        let deadline = Instant::now() + wait;
        let found = consumer.poll_many(count).await?;
        if !found.is_empty() || wait.is_zero() {
            return Ok(found);
        }
        let visit = self.enter(key);
        let room = &visit.room;
        let Ok(_turn) = tokio::time::timeout_at(deadline, room.turn.lock()).await else { return Ok(Vec::new()) };
        loop {
            // A ring that comes while we look is kept for us, so none is missed.
            let found = consumer.poll_many(count).await?;
            if !found.is_empty() || Instant::now() >= deadline {
                return Ok(found);
            }
            let _ = tokio::time::timeout_at(deadline, room.bell.notified()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tag: &str) -> RoomKey {
        RoomKey { queue: QueueName::default(), tags: Some(vec![tag.into()]), lease: Duration::from_secs(1) }
    }

    #[test]
    fn the_last_to_leave_takes_the_room_away() {
        let rooms = Rooms::default();
        let (first, second) = (rooms.enter(key("a")), rooms.enter(key("a")));
        assert!(Arc::ptr_eq(&first.room, &second.room));
        drop(first);
        assert_eq!(rooms.doors().all.len(), 1);
        drop(second);
        let doors = rooms.doors();
        assert!(doors.all.is_empty() && doors.by_tag.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn only_those_are_rung_that_wait_for_it() {
        let rooms = Rooms::default();
        let held: Vec<Visit<'_>> = (0..10).map(|n| rooms.enter(key(&format!("t{n}")))).collect();
        let rung =
            async |n: usize| tokio::time::timeout(Duration::from_secs(1), held[n].room.bell.notified()).await.is_ok();
        rooms.came(&QueueName::default(), &["other".into(), "t7".into()]);
        assert!(rung(7).await);
        assert!(!rung(8).await);
        rooms.came(&QueueName::new("elsewhere").unwrap(), &["t7".into()]);
        assert!(!rung(7).await);
        rooms.ring(&QueueName::default());
        assert!(rung(7).await && rung(8).await);
    }
}
