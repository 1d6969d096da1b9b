//! API keys: made, shown once, kept as hashes, remembered for a few seconds.
//!
//! Keys that are not remembered are looked up together, one statement at a time, so that a flood of made-up keys costs the
//! database a few statements a second. What such a flood can make this remember is bounded.
//!
//! A key is `tg_` and 43 characters that hold 256 random bits, so that a plain SHA-256 is as good as any slow hash.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::TryRngCore;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tidegate::{Error, ErrorKind, EventQueue, Timestamp, Tsid};
use tidegate_store::{KeyStore, KeyView};
use tokio::sync::oneshot;

use super::{Caller, Scope, Scopes};
use crate::error::{ApiError, Code, Result};

const PREFIX: &str = "tg_";
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const LENGTH: usize = 43;
/// A revocation on another node is noticed after this long at the latest.
const REMEMBERED: Duration = Duration::from_secs(2);
/// So many keys are remembered at most; beyond, the database is asked each time.
const MOST: usize = 10_000;
/// A key that there is none of is refused without a look for this long.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);
/// Places for such keys. Each has one place, so that made-up ones only push out each other.
const UNKNOWN: usize = 1_024;
/// Keys looked up by one statement,
const LOOKED_UP: usize = 500;
/// the pause after one that found none,
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// and keys that may wait for it.
const MAX_WAITING: usize = 10_000;

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
pub struct Keyring(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    queue: EventQueue,
    known: Mutex<HashMap<Hash, Known>>,
    unknown: Mutex<Vec<Option<Unknown>>>,
    looking: Mutex<Looking>,
    used: Mutex<HashMap<i64, Instant>>,
}

/// A key that was found.
#[derive(Debug, Clone)]
struct Known {
    hash: Hash,
    id: i64,
    caller: Caller,
    until: Instant,
    /// Changes of keys in this process when it was looked up.
    changes: u64,
}

/// A key that was not found, or is revoked.
#[derive(Debug, Clone, Copy)]
struct Unknown {
    hash: Hash,
    until: Instant,
    changes: u64,
}

/// Keys that wait to be looked up.
#[derive(Debug, Default)]
struct Looking {
    waiting: VecDeque<(Hash, oneshot::Sender<tidegate::Result<Option<Known>>>)>,
    is_running: bool,
}

impl Keyring {
    /// The keys of a database.
    #[must_use]
    pub fn new(queue: EventQueue) -> Self {
        Self(Arc::new(Inner {
            queue,
            known: Mutex::default(),
            unknown: Mutex::new(vec![None; UNKNOWN]),
            looking: Mutex::default(),
            used: Mutex::default(),
        }))
    }

    fn store(&self) -> tidegate::Result<&dyn KeyStore> {
        self.0.queue.keys()
    }

    /// Makes a key. The secret is in the answer and nowhere else.
    ///
    /// # Errors
    /// `Invalid` when no scope is named, else the store's.
    pub async fn create(&self, name: &str, scopes: &[Scope], client: Option<Tsid>) -> tidegate::Result<NewKey> {
        if scopes.is_empty() {
            return Err(Error::invalid(
                "a key without a scope could do nothing: name publish, consume, read, manage or admin",
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

    /// Revokes a key: at once for everybody who shares this queue's handle, within seconds on other nodes.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub async fn revoke(&self, id: i64) -> tidegate::Result<KeyInfo> {
        Ok(self.store()?.revoke_key(id).await?.into())
    }

    /// Who a key stands for.
    pub(crate) async fn check(&self, secret: &str) -> Result<Caller> {
        let hash = hash(secret);
        let known = match self.remembered(&hash)? {
            Remembered::Known(known) => Some(known),
            Remembered::Unknown => None,
            Remembered::Not { was_known } => self.look_up(hash, was_known).await?,
        };
        // The table is found by hash; that it is the same hash is decided in constant time.
        let known = known.filter(|known| bool::from(known.hash.ct_eq(&hash)));
        let known = known.ok_or_else(|| ApiError::new(Code::Unauthorized, "the key is not known, or was revoked"))?;
        lock(&self.0.used).insert(known.id, Instant::now());
        Ok(known.caller)
    }

    fn remembered(&self, hash: &Hash) -> Result<Remembered> {
        let (now, changes) = (Instant::now(), self.store()?.key_changes());
        let known = lock(&self.0.known).get(hash).cloned();
        if let Some(known) = known {
            let stands = known.until > now && known.changes == changes;
            return Ok(if stands { Remembered::Known(known) } else { Remembered::Not { was_known: true } });
        }
        let unknown = lock(&self.0.unknown)[place(hash)];
        let stands = |unknown: Unknown| unknown.hash == *hash && unknown.until > now && unknown.changes == changes;
        Ok(if unknown.is_some_and(stands) { Remembered::Unknown } else { Remembered::Not { was_known: false } })
    }

    /// Waits for the look that finds this key. One that was good a moment ago goes first: made-up keys do not hold it up.
    async fn look_up(&self, hash: Hash, was_known: bool) -> Result<Option<Known>> {
        let (answer, found) = oneshot::channel();
        {
            let mut looking = lock(&self.0.looking);
            if looking.waiting.len() >= MAX_WAITING && !was_known {
                return Err(ApiError::new(Code::Busy, "too many unknown keys at once; try again"));
            }
            if was_known {
                looking.waiting.push_front((hash, answer));
            } else {
                looking.waiting.push_back((hash, answer));
            }
            if !looking.is_running {
                looking.is_running = true;
                tokio::spawn(look(Arc::clone(&self.0)));
            }
        }
        let lost = |_| ApiError::new(Code::Unavailable, "the key could not be looked up; try again");
        Ok(found.await.map_err(lost)??)
    }

    /// Writes down which keys were used since the last time.
    pub(crate) async fn note_used(&self) {
        let used = std::mem::take(&mut *lock(&self.0.used));
        if used.is_empty() {
            return;
        }
        // By the second: keys that were used at about the same time share a statement.
        let mut by_age: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
        for (id, at) in used {
            by_age.entry(at.elapsed().as_secs()).or_default().push(id);
        }
        for (seconds, ids) in by_age {
            let noted = match self.store() {
                Ok(store) => store.keys_used(ids, Duration::from_secs(seconds)).await,
                Err(error) => Err(error),
            };
            if let Err(error) = noted {
                tracing::debug!(%error, "the use of keys was not noted");
            }
        }
    }
}

/// What is remembered of a key.
enum Remembered {
    Known(Known),
    Unknown,
    Not { was_known: bool },
}

/// Lets the next key start a new look, should this one panic.
struct Running(Arc<Inner>);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(&self.0.looking).is_running = false;
        }
    }
}

