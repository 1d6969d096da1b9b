//! All event types in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tidegate::{Resource, Tsid};

use super::kept::Kind;
use super::values::{EVENT_TYPE, EventType};

/// The event types by their codes.
#[derive(Debug, Clone, Default)]
pub(super) struct Types {
    by_code: BTreeMap<String, Arc<EventType>>,
    codes: HashMap<Tsid, String>,
}

impl Types {
    /// A type by its code.
    pub(super) fn by_code(&self, code: &str) -> Option<&Arc<EventType>> {
        self.by_code.get(code)
    }

    /// A type by its id.
    pub(super) fn by_id(&self, id: Tsid) -> Option<&Arc<EventType>> {
        self.codes.get(&id).and_then(|code| self.by_code.get(code))
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
        let all = self.by_code.range((first, Bound::Unbounded));
        all.take_while(move |(code, _)| code.starts_with(prefix)).map(|(_, found)| found)
    }
}

impl Kind for Types {
    const NAME: &'static str = EVENT_TYPE;

    fn apply(&mut self, resource: &Resource) {
        if let Some(code) = self.codes.remove(&resource.id) {
            self.by_code.remove(&code);
        }
        if resource.deleted {
            return;
        }
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
    use tidegate::{CatalogueVersion, ResourceChanges, Timestamp};

    use super::*;
    use crate::gateway::kept::Snapshot;

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

    fn codes(snapshot: &Types, prefix: &str, after: Option<&str>) -> Vec<String> {
        snapshot.with_prefix(prefix, after).map(|one| one.code.to_string()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn everything_is_loaded_again_after_five_minutes() {
        let loaded = Snapshot::<Types>::default().after(changes(true, vec![resource(1, "a:b:c:d", false)]));
        tokio::time::advance(std::time::Duration::from_secs(200)).await;
        let changed = loaded.after(changes(false, vec![resource(2, "a:b:c:e", false)]));
        tokio::time::advance(std::time::Duration::from_secs(99)).await;
        assert!(changed.version().is_some());
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        assert_eq!(changed.version(), None, "a change does not keep the rest young");
        let again = changed.after(changes(true, vec![resource(2, "a:b:c:e", false)]));
        assert!(again.version().is_some());
        assert_eq!(codes(&again, "", None), ["a:b:c:e"]);
    }

    #[test]
    fn changes_replace_remove_and_start_over() {
        let first = vec![resource(1, "a:b:c:d", false), resource(2, "a:b:c:e", false), resource(3, "b:b:c:e", false)];
        let all = Snapshot::<Types>::default().after(changes(true, first));
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
