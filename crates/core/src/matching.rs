//! Which subscriptions an event goes to: an index from (client, type, version) to what is kept for those whose bindings
//! match. Knows nothing of filters, of whether a subscription is paused and of where subscriptions are stored.
//!
//! A pattern is in the index under its own text. For a type of four parts there are 16 patterns that match it (each part
//! is itself or `*`), so a look-up asks for those texts, of the client's own and of the anchor level's subscriptions, with
//! the event's version and without: no scan, no walk, and nothing that grows with the subscriptions that do not match. It
//! skips sets of wildcards that nobody uses.

mod pattern;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use crate::event_type::VersionNumber;
use crate::id::Tsid;

pub use pattern::{InvalidPattern, TypePattern};

use pattern::{Parts, SETS, SPREAD};
use table::Table;

/// What of events a subscription asks for: a type or pattern, and a version or all of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Binding {
    /// The types.
    pub pattern: TypePattern,
    /// The version that the event was validated against; without one the event's version does not matter.
    pub version: Option<VersionNumber>,
}

impl Binding {
    /// Whether an event of this type and version is asked for.
    #[must_use]
    pub fn matches(&self, event_type: &str, version: Option<VersionNumber>) -> bool {
        (self.version.is_none() || self.version == version) && self.pattern.matches(event_type)
    }
}

/// Subscriptions by what they ask for, with a `T` kept for each.
///
/// A clone is a snapshot that costs nothing and shares all that later changes leave alone: a reader matches against its
/// own while a writer changes the next.
///
/// ```
/// use tidegate_core::Tsid;
/// use tidegate_core::matching::{Binding, Index};
/// let (shop, bank) = (Tsid::from_i64(1), Tsid::from_i64(2));
/// let orders = Binding { pattern: "shop:orders:*:*".parse().unwrap(), version: None };
/// let mut index = Index::default();
/// index.insert(Tsid::from_i64(20), Some(shop), vec![orders.clone()], "the shop's");
/// index.insert(Tsid::from_i64(10), None, vec![orders], "everybody's");
/// let found = |client| index.matching(Some(client), "shop:orders:order:created", None);
/// assert_eq!(found(shop), [(Tsid::from_i64(10), &"everybody's"), (Tsid::from_i64(20), &"the shop's")]);
/// assert_eq!(found(bank), [(Tsid::from_i64(10), &"everybody's")]);
/// ```
pub struct Index<T> {
    hasher: RandomState,
    subscriptions: Table<Tsid, Arc<Subscription<T>>>,
    /// By client; the anchor level is `None`.
    scopes: Table<Option<Tsid>, Arc<Scope<T>>>,
}

/// A subscription as it was inserted.
struct Subscription<T> {
    id: Tsid,
    client: Option<Tsid>,
    bindings: Vec<Binding>,
    kept: T,
}

/// The subscriptions of one client, or of the anchor level.
struct Scope<T> {
    bound: Table<Binding, Bound<T>>,
    /// How many bindings there are for each set of wildcards, of all versions and of one.
    any_version: Used,
    one_version: Used,
}

/// Counts by set of wildcards, and the sets that are not 0 as bits.
#[derive(Clone, Default)]
struct Used {
    counts: [usize; SETS],
    sets: u32,
}

/// The subscriptions with one binding, of which there is rarely more than one.
enum Bound<T> {
    One(Arc<Subscription<T>>),
    Many(Table<Tsid, Arc<Subscription<T>>>),
}

impl<T> Index<T> {
    /// How many subscriptions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.subscriptions.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is kept for a subscription.
    #[must_use]
    pub fn get(&self, id: Tsid) -> Option<&T> {
        self.subscriptions.get(self.hasher.hash_one(id), |other| *other == id).map(|found| &found.kept)
    }

    /// Adds a subscription, of a client or of the anchor level; one with the same id is replaced.
    pub fn insert(&mut self, id: Tsid, client: Option<Tsid>, bindings: Vec<Binding>, kept: T) {
        self.remove(id);
        let added = Arc::new(Subscription { id, client, bindings, kept });
        let of_client = self.hasher.hash_one(client);
        if self.scopes.get(of_client, |other| *other == client).is_none() {
            self.scopes.insert(of_client, client, Arc::default());
        }
        if let Some(scope) = self.scopes.get_mut(of_client, &client).map(Arc::make_mut) {
            for binding in &added.bindings {
                scope.add(&self.hasher, binding, &added);
            }
        }
        self.subscriptions.insert(self.hasher.hash_one(id), id, added);
    }

    /// Takes a subscription out. Whether there was one.
    pub fn remove(&mut self, id: Tsid) -> bool {
        let Some(removed) = self.subscriptions.remove(self.hasher.hash_one(id), &id) else { return false };
        let client = removed.client;
        let of_client = self.hasher.hash_one(client);
        let Some(scope) = self.scopes.get_mut(of_client, &client).map(Arc::make_mut) else { return true };
        for binding in &removed.bindings {
            scope.take(&self.hasher, binding, id);
        }
        if scope.bound.len() == 0 {
            self.scopes.remove(of_client, &client);
        }
        true
    }

