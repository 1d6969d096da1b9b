//! Facts: stored with any number of entries and jobs, read by id, and found by what they have.

use tidegate_core::{EntryId, Tsid};
use tidegate_store::{
    AddTarget, AddedTarget, Batch, CatalogueVersion, FactsPage, FactsQuery, FactsWalk, Ingest, IngestAnswer, Store,
    StoredFact, WalkedFacts,
};

use crate::error::Result;
use crate::queue::EventQueue;

/// The facts of a database; see [`EventQueue::facts`].
#[derive(Clone, Copy)]
pub struct Facts<'a>(&'a dyn Store);

impl std::fmt::Debug for Facts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Facts").finish_non_exhaustive()
    }
}

impl EventQueue {
    /// The facts of the database.
    #[must_use]
    pub fn facts(&self) -> Facts<'_> {
        Facts(self.shared().store.as_ref())
    }
}

impl Facts<'_> {
    /// Stores facts and makes their entries and jobs, each item completely or not at all. An item whose key is known
    /// writes nothing and is answered with the first fact. With `under`, nothing is written unless the catalogue has
    /// exactly that version.
    ///
    /// # Errors
    /// Any error of the store. Items that are refused have errors of their own in the answer.
    pub async fn ingest(&self, items: Vec<Ingest>, under: Option<CatalogueVersion>) -> Result<IngestAnswer> {
        self.0.ingest(items, under).await
    }

    /// Makes an entry or a job for facts that are stored, each under a key: what was made under a key before is not made again.
    ///
    /// # Errors
    /// `Invalid` for more than 1,000 items, or any error of the store. Items that are refused have errors of their own in
    /// the answer.
    pub async fn add_targets(&self, items: Vec<AddTarget>) -> Result<Batch<AddedTarget>> {
        self.0.add_targets(items).await
    }

    /// Facts by id, published ones too, each with its first `targets` entries and jobs; `None` where there is none.
    ///
    /// # Errors
    /// `Invalid` when too many facts or targets are asked for, or any error of the store.
    pub async fn get(&self, ids: Vec<Tsid>, targets: usize) -> Result<Vec<Option<StoredFact>>> {
        self.0.facts(ids, targets).await
    }

    /// What is said about jobs that are tasks, in the order of their numbers; `None` for others.
    ///
    /// # Errors
    /// `Invalid` for more than 10,000 jobs, or any error of the store.
    pub async fn tasks(&self, jobs: Vec<EntryId>) -> Result<Vec<Option<String>>> {
        self.0.tasks(jobs).await
    }

    /// Facts by what they have, youngest first. Published ones are not found.
    ///
    /// # Errors
    /// `Invalid` when a bound of the query is out of range, `Busy` when too many lists run at once, or any error of the
    /// store.
    pub async fn find(&self, query: FactsQuery) -> Result<FactsPage> {
        self.0.find_facts(query).await
    }

    /// The next facts of a walk, oldest first, without their entries and jobs. Published ones are left out.
    ///
    /// # Errors
    /// `Invalid` when its limit is out of range, or any error of the store.
    pub async fn walk(&self, walk: FactsWalk) -> Result<WalkedFacts> {
        self.0.walk_facts(walk).await
    }
}
