//! The private PostgreSQL server of a run, its settings, and a fresh database per measurement. Knows no disciplines.

use tidegate_testing::{PgServer, PgSettings, drop_database};
use tokio_postgres::{Client, NoTls};

use crate::Result;

/// The settings for both sides. Durability is that of a careful production server; the others keep checkpoints and
/// background work from disturbing one measurement and not the next.
const SETTINGS: [(&str, &str); 8] = [
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    ("max_wal_size", "4GB"),
    ("checkpoint_timeout", "15min"),
    ("jit", "off"),
    ("shared_preload_libraries", "pg_stat_statements"),
    // Tracking costs a little. The disciplines that count pages switch it on for their own databases.
    ("pg_stat_statements.track", "none"),
    ("pg_stat_statements.save", "off"),
];

/// A running PostgreSQL server.
#[derive(Debug)]
pub(crate) struct Server(PgServer);

impl Server {
    /// Starts a server with the settings of all measurements.
    ///
    /// # Errors
    /// When PostgreSQL is not installed or does not start.
    pub(crate) fn start() -> Result<Self> {
        let extra = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let settings = PgSettings {
            fsync: true,
            shared_buffers: "1GB".into(),
            max_connections: 200,
            extra,
            ..PgSettings::default()
        };
        Ok(Self(PgServer::start(settings)?))
    }

    /// Creates an empty database, after a checkpoint, so that no measurement pays for the writes of an earlier one.
    ///
    /// # Errors
    /// When the checkpoint fails.
    pub(crate) async fn database(&self) -> Result<Database> {
        self.checkpoint().await?;
        Ok(Database { url: self.0.create_database() })
    }

    /// Writes all dirty pages to disk.
    ///
    /// # Errors
    /// When the checkpoint fails.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        Ok(connect(&self.0.url("postgres")).await?.batch_execute("CHECKPOINT").await?)
    }

    /// The version and the settings that matter, for the header of a report.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(crate) async fn describe(&self) -> Result<String> {
        let client = connect(&self.0.url("postgres")).await?;
        let names = [
            "shared_buffers",
            "fsync",
            "synchronous_commit",
            "full_page_writes",
            "max_wal_size",
            "checkpoint_timeout",
            "wal_sync_method",
            "autovacuum",
        ];
        let mut parts = Vec::new();
        for name in names {
            let value: String = client.query_one("SELECT current_setting($1)", &[&name]).await?.get(0);
            parts.push(format!("{name}={value}"));
        }
        let version: String = client.query_one("SELECT current_setting('server_version')", &[]).await?.get(0);
        Ok(format!("PostgreSQL {version}: {}", parts.join(", ")))
    }
}

/// One database of the server; dropped together with this value.
#[derive(Debug)]
pub(crate) struct Database {
    /// The connection URL.
    pub(crate) url: String,
}

impl Database {
    /// Opens a connection.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub(crate) async fn connect(&self) -> Result<Client> {
        connect(&self.url).await
    }

    /// Brings statistics, hint bits and the visibility map up to date after the tables were filled, so that autovacuum
    /// does not do it during one side's measurement.
    ///
    /// # Errors
    /// When the statement fails.
    pub(crate) async fn vacuum(&self) -> Result<()> {
        Ok(self.connect().await?.batch_execute("VACUUM ANALYZE").await?)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // The server is removed at the end, so an error does not matter. Until then this saves disk space.
        let _ = drop_database(&self.url);
    }
}

/// Connects; the task that drives the connection ends when the client is dropped.
async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
