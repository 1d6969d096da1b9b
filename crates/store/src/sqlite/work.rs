//! What pull workers report, on SQLite: attempts that end, starts, heartbeats, resets, and their audit.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Row, params};
use tidegate_core::name::check_text;
use tidegate_core::work::{self, Attempt, Decision, Recorded};
use tidegate_core::{Action, End, EntryId, LeaseToken, Outcome, QueueName, Tsid};

use super::SqliteStore;
use super::dead_letters::{redrivable, redrive_one};
use super::errors::damaged;
use super::jobs::Urgency;
use super::listing;
use super::settle::{Ending, Live, end_live, last_log, live};
use super::tags;
use super::tx::{Tx, entry_id, later, micros, moment, read_queue_name};
use super::unreadable::shown;
use crate::error::{Error, Result};
use crate::store::{Batch, Claimed};
use crate::turns::Kind;
use crate::work::{
    AuditRow, ByHand, Heartbeat, HeartbeatLease, Held, Holder, ListQuery, Page, Report, Reported, Retained, Retention,
    Verdict, WorkStore, WorkersPage, WorkersQuery,
};

/// Entries that a worker is shown to hold, at most.
const SHOWN: usize = 100;

#[async_trait]
impl WorkStore for SqliteStore {
    async fn report(&self, items: Vec<Report>) -> Result<Batch<Reported>> {
        self.write(Urgency::Finish, move |tx| each(&items, |item| report(tx, item))).await
    }

    async fn started(&self, items: Vec<Holder>) -> Result<Batch<AuditRow>> {
        self.write(Urgency::Finish, move |tx| each(&items, |item| started(tx, item))).await
    }

    async fn heartbeat(&self, items: Vec<Heartbeat>) -> Result<Batch<Held>> {
        self.write(Urgency::Finish, move |tx| each(&items, |item| heartbeat(tx, item))).await
    }

    async fn reset(&self, items: Vec<ByHand>) -> Result<Batch<()>> {
        self.write(Urgency::Finish, move |tx| each(&items, |item| reset(tx, item))).await
    }

    async fn queues_of(&self, ids: Vec<EntryId>) -> Result<Vec<Option<QueueName>>> {
        self.read(move |tx| ids.iter().map(|id| queue_of(tx, id.get())).collect()).await
    }

    async fn event_of(&self, id: EntryId) -> Result<Option<Tsid>> {
        self.read(move |tx| {
            let found: Option<i64> = tx.prepare(&tx.sql().event_of)?.query_row([id.get()], |row| row.get(0))?;
            Ok(found.map(Tsid::from_i64))
        })
        .await
    }

    async fn audit_page(&self, id: EntryId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
        self.read_list(Kind::AUDIT, move |tx| trail(tx, id, after, limit)).await
    }

    async fn list(&self, query: ListQuery) -> Result<Page> {
        crate::listing::check(&query)?;
        self.read_list(Kind::of(&query), move |tx| listing::list(tx, &query)).await
    }

    async fn workers_page(&self, query: WorkersQuery) -> Result<WorkersPage> {
        self.read_list(Kind::workers(query.client), move |tx| workers(tx, &query)).await
    }

    async fn claimable(&self, queue: &QueueName, tags: Vec<String>) -> Result<Vec<String>> {
        let queue = queue.clone();
        self.read(move |tx| tags::claimable(tx, &queue, tags)).await
    }

    async fn retain(&self, retention: Retention) -> Result<Retained> {
        self.forget_old(retention).await
    }
}

/// One answer for one item; the outer error fails the batch.
type Answer<T> = Result<Result<T>>;

fn each<I, T>(items: &[I], mut work: impl FnMut(&I) -> Answer<T>) -> Result<Batch<T>> {
    items.iter().map(&mut work).collect()
}

