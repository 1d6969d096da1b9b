//! Groups: promotion and arrivals.

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::{Shown, row};

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

row! {
    /// A group in which an entry stepped aside, and when the first of them is due.
    pub(in crate::sqlite) struct AsideGroup {
        queue_id: i64,
        group_key: Shown,
        due_at: i64,
    }
}

statements! {
    /// Statements about groups.
    pub(in crate::sqlite) struct Groups {
        /// Makes the next entry of a group its head, if the group has none: the first that stepped aside and is due, else
        /// the first parked one. Indexes event_queue_group_head, event_queue_aside and event_queue_parked. An arrival
        /// from plain SQL keeps its turn; while it has no lane yet, the group waits until it is sorted in.
        promote: Promoted = "
            UPDATE {live} SET place = 1, due_at = max(coalesce(due_at, ?3), ?3)
            WHERE id = coalesce(
                (SELECT id FROM {live} INDEXED BY {live}_aside
                 WHERE queue_id = ?1 AND group_key = ?2 AND place = 4 AND due_at <= ?3 ORDER BY due_at, id LIMIT 1),
                (SELECT id FROM {live} INDEXED BY {live}_parked
                 WHERE queue_id = ?1 AND group_key = ?2 AND place IN (2, 3) ORDER BY rank, id LIMIT 1))
            AND lane > 0 AND NOT EXISTS (SELECT 1 FROM {live} INDEXED BY {live}_group_head
                            WHERE queue_id = ?1 AND group_key = ?2 AND group_key IS NOT NULL AND place < 2)
            RETURNING {columns}";
        /// Parks the head of a group again if it was never claimed and a parked entry of a smaller rank is next: none that
        /// stepped aside is due, and it has a lane. Indexes event_queue_group_head, event_queue_aside and
        /// event_queue_parked.
        step_back: Promoted = "
            UPDATE {live} SET place = 2
            WHERE id = (SELECT id FROM {live} INDEXED BY {live}_group_head
                        WHERE queue_id = ?1 AND group_key = ?2 AND group_key IS NOT NULL AND place < 2)
            AND token = 0
            AND NOT EXISTS (SELECT 1 FROM {live} INDEXED BY {live}_aside
                            WHERE queue_id = ?1 AND group_key = ?2 AND place = 4 AND due_at <= ?3)
            AND rank > (SELECT CASE WHEN q.lane > 0 THEN q.rank END FROM {live} q INDEXED BY {live}_parked
                        WHERE q.queue_id = ?1 AND q.group_key = ?2 AND q.place IN (2, 3) ORDER BY q.rank, q.id LIMIT 1)
            RETURNING {columns}";
        /// The groups of a queue, without a head, in which an entry stepped aside and is due. Index event_queue_aside_due,
        /// over the first `?3` that are due, and event_queue_group_head.
        due_asides: Only<Shown> = "
            SELECT a.group_key
            FROM (SELECT group_key FROM {live} INDEXED BY {live}_aside_due
                  WHERE queue_id = ?1 AND place = 4 AND due_at <= ?2 ORDER BY due_at LIMIT ?3) a
            WHERE NOT EXISTS (SELECT 1 FROM {live} h INDEXED BY {live}_group_head
                              WHERE h.queue_id = ?1 AND h.group_key = a.group_key AND h.group_key IS NOT NULL
                                AND h.place < 2)";
        /// The next group, after a given one, in which an entry stepped aside, and when the first of them is due. Index
        /// event_queue_aside.
        next_aside: AsideGroup = "
            SELECT {columns} FROM {live} INDEXED BY {live}_aside
            WHERE place = 4 AND (queue_id, group_key) > (?1, ?2)
            ORDER BY queue_id, group_key, due_at, id LIMIT 1";
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
