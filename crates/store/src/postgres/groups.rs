//! FIFO groups: who is next, what callers' own transactions left to be sorted in, and groups that lost their head.
//!
//! Promotions run under locks on the groups, so that two transactions that fill and free a group at the same moment see
//! each other. A lock is one of 128 stripes per namespace. Two rules keep transactions from waiting for each other in a
//! circle: a transaction takes all its stripes at once, in order; and while it holds one it waits for no row: a parked or
//! arrived row that somebody else has locked is passed over, and a note about its group stays for the next round.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio_postgres::Row;

use super::catalog::{Catalog, MissingLane};
use super::connection::{Begin, Tx};
use super::errors::Fault;
use super::tags::tagged;
use super::{Inner, MAX_CATALOG_READS, accept_catalog};
use crate::error::Result;

/// How many locks the groups of a namespace share.
const STRIPES: u64 = 128;
/// How often groups are looked through for one that nobody leads, and how many in one look.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
const SWEEP_GROUPS: i64 = 1_000;

/// Groups that a transaction filled or freed, by queue and name.
pub(super) type Groups = BTreeSet<(i32, String)>;

/// Where the search for groups without a head goes on.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    last: Option<Instant>,
    after: Option<(i32, String)>,
}

/// What one transaction sorted in.
#[derive(Debug, Default)]
struct Sorted {
    count: u64,
    queues: BTreeSet<i32>,
    /// Lanes that have to be made before the rest can be sorted in.
    missing: Vec<MissingLane>,
}

