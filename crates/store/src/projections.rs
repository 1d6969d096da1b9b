//! Projections: readers of the log that keep a position and documents.
//!
//! This trait owns how the log is read in the order of its commits, who may read for a projection, and that a position
//! moves together with what was made of the events before it. It must not know handlers, states or how documents are
//! folded: a document is bytes.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_core::{End, EntryId, Generation, Timestamp, Tsid};

use crate::error::{Error, ErrorKind, Result};
use crate::store::Fact;

/// How many documents of retired versions one call of [`Projections::sweep`] removes at most.
pub(crate) const SWEEP: i64 = 1_000;

/// What a database keeps of projections.
///
/// A projection has versions that live beside each other while a new one is built; one of them is active and answers
/// reads. Versions only go up: one below the active one is retired.
///
/// Each version has one reader at a time, by a lease. The lease spares work; exactness comes from its token and from the
/// position, which every write compares: whoever lost the lease, or repeats itself, changes nothing and is told
/// [`Fenced`](ErrorKind::Fenced).
#[async_trait]
pub trait Projections: fmt::Debug + Send + Sync {
    /// Makes the version if it is not there, and answers how it stands. The first version of a name is active at once.
    async fn register(&self, id: &ProjectionId) -> Result<ProjectionView>;

    /// Makes `reader` the reader of a version, if nobody else is. `None` when somebody is, or the version is retired.
    async fn take_reader(&self, id: &ProjectionId, reader: &str, lease: Duration) -> Result<Option<Reader>>;

    /// Moves the end of the reader's lease.
    async fn keep_reader(&self, id: &ProjectionId, token: i64, lease: Duration) -> Result<()>;

    /// Gives the reader's lease back, so that somebody else may read at once. One that is lost already is fine.
    async fn leave_reader(&self, id: &ProjectionId, token: i64) -> Result<()>;

    /// The next rows of the log. Nothing that is not committed, or could still be followed by an earlier commit, is shown.
    async fn read_log(&self, query: ReadLog) -> Result<LogPage>;

    /// Moves the position and changes documents, all or nothing. Clears what failed before.
    async fn apply(&self, step: Step, changes: Vec<Change>) -> Result<()>;

    /// Notes that an event could not be applied, or that the projection cannot go on for another reason.
    async fn fail(&self, failure: Failed) -> Result<()>;

    /// The documents under these keys, in their order.
    async fn documents(&self, id: &ProjectionId, keys: Vec<String>) -> Result<Vec<Option<Bytes>>>;

    /// Documents in the order of their keys' bytes.
    async fn list_documents(&self, id: &ProjectionId, query: ListDocuments) -> Result<Vec<Document>>;

    /// Makes a version active and retires all below it. `Fenced` unless the token is the reader's.
    async fn activate(&self, id: &ProjectionId, token: i64) -> Result<()>;

    /// Retires all versions of a projection and fences their readers: it holds no row of the log back any more. False when there
    /// is none of that name. What it kept is removed by [`sweep`](Self::sweep). A process that registers it again starts it
    /// anew, from the oldest row of the log.
    async fn remove(&self, name: &str) -> Result<bool>;

    /// Removes some documents of retired versions, and such versions once they have none; whether there are more.
    async fn sweep(&self, name: &str) -> Result<bool>;

    /// All versions of all projections, by name and version.
    async fn projections(&self) -> Result<Vec<ProjectionView>>;

    /// The active version of a projection.
    async fn active(&self, name: &str) -> Result<Option<ProjectionView>>;

    /// How far a version is behind the log, counted up to `bound`.
    async fn lag(&self, id: &ProjectionId, bound: u32) -> Result<Lag>;

    /// Where an ended entry stands in the log; `None` while it lives.
    async fn logged_at(&self, entry: EntryId) -> Result<Option<Position>>;
}

/// A place in the log, in the order of commits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// Postgres: the transaction that wrote the row, counted on across clusters. SQLite: the row's number.
    pub(crate) commit: u64,
    /// Postgres: the entry. SQLite: 0.
    pub(crate) id: i64,
}

impl Position {
    /// Before everything.
    pub const START: Self = Self { commit: 0, id: 0 };
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.commit, self.id)
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One version of one projection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProjectionId {
    /// Its name.
    pub name: String,
    /// Its version, from 1.
    pub version: i32,
}

impl ProjectionId {
    /// Checks name and version.
    ///
    /// # Errors
    /// `Invalid` when the name is not 1 to 255 bytes of text, or the version is below 1.
    pub fn new(name: impl Into<String>, version: i32) -> Result<Self> {
        let name = name.into();
        tidegate_core::name::check_text("projection name", &name)?;
        if version < 1 {
            return Err(Error::invalid(format!("projection {name}: versions start at 1, not {version}")));
        }
        Ok(Self { name, version })
    }

    pub(crate) fn missing(&self) -> Error {
        Error::new(ErrorKind::NotFound, format!("there is no projection {self}"))
    }
}

