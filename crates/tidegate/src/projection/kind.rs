//! What the two forms of projections share, as the loop sees them. The loop owns order, leases and retries; a form owns what
//! is made of events and writes it together with the position.

use std::future::Future;

use tidegate_core::EntryId;
use tidegate_store::{LogRow, Position, Reader, Step};

use super::core::Core;
use crate::error::Result;

/// Some rows to be taken in together.
pub(crate) struct Batch {
    pub(crate) rows: Vec<LogRow>,
    /// Where the log stands after them, and after unwanted rows behind them.
    pub(crate) end: Position,
}

/// What a batch became before anything was written.
pub(crate) struct Prepared<W> {
    /// What to write.
    pub(crate) work: W,
    /// How many events it stands for; with a failure, how many before it are good.
    pub(crate) events: usize,
    /// Where the log stands after them.
    pub(crate) to: Position,
    /// The event that failed: then nothing is to be written.
    pub(crate) failure: Option<Failure>,
}

/// What keeps a projection from going on: an event that could not be taken in, or without one a hook or a commit.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) entry: Option<EntryId>,
    pub(crate) error: String,
}

impl Failure {
    pub(crate) fn of(entry: EntryId, error: String) -> Self {
        Self { entry: Some(entry), error }
    }

    /// Where it stands still, for people.
    pub(crate) fn place(entry: Option<EntryId>) -> String {
        entry.map_or_else(String::new, |entry| format!(" at entry {entry}"))
    }
}

/// What a write did.
pub(crate) struct Committed {
    /// Where the position stands now.
    pub(crate) to: Position,
    /// How many events were taken in.
    pub(crate) events: u64,
    /// The event that stopped it.
    pub(crate) failure: Option<Failure>,
}

/// A form of projection.
pub(crate) trait Form: Send + Sync + 'static {
    /// What is remembered as long as nobody else can have written.
    type Memory: Default + Send + Sync;
    /// What is to be written.
    type Work: Send + 'static;

    /// Event types that have a handler.
    fn types(&self) -> Vec<String>;

    /// Called by a reader that begins, before it reads; again until it succeeds.
    fn begin(&self, core: &Core, reader: &Reader) -> impl Future<Output = Result<()>> + Send;

    /// Works out what a batch changes. The batch before may not be written yet.
    fn prepare(
        &self,
        core: &Core,
        memory: &mut Self::Memory,
        batch: Batch,
    ) -> impl Future<Output = Result<Prepared<Self::Work>>> + Send;

    /// Writes it with the position.
    fn commit(&self, core: &Core, step: Step, work: Self::Work) -> impl Future<Output = Result<Committed>> + Send;

    /// Makes this version the active one.
    fn activate(&self, core: &Core, token: i64) -> impl Future<Output = Result<()>> + Send;
}
