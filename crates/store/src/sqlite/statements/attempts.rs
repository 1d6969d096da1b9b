//! What pull workers do: attempts, their reports, workers.

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::{Moment, Shown, row};

row! {
    /// A consumer of a queue `n`.
    pub(in crate::sqlite) struct ConsumerRow {
        worker: String = "c.worker",
        name: String = "n.name",
        seen_at: Moment = "c.seen_at",
        client_id: Option<i64> = "n.client_id",
    }
}

row! {
    /// A held entry `q` in a queue `n`.
    pub(in crate::sqlite) struct HeldRow {
        worker: Option<String> = "q.worker",
        name: String = "n.name",
        id: i64 = "q.id",
        seen_at: Moment = "coalesce(q.updated_at, q.processing_started_at, q.lease_until)",
        client_id: Option<i64> = "n.client_id",
    }
}

statements! {
    /// Statements about attempts.
    pub(in crate::sqlite) struct Attempts {
        /// The retry policy of a fact. Primary key.
        retry_of_fact: Only<Option<String>> = "SELECT retry FROM {ns}_events WHERE id = ?1";
        /// The attributes of a fact. Primary key.
        attributes_of_fact: Only<Option<Shown>> = "SELECT attributes FROM {ns}_events WHERE id = ?1";
        /// Records that the holder of an entry is alive. Primary key.
        touch = "UPDATE {live} SET updated_at = ?2 WHERE id = ?1";
        /// Takes an entry from its holder. Primary key; moves to event_queue_timed.
        reset = "
            UPDATE {live} SET lease_until = NULL, worker = NULL, updated_at = ?2, attempts = attempts - 1,
                token = token + 1, place = 1, due_at = ?2, room = zeroblob({room} - 16)
            WHERE id = ?1 AND lease_until IS NOT NULL";
        /// All consumers. The table, whole: it holds one day of consumers.
        consumers: ConsumerRow = "
            SELECT {columns} FROM {consumers} c JOIN {queues} n ON n.id = c.queue_id
            WHERE ?1 IS NULL OR n.client_id = ?1";
        /// All held entries. The live table, whole: only people ask for the worker list.
        held: HeldRow = "
            SELECT {columns} FROM {live} q JOIN {queues} n ON n.id = q.queue_id
            WHERE q.lease_until IS NOT NULL AND (?1 IS NULL OR n.client_id = ?1)";
    }
}
