//! API keys: stored, looked up and revoked. Keys are known by their hashes; secrets never come here.

use std::time::Duration;

use tidegate_store::{KeyStore, KeyView, NewKey};

use crate::error::Result;
use crate::queue::EventQueue;

/// The API keys of a database; see [`EventQueue::api_keys`].
#[derive(Clone, Copy)]
pub struct ApiKeys<'a>(&'a dyn KeyStore);

impl std::fmt::Debug for ApiKeys<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiKeys").field("changes", &self.changes()).finish()
    }
}

impl EventQueue {
    /// The API keys of the database.
    #[must_use]
    pub fn api_keys(&self) -> ApiKeys<'_> {
        ApiKeys(self.shared().store.as_ref())
    }
}

impl ApiKeys<'_> {
    /// Adds a key.
    ///
    /// # Errors
    /// `Conflict` when a key with the same hash exists, or any error of the store.
    pub async fn add(&self, key: NewKey) -> Result<KeyView> {
        self.0.put_key(key).await
    }

    /// All keys, including revoked ones, in the order of creation.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn list(&self) -> Result<Vec<KeyView>> {
        self.0.keys().await
    }

    /// Revokes the key with this number. Revoking it again changes nothing.
    ///
    /// # Errors
    /// `NotFound` when there is no such key, or any error of the store.
    pub async fn revoke(&self, id: i64) -> Result<KeyView> {
        self.0.revoke_key(id).await
    }

    /// The keys with these hashes, including revoked ones, in the order of the hashes.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn by_hash(&self, hashes: Vec<Vec<u8>>) -> Result<Vec<Option<KeyView>>> {
        self.0.keys_by_hash(hashes).await
    }

    /// How often this process has added or revoked keys. A lookup made before the last change may be outdated.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.0.key_changes()
    }

    /// Records that these keys were last used `ago` before now. To be called from time to time, not with every request.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn used(&self, ids: Vec<i64>, ago: Duration) -> Result<()> {
        self.0.keys_used(ids, ago).await
    }
}
