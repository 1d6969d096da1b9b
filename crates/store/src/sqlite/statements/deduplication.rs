//! Deduplication keys: the table `deduplication`.

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::{Shown, row};

row! {
    /// What a deduplication key refers to.
    pub(in crate::sqlite) struct KeyRow {
        entry_id: i64,
        event_id: i64,
        expires_at: i64,
    }
}

statements! {
    /// Statements about deduplication keys.
    pub(in crate::sqlite) struct Deduplication {
        /// The entry under a key. Primary key.
        find: KeyRow = "
            SELECT {columns} FROM {ns}_deduplication WHERE client_id = ?1 AND kind = {key_kind} AND scope = ?2
                AND key = ?3";
        /// Takes a key for an entry. Primary key.
        put = "
            INSERT OR REPLACE INTO {ns}_deduplication (client_id, kind, scope, key, entry_id, event_id, expires_at)
            VALUES (?1, {key_kind}, ?2, ?3, ?4, ?5, ?6)";
        /// Points a key to the new fact of its entry. Primary key.
        point = "
            UPDATE {ns}_deduplication SET event_id = ?4
            WHERE client_id = ?1 AND kind = {key_kind} AND scope = ?2 AND key = ?3";
        /// What a repeat is compared with. Primary key. Has no row type: a payload is compared where it is, not copied.
        contents = "SELECT event_type, payload, created_at FROM {ns}_events WHERE id = ?1";
        /// The type of a fact. Primary key.
        event_type: Only<Option<Shown>> = "SELECT event_type FROM {ns}_events WHERE id = ?1";
        /// Gives a waiting entry, but not a kept or an expired one, another fact and its expiry. Primary key.
        replace = "
            UPDATE {live} SET event_id = ?2, updated_at = ?3, room = zeroblob({room} - 8), expires_at = ?5,
                flags = CASE WHEN ?4 THEN coalesce(flags, 0) | 1 ELSE nullif(flags & 6, 0) END
            WHERE id = ?1 AND lease_until IS NULL AND coalesce(flags, 0) & 8 = 0
              AND (expires_at IS NULL OR expires_at > ?3)";
        /// Removes expired keys. Index deduplication_expiry.
        expire = "
            DELETE FROM {ns}_deduplication WHERE (client_id, kind, scope, key) IN
                (SELECT client_id, kind, scope, key FROM {ns}_deduplication INDEXED BY {ns}_deduplication_expiry
                 WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)";
    }
}
