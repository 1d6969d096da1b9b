//! Rooms for subscribers that wait for the same: only the first of each looks, the others cost nothing.
//!
//! A room's turn goes round in the order of arrival. Whoever has it waits; whoever gets an event, gives up or hangs up
//! passes the turn on. So two thousand workers that wait for the same cost as much as one.
//!
//! While there are few rooms, each listens to all the queue's wake-ups. When there are many, a wake-up that says only
//! "something came" would have all of them look: then a room is rung by what is published here under its tags, and one
//! look for all of them, at every hint of the store and now and then, says which others to ring.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{Consumer, EventQueue, QueueName, QueuedEvent};
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

/// Up to so many rooms listen to everything.
const FEW: usize = 32;
/// The look for all rooms comes so long after a hint, to be one for many hints,
const HINT_PAUSE: Duration = Duration::from_millis(10);
/// without any hint after this long, for what became due,
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// and rests so many times as long as it took.
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
        if self.is_anybody_to_be_rung() {
            self.ring_tags(queue, &tags.iter().map(String::as_str).collect());
        } // else they hear it from the queue
    }

    /// Rings all rooms of a queue.
    pub(crate) fn ring(&self, queue: &QueueName) {
        self.all().iter().filter(|(key, _)| key.queue == *queue).for_each(|(_, room)| room.bell.notify_one());
    }

    /// Looks for all rooms that wait to be rung, until the store is gone.
    pub(crate) async fn look(&self, queue: &EventQueue) {
        let mut hints = queue.store().wakeups();
        let mut rest = HINT_PAUSE;
        loop {
            // No hint is a reason to look, too, and so is one that was missed.
            if let Ok(Err(RecvError::Closed)) = tokio::time::timeout(LOOK_EVERY, hints.recv()).await {
                return;
            }
            tokio::time::sleep(rest).await;
            hints = hints.resubscribe(); // what came meanwhile is looked for now
            let started = Instant::now();
            for (name, tags) in self.looked_for() {
                match queue.claimable(&name, tags.into_iter().collect()).await {
                    Ok(found) => self.ring_tags(&name, &found.iter().map(String::as_str).collect()),
                    Err(error) => tracing::debug!(%error, "waiting subscribers are told later"),
                }
            }
            rest = HINT_PAUSE.max(started.elapsed() * REST);
        }
    }

    /// The tags that rooms wait for, by queue, if these are too many to listen for themselves.
    fn looked_for(&self) -> BTreeMap<QueueName, BTreeSet<String>> {
        let mut wanted: BTreeMap<QueueName, BTreeSet<String>> = BTreeMap::new();
        if self.is_anybody_to_be_rung() {
            for key in self.all().keys() {
                wanted.entry(key.queue.clone()).or_default().extend(key.tags.iter().flatten().cloned());
            }
        }
        wanted
    }

    /// Rings the rooms of a queue that wait for one of these tags, or for anything.
    fn ring_tags(&self, queue: &QueueName, tags: &BTreeSet<&str>) {
        let all = self.all();
        let wants = |key: &RoomKey| {
            key.queue == *queue
                && key.tags.as_ref().is_none_or(|wanted| wanted.iter().any(|tag| tags.contains(tag.as_str())))
        };
        all.iter().filter(|(key, _)| wants(key)).for_each(|(_, room)| room.bell.notify_one());
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
