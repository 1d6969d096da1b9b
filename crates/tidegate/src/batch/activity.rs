//! Which consumers of this process are alive: when each set of claim parameters was last polled, and last announced to
//! the store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::claim_key::ClaimKey;

/// A consumer that polled within this time is alive.
const ACTIVE_WITHIN: Duration = Duration::from_secs(30);

/// When a key was last polled and announced. Outlives its batcher, so that handles made for one poll count too.
#[derive(Debug)]
pub(crate) struct Activity {
    start: Instant,
    /// Milliseconds since `start`, plus one; 0 means never. The same for `announced`.
    polled: AtomicU64,
    announced: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self { start: Instant::now(), polled: AtomicU64::new(0), announced: AtomicU64::new(0) }
    }

    fn clock(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    pub(crate) fn poll(&self) {
        self.polled.store(self.clock(), Ordering::Relaxed);
    }

    pub(crate) fn announce(&self) {
        self.announced.store(self.clock(), Ordering::Relaxed);
    }

    pub(crate) fn polled_within(&self, time: Duration) -> bool {
        is_within(self.polled.load(Ordering::Relaxed), self.clock(), time)
    }

    pub(crate) fn announced_within(&self, time: Duration) -> bool {
        is_within(self.announced.load(Ordering::Relaxed), self.clock(), time)
    }
}

fn is_within(at: u64, now: u64, time: Duration) -> bool {
    at > 0 && u128::from(now.saturating_sub(at)) < time.as_millis()
}

/// The activity of all keys that were polled lately or have a batcher.
#[derive(Debug, Default)]
pub(crate) struct Activities(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    by_key: HashMap<ClaimKey, Arc<Activity>>,
    /// Unused keys are removed when there are this many.
    sweep_at: usize,
}

impl Activities {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The activity of a key, created at the first call.
    pub(crate) fn of(&self, key: &ClaimKey) -> Arc<Activity> {
        let mut known = self.lock();
        if let Some(activity) = known.by_key.get(key) {
            return Arc::clone(activity);
        }
        if known.by_key.len() >= known.sweep_at {
            // A batcher holds the activity of its key.
            let is_used = |activity: &Arc<Activity>| Arc::strong_count(activity) > 1;
            known.by_key.retain(|_, activity| is_used(activity) || activity.polled_within(ACTIVE_WITHIN));
            known.sweep_at = (known.by_key.len() * 2).max(64);
        }
        let activity = Arc::new(Activity::new());
        known.by_key.insert(key.clone(), Arc::clone(&activity));
        activity
    }

    /// The keys whose consumers are alive.
    pub(crate) fn active(&self) -> Vec<(ClaimKey, Arc<Activity>)> {
        let known = self.lock();
        let active = known.by_key.iter().filter(|(_, activity)| activity.polled_within(ACTIVE_WITHIN));
        active.map(|(key, activity)| (key.clone(), Arc::clone(activity))).collect()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::QueueName;

    use super::*;

    fn key(worker: usize) -> ClaimKey {
        let (queue, worker) = (QueueName::default(), worker.to_string());
        ClaimKey { queue, types: None, lease: Duration::from_secs(1), worker, tags: None, audit: false }
    }

    #[test]
    fn keys_are_alive_from_their_first_poll() {
        let all = Activities::default();
        let one = all.of(&key(1));
        assert!(all.active().is_empty());
        one.poll();
        drop(one);
        assert_eq!(all.active().len(), 1);
        assert!(all.of(&key(1)).polled_within(ACTIVE_WITHIN));
    }

    #[test]
    fn unused_keys_are_removed_in_time() {
        let all = Activities::default();
        let used = all.of(&key(0));
        all.of(&key(1)).poll();
        for worker in 2..1_000 {
            drop(all.of(&key(worker)));
        }
        assert!(all.lock().by_key.len() < 100);
        assert!(Arc::ptr_eq(&used, &all.of(&key(0))), "a key with a batcher stays");
        assert_eq!(all.active().len(), 1, "a key that was polled stays");
    }
}
