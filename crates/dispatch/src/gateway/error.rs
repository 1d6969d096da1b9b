//! Why the gateway refuses something: classes that a caller acts on.

use tidegate::{Error, ErrorKind};
use tidegate_core::event_type::RefusedMove;
use tidegate_schema::Violation;

/// The result of the gateway's verbs.
pub(crate) type Result<T, E = GatewayError> = std::result::Result<T, E>;

/// Why something was refused. Nothing was written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GatewayError {
    /// What is named does not exist.
    #[error("{0}")]
    NotFound(String),
    /// A field has a value that it must not have; the text names the field.
    #[error("{0}")]
    Invalid(String),
    /// The data was read and is wrong: what, and where.
    #[error("{message}")]
    Unprocessable {
        /// What is wrong as a whole.
        message: String,
        /// The single faults. Paths begin with the field that they are in.
        violations: Vec<Violation>,
    },
    /// The present state does not allow it.
    #[error("{0}")]
    Conflict(String),
    /// One of the keys of an event stands for another event.
    #[error("{0}")]
    KeyReused(String),
    /// It has changed since the caller read it.
    #[error("{0}")]
    Changed(String),
    /// The content type cannot be validated by this schema.
    #[error("{0}")]
    Unsupported(String),
    /// The store's error.
    #[error(transparent)]
    Store(#[from] Error),
}

impl From<RefusedMove> for GatewayError {
    fn from(refused: RefusedMove) -> Self {
        match refused {
            RefusedMove::NoSuchVersion(_) => Self::NotFound(refused.to_string()),
            _ => Self::Conflict(refused.to_string()),
        }
    }
}

impl GatewayError {
    /// The error of an event that was to be stored, where `Conflict` means that a key stands for another one.
    pub(super) fn from_ingest(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Conflict => Self::KeyReused(error.to_string()),
            _ => Self::Store(error),
        }
    }

    /// The store's error that this one stands for, where no other is possible.
    pub(super) fn into_store(self) -> Error {
        match self {
            Self::Store(error) => error,
            other => Error::new(ErrorKind::Corrupt, other.to_string()),
        }
    }

    /// Whether another writer was faster, so that the same call may succeed on what is there now.
    pub(super) fn is_race(&self) -> bool {
        matches!(self, Self::Store(error) if error.kind() == ErrorKind::Conflict)
    }
}

/// What was read is gone: the change is tried again, and says what is missing.
pub(super) fn gone(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::Conflict, error.to_string()),
        _ => error,
    }
}

/// The error of work in which this program failed.
pub(crate) fn failed_within() -> GatewayError {
    Error::new(ErrorKind::Indeterminate, "it failed within Tidegate: its log has the reason").into()
}
