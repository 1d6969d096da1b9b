//! SQLite's error codes as error classes. The only module that knows the codes.

use std::error::Error as _;
use std::sync::Arc;

use rusqlite::ffi;

use crate::error::{Error, ErrorKind};

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        let (kind, what) = classify(&error);
        Self::new(kind, format!("{what}: {error}")).with_source(error)
    }
}

fn classify(error: &rusqlite::Error) -> (ErrorKind, &'static str) {
    let Some(code) = extended_code(error) else {
        return match error {
            rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::Utf8Error(..) => (ErrorKind::Corrupt, "a stored value has the wrong type or range"),
            _ => (ErrorKind::Invalid, "the database cannot execute the request"),
        };
    };
    if is_lost_sync(code) {
        return (ErrorKind::Corrupt, "the database could not make data durable");
    }
    if code == ffi::SQLITE_CONSTRAINT_COMMITHOOK {
        return (
            ErrorKind::Conflict,
            "the transaction is over (SQLite rolled it back, or a statement ended it): nothing was written",
        );
    }
    match code & 0xff {
        ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED => (ErrorKind::Busy, "another connection holds the database's lock"),
        ffi::SQLITE_FULL => (ErrorKind::Unavailable, "there is no space left for the database"),
        ffi::SQLITE_READONLY => (ErrorKind::Unavailable, "the database is read-only"),
        ffi::SQLITE_CANTOPEN => (ErrorKind::Unavailable, "the database file cannot be opened"),
        ffi::SQLITE_IOERR => (ErrorKind::Unavailable, "the database's disk failed"),
        ffi::SQLITE_PERM | ffi::SQLITE_AUTH => (ErrorKind::Unavailable, "access to the database is not permitted"),
        ffi::SQLITE_NOMEM => (ErrorKind::Unavailable, "there is no memory left for the database"),
        ffi::SQLITE_CORRUPT => (ErrorKind::Corrupt, "the database is damaged"),
        ffi::SQLITE_NOTADB => (ErrorKind::Corrupt, "the file is not a SQLite database"),
        ffi::SQLITE_CONSTRAINT => (ErrorKind::Conflict, "the database refused the write"),
        ffi::SQLITE_SCHEMA => (ErrorKind::Schema, "the database's schema changed"),
        // The request is not at fault: the same call may succeed a little later.
        ffi::SQLITE_PROTOCOL => (ErrorKind::Busy, "other processes kept the write-ahead log's locks busy"),
        ffi::SQLITE_INTERRUPT | ffi::SQLITE_ABORT => (ErrorKind::Unavailable, "the statement was interrupted"),
        ffi::SQLITE_NOLFS => (ErrorKind::Unavailable, "the file system cannot hold a file this large"),
        ffi::SQLITE_INTERNAL | ffi::SQLITE_MISUSE => (ErrorKind::Unavailable, "the database library failed"),
        _ => (ErrorKind::Invalid, "the database cannot execute the request"),
    }
}

fn extended_code(error: &rusqlite::Error) -> Option<i32> {
    match error {
        rusqlite::Error::SqlInputError { error, .. } => Some(error.extended_code),
        _ => error.sqlite_error().map(|error| error.extended_code),
    }
}

fn is_lost_sync(code: i32) -> bool {
    matches!(code, ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC)
}

fn database_error(error: &Error) -> Option<&rusqlite::Error> {
    let source = error.source()?;
    source.downcast_ref::<rusqlite::Error>().or_else(|| {
        source
            .downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()
            .and_then(|shared| shared.downcast_ref::<rusqlite::Error>())
    })
}

/// The error of a commit. If the disk failed to make it durable, whether it took place shows only after a restart.
pub(in crate::sqlite) fn at_commit(error: rusqlite::Error) -> Error {
    if extended_code(&error).is_some_and(is_lost_sync) {
        let message = format!(
            "the disk failed during a commit, which may or may not have happened: restart to find out ({error})"
        );
        return Error::new(ErrorKind::Indeterminate, message).with_source(error);
    }
    error.into()
}

/// The error of every call once the store has stopped.
pub(in crate::sqlite) fn stopped(cause: &Error) -> Error {
    let message =
        format!("the store has stopped: data could not be made durable ({cause}). Repair the disk and restart");
    Error::new(ErrorKind::Corrupt, message).with_source(cause.clone())
}

/// The error for work during which SQLite rolled the transaction back.
pub(in crate::sqlite) fn rolled_back() -> Error {
    Error::new(ErrorKind::Conflict, "the transaction was rolled back by one of its statements: nothing was written")
}

/// Whether an fsync failed: data may be lost although the kernel reports it as written, so nothing may be retried.
pub(in crate::sqlite) fn is_fatal(error: &Error) -> bool {
    database_error(error).and_then(extended_code).is_some_and(is_lost_sync)
}

/// The error for stored data that this program does not write.
pub(in crate::sqlite) fn damaged(what: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

pub(in crate::sqlite) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the store is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: i32) -> Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), None).into()
    }

    #[test]
    fn codes_become_classes() {
        let cases = [
            (ffi::SQLITE_BUSY_SNAPSHOT, ErrorKind::Busy),
            (ffi::SQLITE_LOCKED, ErrorKind::Busy),
            (ffi::SQLITE_FULL, ErrorKind::Unavailable),
            (ffi::SQLITE_READONLY_DIRECTORY, ErrorKind::Unavailable),
            (ffi::SQLITE_CANTOPEN, ErrorKind::Unavailable),
            (ffi::SQLITE_IOERR_WRITE, ErrorKind::Unavailable),
            (ffi::SQLITE_IOERR_FSYNC, ErrorKind::Corrupt),
            (ffi::SQLITE_CORRUPT, ErrorKind::Corrupt),
            (ffi::SQLITE_NOTADB, ErrorKind::Corrupt),
            (ffi::SQLITE_PROTOCOL, ErrorKind::Busy),
            (ffi::SQLITE_INTERRUPT, ErrorKind::Unavailable),
            (ffi::SQLITE_ABORT_ROLLBACK, ErrorKind::Unavailable),
            (ffi::SQLITE_CONSTRAINT_COMMITHOOK, ErrorKind::Conflict),
            (ffi::SQLITE_TOOBIG, ErrorKind::Invalid),
        ];
        for (code, kind) in cases {
            assert_eq!(failure(code).kind(), kind, "{code}");
        }
        assert!(failure(ffi::SQLITE_FULL).to_string().contains("no space"));
    }

    #[test]
    fn only_a_failed_fsync_at_a_commit_leaves_its_outcome_open() {
        let at = |code| at_commit(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
        assert_eq!(at(ffi::SQLITE_IOERR_FSYNC).kind(), ErrorKind::Indeterminate);
        assert!(is_fatal(&at(ffi::SQLITE_IOERR_FSYNC)));
        assert_eq!(at(ffi::SQLITE_FULL).kind(), ErrorKind::Unavailable);
        assert_eq!(at(ffi::SQLITE_IOERR_WRITE).kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn only_a_failed_fsync_is_fatal() {
        assert!(is_fatal(&failure(ffi::SQLITE_IOERR_FSYNC)));
        assert!(is_fatal(&failure(ffi::SQLITE_IOERR_DIR_FSYNC)));
        assert!(!is_fatal(&failure(ffi::SQLITE_IOERR_WRITE)));
        assert!(!is_fatal(&Error::fenced()));
    }
}
