//! Regular upkeep, which every process does: the heartbeat, arrivals, expired keys, new partitions, and its part of the
//! work that one process does for all.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::postgres::engine::store::Inner;
use crate::values::Upkeep;

/// How long one round of upkeep removes expired keys, however many there are. A pause follows, by default of a second.
const KEYS_BUDGET: Duration = Duration::from_millis(500);
/// Most keys that one statement removes; the limit in `deduplication.expire`.
const KEYS_AT_ONCE: u64 = 1000;

impl Inner {
    /// One round of upkeep.
    pub(super) async fn maintain(&self) -> Result<Upkeep> {
        let outage = self.beat().await?;
        let promoted = self.sort_arrivals().await?;
        let groups_mended = self.mend_groups().await?;
        let keys_expired = self.expire_keys().await?;
        if self.partitions_due() {
            self.add_partitions().await?;
        }
        self.maintain_for_all().await?;
        self.count_log().await?;
        Ok(Upkeep { promoted: promoted + groups_mended, keys_expired, outage, groups_mended })
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
