//! What happens to entries after they were claimed: ends, extensions, returns; and who is next in a group.

use rusqlite::{CachedStatement, OptionalExtension, params};
use tidegate_core::{Action, End, EntryId, LeaseToken, Timestamp};

use super::errors::damaged;
use super::tags;
use super::tx::{Tx, later, micros, moment};
use super::unreadable::shown;
use super::work::audit_by_hand;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Batch, Extend, Finalize, Finalized, Requeue, RequeueAt};
use crate::work::ByHand;

/// From this length on, a run of neighbours is ended by one statement instead of one each.
const RUN: usize = 4;

/// Moves entries to the log.
pub(super) fn finalize(tx: &mut Tx<'_>, items: &[Finalize]) -> Result<Batch<Finalized>> {
    let mut answers = Vec::with_capacity(items.len());
    let mut rest = items;
    while !rest.is_empty() {
        let (run, after) = rest.split_at(run_length(rest, tx.shared.options.ids.step));
        if run.len() < RUN || !finalize_run(tx, run)? {
            finalize_each(tx, run, &mut answers)?;
        } else {
            answers.extend(run.iter().map(|item| Ok(Finalized { repeated: false, end: item.end })));
        }
        rest = after;
    }
    Ok(answers)
}

/// How many items from the start on are neighbours that end alike, without errors.
fn run_length(items: &[Finalize], step: i64) -> usize {
    let plain = |item: &Finalize| item.errors.is_none() && item.token.is_some();
    let follows = |pair: &[Finalize]| {
        let (a, b) = (&pair[0], &pair[1]);
        let alike = (a.token, a.end, &a.results) == (b.token, b.end, &b.results);
        plain(a) && plain(b) && a.id.get() + step == b.id.get() && alike
    };
    items.windows(2).take_while(|pair| follows(pair)).count() + 1
}

/// Ends a run whose entries are all held, in no group; otherwise it changes nothing.
fn finalize_run(tx: &mut Tx<'_>, run: &[Finalize]) -> Result<bool> {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(true) };
    let Some(token) = first.token else { return Ok(false) };
    let sql = tx.sql();
    let seq = tx.log_seq()?;
    let (from, to, step) = (first.id.get(), last.id.get(), tx.shared.options.ids.step);
    let logged = tx.prepare(&sql.log_run)?.execute(params![
        seq,
        from,
        to,
        token.0,
        tx.now,
        first.end.code(),
        step,
        first.results,
    ])?;
    if logged != run.len() {
        tx.prepare(&sql.unlog_run)?.execute([seq])?;
        return Ok(false);
    }
    tx.prepare(&sql.delete_run)?.execute((from, to))?;
    tx.log_seq_used(run.len());
    Ok(true)
}

fn finalize_each(tx: &mut Tx<'_>, items: &[Finalize], answers: &mut Batch<Finalized>) -> Result<()> {
    let sql = tx.sql();
    let mut log = tx.prepare(&sql.log_held)?;
    let mut delete = tx.prepare(&sql.delete_held)?;
    for item in items {
        // The usual case in two statements: held under this token, in no group.
        let seq = tx.log_seq()?;
        if let Some(token) = item.token
            && log.execute(params![seq, item.id.get(), token.0, tx.now, item.end.code(), item.errors, item.results])?
                == 1
        {
            tx.log_seq_used(1);
            delete.execute([item.id.get()])?;
            answers.push(Ok(Finalized { repeated: false, end: item.end }));
        } else {
            answers.push(finalize_any(tx, item)?);
        }
    }
    Ok(())
}

/// Grouped, without a token, not held, ended before, or not there at all.
fn finalize_any(tx: &mut Tx<'_>, item: &Finalize) -> Result<Result<Finalized>> {
    let id = item.id.get();
    let Some(live) = live(tx, id)? else { return finalize_again(tx, item) };
    if item.token.is_some_and(|token| !live.is_held_under(token)) {
        return Ok(Err(Error::fenced()));
    }
    let ending = Ending {
        end: item.end,
        worker: live.worker.as_deref().filter(|_| live.leased),
        errors: item.errors.as_deref(),
        results: item.results.as_deref(),
        raise_token: false,
    };
    end_live(tx, id, &live, &ending)?;
    Ok(Ok(Finalized { repeated: false, end: item.end }))
}

