//! Tells the store which consumers of this process are alive, so that `why` can say whether an entry has one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::QueueName;
use tidegate_store::{LiveConsumer, WantedTag};

use crate::batch::activity::Activity;
use crate::error::Result;
use crate::queue::shared::Shared;

const ANNOUNCE_EVERY: Duration = Duration::from_secs(10);
/// Most workers that are announced in one transaction.
const ANNOUNCE_AT_ONCE: usize = 1_000;

/// Announces consumers whose last announcement is old. The store keeps one set of types per worker and queue, so
/// the sets of all handles are united.
pub(crate) async fn announce(shared: &Shared) -> Result<()> {
    let mut seen: BTreeMap<(QueueName, String), Announcement> = BTreeMap::new();
    for (key, activity) in shared.activities.active() {
        let all = seen.entry((key.queue.clone(), key.worker.clone())).or_default();
        all.due |= !activity.announced_within(ANNOUNCE_EVERY);
        all.handles.push(activity);
        all.wants(key.types, key.tags);
    }
    let mut due = seen.into_iter().filter(|(_, all)| all.due).peekable();
    while due.peek().is_some() {
        let (mut consumers, mut handles) = (Vec::new(), Vec::new());
        for ((queue, worker), all) in due.by_ref().take(ANNOUNCE_AT_ONCE) {
            let types = (!all.is_of_all).then(|| all.types.into_iter().collect());
            consumers.push(LiveConsumer { worker, queue, types, tags: all.tags.into_iter().collect() });
            handles.extend(all.handles);
        }
        // Results are ignored: a consumer is refused only when its queue was removed, which its next claim reports.
        shared.store.consumers_seen(consumers).await?;
        handles.iter().for_each(|activity| activity.announce());
    }
    Ok(())
}

/// What all handles of one worker in one queue claim together.
#[derive(Debug, Default)]
struct Announcement {
    due: bool,
    is_of_all: bool,
    types: BTreeSet<String>,
    tags: BTreeSet<WantedTag>,
    handles: Vec<Arc<Activity>>,
}

impl Announcement {
    fn wants(&mut self, types: Option<Vec<String>>, tags: Option<Vec<String>>) {
        match (types, tags) {
            (None, None) => self.is_of_all = true,
            (Some(types), None) => self.types.extend(types),
            (None, Some(tags)) => {
                self.tags.extend(tags.into_iter().map(|tag| WantedTag { tag, event_type: None }));
            }
            (Some(types), Some(tags)) => {
                self.tags.extend(tags.iter().flat_map(|tag| {
                    types.iter().map(|of| WantedTag { tag: tag.clone(), event_type: Some(of.clone()) })
                }))
            }
        }
    }
}
