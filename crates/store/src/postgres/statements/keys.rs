//! API keys: the table `api_keys`.

use tidegate_core::Tsid;

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::row::{Moment, row};
use crate::sql::statements;
use crate::values::KeyView;

row! {
    /// A key, without its hash.
    pub(in crate::postgres) struct KeyRow {
        id: i64,
        name: String,
        scopes: String,
        client_id: Option<i64>,
        created_at: Moment,
        last_used_at: Option<Moment>,
        revoked_at: Option<Moment>,
    }
}

row! {
    /// The hash of a key.
    pub(in crate::postgres) struct Hash {
        hash: Vec<u8>,
    }
}

impl TryFrom<KeyRow> for KeyView {
    type Error = Error;

    fn try_from(row: KeyRow) -> Result<Self> {
        Ok(Self {
            id: row.id,
            name: row.name,
            scopes: serde_json::from_str(&row.scopes)
                .map_err(|error| Error::new(ErrorKind::Corrupt, "a key's scopes cannot be read").with_source(error))?,
            client: row.client_id.map(Tsid::from_i64),
            created_at: row.created_at.into(),
            last_used_at: row.last_used_at.map(Into::into),
            revoked_at: row.revoked_at.map(Into::into),
        })
    }
}

statements! {
    /// Statements about API keys.
    pub(in crate::postgres) struct Keys {
        /// Adds a key, unless its hash is known (unique index on the hash).
        put: KeyRow = "
            INSERT INTO {ns}.api_keys (hash, name, scopes, client_id, created_at) VALUES ($2, $3, $4, $5, {now})
            ON CONFLICT (hash) DO NOTHING RETURNING {columns}";
        /// All keys, in the order in which they were added (primary key).
        all_keys: KeyRow = "SELECT {columns} FROM {ns}.api_keys ORDER BY id";
        /// Keys by their hashes (unique index on the hash).
        by_hash: (KeyRow, Hash) = "SELECT {columns} FROM {ns}.api_keys WHERE hash = ANY ($1::bytea[])";
        /// Revokes a key; one that is revoked stays as it is (primary key).
        revoke: KeyRow = "
            UPDATE {ns}.api_keys SET revoked_at = coalesce(revoked_at, {now}) WHERE id = $2 RETURNING {columns}";
        /// Records when keys were last used (primary key).
        used = "
            UPDATE {ns}.api_keys SET last_used_at = {now} - $3::bigint * interval '1 microsecond'
            WHERE id = ANY ($2::bigint[])";
    }
}
