//! Entries, live and ended: reading, listing, cancelling, redriving.

use async_trait::async_trait;
use tidegate_core::{EntryId, Generation, QueueName, Tsid, Why};

use crate::error::Result;
use crate::values::{Batch, DeadLetters, EntryView, ListQuery, ManualAction, Page};

/// The verbs for entries that nobody has to hold.
#[async_trait]
pub trait Entries: std::fmt::Debug + Send + Sync + 'static {
    /// Ends live entries as `CANCELLED`, whether they are held or not. `AlreadyEnded` for an ended entry, `NotFound`
    /// for an unknown one.
    async fn cancel(&self, ids: Vec<EntryId>) -> Result<Batch<()>> {
        self.cancel_manually(ids.into_iter().map(ManualAction::from).collect()).await
    }

    /// Like [`cancel`](Self::cancel), with the actor and reason recorded in the audit.
    async fn cancel_manually(&self, items: Vec<ManualAction>) -> Result<Batch<()>>;

    /// Starts a new generation of dead letters and of kept entries. `Conflict` for an entry that is neither.
    async fn redrive(&self, ids: Vec<EntryId>) -> Result<Batch<Generation>> {
        self.redrive_manually(ids.into_iter().map(ManualAction::from).collect()).await
    }

    /// Like [`redrive`](Self::redrive), with the actor and reason recorded in the audit.
    async fn redrive_manually(&self, items: Vec<ManualAction>) -> Result<Batch<Generation>>;

    /// Takes dead letters off the list without redriving them: their log row is marked superseded.
    async fn discard(&self, ids: Vec<EntryId>) -> Result<Batch<()>>;

    /// Entries with their facts, live or ended; `None` for an unknown id.
    async fn entries(&self, ids: Vec<EntryId>) -> Result<Vec<Option<EntryView>>>;

    /// Dead letters of a queue, oldest entry first.
    async fn dead_letters(&self, query: DeadLetters) -> Result<Vec<EntryView>>;

    /// Why an entry is not running.
    async fn why(&self, id: EntryId) -> Result<Why>;

    /// The queues of entries, live or ended; `None` for an unknown id. Does not read the facts: payloads may be large.
    async fn queues_of(&self, ids: Vec<EntryId>) -> Result<Vec<Option<QueueName>>>;

    /// The id of an entry's event, live or ended; `None` for an unknown id. Does not read the fact.
    async fn event_of(&self, id: EntryId) -> Result<Option<Tsid>>;

    /// Entries, live or ended, youngest first.
    async fn list(&self, query: ListQuery) -> Result<Page>;
}
