//! Deliveries: which lanes wait, the limits of pools, and attempts. All of it is about jobs.

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::{Moment, Shown, row};
use crate::sqlite::statements::end::{LOG_ANY, LOG_HELD, with_attempt};

row! {
    /// A lane that holds something, by one place.
    pub(in crate::sqlite) struct WaitingRow {
        queue: String,
        client_id: Option<i64>,
        lane_type: String,
        /// Something may be claimable now.
        is_due: bool,
        /// When the first timed job is due that is not due yet.
        due_at: Option<i64>,
    }
}

row! {
    /// The slots of a node.
    pub(in crate::sqlite) struct SlotsRow {
        node: String,
        slots: u32,
        wanted: u32,
        since: Moment,
        until: Moment,
    }
}

row! {
    /// A recorded attempt.
    pub(in crate::sqlite) struct AttemptRow {
        generation: u32,
        attempt: u32,
        record: Shown,
    }
}

statements! {
    /// Statements about deliveries.
    pub(in crate::sqlite) struct Dispatch {
        /// Finds which lanes hold something, of one queue (?2) or of all, from one that does to the next, and when the first
        /// timed job of each is due that is not due yet, but for what is kept for ever. Indexes dispatch_queue_fresh and
        /// dispatch_queue_timed, and the primary keys of lanes and queues.
        waiting: WaitingRow = "
            WITH RECURSIVE fresh(lane) AS (
                SELECT min(lane) FROM {live} INDEXED BY {live}_fresh WHERE place = 0
                UNION ALL
                SELECT (SELECT min(q.lane) FROM {live} q INDEXED BY {live}_fresh
                        WHERE q.place = 0 AND q.lane > fresh.lane)
                FROM fresh WHERE fresh.lane IS NOT NULL
            ), timed(lane) AS (
                SELECT min(lane) FROM {live} INDEXED BY {live}_timed WHERE place = 1
                UNION ALL
                SELECT (SELECT min(q.lane) FROM {live} q INDEXED BY {live}_timed
                        WHERE q.place = 1 AND q.lane > timed.lane)
                FROM timed WHERE timed.lane IS NOT NULL
            )
            SELECT n.name AS queue, n.client_id AS client_id, l.event_type AS lane_type, 1 AS is_due, NULL AS due_at
            FROM fresh s CROSS JOIN {lanes} l ON l.id = s.lane CROSS JOIN {queues} n ON n.id = l.queue_id
            WHERE l.state = 0 AND l.event_type IS NOT NULL AND n.state <> 1 AND (?2 IS NULL OR n.id = ?2)
            UNION ALL
            SELECT n.name, n.client_id, l.event_type,
                   (SELECT min(q.due_at) FROM {live} q INDEXED BY {live}_timed
                    WHERE q.place = 1 AND q.lane = s.lane) <= ?1,
                   (SELECT min(q.due_at) FROM {live} q INDEXED BY {live}_timed
                    WHERE q.place = 1 AND q.lane = s.lane AND q.due_at > ?1 AND q.due_at < 253370764800000000)
            FROM timed s CROSS JOIN {lanes} l ON l.id = s.lane CROSS JOIN {queues} n ON n.id = l.queue_id
            WHERE l.state = 0 AND l.event_type IS NOT NULL AND n.state <> 1 AND (?2 IS NULL OR n.id = ?2)";
        /// The slots of a pool's nodes. Primary key.
        slots: SlotsRow = "SELECT {columns} FROM {ns}_dispatch_slots WHERE pool = ?1 AND client_id = ?2";
        /// Writes the slots of a node. Primary key.
        hold = "
            INSERT INTO {ns}_dispatch_slots (pool, client_id, node, slots, wanted, since, until)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
            ON CONFLICT (pool, client_id, node) DO UPDATE
            SET slots = excluded.slots, wanted = excluded.wanted, since = excluded.since, until = excluded.until";
        /// Removes the slots of a node. Primary key.
        remove = "DELETE FROM {ns}_dispatch_slots WHERE pool = ?1 AND client_id = ?2 AND node = ?3";
        /// Who slots are stored for. The table, whole: a row per pool and process that uses it.
        holders: Only<String> = "SELECT DISTINCT node FROM {ns}_dispatch_slots ORDER BY node";
        /// Removes all slots of a node. The table, whole.
        release = "DELETE FROM {ns}_dispatch_slots WHERE node = ?1";
        /// The moment of a pool. Primary key.
        moment: Only<Moment> = "SELECT moment FROM {ns}_dispatch_rates WHERE pool = ?1 AND client_id = ?2";
        /// Writes the moment of a pool. Primary key.
        move_rate = "
            INSERT INTO {ns}_dispatch_rates (pool, client_id, moment) VALUES (?1, ?2, ?3)
            ON CONFLICT (pool, client_id) DO UPDATE SET moment = excluded.moment";
        /// Moves the slots held during an outage. The table, whole.
        shift_slots = "UPDATE {ns}_dispatch_slots SET until = until + ?2 WHERE until > ?1";
        /// Removes slots that nobody asked about again for long after they were lost. The table, whole: a row per pool and
        /// process that uses it.
        forget_slots = "DELETE FROM {ns}_dispatch_slots WHERE until < ?1";
        /// Removes moments that have passed long ago and say as much as none. The table, whole: a row per pool with a limit
        /// per minute.
        forget_rates = "DELETE FROM {ns}_dispatch_rates WHERE moment < ?1";
        /// As `end.log_held`, with the record of the attempt.
        log_held = &with_attempt(LOG_HELD, Some("?8"));
        /// As `end.log_any`, with the record of the attempt.
        log_any = &with_attempt(LOG_ANY, Some("?9"));
        /// Records an attempt at a live job under its present number. Primary keys.
        record = "
            INSERT INTO {ns}_dispatch_attempts (job, generation, attempt, record)
            SELECT id, generation, attempts, ?2 FROM {live} WHERE id = ?1
            ON CONFLICT (job, generation, attempt) DO UPDATE SET record = excluded.record";
        /// The recorded attempts at a job that it went on after. Primary key.
        attempts: AttemptRow = "
            SELECT {columns} FROM {ns}_dispatch_attempts WHERE job = ?1 ORDER BY generation, attempt";
        /// Those by which it ended. Index dispatch_log_key.
        last_attempts: AttemptRow = "
            SELECT generation, attempts AS attempt, attempt AS record FROM {log} INDEXED BY {log}_key
            WHERE id = ?1 AND attempt IS NOT NULL";
        /// Writes what is said about a task. Primary key.
        put_task = "INSERT INTO {ns}_dispatch_tasks (job, task) VALUES (?1, ?2)";
        /// What is said about a task. Primary key.
        task: Only<Shown> = "SELECT task FROM {ns}_dispatch_tasks WHERE job = ?1";
        /// Removes what is said about a task. Primary key.
        forget_task = "DELETE FROM {ns}_dispatch_tasks WHERE job = ?1";
        /// Removes the attempts at a job. Primary key.
        forget_attempts = "DELETE FROM {ns}_dispatch_attempts WHERE job = ?1";
    }
}
