//! Errors as classes that a caller acts on. Knows no database: its codes are translated in each backend.

use std::borrow::Cow;

/// The result of a store call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The class of an error: what a caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such entry, queue or other object.
    NotFound,
    /// It contradicts what is stored: other contents under the same key, or a state that does not allow it.
    Conflict,
    /// The lease is no longer held; nothing was changed.
    Fenced,
    /// The entry had ended already; nothing was changed.
    AlreadyEnded,
    /// The queue is at its limit or draining; publish later or elsewhere.
    Full,
    /// Too many calls at once, or a lock was not granted in time; try again.
    Busy,
    /// The database cannot be reached or refuses to work (down, read-only, no space); try again once that is repaired.
    Unavailable,
    /// The request can never succeed as it is.
    Invalid,
    /// The database's schema does not fit this program.
    Schema,
    /// The database reported damaged data, or could not make data durable. Stop and investigate.
    Corrupt,
    /// The answer to a commit was lost, and whether it took place could not be found out.
    Indeterminate,
}

/// An error of a store: its class, a message, and what the database reported.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    #[source]
    source: Option<std::sync::Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error with a message for people.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(std::sync::Arc::new(source));
        self
    }

    /// Its class.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// A request that can never succeed as it is.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// The lease is no longer held.
    #[must_use]
    pub fn fenced() -> Self {
        Self::new(ErrorKind::Fenced, "the lease is no longer held: another claim, a release or an end came first")
    }

    /// No such entry.
    #[must_use]
    pub fn no_entry(id: tidegate_core::EntryId) -> Self {
        Self::new(ErrorKind::NotFound, format!("there is no entry {id}"))
    }
}

impl From<tidegate_core::event::InvalidEvent> for Error {
    fn from(error: tidegate_core::event::InvalidEvent) -> Self {
        Self::invalid(error.to_string()).with_source(error)
    }
}

impl From<tidegate_core::InvalidName> for Error {
    fn from(error: tidegate_core::InvalidName) -> Self {
        Self::invalid(error.to_string()).with_source(error)
    }
}

impl From<tidegate_core::InvalidId> for Error {
    fn from(error: tidegate_core::InvalidId) -> Self {
        Self::invalid(error.to_string()).with_source(error)
    }
}
