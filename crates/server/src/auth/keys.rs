//! API keys: created, shown once, stored as hashes, cached for two seconds.
//!
//! Keys that are not cached are looked up in batches, one statement at a time, with a pause after a batch that found
//! none: a flood of made-up keys costs the database at most some 50 statements a second, and fills only bounded caches.
//!
//! A key is `tg_` and 43 characters with 258 random bits, so a plain SHA-256 is as good as any slow hash.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::TryRngCore;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tidegate::{ApiKeys, Error, ErrorKind, EventQueue, KeyView, Timestamp, Tsid};
use tokio::sync::oneshot;

use crate::access::Caller;
use crate::error::{ApiError, Code, Result};
use crate::scope::{Scope, Scopes};

const PREFIX: &str = "tg_";
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const LENGTH: usize = 43;
/// How long a known key is cached: a revocation on another node is noticed within this time.
const KNOWN_FOR: Duration = Duration::from_secs(2);
/// Known keys that are cached; further ones are looked up in the database each time.
const MAX_KNOWN: usize = 10_000;
/// How long an unknown key is refused without a lookup.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);
/// Slots of the cache of unknown keys. A key can only take the slot of its hash, so the cache stays bounded.
const UNKNOWN_SLOTS: usize = 1_024;
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
    unknown: Mutex<Vec<Option<Unknown>>>,
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
    until: Instant,
    /// [`ApiKeys::changes`] at the lookup. A later change in this process makes the cached key stale.
    changes: u64,
}

/// A key in the cache that does not exist or is revoked.
#[derive(Debug, Clone, Copy)]
struct Unknown {
    hash: Hash,
    until: Instant,
    changes: u64,
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
        Self(Arc::new(Inner {
            queue,
            known: Mutex::default(),
            unknown: Mutex::new(vec![None; UNKNOWN_SLOTS]),
            lookups: Mutex::default(),
            used: Mutex::default(),
        }))
    }

    fn stored(&self) -> ApiKeys<'_> {
        self.0.queue.api_keys()
    }

    /// Creates a key. The secret is in the answer and nowhere else.
    ///
    /// # Errors
    /// `Invalid` when no scope is given or the name is not usable; otherwise the store's errors.
    pub async fn create(&self, name: &str, scopes: &[Scope], client: Option<Tsid>) -> tidegate::Result<NewKey> {
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

    /// Revokes a key: at once in every server that shares this queue's store, within two seconds on other nodes.
    ///
    /// # Errors
    /// `NotFound` when there is no such key.
    pub async fn revoke(&self, id: i64) -> tidegate::Result<KeyInfo> {
        Ok(self.stored().revoke(id).await?.into())
    }

    /// The caller that a key belongs to. 401 when the key is unknown or revoked.
    pub(crate) async fn check(&self, secret: &str) -> Result<Caller> {
        let hash = hash(secret);
        let known = match self.cached(&hash)? {
            Cached::Known(known) => Some(known),
            Cached::Unknown => None,
            Cached::Not { was_known } => self.look_up(hash, was_known).await?,
        };
        // Lookups are by hash; that it is the same hash is compared in constant time.
        let known = known.filter(|known| bool::from(known.hash.ct_eq(&hash)));
        let known = known.ok_or_else(|| ApiError::new(Code::Unauthorized, "the key is not known, or was revoked"))?;
        lock(&self.0.used).insert(known.id, Instant::now());
        Ok(known.caller)
    }

    fn cached(&self, hash: &Hash) -> Result<Cached> {
        let (now, changes) = (Instant::now(), self.stored().changes());
        let known = lock(&self.0.known).get(hash).cloned();
        if let Some(known) = known {
            let is_fresh = known.until > now && known.changes == changes;
            return Ok(if is_fresh { Cached::Known(known) } else { Cached::Not { was_known: true } });
        }
        let unknown = lock(&self.0.unknown)[slot(hash)];
        let is_fresh = |unknown: Unknown| unknown.hash == *hash && unknown.until > now && unknown.changes == changes;
        Ok(if unknown.is_some_and(is_fresh) { Cached::Unknown } else { Cached::Not { was_known: false } })
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

/// What the caches say of a key. `Not`: look it up; `was_known` when a stale cache entry says that it was valid.
enum Cached {
    Known(Known),
    Unknown,
    Not { was_known: bool },
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
        let stored = self.queue.api_keys();
        // Read before the lookup, so that a change during it makes the result stale.
        let changes = stored.changes();
        let views = stored.by_hash(hashes.iter().map(|hash| hash.to_vec()).collect()).await?;
        let now = Instant::now();
        let read = |(hash, view): (&Hash, Option<KeyView>)| {
            let key = view.filter(|key| key.revoked_at.is_none())?;
            let mut scopes = Scopes::default();
            key.scopes.iter().for_each(|scope| scopes.add(scope));
            let caller = Caller::new(key.name, key.client, scopes);
            Some(Known { hash: *hash, id: key.id, caller, until: now + KNOWN_FOR, changes })
        };
        let found: Vec<Option<Known>> = hashes.iter().zip(views).map(read).collect();
        self.remember(hashes, &found, now, changes);
        Ok(found)
    }

    fn remember(&self, hashes: &[Hash], found: &[Option<Known>], now: Instant, changes: u64) {
        let mut known = lock(&self.known);
        let mut unknown = lock(&self.unknown);
        if known.len() >= MAX_KNOWN {
            known.retain(|_, known| known.until > now);
        }
        for (hash, found) in hashes.iter().zip(found) {
            match found {
                Some(found) if known.len() < MAX_KNOWN => drop(known.insert(*hash, found.clone())),
                Some(_) => {}
                None => {
                    known.remove(hash);
                    unknown[slot(hash)] = Some(Unknown { hash: *hash, until: now + UNKNOWN_FOR, changes });
                }
            }
        }
    }
}

/// The slot of an unknown key in its cache.
fn slot(hash: &Hash) -> usize {
    usize::from(u16::from_le_bytes([hash[0], hash[1]])) % UNKNOWN_SLOTS
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
