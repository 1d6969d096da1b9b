//! Publishing: facts and entries.

use crate::sql::{Only, statements};

statements! {
    /// Statements about publishing.
    pub(in crate::sqlite) struct Publish {
        /// The next entry id. One row.
        next_entry_id: Only<i64> = "SELECT entry_id FROM {ns}_sequence";
        /// Saves the next entry id. One row.
        save_entry_id = "UPDATE {ns}_sequence SET entry_id = ?1";
        /// The number of entries in a queue, up to its limit. Indexes event_queue_fresh, _timed,
        /// _parked and _aside_due.
        count_entries: Only<i64> = "
            SELECT count(*) FROM (
                SELECT 1 FROM {lanes} l JOIN {live} q INDEXED BY {live}_fresh ON q.lane = l.id AND q.place = 0
                WHERE l.queue_id = ?1 AND l.state = 0
                UNION ALL
                SELECT 1 FROM {lanes} l JOIN {live} q INDEXED BY {live}_timed ON q.lane = l.id AND q.place = 1
                WHERE l.queue_id = ?1 AND l.state = 0
                UNION ALL
                SELECT 1 FROM {live} INDEXED BY {live}_parked WHERE queue_id = ?1 AND place IN (2, 3)
                UNION ALL
                SELECT 1 FROM {live} INDEXED BY {live}_aside_due WHERE queue_id = ?1 AND place = 4
                LIMIT ?2)";
        /// Writes a fact. Appends, unless the clock was set back.
        put_fact = "
            INSERT INTO {ns}_events (id, created_at, client_id, event_type, content_type, source, subject, time,
                external_id, correlation_id, causation_id, attributes, payload, title, description, tags, retry)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)";
        /// Writes a fact without the rarer fields. Appends.
        put_plain_fact = "INSERT INTO {ns}_events (id, created_at, event_type, payload) VALUES (?1, ?2, ?3, ?4)";
        /// Removes the fact of one entry. Primary key. Others may refer to a fact with a range of numbers: it stays.
        remove_fact = "DELETE FROM {ns}_events WHERE id = ?1 AND first_number IS NULL";
        /// Writes an entry. Appends; adds to the index of its place.
        put_entry = "
            INSERT INTO {live} (id, event_id, due_at, client_id, lane, queue_id, max_attempts, place, exhausted_as,
                group_key, token, attempts, generation, room, flags, expires_at, rank)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, 0, 1, zeroblob({room}), ?11, ?12, ?13)";
        /// Writes the entries of a run of facts that were just written. The facts' primary key; appends. An event's id
        /// ends with the low bits of its entry's number.
        put_run = "
            INSERT INTO {live} (id, event_id, client_id, lane, queue_id, max_attempts, place, exhausted_as, token,
                attempts, generation, room)
            SELECT (e.id & 4194303) | ?3, e.id, ?8, ?4, ?5, ?6, 0, ?7, 0, 0, 1, zeroblob({room})
            FROM {ns}_events e WHERE e.id BETWEEN ?1 AND ?2";
    }
}
