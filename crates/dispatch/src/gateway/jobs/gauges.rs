//! Gauges of what waits, read from time to time and bounded, never by walking over everything.

use std::collections::BTreeSet;

use metrics::gauge;
use tidegate::Tsid;

use crate::gateway::Gateway;
use crate::gateway::error::Result;

/// How many blocked groups are counted.
const GROUPS: usize = 1_000;
/// How many pools have gauges of their own.
const POOLS: usize = 100;

impl Gateway {
    /// Measures what waits for each pool, the slots that are in use, and how many groups are blocked. The numbers are those of
    /// the database: all nodes measure the same.
    ///
    /// # Errors
    /// The store's.
    pub async fn measure_jobs(&self) -> Result<()> {
        let senders = self.senders().await?;
        let tasks = self.with_pools_as_they_are(self.task_lanes().await?).await?;
        let of_subscriptions = senders.by_id.values().map(|one| one.body.dispatch_pool);
        let pools: BTreeSet<Option<Tsid>> = of_subscriptions.chain(tasks.pools()).collect();
        let pools: Vec<Option<Tsid>> = pools.into_iter().take(POOLS).collect();
        for (pool, holds) in pools.iter().zip(self.pools_hold_in(&pools, &senders, tasks).await?) {
            let label = pool.map_or_else(|| "default".to_owned(), |id| id.to_string());
            let oldest = holds.oldest.map_or(0.0, |oldest| oldest.as_secs_f64());
            gauge!("tidegate_jobs_waiting", "pool" => label.clone()).set(holds.waiting as f64);
            gauge!("tidegate_jobs_oldest_seconds", "pool" => label.clone()).set(oldest);
            if pool.is_some() {
                gauge!("tidegate_pool_slots_in_use", "pool" => label).set(f64::from(holds.in_use()));
            }
        }
        let blocked = self.blocked_groups(None, None, GROUPS).await?;
        gauge!("tidegate_groups_blocked").set(blocked.groups.len() as f64);
        Ok(())
    }
}
