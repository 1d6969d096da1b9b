//! API keys on PostgreSQL. Stores and finds keys by their hash; never sees a key itself.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::Tsid;

use crate::api::KeyStore;
use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::{Inner, PostgresStore};
use crate::postgres::statements::keys::KeyRow;
use crate::resources::Plan;
use crate::sql::Only;
use crate::values::keys::{KIND, StoredKey, code, known_key, no_key, readable};
use crate::values::{KeyView, NewKey, PutResource, Resource};

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
        let drawn = self.read(|tx| async move { tx.row(&self.sql.keys.draw_number, &[]).await }).await?;
        let Only(number) = drawn.ok_or_else(|| Error::new(ErrorKind::Corrupt, "no number was drawn"))?;
        let put = self.put_resources(&[key.resource(number)?]).await;
        self.shared.key_changes.add();
        let put = put?.pop().unwrap_or_else(|| Err(Error::new(ErrorKind::Corrupt, "the key was not written")));
        let put = put.map_err(known_key)?;
        StoredKey::read(&put.body)?.view(put.id.to_i64(), put.created_at, None)
    }

    async fn keys(&self) -> Result<Vec<KeyView>> {
        let rows = self.read(|tx| async move { tx.rows(&self.sql.keys.all_keys, &[]).await }).await?;
        Ok(rows.into_iter().filter_map(|key| readable(key.id, key.try_into())).collect())
    }

    async fn revoke_key(&self, id: i64) -> Result<KeyView> {
        let revoked = self.write_again(|tx| async move { self.revoke_key_in(&tx, id).await }).await;
        self.shared.key_changes.add();
        revoked
    }

    /// Revokes a key; one that is revoked stays as it is.
    async fn revoke_key_in(&self, tx: &Tx, id: i64) -> Result<KeyView, Fault> {
        let found = tx.row(&self.sql.resources.lock, &[&vec![id]]).await?.map(Resource::from);
        let found = found.filter(|found| found.kind == KIND && !found.deleted).ok_or_else(|| no_key(id))?;
        let mut stored = StoredKey::read(&found.body)?;
        if stored.revoked_at.is_none() {
            let now = tx.row(&self.sql.keys.moment, &[&self.now()]).await?;
            stored.revoked_at = now.map(|Only(now)| now.0.as_microsecond());
            let mut plan = Plan::new([found]);
            let (id, kind, body) = (Tsid::from_i64(id), KIND.to_owned(), stored.body()?);
            plan.put(&PutResource::Change { id, kind, expected: None, body }, &mut std::iter::empty())?;
            self.write_plan(tx, &mut plan).await?;
        }
        let revoked = tx.row(&self.sql.keys.by_id, &[&id]).await?.ok_or_else(|| no_key(id))?;
        Ok(revoked.try_into()?)
    }

    async fn keys_by_hash(&self, hashes: &[Vec<u8>]) -> Result<Vec<Option<KeyView>>> {
        let codes: &Vec<String> = &hashes.iter().map(|hash| code(hash)).collect();
        let rows = self.read(|tx| async move { tx.rows(&self.sql.keys.by_code, &[codes]).await }).await?;
        let view = |mut key: KeyRow| Some((std::mem::take(&mut key.code), readable(key.id, key.try_into())?));
        let found: HashMap<String, KeyView> = rows.into_iter().filter_map(view).collect();
        Ok(codes.iter().map(|code| found.get(code).cloned()).collect())
    }

    async fn keys_used(&self, ids: &[i64], ago: Duration) -> Result<()> {
        let ago = i64::try_from(ago.as_micros()).unwrap_or(i64::MAX);
        let now = self.now();
        self.write_again(|tx| async move { tx.execute(&self.sql.keys.used, &[&now, &ids, &ago]).await.map(drop) }).await
    }
}
