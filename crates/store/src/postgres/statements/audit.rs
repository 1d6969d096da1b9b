//! The audit of attempts and manual actions: the table `event_audit`.

use tidegate_core::{Action, EntryId, LeaseToken, Tsid};

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::row::{Moment, count, row};
use crate::sql::{Columns, Only, statements};
use crate::values::AuditRow;

row! {
    /// An action, as `a` in a statement.
    pub(in crate::postgres) struct ActionRow {
        id: i64 = "a.id",
        entry_id: i64 = "a.entry_id",
        action: i16 = "a.action",
        worker: Option<String> = "a.worker",
        generation: i32 = "a.generation",
        attempt: i32 = "a.attempt",
        token: i64 = "a.token",
        status_code: Option<i32> = "a.status_code",
        execution_time_ms: Option<i64> = "a.execution_time_ms",
        message: Option<String> = "a.message",
        next_retry_at: Option<Moment> = "a.next_retry_at",
        retry_count: Option<i32> = "a.retry_count",
        max_retries: Option<i32> = "a.max_retries",
        created_at: Moment = "a.created_at",
    }
}

row! {
    /// The event of an action's entry, which its row does not store.
    pub(in crate::postgres) struct EventRow {
        event_id: Option<i64>,
    }
}

row! {
    /// The row of an action by its entry.
    pub(in crate::postgres) struct AddedRow {
        entry_id: i64,
        id: i64,
    }
}

row! {
    /// The lease that the claim of an entry asked for, in milliseconds.
    pub(in crate::postgres) struct ClaimedForRow {
        id: i64 = "i.id",
        lease: i64 = "a.execution_time_ms",
    }
}

impl TryFrom<ActionRow> for AuditRow {
    type Error = Error;

    fn try_from(row: ActionRow) -> Result<Self> {
        let action = Action::from_code(row.action)
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "an audit row has an unknown action"))?;
        // One column holds both: an action is either a worker's or an operator's.
        let (worker, actor) = if action.is_manual() { (None, row.worker) } else { (row.worker, None) };
        Ok(Self {
            id: row.id,
            entry: EntryId::new(row.entry_id)?,
            event_id: None,
            action,
            worker,
            actor,
            generation: count(row.generation),
            attempt: count(row.attempt),
            token: LeaseToken(row.token),
            status_code: row.status_code,
            // In the row of a claim the column has the lease that was asked for.
            execution_time_ms: row.execution_time_ms.filter(|_| action != Action::Picked),
            message: row.message,
            next_retry_at: row.next_retry_at.map(Into::into),
            retry_count: row.retry_count.map(count),
            max_retries: row.max_retries.map(count),
            created_at: row.created_at.into(),
        })
    }
}

impl TryFrom<(ActionRow, EventRow)> for AuditRow {
    type Error = Error;

    fn try_from((row, event): (ActionRow, EventRow)) -> Result<Self> {
        Ok(Self { event_id: event.event_id.map(Tsid::from_i64), ..row.try_into()? })
    }
}

/// The event of an entry, live or ended (event_queue's or event_log's primary key).
fn event_of(id: &str) -> String {
    format!(
        "coalesce((SELECT q.event_id FROM {{live}} q WHERE q.id = {id}),
                  (SELECT g.event_id FROM {{log}} g WHERE g.id = {id} ORDER BY g.generation DESC LIMIT 1))"
    )
}

/// Actions with the events of their entries.
fn with_event(from: &str) -> String {
    format!("SELECT {}, {} AS event_id {from}", ActionRow::list(), event_of("a.entry_id"))
}

