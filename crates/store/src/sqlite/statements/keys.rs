//! API keys: the table `api_keys`.

use tidegate_core::Tsid;

use crate::error::{Error, Result};
use crate::sql::statements;
use crate::sqlite::engine::errors::damaged;
use crate::sqlite::engine::row::{Moment, row};
use crate::values::KeyView;

row! {
    /// A key, without its hash.
    pub(in crate::sqlite) struct KeyRow {
        id: i64,
        name: String,
        scopes: String,
        client_id: Option<i64>,
        created_at: Moment,
        last_used_at: Option<Moment>,
        revoked_at: Option<Moment>,
    }
}

impl TryFrom<KeyRow> for KeyView {
    type Error = Error;

    fn try_from(row: KeyRow) -> Result<Self> {
        Ok(Self {
            id: row.id,
            name: row.name,
            scopes: serde_json::from_str(&row.scopes)
                .map_err(|error| damaged("a key's scopes cannot be read").with_source(error))?,
            client: row.client_id.map(Tsid::from_i64),
            created_at: row.created_at.into(),
            last_used_at: row.last_used_at.map(Into::into),
            revoked_at: row.revoked_at.map(Into::into),
        })
    }
}

statements! {
    /// Statements about API keys.
    pub(in crate::sqlite) struct Keys {
        /// Adds a key, unless its hash is known. Unique index on the hash.
        put: KeyRow = "
            INSERT INTO {ns}_api_keys (hash, name, scopes, client_id, created_at) VALUES (?1, ?2, ?3, ?4, ?5)
            ON CONFLICT (hash) DO NOTHING RETURNING {columns}";
        /// All keys, in the order in which they were added. Primary key.
        all_keys: KeyRow = "SELECT {columns} FROM {ns}_api_keys ORDER BY id";
        /// A key by its hash. Unique index on the hash.
        by_hash: KeyRow = "SELECT {columns} FROM {ns}_api_keys WHERE hash = ?1";
        /// Revokes a key; one that is revoked stays as it is. Primary key.
        revoke: KeyRow = "
            UPDATE {ns}_api_keys SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1 RETURNING {columns}";
        /// Records when a key was last used. Primary key.
        used = "UPDATE {ns}_api_keys SET last_used_at = ?2 WHERE id = ?1";
    }
}
