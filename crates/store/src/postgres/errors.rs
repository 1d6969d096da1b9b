//! Translates what PostgreSQL says into classes that a caller acts on. The only place that knows SQLSTATE codes.

use tokio_postgres::error::SqlState;

use crate::error::{Error, ErrorKind};

/// Why a piece of work on a connection stopped.
#[derive(Debug)]
pub(super) enum Fault {
    /// The connection is gone or never came to be; nothing is known to be wrong with the work.
    Lost(Error),
    /// The database asks to run the transaction again (deadlock, serialisation).
    Again(Error),
    /// The cached configuration is older than the database's.
    StaleCatalog,
    /// The store's heartbeat is old: it was down, and leases must be moved before any is taken over.
    StaleHeartbeat,
    /// An error for the caller.
    Final(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        classify(error)
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        classify(error).into_error()
    }
}

impl From<deadpool_postgres::PoolError> for Fault {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        match error {
            deadpool_postgres::PoolError::Backend(error) => match classify(error) {
                Fault::Final(error) if error.kind() != ErrorKind::Invalid => Self::Lost(error),
                other => other,
            },
            deadpool_postgres::PoolError::Timeout(_) => Self::Final(
                Error::new(ErrorKind::Busy, "no database connection became free in time").with_source(error),
            ),
            deadpool_postgres::PoolError::Closed => {
                Self::Final(Error::new(ErrorKind::Unavailable, "the store is closed"))
            }
            error => Self::Lost(Error::new(ErrorKind::Unavailable, "no database connection").with_source(error)),
        }
    }
}

impl Fault {
    /// The error a caller sees when nothing more can be tried.
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Lost(error) | Self::Again(error) | Self::Final(error) => error,
            Self::StaleCatalog => Error::new(ErrorKind::Busy, "the configuration keeps changing; try again"),
            Self::StaleHeartbeat => Error::new(ErrorKind::Busy, "the store is still recovering; try again"),
        }
    }
}

/// Reads one driver error.
pub(super) fn classify(error: tokio_postgres::Error) -> Fault {
    let Some(db) = error.as_db_error() else {
        if error.is_closed() || is_io(&error) {
            return Fault::Lost(
                Error::new(ErrorKind::Unavailable, format!("the database connection failed: {}", chain(&error)))
                    .with_source(error),
            );
        }
        return Fault::Final(
            Error::new(ErrorKind::Invalid, format!("the database request is invalid: {}", chain(&error)))
                .with_source(error),
        );
    };
    let said = db.message().to_owned();
    let code = db.code().clone();
    let class = code.code().get(..2).unwrap_or_default().to_owned();
    if code == SqlState::T_R_DEADLOCK_DETECTED || code == SqlState::T_R_SERIALIZATION_FAILURE {
        return Fault::Again(
            Error::new(ErrorKind::Busy, format!("the transaction collided: {said}")).with_source(error),
        );
    }
    let (kind, hint) = match class.as_str() {
        // Shutting down, starting up, connection refused by limits.
        "57" if code == SqlState::QUERY_CANCELED => (ErrorKind::Busy, "the statement ran out of time"),
        "57" | "08" => {
            return Fault::Lost(
                Error::new(ErrorKind::Unavailable, format!("the database is not available: {said}")).with_source(error),
            );
        }
        "55" if code == SqlState::LOCK_NOT_AVAILABLE => (ErrorKind::Busy, "a lock was not granted in time"),
        "25" if code == SqlState::READ_ONLY_SQL_TRANSACTION => {
            (ErrorKind::Unavailable, "the database is read-only: point Tidegate at the primary")
        }
        "53" => (ErrorKind::Unavailable, "the database is out of resources"),
        "58" => (ErrorKind::Unavailable, "the database's disk failed"),
        "XX" => (ErrorKind::Corrupt, "the database reports damage or an internal error"),
        "28" => (ErrorKind::Invalid, "the database refused the login: check user and password in the URL"),
        "3D" => (ErrorKind::Invalid, "the database does not exist: create it or check the URL"),
        "42" if code == SqlState::INSUFFICIENT_PRIVILEGE => {
            (ErrorKind::Invalid, "the database user lacks a privilege: grant it or use another user")
        }
        "42" | "3F" => (ErrorKind::Schema, "the database's schema does not fit this program"),
        "23" => (ErrorKind::Conflict, "the request contradicts what is stored"),
        _ => (ErrorKind::Invalid, "the database refused the request"),
    };
    Fault::Final(Error::new(kind, format!("{hint} ({said})")).with_source(error))
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if inner.is::<std::io::Error>() {
            return true;
        }
        source = inner.source();
    }
    let text = error.to_string();
    text.contains("error connecting") || text.contains("timeout waiting") || text.contains("communicating")
}

/// The error and what caused it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}
