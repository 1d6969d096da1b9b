//! Targets that were added to facts which had been stored before: rows of the table `deduplication` of a kind of their own, by
//! the fact (its column `scope`) and a hash of the key. They stay as long as the fact; `fingerprint` is when it was made.

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::row;

row! {
    /// A target that was added.
    pub(in crate::sqlite) struct AddedRow {
        entry_id: i64,
        /// In microseconds.
        made_at: i64 = "fingerprint",
    }
}

/// When an entry was made that was added to its fact, given its table's alias; null for any other. Primary key.
pub(in crate::sqlite) fn made_at(entry: &str) -> String {
    format!(
        "(CASE WHEN {entry}.flags & 32 THEN
             (SELECT d.fingerprint FROM {{ns}}_deduplication d
              WHERE d.client_id = 0 AND d.kind = 7 AND d.scope = {entry}.event_id AND d.entry_id = {entry}.id LIMIT 1) END)"
    )
}

/// Whether no live or ended row is one that was added to the fact `e`. Primary keys and those of the logs.
pub(in crate::sqlite) fn none_is_left() -> String {
    let is_there = super::ingest::REFERRING
        .map(|table| format!("EXISTS (SELECT 1 FROM {table} r WHERE r.id = d.entry_id AND r.event_id = e.id)"))
        .join(" OR ");
    format!(
        "NOT EXISTS (SELECT 1 FROM {{ns}}_deduplication d
                     WHERE d.client_id = 0 AND d.kind = 7 AND d.scope = e.id AND ({is_there}))"
    )
}

statements! {
    /// Statements about targets that were added.
    pub(in crate::sqlite) struct Added {
        /// The target under a key. Primary key.
        find: AddedRow = "
            SELECT {columns} FROM {ns}_deduplication WHERE client_id = 0 AND kind = 7 AND scope = ?1 AND key = ?2";
        /// The targets that were added to a fact. Primary key.
        of_fact: AddedRow = "
            SELECT {columns} FROM {ns}_deduplication WHERE client_id = 0 AND kind = 7 AND scope = ?1 LIMIT ?2";
        /// When an entry was added to a fact. Primary key.
        made_at: Only<i64> = "
            SELECT fingerprint FROM {ns}_deduplication
            WHERE client_id = 0 AND kind = 7 AND scope = ?1 AND entry_id = ?2 LIMIT 1";
        /// Whether targets can be added to a fact: it is kept apart from its entries. Primary key.
        takes_targets: Only<bool> = "SELECT first_number IS NOT NULL FROM {ns}_events WHERE id = ?1";
        /// Notes a target. It never expires: it goes with the fact. Primary key.
        put = "
            INSERT INTO {ns}_deduplication (client_id, kind, scope, key, entry_id, event_id, expires_at, fingerprint)
            VALUES (0, 7, ?1, ?2, ?3, ?1, 253402300799000000, ?4)";
        /// Forgets the targets of a fact that is removed. Primary key.
        forget = "DELETE FROM {ns}_deduplication WHERE client_id = 0 AND kind = 7 AND scope = ?1";
    }
}