/// The entry this holder holds, or why it holds none.
fn held(tx: &Tx<'_>, holder: &Holder) -> Answer<Live> {
    if let Err(error) = check_text("worker", &holder.worker) {
        return Ok(Err(error.into()));
    }
    match live(tx, holder.id.get())? {
        Some(live) if is_held_by(&live, holder) => Ok(Ok(live)),
        Some(live) if live.leased => Ok(Err(Error::fenced())),
        None if last_log(tx, holder.id.get())?.is_none() => Ok(Err(Error::no_entry(holder.id))),
        free => {
            let is_last = |row: AuditRow| free.is_none_or(|live| live.token == row.token);
            let reported = last_verdict(tx, holder)?.is_some_and(is_last);
            Ok(Err(if reported { crate::work::already_reported() } else { Error::fenced() }))
        }
    }
}

fn is_held_by(live: &Live, holder: &Holder) -> bool {
    live.leased
        && live.worker.as_deref() == Some(holder.worker.as_str())
        && holder.lease.is_none_or(|lease| lease == live.token)
}

fn report(tx: &mut Tx<'_>, item: &Report) -> Answer<Reported> {
    let holder = &item.holder;
    if let Err(error) = check_text("worker", &holder.worker) {
        return Ok(Err(error.into()));
    }
    let id = holder.id.get();
    let found = live(tx, id)?;
    if let Some(live) = &found
        && holder.lease.is_none()
    {
        let queue = tx.queue_by_id(live.queue_id)?;
        if tx.known.queues[queue].settings.require_lease {
            return Ok(Err(crate::work::lease_required()));
        }
    }
    let attempt = found.as_ref().map(|live| Attempt {
        holder: live.worker.as_deref().filter(|_| live.leased).map(|worker| (worker, live.token)),
        attempts: live.attempts,
        max_attempts: live.max_attempts,
    });
    let holds = found.as_ref().is_some_and(|live| is_held_by(live, holder));
    let record = if holds { None } else { last_verdict(tx, holder)? };
    let recorded = record.as_ref().map(|row| Recorded { action: row.action, token: row.token });
    match (work::decide(attempt, recorded, &holder.worker, holder.lease, item.outcome), found, record) {
        (Decision::End(end), Some(live), _) => end_attempt(tx, item, &live, end).map(Ok),
        (Decision::Retry, Some(live), _) => retry_attempt(tx, item, &live).map(Ok),
        (Decision::Replay, _, Some(row)) => Ok(crate::work::replay(row)),
        (_, Some(_), _) => Ok(Err(Error::fenced())),
        (_, None, _) if last_log(tx, id)?.is_some() => Ok(Err(Error::fenced())),
        _ => Ok(Err(Error::no_entry(holder.id))),
    }
}

fn end_attempt(tx: &mut Tx<'_>, item: &Report, live: &Live, end: End) -> Result<Reported> {
    let errors = match item.outcome {
        Outcome::Completed => None,
        Outcome::Failed => Some(crate::work::error_list(item.error_message.as_deref())),
    };
    let ending =
        Ending { end, worker: live.worker.as_deref(), errors: errors.as_deref(), results: None, raise_token: false };
    end_live(tx, item.holder.id.get(), live, &ending)?;
    let mut row = row_of(tx, item, live)?;
    let verdict = match item.outcome {
        Outcome::Completed => Verdict::Completed,
        Outcome::Failed => {
            let (retry_count, max_retries) = (live.attempts.saturating_sub(1), live.max_attempts.saturating_sub(1));
            (row.retry_count, row.max_retries) = (Some(retry_count), Some(max_retries));
            Verdict::Exhausted { retry_count, max_retries }
        }
    };
    add_audit(tx, &mut row)?;
    reported(tx, row, verdict, live)
}

