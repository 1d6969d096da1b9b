//! Rooms for subscribers that wait for the same: only the first of each looks, the others cost nothing.
//!
//! A room's turn goes round in the order of arrival. Whoever has it waits for the queue's wake-ups; whoever gets an event,
//! gives up or hangs up passes the turn on. So two thousand waiting workers cost as much as one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate::{Consumer, QueueName, QueuedEvent};
use tokio::time::Instant;

/// What those in one room have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RoomKey {
    pub(crate) queue: QueueName,
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) lease: Duration,
}

type Turn = Arc<tokio::sync::Mutex<()>>;

/// All rooms.
#[derive(Debug, Default)]
pub(crate) struct Rooms(Mutex<HashMap<RoomKey, Turn>>);

impl Rooms {
    fn turn(&self, key: RoomKey) -> Turn {
        Arc::clone(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default())
    }

    /// Forgets rooms with nobody in them.
    pub(crate) fn tidy(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, turn| Arc::strong_count(turn) > 1);
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
        let turn = self.turn(key);
        let Ok(held) = tokio::time::timeout_at(deadline, turn.lock()).await else { return Ok(Vec::new()) };
        let events = consumer.wait_many(count, deadline.saturating_duration_since(Instant::now())).await;
        drop(held);
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn rooms_with_nobody_in_them_are_forgotten() {
        let rooms = Rooms::default();
        let key = RoomKey { queue: QueueName::default(), tags: None, lease: Duration::from_secs(1) };
        let turn = rooms.turn(key.clone());
        rooms.tidy();
        assert!(Arc::ptr_eq(&turn, &rooms.turn(key.clone())));
        drop(turn);
        rooms.tidy();
        assert!(rooms.0.lock().unwrap().is_empty());
    }
}
