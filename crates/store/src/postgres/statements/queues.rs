//! Queues and their settings, depths, consumers.

use tidegate_core::Depth;

use crate::postgres::engine::row::row;
use crate::postgres::statements::added::made_at;
use crate::sql::{Only, statements};

row! {
    /// The entries of a queue, by what they wait for.
    pub(in crate::postgres) struct DepthRow {
        ready: i64,
        delayed: i64,
        parked: i64,
        leased: i64,
    }
}

impl From<DepthRow> for Depth {
    fn from(row: DepthRow) -> Self {
        let [ready, delayed, parked, leased] = [row.ready, row.delayed, row.parked, row.leased].map(i64::unsigned_abs);
        Self { ready, delayed, parked, leased }
    }
}

row! {
    /// For how many seconds the first entry of a lane could have been claimed.
    pub(in crate::postgres) struct AgeRow {
        queue_id: i32,
        seconds: f64,
    }
}

row! {
    /// A queue's configuration.
    pub(in crate::postgres) struct QueueRow {
        id: i32,
        state: i16,
        depth_limit: Option<i64>,
        settings: Option<String>,
    }
}

/// The columns of [`DepthRow`], of entries with a place, a due moment, a group, flags and the end of a lease. What is aside
/// or kept waits for a moment or a person: it counts as delayed.
const COUNTS: &str = "
    count(*) FILTER (WHERE lease_until IS NULL AND coalesce(flags, 0) & 8 = 0
                           AND (place = 0 OR place IN (1, 3) AND group_key IS NULL
                                             AND coalesce(due_at, '-infinity') <= {now}
                                OR place = 1 AND due_at <= {now})) AS ready,
    count(*) FILTER (WHERE lease_until IS NULL AND ((place = 1 OR place = 3 AND group_key IS NULL) AND due_at > {now}
                                                    OR flags & 8 <> 0 OR place = 4)) AS delayed,
    count(*) FILTER (WHERE place = 2 OR place = 3 AND group_key IS NOT NULL) AS parked,
    count(*) FILTER (WHERE lease_until IS NOT NULL) AS leased";

const DEPTH: &str = "
    SELECT {counts}
    FROM (
        SELECT h.* FROM {lanes} l CROSS JOIN LATERAL (
            SELECT {counted} FROM {live} q WHERE q.lane = l.id AND q.place = 0
            UNION ALL
            SELECT {counted} FROM {live} q WHERE q.lane = l.id AND q.place = 1
            OFFSET 0
        ) AS h
        WHERE l.queue_id = $2
        UNION ALL
        SELECT {counted} FROM {live} q WHERE q.queue_id = $2 AND q.place IN (2, 3)
        UNION ALL
        SELECT {counted} FROM {live} q WHERE q.queue_id = $2 AND q.place = 4
    ) AS q";

