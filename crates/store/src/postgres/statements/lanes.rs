//! Lanes: the table `lanes`, and which lanes hold entries.

use crate::postgres::engine::row::row;
use crate::sql::{Only, statements};

row! {
    /// A lane and its queue.
    pub(in crate::postgres) struct LaneRow {
        id: i32 = "l.id",
        queue_id: i32 = "l.queue_id",
    }
}

row! {
    /// A queue's entries that cannot be claimed: their number, up to a bound, and their lanes.
    pub(in crate::postgres) struct ParkedRow {
        count: i64 = "count(*)",
        lanes: Option<Vec<i32>> = "array_agg(DISTINCT p.lane)",
    }
}

statements! {
    /// Statements about lanes.
    pub(in crate::postgres) struct Lanes {
        /// Lets one process at a time change the catalogue. One row.
        lock_catalogue = "SELECT FROM {ns}.store FOR UPDATE";
        /// Adds lanes, each queue's up to the limit ($6) except for those that arrivals need (`forced`). A lane that
        /// another process added meanwhile is kept (lanes_key).
        add = "
            INSERT INTO {lanes} (queue_id, priority, event_type, used_at)
            SELECT i.queue_id, i.priority, i.event_type, {now}
            FROM (
                SELECT i.*, row_number() OVER (PARTITION BY i.queue_id ORDER BY i.priority, i.event_type) AS number
                FROM unnest($2::integer[], $3::smallint[], $4::text[], $5::boolean[])
                    AS i(queue_id, priority, event_type, forced)
            ) AS i
            WHERE i.forced
               OR i.number + (SELECT count(*) FROM {lanes} l WHERE l.queue_id = i.queue_id AND l.state < 2)
                  <= $6::bigint
            ON CONFLICT (queue_id, coalesce(event_type, ''), priority) DO NOTHING";
        /// Records that lanes are in use (lanes' primary key).
        note_used = "
            UPDATE {lanes} SET used_at = greatest(used_at, {now}) WHERE id = ANY ($2::integer[])";
        /// Lanes that were not used for long and hold nothing to claim (lanes_idle, event_queue_fresh,
        /// event_queue_timed).
        idle: LaneRow = "
            SELECT {columns} FROM {lanes} l
            WHERE l.state = 0 AND l.used_at < {now} - $2::bigint * interval '1 microsecond'
              AND NOT EXISTS (SELECT FROM {live} q WHERE q.lane = l.id AND q.place = 0 OFFSET 0)
              AND NOT EXISTS (SELECT FROM {live} q WHERE q.lane = l.id AND q.place = 1 OFFSET 0)
            ORDER BY l.used_at LIMIT $3::bigint";
        /// Retires lanes (lanes' primary key; `+ 0` keeps the planner from lanes_idle). No event type begins with
        /// chr(1), so the old key is free for a new lane.
        retire = "
            UPDATE {lanes} SET state = 1, was_type = event_type, event_type = chr(1) || id, retired_xid = NULL
            WHERE id = ANY ($1::integer[]) AND state + 0 = 0";
        /// Records which transactions must be over before a retired lane can go: those with an id below this one
        /// (lanes_retired). The retirement has committed, so every transaction planned before it drew a lower id. (The
        /// snapshot's xmax is no such bound: running transactions may be above it.)
        close = "
            UPDATE {lanes} SET retired_xid = pg_current_xact_id() WHERE state = 1 AND retired_xid IS NULL";
        /// Retired lanes that no running transaction can insert into, with nothing to claim (lanes_retired,
        /// event_queue_fresh, event_queue_timed).
        left: LaneRow = "
            SELECT {columns} FROM {lanes} l
            WHERE l.state = 1 AND l.retired_xid <= pg_snapshot_xmin(pg_current_snapshot())
              AND NOT EXISTS (SELECT FROM {live} q WHERE q.lane = l.id AND q.place = 0 OFFSET 0)
              AND NOT EXISTS (SELECT FROM {live} q WHERE q.lane = l.id AND q.place = 1 OFFSET 0)
            ORDER BY l.id LIMIT $1::bigint";
        /// Marks retired lanes as gone (lanes' primary key). Entries that were in them have numbers up to the last one
        /// drawn.
        remove = "
            UPDATE {lanes} SET state = 2, last_entry = (SELECT last_value FROM {ns}.entry_id)
            WHERE id = ANY ($1::integer[]) AND state + 0 = 1";
        /// Deletes lanes that are gone, once no entry of theirs is left and no process can still have them in its
        /// catalogue (lanes_gone, event_log's and event_queue's primary keys).
        forget = "
            DELETE FROM {lanes} WHERE id = ANY (ARRAY(
                SELECT l.id FROM {lanes} l
                WHERE l.state = 2
                  AND l.version < (SELECT min(h.version) FROM {ns}.catalogue_history h)
                  AND l.last_entry < coalesce((SELECT min(g.id) FROM {log} g), 9223372036854775807)
                  AND l.last_entry < coalesce((SELECT min(q.id) FROM {live} q), 9223372036854775807)
                ORDER BY l.id LIMIT $1::bigint
            ))";
        /// Counts a queue's parked and arrived entries and those aside, up to a bound of each, and collects their lanes
        /// (event_queue_parked, event_queue_aside_due).
        parked: ParkedRow = "
            SELECT {columns}
            FROM (
                (SELECT q.lane FROM {live} q WHERE q.queue_id = $1::integer AND q.place IN (2, 3) LIMIT $2::bigint)
                UNION ALL
                (SELECT q.lane FROM {live} q WHERE q.queue_id = $1::integer AND q.place = 4 LIMIT $2::bigint)
            ) AS p";
        /// Lanes that are gone and yet hold something to claim. Steps from one lane that holds something to the next
        /// (event_queue_fresh, event_queue_timed, lanes' primary key).
        strays: Only<i32> = "
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
            SELECT DISTINCT h.lane FROM (SELECT lane FROM fresh UNION ALL SELECT lane FROM timed) AS h
            CROSS JOIN LATERAL (SELECT FROM {lanes} l WHERE l.id = h.lane AND l.state = 2 OFFSET 0) AS g";
        /// Turns unleased entries of lanes that are gone, but not kept ones, into arrivals (lanes' primary key, event_queue_fresh,
        /// event_queue_timed). An entry that another transaction changes meanwhile has moved to another ctid, and is
        /// left for the next round.
        rescue = "
            UPDATE {live} q
            SET place = 3, lane = -(SELECT l.priority FROM {lanes} l WHERE l.id = q.lane) - 1000
            WHERE q.ctid = ANY (ARRAY(
                SELECT s.ctid FROM unnest($1::integer[]) AS i(lane)
                CROSS JOIN LATERAL (SELECT l.id FROM {lanes} l WHERE l.id = i.lane AND l.state + 0 = 2 OFFSET 0) AS l
                CROSS JOIN LATERAL (
                    SELECT f.ctid FROM {live} f WHERE f.lane = l.id AND f.place = 0 AND f.lease_until IS NULL
                    UNION ALL
                    SELECT t.ctid FROM {live} t
                    WHERE t.lane = l.id AND t.place = 1 AND t.lease_until IS NULL AND coalesce(t.flags, 0) & 8 = 0
                    OFFSET 0
                ) AS s
            )) AND q.lease_until IS NULL";
    }
}
