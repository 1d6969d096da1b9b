//! Deliveries: which lanes wait, the limits of pools, and attempts. All of it is about jobs.

use crate::postgres::engine::row::{Moment, row};
use crate::postgres::statements::end::{EndedRow, FINALIZE, FINALIZE_RUN, with_attempts};
use crate::sql::{Only, statements};

row! {
    /// A lane that holds something, by one place.
    pub(in crate::postgres) struct WaitingRow {
        queue: String = "n.name",
        client_id: Option<i64> = "n.client_id",
        lane_type: String = "l.lane_type",
        /// Something may be claimable now.
        is_due: bool = "s.is_due",
        /// After how many microseconds the first timed job is due that is not due yet.
        due_in: Option<i64> = "(extract(epoch FROM coalesce(u.due_at, s.due_at) - s.now) * 1000000)::bigint",
    }
}

row! {
    /// What is stored about a pool: its moment, and the slots of one node, if any has some.
    pub(in crate::postgres) struct LimitRow {
        /// Which of the pools that were asked for, from 1.
        item: i64 = "i.item",
        node: Option<String> = "s.node",
        slots: Option<i32> = "s.slots",
        wanted: Option<i32> = "s.wanted",
        since: Option<Moment> = "s.since",
        until: Option<Moment> = "s.until",
        moment: Option<Moment> = "r.moment",
        now: Moment = "i.now",
    }
}

row! {
    /// A recorded attempt.
    pub(in crate::postgres) struct AttemptRow {
        generation: i32,
        attempt: i32,
        record: String,
    }
}

row! {
    /// What is said about a task.
    pub(in crate::postgres) struct TaskRow {
        job: i64 = "t.job",
        task: String = "t.task",
    }
}

/// When an exhausted job is due that keeps its place and does not expire.
const NEVER: &str = "'9999-01-01T00:00:00Z'";

/// Reads [`WaitingRow`]s.
const WAITING: &str = "
    WITH RECURSIVE fresh AS (
        SELECT 0 AS lane
        UNION ALL
        SELECT n.lane FROM fresh f CROSS JOIN LATERAL (
            SELECT q.lane FROM {live} q
            WHERE q.place = 0
              AND q.lane >= coalesce(($2::integer[])[width_bucket(f.lane, $2::integer[]) + 1], f.lane + 1)
              AND q.lane <= coalesce(($2::integer[])[cardinality($2::integer[])], 2147483647)
            ORDER BY q.lane LIMIT 1
        ) AS n
    ), timed AS (
        SELECT 0 AS lane, NULL::timestamptz AS due_at
        UNION ALL
        SELECT n.lane, n.due_at FROM timed t CROSS JOIN LATERAL (
            SELECT q.lane, q.due_at FROM {live} q
            WHERE q.place = 1
              AND q.lane >= coalesce(($2::integer[])[width_bucket(t.lane, $2::integer[]) + 1], t.lane + 1)
              AND q.lane <= coalesce(($2::integer[])[cardinality($2::integer[])], 2147483647)
            ORDER BY q.lane, q.due_at LIMIT 1
        ) AS n
    )
    SELECT {columns}
    FROM (
        SELECT f.lane, true AS is_due, false AS goes_on, NULL::timestamptz AS due_at, {now} AS now FROM fresh f
        UNION ALL
        SELECT t.lane, t.due_at <= {now}, t.due_at <= {now},
               CASE WHEN t.due_at > {now} AND t.due_at < {never} THEN t.due_at END, {now}
        FROM timed t
    ) AS s
    CROSS JOIN LATERAL (
        SELECT l.queue_id, CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END AS lane_type
        FROM {lanes} l
        WHERE l.id = s.lane AND l.state < 2 AND coalesce(l.was_type, l.event_type) IS NOT NULL OFFSET 0
    ) AS l
    CROSS JOIN LATERAL (
        SELECT n.name, n.client_id FROM {queues} n WHERE n.id = l.queue_id AND n.state <> 1 OFFSET 0
    ) AS n
    LEFT JOIN LATERAL (
        SELECT q.due_at FROM {live} q
        WHERE s.goes_on AND q.lane = s.lane AND q.place = 1 AND q.due_at > {now} AND q.due_at < {never}
        ORDER BY q.due_at LIMIT 1
    ) AS u ON true
    WHERE $2::integer[] IS NULL OR ($2::integer[])[width_bucket(s.lane, $2::integer[])] = s.lane";

