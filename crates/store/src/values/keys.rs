//! API keys as they are stored and shown.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Timestamp, Tsid};

use crate::error::{Error, ErrorKind, Result};

/// A key to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// The hash of the secret, at most 64 bytes.
    pub hash: Vec<u8>,
    /// A name for people.
    pub name: String,
    /// The scopes it grants.
    pub scopes: Vec<String>,
    /// The client it belongs to; `None` for an unscoped caller.
    pub client: Option<Tsid>,
}

/// A stored key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyView {
    /// Its number, by which it is revoked.
    pub id: i64,
    /// A name for people.
    pub name: String,
    /// The scopes it grants.
    pub scopes: Vec<String>,
    /// The client it belongs to; `None` for an unscoped caller.
    pub client: Option<Tsid>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last used, approximately; `None` if never.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked; `None` while it is valid.
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

/// The error for a key that does not exist.
pub(crate) fn no_key(id: i64) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no key {id}"))
}

/// Counts the changes of keys made by this process.
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
