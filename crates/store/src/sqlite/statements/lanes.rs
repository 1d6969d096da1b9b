//! Lanes: the table `lanes`, and which lanes hold entries.

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::{Shown, row};

row! {
    /// A lane and its queue.
    pub(in crate::sqlite) struct LaneRow {
        id: i64 = "l.id",
        queue_id: i64 = "l.queue_id",
    }
}

row! {
    /// A lane that is gone but holds entries.
    pub(in crate::sqlite) struct StrayRow {
        id: i64 = "l.id",
        priority: i64 = "l.priority",
    }
}

row! {
    /// The lane of an entry.
    pub(in crate::sqlite) struct StateRow {
        state: i64 = "l.state",
        priority: i16 = "l.priority",
        /// Its type if it is gone, unless it was a shared one.
        was_type: Option<Shown> = "l.was_type",
    }
}

statements! {
    /// Statements about lanes.
    pub(in crate::sqlite) struct Lanes {
        /// Creates a lane. Appends.
        add = "INSERT INTO {lanes} (queue_id, priority, event_type, used_at) VALUES (?1, ?2, ?3, ?4)";
        /// Records when a lane was last used, if that is not recent already. Primary key.
        note_used = "UPDATE {lanes} SET used_at = ?2 WHERE id = ?1 AND used_at < ?3";
        /// Lanes that were not used for long and hold nothing claimable. Indexes lanes_idle, event_queue_fresh and
        /// event_queue_timed.
        idle: LaneRow = "
            SELECT {columns} FROM {lanes} l INDEXED BY {lanes}_idle
            WHERE l.state = 0 AND l.used_at < ?1
              AND NOT EXISTS (SELECT 1 FROM {live} q INDEXED BY {live}_fresh WHERE q.lane = l.id AND q.place = 0)
              AND NOT EXISTS (SELECT 1 FROM {live} q INDEXED BY {live}_timed WHERE q.lane = l.id AND q.place = 1)
            LIMIT ?2";
        /// The lanes of parked, arrived and aside entries of a queue. Indexes event_queue_parked and
        /// event_queue_aside_due, up to a bound.
        parked: Only<i64> = "
            SELECT lane FROM {live} INDEXED BY {live}_parked WHERE queue_id = ?1 AND place IN (2, 3)
            UNION ALL SELECT lane FROM {live} INDEXED BY {live}_aside_due WHERE queue_id = ?1 AND place = 4 LIMIT ?2";
        /// Marks a lane as gone. Primary key. No event type begins with that character, so the lane's key is free for
        /// another lane.
        remove = "
            UPDATE {lanes} SET state = 2, was_type = event_type, event_type = char(1) || id,
                last_entry = (SELECT entry_id FROM {ns}_sequence)
            WHERE id = ?1";
        /// Removes lanes that are gone, once neither the log nor the queue has an entry of them and no process can know
        /// them. Index lanes_gone; the first entries by event_log_key and the primary key.
        forget = "
            DELETE FROM {lanes} WHERE id IN (
                SELECT id FROM {lanes} INDEXED BY {lanes}_gone
                WHERE state = 2 AND version < (SELECT min(version) FROM {ns}_catalogue_history)
                  AND last_entry < coalesce((SELECT min(id) FROM {log}), 9223372036854775807)
                  AND last_entry < coalesce((SELECT min(id) FROM {live}), 9223372036854775807)
                LIMIT ?1)";
        /// Lanes that are gone but hold fresh entries. Index event_queue_fresh, from one lane that holds something to
        /// the next; the lanes' primary key.
        fresh_strays: StrayRow = "
            WITH RECURSIVE step(lane) AS (
                SELECT min(lane) FROM {live} INDEXED BY {live}_fresh WHERE place = 0
                UNION ALL
                SELECT (SELECT min(q.lane) FROM {live} q INDEXED BY {live}_fresh
                        WHERE q.place = 0 AND q.lane > step.lane)
                FROM step WHERE step.lane IS NOT NULL)
            SELECT {columns} FROM step CROSS JOIN {lanes} l ON l.id = step.lane WHERE l.state = 2";
        /// Lanes that are gone but hold timed entries. Index event_queue_timed, from one lane that holds something to
        /// the next; the lanes' primary key.
        timed_strays: StrayRow = "
            WITH RECURSIVE step(lane) AS (
                SELECT min(lane) FROM {live} INDEXED BY {live}_timed WHERE place = 1
                UNION ALL
                SELECT (SELECT min(q.lane) FROM {live} q INDEXED BY {live}_timed
                        WHERE q.place = 1 AND q.lane > step.lane)
                FROM step WHERE step.lane IS NOT NULL)
            SELECT {columns} FROM step CROSS JOIN {lanes} l ON l.id = step.lane WHERE l.state = 2";
        /// Turns the fresh entries of a lane that is gone into arrivals. Index event_queue_fresh.
        rescue_fresh = "
            UPDATE {live} INDEXED BY {live}_fresh SET place = 3, lane = ?2
            WHERE lane = ?1 AND place = 0 AND lease_until IS NULL";
        /// Turns the timed entries of a lane that is gone into arrivals, but for kept ones, which a redrive gives a lane.
        /// Index event_queue_timed.
        rescue_timed = "
            UPDATE {live} INDEXED BY {live}_timed SET place = 3, lane = ?2
            WHERE lane = ?1 AND place = 1 AND lease_until IS NULL AND coalesce(flags, 0) & 8 = 0";
        /// The state and priority of an entry's lane. Primary keys.
        of_entry: StateRow = "
            SELECT {columns} FROM {live} q CROSS JOIN {lanes} l ON l.id = q.lane WHERE q.id = ?1";
        /// The type of an event, which says what lane its entry belongs to. Primary key.
        type_of: Only<String> = "SELECT event_type FROM {ns}_events WHERE id = ?1";
        /// Moves an entry to another lane. Primary key.
        set = "UPDATE {live} SET lane = ?2 WHERE id = ?1";
    }
}
