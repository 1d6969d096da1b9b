//! How many entries ended, by status, tag and client, and in which stretches of the log: the tables `log_counts`,
//! `tag_counts`, `client_counts`, `log_lanes` and `log_workers`. Totals and lists start from them.

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::{Shown, row};

row! {
    /// The counts by end, as JSON, and up to which log row they go.
    pub(in crate::sqlite) struct CountsRow {
        seq: i64,
        counts: String,
    }
}

row! {
    /// Up to which log row a part of the log goes, and how many of its rows have each end.
    pub(in crate::sqlite) struct TailRow {
        upto: i64 = "coalesce(max(seq), ?1)",
        completed: i64 = "coalesce(sum(status = 0), 0)",
        with_errors: i64 = "coalesce(sum(status = 1), 0)",
        failed: i64 = "coalesce(sum(status = 2), 0)",
        cancelled: i64 = "coalesce(sum(status = 3), 0)",
    }
}

row! {
    /// A log row with tags.
    pub(in crate::sqlite) struct TaggedRow {
        status: i16 = "g.status",
        tags: Option<Shown> = "e.tags",
        client_id: Option<i64> = "g.client_id",
    }
}

row! {
    /// How many log rows of a client have an end.
    pub(in crate::sqlite) struct ClientRow {
        client_id: Option<i64>,
        status: i16,
        rows: i64 = "count(*)",
    }
}

row! {
    /// The stretch of a log row, and what is recorded about it.
    pub(in crate::sqlite) struct StretchRow {
        stretch: i64 = "id >> ?3",
        status: i16,
        lane: i64,
        worker: Option<String>,
        client_id: Option<i64>,
    }
}

row! {
    /// A lane that has entries with an end in a stretch.
    pub(in crate::sqlite) struct LaneRow {
        lane: i64,
        status: i16,
    }
}

row! {
    /// A worker that has entries with an end in a stretch.
    pub(in crate::sqlite) struct WorkerRow {
        client_id: i64,
        worker: String,
        status: i16,
    }
}

statements! {
    /// Statements about counts of the log.
    pub(in crate::sqlite) struct LogCounts {
        /// How many log rows are counted, by end, and up to which row. One row.
        counts: CountsRow = "SELECT {columns} FROM {ns}_log_counts";
        /// Saves the counts, unless another process did. One row.
        save = "UPDATE {ns}_log_counts SET seq = ?2, counts = ?3 WHERE seq = ?1";
        /// The number of log rows after the counted ones, by end. Primary key of the log, from where the counts stop.
        tail: TailRow = "
            SELECT {columns} FROM (SELECT seq, status FROM {log} WHERE seq > ?1 ORDER BY seq LIMIT ?2)";
        /// The tags of log rows after the counted ones. Primary keys, from where the counts stop.
        tagged_tail: TaggedRow = "
            SELECT {columns} FROM {log} g CROSS JOIN {ns}_events e ON e.id = g.event_id
            WHERE g.seq > ?1 AND g.seq <= ?2 AND g.flags & 1";
        /// The number of log rows after the counted ones, by client and end. Primary key, from where the counts stop.
        client_tail: ClientRow = "
            SELECT {columns} FROM (SELECT client_id, status FROM {log} WHERE seq > ?1 AND seq <= ?2)
            WHERE client_id IS NOT NULL AND (?3 IS NULL OR client_id = ?3) GROUP BY client_id, status";
        /// The stretches of log rows after the counted ones. Primary key, from where the counts stop.
        stretches_tail: StretchRow = "SELECT {columns} FROM {log} WHERE seq > ?1 AND seq <= ?2";
        /// Adds to the count of a tag. Primary key.
        add_tag = "
            INSERT INTO {ns}_tag_counts (tag, status, rows) VALUES (?1, ?2, ?3)
            ON CONFLICT (tag, status) DO UPDATE SET rows = rows + excluded.rows";
        /// The count of a tag. Primary key.
        of_tag: Only<i64> = "SELECT rows FROM {ns}_tag_counts WHERE tag = ?1 AND status = ?2";
        /// Removes a count of a tag that has become zero. Primary key.
        drop_empty_tag = "DELETE FROM {ns}_tag_counts WHERE tag = ?1 AND status = ?2 AND rows <= 0";
        /// Adds to the count of a client. Primary key.
        add_client = "
            INSERT INTO {ns}_client_counts (client_id, tag, status, rows) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT (client_id, tag, status) DO UPDATE SET rows = rows + excluded.rows";
        /// The count of a client. Primary key.
        of_client: Only<i64> = "
            SELECT rows FROM {ns}_client_counts WHERE client_id = ?1 AND tag = ?2 AND status = ?3";
        /// Removes a count of a client that has become zero. Primary key.
        drop_empty_client = "
            DELETE FROM {ns}_client_counts WHERE client_id = ?1 AND tag = ?2 AND status = ?3 AND rows <= 0";
        /// Records a stretch of a lane. Primary key.
        add_lane_stretch = "INSERT OR IGNORE INTO {ns}_log_lanes (lane, status, stretch) VALUES (?1, ?2, ?3)";
        /// Records a stretch of a worker. Primary key.
        add_worker_stretch = "
            INSERT OR IGNORE INTO {ns}_log_workers (client_id, worker, status, stretch) VALUES (?1, ?2, ?3, ?4)";
        /// The lanes recorded for a stretch. Index log_lanes_stretch.
        lanes_in_stretch: LaneRow = "SELECT {columns} FROM {ns}_log_lanes WHERE stretch = ?1";
        /// The workers recorded for a stretch. Index log_workers_stretch.
        workers_in_stretch: WorkerRow = "SELECT {columns} FROM {ns}_log_workers WHERE stretch = ?1";
        /// Removes a stretch of a lane. Primary key.
        forget_lane_stretch = "DELETE FROM {ns}_log_lanes WHERE lane = ?1 AND status = ?2 AND stretch = ?3";
        /// Removes a stretch of a worker. Primary key.
        forget_worker_stretch = "
            DELETE FROM {ns}_log_workers WHERE client_id = ?1 AND worker = ?2 AND status = ?3 AND stretch = ?4";
        /// Everything that is left of a stretch. Index event_log_key.
        left_in_stretch: StretchRow = "
            SELECT {columns} FROM {log} INDEXED BY {log}_key WHERE id >= ?1 AND id < ?2";
    }
}
