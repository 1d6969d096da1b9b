//! What happens to entries after a claim: ends, extensions, requeues, cancels.

use rusqlite::{CachedStatement, params};
use tidegate_core::{Action, End, EntryId, LeaseToken, Timestamp};

use crate::error::{Error, ErrorKind, Result};
use crate::sql::{FromRow, Only};
use crate::sqlite::audit::{audit_manual, audit_release};
use crate::sqlite::engine::row::Shown;
use crate::sqlite::engine::tx::{Tx, later, micros, moment};
use crate::sqlite::flags;
use crate::sqlite::found::{Live, last_log, live};
use crate::sqlite::groups::{promote, promote_by_rank};
use crate::sqlite::statements::end::{AsideRow, RequeuedRow};
use crate::sqlite::tags;
use crate::values::jobs::cancel_errors;
use crate::values::{Batch, Extend, Finalize, Finalized, ManualAction, Requeue, RequeueAt};

/// A run of at least this many neighbours is ended by one statement instead of one each.
const RUN: usize = 4;

/// Moves entries to the log.
pub(super) fn finalize(tx: &mut Tx<'_>, items: &[Finalize]) -> Result<Batch<Finalized>> {
    let mut answers = Vec::with_capacity(items.len());
    let mut rest = items;
    while !rest.is_empty() {
        let recorded = rest.iter().take_while(|item| item.attempt.is_some()).count();
        let length = if recorded > 0 { recorded } else { run_length(rest, tx.shared.options.ids.step) };
        let (run, after) = rest.split_at(length);
        if recorded > 0 || run.len() < RUN || !finalize_run(tx, run)? {
            finalize_each(tx, run, &mut answers)?;
        } else {
            answers.extend(run.iter().map(|item| Ok(Finalized { repeated: false, end: item.end })));
        }
        rest = after;
    }
    Ok(answers)
}

/// How many items from the start are neighbours that end in the same way, without errors and records of attempts.
fn run_length(items: &[Finalize], step: i64) -> usize {
    let plain = |item: &Finalize| item.errors.is_none() && item.token.is_some() && item.attempt.is_none();
    let follows = |pair: &[Finalize]| {
        let (a, b) = (&pair[0], &pair[1]);
        let alike = (a.token, a.end, &a.results) == (b.token, b.end, &b.results);
        plain(a) && plain(b) && a.id.get() + step == b.id.get() && alike
    };
    items.windows(2).take_while(|pair| follows(pair)).count() + 1
}

/// Ends a run if all its entries are held, without group and flags; otherwise changes nothing and returns `false`.
fn finalize_run(tx: &mut Tx<'_>, run: &[Finalize]) -> Result<bool> {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(true) };
    let Some(token) = first.token else { return Ok(false) };
    let sql = tx.sql();
    let seq = tx.log_seq()?;
    let (from, to, step) = (first.id.get(), last.id.get(), tx.shared.options.ids.step);
    let logged = tx.prepare(&sql.end.log_run)?.execute(params![
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
        tx.execute(&sql.end.unlog_run, [seq])?;
        return Ok(false);
    }
    tx.execute(&sql.end.delete_run, (from, to))?;
    tx.log_seq_used(run.len());
    Ok(true)
}

fn finalize_each(tx: &mut Tx<'_>, items: &[Finalize], answers: &mut Batch<Finalized>) -> Result<()> {
    let sql = tx.sql();
    let is_recorded = items.iter().any(|item| item.attempt.is_some());
    let mut log = tx.prepare(if is_recorded { &sql.dispatch.log_held } else { &sql.end.log_held })?;
    let mut delete = tx.prepare(&sql.end.delete_held)?;
    for item in items {
        // The usual case in two statements: held under this token, without group and flags.
        let seq = tx.log_seq()?;
        let Finalize { token, errors, results, attempt, .. } = item;
        let (id, end) = (item.id.get(), item.end.code());
        let logged = match token {
            None => 0,
            Some(token) if is_recorded => {
                log.execute(params![seq, id, token.0, tx.now, end, errors, results, attempt])?
            }
            Some(token) => log.execute(params![seq, id, token.0, tx.now, end, errors, results])?,
        };
        if logged == 1 {
            tx.log_seq_used(1);
            delete.execute([id])?;
            answers.push(Ok(Finalized { repeated: false, end: item.end }));
        } else {
            answers.push(finalize_any(tx, item)?);
        }
    }
    Ok(())
}

/// The remaining cases: with a group or flags, without a token, not held, ended before, or unknown.
fn finalize_any(tx: &mut Tx<'_>, item: &Finalize) -> Result<Result<Finalized>> {
    let id = item.id.get();
    let Some(live) = live(tx, id)? else { return finalize_again(tx, item) };
    let ending = Ending {
        end: item.end,
        worker: live.worker.as_deref().filter(|_| live.leased),
        errors: item.errors.as_deref(),
        results: item.results.as_deref(),
        attempt: item.attempt.as_deref(),
        raise_token: false,
    };
    match item.token {
        None => end_live(tx, id, &live, &ending)?,
        Some(token) if live.is_held_under(token) => end_or_keep(tx, id, &live, &ending)?,
        // A repeat of the report that exhausted it.
        Some(token) if flags::is_kept(live.flags) && live.token == token => {
            return Ok(Ok(Finalized { repeated: true, end: live.exhausted_as()? }));
        }
        Some(_) => return Ok(Err(Error::fenced())),
    }
    Ok(Ok(Finalized { repeated: false, end: item.end }))
}

/// A repeat under the token that ended the entry, or without a token, succeeds without writing.
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
    /// The record of the attempt at a job.
    pub(super) attempt: Option<&'a str>,
    pub(super) raise_token: bool,
}

