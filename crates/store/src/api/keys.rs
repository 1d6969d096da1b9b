//! API keys.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::values::{KeyView, NewKey};

/// Stores API keys.
#[async_trait]
pub trait KeyStore: Send + Sync {
    /// Adds a key. `Conflict` when a key with the same hash exists.
    async fn put_key(&self, key: NewKey) -> Result<KeyView>;

    /// All keys, including revoked ones, in the order of creation.
    async fn keys(&self) -> Result<Vec<KeyView>>;

    /// Revokes the key with this number. Revoking it again changes nothing; `NotFound` when there is no such key.
    async fn revoke_key(&self, id: i64) -> Result<KeyView>;

    /// The keys with these hashes, including revoked ones, in the order of the hashes.
    async fn keys_by_hash(&self, hashes: Vec<Vec<u8>>) -> Result<Vec<Option<KeyView>>>;

    /// How often this process has created or revoked keys. A lookup made before the last change may be outdated.
    fn key_changes(&self) -> u64;

    /// Records that these keys were last used `ago` before now. Called from time to time, not with every request.
    async fn keys_used(&self, ids: Vec<i64>, ago: Duration) -> Result<()>;
}
