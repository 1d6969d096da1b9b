//! Dead letters: redriving and discarding them.

use tidegate_core::{Action, End, EntryId, Generation};

use crate::error::{Error, ErrorKind, Result};
use crate::sql::Only;
use crate::sqlite::audit::audit_started_over;
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::flags;
use crate::sqlite::found::{LastLog, Live, last_log, live};
use crate::sqlite::groups::promote_by_rank;
use crate::sqlite::tags;
use crate::values::jobs::not_failed;
use crate::values::{Batch, ManualAction};

/// The values of `superseded` in a log row.
const REDRIVEN: i16 = 1;
const DISCARDED: i16 = 2;

/// Starts new generations of dead letters.
pub(super) fn redrive(tx: &mut Tx<'_>, items: &[ManualAction]) -> Result<Batch<Generation>> {
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        answers.push(match redrive_item(tx, item.id)? {
            Ok(generation) => {
                audit_started_over(tx, item, Action::Redriven)?;
                Ok(generation)
            }
            Err(error) => Err(error),
        });
    }
    Ok(answers)
}

fn redrive_item(tx: &mut Tx<'_>, id: EntryId) -> Result<Result<Generation>> {
    if let Some(live) = live(tx, id.get())?.filter(|live| flags::is_kept(live.flags)) {
        return redrive_kept(tx, id, &live, false).map(Ok);
    }
    match redrivable(tx, id)? {
        Ok(dead) => redrive_one(tx, id, &dead, false).map(Ok),
        Err(error) => Ok(Err(error)),
    }
}

/// Starts a kept entry over where it is; `raise` also raises its token, as a reset does.
pub(super) fn redrive_kept(tx: &mut Tx<'_>, id: EntryId, live: &Live, raise: bool) -> Result<Generation> {
    let redriven = tx.row(&tx.sql().entries.redrive_kept, (id.get(), tx.now, i64::from(raise)))?;
    crate::sqlite::lanes::find_again(tx, id.get(), live.queue_id, live.event_id)?;
    if flags::is_tagged(live.flags) {
        tags::follow(tx, id.get())?;
    }
    tx.wake_id(live.queue_id)?;
    Ok(redriven.map_or(live.generation, |Only(generation)| generation))
}

/// Starts one over; `raise` also raises its token, as a reset does.
pub(super) fn redrive_one(tx: &mut Tx<'_>, id: EntryId, dead: &LastLog, raise: bool) -> Result<Generation> {
    let sql = &tx.sql().entries;
    tx.execute(&sql.redrive, (dead.seq, tx.now, i64::from(raise)))?;
    tx.execute(&sql.supersede, (dead.seq, REDRIVEN))?;
    crate::sqlite::lanes::find_again(tx, id.get(), dead.queue_id, dead.event_id)?;
    if flags::is_tagged(dead.flags) {
        let tags = tags::of_fact(tx, dead.event_id)?;
        tags::remove_ended(tx, id.get(), &tags, dead.end.code())?;
        tags::put(tx, id.get(), &tags)?;
    }
    match &dead.group {
        Some(group) => drop(promote_by_rank(tx, dead.queue_id, group)?),
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

/// The same for one that is to be started over.
pub(super) fn redrivable(tx: &Tx<'_>, id: EntryId) -> Result<Result<LastLog>> {
    Ok(dead_letter(tx, id)?.and_then(|last| startable(id, last)))
}

/// An entry that can be started over. If its group cannot be read, it could never be promoted.
fn startable(id: EntryId, last: LastLog) -> Result<LastLog> {
    match last.has_readable_group {
        true => Ok(last),
        false => Err(Error::new(
            ErrorKind::Conflict,
            format!("entry {id} cannot be redriven or reset: its message group cannot be read; discard it"),
        )),
    }
}

/// Starts new generations of jobs that failed or were cancelled, and of kept ones.
pub(super) fn retry(tx: &mut Tx<'_>, items: &[ManualAction]) -> Result<Batch<Generation>> {
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        let answer = retry_item(tx, item.id)?;
        if answer.is_ok() {
            audit_started_over(tx, item, Action::Redriven)?;
        }
        answers.push(answer);
    }
    Ok(answers)
}

fn retry_item(tx: &mut Tx<'_>, id: EntryId) -> Result<Result<Generation>> {
    if let Some(live) = live(tx, id.get())? {
        return match flags::is_kept(live.flags) {
            true => redrive_kept(tx, id, &live, false).map(Ok),
            false => Ok(Err(not_failed(id))),
        };
    }
    let ended = match last_log(tx, id.get())? {
        None => return Ok(Err(Error::no_entry(id))),
        Some(last) if last.superseded || last.end == End::Completed => return Ok(Err(not_failed(id))),
        Some(last) => startable(id, last),
    };
    match ended {
        Ok(ended) => redrive_one(tx, id, &ended, false).map(Ok),
        Err(error) => Ok(Err(error)),
    }
}
