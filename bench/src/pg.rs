//! The private PostgreSQL server of a run, its settings, and a fresh database per measurement. Knows no discipline.

use tidegate_testing::{PgServer, PgSettings, drop_database};
use tokio_postgres::{Client, NoTls};

use crate::Result;

/// What both sides run under. Durability is that of a careful production server; the rest keeps checkpoints and
/// background work from falling into one measurement and not into the next.
const SETTINGS: [(&str, &str); 8] = [
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    ("max_wal_size", "4GB"),
    ("checkpoint_timeout", "15min"),
    ("jit", "off"),
    ("shared_preload_libraries", "pg_stat_statements"),
    // Counting costs a little; the disciplines that count pages switch it on for their own databases.
    ("pg_stat_statements.track", "none"),
    ("pg_stat_statements.save", "off"),
];

/// A running server.
#[derive(Debug)]
pub(crate) struct Server(PgServer);

impl Server {
    /// Starts one with the settings of all measurements.
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

    /// A new, empty database after a checkpoint, so that no measurement pays for what an earlier one wrote.
    ///
    /// # Errors
    /// When the server refuses.
    pub(crate) async fn database(&self) -> Result<Database> {
        self.checkpoint().await?;
        Ok(Database { url: self.0.create_database() })
    }

    /// Writes out everything that is dirty.
    ///
    /// # Errors
    /// When the server refuses.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        Ok(connect(&self.0.url("postgres")).await?.batch_execute("CHECKPOINT").await?)
    }

    /// Version and settings for the header of a report.
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

/// One database of a server; removed when dropped.
#[derive(Debug)]
pub(crate) struct Database {
    /// How to reach it.
    pub(crate) url: String,
}

impl Database {
    /// A connection to it.
    ///
    /// # Errors
    /// When the server refuses.
    pub(crate) async fn connect(&self) -> Result<Client> {
        connect(&self.url).await
    }

    /// Settles what was filled in before a measurement: statistics, hint bits and the visibility map are up to date, so
    /// that autovacuum does not do it in the middle of one side's run.
    ///
    /// # Errors
    /// When the server refuses.
    pub(crate) async fn settle(&self) -> Result<()> {
        Ok(self.connect().await?.batch_execute("VACUUM ANALYZE").await?)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // The whole server is thrown away in the end; this only keeps the disk from filling up before.
        let _ = drop_database(&self.url);
    }
}

/// A connection whose background half ends with it.
async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
