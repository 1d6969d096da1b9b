//! API keys: made, shown once, kept as hashes, remembered for a few seconds.
//!
//! A key is `tg_` and 43 characters that hold 256 random bits, so that a plain SHA-256 is as good as any slow hash.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::TryRngCore;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tidegate::{Error, ErrorKind, EventQueue, Timestamp, Tsid};
use tidegate_store::{KeyStore, KeyView};

use super::{Caller, Scope, Scopes};
use crate::error::{ApiError, Code, Result};

const PREFIX: &str = "tg_";
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const LENGTH: usize = 43;
/// A revocation on another node is noticed after this long at the latest.
const REMEMBERED: Duration = Duration::from_secs(2);
/// So many keys are remembered at most; beyond, the database is asked each time.
const MOST: usize = 10_000;

type Hash = [u8; 32];

/// A key that was just made.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// The secret. It is not kept anywhere and cannot be shown again.
    pub secret: String,
    /// What is kept of it.
    pub info: KeyInfo,
}

/// A key as it is kept.
#[derive(Debug, Clone, serde::Serialize)]
pub struct KeyInfo {
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

impl From<KeyView> for KeyInfo {
    fn from(key: KeyView) -> Self {
        Self {
            id: key.id,
            name: key.name,
            scopes: key.scopes,
            client: key.client,
            created_at: key.created_at,
            last_used_at: key.last_used_at,
            revoked_at: key.revoked_at,
        }
    }
}

/// Makes, lists, revokes and checks keys.
#[derive(Debug)]
pub struct Keyring {
    queue: EventQueue,
    known: Mutex<HashMap<Hash, Known>>,
    used: Mutex<HashSet<i64>>,
}

#[derive(Debug, Clone)]
struct Known {
    hash: Hash,
    /// `None`: there is no such key, or it is revoked.
    caller: Option<(i64, Caller)>,
    until: Instant,
}

impl Keyring {
    /// The keys of a database.
    #[must_use]
    pub fn new(queue: EventQueue) -> Self {
        Self { queue, known: Mutex::default(), used: Mutex::default() }
    }

    fn store(&self) -> tidegate::Result<&dyn KeyStore> {
        self.queue.keys()
    }

    /// Makes a key. The secret is in the answer and nowhere else.
    ///
    /// # Errors
    /// `Invalid` when no scope is named, else the store's.
    pub async fn create(&self, name: &str, scopes: &[Scope], client: Option<Tsid>) -> tidegate::Result<NewKey> {
        if scopes.is_empty() {
            return Err(Error::invalid(
                "a key without a scope could do nothing: name publish, consume, manage or admin",
            ));
        }
        tidegate_core::name::check_text("key name", name)?;
        let secret = secret()?;
        let scopes: Scopes = scopes.iter().copied().collect();
        let key = tidegate_store::NewKey {
            hash: hash(&secret).to_vec(),
            name: name.into(),
            scopes: scopes.list().into_iter().map(|scope| scope.as_str().into()).collect(),
            client,
        };
        Ok(NewKey { secret, info: self.store()?.put_key(key).await?.into() })
    }

    /// All keys, revoked ones too.
    ///
    /// # Errors
    /// The store's.
    pub async fn list(&self) -> tidegate::Result<Vec<KeyInfo>> {
        Ok(self.store()?.keys().await?.into_iter().map(Into::into).collect())
    }

    /// Revokes a key: at once here, within seconds on other nodes.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub async fn revoke(&self, id: i64) -> tidegate::Result<KeyInfo> {
        let key = self.store()?.revoke_key(id).await?;
        self.known().clear();
        Ok(key.into())
    }

    /// Who a key stands for.
    pub(crate) async fn check(&self, secret: &str) -> Result<Caller> {
        let unknown = || ApiError::new(Code::Unauthorized, "the key is not known, or was revoked");
        let hash = hash(secret);
        let remembered = self.known().get(&hash).filter(|known| known.until > Instant::now()).cloned();
        let known = match remembered {
            Some(known) => known,
            None => self.look_up(hash).await?,
        };
        // The table is found by hash; that it is the same hash is decided in constant time.
        if !bool::from(known.hash.ct_eq(&hash)) {
            return Err(unknown());
        }
        let (id, caller) = known.caller.ok_or_else(unknown)?;
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
        Ok(caller)
    }

    async fn look_up(&self, hash: Hash) -> Result<Known> {
        let found = self.store()?.key_by_hash(&hash).await?.filter(|key| key.revoked_at.is_none());
        let caller = found.map(|key| {
            let mut scopes = Scopes::default();
            key.scopes.iter().for_each(|scope| scopes.add(scope));
            (key.id, Caller { name: key.name, client: key.client, scopes })
        });
        let known = Known { hash, caller, until: Instant::now() + REMEMBERED };
        let mut all = self.known();
        if all.len() >= MOST {
            let now = Instant::now();
            all.retain(|_, known| known.until > now);
        }
        if all.len() < MOST {
            all.insert(hash, known.clone());
        }
        Ok(known)
    }

    /// Writes down which keys were used since the last time.
    pub(crate) async fn note_used(&self) {
        let used = std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner));
        if used.is_empty() {
            return;
        }
        let noted = match self.store() {
            Ok(store) => store.keys_used(used.into_iter().collect()).await,
            Err(error) => Err(error),
        };
        if let Err(error) = noted {
            tracing::debug!(%error, "the use of keys was not noted");
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Hash, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a bearer token is one of our keys.
pub(crate) fn looks_like_key(token: &str) -> bool {
    token.strip_prefix(PREFIX).is_some_and(|rest| rest.len() == LENGTH && rest.bytes().all(|c| LETTERS.contains(&c)))
}

fn hash(secret: &str) -> Hash {
    Sha256::digest(secret.as_bytes()).into()
}

fn secret() -> tidegate::Result<String> {
    let mut random = [0_u8; LENGTH];
    rand::rngs::OsRng
        .try_fill_bytes(&mut random)
        .map_err(|error| Error::new(ErrorKind::Unavailable, format!("the system gives no random numbers: {error}")))?;
    // 64 letters: six bits of each byte, 258 in all.
    let letters = random.iter().map(|byte| LETTERS[(byte & 63) as usize] as char);
    Ok(PREFIX.chars().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_look_like_keys_and_differ() {
        let (a, b) = (secret().unwrap(), secret().unwrap());
        assert!(looks_like_key(&a) && looks_like_key(&b));
        assert_ne!(a, b);
        assert_ne!(hash(&a), hash(&b));
        for other in ["", "tg_", "eyJhbGciOi.x.y", "tg_short", &a.replace("tg_", "xx_")] {
            assert!(!looks_like_key(other), "{other}");
        }
    }
}
