//! API keys: resources of kind `key`, and the table `key_uses`.

use crate::error::Error;
use crate::postgres::engine::row::{Moment, row};
use crate::sql::{Only, statements};
use crate::values::KeyView;
use crate::values::keys::StoredKey;

row! {
    /// A key.
    pub(in crate::postgres) struct KeyRow {
        id: i64 = "r.id",
        code: String = "r.code",
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

/// Finds when the key `r` was last used.
const USED: &str = "
    LEFT JOIN LATERAL (SELECT f.last_used_at FROM {ns}.key_uses f WHERE f.id = r.id OFFSET 0) AS u ON true";

statements! {
    /// Statements about API keys.
    pub(in crate::postgres) struct Keys {
        /// Draws the number of a key (a sequence).
        draw_number: Only<i64> = "SELECT nextval('{ns}.key_number')";
        /// The present moment.
        moment: Only<Moment> = "SELECT {now} AS now";
        /// All keys, in the order in which they were added (resources_code, key_uses' primary key).
        all_keys: KeyRow = &"
            SELECT {columns} FROM {ns}.resources r {used}
            WHERE r.kind = 'key' AND NOT r.deleted ORDER BY r.created_at, r.id".replace("{used}", USED);
        /// Keys by their codes (resources_code, key_uses' primary key).
        by_code: KeyRow = &"
            SELECT {columns} FROM unnest($1::text[]) AS i(code)
            CROSS JOIN LATERAL (
                SELECT f.* FROM {ns}.resources f
                WHERE f.kind = 'key' AND coalesce(f.client_id, 0) = 0 AND f.code = i.code AND NOT f.deleted
                OFFSET 0
            ) AS r {used}".replace("{used}", USED);
        /// A key by its number (the primary keys of resources and key_uses).
        by_id: KeyRow = &"
            SELECT {columns} FROM {ns}.resources r {used} WHERE r.id = $1::bigint".replace("{used}", USED);
        /// Records when keys were last used (the primary keys of resources and key_uses). Always in the same order, so
        /// that two processes do not deadlock.
        used = "
            INSERT INTO {ns}.key_uses AS u (id, last_used_at)
            SELECT r.id, {now} - $3::bigint * interval '1 microsecond' FROM {ns}.resources r
            WHERE r.id = ANY ($2::bigint[]) ORDER BY r.id
            ON CONFLICT (id) DO UPDATE SET last_used_at = excluded.last_used_at";
    }
}
