//! Lets subscribers wait for something to claim. Waiters that ask for the same share a wait list, of which one polls.
//!
//! The turn to poll goes round in order of arrival. A waiter that gets an event, times out or hangs up passes it on, so
//! two thousand workers that ask for the same cost as much as one.
//!
//! The store's wake-ups do not say for which tags, so each would make every wait list poll. Instead a list is woken by
//! what is published in this process under its tags, and one scan for all lists, after wake-ups of the store and
//! periodically, finds the rest: retries, releases, manual actions, and what other processes publish.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{Consumer, EventQueue, QueueName, QueuedEvent};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Delay from a wake-up to the scan, so that one scan serves many wake-ups.
const WAKE_UP_DELAY: Duration = Duration::from_millis(5);
/// Without a wake-up, scan this often: delayed entries become due without one.
const SCAN_EVERY: Duration = Duration::from_millis(250);
/// After a scan that took t, pause for 4t: scanning uses at most 20 % of the time.
const PAUSE_FACTOR: u32 = 4;

/// What the waiters of one wait list ask for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct WaitKey {
    pub(crate) queue: QueueName,
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) lease: Duration,
}

#[derive(Debug, Default)]
struct WaitList {
    /// Held by the one waiter that polls.
    turn: tokio::sync::Mutex<()>,
    wake_up: Notify,
}

/// All wait lists of a server.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<WaitIndex>);

#[derive(Debug, Default)]
struct WaitIndex {
    all: HashMap<WaitKey, Arc<WaitList>>,
    /// The wait lists to wake for a tag; those that accept any entry are under `None`.
    by_tag: HashMap<QueueName, HashMap<Option<String>, Vec<Arc<WaitList>>>>,
}

impl WaitIndex {
    fn get_or_create(&mut self, key: &WaitKey) -> Arc<WaitList> {
        if let Some(list) = self.all.get(key) {
            return Arc::clone(list);
        }
        let list = Arc::<WaitList>::default();
        let of_queue = self.by_tag.entry(key.queue.clone()).or_default();
        for tag in key.index_tags() {
            of_queue.entry(tag).or_default().push(Arc::clone(&list));
        }
        self.all.insert(key.clone(), Arc::clone(&list));
        list
    }

    fn remove(&mut self, key: &WaitKey) {
        let (Some(list), Some(of_queue)) = (self.all.remove(key), self.by_tag.get_mut(&key.queue)) else { return };
        for tag in key.index_tags() {
            let Some(lists) = of_queue.get_mut(&tag) else { continue };
            lists.retain(|other| !Arc::ptr_eq(other, &list));
            if lists.is_empty() {
                of_queue.remove(&tag);
            }
        }
        if of_queue.is_empty() {
            self.by_tag.remove(&key.queue);
        }
    }

    fn wake(&self, queue: &QueueName, tags: impl IntoIterator<Item = Option<String>>) {
        let Some(of_queue) = self.by_tag.get(queue) else { return };
        for tag in tags {
            of_queue.get(&tag).into_iter().flatten().for_each(|list| list.wake_up.notify_one());
        }
    }
}

impl WaitKey {
    /// The keys of [`WaitIndex::by_tag`] that this wait list is under.
    fn index_tags(&self) -> Vec<Option<String>> {
        self.tags.as_ref().map_or_else(|| vec![None], |tags| tags.iter().cloned().map(Some).collect())
    }
}

/// Membership in a wait list. When the last waiter leaves, the list is removed.
#[derive(Debug)]
struct Waiter<'a> {
    waiters: &'a Waiters,
    key: WaitKey,
    list: Arc<WaitList>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut index = self.waiters.index();
        // Only this waiter and the maps refer to the list, and none can join while the index is locked.
        if Arc::strong_count(&self.list) == 2 + self.key.tags.as_ref().map_or(1, Vec::len) {
            index.remove(&self.key);
        }
    }
}

impl Waiters {
    fn index(&self) -> MutexGuard<'_, WaitIndex> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, key: WaitKey) -> Waiter<'_> {
        let list = self.index().get_or_create(&key);
        Waiter { waiters: self, key, list }
    }

