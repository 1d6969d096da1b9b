//! Dead letters: starting them over, taking them off the list.

use tidegate_core::{Action, EntryId, Generation};

use super::settle::{LastLog, last_log, live, promote};
use super::tags;
use super::tx::Tx;
use super::work::audit_started_over;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Batch;
use crate::work::ByHand;

/// What `superseded` says of a log row.
const REDRIVEN: i16 = 1;
const DISCARDED: i16 = 2;

/// Starts new generations.
pub(super) fn redrive(tx: &mut Tx<'_>, items: &[ByHand]) -> Result<Batch<Generation>> {
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        answers.push(match redrivable(tx, item.id)? {
            Ok(dead) => {
                let generation = redrive_one(tx, item.id, &dead, false)?;
                audit_started_over(tx, item, Action::Redriven)?;
                Ok(generation)
            }
            Err(error) => Err(error),
        });
    }
    Ok(answers)
}

/// Starts one over; `raise` raises its token too, as a reset does.
pub(super) fn redrive_one(tx: &mut Tx<'_>, id: EntryId, dead: &LastLog, raise: bool) -> Result<Generation> {
    let sql = tx.sql();
    tx.prepare(&sql.redrive)?.execute((dead.seq, tx.now, i64::from(raise)))?;
    tx.prepare(&sql.supersede)?.execute((dead.seq, REDRIVEN))?;
    super::lanes::find_again(tx, id.get(), dead.queue_id, dead.event_id)?;
    if tags::is_tagged(dead.flags) {
        let tags = tags::of_fact(tx, dead.event_id)?;
        tags::remove_ended(tx, id.get(), &tags, dead.end.code())?;
        tags::put(tx, id.get(), &tags)?;
    }
    match &dead.group {
        Some(group) => drop(promote(tx, dead.queue_id, group)?),
        None => tx.wake_id(dead.queue_id)?,
    }
    Ok(dead.generation + 1)
}

/// Takes dead letters off the list.
pub(super) fn discard(tx: &mut Tx<'_>, ids: &[EntryId]) -> Result<Batch<()>> {
    let mut answers = Vec::with_capacity(ids.len());
    for id in ids {
        answers.push(match dead_letter(tx, *id)? {
            Ok(dead) => {
                tx.prepare(&tx.sql().supersede)?.execute((dead.seq, DISCARDED))?;
                Ok(())
            }
            Err(error) => Err(error),
        });
    }
    Ok(answers)
}

/// The log row of a dead letter, or why it is none.
pub(super) fn dead_letter(tx: &Tx<'_>, id: EntryId) -> Result<Result<LastLog>> {
    let conflict = |what: &str| Error::new(ErrorKind::Conflict, format!("entry {id} is not a dead letter: {what}"));
    if live(tx, id.get())?.is_some() {
        return Ok(Err(conflict("it has not ended")));
    }
    Ok(match last_log(tx, id.get())? {
        None => Err(Error::no_entry(id)),
        Some(last) if last.superseded => Err(conflict("it was discarded")),
        Some(last) if !last.end.is_dead_letter() => Err(conflict(last.end.as_str())),
        Some(last) => Ok(last),
    })
}

/// The same of one that is to wait again. Where its group cannot be read, nobody could be next in it.
pub(super) fn redrivable(tx: &Tx<'_>, id: EntryId) -> Result<Result<LastLog>> {
    Ok(dead_letter(tx, id)?.and_then(|last| match last.has_readable_group {
        true => Ok(last),
        false => Err(Error::new(
            ErrorKind::Conflict,
            format!("entry {id} cannot wait again: its message group cannot be read; discard it"),
        )),
    }))
}
