//! API keys as a store keeps them: only their hashes. Knows nothing of requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::{Timestamp, Tsid};

use crate::error::{Error, ErrorKind, Result};

/// Keeps API keys.
#[async_trait]
pub trait KeyStore: Send + Sync {
    /// Keeps a new key. `Conflict` when its hash is known already.
    async fn put_key(&self, key: NewKey) -> Result<KeyView>;

    /// All keys, revoked ones too, in the order they were made.
    async fn keys(&self) -> Result<Vec<KeyView>>;

    /// Revokes a key, by its number. A repeat is fine; `NotFound` when there is none.
    async fn revoke_key(&self, id: i64) -> Result<KeyView>;

    /// The keys with these hashes, also revoked ones, in the order asked.
    async fn keys_by_hash(&self, hashes: Vec<Vec<u8>>) -> Result<Vec<Option<KeyView>>>;

    /// How often keys were made or revoked, as far as this process knows. What was looked up before the last change may be
    /// old.
    fn key_changes(&self) -> u64;

    /// Notes that keys were used so long ago. Called now and then, not with every request.
    async fn keys_used(&self, ids: Vec<i64>, ago: Duration) -> Result<()>;
}

/// A key to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// The hash of the secret, at most 64 bytes.
    pub hash: Vec<u8>,
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<String>,
    /// Whose it is; `None` is the anchor level.
    pub client: Option<Tsid>,
}

/// A key as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyView {
    /// Its number.
    pub id: i64,
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<String>,
    /// Whose it is; `None` is the anchor level.
    pub client: Option<Tsid>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last used, roughly.
    pub last_used_at: Option<Timestamp>,
    /// Since when it is revoked.
    pub revoked_at: Option<Timestamp>,
}

impl NewKey {
    /// Checks what can be checked without a database.
    pub(crate) fn check(&self) -> Result<()> {
        tidegate_core::name::check_text("key name", &self.name)?;
        for scope in &self.scopes {
            tidegate_core::name::check_text("scope", scope)?;
        }
        if self.hash.is_empty() || self.hash.len() > 64 {
            return Err(Error::invalid("a key's hash must have 1 to 64 bytes"));
        }
        Ok(())
    }
}

/// No such key.
pub(crate) fn no_key(id: i64) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no key {id}"))
}

/// Counts changes of keys in this process.
#[derive(Debug, Default)]
pub(crate) struct KeyChanges(AtomicU64);

impl KeyChanges {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