/// Takes the locks of pools, in the given order. Not prepared, so that it is sent before what is to see what the others
/// wrote that held them.
pub(in crate::postgres) fn lock_pools(locks: impl IntoIterator<Item = i64>) -> String {
    let locks: Vec<String> = locks.into_iter().map(|lock| lock.to_string()).collect();
    format!("SELECT count(pg_advisory_xact_lock(k)) FROM unnest('{{{}}}'::bigint[]) AS k", locks.join(","))
}

statements! {
    /// Statements about deliveries.
    pub(in crate::postgres) struct Dispatch {
        /// Finds which lanes hold something, of the given ones ($2, sorted) or of all, by stepping from one to the next
        /// (dispatch_queue_fresh, dispatch_queue_timed), and when the first timed job of each is due. A step that ends in
        /// another lane continues at the next given one, so every step passes at least one of them. In lanes in which
        /// timed jobs are due, one more probe finds the first that is not. (The names of lanes and queues: primary keys.)
        waiting: WaitingRow = &WAITING.replace("{never}", NEVER);
        /// The moments and the slots of pools (primary keys).
        limits: LimitRow = "
            SELECT {columns}
            FROM (
                SELECT i.*, {now} AS now
                FROM unnest($2::bigint[], $3::bigint[]) WITH ORDINALITY AS i(pool, client_id, item)
            ) AS i
            LEFT JOIN LATERAL (
                SELECT s.* FROM {ns}.dispatch_slots s WHERE s.pool = i.pool AND s.client_id = i.client_id OFFSET 0
            ) AS s ON true
            LEFT JOIN LATERAL (
                SELECT r.moment FROM {ns}.dispatch_rates r
                WHERE r.pool = i.pool AND r.client_id = i.client_id OFFSET 0
            ) AS r ON true";
        /// Writes the slots of a node (primary key).
        hold = "
            INSERT INTO {ns}.dispatch_slots AS s (pool, client_id, node, slots, wanted, since, until)
            SELECT i.pool, i.client_id, $1::text, i.slots, i.wanted, i.since, i.until
            FROM unnest($2::bigint[], $3::bigint[], $4::integer[], $5::integer[], $6::timestamptz[], $7::timestamptz[])
                AS i(pool, client_id, slots, wanted, since, until)
            ON CONFLICT (pool, client_id, node) DO UPDATE
                SET slots = excluded.slots, wanted = excluded.wanted, since = excluded.since, until = excluded.until";
        /// Removes slots of nodes (primary key).
        remove = "
            DELETE FROM {ns}.dispatch_slots s WHERE s.ctid = ANY (ARRAY(
                SELECT f.place FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS i(pool, client_id, node)
                CROSS JOIN LATERAL (
                    SELECT s.ctid AS place FROM {ns}.dispatch_slots s
                    WHERE s.pool = i.pool AND s.client_id = i.client_id AND s.node = i.node OFFSET 0
                ) AS f
            ))";
        /// Who slots are stored for (the table, whole).
        holders: Only<String> = "SELECT DISTINCT s.node FROM {ns}.dispatch_slots s ORDER BY s.node";
        /// Removes all slots of nodes (the table, whole). Waits for nobody, so it needs no locks of pools: whoever has read
        /// such slots meanwhile grants less than there is.
        release = "
            DELETE FROM {ns}.dispatch_slots s WHERE s.ctid = ANY (ARRAY(
                SELECT s.ctid FROM {ns}.dispatch_slots s WHERE s.node = ANY ($1::text[]) FOR UPDATE SKIP LOCKED
            ))";
        /// Writes the moments of pools (primary key).
        move_rates = "
            INSERT INTO {ns}.dispatch_rates (pool, client_id, moment)
            SELECT i.pool, i.client_id, i.moment
            FROM unnest($1::bigint[], $2::bigint[], $3::timestamptz[]) AS i(pool, client_id, moment)
            ON CONFLICT (pool, client_id) DO UPDATE SET moment = excluded.moment";
        /// After an outage: moves slots that were held when the store was last known to work (the table, whole).
        shift_slots = "
            UPDATE {ns}.dispatch_slots SET until = until + ($1::timestamptz - $2::timestamptz)
            WHERE until > $2::timestamptz";
        /// Removes slots that nobody asked about again for long after they were lost (the table, whole).
        forget_slots = "
            DELETE FROM {ns}.dispatch_slots s WHERE s.ctid = ANY (ARRAY(
                SELECT s.ctid FROM {ns}.dispatch_slots s WHERE s.until < {now} - $2::bigint * interval '1 microsecond'
                FOR UPDATE SKIP LOCKED
            ))";
        /// Removes moments that have passed long ago and say as much as none (the table, whole).
        forget_rates = "
            DELETE FROM {ns}.dispatch_rates r WHERE r.ctid = ANY (ARRAY(
                SELECT r.ctid FROM {ns}.dispatch_rates r WHERE r.moment < {now} - $2::bigint * interval '1 microsecond'
                FOR UPDATE SKIP LOCKED
            ))";
        /// As `end.finalize`, with the records of attempts ($7, as the other arrays) in the log (dispatch_queue's primary
        /// key).
        finalize: EndedRow = &with_attempts(FINALIZE, Some("($7::text[])[at]"));
        /// As `end.finalize_run`, with the records of attempts ($8, by position) in the log (dispatch_queue's primary key).
        finalize_run: EndedRow = &with_attempts(FINALIZE_RUN, Some("($8::text[])[(id - $2) / $5::bigint + 1]"));
        /// Records attempts at live jobs under their present numbers (primary keys). The caller has the jobs' rows locked.
        record = "
            INSERT INTO {ns}.dispatch_attempts (job, generation, attempt, record)
            SELECT q.id, q.generation, q.attempts, i.record
            FROM unnest($1::bigint[], $2::text[]) AS i(id, record)
            CROSS JOIN LATERAL (
                SELECT q.id, q.generation, q.attempts FROM {live} q WHERE q.id = i.id OFFSET 0
            ) AS q
            ON CONFLICT (job, generation, attempt) DO UPDATE SET record = excluded.record";
        /// Writes what is said about tasks (inserts only).
        write_tasks = "
            INSERT INTO {ns}.dispatch_tasks (job, task)
            SELECT i.job, i.task FROM unnest($1::bigint[], $2::text[]) AS i(job, task)";
        /// What is said about tasks (primary key).
        tasks: TaskRow = "
            SELECT {columns} FROM unnest($1::bigint[]) AS i(job)
            CROSS JOIN LATERAL (
                SELECT t.job, t.task FROM {ns}.dispatch_tasks t WHERE t.job = i.job OFFSET 0
            ) AS t";
        /// The recorded attempts at a job (primary keys).
        attempts: AttemptRow = "
            SELECT a.generation, a.attempt, a.record FROM {ns}.dispatch_attempts a WHERE a.job = $1
            UNION ALL
            SELECT g.generation, g.attempts, g.attempt FROM {log} g
            WHERE g.id = $1 AND (g.id, g.generation) > ($1, 0) AND g.attempt IS NOT NULL
            ORDER BY generation, attempt";
    }
}
