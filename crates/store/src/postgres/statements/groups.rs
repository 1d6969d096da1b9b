//! Groups: promotion, arrivals, and groups without a head.

use crate::postgres::engine::row::row;
use crate::sql::statements;

row! {
    /// An entry that became the head of its group, or was overtaken as that.
    pub(in crate::postgres) struct Promoted {
        queue_id: i32,
        id: i64,
        flags: Option<i16>,
        is_head: bool,
    }
}

row! {
    /// A group in which entries wait.
    pub(in crate::postgres) struct HeadlessGroup {
        queue_id: i32,
        group_key: String,
        /// It has no head and could have one, and nothing else is going to give it one.
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
        /// The type and priority of a lane that is gone. No type where it was a shared one.
        gone_type: Option<String> = "l.was_type",
        gone_priority: Option<i16> = "l.priority",
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
        /// Gives each group without a head one: the first entry that is aside and due, else the first parked or arrived
        /// one by rank and number (event_queue_group_head, event_queue_aside, event_queue_parked; for arrivals the lanes'
        /// primary key). A head that was never
        /// claimed gives way to a parked entry of a smaller rank, unless one is aside and due. An arrival keeps its turn: if its lane is not known
        /// yet or gone, the group waits until it is sorted in. The caller holds the groups' locks and waits for no row here: if
        /// another transaction has locked one of the entries, a note says that the group has to be looked at again. (A
        /// group is given as a range in the order of its index, which only that index serves: an equality could be
        /// planned along the primary key. `place + 0` leaves the primary key as the only index that finds the entry by
        /// id. `promoted` reads all of `overtaken` first: a group never has two heads.)
        promote: Promoted = "
            WITH turns AS MATERIALIZED (
                SELECT g.queue_id, g.group_key, h.id AS head, coalesce(a.id, p.id) AS next
                FROM unnest($2::integer[], $3::text[]) AS g(queue_id, group_key)
                LEFT JOIN LATERAL (
                    SELECT b.id, b.rank,
                           b.token = 0 AND b.lease_until IS NULL AND coalesce(b.flags, 0) & 8 = 0 AS gives_way
                    FROM {live} b
                    WHERE b.queue_id = g.queue_id AND b.group_key = g.group_key AND b.place < 2 OFFSET 0
                ) AS h ON true
                LEFT JOIN LATERAL (
                    SELECT q.id FROM {live} q
                    WHERE (h.id IS NULL OR h.gives_way) AND q.queue_id = g.queue_id
                      AND q.group_key >= g.group_key AND q.group_key <= g.group_key
                      AND q.place = 4 AND q.due_at <= {now}
                    ORDER BY q.group_key, q.due_at, q.id LIMIT 1
                ) AS a ON true
                LEFT JOIN LATERAL (
                    SELECT q.id, q.lane, q.rank, q.place FROM {live} q
                    WHERE a.id IS NULL AND (h.id IS NULL OR h.gives_way) AND q.queue_id = g.queue_id
                      AND q.group_key >= g.group_key AND q.group_key <= g.group_key AND q.place IN (2, 3)
                    ORDER BY q.group_key, q.rank, q.id LIMIT 1
                ) AS p ON true
                WHERE a.id IS NOT NULL AND h.id IS NULL
                   OR p.lane > 0 AND (h.id IS NULL OR p.rank < h.rank)
                      AND (p.place = 2
                           OR EXISTS (SELECT FROM {lanes} l WHERE l.id = p.lane AND l.state + 0 < 2 OFFSET 0))
            ), locked AS MATERIALIZED (
                SELECT t.head, t.next FROM turns t
                CROSS JOIN LATERAL (
                    SELECT q.id FROM {live} q WHERE q.id = t.next AND q.place + 0 >= 2 OFFSET 0 FOR UPDATE SKIP LOCKED
                ) AS n
                LEFT JOIN LATERAL (
                    SELECT q.id FROM {live} q WHERE q.id = t.head AND q.token = 0 AND q.lease_until IS NULL
                    OFFSET 0 FOR UPDATE SKIP LOCKED
                ) AS o ON true
                WHERE t.head IS NULL OR o.id IS NOT NULL
            ), noted AS (
                INSERT INTO {notes} (queue_id, group_key)
                SELECT t.queue_id, t.group_key FROM turns t WHERE t.next NOT IN (SELECT l.next FROM locked l)
            ), overtaken AS (
                UPDATE {live} q SET place = 2
                WHERE q.id = ANY (ARRAY(SELECT l.head FROM locked l WHERE l.head IS NOT NULL))
                RETURNING q.queue_id, q.id, q.flags
            ), promoted AS (
                UPDATE {live} q SET place = 1, due_at = greatest(q.due_at, {now})
                WHERE q.id = ANY (ARRAY(
                    SELECT l.next FROM locked l WHERE l.head IS NULL OR l.head IN (SELECT o.id FROM overtaken o)))
                RETURNING q.queue_id, q.id, q.flags
            )
            SELECT p.queue_id, p.id, p.flags, true AS is_head FROM promoted p
            UNION ALL
            SELECT o.queue_id, o.id, o.flags, false FROM overtaken o";
        /// Groups of some queues without a head in which something is aside and due, of the `$3` in each queue that have
        /// been due for longest (event_queue_aside_due, event_queue_group_head).
        due_asides: Note = "
            SELECT DISTINCT a.queue_id, a.group_key
            FROM unnest($2::integer[]) AS n(queue_id) CROSS JOIN LATERAL (
                SELECT q.queue_id, q.group_key FROM {live} q
                WHERE q.queue_id = n.queue_id AND q.place = 4 AND q.due_at <= {now}
                ORDER BY q.queue_id, q.due_at LIMIT $3
            ) AS a
            WHERE NOT EXISTS (SELECT FROM {live} b
                              WHERE b.queue_id = a.queue_id AND b.group_key = a.group_key AND b.place < 2 OFFSET 0)";
        /// Some groups in which something is aside, in order from a given one on, and for each whether that is due and the
        /// group lacks a head (event_queue_aside, one step per group; event_queue_group_head).
        aside: HeadlessGroup = "
            WITH RECURSIVE groups AS (
                (SELECT q.queue_id, q.group_key, q.due_at FROM {live} q
                 WHERE q.place = 4 AND (q.queue_id, q.group_key) > ($2::integer, $3::text)
                 ORDER BY q.queue_id, q.group_key, q.due_at, q.id LIMIT 1)
                UNION ALL
                SELECT n.* FROM groups g CROSS JOIN LATERAL (
                    SELECT q.queue_id, q.group_key, q.due_at FROM {live} q
                    WHERE q.place = 4 AND (q.queue_id, q.group_key) > (g.queue_id, g.group_key)
                    ORDER BY q.queue_id, q.group_key, q.due_at, q.id LIMIT 1
                ) AS n
            )
            SELECT g.queue_id, g.group_key, g.due_at <= {now}
                AND NOT EXISTS (SELECT FROM {live} b
                                WHERE b.queue_id = g.queue_id AND b.group_key = g.group_key AND b.place < 2 OFFSET 0)
                AS headless
            FROM groups g LIMIT $4";
        /// Some groups that have parked entries, in order from a given one on, and for each whether it lacks a head and
        /// no note or arrival is going to give it one (event_queue_parked, one step per group; event_queue_group_head;
        /// group_notes, which is small).
        parked: HeadlessGroup = "
            WITH RECURSIVE groups AS (
                (SELECT q.queue_id, q.group_key, q.place FROM {live} q
                 WHERE q.place IN (2, 3) AND q.group_key IS NOT NULL
                   AND (q.queue_id, q.group_key) > ($1::integer, $2::text)
                 ORDER BY q.queue_id, q.group_key, q.rank, q.id LIMIT 1)
                UNION ALL
                SELECT n.* FROM groups g CROSS JOIN LATERAL (
                    SELECT q.queue_id, q.group_key, q.place FROM {live} q
                    WHERE q.place IN (2, 3) AND q.group_key IS NOT NULL
                      AND (q.queue_id, q.group_key) > (g.queue_id, g.group_key)
                    ORDER BY q.queue_id, q.group_key, q.rank, q.id LIMIT 1
                ) AS n
            )
            SELECT g.queue_id, g.group_key, g.place = 2
                AND NOT EXISTS (SELECT FROM {live} b
                                WHERE b.queue_id = g.queue_id AND b.group_key = g.group_key AND b.place < 2 OFFSET 0)
                AND NOT EXISTS (SELECT FROM {notes} n
                                WHERE n.queue_id = g.queue_id AND n.group_key = g.group_key OFFSET 0) AS headless
            FROM groups g LIMIT $3";
        /// Arrivals: entries of callers' own transactions that are still to be sorted in (event_queue_arrived; events'
        /// and lanes' primary keys). Locks nothing yet: the locks of their groups come first.
        arrivals: Arrival = "
            SELECT {columns}
            FROM (
                SELECT * FROM {live} q WHERE q.place = 3 ORDER BY q.id LIMIT 1000
            ) AS q
            LEFT JOIN LATERAL (SELECT e.event_type FROM {ns}.events e WHERE e.id = q.event_id OFFSET 0) AS e ON true
            LEFT JOIN LATERAL (
                SELECT l.was_type, l.priority FROM {lanes} l WHERE l.id = q.lane AND l.state + 0 > 0 OFFSET 0
            ) AS l ON true";
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
        note = "INSERT INTO {notes} SELECT * FROM unnest($1::integer[], $2::text[])";
        /// Takes notes about groups that have to be looked at again (group_notes is small and usually empty).
        take_notes: Note = "
            DELETE FROM {notes} n WHERE n.ctid IN (
                SELECT ctid FROM {notes} LIMIT 1000 FOR UPDATE SKIP LOCKED
            ) RETURNING {columns}";
    }
}
