//! Rooms for subscribers that wait for the same: only the first of each looks, the others cost nothing.
//!
//! A room's turn goes round in the order of arrival. Whoever has it waits; whoever gets an event, gives up or hangs up
//! passes the turn on. So two thousand workers that wait for the same cost as much as one.
//!
//! While there are few rooms, each listens to all the queue's wake-ups. When there are many, a wake-up that says only
//! "something came" would have all of them look: then a room is rung by what is published here under its tags, by hints
//! from elsewhere no more often than is good, and else looks by itself now and then.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{Consumer, QueueName, QueuedEvent};
use tidegate_store::{Store, Wake};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

/// Up to so many rooms listen to everything.
const FEW: usize = 32;
/// Looks of all rooms together are spread so that there is one per this long.
const SPREAD: Duration = Duration::from_millis(8);
const LONGEST_LOOK: Duration = Duration::from_secs(15);
/// A hint has so many rooms look, then the next after a pause.
const HINT_STEP: usize = 16;
const HINT_PAUSE: Duration = Duration::from_millis(20);
/// Counting what is left takes at most one part in so many of the time.
const COUNT_SHARE: u32 = 20;

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
pub(crate) struct Rooms {
    all: Mutex<HashMap<RoomKey, Arc<Room>>>,
    /// Those who wait to be rung, because there were many rooms when they came.
    rung: AtomicUsize,
}

/// Somebody's stay in a room. The last to leave takes the room away.
#[derive(Debug)]
struct Visit<'a> {
    rooms: &'a Rooms,
    key: RoomKey,
    room: Arc<Room>,
    /// How many rooms there were.
    count: usize,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mut all = self.rooms.all();
        if Arc::strong_count(&self.room) == 2 {
            all.remove(&self.key); // the map's and ours: nobody else is in it, and nobody can come in meanwhile
        }
    }
}

/// Counts somebody who waits to be rung.
struct Rung<'a>(&'a AtomicUsize);

impl<'a> Rung<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Rung<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Rooms {
    fn all(&self) -> MutexGuard<'_, HashMap<RoomKey, Arc<Room>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, key: RoomKey) -> Visit<'_> {
        let mut all = self.all();
        let room = Arc::clone(all.entry(key.clone()).or_default());
        Visit { rooms: self, key, room, count: all.len() }
    }

    fn is_anybody_to_be_rung(&self) -> bool {
        self.rung.load(Ordering::SeqCst) > 0
    }

    /// Rings the rooms that wait for what was just published.
    pub(crate) fn published(&self, queue: &QueueName, tags: &[String]) {
        if !self.is_anybody_to_be_rung() {
            return; // they hear it from the queue
        }
        let all = self.all();
        let wants = |key: &RoomKey| {
            key.queue == *queue && key.tags.as_ref().is_none_or(|wanted| wanted.iter().any(|tag| tags.contains(tag)))
        };
        all.iter().filter(|(key, _)| wants(key)).for_each(|(_, room)| room.bell.notify_one());
    }

    /// Rings all rooms of a queue.
    pub(crate) fn ring(&self, queue: &QueueName) {
        self.rooms_of(queue).iter().for_each(|room| room.bell.notify_one());
    }

    /// Passes on hints of the store until it is gone: a few rooms at a time, so that nobody waits behind all of them; what
    /// comes meanwhile is one more round. Most of what came was published here and is taken already, so what is left is
    /// counted first.
    pub(crate) async fn hear(&self, store: &Arc<dyn Store>) {
        let mut hints = store.wakeups();
        let mut count_again = Instant::now();
        loop {
            let is_any = match hints.recv().await {
                Err(RecvError::Closed) => return,
                Ok(Wake::Queues(_)) => false,
                Ok(Wake::Any) | Err(RecvError::Lagged(_)) => true,
            };
            tokio::time::sleep(HINT_PAUSE).await;
            hints = hints.resubscribe(); // what came meanwhile is looked for now
            for queue in self.crowded_queues() {
                let started = Instant::now();
                if !is_any && started >= count_again {
                    let left = store.depth(&queue).await;
                    count_again = Instant::now() + started.elapsed() * COUNT_SHARE;
                    if left.is_ok_and(|left| left.ready == 0) {
                        continue;
                    }
                }
                for some in self.rooms_of(&queue).chunks(HINT_STEP) {
                    some.iter().for_each(|room| room.bell.notify_one());
                    tokio::time::sleep(HINT_PAUSE).await;
                }
            }
        }
    }

    /// The queues of all rooms, if these are too many to listen for themselves.
    fn crowded_queues(&self) -> BTreeSet<QueueName> {
        if !self.is_anybody_to_be_rung() {
            return BTreeSet::new();
        }
        self.all().keys().map(|key| key.queue.clone()).collect()
    }

    fn rooms_of(&self, queue: &QueueName) -> Vec<Arc<Room>> {
        let all = self.all();
        all.iter().filter(|(key, _)| key.queue == *queue).map(|(_, room)| Arc::clone(room)).collect()
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
        if visit.count <= FEW {
            return consumer.wait_many(count, deadline.saturating_duration_since(Instant::now())).await;
        }
        let _rung = Rung::new(&self.rung);
        loop {
            // A ring that comes while we look is kept for us, so none is missed.
            let found = consumer.poll_many(count).await?;
            let now = Instant::now();
            if !found.is_empty() || now >= deadline {
                return Ok(found);
            }
            let rooms = u32::try_from(self.all().len()).unwrap_or(u32::MAX);
            let look = now + (SPREAD * rooms).clamp(Duration::from_millis(500), LONGEST_LOOK);
            let _ = tokio::time::timeout_at(deadline.min(look), room.bell.notified()).await;
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
        assert_eq!(rooms.all().len(), 1);
        drop(second);
        assert!(rooms.all().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn among_many_rooms_only_those_are_rung_that_wait_for_it() {
        let rooms = Rooms::default();
        let held: Vec<Visit<'_>> = (0..=FEW).map(|n| rooms.enter(key(&format!("t{n}")))).collect();
        let _waits = Rung::new(&rooms.rung);
        let rung =
            async |n: usize| tokio::time::timeout(Duration::from_secs(1), held[n].room.bell.notified()).await.is_ok();
        rooms.published(&QueueName::default(), &["other".into(), "t7".into()]);
        assert!(rung(7).await);
        assert!(!rung(8).await);
        rooms.published(&QueueName::new("elsewhere").unwrap(), &["t7".into()]);
        assert!(!rung(7).await);
        rooms.ring(&QueueName::default());
        assert!(rung(7).await && rung(8).await);
    }
}
