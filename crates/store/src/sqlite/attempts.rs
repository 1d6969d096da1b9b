//! Reports of pull workers on SQLite: ends of attempts, starts, heartbeats, resets.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, params};
use tidegate_core::attempt::{self, Attempt, Recorded, ReportDecision};
use tidegate_core::name::check_text;
use tidegate_core::{Action, AttemptOutcome, End, EntryId, QueueName, Tsid};

use crate::api::Attempts;
use crate::error::{Error, Result};
use crate::list_gate::Kind;
use crate::sql::Only;
use crate::sqlite::audit::{self, audit_started_over};
use crate::sqlite::dead_letters::{redrivable, redrive_kept, redrive_one};
use crate::sqlite::end::{Ending, end_or_keep};
use crate::sqlite::engine::jobs::Urgency;
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::{Tx, later, moment};
use crate::sqlite::flags;
use crate::sqlite::found::{Live, last_log, live};
use crate::sqlite::holders::{Answer, held, is_held_by};
use crate::sqlite::tags;
use crate::values::attempts::NO_REPORTS;
use crate::values::{
    AuditRow, Batch, Heartbeat, HeartbeatLease, Held, Holder, ManualAction, Report, ReportResult, Reported,
};

#[async_trait]
impl Attempts for SqliteStore {
    async fn report(&self, items: Vec<Report>) -> Result<Batch<Reported>> {
        self.refuse_jobs(NO_REPORTS)?;
        self.write(Urgency::End, move |tx| each(&items, |item| report(tx, item))).await
    }

    async fn started(&self, items: Vec<Holder>) -> Result<Batch<AuditRow>> {
        self.refuse_jobs(NO_REPORTS)?;
        self.write(Urgency::End, move |tx| each(&items, |item| started(tx, item))).await
    }

    async fn heartbeat(&self, items: Vec<Heartbeat>) -> Result<Batch<Held>> {
        self.write(Urgency::End, move |tx| each(&items, |item| heartbeat(tx, item))).await
    }

    async fn reset(&self, items: Vec<ManualAction>) -> Result<Batch<()>> {
        self.write(Urgency::End, move |tx| each(&items, |item| reset(tx, item))).await
    }

    async fn audit_page(&self, id: EntryId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
        self.read_list(Kind::AUDIT, move |tx| audit::page(tx, id, after, limit)).await
    }
}

fn each<I, T>(items: &[I], mut work: impl FnMut(&I) -> Answer<T>) -> Result<Batch<T>> {
    items.iter().map(&mut work).collect()
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
            return Ok(Err(crate::values::attempts::lease_required()));
        }
    }
    let attempt = found.as_ref().map(|live| Attempt {
        holder: live.worker.as_deref().filter(|_| live.leased).map(|worker| (worker, live.token)),
        attempts: live.attempts,
        max_attempts: live.max_attempts,
    });
    let holds = found.as_ref().is_some_and(|live| is_held_by(live, holder));
    let record = if holds { None } else { audit::last_report(tx, holder)? };
    let recorded = record.as_ref().map(|row| Recorded { action: row.action, token: row.token });
    match (attempt::decide(attempt, recorded, &holder.worker, holder.lease, item.outcome), found, record) {
        (ReportDecision::End(end), Some(live), _) => end_attempt(tx, item, &live, end).map(Ok),
        (ReportDecision::Retry, Some(live), _) => retry_attempt(tx, item, &live).map(Ok),
        (ReportDecision::Replay, _, Some(row)) => Ok(crate::values::attempts::replay(row)),
        (_, Some(_), _) => Ok(Err(Error::fenced())),
        (_, None, _) if last_log(tx, id)?.is_some() => Ok(Err(Error::fenced())),
        _ => Ok(Err(Error::no_entry(holder.id))),
    }
}

fn end_attempt(tx: &mut Tx<'_>, item: &Report, live: &Live, end: End) -> Result<Reported> {
    let errors = match item.outcome {
        AttemptOutcome::Completed => None,
        AttemptOutcome::Failed => Some(crate::values::attempts::error_list(item.error_message.as_deref())),
    };
    let ending = Ending { worker: live.worker.as_deref(), errors: errors.as_deref(), ..Ending::new(end) };
    end_or_keep(tx, item.holder.id.get(), live, &ending)?;
    let mut row = report_row(tx, item, live)?;
    let result = match item.outcome {
        AttemptOutcome::Completed => ReportResult::Completed,
        AttemptOutcome::Failed => {
            let (retry_count, max_retries) = (live.attempts.saturating_sub(1), live.max_attempts.saturating_sub(1));
            (row.retry_count, row.max_retries) = (Some(retry_count), Some(max_retries));
            ReportResult::Exhausted { retry_count, max_retries }
        }
    };
    audit::add(tx, &mut row)?;
    reported(tx, row, result, live)
}

