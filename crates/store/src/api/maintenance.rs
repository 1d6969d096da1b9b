//! What a store needs done to it: the heartbeat, upkeep, elections, probes, retention.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::values::{Probe, Retained, Retention, Upkeep};

/// The verbs that keep a store healthy.
#[async_trait]
pub trait Maintenance: std::fmt::Debug + Send + Sync + 'static {
    /// Writes the store's heartbeat, without which no lease expires, and does nothing else. Returns the length of an
    /// outage if this call detected one; all leases were moved by it. Call it several times within
    /// [`outage_after`](StoreOptions::outage_after), and not behind anything that may take long.
    async fn beat(&self) -> Result<Option<Duration>> {
        Ok(self.maintain().await?.outage)
    }

    /// Makes this process the one that does a maintenance task for all processes, or keeps it so, until `lease` from
    /// now. `false` when another process holds the task.
    async fn elect(&self, _task: &'static str, _lease: Duration) -> Result<bool> {
        Ok(true)
    }

    /// One round of upkeep: the heartbeat (no lease expires during an outage), promotions and arrivals, expired entries
    /// and keys, partitions for the time to come. Cheap when there is nothing to do; called about once a second.
    async fn maintain(&self) -> Result<Upkeep>;

    /// Checks with as little work as possible whether a write and a claim would succeed now; changes nothing. Called
    /// about once a second; the future may be dropped.
    ///
    /// # Errors
    /// The error that a write or a claim would return.
    async fn probe(&self) -> Result<Probe> {
        Ok(Probe::default())
    }

    /// Removes one small batch of old audit rows, log rows and facts. Call it again with `next` as `from` and `next_facts`
    /// as `facts_from` until both are `None`; leave out the kind whose round is over.
    async fn retain(&self, retention: Retention) -> Result<Retained>;
}
