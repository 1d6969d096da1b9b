//! The claim batchers: concurrent polls with equal parameters merge into one claim.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tidegate_store::Claimed;

use super::activity::Activity;
use super::batcher::Batcher;
use super::claim_key::ClaimKey;
use super::limits::BatcherLimits;
use crate::background::wake::WakeUp;
use crate::error::Result;
use crate::queue::delivery::{Origin, QueuedEvent};
use crate::queue::shared::Shared;
use crate::trace;

/// How long to wait for a claim that is under way when its caller stops, or past the caller's own timeout.
pub(crate) const LAST_CLAIM: Duration = Duration::from_secs(5);

/// Merges the polls of one [`ClaimKey`].
pub(crate) struct ClaimBatcher {
    pub(crate) origin: Arc<Origin>,
    pub(crate) wake_up: Arc<WakeUp>,
    batcher: Batcher<usize, Vec<QueuedEvent>>,
    pub(super) activity: Arc<Activity>,
    /// At most one waiter has a waiting claim in the store; the polls of the others merge.
    pub(super) has_waiting_claim: AtomicBool,
}

impl fmt::Debug for ClaimBatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimBatcher").field("key", &self.origin.key).finish_non_exhaustive()
    }
}

impl ClaimBatcher {
    fn new(shared: &Arc<Shared>, key: ClaimKey) -> Self {
        let base = shared.batcher_limits(2);
        let limits = BatcherLimits {
            batch_weight: base.batch_items,
            room_weight: base.room_items.max(base.batch_items),
            skip_gone: true,
            ..base
        };
        let (wake_up, activity) = (shared.wake_ups.of(&key.queue), shared.activities.of(&key));
        let origin = Arc::new(Origin { shared: Arc::clone(shared), key });
        let batcher = {
            let origin = Arc::clone(&origin);
            Batcher::new("claim", limits, |wanted| *wanted, move |wanted| claim(Arc::clone(&origin), wanted))
        };
        Self { origin, wake_up, batcher, activity, has_waiting_claim: AtomicBool::new(false) }
    }

    /// How many claims may run at once.
    pub(crate) fn at_once(&self) -> usize {
        self.batcher.at_once()
    }

    /// Claims up to `count` entries, in one claim with other polls.
    pub(crate) async fn claim(&self, count: usize) -> Result<Vec<QueuedEvent>> {
        self.activity.poll();
        self.batcher.call(count).await
    }

    /// Waits for claims that are under way, but no longer than [`LAST_CLAIM`]. They may still return events, and other
    /// consumers may use the batcher too.
    pub(crate) async fn wait_for_last_claim(&self) {
        // Past that time, events of a late claim are released when it is answered.
        let _ = tokio::time::timeout(LAST_CLAIM, self.batcher.idle()).await;
    }
}

/// One claim for all polls of a flush; entries are handed out in the order of the polls.
async fn claim(origin: Arc<Origin>, wanted: Vec<usize>) -> Result<Vec<Result<Vec<QueuedEvent>>>> {
    // The lease begins at some moment of this call, so its length is counted from before the call.
    let from = Instant::now();
    let claimed = origin.shared.store.claim(origin.key.claim(wanted.iter().sum())).await?;
    let mut rest = delivered(&origin, claimed, from);
    let share = |count: usize| Ok(rest.by_ref().take(count).collect());
    Ok(wanted.into_iter().map(share).collect())
}

pub(super) fn delivered(
    origin: &Arc<Origin>,
    claimed: Vec<Claimed>,
    from: Instant,
) -> impl Iterator<Item = QueuedEvent> {
    let now = Instant::now();
    meter(origin, &claimed);
    claimed.into_iter().map(move |data| QueuedEvent::new(data, Arc::clone(origin), from, now))
}

fn meter(origin: &Origin, claimed: &[Claimed]) {
    let meters = &origin.shared.meters;
    meters.claimed.increment(claimed.len() as u64);
    origin.shared.count_exhausted();
    for entry in claimed {
        let waited = (entry.claimed_at.as_microsecond() - entry.fact.created_at.as_microsecond()).max(0);
        meters.publish_to_claim.record(waited as f64 / 1e6);
        trace::claimed(entry, &origin.key.worker);
    }
}

/// The claim batchers of one opened queue, keyed by claim parameters. A batcher lives as long as a consumer uses it.
#[derive(Debug, Default)]
pub(crate) struct ClaimBatchers(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    by_key: HashMap<ClaimKey, Weak<ClaimBatcher>>,
    /// Keys without a batcher are removed when there are this many.
    sweep_at: usize,
}

impl ClaimBatchers {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The batcher of all polls with these claim parameters, created when there is none.
    pub(crate) fn of(&self, shared: &Arc<Shared>, key: &ClaimKey) -> Arc<ClaimBatcher> {
        let mut known = self.lock();
        if let Some(batcher) = known.by_key.get(key).and_then(Weak::upgrade) {
            return batcher;
        }
        if known.by_key.len() >= known.sweep_at {
            known.by_key.retain(|_, batcher| batcher.strong_count() > 0);
            known.sweep_at = (known.by_key.len() * 2).max(64);
        }
        let batcher = Arc::new(ClaimBatcher::new(shared, key.clone()));
        // Asked under the lock: a queue that closes after this finds the batcher in the map.
        if shared.is_closed() {
            batcher.batcher.close();
        }
        known.by_key.insert(key.clone(), Arc::downgrade(&batcher));
        batcher
    }

    /// Refuses further claims, and waits for those that are under way.
    pub(crate) async fn close(&self) {
        let batchers: Vec<_> = self.lock().by_key.values().filter_map(Weak::upgrade).collect();
        batchers.iter().for_each(|claims| claims.batcher.close());
        for claims in &batchers {
            claims.batcher.idle().await;
        }
    }
}