impl Ending<'_> {
    /// An end without worker, errors, results and record.
    pub(super) fn new(end: End) -> Self {
        Self { end, worker: None, errors: None, results: None, attempt: None, raise_token: false }
    }
}

/// Moves one live entry to the log.
pub(super) fn end_entry(tx: &mut Tx<'_>, id: i64, ending: &Ending<'_>) -> Result<()> {
    let sql = tx.sql();
    let seq = tx.log_seq()?;
    let Ending { end, worker, errors, results, attempt, raise_token } = ending;
    let raised = i64::from(*raise_token);
    match attempt {
        None => tx.execute(&sql.end.log_any, params![seq, id, tx.now, raised, end.code(), worker, errors, results])?,
        Some(attempt) => tx.execute(
            &sql.dispatch.log_any,
            params![seq, id, tx.now, raised, end.code(), worker, errors, results, attempt],
        )?,
    };
    tx.execute(&sql.end.delete_entry, [id])?;
    tx.log_seq_used(1);
    Ok(())
}

/// Ends a live entry, moves its tags to the log, and promotes the next entry of its group.
pub(super) fn end_live(tx: &mut Tx<'_>, id: i64, live: &Live, ending: &Ending<'_>) -> Result<()> {
    end_entry(tx, id, ending)?;
    if flags::is_tagged(live.flags) {
        tags::end(tx, id, live.event_id, live.queue_id, ending.end.code())?;
    }
    live.promote_next(tx)
}

/// Ends an entry as its holder or its last attempt has it. One that keeps its place stays live instead of becoming a dead
/// letter, until it is redriven, ended manually or expires.
pub(super) fn end_or_keep(tx: &mut Tx<'_>, id: i64, live: &Live, ending: &Ending<'_>) -> Result<()> {
    if !(ending.end.is_dead_letter() && flags::keeps_place(live.flags)) {
        return end_live(tx, id, live, ending);
    }
    let Ending { end, errors, results, attempt, raise_token, .. } = ending;
    tx.execute(&tx.sql().end.keep, (id, tx.now, i64::from(*raise_token), end.code(), errors))?;
    if let Some(results) = results {
        tx.execute(&tx.sql().handlers.record_kept, (id, results, tx.now))?;
    }
    if let Some(record) = attempt {
        tx.execute(&tx.sql().dispatch.record, (id, record))?;
    }
    if flags::is_tagged(live.flags) {
        tags::follow(tx, id)?;
    }
    Ok(())
}

impl Live {
    fn is_held_under(&self, token: LeaseToken) -> bool {
        self.leased && self.token == token
    }

