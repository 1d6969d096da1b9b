//! Why the gateway refuses something: classes that a caller acts on.

use tidegate::{Error, ErrorKind};
use tidegate_core::event_type::RefusedMove;
use tidegate_schema::Violation;

/// The result of the gateway's verbs.
pub(super) type Result<T, E = GatewayError> = std::result::Result<T, E>;

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
    /// Whether another writer was faster, so that the same call may succeed on what is there now.
    pub(super) fn is_race(&self) -> bool {
        matches!(self, Self::Store(error) if error.kind() == ErrorKind::Conflict)
    }
}
