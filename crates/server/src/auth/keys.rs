//! API keys: created, shown once, stored as hashes. A valid key is cached for exactly the catalogue version that it was
//! looked up under; every request reads that version, so a key that is revoked on any node is refused by the next request
//! on every node.
//!
//! Keys that are not cached are looked up in batches, one at a time, with a pause after a batch that found none: a flood
//! of made-up keys costs the database at most some 100 statements a second, and fills no cache.
//!
//! A key is `tg_` and 43 characters with 258 random bits, so a plain SHA-256 is as good as any slow hash.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::TryRngCore;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tidegate::{ApiKeys, CatalogueVersion, Error, ErrorKind, EventQueue, KeyView, Timestamp, Tsid};
use tokio::sync::oneshot;

use crate::access::Caller;
use crate::error::{ApiError, Code, Result};
use crate::scope::{Scope, Scopes};

const PREFIX: &str = "tg_";
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const LENGTH: usize = 43;
/// Known keys that are cached; further ones are looked up in the database each time.
const MAX_KNOWN: usize = 10_000;
/// Keys looked up by one statement.
const LOOKUP_BATCH: usize = 500;
/// Pause after a batch in which no key was found.
const LOOKUP_PAUSE: Duration = Duration::from_millis(20);
/// Keys that may wait to be looked up.
const MAX_WAITING: usize = 10_000;

type Hash = [u8; 32];

/// A key that was just created.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// The secret. It is not stored and cannot be shown again.
    pub secret: String,
    /// What is stored of the key.
    pub info: KeyInfo,
}

/// A key as it is stored, without its secret.
#[derive(Debug, Clone, serde::Serialize)]
pub struct KeyInfo {
    /// The number of the key, by which it is revoked.
    pub id: i64,
    /// A name for people, also shown as the actor in the audit.
    pub name: String,
    /// The scopes of the key.
    pub scopes: Vec<String>,
    /// The client that the key belongs to; `None` for an unscoped key, which sees all clients.
    pub client: Option<Tsid>,
    /// When the key was created.
    pub created_at: Timestamp,
    /// When the key was last used, to within some seconds; `None` if never.
    pub last_used_at: Option<Timestamp>,
    /// Until when the key is valid; `None` for ever.
    pub expires_at: Option<Timestamp>,
    /// When the key was revoked; `None` if it is valid.
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
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
        }
    }
}

/// Creates, lists, revokes and checks API keys.
#[derive(Debug)]
pub struct Keyring(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    queue: EventQueue,
    known: Mutex<HashMap<Hash, Known>>,
    lookups: Mutex<Lookups>,
    /// Keys used since the last [`note_used`](Keyring::note_used), and when.
    used: Mutex<HashMap<i64, Instant>>,
}

/// A valid key in the cache.
#[derive(Debug, Clone)]
struct Known {
    hash: Hash,
    id: i64,
    caller: Caller,
    /// Until when it is valid; `None` for ever.
    expires_at: Option<Timestamp>,
    /// The catalogue version that was read before the lookup.
    version: CatalogueVersion,
}

/// Keys that wait to be looked up.
#[derive(Debug, Default)]
struct Lookups {
    waiting: VecDeque<(Hash, oneshot::Sender<tidegate::Result<Option<Known>>>)>,
    /// Whether the task that looks them up is running.
    is_running: bool,
}

impl Keyring {
    /// The keys of a database.
    #[must_use]
    pub fn new(queue: EventQueue) -> Self {
        Self(Arc::new(Inner { queue, known: Mutex::default(), lookups: Mutex::default(), used: Mutex::default() }))
    }