fn retry_attempt(tx: &mut Tx<'_>, item: &Report, live: &Live) -> Result<Reported> {
    let sql = tx.sql();
    let id = item.holder.id.get();
    let retry: Option<String> =
        tx.prepare(&sql.retry_of_fact)?.query_row([live.event_id], |row| row.get(0)).optional()?.flatten();
    let policy = tags::read_retry(retry);
    let queue = tx.queue_by_id(live.queue_id)?;
    let settings = &tx.known.queues[queue].settings;
    let delay = work::retry_delay(policy.as_ref(), settings.retry.as_ref(), live.attempts, rand::random());
    let due = later(tx.now, delay)?;
    tx.known.marks.clear();
    tx.prepare(&sql.requeue_at)?
        .query_row(params![id, live.token.0, tx.now, 0, item.error_message, due], |_| Ok(()))
        .optional()?;
    if tags::is_tagged(live.flags) {
        tags::follow(tx, id)?;
    }
    if due <= tx.now {
        tx.wake(queue);
    }
    let next_retry_at = moment(due)?;
    let mut row = row_of(tx, item, live)?;
    row.next_retry_at = Some(next_retry_at);
    (row.retry_count, row.max_retries) = (Some(live.attempts), Some(live.max_attempts.saturating_sub(1)));
    add_audit(tx, &mut row)?;
    reported(tx, row, Verdict::RetryScheduled { next_retry_at }, live)
}

fn reported(tx: &mut Tx<'_>, row: AuditRow, verdict: Verdict, live: &Live) -> Result<Reported> {
    let queue = tx.queue_by_id(live.queue_id)?;
    let held_for = crate::work::held_for(live.since.map(moment).transpose()?, moment(tx.now)?);
    let attributes =
        tx.prepare(&tx.sql().attributes_of_fact)?.query_row([live.event_id], |row| shown(row, 0)).optional()?;
    let (queue, attributes) = (Some(tx.known.queues[queue].name.clone()), attributes.flatten());
    Ok(Reported { row, verdict, repeated: false, queue, held_for, attributes })
}

fn row_of(tx: &Tx<'_>, item: &Report, live: &Live) -> Result<AuditRow> {
    let mut row = plain_row(tx, item.holder.id, item.outcome.action(), live)?;
    row.worker = Some(item.holder.worker.clone());
    row.status_code = item.status_code;
    row.execution_time_ms = item.execution_time_ms;
    row.message.clone_from(&item.error_message);
    Ok(row)
}

fn plain_row(tx: &Tx<'_>, entry: EntryId, action: Action, live: &Live) -> Result<AuditRow> {
    Ok(AuditRow {
        id: 0,
        entry,
        event_id: Some(Tsid::from_i64(live.event_id)),
        action,
        worker: live.worker.clone(),
        actor: None,
        generation: live.generation,
        attempt: live.attempts,
        token: live.token,
        status_code: None,
        execution_time_ms: None,
        message: None,
        next_retry_at: None,
        retry_count: None,
        max_retries: None,
        created_at: moment(tx.now)?,
    })
}

fn started(tx: &mut Tx<'_>, item: &Holder) -> Answer<AuditRow> {
    let live = match held(tx, item)? {
        Ok(live) => live,
        Err(error) => return Ok(Err(error)),
    };
    tx.prepare(&tx.sql().touch)?.execute((item.id.get(), tx.now))?;
    let known = tx
        .prepare(&tx.sql().last_start)?
        .query_row((item.id.get(), &item.worker, live.token.0), |row| Ok(read_audit(row)))
        .optional()?;
    if let Some(row) = known {
        return row.map(Ok);
    }
    let mut row = plain_row(tx, item.id, Action::Started, &live)?;
    add_audit(tx, &mut row)?;
    Ok(Ok(row))
}

fn heartbeat(tx: &mut Tx<'_>, item: &Heartbeat) -> Answer<Held> {
    let live = match held(tx, &item.holder)? {
        Ok(live) => live,
        Err(error) => return Ok(Err(error)),
    };
    let id = item.holder.id.get();
    let claimed = match item.lease {
        HeartbeatLease::For(_) => None,
        HeartbeatLease::AsClaimed { .. } => claimed_for(tx, id, live.token)?,
    };
    let queue = tx.queue_by_id(live.queue_id)?;
    let until = later(tx.now, item.lease.length(claimed, &tx.known.queues[queue].settings))?;
    tx.prepare(&tx.sql().extend)?.query_row((id, live.token.0, until, tx.now), |_| Ok(())).optional()?;
    tx.known.marks.lease_ends(until);
    if tags::is_tagged(live.flags) {
        tags::follow(tx, id)?;
    }
    let event_id = Tsid::from_i64(live.event_id);
    Ok(Ok(Held { event_id, token: live.token, lease_until: moment(until)?, attempts: live.attempts }))
}

