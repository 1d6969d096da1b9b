//! What handlers answered: the table `event_handler_states`.

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::row;

row! {
    /// What a handler answered.
    pub(in crate::sqlite) struct HandledRow {
        handler: String,
        result: String,
    }
}

statements! {
    /// Statements about handlers.
    pub(in crate::sqlite) struct Handlers {
        /// Records what a handler answered, if the lease is held. Primary keys.
        record = "
            INSERT OR REPLACE INTO {ns}_event_handler_states (entry_id, handler, generation, result, recorded_at)
            SELECT id, ?3, generation, ?4, ?5 FROM {live}
            WHERE id = ?1 AND token = ?2 AND lease_until IS NOT NULL";
        /// Records all results of an entry that keeps its place, under no name: there is no log row to have them.
        /// Primary keys.
        record_kept = "
            INSERT OR REPLACE INTO {ns}_event_handler_states (entry_id, handler, generation, result, recorded_at)
            SELECT id, '', generation, ?2, ?3 FROM {live} WHERE id = ?1";
        /// What handlers answered about an entry. Primary key.
        handled: HandledRow = "
            SELECT {columns} FROM {ns}_event_handler_states WHERE entry_id = ?1 ORDER BY handler";
        /// The results of an entry's last generation, unless they are about other contents. Index event_log_key, and
        /// the queue's primary key.
        last_results: Only<Option<String>> = "
            SELECT CASE WHEN event_id = (SELECT q.event_id FROM {live} q WHERE q.id = ?1) THEN results END
            FROM {log} WHERE id = ?1 ORDER BY generation DESC LIMIT 1";
        /// Removes what handlers answered about an entry. Primary key.
        forget_entry = "DELETE FROM {ns}_event_handler_states WHERE entry_id = ?1";
        /// Removes the answers of handlers about entries of both families that have ended. Primary keys, from the start.
        forget = "
            DELETE FROM {ns}_event_handler_states WHERE (entry_id, handler) IN
                (SELECT entry_id, handler FROM {ns}_event_handler_states
                 WHERE entry_id NOT IN (SELECT id FROM {ns}_event_queue)
                   AND entry_id NOT IN (SELECT id FROM {ns}_dispatch_queue) LIMIT ?1)";
    }
}
