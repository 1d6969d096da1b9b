//! API keys: resources of kind `key`, and the table `key_uses`.

use crate::error::Error;
use crate::sql::{Only, statements};
use crate::sqlite::engine::row::{Moment, row};
use crate::values::KeyView;
use crate::values::keys::StoredKey;

row! {
    /// A key.
    pub(in crate::sqlite) struct KeyRow {
        id: i64 = "r.id",
        body: String = "r.body",
        created_at: Moment = "r.created_at",
        last_used_at: Option<Moment> = "u.last_used_at",
    }
}

impl TryFrom<KeyRow> for KeyView {
    type Error = Error;

    fn try_from(row: KeyRow) -> Result<Self, Error> {
        StoredKey::read(&row.body)?.view(row.id, row.created_at.into(), row.last_used_at.map(Into::into))
    }
}

statements! {
    /// Statements about API keys.
    pub(in crate::sqlite) struct Keys {
        /// Draws the number of a key. One row.
        draw_number: Only<i64> = "UPDATE {ns}_sequence SET key_number = key_number + 1 RETURNING key_number";
        /// All keys, in the order in which they were added. Index resources_code, key_uses' primary key.
        all_keys: KeyRow = "
            SELECT {columns} FROM {ns}_resources r LEFT JOIN {ns}_key_uses u ON u.id = r.id
            WHERE r.kind = 'key' AND NOT r.deleted ORDER BY r.created_at, r.id";
        /// A key by its code. Index resources_code, key_uses' primary key.
        by_code: KeyRow = "
            SELECT {columns} FROM {ns}_resources r LEFT JOIN {ns}_key_uses u ON u.id = r.id
            WHERE r.kind = 'key' AND coalesce(r.client_id, 0) = 0 AND r.code = ?1 AND NOT r.deleted";
        /// A key by its number. The primary keys of resources and key_uses.
        by_id: KeyRow = "
            SELECT {columns} FROM {ns}_resources r LEFT JOIN {ns}_key_uses u ON u.id = r.id WHERE r.id = ?1";
        /// Records when a key was last used. The primary keys of resources and key_uses.
        used = "
            INSERT INTO {ns}_key_uses (id, last_used_at) SELECT id, ?2 FROM {ns}_resources WHERE id = ?1
            ON CONFLICT (id) DO UPDATE SET last_used_at = excluded.last_used_at";
    }
}
