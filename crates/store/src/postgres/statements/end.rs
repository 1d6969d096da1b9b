//! Ends, and what else happens to leases: extended, given back.

use crate::postgres::engine::row::{Moment, row};
use crate::sql::statements;

row! {
    /// An entry that ended.
    pub(in crate::postgres) struct EndedRow {
        id: i64,
        queue_id: i32,
        group_key: Option<String>,
        flags: Option<i16>,
        event_id: i64,
        status: i16,
    }
}

row! {
    /// An entry, live or ended.
    pub(in crate::postgres) struct FoundRow {
        id: i64,
        token: i64,
        /// How it ended; none while it is live.
        status: Option<i16>,
        leased: bool,
        generation: i32,
        /// The end that it got, if it keeps its place.
        kept_as: Option<i16>,
    }
}

row! {
    /// An entry that is exhausted and keeps its place.
    pub(in crate::postgres) struct KeptRow {
        id: i64 = "q.id",
        flags: Option<i16> = "q.flags",
    }
}

row! {
    /// An entry whose expiry has passed and that no worker holds.
    pub(in crate::postgres) struct ExpiredRow {
        id: i64 = "q.id",
        queue_id: i32 = "q.queue_id",
        token: i64 = "q.token",
        is_leased: bool = "q.lease_until IS NOT NULL",
        exhausted_as: i16 = "q.exhausted_as",
        flags: Option<i16> = "q.flags",
        expires_at: Option<Moment> = "q.expires_at",
        last_error: Option<String> = "q.last_error",
    }
}

row! {
    /// An extended lease.
    pub(in crate::postgres) struct ExtendedRow {
        id: i64 = "q.id",
        token: i64 = "q.token",
        lease_until: Moment = "q.lease_until",
        flags: Option<i16> = "q.flags",
        updated_at: Moment = "q.updated_at",
    }
}

row! {
    /// An entry whose lease was given back.
    pub(in crate::postgres) struct RequeuedRow {
        id: i64 = "q.id",
        token: i64 = "q.token",
        queue_id: i32 = "q.queue_id",
        flags: Option<i16> = "q.flags",
        due_at: Option<Moment> = "q.due_at",
        lane: i32 = "q.lane",
        place: i16 = "q.place",
        group_key: Option<String> = "q.group_key",
    }
}

/// Moves entries to the log; see [`End::finalize`].
pub(in crate::postgres) const FINALIZE: &str = "
    WITH gone AS (
        DELETE FROM {live} q
        WHERE q.id = ANY ($2::bigint[])
          AND (($3::bigint[])[width_bucket(q.id, $2::bigint[])] = -1
               OR q.lease_until IS NOT NULL AND q.token = ($3::bigint[])[width_bucket(q.id, $2::bigint[])]
                  AND (coalesce(q.flags, 0) & 4 = 0
                       OR ($4::smallint[])[width_bucket(q.id, $2::bigint[])] NOT IN (1, 2)))
        RETURNING q.*, width_bucket(q.id, $2::bigint[]) AS at
    )
    INSERT INTO {log} (id, event_id, finished_at, processing_started_at, token, client_id, generation, lane,
                       queue_id, attempts, max_attempts, status, exhausted_as, group_key, worker, errors,
                       results, flags, rank, expires_at{column})
    SELECT id, event_id, {now}, processing_started_at, token, client_id, generation, lane, queue_id,
           least(attempts, max_attempts), max_attempts, ($4::smallint[])[at], exhausted_as, group_key, worker,
           coalesce(($5::text[])[at], CASE WHEN ($4::smallint[])[at] <> 0 THEN last_error END),
           ($6::text[])[at], flags & ~8::smallint, rank, expires_at{attempt}
    FROM gone
    RETURNING {columns}";

/// Moves a run of entries to the log; see [`End::finalize_run`].
pub(in crate::postgres) const FINALIZE_RUN: &str = "
    WITH gone AS (
        DELETE FROM {live} q
        WHERE q.id >= $2 AND q.id <= $3 AND q.lease_until IS NOT NULL
          AND q.token = ($4::bigint[])[(q.id - $2) / $5::bigint + 1]
        RETURNING q.*
    )
    INSERT INTO {log} (id, event_id, finished_at, processing_started_at, token, client_id, generation, lane,
                       queue_id, attempts, max_attempts, status, exhausted_as, group_key, worker, errors,
                       results, flags, rank, expires_at{column})
    SELECT id, event_id, {now}, processing_started_at, token, client_id, generation, lane, queue_id,
           attempts, max_attempts, $6::smallint, exhausted_as, group_key, worker,
           CASE WHEN $6::smallint <> 0 THEN last_error END, $7::text, flags, rank, expires_at{attempt}
    FROM gone
    RETURNING {columns}";

/// Completes [`FINALIZE`] or [`FINALIZE_RUN`]; with the records of attempts, of which this is the one of a job, in the log.
pub(in crate::postgres) fn with_attempts(text: &str, attempt: Option<&str>) -> String {
    let (column, value) = attempt.map_or_else(Default::default, |attempt| (", attempt", format!(", {attempt}")));
    text.replace("{column}", column).replace("{attempt}", &value)
}

