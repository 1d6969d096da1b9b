//! FIFO groups: who is next. Promotions run under a lock per group that is taken last in a transaction, so that two
//! transactions that fill and free a group at the same moment see each other.

use std::collections::BTreeSet;

use futures_util::FutureExt;

use super::catalog::{Catalog, MissingLane};
use super::connection::{Begin, Tx};
use super::errors::Fault;
use super::tags::tagged;
use super::{Inner, MAX_CATALOG_READS, accept_generation};
use crate::error::Result;

impl Inner {
    /// Promotes the first parked entry of each of these groups that is free. Answers the queues that got work.
    pub(super) async fn promote(
        &self,
        tx: &Tx,
        groups: impl IntoIterator<Item = (i32, &str)>,
    ) -> Result<BTreeSet<i32>, Fault> {
        let groups: BTreeSet<(i32, &str)> = groups.into_iter().collect();
        if groups.is_empty() {
            return Ok(BTreeSet::new());
        }
        // Locks are taken in the order of their numbers; two groups may share one.
        let locks: BTreeSet<i64> = groups.iter().map(|(queue_id, group)| self.lock_key(*queue_id, group)).collect();
        let locks: Vec<i64> = locks.into_iter().collect();
        tx.query(&self.sql.lock_groups, &[&locks]).await?;
        let (queue_ids, names): (Vec<i32>, Vec<&str>) = groups.into_iter().unzip();
        let rows = tx.query(&self.sql.promote, &[&self.now(), &queue_ids, &names]).await?;
        self.follow_tags(tx, &tagged(&rows, 1, 2)).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// The advisory lock of a group: the same number on every node (FNV-1a over namespace, queue and group).
    pub(super) fn lock_key(&self, queue_id: i32, group: &str) -> i64 {
        let parts = [self.options.store.namespace.as_bytes(), &queue_id.to_be_bytes(), group.as_bytes()];
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for byte in parts.into_iter().flatten() {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        hash as i64
    }

    /// Sorts in what callers' own transactions left: finds or makes lanes, parks grouped entries, promotes.
    pub(super) async fn sort_arrivals(&self) -> Result<u64> {
        let mut sorted = 0;
        for _ in 0..MAX_CATALOG_READS {
            let catalog = self.catalog().await?;
            match self.sort_once(&catalog).await {
                Ok((0, _)) => break,
                Ok((count, queues)) => {
                    sorted += count;
                    self.announce(queues);
                }
                Err(Fault::StaleCatalog) => self.reload_catalog().await?,
                Err(fault) => return Err(fault.into_error()),
            }
        }
        Ok(sorted)
    }

    async fn sort_once(&self, catalog: &Catalog) -> Result<(u64, BTreeSet<i32>), Fault> {
        let sorted = self
            .database
            .transact(
                Begin::Lazy,
                &|prelude| accept_generation(catalog, prelude),
                &|tx| async move { self.sort_in(&tx, catalog).await }.boxed(),
                // What was sorted in is found sorted in; running again is harmless.
                &|_, _| async { Ok(false) }.boxed(),
            )
            .await?;
        match sorted {
            Ok(done) => Ok(done),
            Err(missing) => {
                self.add_lanes(missing).await?;
                Err(Fault::StaleCatalog)
            }
        }
    }

    async fn sort_in(
        &self,
        tx: &Tx,
        catalog: &Catalog,
    ) -> Result<Result<(u64, BTreeSet<i32>), Vec<MissingLane>>, Fault> {
        let rows = tx.query(&self.sql.arrivals, &[]).await?;
        let notes = tx.query(&self.sql.take_notes, &[]).await?;
        let (mut ids, mut lanes, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        let mut groups = Vec::new();
        let mut queues = BTreeSet::new();
        for row in &rows {
            let (id, queue_id, lane): (i64, i32, i32) = (row.get(0), row.get(1), row.get(2));
            let Some(queue) = catalog.queue_by_id(queue_id) else { return Err(Fault::StaleCatalog) };
            // A negative lane is a priority whose lane was not known to the caller's transaction.
            let lane = if lane < 0 { queue.lane(row.get(3), (-lane - 1000) as i16) } else { Ok(lane) };
            match lane {
                Ok(lane) => {
                    ids.push(id);
                    lanes.push(lane);
                    queues.insert(queue_id);
                    groups.extend(row.get::<_, Option<&str>>(4).map(|group| (queue_id, group)));
                }
                Err(lane) => missing.push(lane),
            }
        }
        if !missing.is_empty() {
            return Ok(Err(missing));
        }
        for note in &notes {
            queues.insert(note.get(0));
            groups.push((note.get(0), note.get(1)));
        }
        if queues.is_empty() {
            return Ok(Ok((0, queues)));
        }
        tx.draw_xid().await?;
        let rows = tx.query(&self.sql.sort_in, &[&self.now(), &ids, &lanes]).await?;
        self.follow_tags(tx, &tagged(&rows, 0, 1)).await?;
        self.promote(tx, groups).await?;
        Ok(Ok(((ids.len() + notes.len()) as u64, queues)))
    }
}