impl fmt::Display for ProjectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} version {}", self.name, self.version)
    }
}

/// Where a version is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProjectionState {
    /// Reads the log from its oldest row, beside the active version.
    Building,
    /// Answers reads.
    Active,
    /// A later version is active; its documents are being removed.
    Retired,
}

impl ProjectionState {
    pub(crate) fn from_code(code: i16) -> Result<Self> {
        match code {
            0 => Ok(Self::Building),
            1 => Ok(Self::Active),
            2 => Ok(Self::Retired),
            _ => Err(Error::new(ErrorKind::Corrupt, format!("a projection has an unknown state {code}"))),
        }
    }
}

/// How a version stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectionView {
    /// Which.
    pub id: ProjectionId,
    /// Where it is in its life.
    pub state: ProjectionState,
    /// Up to where it has read.
    pub position: Position,
    /// How many events it has taken in.
    pub events: u64,
    /// Who reads for it, and until when without a further sign of life.
    pub reader: Option<(String, Timestamp)>,
    /// Why it stands still, if it does.
    pub failure: Option<ProjectionFailure>,
    /// When it last moved, failed or changed hands.
    pub updated_at: Timestamp,
}

/// Why a projection stands still.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectionFailure {
    /// The entry of the event that fails; `None` when it is no single event: a hook, or the commit.
    pub entry: Option<EntryId>,
    /// How often it was tried in a row.
    pub failures: u32,
    /// What went wrong last.
    pub error: String,
    /// When it is tried again.
    pub retry_at: Timestamp,
}

/// The right to read for a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    /// Names this right in every write.
    pub token: i64,
    /// Where to go on.
    pub position: Position,
    /// Where the version is in its life.
    pub state: ProjectionState,
}

/// Which rows of the log to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadLog {
    /// After this place.
    pub after: Position,
    /// Only entries that ended so.
    pub ends: Vec<End>,
    /// Only events of these types; all when `None`.
    pub types: Option<Vec<String>>,
    /// How many rows to walk over at most, wanted or not.
    pub limit: usize,
}

/// Some rows of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPage {
    /// The wanted rows, in order.
    pub rows: Vec<LogRow>,
    /// The place after the last row that was walked over.
    pub end: Position,
    /// Whether there was nothing more to walk over for now.
    pub exhausted: bool,
}

/// An entry's end, with its fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRow {
    /// Where it stands.
    pub position: Position,
    /// The entry.
    pub id: EntryId,
    /// Its generation.
    pub generation: Generation,
    /// The event's id.
    pub event_id: Tsid,
    /// How it ended.
    pub end: End,
    /// When.
    pub finished_at: Timestamp,
    /// The fact.
    pub fact: Fact,
}

/// A move of a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Of which version.
    pub id: ProjectionId,
    /// By whom.
    pub token: i64,
    /// From here; anything else is `Fenced`.
    pub from: Position,
    /// To here.
    pub to: Position,
    /// How many events were taken in between.
    pub events: u64,
    /// The reader's lease runs this long from now.
    pub lease: Duration,
}

/// A document to be written or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its key.
    pub key: String,
    /// What it is from now on; `None` removes it.
    pub document: Option<Bytes>,
    /// Whether there was one before.
    pub existed: bool,
}

/// An event that could not be applied, or a step that fails whatever the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// By which version.
    pub id: ProjectionId,
    /// By whom.
    pub token: i64,
    /// The event's entry, where it is one event that fails.
    pub entry: Option<EntryId>,
    /// What went wrong.
    pub error: String,
    /// When it is tried again.
    pub retry_after: Duration,
    /// The reader's lease runs this long from now.
    pub lease: Duration,
}

/// Which documents to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListDocuments {
    /// Only keys that begin so.
    pub prefix: String,
    /// After this key.
    pub after: Option<String>,
    /// How many at most.
    pub limit: usize,
}

impl ListDocuments {
    /// The key to begin at. A statement that is bounded by it costs what it answers, however deep the page.
    pub(crate) fn start(&self) -> &str {
        self.after.as_deref().map_or(&self.prefix, |after| after.max(&self.prefix))
    }
}

/// A document under its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its key.
    pub key: String,
    /// Its bytes.
    pub document: Bytes,
}

/// How far a version is behind the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lag {
    /// Rows of the log that were not read yet, wanted or not.
    pub rows: u64,
    /// Whether there are more than were counted.
    pub more: bool,
    /// How long ago the oldest of them was written.
    pub age: Duration,
    /// Whose open transaction keeps them from being read: an earlier commit could still come from it.
    pub held_by: Option<Blocker>,
}

/// An open transaction that holds readers of the log back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// The server process, unless it is a prepared transaction.
    pub pid: Option<i32>,
    /// What it calls itself: the application's name, or the prepared transaction's.
    pub name: String,
    /// What it does, such as `idle in transaction`.
    pub state: String,
    /// Since when.
    pub since: Option<Timestamp>,
}
