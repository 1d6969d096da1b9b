//! Deliveries on PostgreSQL: which lanes wait, the limits of pools, and attempts.
//!
//! Limits are decided under a lock for each pool (pools share 128 of them), which a transaction takes together and in
//! order before it reads what all nodes hold. They wait for no row: nothing else writes these.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join, join3};
use tidegate_core::{EntryId, QueueName, Timestamp};
use tokio_postgres::types::ToSql;

use crate::api::Dispatch;
use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::{Fault, all, both};
use crate::postgres::engine::row::{count, queue_name};
use crate::postgres::engine::store::{Inner, PostgresStore};
use crate::postgres::items::clean;
use crate::postgres::statements::dispatch::{AttemptRow, LimitRow, WaitingRow, lock_pools};
use crate::sql::Only;
use crate::values::dispatch::{
    LimitPlan, SlotsRow, StoredLimits, WaitingLane, check_asks, check_nodes, check_tasks, plan_limits,
};
use crate::values::{Batch, Family, JobAttempt, LimitAsk, LimitGrant, WaitingLanes};

#[async_trait]
impl Dispatch for PostgresStore {
    async fn waiting_lanes(&self, queue: Option<QueueName>) -> Result<WaitingLanes> {
        self.of(Family::Jobs).detached(|inner| async move { inner.waiting_lanes(queue).await }).await
    }

    async fn limits(&self, node: &str, asks: Vec<LimitAsk>, hold: Duration) -> Result<Vec<LimitGrant>> {
        check_asks(node, &asks)?;
        let node = node.to_owned();
        self.of(Family::Jobs).detached(|inner| async move { inner.limits(&node, &asks, hold).await }).await
    }

    async fn slot_holders(&self) -> Result<Vec<String>> {
        self.of(Family::Jobs).detached(|inner| async move { inner.slot_holders().await }).await
    }

    async fn release_slots(&self, nodes: Vec<String>) -> Result<()> {
        check_nodes(&nodes)?;
        if nodes.is_empty() {
            return Ok(());
        }
        self.of(Family::Jobs).detached(|inner| async move { inner.release_slots(&nodes).await }).await
    }

    async fn job_attempts(&self, id: EntryId) -> Result<Vec<JobAttempt>> {
        self.of(Family::Jobs).detached(|inner| async move { inner.job_attempts(id).await }).await
    }

    async fn tasks(&self, ids: Vec<EntryId>) -> Result<Vec<Option<String>>> {
        check_tasks(&ids)?;
        self.of(Family::Jobs).detached(|inner| async move { inner.tasks(&ids).await }).await
    }
}

impl Inner {
    async fn waiting_lanes(&self, queue: Option<QueueName>) -> Result<WaitingLanes> {
        let lanes = match &queue {
            None => None,
            Some(queue) => Some(self.all_lanes(queue).await?),
        };
        if lanes.as_ref().is_some_and(Vec::is_empty) {
            return Ok(WaitingLanes::default());
        }
        let params: [&(dyn ToSql + Sync); 2] = [&self.now(), &lanes];
        let rows = self.read(|tx| async move { tx.rows(&self.sql.dispatch.waiting, &params).await }).await?;
        rows.into_iter().map(WaitingLane::try_from).collect()
    }

    /// The lanes of a queue, sorted, those that other processes have made since the catalogue was read included.
    async fn all_lanes(&self, queue: &QueueName) -> Result<Vec<i32>> {
        self.reload_catalog().await?;
        let catalog = self.catalog().await?;
        let mut lanes: Vec<i32> = catalog.queue(queue)?.lanes.iter().map(|lane| lane.id).collect();
        lanes.sort_unstable();
        Ok(lanes)
    }

    async fn limits(&self, node: &str, asks: &[LimitAsk], hold: Duration) -> Result<Vec<LimitGrant>> {
        // Asked for twice after a lost answer, slots are the same, and moments are lost at worst.
        let work = |tx| async move { Ok((self.limits_in(tx, node, asks, hold).await?, Vec::new())) };
        self.transact_leases(asks.len(), work).await?.into_iter().collect()
    }