statements! {
    /// Statements about the audit.
    pub(in crate::postgres) struct Audit {
        /// Appends actions and returns them.
        add: ActionRow = "
            INSERT INTO {ns}.event_audit AS a (
                entry_id, action, worker, generation, attempt, token, status_code, execution_time_ms, message,
                next_retry_at, retry_count, max_retries, created_at)
            SELECT i.entry_id, i.action, i.worker, i.generation, i.attempt, i.token, i.status_code,
                   i.execution_time_ms, i.message, i.next_retry_at, i.retry_count, i.max_retries, {now}
            FROM unnest($2::bigint[], $3::smallint[], $4::text[], $5::integer[], $6::integer[], $7::bigint[],
                        $8::integer[], $9::bigint[], $10::text[], $11::timestamptz[], $12::integer[], $13::integer[])
                AS i(entry_id, action, worker, generation, attempt, token, status_code, execution_time_ms, message,
                     next_retry_at, retry_count, max_retries)
            RETURNING {columns}";
        /// Appends that a worker claimed entries; `execution_time_ms` holds the lease it asked for.
        add_picked = "
            INSERT INTO {ns}.event_audit (
                entry_id, action, worker, generation, attempt, token, created_at, execution_time_ms)
            SELECT i.id, 0, $2, i.generation, i.attempt, i.token, {now}, $7
            FROM unnest($3::bigint[], $4::integer[], $5::integer[], $6::bigint[]) AS i(id, generation, attempt, token)";
        /// Appends that the previous holder abandoned an entry, where the entry's last audit row (event_audit_entry,
        /// from its end) is a claim or a start under an older token.
        add_abandoned = "
            INSERT INTO {ns}.event_audit (entry_id, action, worker, generation, attempt, token, created_at)
            SELECT l.entry_id, 5, l.worker, l.generation, l.attempt, l.token, {now}
            FROM unnest($2::bigint[], $3::bigint[]) AS i(id, token)
            CROSS JOIN LATERAL (
                SELECT * FROM {ns}.event_audit a WHERE a.entry_id = i.id ORDER BY a.id DESC LIMIT 1
            ) AS l
            WHERE l.action IN (0, 1) AND l.token < i.token";
        /// Appends that the holder released an entry, where the entry's last audit row (event_audit_entry, from its
        /// end) is a claim or a start under this token.
        add_released = "
            INSERT INTO {ns}.event_audit (entry_id, action, worker, generation, attempt, token, message, created_at)
            SELECT l.entry_id, 4, l.worker, l.generation, l.attempt, l.token, i.message, {now}
            FROM unnest($2::bigint[], $3::bigint[], $4::text[]) AS i(id, token, message)
            CROSS JOIN LATERAL (
                SELECT * FROM {ns}.event_audit a WHERE a.entry_id = i.id ORDER BY a.id DESC LIMIT 1
            ) AS l
            WHERE l.action IN (0, 1) AND l.token = i.token";
        /// Appends that an operator reset or redrove an entry, with the entry's present values (event_queue's primary
        /// key).
        add_started_over: AddedRow = "
            INSERT INTO {ns}.event_audit (entry_id, action, worker, generation, attempt, token, message, created_at)
            SELECT q.id, $5::smallint, i.actor, q.generation, q.attempts, q.token, i.message, {now}
            FROM unnest($2::bigint[], $3::text[], $4::text[]) AS i(id, actor, message)
            CROSS JOIN LATERAL (SELECT * FROM {live} q WHERE q.id = i.id OFFSET 0) AS q
            RETURNING {columns}";
        /// Appends what an operator did to an entry that has ended since, or had, with the values of its last log row (event_log's primary key).
        add_ended = "
            INSERT INTO {ns}.event_audit (entry_id, action, worker, generation, attempt, token, message, created_at)
            SELECT g.id, $5::smallint, i.actor, g.generation, g.attempts, g.token, i.message, {now}
            FROM unnest($2::bigint[], $3::text[], $4::text[]) AS i(id, actor, message)
            CROSS JOIN LATERAL (
                SELECT * FROM {log} g WHERE g.id = i.id ORDER BY g.generation DESC LIMIT 1
            ) AS g";
        /// A page of the audit of an entry (event_audit_entry).
        page: (ActionRow, EventRow) = &with_event("
            FROM {ns}.event_audit a WHERE a.entry_id = $1 AND a.id > $2
            ORDER BY a.entry_id, a.id LIMIT $3::bigint");
        /// The last report of each worker on an entry, under the token if one is given (event_audit_entry, from its
        /// end).
        last_reports: (ActionRow, EventRow) = &with_event("
            FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS i(id, worker, token)
            CROSS JOIN LATERAL (
                SELECT * FROM {ns}.event_audit v
                WHERE v.entry_id = i.id AND v.worker = i.worker AND (i.token IS NULL OR v.token = i.token)
                  AND v.action IN (2, 3)
                ORDER BY v.id DESC LIMIT 1
            ) AS a");
        /// The last start under each of these tokens (event_audit_entry, from its end).
        last_starts: (ActionRow, EventRow) = &with_event("
            FROM unnest($1::bigint[], $2::bigint[]) AS i(id, token)
            CROSS JOIN LATERAL (
                SELECT * FROM {ns}.event_audit v WHERE v.entry_id = i.id AND v.token = i.token AND v.action = 1
                ORDER BY v.id DESC LIMIT 1
            ) AS a");
        /// The lease that claims asked for, in milliseconds (event_audit_entry): the audit row of a claim has it where
        /// rows of reports have how long the attempt took.
        claimed_for: ClaimedForRow = "
            SELECT {columns}
            FROM unnest($1::bigint[], $2::bigint[]) AS i(id, token)
            CROSS JOIN LATERAL (
                SELECT v.execution_time_ms FROM {ns}.event_audit v
                WHERE v.entry_id = i.id AND v.token = i.token AND v.action = 0 ORDER BY v.id DESC LIMIT 1
            ) AS a
            WHERE a.execution_time_ms IS NOT NULL";
        /// Which of these audit rows of resets exist (event_audit's primary key).
        resets_exist: Only<i64> = "
            SELECT a.id FROM unnest($1::bigint[], $2::bigint[]) AS i(entry_id, id)
            CROSS JOIN LATERAL (
                SELECT a.id FROM {ns}.event_audit a
                WHERE a.id = i.id AND a.entry_id = i.entry_id AND a.action = 6 OFFSET 0
            ) AS a";
        /// The event of an entry, live or ended (event_queue's or event_log's primary key).
        event_of: Only<Option<i64>> = &format!("SELECT {}", event_of("$1"));
    }
}