    fn promote_next(&self, tx: &mut Tx<'_>) -> Result<()> {
        match &self.group {
            // It was the head.
            Some(group) if self.leased => promote(tx, self.queue_id, group).map(drop),
            Some(group) => promote_by_rank(tx, self.queue_id, group).map(drop),
            None => Ok(()),
        }
    }
}

/// Extends leases.
pub(super) fn extend(tx: &mut Tx<'_>, items: &[Extend]) -> Result<Batch<Timestamp>> {
    let mut statement = tx.prepare(&tx.sql().end.extend)?;
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        let until = later(tx.now, item.lease)?;
        let params = (item.id.get(), item.token.0, until, tx.now);
        let held = statement.query(params)?.next()?.map(|row| Only::<Option<i64>>::read(row, 0)).transpose()?;
        tx.known.marks.lease_ends(until);
        if held.as_ref().is_some_and(|Only(flags)| flags::is_tagged(*flags)) {
            tags::follow(tx, item.id.get())?;
        }
        answers.push(if held.is_some() { Ok(moment(until)?) } else { Err(not_held(tx, item.id)?) });
    }
    Ok(answers)
}

/// Gives leases back.
pub(super) fn requeue(tx: &mut Tx<'_>, items: &[Requeue]) -> Result<Batch<()>> {
    let sql = tx.sql();
    let mut now = tx.prepare(&sql.end.requeue_now)?;
    let mut at = tx.prepare(&sql.end.requeue_at)?;
    let mut answers = Vec::with_capacity(items.len());
    tx.known.marks.clear();
    for item in items {
        let due = match item.when {
            RequeueAt::Now => None,
            RequeueAt::At(at) => Some(micros(at).max(tx.now)),
            RequeueAt::After(delay) => Some(later(tx.now, delay)?),
        };
        let returned = match due {
            Some(due) if item.aside => step_aside(tx, item, due)?,
            due => requeue_one(tx, item, due, &mut now, &mut at)?,
        };
        answers.push(match returned {
            Some(RequeuedRow { queue_id, flags }) => {
                if flags::is_tagged(flags) {
                    tags::follow(tx, item.id.get())?;
                }
                if let Some(record) = &item.attempt {
                    tx.execute(&sql.dispatch.record, (item.id.get(), record))?;
                }
                if flags::is_audited(flags) {
                    audit_release(tx, item.id.get(), item.token, item.error.as_deref())?;
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
) -> Result<Option<RequeuedRow>> {
    let (id, token, taken_back) = (item.id.get(), item.token.0, i64::from(!item.counts));
    let mut rows = match due {
        None => now.query(params![id, token, tx.now, taken_back, item.error])?,
        Some(due) => at.query(params![id, token, tx.now, taken_back, item.error, due])?,
    };
    rows.next()?.map(|row| RequeuedRow::read(row, 0)).transpose()
}

/// Gives a lease back so that the others of the entry's group run until it is due.
fn step_aside(tx: &mut Tx<'_>, item: &Requeue, due: i64) -> Result<Option<RequeuedRow>> {
    let requeued = (item.id.get(), item.token.0, tx.now, i64::from(!item.counts), &item.error, due);
    let Some(AsideRow { queue_id, flags, group_key }) = tx.row(&tx.sql().end.requeue_aside, requeued)? else {
        return Ok(None);
    };
    if let Some(Shown(group)) = group_key {
        promote(tx, queue_id, &group)?;
    }
    Ok(Some(RequeuedRow { queue_id, flags }))
}

/// The error for a lease that is not held: fenced, or no such entry.
pub(super) fn not_held(tx: &Tx<'_>, id: EntryId) -> Result<Error> {
    let known = live(tx, id.get())?.is_some() || last_log(tx, id.get())?.is_some();
    Ok(if known { Error::fenced() } else { Error::no_entry(id) })
}

/// Ends live entries as cancelled.
pub(super) fn cancel(tx: &mut Tx<'_>, items: &[ManualAction]) -> Result<Batch<()>> {
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        let id = item.id;
        let answer = match live(tx, id.get())? {
            Some(live) => {
                let errors = cancel_errors(tx.family, item);
                let ending = Ending { errors: errors.as_deref(), ..Ending::new(End::Cancelled) };
                end_live(tx, id.get(), &live, &ending)?;
                audit_manual(tx, item, Action::Cancelled, &live)?;
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
