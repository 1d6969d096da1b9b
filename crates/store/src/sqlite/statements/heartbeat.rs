//! What keeps a store running: the heartbeat, leases after an outage, the election of one process, expired keys.

use crate::sql::{Only, statements};

statements! {
    /// Statements about the heartbeat, elections and expired keys.
    pub(in crate::sqlite) struct Heartbeat {
        /// When the heartbeat was last written. One row.
        last: Only<i64> = "SELECT at FROM {ns}_heartbeat";
        /// The latest moment that was stored. The heartbeat's one row, and the last event by the primary key, which
        /// rises with time.
        last_moment: Only<i64> = "
            SELECT CAST(max(coalesce((SELECT at FROM {ns}_heartbeat), 0),
                            coalesce((SELECT created_at FROM {ns}_events
                                      WHERE id = (SELECT max(id) FROM {ns}_events)), 0)) AS INTEGER)";
        /// Writes the heartbeat. One row.
        beat = "UPDATE {ns}_heartbeat SET at = ?1";
        /// Moves the leases held during an outage. The live table, whole.
        shift_leases = "UPDATE {live} SET lease_until = lease_until + ?2 WHERE lease_until > ?1";
        /// Takes or extends the lease of a maintenance task. Primary key.
        elect = "
            INSERT INTO {ns}_maintenance (task, holder, until) VALUES (?1, ?2, ?3)
            ON CONFLICT (task) DO UPDATE SET holder = excluded.holder, until = excluded.until
            WHERE holder = excluded.holder OR until <= ?4";
        /// Gives up all maintenance tasks of a process. The table, whole: it has one row per task.
        resign = "DELETE FROM {ns}_maintenance WHERE holder = ?1";
        /// Tries whether an event fits. Appends; always rolled back.
        probe_room = "
            INSERT INTO {ns}_events (id, created_at, event_type, payload) VALUES (-1, 0, '', zeroblob(?1))";
        /// Tries whether a page can be written. One row.
        probe_write = "UPDATE {ns}_sequence SET entry_id = entry_id";
    }
}
