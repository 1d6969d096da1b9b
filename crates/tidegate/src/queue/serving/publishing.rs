//! Publishing for callers that repeat requests: a repeat is answered with the entry that is stored.

use std::collections::HashMap;

use tidegate_core::{EntryId, NewEvent};
use tidegate_store::{EntryView, PublishOutcome, Published};

use crate::error::Result;
use crate::queue::EventQueue;

impl EventQueue {
    /// As [`publish`](Self::publish); where the event was published before, the stored entry comes with the answer.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub async fn publish_or_find(&self, event: NewEvent) -> Result<(Published, Option<EntryView>)> {
        let published = self.publish(event).await?;
        let stored = match published.outcome {
            PublishOutcome::Duplicate => self.entry(published.id).await?,
            PublishOutcome::Created | PublishOutcome::Replaced => None,
        };
        Ok((published, stored))
    }

    /// As [`publish_or_find`](Self::publish_or_find) for several events, with one result each. The stored entries have
    /// the payloads that were just sent, so together they are no larger than the events.
    ///
    /// # Errors
    /// Any error of the store while stored entries are read; the events are published then.
    pub async fn publish_or_find_many(
        &self,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Result<(Published, Option<EntryView>)>>> {
        let published = self.publish_many(events).await;
        let is_repeat = |one: &&Published| one.outcome == PublishOutcome::Duplicate;
        let repeats: Vec<EntryId> = published.iter().flatten().filter(is_repeat).map(|one| one.id).collect();
        let mut stored = HashMap::new();
        if !repeats.is_empty() {
            let entries = self.entries(repeats).await?;
            stored.extend(entries.into_iter().flatten().map(|entry| (entry.id, entry)));
        }
        let with_stored = |one: Published| {
            let entry = stored.get(&one.id).cloned().filter(|_| is_repeat(&&one));
            (one, entry)
        };
        Ok(published.into_iter().map(|one| one.map(with_stored)).collect())
    }
}
