//! Groups: promotion, arrivals, and groups without a head.

use crate::postgres::engine::row::row;
use crate::sql::statements;

row! {
    /// An entry that became the head of its group.
    pub(in crate::postgres) struct Promoted {
        queue_id: i32 = "q.queue_id",
        id: i64 = "q.id",
        flags: Option<i16> = "q.flags",
    }
}

row! {
    /// A group that has parked entries.
    pub(in crate::postgres) struct ParkedGroup {
        queue_id: i32,
        group_key: String,
        /// It has no head, and no note or arrival is going to give it one.
        headless: bool,
    }
}

row! {
    /// An entry of a caller's own transaction.
    pub(in crate::postgres) struct Arrival {
        id: i64 = "q.id",
        queue_id: i32 = "q.queue_id",
        /// A negative one encodes a priority: the caller's transaction did not know the lane.
        lane: i32 = "q.lane",
        /// `None` where its fact is missing.
        event_type: Option<String> = "e.event_type",
        group_key: Option<String> = "q.group_key",
        exhausted_as: i16 = "q.exhausted_as",
        event_id: i64 = "q.event_id",
    }
}

row! {
    /// An arrival that was sorted in.
    pub(in crate::postgres) struct SortedIn {
        id: i64 = "q.id",
        flags: Option<i16> = "q.flags",
    }
}

row! {
    /// A group that has to be checked again.
    pub(in crate::postgres) struct Note {
        queue_id: i32,
        group_key: String,
    }
}

statements! {
    /// Statements about groups.
    pub(in crate::postgres) struct Groups {
        /// Takes stripes, in the given order.
        lock_stripes = "SELECT count(pg_advisory_xact_lock(k)) FROM unnest($1::bigint[]) AS k";
        /// Promotes the first parked or arrived entry of each group that has no head (event_queue_group_head,
        /// event_queue_parked). An arrival keeps its turn: if its lane is not known yet, the group waits until it is
        /// sorted in. The caller holds the groups' locks and waits for no row here: if another transaction has locked
        /// the entry, a note says that the group has to be looked at again. (A group is given as a range in the order
        /// of event_queue_parked, which only that index serves: an equality could be planned along the primary key.
        /// `place + 0` leaves the primary key as the only index that finds the entry by id.)
        promote: Promoted = "
            WITH heads AS MATERIALIZED (
                SELECT g.queue_id, g.group_key, h.id
                FROM unnest($2::integer[], $3::text[]) AS g(queue_id, group_key)
                CROSS JOIN LATERAL (
                    SELECT q.id, q.lane FROM {live} q
                    WHERE q.queue_id = g.queue_id AND q.group_key >= g.group_key AND q.group_key <= g.group_key
                      AND q.place >= 2
                    ORDER BY q.group_key, q.id LIMIT 1
                ) AS h
                WHERE h.lane > 0 AND NOT EXISTS (
                    SELECT FROM {live} b
                    WHERE b.queue_id = g.queue_id AND b.group_key = g.group_key AND b.place < 2 OFFSET 0
                )
            ), locked AS MATERIALIZED (
                SELECT l.id FROM heads h CROSS JOIN LATERAL (
                    SELECT q.id FROM {live} q WHERE q.id = h.id AND q.place + 0 >= 2 OFFSET 0 FOR UPDATE SKIP LOCKED
                ) AS l
            ), noted AS (
                INSERT INTO {ns}.group_notes (queue_id, group_key)
                SELECT h.queue_id, h.group_key FROM heads h WHERE h.id NOT IN (SELECT l.id FROM locked l)
            )
            UPDATE {live} q
            SET place = 1, due_at = greatest(q.due_at, {now})
            WHERE q.id = ANY (ARRAY(SELECT l.id FROM locked l))
            RETURNING {columns}";
        /// Some groups that have parked entries, in order from a given one on, and for each whether it lacks a head and
        /// no note or arrival is going to give it one (event_queue_parked, one step per group; event_queue_group_head;
        /// group_notes, which is small).
        parked: ParkedGroup = "
            WITH RECURSIVE groups AS (
                (SELECT q.queue_id, q.group_key, q.place FROM {live} q
                 WHERE q.place >= 2 AND q.group_key IS NOT NULL AND (q.queue_id, q.group_key) > ($1::integer, $2::text)
                 ORDER BY q.queue_id, q.group_key, q.id LIMIT 1)
                UNION ALL
                SELECT n.* FROM groups g CROSS JOIN LATERAL (
                    SELECT q.queue_id, q.group_key, q.place FROM {live} q
                    WHERE q.place >= 2 AND q.group_key IS NOT NULL
                      AND (q.queue_id, q.group_key) > (g.queue_id, g.group_key)
                    ORDER BY q.queue_id, q.group_key, q.id LIMIT 1
                ) AS n
            )
            SELECT g.queue_id, g.group_key, g.place = 2
                AND NOT EXISTS (SELECT FROM {live} b
                                WHERE b.queue_id = g.queue_id AND b.group_key = g.group_key AND b.place < 2 OFFSET 0)
                AND NOT EXISTS (SELECT FROM {ns}.group_notes n
                                WHERE n.queue_id = g.queue_id AND n.group_key = g.group_key OFFSET 0) AS headless
            FROM groups g LIMIT $3";
        /// Arrivals: entries of callers' own transactions that are still to be sorted in (event_queue_arrived; events'
        /// primary key). Locks nothing yet: the locks of their groups come first.
        arrivals: Arrival = "
            SELECT {columns}
            FROM (
                SELECT * FROM {live} q WHERE q.place = 3 ORDER BY q.id LIMIT 1000
            ) AS q
            LEFT JOIN LATERAL (SELECT e.event_type FROM {ns}.events e WHERE e.id = q.event_id OFFSET 0) AS e ON true";
        /// Sorts arrivals in: grouped ones are parked, others become timed, due now or at their own moment
        /// (event_queue's primary key). Skips those that another transaction has locked or sorted in.
        sort_in: SortedIn = "
            WITH found AS MATERIALIZED (
                SELECT l.id FROM unnest($2::bigint[]) AS i(id) CROSS JOIN LATERAL (
                    SELECT q.id FROM {live} q WHERE q.id = i.id AND q.place + 0 = 3 OFFSET 0 FOR UPDATE SKIP LOCKED
                ) AS l
            )
            UPDATE {live} q
            SET lane = ($3::integer[])[array_position($2::bigint[], q.id)],
                place = CASE WHEN q.group_key IS NULL THEN 1 ELSE 2 END,
                due_at = CASE WHEN q.group_key IS NULL THEN greatest(q.due_at, {now}) ELSE q.due_at END
            WHERE q.id = ANY (ARRAY(SELECT f.id FROM found f))
            RETURNING {columns}";
        /// Writes notes about groups (group_notes is small and usually empty).
        note = "INSERT INTO {ns}.group_notes SELECT * FROM unnest($1::integer[], $2::text[])";
        /// Takes notes about groups that have to be looked at again (group_notes is small and usually empty).
        take_notes: Note = "
            DELETE FROM {ns}.group_notes n WHERE n.ctid IN (
                SELECT ctid FROM {ns}.group_notes LIMIT 1000 FOR UPDATE SKIP LOCKED
            ) RETURNING {columns}";
    }
}
