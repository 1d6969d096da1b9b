//! Regular upkeep: the heartbeat, lanes, arrivals, expired keys, consumers that are gone.

use crate::error::Result;
use crate::sqlite::arrivals::sort_in;
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::{heartbeat, lanes, queues};
use crate::values::Upkeep;

/// The most keys that one transaction removes.
pub(super) const KEYS: i64 = 1000;

/// One round of upkeep.
pub(super) fn maintain(tx: &mut Tx<'_>) -> Result<Upkeep> {
    let outage = heartbeat::beat(tx)?;
    lanes::tend(tx)?;
    let promoted = sort_in(tx)?;
    let keys_expired = expire_keys(tx)?;
    queues::forget_consumers(tx)?;
    Ok(Upkeep { promoted, keys_expired, outage, groups_mended: 0 })
}

/// Removes expired keys, at most [`KEYS`]; returns how many.
pub(super) fn expire_keys(tx: &mut Tx<'_>) -> Result<u64> {
    Ok(tx.execute(&tx.sql().deduplication.expire, (tx.now, KEYS))? as u64)
}
