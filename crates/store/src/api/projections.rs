//! Projections: their readers, positions, documents and failures, and the log that they read.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_core::EntryId;

use crate::error::Result;
use crate::values::{
    Change, Document, Failed, Lag, ListDocuments, LogPage, Position, ProjectionId, ProjectionView, ReadLog, Reader,
    Step,
};

/// What a database keeps about projections.
///
/// A projection has versions that exist beside each other while a new one is built; one of them is active and answers
/// reads. Versions only go up: one below the active one is retired.
///
/// Each version has one reader at a time, by a lease. The lease only avoids duplicate work; exactness comes from its
/// token and from the position, which every write compares: a reader that lost its lease, or repeats a write, changes
/// nothing and gets [`Fenced`](ErrorKind::Fenced).
#[async_trait]
pub trait Projections: fmt::Debug + Send + Sync {
    /// Creates the version if it does not exist, and returns it. The first version of a name is active at once.
    async fn register(&self, id: &ProjectionId) -> Result<ProjectionView>;

    /// Makes `reader` the reader of a version. `None` when it has another reader, or the version is retired.
    async fn take_reader(&self, id: &ProjectionId, reader: &str, lease: Duration) -> Result<Option<Reader>>;

    /// Extends the reader's lease to `lease` from now. `Fenced` unless the token is the reader's.
    async fn keep_reader(&self, id: &ProjectionId, token: i64, lease: Duration) -> Result<()>;

    /// Gives the reader's lease back, so that another process may read at once. Does nothing if it is lost already.
    async fn leave_reader(&self, id: &ProjectionId, token: i64) -> Result<()>;

    /// The next rows of the log. A row is returned only once it is committed and no earlier one can still be.
    async fn read_log(&self, query: ReadLog) -> Result<LogPage>;

    /// Moves the position and changes documents, all or nothing. Clears a recorded failure.
    async fn apply(&self, step: Step, changes: Vec<Change>) -> Result<()>;

    /// Records that an event could not be applied, or that the projection cannot continue for another reason.
    async fn fail(&self, failure: Failed) -> Result<()>;

    /// The documents under these keys, in the order of the keys.
    async fn documents(&self, id: &ProjectionId, keys: Vec<String>) -> Result<Vec<Option<Bytes>>>;

    /// Documents in the byte order of their keys.
    async fn list_documents(&self, id: &ProjectionId, query: ListDocuments) -> Result<Vec<Document>>;

    /// Makes a version active and retires all below it. `Fenced` unless the token is the reader's.
    async fn activate(&self, id: &ProjectionId, token: i64) -> Result<()>;

    /// Retires all versions of a projection and fences their readers, so that retention no longer waits for it. `false`
    /// when there is none of that name. Its documents are removed by [`sweep`](Self::sweep). A process that registers
    /// it again starts it anew, from the oldest row of the log.
    async fn remove(&self, name: &str) -> Result<bool>;

    /// Removes some documents of retired versions, and versions that have none left. Returns whether there may be more.
    async fn sweep(&self, name: &str) -> Result<bool>;

    /// All versions of all projections, by name and version.
    async fn projections(&self) -> Result<Vec<ProjectionView>>;

    /// The active version of a projection; `None` when there is none.
    async fn active(&self, name: &str) -> Result<Option<ProjectionView>>;

    /// How far a version is behind the log, counted up to `bound` rows.
    async fn lag(&self, id: &ProjectionId, bound: u32) -> Result<Lag>;

    /// The position of an ended entry in the log; `None` while it is live.
    async fn logged_at(&self, entry: EntryId) -> Result<Option<Position>>;
}