    async fn limits_in(
        &self,
        tx: Arc<Tx>,
        node: &str,
        asks: &[LimitAsk],
        hold: Duration,
    ) -> Result<Batch<LimitGrant>, Fault> {
        let pools: Vec<(i64, i64)> = asks.iter().map(|ask| ask.pool.stored()).collect();
        let locks: BTreeSet<i64> = pools.iter().map(|pool| self.pool_stripe(*pool)).collect();
        let lock = lock_pools(locks);
        let (ids, clients): (Vec<i64>, Vec<i64>) = pools.iter().copied().unzip();
        let now = self.now();
        let params: [&(dyn ToSql + Sync); 3] = [&now, &ids, &clients];
        // Sent together: the server reads what there is once it has the locks.
        let (locked, rows) = join(tx.run(&lock), tx.rows(&self.sql.dispatch.limits, &params)).await;
        let ((), rows) = both(locked, rows)?;
        let now = rows.first().map(|row| Timestamp::from(row.now));
        let now = now.ok_or_else(|| Error::new(ErrorKind::Corrupt, "the limits of pools were not read"))?;
        tx.set_leases_at(now);
        let mut stored: Vec<StoredLimits> = asks.iter().map(|_| StoredLimits::default()).collect();
        for row in rows {
            if let Some(of) = usize::try_from(row.item - 1).ok().and_then(|at| stored.get_mut(at)) {
                of.moment = row.moment.map(Timestamp::from);
                of.slots.extend(slots(row));
            }
        }
        let plans: Vec<LimitPlan> =
            asks.iter().zip(stored).map(|(ask, stored)| plan_limits(node, ask, stored, now, hold)).collect();
        self.write_limits(&tx, node, &pools, &plans).await?;
        Ok(plans.into_iter().map(|plan| Ok(plan.grant)).collect())
    }

    async fn write_limits(&self, tx: &Tx, node: &str, pools: &[(i64, i64)], plans: &[LimitPlan]) -> Result<(), Fault> {
        let of_pools = || pools.iter().copied().zip(plans);
        let held: HeldColumns = of_pools().filter_map(|(pool, plan)| Some((pool, plan.row.as_ref()?))).collect();
        let removed = of_pools().flat_map(|(pool, plan)| plan.removed.iter().map(move |node| (pool, node.as_str())));
        let (removed, nodes): (Vec<(i64, i64)>, Vec<&str>) = removed.unzip();
        let (removed, removed_clients): (Vec<i64>, Vec<i64>) = removed.into_iter().unzip();
        let moved = of_pools().filter_map(|(pool, plan)| Some((pool, plan.moment?)));
        let (moved, moments): (Vec<(i64, i64)>, Vec<Timestamp>) = moved.unzip();
        let (moved, moved_clients): (Vec<i64>, Vec<i64>) = moved.into_iter().unzip();
        let sql = &self.sql.dispatch;
        let params = held.params(&node);
        let hold =
            async { if held.pools.is_empty() { Ok(()) } else { tx.execute(&sql.hold, &params).await.map(drop) } };
        let params: [&(dyn ToSql + Sync); 3] = [&removed, &removed_clients, &nodes];
        let remove =
            async { if removed.is_empty() { Ok(()) } else { tx.execute(&sql.remove, &params).await.map(drop) } };
        let params: [&(dyn ToSql + Sync); 3] = [&moved, &moved_clients, &moments];
        let move_rates =
            async { if moved.is_empty() { Ok(()) } else { tx.execute(&sql.move_rates, &params).await.map(drop) } };
        all(join3(hold, remove, move_rates).await.into())
    }

