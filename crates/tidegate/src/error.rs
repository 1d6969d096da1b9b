//! Re-exports the store's error type, and the errors that the library itself creates.

pub use tidegate_store::{Error, ErrorKind, Result};

/// Returned by every call on a closed queue.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the queue is closed")
}

/// Returned by every call on a queue whose tokio runtime has ended.
pub(crate) fn stranded() -> Error {
    let message = "the runtime that this queue was opened on is gone: open the queue on the runtime that uses it";
    Error::new(ErrorKind::Unavailable, message)
}

/// Returned when the task of a flush ended before it could answer.
pub(crate) fn lost() -> Error {
    let message = "a task of this process ended before it answered: the operation may or may not have taken place";
    Error::new(ErrorKind::Indeterminate, message)
}

/// Whether the same call may succeed when it is repeated a little later.
pub(crate) fn is_transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unavailable)
}
