//! The server that all tests of a run share, and databases on it.

use std::io;
use std::sync::OnceLock;

use crate::execute::execute;
use crate::server::{PgServer, PgSettings, create_database_at};

/// The environment variable that names a server to use: the URL of a database on it whose user may create others.
pub const POSTGRES_VARIABLE: &str = "TIDEGATE_TEST_POSTGRES";

/// The server that the tests of this process share.
#[derive(Debug)]
pub enum Shared {
    /// Started by this process; it stops when the process ends.
    Own(PgServer),
    /// Started elsewhere; the URL of a database on it.
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

    /// Creates a new database and returns its URL.
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

/// The server for the tests of this process: the one that `TIDEGATE_TEST_POSTGRES` names, else one that it starts.
///
/// # Panics
/// When no server can be started: a test that needs one must not pass without it.
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

/// The URL of a new, empty database on the shared server.
///
/// # Panics
/// When there is no server, or it refuses.
#[must_use]
pub fn fresh_database() -> String {
    shared().create_database()
}

/// Removes a database that [`fresh_database`] created, even if connections to it are open.
///
/// # Errors
/// When the server refuses or is gone.
pub fn drop_database(url: &str) -> io::Result<()> {
    let name = database_of(url).to_owned();
    execute(&with_database(url, "postgres"), &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
}

/// The position of the database's name in a URL.
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

/// The URL of another database on the same server.
fn with_database(url: &str, database: &str) -> String {
    let range = name_range(url);
    let slash = if url[..range.start].ends_with('/') && range.start > url.find("://").map_or(0, |at| at + 3) {
        ""
    } else {
        "/"
    };
    format!("{}{slash}{database}{}", &url[..range.start], &url[range.end..])
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
