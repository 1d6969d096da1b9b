//! Dead letters: starting them over, taking them off the list.

use tidegate_core::{EntryId, Generation};

use super::settle::{LastLog, last_log, live, promote};
use super::tx::Tx;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Batch;

/// Starts new generations.
pub(super) fn redrive(tx: &mut Tx<'_>, ids: &[EntryId]) -> Result<Batch<Generation>> {
    let mut answers = Vec::with_capacity(ids.len());
    for id in ids {
        answers.push(match dead_letter(tx, *id)? {
            Ok(dead) => Ok(redrive_one(tx, &dead)?),
            Err(error) => Err(error),
        });
    }
    Ok(answers)
}

fn redrive_one(tx: &mut Tx<'_>, dead: &LastLog) -> Result<Generation> {
    let sql = tx.sql();
    tx.prepare(&sql.redrive)?.execute((dead.seq, tx.now))?;
    tx.prepare(&sql.supersede)?.execute([dead.seq])?;
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
                tx.prepare(&tx.sql().supersede)?.execute([dead.seq])?;
                Ok(())
            }
            Err(error) => Err(error),
        });
    }
    Ok(answers)
}

/// The log row of a dead letter, or why it is none.
fn dead_letter(tx: &Tx<'_>, id: EntryId) -> Result<Result<LastLog>> {
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
