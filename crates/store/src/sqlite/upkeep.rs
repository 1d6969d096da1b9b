//! Regular upkeep: the heartbeat, lanes, expired entries, arrivals, what stepped aside, expired keys, consumers and
//! nodes that are gone.

use crate::error::Result;
use crate::sqlite::arrivals::sort_in;
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::expiry::expire;
use crate::sqlite::groups::promote_all_asides;
use crate::sqlite::{dispatch, heartbeat, lanes, queues};
use crate::values::{Family, Upkeep};

/// The most keys that one transaction removes.
pub(super) const KEYS: i64 = 1000;

/// One round of upkeep of both families.
pub(super) fn maintain(tx: &mut Tx<'_>) -> Result<Upkeep> {
    let mut upkeep = Upkeep { outage: heartbeat::beat(tx)?, ..Upkeep::default() };
    for family in Family::ALL {
        tx.in_family(family, |tx| maintain_family(tx, &mut upkeep))?;
    }
    dispatch::forget_limits(tx)?;
    upkeep.keys_expired = expire_keys(tx)?;
    Ok(upkeep)
}

fn maintain_family(tx: &mut Tx<'_>, upkeep: &mut Upkeep) -> Result<()> {
    lanes::tend(tx)?;
    upkeep.expired += expire(tx)?;
    upkeep.promoted += sort_in(tx)? + promote_all_asides(tx)?;
    queues::forget_consumers(tx)
}

/// Removes expired keys, at most [`KEYS`]; returns how many.
pub(super) fn expire_keys(tx: &mut Tx<'_>) -> Result<u64> {
    Ok(tx.execute(&tx.sql().deduplication.expire, (tx.now, KEYS))? as u64)
}
