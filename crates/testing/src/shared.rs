//! One server for a whole test run, and databases on it.

use std::io;
use std::sync::OnceLock;

use tokio_postgres::NoTls;

use crate::server::{PgServer, PgSettings, create_database_at};

/// The environment variable that names a server to use: the URL of a database on it whose user may create others.
pub const POSTGRES_VARIABLE: &str = "TIDEGATE_TEST_POSTGRES";

/// The server that the tests of this process share.
#[derive(Debug)]
pub enum Shared {
    /// Started by this process; it stops when the process ends.
    Own(PgServer),
    /// Somebody else's, by the URL of a database on it.
    Given(String),
}

impl Shared {
    /// The URL of one of its databases.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        match self {
            Self::Own(server) => server.url(database),
            Self::Given(url) => with_database(url, database),
        }
    }

    /// Makes a new database and answers its URL.
    ///
    /// # Panics
    /// When the server refuses.
    #[must_use]
    pub fn create_database(&self) -> String {
        match self {
            Self::Own(server) => server.create_database(),
            Self::Given(url) => with_database(url, &create_database_at(url)),
        }
    }
}

/// The server for this process's tests: the one that `TIDEGATE_TEST_POSTGRES` names, else one of its own.
///
/// # Panics
/// When there is none to be had. A test that needs a server never passes without one.
pub fn shared() -> &'static Shared {
    static SERVER: OnceLock<Shared> = OnceLock::new();
    SERVER.get_or_init(|| match std::env::var(POSTGRES_VARIABLE) {
        Ok(url) if !url.is_empty() => Shared::Given(url),
        // A static is never dropped; the server's watchdog sees this process end.
        _ => match PgServer::start(PgSettings { fsync: false, ..PgSettings::default() }) {
            Ok(server) => Shared::Own(server),
            Err(error) => panic!("this test needs PostgreSQL: {error}"),
        },
    })
}

/// A new, empty database on the shared server, by its URL.
///
/// # Panics
/// When there is no server to be had.
#[must_use]
pub fn fresh_database() -> String {
    shared().create_database()
}

/// Removes a database that [`fresh_database`] made, whoever is still connected to it.
///
/// # Errors
/// When the server refuses or is gone.
pub fn drop_database(url: &str) -> io::Result<()> {
    let name = database_of(url).to_owned();
    execute(&with_database(url, "postgres"), &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
}

/// Where the database's name begins and ends in a URL.
fn name_range(url: &str) -> std::ops::Range<usize> {
    let end = url.find('?').unwrap_or(url.len());
    let authority = url.find("://").map_or(0, |at| at + 3);
    match url[authority..end].find('/') {
        Some(slash) => authority + slash + 1..end,
        None => end..end,
    }
}

fn database_of(url: &str) -> &str {
    &url[name_range(url)]
}

/// The same server's URL for another database.
fn with_database(url: &str, database: &str) -> String {
    let range = name_range(url);
    let slash = if url[..range.start].ends_with('/') && range.start > url.find("://").map_or(0, |at| at + 3) {
        ""
    } else {
        "/"
    };
    format!("{}{slash}{database}{}", &url[..range.start], &url[range.end..])
}

/// Runs one statement on a connection of its own. It works inside and outside of an async runtime.
pub(crate) fn execute(url: &str, statement: &str) -> io::Result<()> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(io::Error::other)?;
            let connection = tokio::spawn(connection);
            let answer = client.batch_execute(statement).await;
            drop(client);
            let _ = connection.await;
            answer.map_err(|error| io::Error::other(error.as_db_error().map_or(error.to_string(), ToString::to_string)))
        })
    };
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|_| Err(io::Error::other("the connecting thread panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_for_other_databases() {
        for (url, name, expected) in [
            ("postgres://u@h:1/a", "a", "postgres://u@h:1/x"),
            ("postgres://u@h:1/a?sslmode=disable", "a", "postgres://u@h:1/x?sslmode=disable"),
            ("postgres://u@h:1", "", "postgres://u@h:1/x"),
            ("postgres://u@h:1/?k=v/w", "", "postgres://u@h:1/x?k=v/w"),
        ] {
            assert_eq!(database_of(url), name, "{url}");
            assert_eq!(with_database(url, "x"), expected, "{url}");
        }
    }
}
