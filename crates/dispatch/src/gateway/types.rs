//! All event types in memory, valid for exactly one catalogue version; what changed since is loaded, never everything.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::{CatalogueVersion, EventQueue, Resource, ResourceChanges, Tsid};

use super::error::Result;
use super::values::{EVENT_TYPE, EventType};

/// The event types as of a catalogue version.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    version: Option<CatalogueVersion>,
    all: Arc<All>,
}

#[derive(Debug, Clone, Default)]
struct All {
    by_code: BTreeMap<String, Arc<EventType>>,
    codes: HashMap<Tsid, String>,
}

/// The cache.
#[derive(Debug, Default)]
pub(super) struct Types {
    known: Mutex<Snapshot>,
    /// One caller loads at a time; the others find what it loaded.
    loading: tokio::sync::Mutex<()>,
}

impl Types {
    /// The types as of a version, or of a later one.
    pub(super) async fn at(&self, queue: &EventQueue, version: CatalogueVersion) -> Result<Snapshot> {
        let known = self.known().clone();
        if known.version == Some(version) {
            return Ok(known);
        }
        let _turn = self.loading.lock().await;
        let known = self.known().clone();
        if known.version == Some(version) {
            return Ok(known);
        }
        let changes = queue.resources().changes(EVENT_TYPE, known.version).await?;
        let next = known.after(changes);
        *self.known() = next.clone();
        Ok(next)
    }

    fn known(&self) -> MutexGuard<'_, Snapshot> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Snapshot {
    /// The types after changes.
    fn after(self, changes: ResourceChanges) -> Self {
        let version = Some(changes.version);
        if changes.items.is_empty() && !changes.complete {
            return Self { version, ..self };
        }
        let mut all = if changes.complete { All::default() } else { Arc::unwrap_or_clone(self.all) };
        changes.items.iter().for_each(|resource| all.apply(resource));
        Self { version, all: Arc::new(all) }
    }

    /// A type by its id.
    pub(super) fn by_id(&self, id: Tsid) -> Option<&Arc<EventType>> {
        self.all.codes.get(&id).and_then(|code| self.all.by_code.get(code))
    }

    /// The types whose codes begin with this, after a code, in the order of their codes.
    pub(super) fn with_prefix<'s>(
        &'s self,
        prefix: &'s str,
        after: Option<&str>,
    ) -> impl Iterator<Item = &'s Arc<EventType>> {
        use std::ops::Bound;
        let first = match after {
            Some(after) if after >= prefix => Bound::Excluded(after.to_owned()),
            _ => Bound::Included(prefix.to_owned()),
        };
        let all = self.all.by_code.range((first, Bound::Unbounded));
        all.take_while(move |(code, _)| code.starts_with(prefix)).map(|(_, found)| found)
    }
}

impl All {
    fn apply(&mut self, resource: &Resource) {
        if let Some(code) = self.codes.remove(&resource.id) {
            self.by_code.remove(&code);
        }
        if resource.deleted {
            return;
        }
        // One that cannot be read hides no other.
        match EventType::read(resource) {
            Ok(read) => {
                self.codes.insert(read.id, resource.code.clone());
                self.by_code.insert(resource.code.clone(), Arc::new(read));
            }
            Err(error) => tracing::error!(%error, code = resource.code, "an event type is left out"),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Timestamp;

    use super::*;

    fn resource(id: i64, code: &str, deleted: bool) -> Resource {
        Resource {
            id: Tsid::from_i64(id),
            kind: EVENT_TYPE.into(),
            client: None,
            code: code.into(),
            version: id,
            deleted,
            body: if deleted { String::new() } else { r#"{"name":"n","status":"CURRENT"}"#.into() },
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn changes(complete: bool, items: Vec<Resource>) -> ResourceChanges {
        ResourceChanges { version: CatalogueVersion { number: 1, stamp: 1 }, complete, items }
    }

    fn codes(snapshot: &Snapshot, prefix: &str, after: Option<&str>) -> Vec<String> {
        snapshot.with_prefix(prefix, after).map(|one| one.code.to_string()).collect()
    }

    #[test]
    fn changes_replace_remove_and_start_over() {
        let first = vec![resource(1, "a:b:c:d", false), resource(2, "a:b:c:e", false), resource(3, "b:b:c:e", false)];
        let all = Snapshot::default().after(changes(true, first));
        assert_eq!(codes(&all, "", None), ["a:b:c:d", "a:b:c:e", "b:b:c:e"]);
        assert_eq!(codes(&all, "a:", Some("a:b:c:d")), ["a:b:c:e"]);
        assert_eq!(codes(&all, "b:", Some("a:b:c:d")), ["b:b:c:e"]);
        let mut damaged = resource(3, "b:b:c:e", false);
        damaged.body = "{".into();
        let less = all.after(changes(false, vec![resource(1, "a:b:c:d", true), damaged]));
        assert_eq!(codes(&less, "", None), ["a:b:c:e"], "deleted, and left out because it cannot be read");
        assert!(less.by_id(Tsid::from_i64(1)).is_none() && less.by_id(Tsid::from_i64(2)).is_some());
        let same = less.after(changes(false, Vec::new()));
        assert_eq!(codes(&same, "", None), ["a:b:c:e"]);
        assert_eq!(codes(&same.after(changes(true, Vec::new())), "", None), <[&str; 0]>::default());
    }
}
