//! Dead letters: redriving and discarding them.

use tidegate_core::{Action, EntryId, Generation};

use crate::error::{Error, ErrorKind, Result};
use crate::sqlite::audit::audit_started_over;
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::found::{LastLog, last_log, live};
use crate::sqlite::groups::promote;
use crate::sqlite::tags;
use crate::values::{Batch, ManualAction};

/// The values of `superseded` in a log row.
const REDRIVEN: i16 = 1;
const DISCARDED: i16 = 2;

/// Starts new generations of dead letters.
pub(super) fn redrive(tx: &mut Tx<'_>, items: &[ManualAction]) -> Result<Batch<Generation>> {
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

/// Starts one over; `raise` also raises its token, as a reset does.
pub(super) fn redrive_one(tx: &mut Tx<'_>, id: EntryId, dead: &LastLog, raise: bool) -> Result<Generation> {
    let sql = &tx.sql().entries;
    tx.execute(&sql.redrive, (dead.seq, tx.now, i64::from(raise)))?;
    tx.execute(&sql.supersede, (dead.seq, REDRIVEN))?;
    crate::sqlite::lanes::find_again(tx, id.get(), dead.queue_id, dead.event_id)?;
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
                tx.execute(&tx.sql().entries.supersede, (dead.seq, DISCARDED))?;
                Ok(())
            }
            Err(error) => Err(error),
        });
    }
    Ok(answers)
}

/// The log row of a dead letter, or why the entry is not one.
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

/// The same for one that is to be started over. If its group cannot be read, it could never be promoted.
pub(super) fn redrivable(tx: &Tx<'_>, id: EntryId) -> Result<Result<LastLog>> {
    Ok(dead_letter(tx, id)?.and_then(|last| match last.has_readable_group {
        true => Ok(last),
        false => Err(Error::new(
            ErrorKind::Conflict,
            format!("entry {id} cannot be redriven or reset: its message group cannot be read; discard it"),
        )),
    }))
}