    /// Wakes the wait lists of a queue that ask for one of these tags, or for any entry.
    pub(crate) fn wake(&self, queue: &QueueName, tags: &[String]) {
        self.index().wake(queue, tags.iter().cloned().map(Some).chain([None]));
    }

    /// Scans for claimable entries on behalf of all wait lists and wakes those that ask for them. Returns when the
    /// store is closed.
    pub(crate) async fn scan(&self, queue: &EventQueue) {
        let mut hints = queue.wake_hints();
        let mut paused_until = Instant::now();
        loop {
            // Scan after a timeout too.
            if tokio::time::timeout(SCAN_EVERY, hints.next()).await == Ok(false) {
                return;
            }
            tokio::time::sleep_until(paused_until.max(Instant::now() + WAKE_UP_DELAY)).await;
            hints.skip(); // the scan below covers them
            let started = Instant::now();
            for (name, tags) in self.wanted_tags() {
                match queue.claimable(&name, tags).await {
                    Ok(found) => self.wake(&name, &found),
                    Err(error) => tracing::debug!(%error, queue = %name, "scan for waiting subscribers failed"),
                }
            }
            paused_until = Instant::now() + started.elapsed() * PAUSE_FACTOR;
        }
    }

    /// The tags that wait lists ask for, by queue.
    fn wanted_tags(&self) -> Vec<(QueueName, Vec<String>)> {
        let index = self.index();
        let tags = |of_queue: &HashMap<Option<String>, _>| of_queue.keys().flatten().cloned().collect();
        index.by_tag.iter().map(|(queue, of_queue)| (queue.clone(), tags(of_queue))).collect()
    }

    /// Claims up to `count` entries, waiting up to `wait` for the first.
    pub(crate) async fn claim(
        &self,
        key: WaitKey,
        consumer: &Consumer,
        count: usize,
        wait: Duration,
    ) -> tidegate::Result<Vec<QueuedEvent>> {
        let deadline = Instant::now() + wait;
        let found = consumer.poll_many(count).await?;
        if !found.is_empty() || wait.is_zero() {
            return Ok(found);
        }
        let waiter = self.join(key);
        let list = &waiter.list;
        let Ok(_turn) = tokio::time::timeout_at(deadline, list.turn.lock()).await else { return Ok(Vec::new()) };
        loop {
            // `Notify` keeps a wake-up that comes during the poll, so none is missed.
            let found = consumer.poll_many(count).await?;
            if !found.is_empty() || Instant::now() >= deadline {
                return Ok(found);
            }
            let _ = tokio::time::timeout_at(deadline, list.wake_up.notified()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tag: &str) -> WaitKey {
        WaitKey { queue: QueueName::default(), tags: Some(vec![tag.into()]), lease: Duration::from_secs(1) }
    }

    #[test]
    fn the_last_to_leave_takes_the_room_away() {
        let waiters = Waiters::default();
        let (first, second) = (waiters.join(key("a")), waiters.join(key("a")));
        assert!(Arc::ptr_eq(&first.list, &second.list));
        drop(first);
        assert_eq!(waiters.index().all.len(), 1);
        drop(second);
        let index = waiters.index();
        assert!(index.all.is_empty() && index.by_tag.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn only_those_are_rung_that_wait_for_it() {
        let waiters = Waiters::default();
        let held: Vec<Waiter<'_>> = (0..10).map(|n| waiters.join(key(&format!("t{n}")))).collect();
        let is_woken = async |n: usize| {
            tokio::time::timeout(Duration::from_secs(1), held[n].list.wake_up.notified()).await.is_ok()
        };
        waiters.wake(&QueueName::default(), &["other".into(), "t7".into()]);
        assert!(is_woken(7).await);
        assert!(!is_woken(8).await);
        waiters.wake(&QueueName::new("elsewhere").unwrap(), &["t7".into()]);
        assert!(!is_woken(7).await);
        waiters.wake(&QueueName::default(), &["t8".into(), "t7".into()]);
        assert!(is_woken(7).await && is_woken(8).await);
    }
}
