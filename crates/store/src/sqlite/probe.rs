//! Whether a write and a claim would succeed now, tried with as little as possible.

use tidegate_core::QueueName;

use super::tx::Tx;
use super::upkeep;
use crate::error::Result;

/// What a publish of some size needs, in bytes.
const ROOM: i32 = 64 << 10;

/// Goes the way of a claim up to the entries themselves, tries whether there is room for an event, and writes one page.
pub(super) fn probe(tx: &mut Tx<'_>) -> Result<()> {
    upkeep::survive_outage(tx)?;
    tx.find_queue(&QueueName::default())?;
    upkeep::sort_in(tx)?;
    let sql = tx.sql();
    tx.conn.execute_batch("SAVEPOINT probe")?;
    let room = tx.prepare(&sql.probe_room).and_then(|mut insert| Ok(insert.execute([ROOM])?));
    if !tx.conn.is_autocommit() {
        tx.conn.execute_batch("ROLLBACK TO probe; RELEASE probe")?;
    }
    room?;
    tx.prepare(&sql.probe_write)?.execute([])?;
    Ok(())
}
