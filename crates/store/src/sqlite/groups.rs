//! Groups: which entry of a group is its head.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::sql::{Only, Statement};
use crate::sqlite::engine::row::Shown;
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::flags;
use crate::sqlite::statements::groups::{AsideGroup, Promoted};
use crate::sqlite::tags;

/// The most due entries aside that a claim looks at: many of one group may wait behind a head.
pub(super) const ASIDES_OF_CLAIM: i64 = 256;
/// Groups with something aside that one round of upkeep visits; the next continues where it stopped.
const ASIDE_GROUPS: usize = 10_000;

/// Makes the next entry of a group its head if the group has none. Returns whether it did.
pub(super) fn promote(tx: &mut Tx<'_>, queue_id: i64, group: &str) -> Result<bool> {
    let promoted = moved(tx, &tx.sql().groups.promote, queue_id, group)?;
    if promoted {
        tx.wake_id(queue_id)?;
    }
    Ok(promoted)
}

/// The same where an entry was parked, or one that was due aside is gone: a head that was never claimed gives way to a
/// parked entry of a smaller rank.
pub(super) fn promote_by_rank(tx: &mut Tx<'_>, queue_id: i64, group: &str) -> Result<bool> {
    if promote(tx, queue_id, group)? {
        return Ok(true);
    }
    Ok(moved(tx, &tx.sql().groups.step_back, queue_id, group)? && promote(tx, queue_id, group)?)
}

/// Runs a statement that moves an entry of a group, and moves the entry's tag rows with it. Returns whether it moved one.
fn moved<'c>(tx: &Tx<'c>, statement: &'c Statement<Promoted>, queue_id: i64, group: &str) -> Result<bool> {
    let Some(Promoted { id, flags }) = tx.row(statement, (queue_id, group, tx.now))? else { return Ok(false) };
    if flags::is_tagged(flags) {
        tags::follow(tx, id)?;
    }
    Ok(true)
}

/// Promotes entries of a queue that stepped aside and are due, of the first `limit`. Returns how many.
pub(super) fn promote_asides(tx: &mut Tx<'_>, queue_id: i64, limit: i64) -> Result<u64> {
    let mut promoted = 0;
    let due = tx.rows(&tx.sql().groups.due_asides, (queue_id, tx.now, limit))?;
    for group in due.into_iter().map(|Only(Shown(group))| group).collect::<BTreeSet<_>>() {
        promoted += u64::from(promote(tx, queue_id, &group)?);
    }
    Ok(promoted)
}

/// The same in all queues, group by group: however many wait behind the head of one group, the others are visited.
pub(super) fn promote_all_asides(tx: &mut Tx<'_>) -> Result<u64> {
    let mut promoted = 0;
    let mut after = tx.known.aside_after.take().unwrap_or((i64::MIN, String::new()));
    for _ in 0..ASIDE_GROUPS {
        let next = tx.row(&tx.sql().groups.next_aside, (after.0, &after.1))?;
        let Some(AsideGroup { queue_id, group_key: Shown(group), due_at }) = next else { return Ok(promoted) };
        if due_at <= tx.now {
            promoted += u64::from(promote(tx, queue_id, &group)?);
        }
        after = (queue_id, group);
    }
    tx.known.aside_after = Some(after);
    Ok(promoted)
}
