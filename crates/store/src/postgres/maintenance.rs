//! Maintenance, which one process does for all, elected by a lease: removes unused lanes, and consumers and nodes that are
//! gone.

use std::time::{Duration, Instant};

use tokio_postgres::types::ToSql;

use crate::error::Result;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::{Inner, Opened};
use crate::postgres::items::micros;
use crate::postgres::upkeep::Faults;
use crate::values::Family;

/// How long a process stays elected without renewing its lease.
const LEASE: Duration = Duration::from_secs(60);
/// Consumers that were not seen for this long are removed.
const CONSUMERS_KEPT: Duration = Duration::from_secs(24 * 3600);
/// Slots and moments of pools that nobody has asked about for this long are removed.
const LIMITS_KEPT: Duration = Duration::from_secs(24 * 3600);
/// The name of the task that a process is elected for.
const UPKEEP: &str = "upkeep";
/// How long closing waits for giving the lease up; otherwise it expires by itself.
const RESIGN_WITHIN: Duration = Duration::from_secs(1);

impl Opened {
    /// Records the lanes used here and, if this process is elected, does maintenance. At most every 15 seconds.
    pub(super) async fn maintain_for_all(&self, faults: &mut Faults) {
        let entries = self.family(Family::Entries);
        let turns = &entries.shared.turns;
        if !turns.is_due(entries.moment()) {
            return;
        }
        for inner in &self.families {
            faults.or_default(inner.note_lanes().await.map_err(Fault::into_error));
        }
        if !faults.or_default(entries.elect(UPKEEP, LEASE).await) {
            return;
        }
        let began = Instant::now();
        if turns.may_look_at_lanes(began) {
            for inner in &self.families {
                faults.or_default(inner.tend_lanes().await.map_err(Fault::into_error));
            }
            turns.looked_at_lanes(began.elapsed(), Instant::now());
        }
        for inner in &self.families {
            let params: [&(dyn ToSql + Sync); 2] = [&inner.now(), &micros(CONSUMERS_KEPT)];
            faults.or_default(inner.execute(&inner.sql.queues.forget_consumers, &params).await);
        }
        let params: [&(dyn ToSql + Sync); 2] = [&entries.now(), &micros(LIMITS_KEPT)];
        for forget in [&entries.sql.dispatch.forget_slots, &entries.sql.dispatch.forget_rates] {
            faults.or_default(entries.execute(forget, &params).await);
        }
    }
}

impl Inner {
    /// Elects this process for a task, or renews its lease. False when another process is elected.
    pub(super) async fn elect(&self, task: &str, lease: Duration) -> Result<bool> {
        let params: [&(dyn ToSql + Sync); 4] = [&self.now(), &task, &self.shared.turns.name, &micros(lease)];
        Ok(self.execute(&self.sql.heartbeat.elect, &params).await? > 0)
    }

    /// Gives up all elections of this process, so that another one can take over at once.
    pub(super) async fn resign(&self) {
        let params: [&(dyn ToSql + Sync); 1] = [&self.shared.turns.name];
        let resigned = self.execute(&self.sql.heartbeat.resign, &params);
        if let Ok(Err(error)) = tokio::time::timeout(RESIGN_WITHIN, resigned).await {
            tracing::debug!(%error, "could not give up the maintenance lease, it will expire");
        }
    }
}
