//! Gauges of what waits, read from time to time and bounded, never by walking over everything at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use metrics::gauge;
use tidegate::{BlockedCount, Tsid};

use super::PoolHolds;
use crate::gateway::Gateway;
use crate::gateway::error::Result;

/// How many pieces of all groups one measurement looks at. The next one goes on behind them.
const PIECES: usize = 5;
/// How many pools have labels of their own.
const LABELS: usize = 100;
/// What all others are shown under, together.
const OTHER: &str = "_other";
/// How many pools are measured.
const POOLS: usize = 1_000;

/// What was measured before.
#[derive(Debug, Default)]
pub(in crate::gateway) struct Gauges(tokio::sync::Mutex<Measured>);

#[derive(Debug, Default)]
struct Measured {
    /// The pools that were shown last. What has no lanes any more is shown as empty, not as it was.
    labels: BTreeSet<String>,
    blocked: BlockedWalk,
}

/// A walk over the groups of all queues, in pieces.
#[derive(Debug, Default)]
struct BlockedWalk {
    after: Option<(i64, String)>,
    /// How many it has found, and how many there were when the last walk was complete.
    found: u64,
    complete: u64,
}

/// What is shown of one label.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shown {
    waiting: u64,
    oldest: Duration,
    in_use: u64,
}

impl BlockedWalk {
    /// Adds a piece. Returns whether there are more.
    fn add(&mut self, piece: BlockedCount) -> bool {
        self.found += piece.groups;
        self.after = piece.next;
        if self.after.is_some() {
            return true;
        }
        self.complete = std::mem::take(&mut self.found);
        false
    }

    /// How many groups are blocked, as far as is known.
    fn shown(&self) -> u64 {
        self.complete.max(self.found)
    }
}

impl Shown {
    fn add(&mut self, holds: &PoolHolds) {
        self.waiting += holds.waiting;
        self.oldest = self.oldest.max(holds.oldest.unwrap_or_default());
        self.in_use += holds.in_use;
    }
}

/// What pools hold, by their labels.
fn labelled(pools: &[Option<Tsid>], holds: &[PoolHolds]) -> BTreeMap<String, Shown> {
    let mut shown: BTreeMap<String, Shown> = BTreeMap::new();
    for (at, (pool, holds)) in pools.iter().zip(holds).enumerate() {
        let label = match pool {
            _ if at >= LABELS => OTHER.to_owned(),
            Some(id) => id.to_string(),
            None => "default".to_owned(),
        };
        shown.entry(label).or_default().add(holds);
    }
    shown
}

impl Measured {
    fn show_pools(&mut self, mut shown: BTreeMap<String, Shown>) {
        let labels = shown.keys().cloned().collect();
        for label in std::mem::replace(&mut self.labels, labels) {
            shown.entry(label).or_default();
        }
        for (label, Shown { waiting, oldest, in_use }) in shown {
            gauge!("tidegate_jobs_waiting", "pool" => label.clone()).set(waiting as f64);
            gauge!("tidegate_jobs_oldest_seconds", "pool" => label.clone()).set(oldest.as_secs_f64());
            gauge!("tidegate_pool_slots_in_use", "pool" => label).set(in_use as f64);
        }
    }
}

impl Gateway {
    /// Measures what waits for each pool, the slots that are in use, and how many groups are blocked. The numbers are those of
    /// the database: all nodes measure the same.
    ///
    /// # Errors
    /// The store's.
    pub async fn measure_jobs(&self) -> Result<()> {
        let mut measured = self.gauges.0.lock().await;
        let senders = self.senders().await?;
        let tasks = self.with_pools_as_they_are(self.task_lanes().await?).await?;
        let named: BTreeSet<Option<Tsid>> = senders.pools().chain(tasks.pools()).collect();
        let pools: Vec<Option<Tsid>> = named.into_iter().take(POOLS).collect();
        let holds = self.pools_hold_in(&pools, &senders, tasks).await?;
        measured.show_pools(labelled(&pools, &holds));
        self.measure_blocked(&mut measured.blocked).await
    }

    async fn measure_blocked(&self, walk: &mut BlockedWalk) -> Result<()> {
        for _ in 0..PIECES {
            let piece = self.queue.job_desk().count_blocked(walk.after.clone()).await?;
            if !walk.add(piece) {
                break;
            }
        }
        gauge!("tidegate_groups_blocked").set(walk.shown() as f64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_groups_are_those_of_the_last_whole_walk_or_more() {
        let mut walk = BlockedWalk::default();
        let piece = |groups, next: Option<i64>| BlockedCount { groups, next: next.map(|at| (at, String::new())) };
        assert!(walk.add(piece(0, Some(1))));
        assert!(walk.add(piece(3, Some(2))));
        assert_eq!((walk.shown(), walk.after.as_ref().map(|after| after.0)), (3, Some(2)), "those it has found");
        assert!(!walk.add(piece(2, None)));
        assert_eq!((walk.shown(), &walk.after), (5, &None));
        assert!(walk.add(piece(1, Some(1))));
        assert_eq!(walk.shown(), 5, "until it is known that there are fewer");
        assert!(!walk.add(piece(0, None)));
        assert_eq!(walk.shown(), 1);
    }

    #[test]
    fn few_pools_have_labels_of_their_own() {
        let pools: Vec<Option<Tsid>> =
            std::iter::once(None).chain((1..=120).map(|id| Some(Tsid::from_i64(id)))).collect();
        let hold = |at: u64| PoolHolds {
            waiting: 1,
            oldest: Some(Duration::from_secs(at)),
            in_use: 2,
            ..PoolHolds::default()
        };
        let holds: Vec<PoolHolds> = (0..121).map(hold).collect();
        let shown = labelled(&pools, &holds);
        assert_eq!(shown.len(), LABELS + 1);
        assert_eq!(shown["default"], Shown { waiting: 1, oldest: Duration::ZERO, in_use: 2 });
        assert_eq!(shown[OTHER], Shown { waiting: 21, oldest: Duration::from_secs(120), in_use: 42 });
    }
}