    /// The subscriptions that ask for an event, by id, each once: those of the event's client, and those of the anchor
    /// level. An event of no client goes to the anchor level alone. The version is the one that the event was validated
    /// against.
    #[must_use]
    pub fn matching(&self, client: Option<Tsid>, event_type: &str, version: Option<VersionNumber>) -> Vec<(Tsid, &T)> {
        let event = Parts::of(event_type, &self.hasher);
        let mut found = Vec::new();
        for scope in [client.map(Some), Some(None)].into_iter().flatten() {
            if let Some(scope) = self.scopes.get(self.hasher.hash_one(scope), |other| *other == scope) {
                scope.find(&event, version, &mut found);
            }
        }
        found.sort_unstable_by_key(|(id, _)| *id);
        found.dedup_by_key(|(id, _)| *id);
        found
    }
}

/// The hash of a binding, of its pattern's.
#[inline]
fn with_version(pattern: u64, version: Option<VersionNumber>) -> u64 {
    let Some(VersionNumber { major, minor }) = version else { return pattern };
    let number = u64::from(major) << 32 | u64::from(minor);
    (pattern ^ number).wrapping_mul(SPREAD).rotate_left(32)
}

fn hash_of(hasher: &RandomState, binding: &Binding) -> u64 {
    let pattern = Parts::of(binding.pattern.as_str(), hasher).hash(binding.pattern.wild());
    with_version(pattern, binding.version)
}

impl<T> Scope<T> {
    fn used(&mut self, binding: &Binding) -> &mut Used {
        if binding.version.is_none() { &mut self.any_version } else { &mut self.one_version }
    }

    fn add(&mut self, hasher: &RandomState, binding: &Binding, added: &Arc<Subscription<T>>) {
        let hash = hash_of(hasher, binding);
        if let Some(bound) = self.bound.get_mut(hash, binding) {
            bound.add(hasher, added);
            return;
        }
        self.bound.insert(hash, binding.clone(), Bound::One(Arc::clone(added)));
        self.used(binding).add(binding.pattern.wild());
    }

    fn take(&mut self, hasher: &RandomState, binding: &Binding, id: Tsid) {
        let hash = hash_of(hasher, binding);
        // Gone already when the subscription has the binding twice.
        let Some(bound) = self.bound.get_mut(hash, binding) else { return };
        if bound.take(hasher, id) {
            self.bound.remove(hash, binding);
            self.used(binding).take(binding.pattern.wild());
        }
    }

    fn find<'i>(&'i self, event: &Parts<'_>, version: Option<VersionNumber>, found: &mut Vec<(Tsid, &'i T)>) {
        let mut look_up = |sets: u32, version: Option<VersionNumber>| {
            let mut sets = sets & event.sets();
            while sets != 0 {
                let wild = sets.trailing_zeros() as u8;
                sets &= sets - 1;
                let hash = with_version(event.hash(wild), version);
                let is_wanted = |binding: &Binding| binding.version == version && event.make(wild, &binding.pattern);
                match self.bound.get(hash, is_wanted) {
                    Some(Bound::One(one)) => found.push((one.id, &one.kept)),
                    Some(Bound::Many(many)) => found.extend(many.values().map(|each| (each.id, &each.kept))),
                    None => {}
                }
            }
        };
        look_up(self.any_version.sets, None);
        if version.is_some() {
            look_up(self.one_version.sets, version);
        }
    }
}

impl Used {
    fn add(&mut self, wild: u8) {
        if let Some(count) = self.counts.get_mut(usize::from(wild)) {
            *count += 1;
            self.sets |= 1 << wild;
        }
    }

    fn take(&mut self, wild: u8) {
        if let Some(count) = self.counts.get_mut(usize::from(wild)) {
            *count -= 1;
            if *count == 0 {
                self.sets &= !(1 << wild);
            }
        }
    }
}

impl<T> Bound<T> {
    fn add(&mut self, hasher: &RandomState, added: &Arc<Subscription<T>>) {
        let insert = |many: &mut Table<_, _>, each: &Arc<Subscription<T>>| {
            many.insert(hasher.hash_one(each.id), each.id, Arc::clone(each));
        };
        match self {
            Self::One(one) => {
                let mut many = Table::default();
                insert(&mut many, one);
                insert(&mut many, added);
                *self = Self::Many(many);
            }
            Self::Many(many) => insert(many, added),
        }
    }

    /// Whether nobody is left.
    fn take(&mut self, hasher: &RandomState, id: Tsid) -> bool {
        match self {
            Self::One(one) => one.id == id,
            Self::Many(many) => {
                many.remove(hasher.hash_one(id), &id);
                many.len() == 0
            }
        }
    }
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self { hasher: RandomState::new(), subscriptions: Table::default(), scopes: Table::default() }
    }
}

impl<T> Clone for Index<T> {
    fn clone(&self) -> Self {
        Self { hasher: self.hasher.clone(), subscriptions: self.subscriptions.clone(), scopes: self.scopes.clone() }
    }
}

impl<T> fmt::Debug for Index<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("subscriptions", &self.len()).finish_non_exhaustive()
    }
}

impl<T> Default for Scope<T> {
    fn default() -> Self {
        Self { bound: Table::default(), any_version: Used::default(), one_version: Used::default() }
    }
}

impl<T> Clone for Scope<T> {
    fn clone(&self) -> Self {
        Self { bound: self.bound.clone(), any_version: self.any_version.clone(), one_version: self.one_version.clone() }
    }
}

impl<T> Clone for Bound<T> {
    fn clone(&self) -> Self {
        match self {
            Self::One(one) => Self::One(Arc::clone(one)),
            Self::Many(many) => Self::Many(many.clone()),
        }
    }
}
