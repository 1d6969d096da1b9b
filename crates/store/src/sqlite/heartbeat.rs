//! The heartbeat, and what happens to leases after an outage.

use std::time::Duration;

use crate::error::Result;
use crate::sqlite::engine::tx::Tx;
use crate::values::Family;

/// Moves the leases by an outage, if there was one, before a claim takes any of them over.
pub(super) fn survive_outage(tx: &mut Tx<'_>) -> Result<()> {
    let limit = outage_after(tx);
    if !tx.shared.time.is_manual() && tx.now - tx.known.heartbeat > limit {
        let last = tx.number(&tx.sql().heartbeat.last)?;
        tx.known.heartbeat = last;
        if tx.now - last > limit {
            beat(tx)?;
        }
    }
    Ok(())
}

/// Writes the heartbeat. A long gap since the last one is an outage: all leases held since then are moved by it.
pub(super) fn beat(tx: &mut Tx<'_>) -> Result<Option<Duration>> {
    if tx.shared.time.is_manual() {
        return Ok(None);
    }
    let sql = &tx.sql().heartbeat;
    let last = tx.number(&sql.last)?;
    // Another process may have seen a later moment than this one.
    tx.shared.time.at_least(last);
    let gap = tx.now - last;
    let outage = gap > outage_after(tx);
    if outage {
        let mut moved = 0;
        for family in Family::ALL {
            moved += tx.in_family(family, |tx| tx.execute(&tx.sql().heartbeat.shift_leases, (last, gap)))?;
        }
        tx.execute(&tx.sql().tags.shift_leases, (last, gap))?;
        tx.execute(&tx.sql().dispatch.shift_slots, (last, gap))?;
        tracing::warn!(gap_ms = gap / 1000, moved, "the store was down or blocked: leases were extended by that time");
    }
    tx.execute(&sql.beat, [tx.now.max(last)])?;
    tx.known.heartbeat = tx.now.max(last);
    Ok(outage.then(|| Duration::from_micros(gap.unsigned_abs())))
}

fn outage_after(tx: &Tx<'_>) -> i64 {
    i64::try_from(tx.shared.options.outage_after.as_micros()).unwrap_or(i64::MAX)
}
