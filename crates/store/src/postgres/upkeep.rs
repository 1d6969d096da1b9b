//! Regular upkeep, which every process does: the heartbeat, arrivals, what has expired, new partitions, and its part of the
//! work that one process does for all.

use std::time::{Duration, Instant};

use tokio_postgres::types::ToSql;

use crate::error::{Error, Result};
use crate::postgres::engine::store::{Inner, Opened};
use crate::values::{Family, Upkeep};

/// How long one round of upkeep removes expired keys, however many there are. A pause follows, by default of a second.
const KEYS_BUDGET: Duration = Duration::from_millis(500);
/// Most keys that one statement removes; the limit in `deduplication.expire`.
const KEYS_AT_ONCE: u64 = 1000;

/// Groups with something aside that one round of upkeep visits; the next continues where it stopped.
const ASIDE_GROUPS: i64 = 10_000;

impl Opened {
    /// One round of upkeep of all families. A fault in one part does not keep the others from being done; the first one is
    /// the answer.
    pub(super) async fn maintain(&self) -> Result<Upkeep> {
        let entries = self.family(Family::Entries);
        let outage = entries.beat().await?;
        let mut faults = Faults::default();
        let mut upkeep = Upkeep { outage, ..Upkeep::default() };
        for inner in &self.families {
            inner.tend_entries(&mut upkeep, &mut faults).await;
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
    async fn tend_entries(&self, upkeep: &mut Upkeep, faults: &mut Faults) {
        upkeep.promoted += faults.or_default(self.sort_arrivals().await);
        upkeep.expired += faults.or_default(self.end_expired().await);
        upkeep.promoted += faults.or_default(self.promote_all_asides().await);
        let mended = faults.or_default(self.mend_groups().await);
        upkeep.groups_mended += mended;
        upkeep.promoted += mended;
    }

    /// Promotes what is aside and due, group by group: however many wait behind the head of one group, the others are
    /// visited.
    async fn promote_all_asides(&self) -> Result<u64> {
        let (queue_id, group) = self.sweep().aside_after.take().unwrap_or((i32::MIN, String::new()));
        let (queue_id, group) = (&queue_id, &group);
        let params: [&(dyn ToSql + Sync); 4] = [&self.now(), queue_id, group, &ASIDE_GROUPS];
        let found = self.read(|tx| async move { tx.rows(&self.sql.groups.aside, &params).await }).await?;
        let last = found.last().filter(|_| found.len() as i64 == ASIDE_GROUPS);
        self.sweep().aside_after = last.map(|group| (group.queue_id, group.group_key.clone()));
        let headless = found.into_iter().filter(|group| group.headless);
        self.promote_groups(&headless.map(|group| (group.queue_id, group.group_key)).collect()).await
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
