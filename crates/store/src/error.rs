//! Errors as classes that a caller acts on.

use std::borrow::Cow;

/// What a store answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No such entry or queue.
    NotFound,
    /// It contradicts what is stored: another body under the same key, a state that does not allow it.
    Conflict,
    /// The lease named is no longer held; nothing was changed.
    Fenced,
    /// The entry had ended already; nothing was changed.
    AlreadyEnded,
    /// The queue holds as much as it may, or is draining; publish later or elsewhere.
    Full,
    /// Too much at once, or a lock was not granted in time; try again.
    Busy,
    /// The database cannot be reached or refuses to work (down, read-only, no space); try again once it is mended.
    Unavailable,
    /// The request can never succeed as it is.
    Invalid,
    /// The database's schema does not fit this program.
    Schema,
    /// The database reported that stored data is damaged, or that it could not make data durable. Stop and look.
    Corrupt,
    /// The answer to a commit was lost and could not be found out: it may or may not have happened.
    Indeterminate,
}

/// An error of a store, with its class, what happened, and what the database said.
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

    /// Keeps what caused it.
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
