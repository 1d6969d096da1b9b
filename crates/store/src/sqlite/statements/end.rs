//! Ends, and what else happens to leases: extended, given back.

use rusqlite::types::{FromSql, FromSqlResult, ValueRef};

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::{Shown, row};

row! {
    /// The columns of a live entry that decisions depend on.
    pub(in crate::sqlite) struct LiveRow {
        token: i64,
        lease_until: Option<i64>,
        queue_id: i64,
        group_key: Option<Shown>,
        worker: Option<String>,
        flags: Option<i64>,
        event_id: i64,
        attempts: u32,
        max_attempts: u32,
        generation: u32,
        processing_started_at: Option<i64>,
        exhausted_as: i16,
        expires_at: Option<i64>,
    }
}

row! {
    /// The last log row of an entry.
    pub(in crate::sqlite) struct LogRow {
        seq: i64,
        generation: u32,
        token: i64,
        status: i16,
        superseded: bool,
        queue_id: i64,
        group_key: Option<GroupKey>,
        flags: Option<i64>,
        event_id: i64,
        attempts: u32,
    }
}

row! {
    /// An entry whose lease was given back.
    pub(in crate::sqlite) struct RequeuedRow {
        queue_id: i64,
        flags: Option<i64>,
    }
}

row! {
    /// An entry that stepped aside, or was given back if it has no group.
    pub(in crate::sqlite) struct AsideRow {
        queue_id: i64,
        flags: Option<i64>,
        group_key: Option<Shown>,
    }
}

row! {
    /// An entry whose expiry has passed.
    pub(in crate::sqlite) struct ExpiredRow {
        id: i64,
        last_error: Option<Shown>,
    }
}

/// A group's name as it is shown, and whether it can be read: another program may have stored anything.
#[derive(Debug)]
pub(in crate::sqlite) struct GroupKey {
    pub(in crate::sqlite) shown: String,
    pub(in crate::sqlite) is_readable: bool,
}

impl FromSql for GroupKey {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let is_readable = value.as_str().is_ok();
        Shown::column_result(value).map(|Shown(shown)| Self { shown, is_readable })
    }
}

/// Logs an entry; see [`End::log_held`]. Where it fails, FAIL undoes nothing by itself, as ABORT would: a single row leaves
/// nothing behind, the verb's savepoint is undone anyway, and SQLite need not copy the pages that it changes.
pub(in crate::sqlite) const LOG_HELD: &str = "
    INSERT OR FAIL INTO {log} (seq, id, generation, event_id, finished_at, processing_started_at, token, client_id,
                       lane, queue_id, attempts, max_attempts, status, exhausted_as, superseded, worker,
                       errors, results, expires_at, rank{column})
    SELECT ?1, id, generation, event_id, ?4, processing_started_at, token, client_id, lane, queue_id, attempts,
           max_attempts, ?5, exhausted_as, 0, worker, coalesce(?6, CASE WHEN ?5 <> 0 THEN last_error END), ?7,
           expires_at, rank{attempt}
    FROM {live}
    WHERE id = ?2 AND token = ?3 AND lease_until IS NOT NULL AND group_key IS NULL AND flags IS NULL";

/// Logs an entry; see [`End::log_any`].
pub(in crate::sqlite) const LOG_ANY: &str = "
    INSERT INTO {log} (seq, id, generation, event_id, finished_at, processing_started_at, token, client_id,
                       lane, queue_id, attempts, max_attempts, status, exhausted_as, superseded, group_key,
                       worker, errors, results, flags, expires_at, rank{column})
    SELECT ?1, id, generation, event_id, ?3, processing_started_at, token + ?4, client_id, lane, queue_id,
           attempts, max_attempts, ?5, exhausted_as, 0, group_key, ?6,
           coalesce(?7, CASE WHEN ?5 <> 0 THEN last_error END), ?8, flags & ~8, expires_at, rank{attempt}
    FROM {live} WHERE id = ?2";

/// Completes [`LOG_HELD`] or [`LOG_ANY`]; with the record of the attempt, of which this is the parameter, in the log.
pub(in crate::sqlite) fn with_attempt(text: &str, attempt: Option<&str>) -> String {
    let (column, value) = attempt.map_or_else(Default::default, |attempt| (", attempt", format!(", {attempt}")));
    text.replace("{column}", column).replace("{attempt}", &value)
}

