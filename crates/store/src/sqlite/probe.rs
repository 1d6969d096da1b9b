//! Checks with as little work as possible whether a write and a claim would succeed now.

use tidegate_core::QueueName;

use crate::error::Result;
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::{arrivals, heartbeat};

/// The size of the event that must fit, in bytes.
const PROBE_BYTES: i32 = 64 << 10;

/// Does what a claim does before it reads entries, tries whether there is space for an event, and writes one page.
pub(super) fn probe(tx: &mut Tx<'_>) -> Result<()> {
    heartbeat::survive_outage(tx)?;
    tx.find_queue(&QueueName::default())?;
    arrivals::sort_in(tx)?;
    let sql = &tx.sql().heartbeat;
    tx.conn.execute_batch("SAVEPOINT probe")?;
    let space = tx.execute(&sql.probe_room, [PROBE_BYTES]);
    if !tx.conn.is_autocommit() {
        tx.conn.execute_batch("ROLLBACK TO probe; RELEASE probe")?;
    }
    space?;
    tx.execute(&sql.probe_write, [])?;
    Ok(())
}
