//! Storing facts apart from entries, and adding entries and jobs to them.

use async_trait::async_trait;

use crate::error::Result;
use crate::values::{AddTarget, AddedTarget, Batch, CatalogueVersion, Ingest, IngestAnswer};

/// The verb that stores facts with any number of targets.
#[async_trait]
pub trait Ingestion: std::fmt::Debug + Send + Sync + 'static {
    /// Stores facts and makes their entries and jobs. An item takes effect completely or not at all: one bad target
    /// (an unknown, draining or full queue, too many lanes) refuses its item and no other. Each item's numbers are drawn
    /// together and rise in the order of its targets.
    ///
    /// An item whose key is known, from before or by an earlier item, writes nothing and is answered with the first fact,
    /// whatever its targets are. `Conflict` when that fact had another fingerprint, or the item's keys belong to different
    /// facts.
    ///
    /// With `under`, nothing is written unless the catalogue has exactly that version when the first item is written: what
    /// was decided under it was still right when the batch came. Making lanes that a target lacks is a change of the
    /// catalogue too.
    ///
    /// A batch is one transaction, unless it has more than 10,000 facts and targets: then it is split between items, and
    /// an error after the first part is the answer to each item that was not written.
    async fn ingest(&self, items: Vec<Ingest>, under: Option<CatalogueVersion>) -> Result<IngestAnswer>;

    /// Makes an entry or a job for facts that are stored, each under a key: what was made for a fact under a key is not made
    /// again, and the answer names it. At most 1,000, in one transaction, with numbers that rise in the order of the items; a
    /// bad target refuses its item and no other, as in [`ingest`](Self::ingest). `NotFound` for a fact that is gone or goes
    /// with its only entry. A key is known as long as its fact is stored, even when what was made is gone.
    async fn add_targets(&self, items: Vec<AddTarget>) -> Result<Batch<AddedTarget>>;
}
