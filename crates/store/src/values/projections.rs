//! Positions, readers, documents and failures of projections.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::{End, EntryId, Generation, Timestamp, Tsid};

use crate::error::{Error, ErrorKind, Result};
use crate::values::Fact;

/// The most documents of retired versions that one call of [`Projections::sweep`] removes.
pub(crate) const SWEEP: i64 = 1_000;

/// A position in the log, in commit order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// Postgres: the id of the transaction that wrote the row, continued across clusters. SQLite: the row's number.
    pub(crate) commit: u64,
    /// Postgres: the entry's number. SQLite: 0.
    pub(crate) id: i64,
}

impl Position {
    /// The position before the first row.
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
    /// A version of a projection, with name and version checked.
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

/// A version of a projection as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectionView {
    /// The projection and its version.
    pub id: ProjectionId,
    /// Where it is in its life.
    pub state: ProjectionState,
    /// How far it has read.
    pub position: Position,
    /// How many events it has applied.
    pub events: u64,
    /// The reader, and when its lease ends; `None` without a reader.
    pub reader: Option<(String, Timestamp)>,
    /// Why it does not advance; `None` while it does.
    pub failure: Option<ProjectionFailure>,
    /// When it last moved, failed, or got or lost a reader.
    pub updated_at: Timestamp,
}

/// Why a projection does not advance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectionFailure {
    /// The entry whose event fails; `None` when it is not a single event: a hook, or the commit.
    pub entry: Option<EntryId>,
    /// How often in a row it has failed.
    pub failures: u32,
    /// The last error.
    pub error: String,
    /// When it is tried again.
    pub retry_at: Timestamp,
}

/// A reader's lease on a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    /// Identifies the lease in every write.
    pub token: i64,
    /// Where to continue.
    pub position: Position,
    /// Where the version is in its life.
    pub state: ProjectionState,
}

/// Which rows of the log to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadLog {
    /// Only rows after this position.
    pub after: Position,
    /// Only entries that ended in one of these ways.
    pub ends: Vec<End>,
    /// Only events of these types; all when `None`.
    pub types: Option<Vec<String>>,
    /// The most rows to walk over, whether they match or not.
    pub limit: usize,
}

/// One page of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPage {
    /// The rows that match, in order.
    pub rows: Vec<LogRow>,
    /// The position of the last row that was walked over.
    pub end: Position,
    /// Whether the end of what can be read now was reached.
    pub exhausted: bool,
}

/// An entry's end, with its fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRow {
    /// Its position in the log.
    pub position: Position,
    /// The entry's number.
    pub id: EntryId,
    /// Its generation.
    pub generation: Generation,
    /// The event's id.
    pub event_id: Tsid,
    /// How it ended.
    pub end: End,
    /// When it ended.
    pub finished_at: Timestamp,
    /// The event itself.
    pub fact: Fact,
}

/// A move of a version's position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The version.
    pub id: ProjectionId,
    /// The token of the reader's lease.
    pub token: i64,
    /// The present position; `Fenced` if it is another.
    pub from: Position,
    /// The new position.
    pub to: Position,
    /// How many events were applied between the two.
    pub events: u64,
    /// How long the reader's lease lasts from now.
    pub lease: Duration,
}

/// A document to be written or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its key.
    pub key: String,
    /// Its new contents; `None` removes it.
    pub document: Option<Bytes>,
    /// Whether the document exists already.
    pub existed: bool,
}

/// A failure of a version: an event that cannot be applied, or a step that fails whatever the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The version.
    pub id: ProjectionId,
    /// The token of the reader's lease.
    pub token: i64,
    /// The entry whose event fails; `None` when it is not a single event.
    pub entry: Option<EntryId>,
    /// What went wrong.
    pub error: String,
    /// After what time it is tried again.
    pub retry_after: Duration,
    /// How long the reader's lease lasts from now.
    pub lease: Duration,
}

/// Which documents to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListDocuments {
    /// Only keys with this prefix.
    pub prefix: String,
    /// Only keys after this one (a cursor).
    pub after: Option<String>,
    /// The most documents to return.
    pub limit: usize,
}

impl ListDocuments {
    /// The key to start at. Bounding the statement by it makes its cost follow the page, however deep that is.
    pub(crate) fn start(&self) -> &str {
        self.after.as_deref().map_or(&self.prefix, |after| after.max(&self.prefix))
    }
}

/// A document and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its key.
    pub key: String,
    /// Its contents.
    pub document: Bytes,
}

/// How far a version is behind the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lag {
    /// Rows of the log that were not read yet, whether they match or not.
    pub rows: u64,
    /// Whether there are more rows than were counted.
    pub more: bool,
    /// How long ago the oldest of them was written.
    pub age: Duration,
    /// The open transaction that keeps them from being read, as it could still commit an earlier row.
    pub held_by: Option<Blocker>,
}

/// An open transaction that holds readers of the log back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// The server process; `None` for a prepared transaction.
    pub pid: Option<i32>,
    /// The application's name, or the name of the prepared transaction.
    pub name: String,
    /// Its state, such as `idle in transaction`.
    pub state: String,
    /// When the transaction began.
    pub since: Option<Timestamp>,
}
