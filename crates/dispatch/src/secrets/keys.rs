//! The keys of a node: one encrypts, all decrypt. Files are read again when something names a key that is not known, so that a
//! key which was added to a file is found without a restart.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate::{DatabasePlace, Error, ErrorKind, Resource};
use zeroize::Zeroizing;

use super::key::{KeyId, SecretKey};
use super::key_file;
use super::sealed::{self, Place};

/// How often files are read, at most, in search of keys that are not known.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Where keys come from.
#[derive(Debug, Clone, Default)]
pub struct SecretOptions {
    /// The key that encrypts; the first one of the file if absent.
    pub key: Option<SecretKey>,
    /// A file with a key in each line. With SQLite, a file beside the database if neither is there: it is made when the first
    /// secret is written.
    pub key_file: Option<PathBuf>,
    /// Keys that still decrypt.
    pub old_keys: Vec<SecretKey>,
}

/// The keys.
#[derive(Debug)]
pub(crate) struct SecretKeys {
    options: SecretOptions,
    /// The file beside the database. It is read also where other keys are configured, since it may have been made before.
    own_file: Option<PathBuf>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    keys: Vec<SecretKey>,
    read: Option<Instant>,
    /// Keys that something was encrypted with and that are not known.
    missing: BTreeSet<KeyId>,
}

/// Why a stored secret cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    /// This node does not have its key.
    #[error(
        "it is encrypted with the key {0}, which this node does not have: add that to secrets.old_keys or secrets.key_file"
    )]
    MissingKey(KeyId),
    /// It was changed, or moved from another row.
    #[error("it was changed or damaged where it is stored")]
    Damaged,
}

impl SecretOptions {
    /// Whether the file of keys, if one is named, can be read and holds a key.
    ///
    /// # Errors
    /// What is wrong with it. It shows no key.
    pub fn check(&self) -> Result<(), String> {
        let Some(file) = &self.key_file else { return Ok(()) };
        match key_file::read(file) {
            Ok(keys) if keys.is_empty() => Err(format!("{} holds no key", file.display())),
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{} cannot be read: {error}", file.display())),
        }
    }
}

impl SecretKeys {
    pub(crate) fn new(options: SecretOptions, database: &DatabasePlace) -> Self {
        let has_none = options.key.is_none() && options.key_file.is_none();
        let (own_file, made) = match database {
            DatabasePlace::File(path) => (Some(beside(path)), None),
            // As lasting as what it encrypts.
            DatabasePlace::Memory if has_none => (None, Some(SecretKey::random())),
            // All machines need the same key, so none is made.
            _ => (None, None),
        };
        let options = SecretOptions { key: options.key.or(made), ..options };
        let keys = options.key.iter().chain(&options.old_keys).cloned().collect();
        let known = Known { keys, read: None, missing: BTreeSet::new() };
        Self { options, own_file, known: Mutex::new(known) }
    }

    /// The key to encrypt with: that of the setting, else the first one of the file, which is made if it is ours to make.
    ///
    /// # Errors
    /// `Unavailable` when there is none, with what to set.
    pub(crate) fn sealing(&self) -> Result<SecretKey, Error> {
        if let Some(key) = &self.options.key {
            return Ok(key.clone());
        }
        let file = self
            .options
            .key_file
            .as_ref()
            .or(self.own_file.as_ref())
            .ok_or_else(|| failed("there is no key to encrypt them"))?;
        let found = match key_file::read(file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.options.key_file.is_none() => {
                self.make(file)?
            }
            read => read.map_err(|error| cannot_be_read(file, &error))?,
        };
        let first = found.first().cloned();
        self.lock().learn(found);
        first.ok_or_else(|| failed("the file of keys holds none"))
    }

