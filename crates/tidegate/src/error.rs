//! Errors are the store's: classes that a caller acts on.

pub use tidegate_store::{Error, ErrorKind, Result};

/// The answer of everything that is asked of a closed queue.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the queue is closed")
}

/// The answer of a queue whose runtime is gone.
pub(crate) fn stranded() -> Error {
    let message = "the runtime that this queue was opened on is gone: open the queue on the runtime that uses it";
    Error::new(ErrorKind::Unavailable, message)
}

/// A flush whose task ended before it could answer.
pub(crate) fn lost() -> Error {
    Error::new(ErrorKind::Indeterminate, "the answer was lost inside this process: it may or may not have happened")
}

/// Whether the same call may succeed a little later.
pub(crate) fn is_transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unavailable)
}
