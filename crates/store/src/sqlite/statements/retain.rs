//! Retention: what is removed when it is old.

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::row;

row! {
    /// An ended entry with all its generations. Its first fact, which is enough to know when it was published.
    pub(in crate::sqlite) struct OldRow {
        id: i64,
        event_id: i64 = "min(event_id)",
        last_seq: i64 = "max(seq)",
        finished_at: i64 = "max(finished_at)",
        flags: Option<i64> = "max(flags)",
        client_id: Option<i64>,
    }
}

row! {
    /// A log row of an entry. Generations may have different facts: a redriven entry can be replaced while it waits.
    #[derive(Clone, Copy)]
    pub(in crate::sqlite) struct LogRow {
        event_id: i64,
        status: i16,
        superseded: i16,
    }
}

statements! {
    /// Statements about retention.
    pub(in crate::sqlite) struct Retain {
        /// Removes old audit rows. Primary key, from its start.
        forget_audit = "
            DELETE FROM {ns}_event_audit WHERE id IN
            (SELECT id FROM (SELECT id, created_at FROM {ns}_event_audit ORDER BY id LIMIT ?2) WHERE created_at < ?1)";
        /// The position of the projection that is furthest behind. The table, whole: projections are few.
        projections_at: Only<Option<i64>> = "SELECT min(seq) FROM {ns}_projections WHERE state < 2";
        /// Ended entries with all their generations. Index event_log_key, from where the last batch stopped.
        old_entries: OldRow = "
            SELECT {columns} FROM {log} INDEXED BY {log}_key WHERE id > ?1 GROUP BY id ORDER BY id LIMIT ?2";
        /// One ended entry with all its generations. Index event_log_key.
        old_entry: OldRow = "SELECT {columns} FROM {log} INDEXED BY {log}_key WHERE id = ?1 GROUP BY id";
        /// The log rows of an entry, in the order of its generations. Index event_log_key.
        log_rows: LogRow = "SELECT {columns} FROM {log} INDEXED BY {log}_key WHERE id = ?1";
        /// Removes the log rows of an entry. Index event_log_key.
        forget_log = "DELETE FROM {log} WHERE id = ?1";
    }
}