    fn make(&self, file: &Path) -> Result<Vec<SecretKey>, Error> {
        let key = SecretKey::random();
        match key_file::write_new_key(file, &key) {
            Ok(()) => {
                tracing::info!(
                    file = %file.display(), key = %key.id(),
                    "made a key that encrypts secrets: keep a copy of the file, without it they cannot be read"
                );
                Ok(vec![key])
            }
            // Another process was faster.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                key_file::read(file).map_err(|error| cannot_be_read(file, &error))
            }
            Err(error) => {
                tracing::error!(file = %file.display(), %error, "a file for the key of secrets cannot be written");
                Err(failed("a file for their key cannot be written beside the database"))
            }
        }
    }

    /// The body of a resource that holds a secret.
    pub(crate) fn seal(&self, place: Place<'_>, secret: &str) -> Result<String, Error> {
        Ok(sealed::seal(&self.sealing()?, place, secret))
    }

    /// The secret that a resource holds; as it is, if it is in plain text.
    pub(crate) fn open(&self, resource: &Resource) -> Result<Zeroizing<String>, Unreadable> {
        let Some(id) = sealed::key_of(&resource.body) else { return Ok(Zeroizing::new(resource.body.clone())) };
        let key = self.find(&id).ok_or(Unreadable::MissingKey(id))?;
        sealed::open(&key, Place::of(resource), &resource.body).map_err(|_| Unreadable::Damaged)
    }

    /// Keys that something was encrypted with and that this node does not have, as far as it has met them.
    pub(crate) fn missing(&self) -> Vec<KeyId> {
        self.lock().missing.iter().cloned().collect()
    }

    fn find(&self, id: &KeyId) -> Option<SecretKey> {
        let mut known = self.lock();
        if let Some(key) = known.get(id) {
            return Some(key);
        }
        if known.read.is_none_or(|read| read.elapsed() >= READ_EVERY) {
            known.read = Some(Instant::now());
            for file in self.options.key_file.iter().chain(&self.own_file) {
                match key_file::read(file) {
                    Ok(keys) => known.learn(keys),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => tracing::error!(file = %file.display(), %error, "a file of keys cannot be read"),
                }
            }
        }
        let found = known.get(id);
        if found.is_none() && known.missing.insert(id.clone()) {
            tracing::error!(
                key = %id,
                "secrets are encrypted with a key that this node does not have: webhooks that need them wait until it is \
                 added to secrets.old_keys or secrets.key_file"
            );
        }
        found
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What to do about a missing key.
const HOW_TO: &str =
    "set secrets.key or secrets.key_file, the same on all nodes; `tidegate secrets new-key` makes a key";

impl Known {
    fn get(&self, id: &KeyId) -> Option<SecretKey> {
        self.keys.iter().find(|key| key.id() == id).cloned()
    }

    fn learn(&mut self, keys: Vec<SecretKey>) {
        for key in keys {
            if self.missing.remove(key.id()) {
                tracing::info!(key = %key.id(), "the key of secrets that could not be read is here");
            }
            if self.get(key.id()).is_none() {
                self.keys.push(key);
            }
        }
    }
}

/// The file of keys that belongs to a file of SQLite.
fn beside(database: &Path) -> PathBuf {
    let mut name = database.file_name().unwrap_or_default().to_owned();
    name.push(".key");
    database.with_file_name(name)
}

/// The error when nothing can be encrypted. Callers see it, so it names no file.
fn failed(why: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("secrets cannot be stored: {why}: {HOW_TO}"))
}

fn cannot_be_read(file: &Path, error: &std::io::Error) -> Error {
    tracing::error!(file = %file.display(), %error, "the file of keys cannot be read");
    failed("the file of keys cannot be read")
}

#[cfg(test)]
mod tests {
    use tidegate::{Timestamp, Tsid};

    use super::*;

    fn resource(body: String) -> Resource {
        Resource {
            id: Tsid::from_i64(1),
            kind: "k".into(),
            client: None,
            code: "c".into(),
            version: 1,
            deleted: false,
            body,
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn sealed_by(keys: &SecretKeys) -> Resource {
        let place = Place { kind: "k", client: None, code: "c" };
        resource(keys.seal(place, "s3cret").unwrap())
    }

    #[test]
    fn without_a_key_nothing_is_stored_and_plain_text_is_read() {
        let keys = SecretKeys::new(SecretOptions::default(), &DatabasePlace::Elsewhere);
        let error = keys.sealing().unwrap_err();
        assert!(error.to_string().contains("secrets.key_file"), "{error}");
        assert!(error.to_string().contains("tidegate secrets new-key"), "{error}");
        assert_eq!(*keys.open(&resource("{}".into())).unwrap(), "{}");
    }

    #[test]
    fn with_a_file_of_sqlite_a_key_is_made_beside_it_and_shared() {
        let dir = tempfile::tempdir().unwrap();
        let database = DatabasePlace::File(dir.path().join("t.db"));
        let one = SecretKeys::new(SecretOptions::default(), &database);
        let other = SecretKeys::new(SecretOptions::default(), &database);
        assert!(!dir.path().join("t.db.key").exists(), "not before it is needed");
        let stored = sealed_by(&one);
        assert_eq!(*other.open(&stored).unwrap(), "s3cret");
        assert_eq!(one.sealing().unwrap().id(), other.sealing().unwrap().id());
        let configured = SecretOptions { key: Some(SecretKey::random()), ..SecretOptions::default() };
        let later = SecretKeys::new(configured, &database);
        assert_eq!(*later.open(&stored).unwrap(), "s3cret", "what was encrypted before stays readable");
    }

    #[test]
    fn a_key_that_is_missing_is_known_and_found_once_it_is_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys");
        let (old, new) = (SecretKey::random(), SecretKey::random());
        let of = |key: &SecretKey| SecretOptions { key: Some(key.clone()), ..SecretOptions::default() };
        let stored = sealed_by(&SecretKeys::new(of(&old), &DatabasePlace::Elsewhere));
        key_file::write_new_key(&file, &new).unwrap();
        let options = SecretOptions { key_file: Some(file.clone()), ..SecretOptions::default() };
        let keys = SecretKeys::new(options, &DatabasePlace::Elsewhere);
        assert_eq!(keys.open(&stored).unwrap_err(), Unreadable::MissingKey(old.id().clone()));
        assert_eq!(keys.missing(), [old.id().clone()]);
        key_file::add_key(&file, &old).unwrap();
        keys.lock().read = None;
        assert_eq!(*keys.open(&stored).unwrap(), "s3cret");
        assert_eq!(keys.missing(), []);
        let both = SecretOptions { old_keys: vec![old], ..of(&new) };
        let both = SecretKeys::new(both, &DatabasePlace::Elsewhere);
        assert_eq!(*both.open(&stored).unwrap(), "s3cret");
        assert_eq!(both.sealing().unwrap().id(), new.id());
    }
}
