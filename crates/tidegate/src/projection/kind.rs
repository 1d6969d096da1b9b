//! [`Form`], the interface between the loop of a projection and its two forms. The loop owns order, leases and retries;
//! a form turns events into writes and commits them together with the position.

use std::future::Future;

use tidegate_core::EntryId;
use tidegate_store::{LogRow, Position, Reader, Step};

use super::core::Core;
use crate::error::Result;

/// Rows of the log that are applied in one transaction.
pub(crate) struct Batch {
    pub(crate) rows: Vec<LogRow>,
    /// The position after them, and after unwanted rows that follow them.
    pub(crate) end: Position,
}

/// A batch that is ready to be committed.
pub(crate) struct Prepared<W> {
    /// What to write.
    pub(crate) work: W,
    /// How many events it applies; with a failure, how many events before it are good.
    pub(crate) events: usize,
    /// The position after them.
    pub(crate) to: Position,
    /// The event that failed; then nothing must be written.
    pub(crate) failure: Option<Failure>,
}

/// Why a projection is stopped: an event that could not be applied or, with `entry` `None`, a hook or a commit.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) entry: Option<EntryId>,
    pub(crate) error: String,
}

impl Failure {
    pub(crate) fn of(entry: EntryId, error: String) -> Self {
        Self { entry: Some(entry), error }
    }

    /// " at entry N" for error texts; empty without an entry.
    pub(crate) fn location(entry: Option<EntryId>) -> String {
        entry.map_or_else(String::new, |entry| format!(" at entry {entry}"))
    }
}

/// The result of a commit.
pub(crate) struct Committed {
    /// The stored position.
    pub(crate) to: Position,
    /// How many events were applied.
    pub(crate) events: u64,
    /// The event that could not be applied, if one failed; events before it are committed.
    pub(crate) failure: Option<Failure>,
}

/// A form of projection.
pub(crate) trait Form: Send + Sync + 'static {
    /// What a reader remembers between batches, as long as its lease guarantees that no other reader has written.
    type Memory: Default + Send + Sync;
    /// What a batch writes.
    type Work: Send + 'static;

    /// Event types that have a handler.
    fn types(&self) -> Vec<String>;

    /// Called by a new reader before it reads; repeated until it succeeds.
    fn begin(&self, core: &Core, reader: &Reader) -> impl Future<Output = Result<()>> + Send;

    /// Computes what a batch changes. The batch before may not be committed yet.
    fn prepare(
        &self,
        core: &Core,
        memory: &mut Self::Memory,
        batch: Batch,
    ) -> impl Future<Output = Result<Prepared<Self::Work>>> + Send;

    /// Writes the changes together with the position.
    fn commit(&self, core: &Core, step: Step, work: Self::Work) -> impl Future<Output = Result<Committed>> + Send;

    /// Makes this version the active one.
    fn activate(&self, core: &Core, token: i64) -> impl Future<Output = Result<()>> + Send;
}