impl Inner {
    /// Promotes the first parked entry of each of these groups that is free. Answers the queues that got work. Called
    /// once in a transaction, after everything that may wait for a row.
    pub(super) async fn promote(
        &self,
        tx: &Tx,
        groups: impl IntoIterator<Item = (i32, &str)>,
    ) -> Result<BTreeSet<i32>, Fault> {
        let groups: BTreeSet<(i32, &str)> = groups.into_iter().collect();
        if groups.is_empty() {
            return Ok(BTreeSet::new());
        }
        self.lock_groups(tx, &groups).await?;
        let rows = self.promote_locked(tx, groups).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Takes the locks of groups, in the order of their numbers.
    pub(super) async fn lock_groups(&self, tx: &Tx, groups: &BTreeSet<(i32, &str)>) -> Result<(), Fault> {
        let stripes: BTreeSet<i64> = groups.iter().map(|(queue_id, group)| self.stripe(*queue_id, group)).collect();
        let stripes: Vec<i64> = stripes.into_iter().collect();
        if !stripes.is_empty() {
            tx.query(&self.sql.lock_stripes, &[&stripes]).await?;
        }
        Ok(())
    }

    /// Promotes in groups whose locks are held.
    pub(super) async fn promote_locked(&self, tx: &Tx, groups: BTreeSet<(i32, &str)>) -> Result<Vec<Row>, Fault> {
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let (queue_ids, names): (Vec<i32>, Vec<&str>) = groups.into_iter().unzip();
        let rows = tx.query(&self.sql.promote, &[&self.now(), &queue_ids, &names]).await?;
        self.follow_tags(tx, &tagged(&rows, 1, 2)).await?;
        Ok(rows)
    }

    /// The lock of a group: the same number on every node.
    fn stripe(&self, queue_id: i32, group: &str) -> i64 {
        self.lock_number("groups", fnv([queue_id.to_be_bytes().as_slice(), group.as_bytes()]))
    }

    /// The lock under which publishers near a queue's depth limit go one by one. Taken before any lock of a group.
    pub(super) fn depth_stripe(&self, queue_id: i32) -> i64 {
        self.lock_number("depth", fnv([queue_id.to_be_bytes().as_slice()]))
    }

    fn lock_number(&self, kind: &str, hash: u64) -> i64 {
        let space = fnv([self.options.store.namespace.as_bytes(), b"\0".as_slice(), kind.as_bytes()]);
        (space / STRIPES * STRIPES + hash % STRIPES) as i64
    }

    /// Sorts in what callers' own transactions left: finds or makes lanes, parks grouped entries, promotes.
    pub(super) async fn sort_arrivals(&self) -> Result<u64> {
        let mut sorted = 0;
        let mut stale = false;
        for _ in 0..MAX_CATALOG_READS {
            let catalog = self.catalog().await?;
            let round = self.sort_once(&catalog).await;
            stale = matches!(round, Err(Fault::StaleCatalog));
            match round {
                Ok((0, _)) => break,
                Ok((count, queues)) => {
                    sorted += count;
                    self.announce(queues);
                }
                Err(Fault::StaleCatalog) => self.reload_catalog().await?,
                Err(fault) => return Err(fault.into_error()),
            }
        }
        if stale && sorted == 0 { Err(Fault::StaleCatalog.into_error()) } else { Ok(sorted) }
    }

    async fn sort_once(&self, catalog: &Catalog) -> Result<(u64, BTreeSet<i32>), Fault> {
        let Sorted { count, queues, missing } = self
            .database
            .transact(
                Begin::Lazy,
                &|prelude| accept_catalog(catalog, prelude),
                &|tx| async move { self.sort_in(&tx, catalog).await }.boxed(),
                // What was sorted in is found sorted in; running again is harmless.
                &|_, _| async { Ok(false) }.boxed(),
            )
            .await?;
        if missing.is_empty() {
            return Ok((count, queues));
        }
        self.announce(queues);
        self.add_lanes(missing).await?;
        Err(Fault::StaleCatalog)
    }

    /// Sorts in what has a lane, and promotes in the groups concerned and in those that notes tell of: a note goes only
    /// with that promotion.
    async fn sort_in(&self, tx: &Tx, catalog: &Catalog) -> Result<Sorted, Fault> {
        let notes = tx.query(&self.sql.take_notes, &[]).await?;
        let arrivals = tx.query(&self.sql.arrivals, &[]).await?;
        let mut sorted = Sorted::default();
        let mut groups: BTreeSet<(i32, &str)> = notes.iter().map(|note| (note.get(0), note.get(1))).collect();
        sorted.queues.extend(groups.iter().map(|(queue_id, _)| *queue_id));
        let (mut ids, mut lanes, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
        for row in &arrivals {
            let (id, queue_id, lane): (i64, i32, i32) = (row.get(0), row.get(1), row.get(2));
            let Some(queue) = catalog.queue_by_id(queue_id) else { return Err(Fault::StaleCatalog) };
            // A negative lane is a priority whose lane was not known to the caller's transaction.
            let limit = self.options.store.max_lanes;
            let lane = match (lane < 0, row.get::<_, Option<&str>>(3)) {
                (false, _) => Ok(lane),
                (true, Some(event_type)) => queue.lane_of_arrival(event_type, (-lane - 1000) as i16, limit),
                (true, None) => {
                    unreadable.push(super::claim::end_without_fact(id, row.get(5), row.get(6), None)?);
                    continue;
                }
            };
            match lane {
                Ok(lane) => {
                    ids.push(id);
                    lanes.push(lane);
                    sorted.queues.insert(queue_id);
                    groups.extend(row.get::<_, Option<&str>>(4).map(|group| (queue_id, group)));
                }
                Err(lane) => sorted.missing.push(lane),
            }
        }
        if sorted.queues.is_empty() && unreadable.is_empty() {
            return Ok(sorted);
        }
        tx.draw_xid().await?;
        let ended = self.end_rows(tx, &unreadable).await?;
        groups.extend(ended.iter().filter_map(|row| Some((row.get::<_, i32>(1), row.get::<_, Option<&str>>(2)?))));
        self.lock_groups(tx, &groups).await?;
        let rows = tx.query(&self.sql.sort_in, &[&self.now(), &ids, &lanes]).await?;
        self.follow_tags(tx, &tagged(&rows, 0, 1)).await?;
        let promoted = self.promote_locked(tx, groups).await?;
        // A note alone is no progress: it is left again where an open transaction holds the entry that is next.
        sorted.count = (rows.len() + ended.len() + promoted.len()) as u64;
        Ok(sorted)
    }

    /// Looks through some of the groups for those that have parked entries, no head, and no note that one is to come, and
    /// promotes there. That never happens by itself: rows were removed by hand, or by a fault. Answers how many it mended.
    pub(super) async fn mend_groups(&self) -> Result<u64> {
        let Some(after) = self.next_sweep() else { return Ok(0) };
        let (queue_id, group) = after.unwrap_or((i32::MIN, String::new()));
        let reader = self.database.reader().await.map_err(Fault::into_error)?;
        let found = reader.query(&self.sql.headless, &[&queue_id, &group, &SWEEP_GROUPS]).await;
        let found = found.map_err(Fault::into_error)?;
        drop(reader);
        let mut headless = Groups::new();
        let mut last = None;
        for row in &found {
            if row.get(2) {
                headless.insert((row.get(0), row.get(1)));
            }
            last = Some((row.get(0), row.get(1)));
        }
        self.sweep().after = last.filter(|_| found.len() as i64 >= SWEEP_GROUPS);
        if headless.is_empty() {
            return Ok(0);
        }
        let headless = &headless;
        let promoted = self
            .database
            .transact(
                Begin::Write,
                &|_| Ok(()),
                &|tx| {
                    async move {
                        let groups: BTreeSet<(i32, &str)> = borrowed(headless).collect();
                        self.lock_groups(&tx, &groups).await?;
                        let rows = self.promote_locked(&tx, groups).await?;
                        Ok(rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>())
                    }
                    .boxed()
                },
                &|_, _| async { Ok(false) }.boxed(),
            )
            .await
            .map_err(Fault::into_error)?;
        let mended = promoted.len() as u64;
        if mended > 0 {
            tracing::warn!(
                mended,
                "groups had waiting events and none that could be claimed; their first event is claimable now. \
                 Rows of event_queue may have been removed by hand"
            );
            self.announce(promoted);
        }
        Ok(mended)
    }

    fn sweep(&self) -> std::sync::MutexGuard<'_, Sweep> {
        self.sweep.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Where to look now; `None` when it is too early.
    fn next_sweep(&self) -> Option<Option<(i32, String)>> {
        let mut sweep = self.sweep();
        if sweep.last.is_some_and(|last| last.elapsed() < SWEEP_EVERY) {
            return None;
        }
        sweep.last = Some(Instant::now());
        Some(sweep.after.clone())
    }
}

/// Groups as [`Inner::promote`] takes them.
pub(super) fn borrowed(groups: &Groups) -> impl Iterator<Item = (i32, &str)> {
    groups.iter().map(|(queue_id, group)| (*queue_id, group.as_str()))
}

/// FNV-1a over several pieces: the same on every node and in every version.
fn fnv<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    parts
        .into_iter()
        .flatten()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
