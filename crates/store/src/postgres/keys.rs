//! API keys on PostgreSQL.

use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::Tsid;
use tokio_postgres::Row;

use super::errors::Fault;
use super::{Inner, PostgresStore};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::{KeyStore, KeyView, NewKey, no_key};

/// The column behind those that `work_sql::KEY` names.
const HASH: usize = 7;

#[async_trait]
impl KeyStore for PostgresStore {
    async fn put_key(&self, key: NewKey) -> Result<KeyView> {
        self.detached(|inner| async move { inner.put_key(key).await }).await
    }

    async fn keys(&self) -> Result<Vec<KeyView>> {
        self.detached(|inner| async move {
            let rows = inner.database.read_patiently(&inner.sql.work.keys, &[]).await?;
            rows.iter().map(read).collect()
        })
        .await
    }

    async fn revoke_key(&self, id: i64) -> Result<KeyView> {
        self.detached(|inner| async move {
            let reader = inner.database.reader_patiently().await?;
            // One statement, its own transaction; revoking twice is the same as once.
            let rows = reader.query(&inner.sql.work.revoke_key, &[&inner.now(), &id]).await;
            inner.key_changes.add();
            rows.map_err(Fault::into_error)?.first().map_or_else(|| Err(no_key(id)), read)
        })
        .await
    }

    async fn keys_by_hash(&self, hashes: Vec<Vec<u8>>) -> Result<Vec<Option<KeyView>>> {
        self.detached(|inner| async move {
            let rows = inner.database.read_patiently(&inner.sql.work.keys_by_hash, &[&hashes]).await?;
            let found: Vec<(&[u8], KeyView)> =
                rows.iter().map(|row| Ok((row.get(HASH), read(row)?))).collect::<Result<_>>()?;
            let view = |hash: &Vec<u8>| found.iter().find(|(of, _)| of == hash).map(|(_, view)| view.clone());
            Ok(hashes.iter().map(view).collect())
        })
        .await
    }

    fn key_changes(&self) -> u64 {
        self.inner.key_changes.count()
    }

    async fn keys_used(&self, ids: Vec<i64>, ago: Duration) -> Result<()> {
        let ago = i64::try_from(ago.as_micros()).unwrap_or(i64::MAX);
        self.detached(|inner| async move {
            let reader = inner.database.reader().await.map_err(Fault::into_error)?;
            reader.execute(&inner.sql.work.keys_used, &[&inner.now(), &ids, &ago]).await.map_err(Fault::into_error)?;
            Ok(())
        })
        .await
    }
}

impl Inner {
    async fn put_key(&self, key: NewKey) -> Result<KeyView> {
        key.check()?;
        let scopes = serde_json::Value::from(key.scopes.as_slice()).to_string();
        let client = key.client.map(Tsid::to_i64);
        let reader = self.database.reader_patiently().await?;
        // One statement, its own transaction. If its answer is lost, the caller does not know; nobody else knows the key.
        let rows = reader.query(&self.sql.work.put_key, &[&self.now(), &key.hash, &key.name, &scopes, &client]).await;
        self.key_changes.add();
        let rows = rows.map_err(Fault::into_error)?;
        rows.first().map_or_else(|| Err(Error::new(ErrorKind::Conflict, "this key is known already")), read)
    }
}

fn read(row: &Row) -> Result<KeyView> {
    let scopes: &str = row.get(2);
    Ok(KeyView {
        id: row.get(0),
        name: row.get(1),
        scopes: serde_json::from_str(scopes)
            .map_err(|error| Error::new(ErrorKind::Corrupt, "a key's scopes cannot be read").with_source(error))?,
        client: row.get::<_, Option<i64>>(3).map(Tsid::from_i64),
        created_at: row.get(4),
        last_used_at: row.get(5),
        revoked_at: row.get(6),
    })
}
