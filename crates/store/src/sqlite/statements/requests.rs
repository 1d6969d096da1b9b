//! Idempotency keys and keys of facts: rows of the table `deduplication` of kinds of their own.

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::row;

row! {
    /// What is stored under an idempotency key.
    pub(in crate::sqlite) struct KnownRow {
        entry_id: i64,
        event_id: i64,
        expires_at: i64,
        fingerprint: Option<i64>,
    }
}

row! {
    /// What is stored under a key of a fact.
    pub(in crate::sqlite) struct KnownFactRow {
        event_id: i64,
        fingerprint: Option<i64>,
    }
}

statements! {
    /// Statements about requests.
    pub(in crate::sqlite) struct Requests {
        /// The result under an idempotency key. Primary key.
        known: KnownRow = "
            SELECT {columns} FROM {ns}_deduplication WHERE client_id = ?1 AND kind = {request_kind} AND scope = 0
                AND key = ?2";
        /// When a fact was published. Primary key.
        published_at: Only<i64> = "SELECT created_at FROM {ns}_events WHERE id = ?1";
        /// Takes an idempotency key for an entry. Primary key.
        take = "
            INSERT OR REPLACE INTO {ns}_deduplication
                (client_id, kind, scope, key, entry_id, event_id, expires_at, fingerprint)
            VALUES (?1, {request_kind}, 0, ?2, ?3, ?4, ?5, ?6)";
        /// The fact under a key that has not expired. Primary key.
        known_fact: KnownFactRow = "
            SELECT {columns} FROM {ns}_deduplication WHERE client_id = ?1 AND kind = ?2 AND scope = 0 AND key = ?3
                AND expires_at > ?4";
        /// Takes a key for a fact. Primary key.
        take_fact = "
            INSERT OR REPLACE INTO {ns}_deduplication
                (client_id, kind, scope, key, entry_id, event_id, expires_at, fingerprint)
            VALUES (?1, ?2, 0, ?3, 0, ?4, ?5, ?6)";
    }
}
