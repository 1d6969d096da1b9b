//! Groups: promotes the next entry.

use crate::error::Result;
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::statements::groups::Promoted;
use crate::sqlite::tags;

/// Makes the first parked entry of a group its head if the group has none. Returns whether it did.
pub(super) fn promote(tx: &mut Tx<'_>, queue_id: i64, group: &str) -> Result<bool> {
    let Some(Promoted { id, flags }) = tx.row(&tx.sql().groups.promote, (queue_id, group, tx.now))? else {
        return Ok(false);
    };
    if tags::is_tagged(flags) {
        tags::follow(tx, id)?;
    }
    tx.wake_id(queue_id)?;
    Ok(true)
}
