//! API keys on SQLite. Stores and finds keys by their hash; never sees a key itself.

use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::Tsid;

use crate::api::KeyStore;
use crate::error::Result;
use crate::resources::Plan;
use crate::sqlite::engine::errors::damaged;
use crate::sqlite::engine::jobs::Urgency;
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::resources;
use crate::values::keys::{KIND, StoredKey, code, known_key, no_key, readable};
use crate::values::{KeyView, NewKey, PutResource, Resource};

#[async_trait]
impl KeyStore for SqliteStore {
    async fn put_key(&self, key: NewKey) -> Result<KeyView> {
        let put = self.write(Urgency::Publish, move |tx| put(tx, &key)).await;
        self.inner.key_changes.add();
        put
    }

    async fn keys(&self) -> Result<Vec<KeyView>> {
        self.read(|tx| {
            let rows = tx.rows(&tx.sql().keys.all_keys, [])?;
            Ok(rows.into_iter().filter_map(|key| readable(key.id, key.try_into())).collect())
        })
        .await
    }

    async fn revoke_key(&self, id: i64) -> Result<KeyView> {
        let revoked = self.write(Urgency::Publish, move |tx| revoke(tx, id)).await;
        self.inner.key_changes.add();
        revoked
    }

    async fn keys_by_hash(&self, hashes: Vec<Vec<u8>>) -> Result<Vec<Option<KeyView>>> {
        self.read(move |tx| {
            let find = |hash: &Vec<u8>| {
                let found = tx.row(&tx.sql().keys.by_code, [code(hash)])?;
                Ok(found.and_then(|key| readable(key.id, key.try_into())))
            };
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
    let number = tx.number(&tx.sql().keys.draw_number)?;
    let put = resources::put(tx, &[key.resource(number)?])?.pop();
    let put = put.unwrap_or_else(|| Err(damaged("the key was not written"))).map_err(known_key)?;
    StoredKey::read(&put.body)?.view(put.id.to_i64(), put.created_at, None)
}

/// Revokes a key; one that is revoked stays as it is.
fn revoke(tx: &Tx<'_>, id: i64) -> Result<KeyView> {
    let found = tx.row(&tx.sql().resources.by_id, [id])?.map(Resource::from);
    let found = found.filter(|found| found.kind == KIND && !found.deleted).ok_or_else(|| no_key(id))?;
    let mut stored = StoredKey::read(&found.body)?;
    if stored.revoked_at.is_none() {
        stored.revoked_at = Some(tx.now);
        let mut plan = Plan::new([found]);
        let (id, kind, body) = (Tsid::from_i64(id), KIND.to_owned(), stored.body()?);
        plan.put(&PutResource::Change { id, kind, expected: None, body }, &mut std::iter::empty())?;
        resources::write(tx, &mut plan)?;
    }
    tx.row(&tx.sql().keys.by_id, [id])?.map_or_else(|| Err(no_key(id)), KeyView::try_from)
}
