//! Lanes: creates them up to a queue's limit, records which are used, and removes empty ones that are not claimed from.
//!
//! A transaction that was planned under an older catalogue may still insert into a lane. So a lane is *retired* first:
//! no more entries are planned for it, but claims still scan it. Once every transaction that may have been planned
//! before is over and the lane is empty, it is *gone*: claims skip it, and its row stays for the log rows that name it.
//! An entry found in a lane that is gone (a caller's transaction with an old snapshot, an older program) becomes an
//! arrival again.

use std::collections::{BTreeMap, HashSet};

use tokio_postgres::types::ToSql;

use crate::postgres::engine::catalogue::MissingLane;
use crate::postgres::engine::connection::{Begin, Tx};
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::postgres::items::micros;
use crate::postgres::statements::lanes::LaneRow;
use crate::sql::Only;

/// Most lanes that one round retires or removes.
const AT_ONCE: i64 = 1000;
/// Most lanes that one transaction creates.
const NEW_AT_ONCE: usize = 1024;
/// A queue with more parked entries than this keeps its lanes: finding out which lanes those are in costs too much.
const MAX_PARKED: i64 = 10_000;

impl Inner {
    /// Creates lanes, each queue's up to its limit. Other processes learn of them by the catalogue's version.
    pub(super) async fn add_lanes(&self, mut lanes: Vec<MissingLane>) -> Result<(), Fault> {
        // Many new types at once could exceed the limit of own types together. The rest is planned again, then for the
        // shared lane if need be.
        lanes.sort_by(|a, b| (a.queue_id, a.priority, &a.event_type).cmp(&(b.queue_id, b.priority, &b.event_type)));
        lanes.dedup();
        let mut of_queue: BTreeMap<i32, usize> = BTreeMap::new();
        lanes.retain(|lane| {
            let count = of_queue.entry(lane.queue_id).or_default();
            *count += 1;
            *count <= self.family.own_types() / 4
        });
        lanes.truncate(NEW_AT_ONCE);
        let queue_ids: Vec<i32> = lanes.iter().map(|lane| lane.queue_id).collect();
        let priorities: Vec<i16> = lanes.iter().map(|lane| lane.priority).collect();
        let types: Vec<Option<&str>> = lanes.iter().map(|lane| lane.event_type.as_deref()).collect();
        let forced: Vec<bool> = lanes.iter().map(|lane| lane.forced).collect();
        let limit = i64::try_from(self.shared.options.store.lanes_of(self.family)).unwrap_or(i64::MAX);
        let (queue_ids, priorities, types, forced) = (&queue_ids, &priorities, &types, &forced);
        self.transact(
            Begin::Write,
            |_| Ok(()),
            |tx| async move {
                // One process at a time, so that two that count the lanes do not exceed the limit together.
                tx.execute(&self.sql.lanes.lock_catalogue, &[]).await?;
                let params: [&(dyn ToSql + Sync); 6] = [&self.now(), queue_ids, priorities, types, forced, &limit];
                tx.execute(&self.sql.lanes.add, &params).await.map(drop)
            },
            |_, ()| async { Ok(false) },
        )
        .await
    }

    /// Writes which lanes this process uses.
    pub(super) async fn note_lanes(&self) -> Result<(), Fault> {
        let lanes = self.lane_use.to_note(self.moment());
        if !lanes.is_empty() {
            let reader = self.shared.database.reader().await?;
            reader.execute(&self.sql.lanes.note_used, &[&self.now(), &lanes]).await?;
        }
        Ok(())
    }

    /// One round of retiring and removing unused lanes. Run by the elected process only.
    pub(super) async fn tend_lanes(&self) -> Result<(), Fault> {
        self.rescue_strays().await?;
        self.transact(
            Begin::Write,
            |_| Ok(()),
            |tx| async move { self.tend_lanes_in(&tx).await },
            // Not repeated if the answer to the commit is lost: the next round does what is left.
            |_, ()| async { Ok(true) },
        )
        .await
    }

    async fn tend_lanes_in(&self, tx: &Tx) -> Result<(), Fault> {
        let sql = &self.sql.lanes;
        let left = tx.rows(&sql.left, &[&AT_ONCE]).await?;
        let left = self.without_parked(tx, left).await?;
        if !left.is_empty() {
            tx.execute(&sql.remove, &[&left]).await?;
        }
        // For lanes retired in an earlier round: every transaction planned before that has drawn its id by now.
        tx.execute(&sql.close, &[]).await?;
        let idle =
            tx.rows(&sql.idle, &[&self.now(), &micros(crate::postgres::engine::lane_use::IDLE), &AT_ONCE]).await?;
        let idle = self.without_parked(tx, idle).await?;
        if !idle.is_empty() {
            tx.execute(&sql.retire, &[&idle]).await?;
        }
        tx.execute(&sql.forget, &[&AT_ONCE]).await?;
        Ok(())
    }

    /// Takes lanes with nothing to claim; returns those that hold no parked or arrived entry either.
    async fn without_parked(&self, tx: &Tx, lanes: Vec<LaneRow>) -> Result<Vec<i32>, Fault> {
        let mut by_queue: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for lane in lanes {
            by_queue.entry(lane.queue_id).or_default().push(lane.id);
        }
        let mut free = Vec::new();
        for (queue, lanes) in by_queue {
            let parked = tx.row(&self.sql.lanes.parked, &[&queue, &(MAX_PARKED + 1)]).await?;
            if let Some(parked) = parked.filter(|parked| parked.count <= MAX_PARKED) {
                let held: HashSet<i32> = parked.lanes.into_iter().flatten().collect();
                free.extend(lanes.into_iter().filter(|lane| !held.contains(lane)));
            }
        }
        free.sort_unstable();
        Ok(free)
    }

    /// Turns entries in lanes that are gone into arrivals, and sorts them in.
    async fn rescue_strays(&self) -> Result<(), Fault> {
        let strays = self.shared.database.reader().await?.rows(&self.sql.lanes.strays, &[]).await?;
        let lanes: Vec<i32> = strays.into_iter().map(|Only(lane)| lane).collect();
        if lanes.is_empty() {
            return Ok(());
        }
        let reader = self.shared.database.reader().await?;
        let rescued = reader.execute(&self.sql.lanes.rescue, &[&lanes]).await?;
        drop(reader);
        if rescued > 0 {
            tracing::info!(rescued, "found entries in removed lanes, sorting them in again");
            self.sort_arrivals().await?;
        }
        Ok(())
    }
}
