//! SQLite's codes as classes that a caller acts on. The only place that knows them.

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
            | rusqlite::Error::Utf8Error(..) => (ErrorKind::Corrupt, "the database holds a value that does not fit"),
            _ => (ErrorKind::Invalid, "the request does not fit the database"),
        };
    };
    if is_lost_sync(code) {
        return (ErrorKind::Corrupt, "the database could not make data durable");
    }
    match code & 0xff {
        ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED => (ErrorKind::Busy, "somebody else holds the database's lock"),
        ffi::SQLITE_FULL => (ErrorKind::Unavailable, "there is no space left for the database"),
        ffi::SQLITE_READONLY => (ErrorKind::Unavailable, "the database is read-only"),
        ffi::SQLITE_CANTOPEN => (ErrorKind::Unavailable, "the database file cannot be opened"),
        ffi::SQLITE_IOERR => (ErrorKind::Unavailable, "the database's disk failed"),
        ffi::SQLITE_PERM | ffi::SQLITE_AUTH => (ErrorKind::Unavailable, "the database may not be used"),
        ffi::SQLITE_NOMEM => (ErrorKind::Unavailable, "there is no memory left for the database"),
        ffi::SQLITE_CORRUPT => (ErrorKind::Corrupt, "the database is damaged"),
        ffi::SQLITE_NOTADB => (ErrorKind::Corrupt, "the file is not a SQLite database"),
        ffi::SQLITE_CONSTRAINT => (ErrorKind::Conflict, "the database refused it"),
        ffi::SQLITE_SCHEMA => (ErrorKind::Schema, "the database's schema changed"),
        _ => (ErrorKind::Invalid, "the request does not fit the database"),
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

/// A failed fsync: what was written may be gone while the kernel believes it is not, so nothing may be tried again.
pub(super) fn is_fatal(error: &Error) -> bool {
    database_error(error).and_then(extended_code).is_some_and(is_lost_sync)
}

/// What stands in the database is not what this program writes.
pub(super) fn damaged(what: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

pub(super) fn closed() -> Error {
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
        ];
        for (code, kind) in cases {
            assert_eq!(failure(code).kind(), kind, "{code}");
        }
        assert!(failure(ffi::SQLITE_FULL).to_string().contains("no space"));
    }

    #[test]
    fn only_a_failed_fsync_is_fatal() {
        assert!(is_fatal(&failure(ffi::SQLITE_IOERR_FSYNC)));
        assert!(is_fatal(&failure(ffi::SQLITE_IOERR_DIR_FSYNC)));
        assert!(!is_fatal(&failure(ffi::SQLITE_IOERR_WRITE)));
        assert!(!is_fatal(&Error::fenced()));
    }
}