statements! {
    /// Statements about queues.
    pub(in crate::postgres) struct Queues {
        /// Creates a queue unless there is one (queues_name).
        make = "
            INSERT INTO {queues} (name, client_id) VALUES ($1::text, $2::bigint)
            ON CONFLICT (coalesce(client_id, 0), name) DO NOTHING";
        /// Locks a queue and reads its configuration (queues_name). Lanes can still be added while the lock is held.
        lock: QueueRow = "
            SELECT {columns} FROM {queues}
            WHERE coalesce(client_id, 0) = coalesce($2::bigint, 0) AND name = $1::text FOR NO KEY UPDATE";
        /// Changes a queue (queues' primary key).
        put = "
            UPDATE {queues} SET state = $2::smallint, depth_limit = $3::bigint, settings = $4::text
            WHERE id = $1::integer";
        /// The depth of one queue: counts its entries lane by lane (lanes_key, event_queue_fresh, event_queue_timed),
        /// those that are parked or arrived (event_queue_parked), and those aside (event_queue_aside_due).
        depth: DepthRow = &DEPTH
            .replace("{counts}", COUNTS)
            .replace("{counted}", "q.place, q.due_at, q.group_key, q.flags, q.lease_until");
        /// The depths of all queues that hold something (walks over event_queue).
        depths: (DepthRow, Only<i32>) = &"
            SELECT {counts}, queue_id FROM {live} GROUP BY queue_id".replace("{counts}", COUNTS);
        /// For how long the first entry of each lane could have been claimed, in seconds. Lanes that hold something are
        /// found by stepping from one to the next (event_queue_fresh, event_queue_timed), so empty lanes cost nothing.
        oldest: AgeRow = &"
            WITH RECURSIVE fresh AS (
                (SELECT q.lane FROM {live} q WHERE q.place = 0 AND q.lane > 0 ORDER BY q.lane LIMIT 1)
                UNION ALL
                SELECT n.lane FROM fresh f CROSS JOIN LATERAL (
                    SELECT q.lane FROM {live} q WHERE q.place = 0 AND q.lane > f.lane ORDER BY q.lane LIMIT 1
                ) AS n
            ), timed AS (
                (SELECT q.lane FROM {live} q WHERE q.place = 1 AND q.lane > 0 ORDER BY q.lane LIMIT 1)
                UNION ALL
                SELECT n.lane FROM timed t CROSS JOIN LATERAL (
                    SELECT q.lane FROM {live} q WHERE q.place = 1 AND q.lane > t.lane ORDER BY q.lane LIMIT 1
                ) AS n
            )
            SELECT l.queue_id, extract(epoch FROM {now} - o.since)::float8 AS seconds
            FROM (
                SELECT f.lane, h.since FROM fresh f CROSS JOIN LATERAL (
                    SELECT coalesce({added}, to_timestamp(((q.event_id >> 22) + 1577836800000) / 1000.0)) AS since
                    FROM {live} q
                    WHERE q.lane >= f.lane AND q.lane <= f.lane AND q.place = 0
                      AND (q.lease_until IS NULL OR q.lease_until <= {now})
                    ORDER BY q.lane, q.id LIMIT 1
                ) AS h
                UNION ALL
                SELECT t.lane, h.since FROM timed t CROSS JOIN LATERAL (
                    SELECT q.due_at AS since FROM {live} q
                    WHERE q.lane = t.lane AND q.place = 1 AND q.due_at <= {now}
                      AND (q.lease_until IS NULL OR q.lease_until <= {now})
                    ORDER BY q.due_at, q.id LIMIT 1
                ) AS h
            ) AS o CROSS JOIN LATERAL (SELECT l.queue_id FROM {lanes} l WHERE l.id = o.lane OFFSET 0) AS l".replace("{added}", &made_at("q"));
        /// Records live consumers (consumers' primary key). Always in the same order, so that processes that record the
        /// same ones do not deadlock.
        consumers_seen = "
            INSERT INTO {consumers} AS c (worker, queue_id, types, seen_at)
            SELECT i.worker, i.queue_id,
                   CASE WHEN i.types IS NOT NULL THEN ARRAY (SELECT jsonb_array_elements_text(i.types::jsonb)) END,
                   {now}
            FROM unnest($2::text[], $3::integer[], $4::text[]) AS i(worker, queue_id, types)
            ORDER BY i.worker, i.queue_id
            ON CONFLICT (worker, queue_id) DO UPDATE SET types = excluded.types, seen_at = excluded.seen_at";
        /// Whether a consumer that takes one of these, types or marked tags, was seen lately (consumers is small).
        live_consumer: Only<bool> = "
            SELECT EXISTS (
                SELECT FROM {consumers} c
                WHERE c.queue_id = $2 AND (c.types IS NULL OR c.types && $3::text[])
                  AND c.seen_at > {now} - interval '60 seconds'
            )";
        /// Removes consumers that were not seen for long (reads the whole table, which holds a day's consumers).
        forget_consumers = "
            DELETE FROM {consumers} WHERE seen_at < {now} - $2::bigint * interval '1 microsecond'";
    }
}