/// How long a claim asked for, in milliseconds, where the audit knows it.
fn claimed_for(tx: &Tx<'_>, id: i64, token: LeaseToken) -> Result<Option<i64>> {
    Ok(tx.prepare(&tx.sql().claimed_for)?.query_row((id, token.0), |row| row.get(0)).optional()?.flatten())
}

fn queue_of(tx: &mut Tx<'_>, id: i64) -> Result<Option<QueueName>> {
    let queue_id = match live(tx, id)? {
        Some(live) => Some(live.queue_id),
        None => last_log(tx, id)?.map(|last| last.queue_id),
    };
    let Some(queue_id) = queue_id else { return Ok(None) };
    let queue = tx.queue_by_id(queue_id)?;
    Ok(Some(tx.known.queues[queue].name.clone()))
}

fn reset(tx: &mut Tx<'_>, item: &ByHand) -> Answer<()> {
    let id = item.id.get();
    let Some(live) = live(tx, id)? else { return reset_failed(tx, item) };
    if !live.leased {
        return Ok(Err(crate::work::not_resettable(item.id, "it is PENDING")));
    }
    tx.prepare(&tx.sql().reset)?.execute((id, tx.now))?;
    tx.known.marks.clear();
    if tags::is_tagged(live.flags) {
        tags::follow(tx, id)?;
    }
    tx.wake_id(live.queue_id)?;
    audit_started_over(tx, item, Action::Reset)?;
    Ok(Ok(()))
}

fn reset_failed(tx: &mut Tx<'_>, item: &ByHand) -> Answer<()> {
    let dead = match redrivable(tx, item.id)? {
        Ok(dead) if dead.end == End::Failed => dead,
        Ok(dead) => return Ok(Err(crate::work::not_resettable(item.id, dead.end.as_str()))),
        Err(error) => return Ok(Err(error)),
    };
    redrive_one(tx, item.id, &dead, true)?;
    audit_started_over(tx, item, Action::Reset)?;
    Ok(Ok(()))
}

/// The audit says who started an entry over, as it stands now.
pub(super) fn audit_started_over(tx: &mut Tx<'_>, item: &ByHand, action: Action) -> Result<()> {
    let Some(live) = live(tx, item.id.get())? else { return Ok(()) };
    audit_by_hand(tx, item, action, &live)
}

/// The audit says who did something to an entry by hand.
pub(super) fn audit_by_hand(tx: &mut Tx<'_>, item: &ByHand, action: Action, live: &Live) -> Result<()> {
    let mut row = plain_row(tx, item.id, action, live)?;
    (row.worker, row.actor, row.message) = (None, item.actor.clone(), item.reason.clone());
    add_audit(tx, &mut row)
}

/// The audit says who picked what.
pub(super) fn audit_picked(tx: &Tx<'_>, claimed: &[(i16, Claimed)], worker: &str, lease: Duration) -> Result<()> {
    // A heartbeat that names no lease asks for this one.
    let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
    let mut statement = tx.prepare(&tx.sql().add_audit)?;
    for (_, entry) in claimed {
        statement.execute(params![
            entry.id.get(),
            Action::Picked.code(),
            worker,
            entry.generation,
            entry.attempts,
            entry.token.0,
            None::<i32>,
            lease,
            None::<&str>,
            None::<i64>,
            None::<u32>,
            None::<u32>,
            tx.now,
        ])?;
    }
    Ok(())
}

/// A claim raised the token to this one: if the last thing known is that somebody held the entry, it was abandoned.
pub(super) fn audit_takeover(tx: &Tx<'_>, id: i64, token: LeaseToken) -> Result<()> {
    tx.prepare(&tx.sql().add_abandoned)?.execute((id, token.0, tx.now, Action::Abandoned.code()))?;
    Ok(())
}

