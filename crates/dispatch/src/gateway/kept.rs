//! Resources of one kind in memory, valid for exactly one catalogue version. What changed since is loaded, and every five
//! minutes everything, so that nothing that was ever missed stays so.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{CatalogueVersion, EventQueue, Resource, ResourceChanges};

use tokio::time::Instant;

use super::error::Result;

/// How long what was loaded as a whole is added to.
const LASTS: Duration = Duration::from_secs(5 * 60);

/// All resources of one kind, in a form that serves its readers.
pub(crate) trait Kind: Clone + Default {
    /// The kind's name.
    const NAME: &'static str;

    /// Takes in a resource that was created, changed or deleted. One that cannot be read hides no other.
    fn apply(&mut self, resource: &Resource);
}

/// The resources of a kind as of a catalogue version.
#[derive(Debug)]
pub(crate) struct Snapshot<K> {
    version: Option<CatalogueVersion>,
    /// When everything was loaded last.
    loaded: Option<Instant>,
    all: Arc<K>,
}

impl<K: Default> Default for Snapshot<K> {
    fn default() -> Self {
        Self { version: None, loaded: None, all: Arc::default() }
    }
}

impl<K> Clone for Snapshot<K> {
    fn clone(&self) -> Self {
        Self { version: self.version, loaded: self.loaded, all: Arc::clone(&self.all) }
    }
}

impl<K> Deref for Snapshot<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.all
    }
}

/// The cache.
#[derive(Debug)]
pub(crate) struct Kept<K> {
    known: Mutex<Snapshot<K>>,
    /// One caller loads at a time; the others find what it loaded.
    loading: tokio::sync::Mutex<()>,
}

impl<K: Default> Default for Kept<K> {
    fn default() -> Self {
        Self { known: Mutex::default(), loading: tokio::sync::Mutex::default() }
    }
}

impl<K: Kind> Kept<K> {
    /// The resources as of a version, or of a later one.
    pub(crate) async fn at(&self, queue: &EventQueue, version: CatalogueVersion) -> Result<Snapshot<K>> {
        let known = self.known();
        if known.version() == Some(version) {
            return Ok(known);
        }
        let _turn = self.loading.lock().await;
        let known = self.known();
        if known.version() == Some(version) {
            return Ok(known);
        }
        let changes = queue.resources().changes(K::NAME, known.version()).await?;
        let next = known.after(changes);
        *self.lock() = next.clone();
        Ok(next)
    }

    /// What was loaded last, of whatever version.
    pub(super) fn known(&self) -> Snapshot<K> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot<K>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Kind> Snapshot<K> {
    /// The version that it is of; `None` before anything was loaded, and when everything is to be loaded again.
    pub(super) fn version(&self) -> Option<CatalogueVersion> {
        self.version.filter(|_| self.loaded.is_some_and(|loaded| loaded.elapsed() < LASTS))
    }

    /// Whether nothing has changed from one to the other.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.all, &other.all)
    }

    /// The resources after changes.
    pub(crate) fn after(self, changes: ResourceChanges) -> Self {
        let version = Some(changes.version);
        if changes.items.is_empty() && !changes.complete {
            return Self { version, ..self };
        }
        let loaded = if changes.complete { Some(Instant::now()) } else { self.loaded };
        let mut all = if changes.complete { K::default() } else { Arc::unwrap_or_clone(self.all) };
        changes.items.iter().for_each(|resource| all.apply(resource));
        Self { version, loaded, all: Arc::new(all) }
    }
}
