//! API keys on SQLite. Stores and finds keys by their hash; never sees a key itself.

use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::Tsid;

use crate::api::KeyStore;
use crate::error::{Error, ErrorKind, Result};
use crate::sqlite::engine::jobs::Urgency;
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::Tx;
use crate::values::keys::no_key;
use crate::values::{KeyView, NewKey};

#[async_trait]
impl KeyStore for SqliteStore {
    async fn put_key(&self, key: NewKey) -> Result<KeyView> {
        let put = self.write(Urgency::Publish, move |tx| put(tx, &key)).await;
        self.inner.key_changes.add();
        put
    }

    async fn keys(&self) -> Result<Vec<KeyView>> {
        self.read(|tx| tx.rows(&tx.sql().keys.all_keys, [])?.into_iter().map(KeyView::try_from).collect()).await
    }

    async fn revoke_key(&self, id: i64) -> Result<KeyView> {
        let revoked = self.write(Urgency::Publish, move |tx| {
            tx.row(&tx.sql().keys.revoke, (id, tx.now))?.map_or_else(|| Err(no_key(id)), KeyView::try_from)
        });
        let revoked = revoked.await;
        self.inner.key_changes.add();
        revoked
    }

    async fn keys_by_hash(&self, hashes: Vec<Vec<u8>>) -> Result<Vec<Option<KeyView>>> {
        self.read(move |tx| {
            let find = |hash| tx.row(&tx.sql().keys.by_hash, [hash])?.map(KeyView::try_from).transpose();
            hashes.iter().map(find).collect()
        })
        .await
    }

    fn key_changes(&self) -> u64 {
        self.inner.key_changes.count()
    }

    async fn keys_used(&self, ids: Vec<i64>, ago: Duration) -> Result<()> {
        let ago = i64::try_from(ago.as_micros()).unwrap_or(i64::MAX);
        self.write(Urgency::Publish, move |tx| {
            for id in ids {
                tx.execute(&tx.sql().keys.used, (id, tx.now.saturating_sub(ago)))?;
            }
            Ok(())
        })
        .await
    }
}

fn put(tx: &Tx<'_>, key: &NewKey) -> Result<KeyView> {
    key.check()?;
    let scopes = serde_json::Value::from(key.scopes.as_slice()).to_string();
    let client = key.client.map(Tsid::to_i64);
    let put = tx.row(&tx.sql().keys.put, (&key.hash, &key.name, &scopes, client, tx.now))?;
    put.map_or_else(|| Err(Error::new(ErrorKind::Conflict, "this key is known already")), KeyView::try_from)
}
