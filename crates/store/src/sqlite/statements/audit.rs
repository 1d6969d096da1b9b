//! The audit of attempts and manual actions: the table `event_audit`.

use tidegate_core::{Action, LeaseToken, Tsid};

use crate::error::{Error, Result};
use crate::sql::{Columns, Only, statements};
use crate::sqlite::engine::errors::damaged;
use crate::sqlite::engine::row::{Moment, row};
use crate::sqlite::engine::tx::entry_id;
use crate::values::AuditRow;

row! {
    /// An action.
    pub(in crate::sqlite) struct ActionRow {
        id: i64,
        entry_id: i64,
        action: i16,
        worker: Option<String>,
        generation: u32,
        attempt: u32,
        token: i64,
        status_code: Option<i32>,
        execution_time_ms: Option<i64>,
        message: Option<String>,
        next_retry_at: Option<Moment>,
        retry_count: Option<u32>,
        max_retries: Option<u32>,
        created_at: Moment,
    }
}

row! {
    /// The event of an action's entry, which its row does not store.
    pub(in crate::sqlite) struct EventRow {
        event_id: Option<i64>,
    }
}

impl TryFrom<(ActionRow, EventRow)> for AuditRow {
    type Error = Error;

    fn try_from((row, event): (ActionRow, EventRow)) -> Result<Self> {
        let action = Action::from_code(row.action).ok_or_else(|| damaged("an audit row has an unknown action"))?;
        // One column for both: an action is either a worker's or manual.
        let (worker, actor) = if action.is_manual() { (None, row.worker) } else { (row.worker, None) };
        Ok(Self {
            id: row.id,
            entry: entry_id(row.entry_id)?,
            event_id: event.event_id.map(Tsid::from_i64),
            action,
            worker,
            actor,
            generation: row.generation,
            attempt: row.attempt,
            token: LeaseToken(row.token),
            status_code: row.status_code,
            // In the row of a claim, this column holds the length of the lease.
            execution_time_ms: row.execution_time_ms.filter(|_| action != Action::Picked),
            message: row.message,
            next_retry_at: row.next_retry_at.map(Into::into),
            retry_count: row.retry_count,
            max_retries: row.max_retries,
            created_at: row.created_at.into(),
        })
    }
}

/// Actions with the events of their entries, live or ended. Primary key; index event_log_key.
fn with_event(from: &str) -> String {
    format!(
        "SELECT {},
             coalesce((SELECT q.event_id FROM {{live}} q WHERE q.id = entry_id),
                      (SELECT g.event_id FROM {{log}} g WHERE g.id = entry_id LIMIT 1)) AS event_id {from}",
        ActionRow::list()
    )
}

statements! {
    /// Statements about the audit.
    pub(in crate::sqlite) struct Audit {
        /// Adds an audit row. Appends.
        add = "
            INSERT INTO {ns}_event_audit (
                entry_id, action, worker, generation, attempt, token, status_code, execution_time_ms, message,
                next_retry_at, retry_count, max_retries, created_at)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";
        /// Records that an entry was abandoned, if its last audit row says that a worker holds it under a lower token.
        /// Index event_audit_entry, from its end; appends.
        add_abandoned = "
            INSERT INTO {ns}_event_audit (entry_id, action, worker, generation, attempt, token, created_at)
            SELECT entry_id, ?4, worker, generation, attempt, token, ?3 FROM {ns}_event_audit
            WHERE id = (SELECT id FROM {ns}_event_audit INDEXED BY {ns}_event_audit_entry WHERE entry_id = ?1
                        ORDER BY id DESC LIMIT 1)
              AND action IN (0, 1) AND token < ?2";
        /// Records that a lease was given back, if the last audit row says that a worker holds it. Index
        /// event_audit_entry, from its end; appends.
        add_released = "
            INSERT INTO {ns}_event_audit (entry_id, action, worker, generation, attempt, token, message, created_at)
            SELECT entry_id, ?4, worker, generation, attempt, token, ?5, ?3 FROM {ns}_event_audit
            WHERE id = (SELECT id FROM {ns}_event_audit INDEXED BY {ns}_event_audit_entry WHERE entry_id = ?1
                        ORDER BY id DESC LIMIT 1)
              AND action IN (0, 1) AND token = ?2";
        /// A page of the audit of an entry. Index event_audit_entry.
        page: (ActionRow, EventRow) = &with_event("
            FROM {ns}_event_audit INDEXED BY {ns}_event_audit_entry
            WHERE entry_id = ?1 AND id > ?2 ORDER BY id LIMIT ?3");
        /// The last report of a worker about an entry. Index event_audit_entry, from its end.
        last_report: (ActionRow, EventRow) = &with_event("
            FROM {ns}_event_audit INDEXED BY {ns}_event_audit_entry
            WHERE entry_id = ?1 AND worker = ?2 AND (?3 IS NULL OR token = ?3) AND action IN (2, 3)
            ORDER BY id DESC LIMIT 1");
        /// The record that a worker started an attempt. Index event_audit_entry, from its end.
        last_start: (ActionRow, EventRow) = &with_event("
            FROM {ns}_event_audit INDEXED BY {ns}_event_audit_entry
            WHERE entry_id = ?1 AND worker = ?2 AND token = ?3 AND action = 1 ORDER BY id DESC LIMIT 1");
        /// The lease that a claim asked for, in milliseconds. Index event_audit_entry, from its end.
        claimed_for: Only<Option<i64>> = "
            SELECT execution_time_ms FROM {ns}_event_audit WHERE entry_id = ?1 AND token = ?2 AND action = 0
            ORDER BY id DESC LIMIT 1";
    }
}