    fn stored(&self) -> ApiKeys<'_> {
        self.0.queue.api_keys()
    }

    /// Creates a key. The secret is in the answer and nowhere else.
    ///
    /// # Errors
    /// `Invalid` when no scope is given or the name is not usable; otherwise the store's errors.
    pub async fn create(&self, name: &str, scopes: &[Scope], client: Option<Tsid>) -> tidegate::Result<NewKey> {
        self.create_until(name, scopes, client, None).await
    }

    /// As [`create`](Self::create), with the moment from which the key is refused.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub async fn create_until(
        &self,
        name: &str,
        scopes: &[Scope],
        client: Option<Tsid>,
        expires_at: Option<Timestamp>,
    ) -> tidegate::Result<NewKey> {
        if scopes.is_empty() {
            return Err(Error::invalid("a key needs at least one scope: publish, consume, read, manage or admin"));
        }
        tidegate_core::name::check_text("key name", name)?;
        let secret = secret()?;
        let scopes: Scopes = scopes.iter().copied().collect();
        let key = tidegate::NewKey {
            hash: hash(&secret).to_vec(),
            name: name.into(),
            scopes: scopes.list().into_iter().map(|scope| scope.as_str().into()).collect(),
            client,
            expires_at,
        };
        Ok(NewKey { secret, info: self.stored().add(key).await?.into() })
    }

    /// All keys, including revoked ones.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn list(&self) -> tidegate::Result<Vec<KeyInfo>> {
        Ok(self.stored().list().await?.into_iter().map(Into::into).collect())
    }

    /// Revokes a key: the next request under it is refused, on every node.
    ///
    /// # Errors
    /// `NotFound` when there is no such key.
    pub async fn revoke(&self, id: i64) -> tidegate::Result<KeyInfo> {
        Ok(self.stored().revoke(id).await?.into())
    }

    /// The caller that a key belongs to. 401 when the key is unknown, revoked or expired.
    pub(crate) async fn check(&self, secret: &str) -> Result<Caller> {
        let hash = hash(secret);
        let cached = lock(&self.0.known).get(&hash).cloned();
        let known = match cached {
            Some(known) if known.version == self.0.queue.catalogue_version().await? => Some(known),
            stale => self.look_up(hash, stale.is_some()).await?,
        };
        // Lookups are by hash; that it is the same hash is compared in constant time.
        let known = known.filter(|known| bool::from(known.hash.ct_eq(&hash)));
        let known = known.filter(|known| known.expires_at.is_none_or(|at| at > Timestamp::now()));
        let refused = || ApiError::new(Code::Unauthorized, "the key is not known, was revoked or has expired");
        let known = known.ok_or_else(refused)?;
        lock(&self.0.used).insert(known.id, Instant::now());
        Ok(known.caller.at(known.version))
    }

    /// Queues a lookup and waits for its result. A key that was valid a moment ago goes first, so that made-up keys do
    /// not delay it.
    async fn look_up(&self, hash: Hash, was_known: bool) -> Result<Option<Known>> {
        let (answer, found) = oneshot::channel();
        {
            let mut lookups = lock(&self.0.lookups);
            if lookups.waiting.len() >= MAX_WAITING && !was_known {
                return Err(ApiError::new(Code::Busy, "too many unknown keys at once; try again"));
            }
            if was_known {
                lookups.waiting.push_front((hash, answer));
            } else {
                lookups.waiting.push_back((hash, answer));
            }
            if !lookups.is_running {
                lookups.is_running = true;
                tokio::spawn(run_lookups(Arc::clone(&self.0)));
            }
        }
        let lost = |_| ApiError::new(Code::Unavailable, "the key could not be looked up; try again");
        Ok(found.await.map_err(lost)??)
    }

    /// Writes to the store which keys were used since the last call.
    pub(crate) async fn note_used(&self) {
        let used = std::mem::take(&mut *lock(&self.0.used));
        if used.is_empty() {
            return;
        }
        // Grouped by age in seconds: keys used at about the same time share a statement.
        let mut by_age: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
        for (id, at) in used {
            by_age.entry(at.elapsed().as_secs()).or_default().push(id);
        }
        for (seconds, ids) in by_age {
            if let Err(error) = self.stored().used(ids, Duration::from_secs(seconds)).await {
                tracing::debug!(%error, "writing when keys were last used failed");
            }
        }
    }
}

/// Clears `is_running` when the lookup task panics, so that the next key starts a new one.
struct Running(Arc<Inner>);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(&self.0.lookups).is_running = false;
        }
    }
}

/// Looks up waiting keys in batches until none waits.
async fn run_lookups(keyring: Arc<Inner>) {
    let running = Running(keyring);
    let keyring = &running.0;
    loop {
        let batch: Vec<_> = {
            let mut lookups = lock(&keyring.lookups);
            let count = lookups.waiting.len().min(LOOKUP_BATCH);
            lookups.is_running = count > 0;
            lookups.waiting.drain(..count).collect()
        };
        if batch.is_empty() {
            return;
        }
        let (hashes, answers): (Vec<Hash>, Vec<_>) = batch.into_iter().unzip();
        let found = keyring.find(&hashes).await;
        let any = found.as_ref().is_ok_and(|found| found.iter().any(Option::is_some));
        for (index, answer) in answers.into_iter().enumerate() {
            let found = found.as_ref().map(|found| found.get(index).cloned().flatten()).map_err(Clone::clone);
            let _ = answer.send(found); // the request may be gone
        }
        if !any {
            tokio::time::sleep(LOOKUP_PAUSE).await;
        }
    }
}

impl Inner {
    async fn find(&self, hashes: &[Hash]) -> tidegate::Result<Vec<Option<Known>>> {
        // Read before the lookup, so that a change during it makes the result stale.
        let version = self.queue.catalogue_version().await?;
        let views = self.queue.api_keys().by_hash(hashes.iter().map(|hash| hash.to_vec()).collect()).await?;
        let read = |(hash, view): (&Hash, Option<KeyView>)| {
            let key = view.filter(|key| key.revoked_at.is_none())?;
            let mut scopes = Scopes::default();
            key.scopes.iter().for_each(|scope| scopes.add(scope));
            let caller = Caller::new(key.name, key.client, scopes);
            Some(Known { hash: *hash, id: key.id, caller, expires_at: key.expires_at, version })
        };
        let found: Vec<Option<Known>> = hashes.iter().zip(views).map(read).collect();
        self.remember(hashes, &found, version);
        Ok(found)
    }

    fn remember(&self, hashes: &[Hash], found: &[Option<Known>], version: CatalogueVersion) {
        let mut known = lock(&self.known);
        if known.len() >= MAX_KNOWN {
            known.retain(|_, known| known.version == version);
        }
        for (hash, found) in hashes.iter().zip(found) {
            match found {
                Some(found) if known.len() < MAX_KNOWN => drop(known.insert(*hash, found.clone())),
                Some(_) => {}
                None => drop(known.remove(hash)),
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a bearer token has the form of an API key.
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
    // 64 letters: six bits of each byte, 258 bits in all.
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