/// An audited lease was given back.
pub(super) fn audit_release(tx: &Tx<'_>, id: i64, token: LeaseToken, error: Option<&str>) -> Result<()> {
    tx.prepare(&tx.sql().add_released)?.execute((id, token.0, tx.now, Action::Released.code(), error))?;
    Ok(())
}

fn add_audit(tx: &Tx<'_>, row: &mut AuditRow) -> Result<()> {
    tx.prepare(&tx.sql().add_audit)?.execute(params![
        row.entry.get(),
        row.action.code(),
        // One column for both: an action is a worker's or done by hand.
        row.worker.as_ref().or(row.actor.as_ref()),
        row.generation,
        row.attempt,
        row.token.0,
        row.status_code,
        row.execution_time_ms,
        row.message,
        row.next_retry_at.map(micros),
        row.retry_count,
        row.max_retries,
        tx.now,
    ])?;
    row.id = tx.conn.last_insert_rowid();
    Ok(())
}

fn last_verdict(tx: &Tx<'_>, holder: &Holder) -> Result<Option<AuditRow>> {
    let lease = holder.lease.map(|lease| lease.0);
    let found = tx
        .prepare(&tx.sql().last_verdict)?
        .query_row((holder.id.get(), &holder.worker, lease), |row| Ok(read_audit(row)))
        .optional()?;
    found.transpose()
}

fn trail(tx: &Tx<'_>, id: EntryId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
    let mut statement = tx.prepare(&tx.sql().audit)?;
    let mut rows = statement.query((id.get(), after, i64::try_from(limit).unwrap_or(i64::MAX)))?;
    let mut trail = Vec::new();
    while let Some(row) = rows.next()? {
        trail.push(read_audit(row)?);
    }
    Ok(trail)
}

/// Reads the columns that `queries::audit!` names.
fn read_audit(row: &Row<'_>) -> Result<AuditRow> {
    let action = Action::from_code(row.get(2)?).ok_or_else(|| damaged("an audit row has an unknown action"))?;
    Ok(AuditRow {
        id: row.get(0)?,
        entry: entry_id(row.get(1)?)?,
        event_id: row.get::<_, Option<i64>>(14)?.map(Tsid::from_i64),
        action,
        worker: row.get::<_, Option<String>>(3)?.filter(|_| !action.is_by_hand()),
        actor: row.get::<_, Option<String>>(3)?.filter(|_| action.is_by_hand()),
        generation: row.get(4)?,
        attempt: row.get(5)?,
        token: LeaseToken(row.get(6)?),
        status_code: row.get(7)?,
        // The row of a claim holds the lease there.
        execution_time_ms: row.get::<_, Option<i64>>(8)?.filter(|_| action != Action::Picked),
        message: row.get(9)?,
        next_retry_at: row.get::<_, Option<i64>>(10)?.map(moment).transpose()?,
        retry_count: row.get(11)?,
        max_retries: row.get(12)?,
        created_at: moment(row.get(13)?)?,
    })
}

fn workers(tx: &Tx<'_>, query: &WorkersQuery) -> Result<WorkersPage> {
    let client = query.client.map(tidegate_core::Tsid::to_i64);
    let mut known = BTreeMap::new();
    let mut statement = tx.prepare(&tx.sql().all_consumers)?;
    let mut rows = statement.query([client])?;
    while let Some(row) = rows.next()? {
        let queue = read_queue_name(row, 1, 3)?;
        crate::work::seen(&mut known, row.get(0)?, queue, moment(row.get(2)?)?);
    }
    let mut statement = tx.prepare(&tx.sql().all_held)?;
    let mut rows = statement.query([client])?;
    while let Some(row) = rows.next()? {
        let queue = read_queue_name(row, 1, 4)?;
        let worker = row.get::<_, Option<String>>(0)?.unwrap_or_default();
        let view = crate::work::seen(&mut known, worker, queue, moment(row.get(3)?)?);
        view.held += 1;
        if view.holds.len() < SHOWN {
            view.holds.push(entry_id(row.get(2)?)?);
        }
    }
    Ok(crate::work::judge_workers(known, moment(tx.now)?, query))
}