/// A repeat under the token that ended it, or by bare id, was done already.
fn finalize_again(tx: &mut Tx<'_>, item: &Finalize) -> Result<Result<Finalized>> {
    let Some(last) = last_log(tx, item.id.get())? else { return Ok(Err(Error::no_entry(item.id))) };
    if item.token.is_some_and(|token| token != last.token) {
        return Ok(Err(Error::fenced()));
    }
    Ok(Ok(Finalized { repeated: true, end: last.end }))
}

/// How an entry ends.
pub(super) struct Ending<'a> {
    pub(super) end: End,
    pub(super) worker: Option<&'a str>,
    pub(super) errors: Option<&'a str>,
    pub(super) results: Option<&'a str>,
    pub(super) raise_token: bool,
}

/// Moves one live entry to the log.
pub(super) fn end_entry(tx: &mut Tx<'_>, id: i64, ending: &Ending<'_>) -> Result<()> {
    let sql = tx.sql();
    let seq = tx.log_seq()?;
    tx.prepare(&sql.log_any)?.execute(params![
        seq,
        id,
        tx.now,
        i64::from(ending.raise_token),
        ending.end.code(),
        ending.worker,
        ending.errors,
        ending.results,
    ])?;
    tx.prepare(&sql.delete_entry)?.execute([id])?;
    tx.log_seq_used(1);
    Ok(())
}

/// Ends a live entry, with its tags; the next of its group follows.
pub(super) fn end_live(tx: &mut Tx<'_>, id: i64, live: &Live, ending: &Ending<'_>) -> Result<()> {
    end_entry(tx, id, ending)?;
    if tags::is_tagged(live.flags) {
        tags::end(tx, id, live.event_id, live.queue_id, ending.end.code())?;
    }
    live.promote_next(tx)
}

/// What decides about a live entry.
pub(super) struct Live {
    pub(super) token: LeaseToken,
    pub(super) leased: bool,
    pub(super) queue_id: i64,
    group: Option<String>,
    pub(super) worker: Option<String>,
    pub(super) flags: Option<i64>,
    pub(super) event_id: i64,
    pub(super) attempts: u32,
    pub(super) max_attempts: u32,
    pub(super) generation: u32,
    /// When the lease was taken.
    pub(super) since: Option<i64>,
}

impl Live {
    fn is_held_under(&self, token: LeaseToken) -> bool {
        self.leased && self.token == token
    }

    fn promote_next(&self, tx: &mut Tx<'_>) -> Result<()> {
        if let Some(group) = &self.group {
            promote(tx, self.queue_id, group)?;
        }
        Ok(())
    }
}

pub(super) fn live(tx: &Tx<'_>, id: i64) -> Result<Option<Live>> {
    let found = tx.prepare(&tx.sql().live)?.query_row([id], |row| {
        Ok(Live {
            token: LeaseToken(row.get(0)?),
            leased: row.get::<_, Option<i64>>(1)?.is_some(),
            queue_id: row.get(2)?,
            group: shown(row, 3)?,
            worker: row.get(4)?,
            flags: row.get(5)?,
            event_id: row.get(6)?,
            attempts: row.get(7)?,
            max_attempts: row.get(8)?,
            generation: row.get(9)?,
            since: row.get(10)?,
        })
    });
    Ok(found.optional()?)
}

/// The last log row of an entry.
pub(super) struct LastLog {
    pub(super) seq: i64,
    pub(super) generation: u32,
    pub(super) token: LeaseToken,
    pub(super) end: End,
    pub(super) superseded: bool,
    pub(super) queue_id: i64,
    pub(super) group: Option<String>,
    pub(super) has_readable_group: bool,
    pub(super) flags: Option<i64>,
    pub(super) event_id: i64,
}

pub(super) fn last_log(tx: &Tx<'_>, id: i64) -> Result<Option<LastLog>> {
    let mut statement = tx.prepare(&tx.sql().last_log)?;
    let mut rows = statement.query([id])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    Ok(Some(LastLog {
        seq: row.get(0)?,
        generation: row.get(1)?,
        token: LeaseToken(row.get(2)?),
        end: End::from_code(row.get(3)?).ok_or_else(|| damaged("an entry has an unknown end"))?,
        superseded: row.get(4)?,
        queue_id: row.get(5)?,
        has_readable_group: row.get_ref(6)?.as_str_or_null().is_ok(),
        group: shown(row, 6)?,
        flags: row.get(7)?,
        event_id: row.get(8)?,
    }))
}

