//! Translates PostgreSQL's errors into classes that a caller acts on. The only module that knows SQLSTATE codes.

use std::sync::Arc;

use deadpool_postgres::{HookError, TimeoutType};
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::error::{Error, ErrorKind};

/// Why work on a connection failed.
#[derive(Debug)]
pub(in crate::postgres) enum Fault {
    /// The connection was lost or could not be made; nothing is known to be wrong with the work.
    Lost(Error),
    /// The database asks to run the transaction again (deadlock, serialisation failure).
    Again(Error),
    /// The catalogue in memory differs from the database's.
    StaleCatalog,
    /// The store's heartbeat is old, or ahead of the clock: leases must be moved before any is taken over or written.
    StaleHeartbeat,
    /// A claim leased more bytes than it may hand out; only this many entries fitted.
    Oversized(usize),
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
            deadpool_postgres::PoolError::Backend(error)
            | deadpool_postgres::PoolError::PostCreateHook(HookError::Backend(error)) => match classify(error) {
                Fault::Final(error) if error.kind() != ErrorKind::Invalid && refusal(&error).is_none() => {
                    Self::Lost(error)
                }
                other => other,
            },
            deadpool_postgres::PoolError::Timeout(TimeoutType::Create | TimeoutType::Recycle) => {
                Self::Lost(Error::new(ErrorKind::Unavailable, "the database did not answer in time").with_source(error))
            }
            deadpool_postgres::PoolError::Timeout(TimeoutType::Wait) => Self::Final(
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
    /// Whether it concerns the connection or the moment, not the work, so that trying again may help.
    pub(in crate::postgres) fn may_pass(&self) -> bool {
        match self {
            Self::Lost(_) | Self::Again(_) => true,
            Self::Final(error) => error.kind() == ErrorKind::Unavailable && refusal(error).is_none(),
            Self::StaleCatalog | Self::StaleHeartbeat | Self::Oversized(_) => false,
        }
    }

    /// Whether it only says that an earlier statement of the transaction had failed.
    pub(in crate::postgres) fn is_aftermath(&self) -> bool {
        matches!(self, Self::Final(error) if database_error(error).is_some_and(|said| said.code() == &SqlState::IN_FAILED_SQL_TRANSACTION))
    }

    /// The error that the caller gets when nothing more is tried.
    pub(in crate::postgres) fn into_error(self) -> Error {
        match self {
            Self::Lost(error) | Self::Again(error) | Self::Final(error) => error,
            Self::Oversized(_) => {
                Error::new(ErrorKind::Busy, "the claimed payloads exceed what one claim may hand out; try again")
            }
            Self::StaleCatalog => Error::new(ErrorKind::Busy, "the configuration keeps changing; try again"),
            Self::StaleHeartbeat => {
                Error::new(ErrorKind::Busy, "the store is recovering from an outage or a clock change; try again")
            }
        }
    }
}

/// Translates an error of the first connection. It says what to change, since it is the operator who opens a store.
pub(in crate::postgres) fn at_open(error: tokio_postgres::Error) -> Error {
    let text = chain(&error);
    let refused = |hint: &str| Error::invalid(format!("{hint} ({text})"));
    if let Some(db) = error.as_db_error() {
        let plain = db.message().contains("no encryption") || db.message().contains("SSL off");
        if db.code() == &SqlState::INVALID_AUTHORIZATION_SPECIFICATION && plain {
            let hint = "the database refuses connections without TLS: set sslmode=verify-full (or require) in its URL";
            return refused(hint).with_source(error);
        }
        if db.message().contains("client certificate") || db.message().contains("certificate authentication failed") {
            let hint = "the database refuses the login without a valid client certificate: set sslcert and sslkey";
            return refused(hint).with_source(error);
        }
    } else if text.contains("server does not support TLS") {
        let hint = "the database offers no TLS, and sslmode asks for it: turn ssl on at the server";
        return refused(hint).with_source(error);
    } else if text.contains("TLS handshake") {
        let hint = match text.as_str() {
            text if text.contains("not valid for name") => {
                "the database's certificate is for another name than the host in the URL: connect by a name in it, or \
                 use sslmode=verify-ca"
            }
            text if text.contains("UnknownIssuer") || text.contains("unknown issuer") => {
                "the database's certificate has no trusted issuer: name its root certificate's file with sslrootcert"
            }
            _ => "the TLS handshake with the database failed",
        };
        return refused(hint).with_source(error);
    }
    specific(classify(error).into_error())
}

/// Adds what the database refused and what to change. Only for opening a store, where the operator reads it.
pub(in crate::postgres) fn specific(error: Error) -> Error {
    match refusal(&error) {
        Some((hint, said)) => Error::invalid(format!("{hint} ({said})")).with_source(error),
        None => error,
    }
}

/// The answers of two statements that were sent together. If both failed, the error of the one that failed first.
pub(in crate::postgres) fn both<A, B>(one: Result<A, Fault>, other: Result<B, Fault>) -> Result<(A, B), Fault> {
    match (one, other) {
        (Err(after), Err(fault)) if after.is_aftermath() => Err(fault),
        (one, other) => Ok((one?, other?)),
    }
}

/// The same for any number of statements without answers.
pub(in crate::postgres) fn all<const N: usize>(outcomes: [Result<(), Fault>; N]) -> Result<(), Fault> {
    let mut fault: Option<Fault> = None;
    for other in outcomes.into_iter().filter_map(Result::err) {
        if fault.as_ref().is_none_or(Fault::is_aftermath) {
            fault = Some(other);
        }
    }
    fault.map_or(Ok(()), Err)
}

/// What the database itself reported.
fn database_error(error: &Error) -> Option<&tokio_postgres::error::DbError> {
    // `Error` keeps its source behind an `Arc`, which has to be unwrapped first.
    let shared = std::error::Error::source(error)?.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()?;
    shared.downcast_ref::<tokio_postgres::Error>()?.as_db_error()
}

/// Whether the database refused a change because what it concerns is in use.
pub(in crate::postgres) fn is_in_use(error: &Error) -> bool {
    database_error(error).is_some_and(|said| said.code() == &SqlState::OBJECT_IN_USE)
}

/// Why a login or a privilege was refused, and what to do. It names users and tables, so only the operator may see it.
fn refusal(error: &Error) -> Option<(&'static str, String)> {
    let db = database_error(error)?;
    let hint = match db.code().code().get(..2)? {
        "28" => "the database refused the login: check user and password in the URL",
        "3D" => "the database does not exist: create it or check the URL",
        "42" if db.code() == &SqlState::INSUFFICIENT_PRIVILEGE => {
            "the database user lacks a privilege: grant it or use another user"
        }
        _ => return None,
    };
    Some((hint, db.message().to_owned()))
}

/// Classifies an error of the driver.
pub(in crate::postgres) fn classify(error: tokio_postgres::Error) -> Fault {
    let Some(db) = error.as_db_error() else {
        if error.is_closed() || is_io(&error) {
            return lost(format!("the database connection failed: {}", chain(&error)), error);
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
    if code == SqlState::CHECK_VIOLATION {
        // The row was being written to a default partition while the partition it belongs to was attached.
        return Fault::Again(
            Error::new(ErrorKind::Busy, format!("a partition was added meanwhile: {said}")).with_source(error),
        );
    }
    if code == SqlState::FEATURE_NOT_SUPPORTED && said.contains("cached plan") {
        // A migration changed the columns of a prepared statement: a new connection prepares it again.
        return lost(format!("the schema was changed: {said}"), error);
    }
    if has_severity(&error, Severity::Panic) {
        // A server that cannot write or sync its log stops at once, whatever code it names: whether a COMMIT took place
        // is known only once it is back.
        return lost(format!("the database stopped: {said}"), error);
    }
    if code == SqlState::IN_FAILED_SQL_TRANSACTION {
        return Fault::Final(ignored_failure().with_source(error));
    }
    let (kind, hint) = match class.as_str() {
        "57" if code == SqlState::QUERY_CANCELED => (ErrorKind::Busy, "the statement ran out of time"),
        // Shutting down, starting up, or a broken connection.
        "57" | "08" => {
            return lost(format!("the database is not available: {said}"), error);
        }
        "55" if code == SqlState::LOCK_NOT_AVAILABLE => (ErrorKind::Busy, "a lock was not granted in time"),
        "55" if code == SqlState::OBJECT_IN_USE => (ErrorKind::Busy, "what is to be changed is in use"),
        "25" if code == SqlState::READ_ONLY_SQL_TRANSACTION => {
            (ErrorKind::Unavailable, "the database is read-only: point Tidegate at the primary")
        }
        // A session timeout, after this process was suspended in a transaction or the server's clock was set.
        "25" if has_severity(&error, Severity::Fatal) => {
            return lost(format!("the database ended the session: {said}"), error);
        }
        "53" => (ErrorKind::Unavailable, "the database is out of resources"),
        "58" => (ErrorKind::Unavailable, "the database's disk failed"),
        "XX" => (ErrorKind::Corrupt, "the database reports damage or an internal error"),
        "28" | "3D" => return withheld("the database refuses the login", error),
        "42" if code == SqlState::INSUFFICIENT_PRIVILEGE => return withheld("the database refuses access", error),
        "42" | "3F" => (ErrorKind::Schema, "the database's schema does not fit this program"),
        "23" => (ErrorKind::Conflict, "the request contradicts what is stored"),
        _ => (ErrorKind::Invalid, "the database refused the request"),
    };
    Fault::Final(Error::new(kind, format!("{hint} ({said})")).with_source(error))
}

/// The connection is of no use any more, and an answer may have been lost with it.
fn lost(said: String, error: tokio_postgres::Error) -> Fault {
    Fault::Lost(Error::new(ErrorKind::Unavailable, said).with_source(error))
}

/// A refusal that only the operator can resolve. What the database said stays in the source, for the log.
fn withheld(what: &'static str, error: tokio_postgres::Error) -> Fault {
    Fault::Final(Error::new(ErrorKind::Unavailable, format!("{what}: the log has the reason")).with_source(error))
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

/// An error and its causes, in one line.
pub(in crate::postgres) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        // Some errors already contain the text of their cause.
        let cause = inner.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = inner.source();
    }
    text
}

fn has_severity(error: &tokio_postgres::Error, severity: Severity) -> bool {
    error.as_db_error().and_then(DbError::parsed_severity) == Some(severity)
}

/// The error of a commit in which a statement had failed: PostgreSQL rolls back and reports success.
pub(in crate::postgres) fn ignored_failure() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "the transaction was rolled back: a statement in it had failed and its error was ignored; return the error, \
         or run such a statement under a savepoint",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_session_that_the_server_ended_within_a_transaction_is_lost() {
        let url = tokio::task::spawn_blocking(|| tidegate_testing::shared().url("postgres")).await.unwrap();
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        let driven = tokio::spawn(connection);
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get("pg_backend_pid");
        let signal = |name: &str| {
            let killed = std::process::Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
            killed.unwrap();
        };
        client.batch_execute("SET idle_in_transaction_session_timeout = 1000; BEGIN").await.unwrap();
        // The idle timeout passes while the backend is stopped, and the request is waiting when it continues.
        signal("STOP");
        let asked = tokio::spawn(async move { client.batch_execute("SELECT 1").await });
        tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
        signal("CONT");
        let fault = classify(asked.await.unwrap().unwrap_err());
        assert!(matches!(&fault, Fault::Lost(error) if error.kind() == ErrorKind::Unavailable), "{fault:?}");
        drop(driven);
    }

    /// A server that answers the first query with an error of this severity and code, and hangs up.
    async fn failing_server(severity: &'static str, code: &'static str) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            // The login is accepted, and the server is ready for a query.
            stream.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await.unwrap();
            assert!(stream.read(&mut request).await.unwrap() > 0);
            let fields = format!("S{severity}\0V{severity}\0C{code}\0Mcould not write to log file\0\0");
            let length = u32::try_from(fields.len() + 4).unwrap();
            stream.write_all(&[b"E", &length.to_be_bytes()[..], fields.as_bytes()].concat()).await.unwrap();
        });
        format!("postgres://tidegate@127.0.0.1:{port}/postgres")
    }

    #[tokio::test]
    async fn a_server_that_panics_leaves_the_answer_open_whatever_its_code() {
        let lost = async |severity, code| {
            let url = failing_server(severity, code).await;
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            let fault = classify(client.batch_execute("COMMIT").await.unwrap_err());
            let lost = matches!(fault, Fault::Lost(_));
            assert_eq!(fault.into_error().kind(), ErrorKind::Unavailable);
            lost
        };
        assert!(lost("PANIC", "53100").await);
        assert!(lost("PANIC", "58030").await);
        // An error is an answer: the transaction was rolled back.
        assert!(!lost("ERROR", "53100").await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_in_use_is_busy_like_a_lock() {
        let url = tokio::task::spawn_blocking(|| tidegate_testing::shared().url("postgres")).await.unwrap();
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        let driven = tokio::spawn(connection);
        let raise = "DO $$ BEGIN RAISE EXCEPTION 'rows of its range' USING ERRCODE = 'object_in_use'; END $$";
        let error = classify(client.batch_execute(raise).await.unwrap_err()).into_error();
        assert_eq!((error.kind(), is_in_use(&error)), (ErrorKind::Busy, true), "{error}");
        drop(driven);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_refused_login_is_final_and_named_only_to_who_opens() {
        let url = tokio::task::spawn_blocking(|| tidegate_testing::shared().url("postgres")).await.unwrap();
        let refused = || async {
            let url = url.replace("tidegate@", "nobody_here@");
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.err().unwrap()
        };
        let pooled = Fault::from(deadpool_postgres::PoolError::Backend(refused().await));
        assert!(!pooled.may_pass(), "{pooled:?}");
        let Fault::Final(error) = pooled else { panic!("it is tried again") };
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(!error.to_string().contains("nobody_here"), "{error}");
        let opened = at_open(refused().await);
        assert_eq!(opened.kind(), ErrorKind::Invalid);
        assert!(opened.to_string().contains("nobody_here"), "{opened}");
    }
}
