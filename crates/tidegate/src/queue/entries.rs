//! Single entries and lists of them, and the manual actions on one: cancel and reset.

use tidegate_core::{End, EntryId, QueueName, Tsid, Why};
use tidegate_store::{AuditRow, EntryView, ListQuery, Page};

use super::EventQueue;
use crate::background::announce::announce;
use crate::error::{Error, Result};

impl EventQueue {
    /// Ends an entry as CANCELLED, even while a worker holds it.
    ///
    /// # Errors
    /// `AlreadyEnded` or `NotFound` when there is no such live entry, or any error of the store.
    pub async fn cancel(&self, id: EntryId) -> Result<()> {
        self.shared().batchers.cancel.call(self.manual(id, None)).await?;
        let queue = self.queue_of(id).await;
        self.shared().meters.ended(&queue, End::Cancelled, 1);
        self.shared().wake_ups.wake(&queue); // the next entry of its group may be claimable
        Ok(())
    }

    /// The queue of an entry; this handle's when it cannot be found out.
    pub(super) async fn queue_of(&self, id: EntryId) -> QueueName {
        let found = self.store().queues_of(vec![id]).await.ok().and_then(|queues| queues.into_iter().next().flatten());
        found.unwrap_or_else(|| self.name().clone())
    }

    /// Why an entry is not running.
    ///
    /// # Errors
    /// `NotFound` when there is no such entry.
    pub async fn why(&self, id: EntryId) -> Result<Why> {
        let shared = self.shared();
        match shared.store.why(id).await? {
            // A worker that has just polled for the first time may not have been announced by upkeep yet.
            Why::NoLiveConsumer { .. } => {
                announce(shared).await?;
                shared.store.why(id).await
            }
            why => Ok(why),
        }
    }

    /// One entry with its event, live or ended; `None` for an unknown entry.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn entry(&self, id: EntryId) -> Result<Option<EntryView>> {
        Ok(self.entries(vec![id]).await?.pop().flatten())
    }

    /// Entries with their events, live or ended; `None` for an unknown entry.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn entries(&self, ids: Vec<EntryId>) -> Result<Vec<Option<EntryView>>> {
        self.shared().store.entries(ids).await
    }

    /// Resets an entry as a manual action: one that is PROCESSING, FAILED or kept in its place becomes PENDING and can
    /// be claimed again.
    ///
    /// # Errors
    /// `Conflict` when it is none of these, `NotFound` for an unknown entry, or any error of the store.
    pub async fn reset(&self, id: EntryId, reason: Option<String>) -> Result<()> {
        one(self.store().reset(vec![self.manual(id, reason)]).await?, id)?;
        self.shared().wake_ups.wake_all();
        Ok(())
    }

    /// The queues of entries, live or ended, without reading their facts; `None` for an unknown entry.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn queues_of(&self, ids: Vec<EntryId>) -> Result<Vec<Option<QueueName>>> {
        self.store().queues_of(ids).await
    }

    /// The event id of an entry, live or ended, without reading its fact; `None` for an unknown entry.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn event_of(&self, id: EntryId) -> Result<Option<Tsid>> {
        self.store().event_of(id).await
    }

    /// The audit of an entry, in order.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn audit(&self, id: EntryId) -> Result<Vec<AuditRow>> {
        self.store().audit(id).await
    }

    /// Part of the audit of an entry, in order: at most `limit` rows with numbers above `after`.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn audit_page(&self, id: EntryId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
        self.store().audit_page(id, after, limit).await
    }

    /// Entries, live or ended, newest first. Lists go through the list gate and have bounded time, so that nothing else
    /// waits for them; dropping the future stops the query.
    ///
    /// # Errors
    /// `Invalid` for a query that cannot be answered, `Busy` when it takes too long or too many lists run at once, or
    /// any error of the store.
    pub async fn list(&self, query: ListQuery) -> Result<Page> {
        self.store().list(query).await
    }
}

/// The only answer of a batch of one.
pub(super) fn one<T>(answers: Vec<Result<T>>, id: EntryId) -> Result<T> {
    answers.into_iter().next().unwrap_or_else(|| Err(Error::no_entry(id)))
}