statements! {
    /// Statements about ends and leases.
    pub(in crate::sqlite) struct End {
        /// Logs a run of neighbours held under equal tokens, without group and flags. Primary key; the log appends.
        log_run = "
            INSERT INTO {log} (seq, id, generation, event_id, finished_at, processing_started_at, token, client_id,
                               lane, queue_id, attempts, max_attempts, status, exhausted_as, superseded, worker,
                               errors, results, expires_at, rank)
            SELECT ?1 + (id - ?2) / ?7, id, generation, event_id, ?5, processing_started_at, token, client_id, lane,
                   queue_id, attempts, max_attempts, ?6, exhausted_as, 0, worker,
                   CASE WHEN ?6 <> 0 THEN last_error END, ?8, expires_at, rank
            FROM {live}
            WHERE id BETWEEN ?2 AND ?3 AND token = ?4 AND lease_until IS NOT NULL AND group_key IS NULL
              AND flags IS NULL";
        /// Undoes `log_run` for a run that did not match completely. Primary key of the log, at its end.
        unlog_run = "DELETE FROM {log} WHERE seq >= ?1";
        /// Removes a run of neighbours from the live table. Primary key.
        delete_run = "DELETE FROM {live} WHERE id BETWEEN ?1 AND ?2";
        /// Logs an entry in the usual case: held under this token, without group and flags. Primary key; the log
        /// appends.
        log_held = &with_attempt(LOG_HELD, None);
        /// Removes a held entry from the live table. Primary key.
        delete_held = "DELETE FROM {live} WHERE id = ?1 AND lease_until IS NOT NULL";
        /// Logs an entry in any other case. Primary key; the log appends.
        log_any = &with_attempt(LOG_ANY, None);
        /// Removes an entry from the live table. Primary key.
        delete_entry = "DELETE FROM {live} WHERE id = ?1";
        /// What decisions about a live entry depend on. Primary key.
        live: LiveRow = "SELECT {columns} FROM {live} WHERE id = ?1";
        /// The last log row of an entry. Index event_log_key, from its end.
        last_log: LogRow = "SELECT {columns} FROM {log} WHERE id = ?1 ORDER BY generation DESC LIMIT 1";
        /// Extends a lease; returns the entry's flags. Primary key.
        extend: Only<Option<i64>> = "
            UPDATE {live} SET lease_until = ?3, updated_at = ?4
            WHERE id = ?1 AND token = ?2 AND lease_until IS NOT NULL RETURNING flags";
        /// Gives a lease back; the entry is claimable at once. Primary key; stays in its index.
        requeue_now: RequeuedRow = "
            UPDATE {live} SET lease_until = NULL, worker = NULL, updated_at = ?3, attempts = attempts - ?4,
                last_error = coalesce(?5, last_error), room = zeroblob({room} - 16)
            WHERE id = ?1 AND token = ?2 AND lease_until IS NOT NULL RETURNING {columns}";
        /// Gives a lease back; the entry is claimable from a moment on. Primary key; moves to event_queue_timed.
        requeue_at: RequeuedRow = "
            UPDATE {live} SET lease_until = NULL, worker = NULL, updated_at = ?3, attempts = attempts - ?4,
                last_error = coalesce(?5, last_error), place = 1, due_at = ?6, room = zeroblob({room} - 16)
            WHERE id = ?1 AND token = ?2 AND lease_until IS NOT NULL RETURNING {columns}";
        /// Gives a lease back; an entry of a group steps aside until a moment. Primary key; moves to event_queue_aside and
        /// event_queue_aside_due, or to event_queue_timed without a group.
        requeue_aside: AsideRow = "
            UPDATE {live} SET lease_until = NULL, worker = NULL, updated_at = ?3, attempts = attempts - ?4,
                last_error = coalesce(?5, last_error), place = CASE WHEN group_key IS NULL THEN 1 ELSE 4 END,
                due_at = ?6, room = zeroblob({room} - 16)
            WHERE id = ?1 AND token = ?2 AND lease_until IS NOT NULL RETURNING {columns}";
        /// Keeps an exhausted entry where it is until its expiry, or until the year 9999. Primary key; moves in
        /// event_queue_timed.
        keep = "
            UPDATE {live} SET lease_until = NULL, worker = NULL, updated_at = ?2, token = token + ?3, exhausted_as = ?4,
                last_error = coalesce(?5, last_error), flags = flags | 8, place = 1,
                due_at = coalesce(expires_at, 253370764800000000), room = zeroblob({room} - 16)
            WHERE id = ?1";
        /// Entries past their expiry that nobody works on. Index event_queue_expiry, over these and those that are held.
        expired: ExpiredRow = "
            SELECT {columns} FROM {live} INDEXED BY {live}_expiry
            WHERE expires_at IS NOT NULL AND expires_at <= ?1 AND (lease_until IS NULL OR lease_until <= ?1)
            ORDER BY expires_at LIMIT ?2";
    }
}
