//! Regular upkeep, which every process does: the heartbeat, arrivals, what has expired, new partitions, and its part of the
//! work that one process does for all.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::postgres::engine::store::{Inner, Opened};
use crate::values::{Family, Upkeep};

/// How long one round of upkeep removes expired keys, however many there are. A pause follows, by default of a second.
const KEYS_BUDGET: Duration = Duration::from_millis(500);
/// Most keys that one statement removes; the limit in `deduplication.expire`.
const KEYS_AT_ONCE: u64 = 1000;

/// Entries that are aside and due, of each queue, of which upkeep looks for groups that have no head.
const ASIDES: i64 = 10_000;

impl Opened {
    /// One round of upkeep of all families. A fault in one part does not keep the others from being done; the first one is
    /// the answer.
    pub(super) async fn maintain(&self) -> Result<Upkeep> {
        let entries = self.family(Family::Entries);
        let outage = entries.beat().await?;
        let mut faults = Faults::default();
        let mut upkeep = Upkeep { outage, ..Upkeep::default() };
        for inner in &self.families {
            let done = faults.or_default(inner.tend_entries().await);
            upkeep.promoted += done.promoted;
            upkeep.expired += done.expired;
            upkeep.groups_mended += done.groups_mended;
        }
        upkeep.keys_expired = faults.or_default(entries.expire_keys().await);
        if entries.partitions_due() {
            faults.or_default(entries.add_partitions().await);
        }
        self.maintain_for_all(&mut faults).await;
        faults.or_default(entries.count_log().await);
        faults.first().map_or(Ok(upkeep), Err)
    }
}

/// What went wrong in a round of upkeep.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Error>);

impl Faults {
    /// What was done; nothing, after a fault.
    pub(super) fn or_default<T: Default>(&mut self, done: Result<T>) -> T {
        done.unwrap_or_else(|error| {
            tracing::debug!(%error, "a part of upkeep failed");
            self.0.push(error);
            T::default()
        })
    }

    fn first(self) -> Option<Error> {
        self.0.into_iter().next()
    }
}

impl Inner {
    /// What a round of upkeep does for a family's entries: sorts arrivals in, ends what has expired, promotes.
    async fn tend_entries(&self) -> Result<Upkeep> {
        let sorted = self.sort_arrivals().await?;
        let expired = self.end_expired().await?;
        let asides = self.promote_all_asides().await?;
        let groups_mended = self.mend_groups().await?;
        Ok(Upkeep { promoted: sorted + asides + groups_mended, expired, groups_mended, ..Upkeep::default() })
    }

    /// Promotes what is aside and due in all queues.
    async fn promote_all_asides(&self) -> Result<u64> {
        let queues: Vec<i32> = self.catalog().await?.queues().map(|queue| queue.id).collect();
        self.promote_due_asides(&queues, ASIDES).await
    }

    /// Removes expired keys, statement by statement, until none is left or [`KEYS_BUDGET`] is used. Several processes can
    /// do so at the same time. Returns how many.
    async fn expire_keys(&self) -> Result<u64> {
        let began = Instant::now();
        let mut expired = 0;
        loop {
            let gone = self.execute(&self.sql.deduplication.expire, &[&self.now()]).await?;
            expired += gone;
            if gone < KEYS_AT_ONCE || began.elapsed() > KEYS_BUDGET {
                return Ok(expired);
            }
        }
    }
}