statements! {
    /// Statements about ends and leases.
    pub(in crate::postgres) struct End {
        /// Moves entries from the queue to the log (event_queue's primary key). Ids come sorted and distinct: the other
        /// arrays are read at the position where a binary search finds the id. A token of -1 ends the entry whether it
        /// is leased or not. A dead letter that keeps its place is left to `keep`.
        finalize: EndedRow = &with_attempts(FINALIZE, None);
        /// Moves a run of neighbouring entries that all end alike without errors, which is the usual case: one walk
        /// along event_queue's primary key, each token found by its position.
        finalize_run: EndedRow = &with_attempts(FINALIZE_RUN, None);
        /// Keeps exhausted entries in their place under no lease, due when they expire (event_queue's primary key). The
        /// arrays are those of `finalize`. The results have no log row to be in: a redrive finds them among the handlers'
        /// answers, under no name.
        keep: KeptRow = "
            WITH kept AS (
                UPDATE {live} q
                SET lease_until = NULL, updated_at = {now}, attempts = least(q.attempts, q.max_attempts), place = 1,
                    due_at = coalesce(q.expires_at, '9999-01-01T00:00:00Z'), flags = q.flags | 8::smallint,
                    exhausted_as = ($4::smallint[])[width_bucket(q.id, $2::bigint[])],
                    last_error = coalesce(($5::text[])[width_bucket(q.id, $2::bigint[])], q.last_error)
                WHERE q.id = ANY ($2::bigint[]) AND q.token = ($3::bigint[])[width_bucket(q.id, $2::bigint[])]
                  AND q.lease_until IS NOT NULL AND q.flags & 4 <> 0
                RETURNING q.id, q.flags, q.generation, ($6::text[])[width_bucket(q.id, $2::bigint[])] AS results
            ), answers AS (
                INSERT INTO {ns}.event_handler_states (entry_id, handler, generation, result, recorded_at)
                SELECT q.id, '', q.generation, q.results, {now} FROM kept q WHERE q.results IS NOT NULL
                ON CONFLICT (entry_id, handler) DO UPDATE
                    SET generation = excluded.generation, result = excluded.result, recorded_at = excluded.recorded_at
            )
            SELECT {columns} FROM kept q";
        /// Locks entries whose expiry has passed and that no worker holds (event_queue_expiry).
        lock_expired: ExpiredRow = "
            SELECT {columns} FROM {live} q
            WHERE q.expires_at <= {now} AND (q.lease_until IS NULL OR q.lease_until <= {now})
            ORDER BY q.expires_at LIMIT $2 FOR UPDATE SKIP LOCKED";
        /// Whether entries are live or ended, with token and generation (event_queue's and event_log's primary keys).
        look_up: FoundRow = "
            SELECT q.id, q.token, NULL::smallint AS status, q.leased, q.generation, q.kept_as
            FROM unnest($1::bigint[]) AS i(id) CROSS JOIN LATERAL (
                SELECT q.id, q.token, q.lease_until IS NOT NULL AS leased, q.generation,
                       CASE WHEN q.flags & 8 <> 0 THEN q.exhausted_as END AS kept_as
                FROM {live} q WHERE q.id = i.id OFFSET 0
            ) AS q
            UNION ALL
            SELECT g.id, g.token, g.status, false, g.generation, NULL
            FROM unnest($1::bigint[]) AS i(id) CROSS JOIN LATERAL (
                SELECT g.id, g.token, g.status, g.generation
                FROM {log} g
                WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) AND g.superseded <> 1 OFFSET 0
            ) AS g";
        /// Extends leases (event_queue's primary key). Ids come sorted and distinct.
        extend: ExtendedRow = "
            UPDATE {live} q
            SET lease_until = {now} + ($4::bigint[])[width_bucket(q.id, $2::bigint[])] * interval '1 microsecond',
                updated_at = {now}
            WHERE q.id = ANY ($2::bigint[]) AND q.token = ($3::bigint[])[width_bucket(q.id, $2::bigint[])]
              AND q.lease_until IS NOT NULL
            RETURNING {columns}";
        /// Gives leases back (event_queue's primary key). Ids come sorted and distinct. Kind 0 changes neither place
        /// nor due moment, so the update stays heap-only; kind 1 names a moment, kind 2 a delay; 3 and 4 do the same, and
        /// an entry of a group steps aside.
        requeue: RequeuedRow = "
            UPDATE {live} q
            SET lease_until = NULL,
                updated_at = {now},
                (attempts, last_error, place, due_at) = (
                    SELECT q.attempts - CASE WHEN ($7::boolean[])[i.at] THEN 0 ELSE 1 END,
                           coalesce(($8::text[])[i.at], q.last_error),
                           CASE WHEN ($4::smallint[])[i.at] = 0 THEN q.place
                                WHEN ($4::smallint[])[i.at] > 2 AND q.group_key IS NOT NULL THEN 4 ELSE 1 END,
                           CASE WHEN ($4::smallint[])[i.at] = 0 THEN q.due_at
                           WHEN ($4::smallint[])[i.at] IN (1, 3) THEN greatest({now}, ($5::timestamptz[])[i.at])
                           ELSE {now} + ($6::bigint[])[i.at] * interval '1 microsecond' END
                    FROM (SELECT width_bucket(q.id, $2::bigint[]) AS at OFFSET 0) AS i
                )
            WHERE q.id = ANY ($2::bigint[]) AND q.token = ($3::bigint[])[width_bucket(q.id, $2::bigint[])]
              AND q.lease_until IS NOT NULL
            RETURNING {columns}";
    }
}
