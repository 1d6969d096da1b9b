//! Tags of entries, live and ended.

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::{Shown, row};

row! {
    /// Where a live entry waits, for its tag rows.
    pub(in crate::sqlite) struct PlaceRow {
        event_id: i64 = "q.event_id",
        queue_id: i64 = "q.queue_id",
        place: i16 = "q.place",
        due_at: Option<i64> = "q.due_at",
        lease_until: Option<i64> = "q.lease_until",
        priority: i16 = "coalesce(l.priority, -1000 - q.lane)",
        client_id: Option<i64> = "q.client_id",
    }
}

statements! {
    /// Statements about tags.
    pub(in crate::sqlite) struct Tags {
        /// The tags of a fact. Primary key.
        of_fact: Only<Option<Shown>> = "SELECT tags FROM {ns}_events WHERE id = ?1";
        /// Where a live entry waits. Primary keys.
        place: PlaceRow = "SELECT {columns} FROM {live} q LEFT JOIN {lanes} l ON l.id = q.lane WHERE q.id = ?1";
        /// Writes a tag row. Primary key and event_tags_rank.
        put = "
            INSERT OR REPLACE INTO {ns}_event_tags (tag, entry_id, queue_id, state, priority, rank, client_id)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        /// Moves a tag row with its entry. Primary key; moves in event_tags_rank.
        follow = "UPDATE {ns}_event_tags SET state = ?3, rank = ?4 WHERE tag = ?1 AND entry_id = ?2";
        /// Removes a tag row of a live entry. Primary key.
        remove = "DELETE FROM {ns}_event_tags WHERE tag = ?1 AND entry_id = ?2";
        /// Removes all tag rows of a live entry whose fact, and with it its tags, is missing. The live tags, whole: it
        /// is rare.
        forget = "DELETE FROM {ns}_event_tags WHERE entry_id = ?1";
        /// Writes a tag row of an ended entry. Primary key.
        put_ended = "INSERT OR REPLACE INTO {ns}_log_tags (tag, status, entry_id, client_id) VALUES (?1, ?2, ?3, ?4)";
        /// Removes a tag row of an ended entry. Primary key.
        remove_ended = "DELETE FROM {ns}_log_tags WHERE tag = ?1 AND status = ?2 AND entry_id = ?3";
        /// The client of a queue. Primary key.
        client_of_queue: Only<Option<i64>> = "SELECT client_id FROM {queues} WHERE id = ?1";
        /// Whether something with a tag may be claimable. Index event_tags_rank.
        claimable = "
            SELECT 1 FROM {ns}_event_tags INDEXED BY {ns}_event_tags_rank
            WHERE queue_id = ?1 AND tag = ?2 AND state = ?3 AND priority = ?4 AND rank <= ?5 LIMIT 1";
        /// Moves the tag rows of leases held during an outage. The live tags, whole.
        shift_leases = "UPDATE {ns}_event_tags SET rank = rank + ?2 WHERE state = 3 AND rank > ?1";
    }
}