    async fn slot_holders(&self) -> Result<Vec<String>> {
        let nodes = self.read(|tx| async move { tx.rows(&self.sql.dispatch.holders, &[]).await }).await?;
        Ok(nodes.into_iter().map(|Only(node)| node).collect())
    }

    async fn release_slots(&self, nodes: &[String]) -> Result<()> {
        let nodes = &nodes;
        self.write_again(|tx| async move { tx.execute(&self.sql.dispatch.release, &[nodes]).await.map(drop) }).await
    }

    /// Records attempts at live jobs, where there is a record. The caller has the jobs' rows locked; ids are distinct.
    pub(super) async fn record_attempts(&self, tx: &Tx, attempts: Vec<(EntryId, Option<&str>)>) -> Result<(), Fault> {
        let recorded = attempts.into_iter().filter_map(|(id, record)| Some((id.get(), clean(record)?)));
        let (ids, records): (Vec<i64>, Vec<Cow<'_, str>>) = recorded.unzip();
        if ids.is_empty() {
            return Ok(());
        }
        tx.execute(&self.sql.dispatch.record, &[&ids, &records]).await.map(drop)
    }

    async fn job_attempts(&self, id: EntryId) -> Result<Vec<JobAttempt>> {
        let id = id.get();
        let rows = self.read(|tx| async move { tx.rows(&self.sql.dispatch.attempts, &[&id]).await }).await?;
        Ok(rows.into_iter().map(JobAttempt::from).collect())
    }

    async fn tasks(&self, ids: &[EntryId]) -> Result<Vec<Option<String>>> {
        let jobs: &Vec<i64> = &ids.iter().map(|id| id.get()).collect();
        let rows = self.read(|tx| async move { tx.rows(&self.sql.dispatch.tasks, &[jobs]).await }).await?;
        let tasks: HashMap<i64, String> = rows.into_iter().map(|row| (row.job, row.task)).collect();
        Ok(ids.iter().map(|id| tasks.get(&id.get()).cloned()).collect())
    }
}

/// The slots of a node; `None` in the row of a pool of which nobody holds any.
fn slots(row: LimitRow) -> Option<SlotsRow> {
    Some(SlotsRow {
        node: row.node?,
        slots: count(row.slots?),
        wanted: count(row.wanted?),
        since: row.since?.into(),
        until: row.until?.into(),
    })
}

impl TryFrom<WaitingRow> for WaitingLane {
    type Error = Error;

    fn try_from(row: WaitingRow) -> Result<Self> {
        let WaitingRow { queue, client_id, lane_type, is_due, due_in } = row;
        Ok(Self { queue: queue_name(queue, client_id)?, lane_type, is_due, due_in })
    }
}

impl From<AttemptRow> for JobAttempt {
    fn from(row: AttemptRow) -> Self {
        Self { generation: count(row.generation), attempt: count(row.attempt), record: row.record }
    }
}

/// The arrays of the statement that writes slots.
#[derive(Debug, Default)]
struct HeldColumns {
    pools: Vec<i64>,
    clients: Vec<i64>,
    slots: Vec<i32>,
    wanted: Vec<i32>,
    since: Vec<Timestamp>,
    until: Vec<Timestamp>,
}

impl<'a> FromIterator<((i64, i64), &'a SlotsRow)> for HeldColumns {
    fn from_iter<I: IntoIterator<Item = ((i64, i64), &'a SlotsRow)>>(rows: I) -> Self {
        let stored = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let mut columns = Self::default();
        for ((pool, client), row) in rows {
            columns.pools.push(pool);
            columns.clients.push(client);
            columns.slots.push(stored(row.slots));
            columns.wanted.push(stored(row.wanted));
            columns.since.push(row.since);
            columns.until.push(row.until);
        }
        columns
    }
}

impl HeldColumns {
    fn params<'b>(&'b self, node: &'b &str) -> [&'b (dyn ToSql + Sync); 7] {
        [node, &self.pools, &self.clients, &self.slots, &self.wanted, &self.since, &self.until]
    }
}
