//! Reading and finding facts.

use async_trait::async_trait;
use tidegate_core::Tsid;

use crate::error::Result;
use crate::values::{FactsPage, FactsQuery, FactsWalk, StoredFact, WalkedFacts};

/// The verbs that read facts. They are the same for every family: families share the facts.
#[async_trait]
pub trait Facts: std::fmt::Debug + Send + Sync + 'static {
    /// Facts by id, published ones too, each with its first `targets` entries and jobs; `None` where there is none. Of a
    /// published fact that replaced another one's contents, no entry is shown.
    async fn facts(&self, ids: Vec<Tsid>, targets: usize) -> Result<Vec<Option<StoredFact>>>;

    /// Facts by what they are found by, youngest first. Those of exactly one entry that do not stand alone, such as
    /// published ones, are not found.
    async fn find_facts(&self, query: FactsQuery) -> Result<FactsPage>;

    /// Facts that a search finds, by their ids, oldest first, without their targets: the next ones of a walk. A stretch may be
    /// short, even empty, although the walk goes on.
    async fn walk_facts(&self, walk: FactsWalk) -> Result<WalkedFacts>;
}
