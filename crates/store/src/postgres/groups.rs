//! Groups: promotes the next entry, sorts in the arrivals of callers' own transactions, and repairs groups without a
//! head.
//!
//! Promotions run under locks on the groups, so that two transactions that fill and free a group at the same moment see
//! each other. A lock is one of 128 stripes per namespace. Two rules prevent deadlocks: a transaction takes all its
//! stripes at once, in order; and while it holds one it waits for no row: a parked or arrived row that another
//! transaction has locked is skipped, and a note keeps its group for the next round.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::postgres::engine::catalogue::{Catalog, MissingLane};
use crate::postgres::engine::connection::{Begin, Tx};
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::postgres::engine::store::MAX_CATALOG_READS;
use crate::postgres::engine::store::accept_catalog;
use crate::postgres::flags::is_tagged;
use crate::postgres::statements::groups::{Arrival, Promoted};
use crate::values::Family;

/// How many locks the groups of a namespace share.
const STRIPES: u64 = 128;
/// How often the groups are searched for some without a head, and how many groups one search covers.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
const SWEEP_GROUPS: i64 = 1_000;

/// Groups that a transaction filled or freed, by queue and name.
pub(super) type Groups = BTreeSet<(i32, String)>;

/// What one transaction sorted in.
#[derive(Debug, Default)]
struct Sorted {
    count: u64,
    queues: BTreeSet<i32>,
    /// Lanes to make before the other arrivals can be sorted in.
    missing: Vec<MissingLane>,
}

