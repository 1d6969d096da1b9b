//! API keys on SQLite.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Row, params};
use tidegate_core::Tsid;

use super::SqliteStore;
use super::errors::damaged;
use super::jobs::Urgency;
use super::tx::{Tx, moment};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::{KeyStore, KeyView, NewKey};

#[async_trait]
impl KeyStore for SqliteStore {
    async fn put_key(&self, key: NewKey) -> Result<KeyView> {
        let made = self.write(Urgency::Publish, move |tx| put(tx, &key)).await;
        self.inner.key_changes.add();
        made
    }

    async fn keys(&self) -> Result<Vec<KeyView>> {
        self.read(|tx| {
            let mut statement = tx.prepare(&tx.sql().api_keys)?;
            let mut rows = statement.query([])?;
            let mut keys = Vec::new();
            while let Some(row) = rows.next()? {
                keys.push(read(row)?);
            }
            Ok(keys)
        })
        .await
    }

    async fn revoke_key(&self, id: i64) -> Result<KeyView> {
        let revoke = self.write(Urgency::Publish, move |tx| {
            tx.prepare(&tx.sql().revoke_api_key)?.execute((id, tx.now))?;
            by_id(tx, id)?.ok_or_else(|| crate::keys::no_key(id))
        });
        let revoked = revoke.await;
        self.inner.key_changes.add();
        revoked
    }

    async fn keys_by_hash(&self, hashes: Vec<Vec<u8>>) -> Result<Vec<Option<KeyView>>> {
        self.read(move |tx| {
            let mut statement = tx.prepare(&tx.sql().api_key_by_hash)?;
            let mut find = |hash| statement.query_row([hash], |row| Ok(read(row))).optional()?.transpose();
            hashes.iter().map(&mut find).collect()
        })
        .await
    }

    fn key_changes(&self) -> u64 {
        self.inner.key_changes.count()
    }

    async fn keys_used(&self, ids: Vec<i64>, ago: Duration) -> Result<()> {
        let ago = i64::try_from(ago.as_micros()).unwrap_or(i64::MAX);
        self.write(Urgency::Publish, move |tx| {
            let mut statement = tx.prepare(&tx.sql().use_api_key)?;
            for id in ids {
                statement.execute((id, tx.now.saturating_sub(ago)))?;
            }
            Ok(())
        })
        .await
    }
}

fn put(tx: &Tx<'_>, key: &NewKey) -> Result<KeyView> {
    key.check()?;
    let scopes = serde_json::Value::from(key.scopes.as_slice()).to_string();
    let known = tx.prepare(&tx.sql().api_key_by_hash)?.exists([&key.hash])?;
    if known {
        return Err(Error::new(ErrorKind::Conflict, "this key is known already"));
    }
    tx.prepare(&tx.sql().put_api_key)?.execute(params![
        key.hash,
        key.name,
        scopes,
        key.client.map(Tsid::to_i64),
        tx.now
    ])?;
    let id = tx.conn.last_insert_rowid();
    by_id(tx, id)?.ok_or_else(|| crate::keys::no_key(id))
}

fn by_id(tx: &Tx<'_>, id: i64) -> Result<Option<KeyView>> {
    let found = tx.prepare(&tx.sql().api_key)?.query_row([id], |row| Ok(read(row))).optional()?;
    found.transpose()
}

fn read(row: &Row<'_>) -> Result<KeyView> {
    let scopes: String = row.get(2)?;
    Ok(KeyView {
        id: row.get(0)?,
        name: row.get(1)?,
        scopes: serde_json::from_str(&scopes)
            .map_err(|error| damaged("a key's scopes cannot be read").with_source(error))?,
        client: row.get::<_, Option<i64>>(3)?.map(Tsid::from_i64),
        created_at: moment(row.get(4)?)?,
        last_used_at: row.get::<_, Option<i64>>(5)?.map(moment).transpose()?,
        revoked_at: row.get::<_, Option<i64>>(6)?.map(moment).transpose()?,
    })
}
