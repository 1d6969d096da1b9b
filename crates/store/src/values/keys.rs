//! API keys as they are stored and shown. A key is a resource of kind [`KIND`]; its code is the hash of its secret.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tidegate_core::{Timestamp, Tsid};

use crate::error::{Error, ErrorKind, Result};
use crate::values::PutResource;

/// The kind of resource that API keys are.
pub(crate) const KIND: &str = "key";

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
    /// Until when it is valid; `None` for ever.
    pub expires_at: Option<Timestamp>,
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
    /// Until when it is valid; `None` for ever.
    pub expires_at: Option<Timestamp>,
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

    /// The resource to create for it, under a number that was drawn for it.
    pub(crate) fn resource(&self, number: i64) -> Result<PutResource> {
        let stored = StoredKey {
            name: self.name.clone(),
            scopes: self.scopes.clone(),
            client: self.client.map(Tsid::to_i64),
            expires_at: self.expires_at.map(Timestamp::as_microsecond),
            revoked_at: None,
        };
        let (id, kind, code) = (Some(Tsid::from_i64(number)), KIND.to_owned(), code(&self.hash));
        Ok(PutResource::Create { id, kind, client: None, code, body: stored.body()? })
    }
}

/// The body of a key's resource. Moments are microseconds since 1970.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StoredKey {
    name: String,
    scopes: Vec<String>,
    client: Option<i64>,
    expires_at: Option<i64>,
    pub(crate) revoked_at: Option<i64>,
}

impl StoredKey {
    pub(crate) fn read(body: &str) -> Result<Self> {
        let damaged = |error| Error::new(ErrorKind::Corrupt, "a stored key cannot be read").with_source(error);
        serde_json::from_str(body).map_err(damaged)
    }

    pub(crate) fn body(&self) -> Result<String> {
        let failed = |error| Error::new(ErrorKind::Corrupt, "a key cannot be written").with_source(error);
        serde_json::to_string(self).map_err(failed)
    }

    /// The key as callers see it.
    pub(crate) fn view(self, id: i64, created_at: Timestamp, last_used_at: Option<Timestamp>) -> Result<KeyView> {
        Ok(KeyView {
            id,
            name: self.name,
            scopes: self.scopes,
            client: self.client.map(Tsid::from_i64),
            created_at,
            last_used_at,
            expires_at: self.expires_at.map(moment).transpose()?,
            revoked_at: self.revoked_at.map(moment).transpose()?,
        })
    }
}

/// A key that was looked up or listed. One that cannot be read is logged and counts as unknown: others are not at fault.
pub(crate) fn readable(id: i64, key: Result<KeyView>) -> Option<KeyView> {
    key.inspect_err(|error| tracing::error!(key = id, %error, "a stored key cannot be read: it is ignored")).ok()
}

fn moment(micros: i64) -> Result<Timestamp> {
    let damaged = |error| Error::new(ErrorKind::Corrupt, "a stored key has a bad moment").with_source(error);
    Timestamp::from_microsecond(micros).map_err(damaged)
}

/// The code of a key's resource: its hash in hexadecimal digits.
pub(crate) fn code(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The error for a key whose hash is stored already.
pub(crate) fn known_key(error: Error) -> Error {
    if error.kind() == ErrorKind::Conflict {
        Error::new(ErrorKind::Conflict, "this key is known already")
    } else {
        error
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
