//! Groups: promotion and arrivals.

use crate::sql::statements;
use crate::sqlite::engine::row::row;

row! {
    /// An entry that became the head of its group.
    pub(in crate::sqlite) struct Promoted {
        id: i64,
        flags: Option<i64>,
    }
}

row! {
    /// An entry that a caller's own transaction wrote.
    pub(in crate::sqlite) struct Arrival {
        id: i64 = "q.id",
        queue_id: i64 = "q.queue_id",
        lane: i64 = "q.lane",
        due_at: Option<i64> = "q.due_at",
        group_key: Option<String> = "q.group_key",
        /// `None` where its fact is missing.
        event_type: Option<String> = "e.event_type",
        flags: Option<i64> = "q.flags",
    }
}

statements! {
    /// Statements about groups.
    pub(in crate::sqlite) struct Groups {
        /// Makes the first parked entry of a group its head, if the group has none. Indexes event_queue_group_head and
        /// event_queue_parked. An arrival from plain SQL keeps its turn; while it has no lane yet, the group waits
        /// until it is sorted in.
        promote: Promoted = "
            UPDATE {live} SET place = 1, due_at = max(coalesce(due_at, ?3), ?3)
            WHERE id = (SELECT id FROM {live} INDEXED BY {live}_parked
                        WHERE queue_id = ?1 AND group_key = ?2 AND place >= 2 ORDER BY id LIMIT 1)
            AND lane > 0 AND NOT EXISTS (SELECT 1 FROM {live} INDEXED BY {live}_group_head
                            WHERE queue_id = ?1 AND group_key = ?2 AND group_key IS NOT NULL AND place < 2)
            RETURNING {columns}";
        /// Whether there are arrivals. Index event_queue_arrived.
        any_arrivals = "SELECT 1 FROM {live} INDEXED BY {live}_arrived WHERE place = 3 LIMIT 1";
        /// The first arrivals. Index event_queue_arrived and the facts' primary key.
        arrivals: Arrival = "
            SELECT {columns}
            FROM {live} q INDEXED BY {live}_arrived LEFT JOIN {ns}_events e ON e.id = q.event_id
            WHERE q.place = 3 ORDER BY q.id LIMIT ?1";
        /// Sorts an arrival in. Primary key; moves from event_queue_arrived to the index of its new place.
        sort_in = "UPDATE {live} SET lane = ?2, place = ?3, due_at = ?4 WHERE id = ?1";
    }
}