/// Looks keys up until none waits.
async fn look(ring: Arc<Inner>) {
    let running = Running(ring);
    let ring = &running.0;
    loop {
        let batch: Vec<_> = {
            let mut looking = lock(&ring.looking);
            let count = looking.waiting.len().min(LOOKED_UP);
            looking.is_running = count > 0;
            looking.waiting.drain(..count).collect()
        };
        if batch.is_empty() {
            return;
        }
        let (hashes, answers): (Vec<Hash>, Vec<_>) = batch.into_iter().unzip();
        let found = ring.find(&hashes).await;
        let any = found.as_ref().is_ok_and(|found| found.iter().any(Option::is_some));
        for (index, answer) in answers.into_iter().enumerate() {
            let found = found.as_ref().map(|found| found.get(index).cloned().flatten()).map_err(Clone::clone);
            let _ = answer.send(found); // whoever asked may be gone
        }
        if !any {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }
}

impl Inner {
    async fn find(&self, hashes: &[Hash]) -> tidegate::Result<Vec<Option<Known>>> {
        let store = self.queue.keys()?;
        // Asked before the look: a change meanwhile makes what is found old.
        let changes = store.key_changes();
        let views = store.keys_by_hash(hashes.iter().map(|hash| hash.to_vec()).collect()).await?;
        let now = Instant::now();
        let read = |(hash, view): (&Hash, Option<KeyView>)| {
            let key = view.filter(|key| key.revoked_at.is_none())?;
            let mut scopes = Scopes::default();
            key.scopes.iter().for_each(|scope| scopes.add(scope));
            let caller = Caller { name: key.name, client: key.client, scopes };
            Some(Known { hash: *hash, id: key.id, caller, until: now + REMEMBERED, changes })
        };
        let found: Vec<Option<Known>> = hashes.iter().zip(views).map(read).collect();
        self.remember(hashes, &found, now, changes);
        Ok(found)
    }

    fn remember(&self, hashes: &[Hash], found: &[Option<Known>], now: Instant, changes: u64) {
        let mut known = lock(&self.known);
        let mut unknown = lock(&self.unknown);
        if known.len() >= MOST {
            known.retain(|_, known| known.until > now);
        }
        for (hash, found) in hashes.iter().zip(found) {
            match found {
                Some(found) if known.len() < MOST => drop(known.insert(*hash, found.clone())),
                Some(_) => {}
                None => {
                    known.remove(hash);
                    unknown[place(hash)] = Some(Unknown { hash: *hash, until: now + UNKNOWN_FOR, changes });
                }
            }
        }
    }
}

/// Where a key that is not known is remembered.
fn place(hash: &Hash) -> usize {
    usize::from(u16::from_le_bytes([hash[0], hash[1]])) % UNKNOWN
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
