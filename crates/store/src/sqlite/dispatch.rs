//! Deliveries on SQLite: which lanes wait, the limits of pools, and attempts. Under the write lock, limits need no other.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::params;
use tidegate_core::{EntryId, QueueName};

use crate::api::Dispatch;
use crate::error::Result;
use crate::sql::Only;
use crate::sqlite::engine::jobs::Urgency;
use crate::sqlite::engine::row::{Shown, queue_name};
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::{Tx, micros, moment};
use crate::sqlite::heartbeat::survive_outage;
use crate::sqlite::queues;
use crate::sqlite::statements::dispatch::{self as rows, AttemptRow};
use crate::values::dispatch::{SlotsRow, StoredLimits, WaitingLane, check_asks, check_nodes, check_tasks, plan_limits};
use crate::values::{Family, JobAttempt, LimitAsk, LimitGrant, WaitingLanes};

/// For how long slots and moments are kept that nobody asks about, in microseconds.
const LIMITS_KEPT: i64 = 24 * 3600 * 1_000_000;

#[async_trait]
impl Dispatch for SqliteStore {
    async fn waiting_lanes(&self, queue: Option<QueueName>) -> Result<WaitingLanes> {
        self.of_family(Family::Jobs).read(move |tx| waiting_lanes(tx, queue.as_ref())).await
    }

    async fn limits(&self, node: &str, asks: Vec<LimitAsk>, hold: Duration) -> Result<Vec<LimitGrant>> {
        check_asks(node, &asks)?;
        let node = node.to_owned();
        self.of_family(Family::Jobs).write(Urgency::Claim, move |tx| limits(tx, &node, &asks, hold)).await
    }

    async fn slot_holders(&self) -> Result<Vec<String>> {
        let nodes = |tx: &mut Tx<'_>| tx.rows(&tx.sql().dispatch.holders, ());
        Ok(self.of_family(Family::Jobs).read(nodes).await?.into_iter().map(|Only(node)| node).collect())
    }

    async fn release_slots(&self, nodes: Vec<String>) -> Result<()> {
        check_nodes(&nodes)?;
        if nodes.is_empty() {
            return Ok(());
        }
        self.of_family(Family::Jobs).write(Urgency::Claim, move |tx| release_slots(tx, &nodes)).await
    }

    async fn job_attempts(&self, id: EntryId) -> Result<Vec<JobAttempt>> {
        self.of_family(Family::Jobs).read(move |tx| job_attempts(tx, id)).await
    }

    async fn tasks(&self, ids: Vec<EntryId>) -> Result<Vec<Option<String>>> {
        check_tasks(&ids)?;
        self.of_family(Family::Jobs).read(move |tx| ids.iter().map(|id| task(tx, *id)).collect()).await
    }
}

fn waiting_lanes(tx: &Tx<'_>, queue: Option<&QueueName>) -> Result<WaitingLanes> {
    let queue_id = queue.map(|queue| queues::queue(tx, queue)).transpose()?.map(|queue| queue.id);
    let found = tx.rows(&tx.sql().dispatch.waiting, (tx.now, queue_id))?;
    let lane = |row: rows::WaitingRow| {
        let queue = queue_name(row.queue, row.client_id)?;
        let due_in = row.due_at.map(|due_at| due_at - tx.now);
        Ok(WaitingLane { queue, lane_type: row.lane_type, is_due: row.is_due, due_in })
    };
    found.into_iter().map(lane).collect()
}

fn limits(tx: &mut Tx<'_>, node: &str, asks: &[LimitAsk], hold: Duration) -> Result<Vec<LimitGrant>> {
    survive_outage(tx)?;
    asks.iter().map(|ask| limit(tx, node, ask, hold)).collect()
}

fn limit(tx: &Tx<'_>, node: &str, ask: &LimitAsk, hold: Duration) -> Result<LimitGrant> {
    let sql = &tx.sql().dispatch;
    let (pool, client) = ask.pool.stored();
    let stored = StoredLimits {
        slots: tx.rows(&sql.slots, (pool, client))?.into_iter().map(SlotsRow::from).collect(),
        moment: tx.row(&sql.moment, (pool, client))?.map(|Only(moment)| moment.into()),
    };
    let plan = plan_limits(node, ask, stored, moment(tx.now)?, hold);
    if let Some(SlotsRow { node, slots, wanted, since, until }) = plan.row {
        let (since, until) = (micros(since), micros(until));
        tx.execute(&sql.hold, params![pool, client, node, slots, wanted, since, until])?;
    }
    for node in plan.removed {
        tx.execute(&sql.remove, (pool, client, node))?;
    }
    if let Some(moment) = plan.moment {
        tx.execute(&sql.move_rate, (pool, client, micros(moment)))?;
    }
    Ok(plan.grant)
}

fn release_slots(tx: &Tx<'_>, nodes: &[String]) -> Result<()> {
    for node in nodes {
        tx.execute(&tx.sql().dispatch.release, [node])?;
    }
    Ok(())
}

/// Removes slots and moments that nobody has asked about for long.
pub(super) fn forget_limits(tx: &Tx<'_>) -> Result<()> {
    let sql = &tx.sql().dispatch;
    let before = tx.now.saturating_sub(LIMITS_KEPT);
    tx.execute(&sql.forget_slots, [before])?;
    tx.execute(&sql.forget_rates, [before])?;
    Ok(())
}

fn job_attempts(tx: &Tx<'_>, id: EntryId) -> Result<Vec<JobAttempt>> {
    let sql = &tx.sql().dispatch;
    let mut attempts = tx.rows(&sql.attempts, [id.get()])?;
    attempts.extend(tx.rows(&sql.last_attempts, [id.get()])?);
    attempts.sort_by_key(|row| (row.generation, row.attempt));
    Ok(attempts.into_iter().map(JobAttempt::from).collect())
}

fn task(tx: &Tx<'_>, id: EntryId) -> Result<Option<String>> {
    Ok(tx.row(&tx.sql().dispatch.task, [id.get()])?.map(|Only(Shown(task))| task))
}

impl From<rows::SlotsRow> for SlotsRow {
    fn from(row: rows::SlotsRow) -> Self {
        let rows::SlotsRow { node, slots, wanted, since, until } = row;
        Self { node, slots, wanted, since: since.into(), until: until.into() }
    }
}

impl From<AttemptRow> for JobAttempt {
    fn from(row: AttemptRow) -> Self {
        let AttemptRow { generation, attempt, record: Shown(record) } = row;
        Self { generation, attempt, record }
    }
}