/// Makes the first parked entry of a group claimable if nobody of the group is. Answers whether it did.
pub(super) fn promote(tx: &mut Tx<'_>, queue_id: i64, group: &str) -> Result<bool> {
    let promoted: Option<(i64, Option<i64>)> = tx
        .prepare(&tx.sql().promote)?
        .query_row((queue_id, group, tx.now), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if let Some((id, flags)) = promoted {
        if tags::is_tagged(flags) {
            tags::follow(tx, id)?;
        }
        tx.wake_id(queue_id)?;
    }
    Ok(promoted.is_some())
}

/// Moves the ends of leases.
pub(super) fn extend(tx: &mut Tx<'_>, items: &[Extend]) -> Result<Batch<Timestamp>> {
    let mut statement = tx.prepare(&tx.sql().extend)?;
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        let until = later(tx.now, item.lease)?;
        let held: Option<Option<i64>> =
            statement.query_row((item.id.get(), item.token.0, until, tx.now), |row| row.get(0)).optional()?;
        tx.known.marks.lease_ends(until);
        if held.is_some_and(tags::is_tagged) {
            tags::follow(tx, item.id.get())?;
        }
        answers.push(if held.is_some() { Ok(moment(until)?) } else { Err(not_held(tx, item.id)?) });
    }
    Ok(answers)
}

/// Gives leases back.
pub(super) fn requeue(tx: &mut Tx<'_>, items: &[Requeue]) -> Result<Batch<()>> {
    let sql = tx.sql();
    let mut now = tx.prepare(&sql.requeue_now)?;
    let mut at = tx.prepare(&sql.requeue_at)?;
    let mut answers = Vec::with_capacity(items.len());
    tx.known.marks.clear();
    for item in items {
        let due = match item.when {
            RequeueAt::Now => None,
            RequeueAt::At(at) => Some(micros(at).max(tx.now)),
            RequeueAt::After(delay) => Some(later(tx.now, delay)?),
        };
        let returned = requeue_one(tx, item, due, &mut now, &mut at)?;
        answers.push(match returned {
            Some((queue_id, flags)) => {
                if tags::is_tagged(flags) {
                    tags::follow(tx, item.id.get())?;
                }
                if tags::is_audited(flags) {
                    super::work::audit_release(tx, item.id.get(), item.token, item.error.as_deref())?;
                }
                if due.is_none_or(|due| due <= tx.now) {
                    tx.wake_id(queue_id)?;
                }
                Ok(())
            }
            None => Err(not_held(tx, item.id)?),
        });
    }
    Ok(answers)
}

fn requeue_one(
    tx: &Tx<'_>,
    item: &Requeue,
    due: Option<i64>,
    now: &mut CachedStatement<'_>,
    at: &mut CachedStatement<'_>,
) -> Result<Option<(i64, Option<i64>)>> {
    let (id, token, taken_back) = (item.id.get(), item.token.0, i64::from(!item.counts));
    let mut rows = match due {
        None => now.query(params![id, token, tx.now, taken_back, item.error])?,
        Some(due) => at.query(params![id, token, tx.now, taken_back, item.error, due])?,
    };
    Ok(rows.next()?.map(|row| Ok::<_, rusqlite::Error>((row.get(0)?, row.get(1)?))).transpose()?)
}

/// Why a lease could not be changed.
pub(super) fn not_held(tx: &Tx<'_>, id: EntryId) -> Result<Error> {
    let known = live(tx, id.get())?.is_some() || last_log(tx, id.get())?.is_some();
    Ok(if known { Error::fenced() } else { Error::no_entry(id) })
}

/// Ends live entries as cancelled.
pub(super) fn cancel(tx: &mut Tx<'_>, items: &[ByHand]) -> Result<Batch<()>> {
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        let id = item.id;
        let answer = match live(tx, id.get())? {
            Some(live) => {
                let ending =
                    Ending { end: End::Cancelled, worker: None, errors: None, results: None, raise_token: false };
                end_live(tx, id.get(), &live, &ending)?;
                audit_by_hand(tx, item, Action::Cancelled, &live)?;
                Ok(())
            }
            None if last_log(tx, id.get())?.is_some() => {
                Err(Error::new(ErrorKind::AlreadyEnded, format!("entry {id} has ended")))
            }
            None => Err(Error::no_entry(id)),
        };
        answers.push(answer);
    }
    Ok(answers)
}
