//! The audit on SQLite. Rows are only appended, in the transaction of the action that they record.

use std::time::Duration;

use rusqlite::params;
use tidegate_core::{Action, EntryId, LeaseToken, Tsid};

use crate::error::Result;
use crate::sql::Only;
use crate::sqlite::engine::tx::{Tx, micros, moment};
use crate::sqlite::found::{LastLog, Live, live};
use crate::values::{AuditRow, Claimed, Holder, ManualAction};

/// The audit row of an action on a live entry.
pub(super) fn row_of(tx: &Tx<'_>, entry: EntryId, action: Action, live: &Live) -> Result<AuditRow> {
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

/// Records in the audit that an entry was started over, with its present state.
pub(super) fn audit_started_over(tx: &mut Tx<'_>, item: &ManualAction, action: Action) -> Result<()> {
    let Some(live) = live(tx, item.id.get())? else { return Ok(()) };
    audit_manual(tx, item, action, &live)
}

/// Records a manual action in the audit.
pub(super) fn audit_manual(tx: &mut Tx<'_>, item: &ManualAction, action: Action, live: &Live) -> Result<()> {
    let mut row = row_of(tx, item.id, action, live)?;
    (row.worker, row.actor, row.message) = (None, item.actor.clone(), item.reason.clone());
    add(tx, &mut row)
}

/// Records a manual action on an ended entry in the audit.
pub(super) fn audit_ended(tx: &mut Tx<'_>, item: &ManualAction, action: Action, last: &LastLog) -> Result<()> {
    let mut row = AuditRow {
        id: 0,
        entry: item.id,
        event_id: Some(Tsid::from_i64(last.event_id)),
        action,
        worker: None,
        actor: item.actor.clone(),
        generation: last.generation,
        attempt: last.attempts,
        token: last.token,
        status_code: None,
        execution_time_ms: None,
        message: item.reason.clone(),
        next_retry_at: None,
        retry_count: None,
        max_retries: None,
        created_at: moment(tx.now)?,
    };
    add(tx, &mut row)
}

/// Records claimed entries in the audit.
pub(super) fn audit_picked(tx: &Tx<'_>, claimed: &[(i16, Claimed)], worker: &str, lease: Duration) -> Result<()> {
    // A heartbeat without a lease length extends by this one.
    let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
    let mut statement = tx.prepare(&tx.sql().audit.add)?;
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

/// Records that an entry was abandoned, if its last audit row says that a worker held it under a lower token.
pub(super) fn audit_takeover(tx: &Tx<'_>, id: i64, token: LeaseToken) -> Result<()> {
    tx.execute(&tx.sql().audit.add_abandoned, (id, token.0, tx.now, Action::Abandoned.code()))?;
    Ok(())
}

/// Records that an audited lease was given back.
pub(super) fn audit_release(tx: &Tx<'_>, id: i64, token: LeaseToken, error: Option<&str>) -> Result<()> {
    tx.execute(&tx.sql().audit.add_released, (id, token.0, tx.now, Action::Released.code(), error))?;
    Ok(())
}

/// Appends an audit row and sets its number.
pub(super) fn add(tx: &Tx<'_>, row: &mut AuditRow) -> Result<()> {
    tx.execute(
        &tx.sql().audit.add,
        params![
            row.entry.get(),
            row.action.code(),
            // One column for both: an action is either a worker's or manual.
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
        ],
    )?;
    row.id = tx.conn.last_insert_rowid();
    Ok(())
}

/// The last report of a worker about an entry, under its lease if it names one.
pub(super) fn last_report(tx: &Tx<'_>, holder: &Holder) -> Result<Option<AuditRow>> {
    let lease = holder.lease.map(|lease| lease.0);
    let found = tx.row(&tx.sql().audit.last_report, (holder.id.get(), &holder.worker, lease))?;
    found.map(AuditRow::try_from).transpose()
}

/// The record that a worker started its attempt under this token.
pub(super) fn last_start(tx: &Tx<'_>, holder: &Holder, token: LeaseToken) -> Result<Option<AuditRow>> {
    let found = tx.row(&tx.sql().audit.last_start, (holder.id.get(), &holder.worker, token.0))?;
    found.map(AuditRow::try_from).transpose()
}

/// The lease that a claim asked for, in milliseconds, if the audit has it.
pub(super) fn claimed_for(tx: &Tx<'_>, id: i64, token: LeaseToken) -> Result<Option<i64>> {
    Ok(tx.row(&tx.sql().audit.claimed_for, (id, token.0))?.and_then(|Only(lease)| lease))
}

/// A page of the audit of an entry.
pub(super) fn page(tx: &Tx<'_>, id: EntryId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    tx.rows(&tx.sql().audit.page, (id.get(), after, limit))?.into_iter().map(AuditRow::try_from).collect()
}