impl Inner {
    /// Gives each of these groups its head, as [`Self::promote_locked`] does. Returns the queues of the new heads. Called
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
        let promoted = self.promote_locked(tx, groups).await?;
        Ok(promoted.iter().map(|entry| entry.queue_id).collect())
    }

    /// Takes the stripes of groups, in order.
    pub(super) async fn lock_groups(&self, tx: &Tx, groups: &BTreeSet<(i32, &str)>) -> Result<(), Fault> {
        let stripes: BTreeSet<i64> = groups.iter().map(|(queue_id, group)| self.stripe(*queue_id, group)).collect();
        let stripes: Vec<i64> = stripes.into_iter().collect();
        if !stripes.is_empty() {
            tx.execute(&self.sql.groups.lock_stripes, &[&stripes]).await?;
        }
        Ok(())
    }

    /// Gives groups whose stripes this transaction holds a head where they have none, or a better one than a head that
    /// was never claimed. Returns the new heads.
    pub(super) async fn promote_locked(&self, tx: &Tx, groups: BTreeSet<(i32, &str)>) -> Result<Vec<Promoted>, Fault> {
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let (queue_ids, names): (Vec<i32>, Vec<&str>) = groups.into_iter().unzip();
        let moved = tx.rows(&self.sql.groups.promote, &[&self.now(), &queue_ids, &names]).await?;
        let with_tags: Vec<i64> = moved.iter().filter(|row| is_tagged(row.flags)).map(|row| row.id).collect();
        self.follow_tags(tx, &with_tags).await?;
        Ok(moved.into_iter().filter(|row| row.is_head).collect())
    }

    /// Promotes what is aside and due in these queues, where its group has no head, and wakes the queues. Looks at `limit`
    /// entries of each queue. Returns how many were promoted.
    pub(super) async fn promote_due_asides(&self, queue_ids: &[i32], limit: i64) -> Result<u64> {
        let found = self.read(|tx| async move { self.due_asides(&tx, queue_ids, limit).await }).await?;
        self.promote_groups(&found).await
    }

    /// The groups of these queues in which [`Self::promote_due_asides`] promotes.
    pub(super) async fn due_asides(&self, tx: &Tx, queue_ids: &[i32], limit: i64) -> Result<Groups, Fault> {
        let found = tx.rows(&self.sql.groups.due_asides, &[&self.now(), &queue_ids, &limit]).await?;
        Ok(found.into_iter().map(|note| (note.queue_id, note.group_key)).collect())
    }

    /// Promotes in these groups, in a transaction of its own, and wakes their queues. Returns how many were promoted.
    pub(super) async fn promote_groups(&self, groups: &Groups) -> Result<u64> {
        if groups.is_empty() {
            return Ok(0);
        }
        let promoted = self
            .write_again(|tx| async move {
                let groups: BTreeSet<(i32, &str)> = borrowed(groups).collect();
                self.lock_groups(&tx, &groups).await?;
                let promoted = self.promote_locked(&tx, groups).await?;
                Ok(promoted.iter().map(|entry| entry.queue_id).collect::<Vec<i32>>())
            })
            .await?;
        let count = promoted.len() as u64;
        self.announce(promoted);
        Ok(count)
    }

    /// The stripe of a group: the same number on every node.
    fn stripe(&self, queue_id: i32, group: &str) -> i64 {
        self.lock_number("groups", fnv([queue_id.to_be_bytes().as_slice(), group.as_bytes()]))
    }

    /// The lock under which the limits of a pool are changed. Taken with others of its kind alone.
    pub(super) fn pool_stripe(&self, (pool, client): (i64, i64)) -> i64 {
        self.lock_number("pools", fnv([pool.to_be_bytes().as_slice(), client.to_be_bytes().as_slice()]))
    }

    /// The lock under which publishers near a queue's depth limit run one at a time. Taken before any group's stripe.
    pub(super) fn depth_stripe(&self, queue_id: i32) -> i64 {
        self.lock_number("depth", fnv([queue_id.to_be_bytes().as_slice()]))
    }

    fn lock_number(&self, kind: &str, hash: u64) -> i64 {
        let family: &[u8] = if self.family == Family::Jobs { b"jobs\0" } else { b"" };
        let space = fnv([self.shared.options.store.namespace.as_bytes(), b"\0", family, kind.as_bytes()]);
        (space / STRIPES * STRIPES + hash % STRIPES) as i64
    }

    /// Sorts in the arrivals of callers' own transactions: finds or makes lanes, parks grouped entries, promotes.
    /// Returns how many rows it moved.
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
            .transact(
                Begin::Lazy,
                |prelude| accept_catalog(catalog, prelude),
                |tx| async move { self.sort_in(&tx, catalog).await },
                // Running it again is harmless: what was sorted in is no arrival any more.
                |_, _| async { Ok(false) },
            )
            .await?;
        if missing.is_empty() {
            return Ok((count, queues));
        }
        self.announce(queues);
        self.add_lanes(missing).await?;
        Err(Fault::StaleCatalog)
    }

    /// Sorts in the arrivals that have a lane, and promotes in their groups and in those with a note: a note is removed
    /// only in the transaction that promotes.
    async fn sort_in(&self, tx: &Tx, catalog: &Catalog) -> Result<Sorted, Fault> {
        let notes = tx.rows(&self.sql.groups.take_notes, &[]).await?;
        let arrivals = tx.rows(&self.sql.groups.arrivals, &[]).await?;
        let mut sorted = Sorted::default();
        let mut groups: BTreeSet<(i32, &str)> = notes.iter().map(|note| (note.queue_id, &*note.group_key)).collect();
        sorted.queues.extend(groups.iter().map(|(queue_id, _)| *queue_id));
        let (mut ids, mut lanes, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
        for arrival in &arrivals {
            let &Arrival { id, queue_id, lane, exhausted_as, event_id, .. } = arrival;
            let Some(queue) = catalog.queue_by_id(queue_id) else { return Err(Fault::StaleCatalog) };
            let limit = self.shared.options.store.lanes_of(self.family);
            // A negative lane encodes a priority: the caller's transaction did not know the lane. One that is gone is
            // found again by its type.
            let priority = if lane < 0 { Some((-lane - 1000) as i16) } else { arrival.gone_priority };
            let lane = match (priority, arrival.gone_type.as_ref().or(arrival.event_type.as_ref())) {
                (None, _) => Ok(lane),
                (Some(priority), Some(lane_type)) => queue.lane_of_arrival(self.family, lane_type, priority, limit),
                (Some(_), None) => {
                    unreadable.push(crate::postgres::undeliverable::end_without_fact(
                        id,
                        exhausted_as,
                        event_id,
                        None,
                    )?);
                    continue;
                }
            };
            match lane {
                Ok(lane) => {
                    ids.push(id);
                    lanes.push(lane);
                    sorted.queues.insert(queue_id);
                    groups.extend(arrival.group_key.as_deref().map(|group| (queue_id, group)));
                }
                Err(lane) => sorted.missing.push(lane),
            }
        }
        if sorted.queues.is_empty() && unreadable.is_empty() {
            return Ok(sorted);
        }
        tx.draw_xid().await?;
        let ended = self.end_rows(tx, &unreadable).await?;
        groups.extend(ended.iter().filter_map(|row| Some((row.queue_id, row.group_key.as_deref()?))));
        self.lock_groups(tx, &groups).await?;
        let moved = tx.rows(&self.sql.groups.sort_in, &[&self.now(), &ids, &lanes]).await?;
        let with_tags: Vec<i64> = moved.iter().filter(|row| is_tagged(row.flags)).map(|row| row.id).collect();
        self.follow_tags(tx, &with_tags).await?;
        let promoted = self.promote_locked(tx, groups).await?;
        // Notes do not count as progress: one is written again while an open transaction has the next entry locked.
        sorted.count = (moved.len() + ended.len() + promoted.len()) as u64;
        Ok(sorted)
    }

    /// Searches some of the groups for those that have parked entries, no head and no note, and promotes there. That
    /// only happens when rows were deleted manually or by a fault. Returns how many groups it repaired.
    pub(super) async fn mend_groups(&self) -> Result<u64> {
        let Some(after) = self.next_sweep() else { return Ok(0) };
        let (queue_id, group) = after.unwrap_or((i32::MIN, String::new()));
        let reader = self.shared.database.reader().await.map_err(Fault::into_error)?;
        let found = reader.rows(&self.sql.groups.parked, &[&queue_id, &group, &SWEEP_GROUPS]).await;
        let found = found.map_err(Fault::into_error)?;
        drop(reader);
        let last = found.last().map(|group| (group.queue_id, group.group_key.clone()));
        self.sweep().after = last.filter(|_| found.len() as i64 >= SWEEP_GROUPS);
        let headless = found.into_iter().filter(|group| group.headless);
        let headless: Groups = headless.map(|group| (group.queue_id, group.group_key)).collect();
        let mended = self.promote_groups(&headless).await?;
        if mended > 0 {
            tracing::warn!(
                mended,
                "groups had parked entries and no head: their first entries are claimable now. Rows of live entries may \
                 have been deleted manually"
            );
        }
        Ok(mended)
    }

    pub(super) fn sweep(&self) -> std::sync::MutexGuard<'_, crate::postgres::engine::sweep::Sweep> {
        self.sweep.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// After which group to search now, `Some(None)` from the start; `None` when it is too early.
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

/// FNV-1a over the concatenated parts: the same on every node and in every version.
fn fnv<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    parts
        .into_iter()
        .flatten()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