fn retry_attempt(tx: &mut Tx<'_>, item: &Report, live: &Live) -> Result<Reported> {
    let sql = tx.sql();
    let id = item.holder.id.get();
    let retry = tx.row(&sql.attempts.retry_of_fact, [live.event_id])?;
    let policy = crate::sqlite::engine::row::retry(retry.and_then(|Only(text)| text));
    let queue = tx.queue_by_id(live.queue_id)?;
    let settings = &tx.known.queues[queue].settings;
    let delay = attempt::retry_delay(policy.as_ref(), settings.retry.as_ref(), live.attempts, rand::random());
    let due = later(tx.now, delay)?;
    tx.known.marks.clear();
    tx.prepare(&sql.end.requeue_at)?
        .query_row(params![id, live.token.0, tx.now, 0, item.error_message, due], |_| Ok(()))
        .optional()?;
    if flags::is_tagged(live.flags) {
        tags::follow(tx, id)?;
    }
    if due <= tx.now {
        tx.wake(queue);
    }
    let next_retry_at = moment(due)?;
    let mut row = report_row(tx, item, live)?;
    row.next_retry_at = Some(next_retry_at);
    (row.retry_count, row.max_retries) = (Some(live.attempts), Some(live.max_attempts.saturating_sub(1)));
    audit::add(tx, &mut row)?;
    reported(tx, row, ReportResult::RetryScheduled { next_retry_at }, live)
}

fn reported(tx: &mut Tx<'_>, row: AuditRow, result: ReportResult, live: &Live) -> Result<Reported> {
    let queue = tx.queue_by_id(live.queue_id)?;
    let held_for = crate::values::attempts::held_for(live.since.map(moment).transpose()?, moment(tx.now)?);
    let attributes = tx.row(&tx.sql().attempts.attributes_of_fact, [live.event_id])?;
    let attributes = attributes.and_then(|Only(text)| text).map(|text| text.0);
    let queue = Some(tx.known.queues[queue].name.clone());
    Ok(Reported { row, result, repeated: false, queue, held_for, attributes })
}

fn report_row(tx: &Tx<'_>, item: &Report, live: &Live) -> Result<AuditRow> {
    let mut row = audit::row_of(tx, item.holder.id, item.outcome.action(), live)?;
    row.worker = Some(item.holder.worker.clone());
    row.status_code = item.status_code;
    row.execution_time_ms = item.execution_time_ms;
    row.message.clone_from(&item.error_message);
    Ok(row)
}

fn started(tx: &mut Tx<'_>, item: &Holder) -> Answer<AuditRow> {
    let live = match held(tx, item)? {
        Ok(live) => live,
        Err(error) => return Ok(Err(error)),
    };
    tx.execute(&tx.sql().attempts.touch, (item.id.get(), tx.now))?;
    if let Some(row) = audit::last_start(tx, item, live.token)? {
        return Ok(Ok(row));
    }
    let mut row = audit::row_of(tx, item.id, Action::Started, &live)?;
    audit::add(tx, &mut row)?;
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
        HeartbeatLease::AsClaimed { .. } => audit::claimed_for(tx, id, live.token)?,
    };
    let queue = tx.queue_by_id(live.queue_id)?;
    let until = later(tx.now, item.lease.length(claimed, &tx.known.queues[queue].settings))?;
    tx.prepare(&tx.sql().end.extend)?.query_row((id, live.token.0, until, tx.now), |_| Ok(())).optional()?;
    tx.known.marks.lease_ends(until);
    if flags::is_tagged(live.flags) {
        tags::follow(tx, id)?;
    }
    let event_id = Tsid::from_i64(live.event_id);
    Ok(Ok(Held { event_id, token: live.token, lease_until: moment(until)?, attempts: live.attempts }))
}

pub(super) fn queue_of(tx: &mut Tx<'_>, id: i64) -> Result<Option<QueueName>> {
    let queue_id = match live(tx, id)? {
        Some(live) => Some(live.queue_id),
        None => last_log(tx, id)?.map(|last| last.queue_id),
    };
    let Some(queue_id) = queue_id else { return Ok(None) };
    let queue = tx.queue_by_id(queue_id)?;
    Ok(Some(tx.known.queues[queue].name.clone()))
}

fn reset(tx: &mut Tx<'_>, item: &ManualAction) -> Answer<()> {
    let id = item.id.get();
    let Some(live) = live(tx, id)? else { return reset_failed(tx, item) };
    if flags::is_kept(live.flags) {
        redrive_kept(tx, item.id, &live, true)?;
        audit_started_over(tx, item, Action::Reset)?;
        return Ok(Ok(()));
    }
    if !live.leased {
        return Ok(Err(crate::values::attempts::not_resettable(item.id, "it is PENDING")));
    }
    tx.execute(&tx.sql().attempts.reset, (id, tx.now))?;
    tx.known.marks.clear();
    if flags::is_tagged(live.flags) {
        tags::follow(tx, id)?;
    }
    tx.wake_id(live.queue_id)?;
    audit_started_over(tx, item, Action::Reset)?;
    Ok(Ok(()))
}

fn reset_failed(tx: &mut Tx<'_>, item: &ManualAction) -> Answer<()> {
    let dead = match redrivable(tx, item.id)? {
        Ok(dead) if dead.end == End::Failed => dead,
        Ok(dead) => return Ok(Err(crate::values::attempts::not_resettable(item.id, dead.end.as_str()))),
        Err(error) => return Ok(Err(error)),
    };
    redrive_one(tx, item.id, &dead, true)?;
    audit_started_over(tx, item, Action::Reset)?;
    Ok(Ok(()))
}
