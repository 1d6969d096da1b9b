//! API keys on PostgreSQL. Stores and finds keys by their hash; never sees a key itself.

use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::Tsid;

use crate::api::KeyStore;
use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::store::{Inner, PostgresStore};
use crate::postgres::statements::keys::KeyRow;
use crate::values::keys::no_key;
use crate::values::{KeyView, NewKey};

#[async_trait]
impl KeyStore for PostgresStore {
    async fn put_key(&self, key: NewKey) -> Result<KeyView> {
        self.detached(|inner| async move { inner.put_key(key).await }).await
    }

    async fn keys(&self) -> Result<Vec<KeyView>> {
        self.detached(|inner| async move { inner.keys().await }).await
    }

    async fn revoke_key(&self, id: i64) -> Result<KeyView> {
        self.detached(|inner| async move { inner.revoke_key(id).await }).await
    }

    async fn keys_by_hash(&self, hashes: Vec<Vec<u8>>) -> Result<Vec<Option<KeyView>>> {
        self.detached(|inner| async move { inner.keys_by_hash(&hashes).await }).await
    }

    fn key_changes(&self) -> u64 {
        self.inner.shared.key_changes.count()
    }

    async fn keys_used(&self, ids: Vec<i64>, ago: Duration) -> Result<()> {
        self.detached(|inner| async move { inner.keys_used(&ids, ago).await }).await
    }
}

impl Inner {
    async fn put_key(&self, key: NewKey) -> Result<KeyView> {
        key.check()?;
        let scopes = &serde_json::Value::from(key.scopes.as_slice()).to_string();
        let client = key.client.map(Tsid::to_i64);
        let key = &key;
        let (sql, now) = (&self.sql.keys, self.now());
        // If the answer to the commit is lost, a key with this hash can only be this one: nobody else knows it.
        let put = self
            .write(
                |tx| async move { tx.row(&sql.put, &[&now, &key.hash, &key.name, scopes, &client]).await },
                |tx, _| async move { Ok(tx.row(&sql.by_hash, &[&vec![&key.hash]]).await?.is_some()) },
            )
            .await;
        self.shared.key_changes.add();
        put?.map_or_else(|| Err(Error::new(ErrorKind::Conflict, "this key is known already")), KeyView::try_from)
    }

    async fn keys(&self) -> Result<Vec<KeyView>> {
        let rows = self.read(|tx| async move { tx.rows(&self.sql.keys.all_keys, &[]).await }).await?;
        rows.into_iter().map(KeyView::try_from).collect()
    }

    async fn revoke_key(&self, id: i64) -> Result<KeyView> {
        let now = self.now();
        let revoked = self.write_again(|tx| async move { tx.row(&self.sql.keys.revoke, &[&now, &id]).await }).await;
        self.shared.key_changes.add();
        revoked?.map_or_else(|| Err(no_key(id)), KeyView::try_from)
    }

    async fn keys_by_hash(&self, hashes: &[Vec<u8>]) -> Result<Vec<Option<KeyView>>> {
        let rows = self.read(|tx| async move { tx.rows(&self.sql.keys.by_hash, &[&hashes]).await }).await?;
        let view = |(key, hash): (KeyRow, _)| Ok((hash, KeyView::try_from(key)?));
        let found = rows.into_iter().map(view).collect::<Result<Vec<_>>>()?;
        let of = |hash: &Vec<u8>| found.iter().find(|(of, _)| of.hash == *hash).map(|(_, view)| view.clone());
        Ok(hashes.iter().map(of).collect())
    }

    async fn keys_used(&self, ids: &[i64], ago: Duration) -> Result<()> {
        let ago = i64::try_from(ago.as_micros()).unwrap_or(i64::MAX);
        let now = self.now();
        self.write_again(|tx| async move { tx.execute(&self.sql.keys.used, &[&now, &ids, &ago]).await.map(drop) }).await
    }
}
