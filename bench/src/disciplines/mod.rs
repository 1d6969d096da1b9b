//! One file per family of disciplines. Each measures and returns results; none prints a report.

mod claim_flat;
mod deliver;
mod deliver_backlog;
mod deliver_beside;
mod deliver_due;
mod deliver_limits;
mod fan_out;
mod held_snapshot;
mod ingest;
mod ingest_batch;
mod list_load;
mod lists;
mod long_polls;
mod manager;
mod matching;
pub(crate) mod memory;
mod postgres;
mod projection;
mod schema;
mod search;
mod server;
mod server_memory;
mod sqlite;
mod subscriptions;
mod tags;
mod types;
mod wake;
mod wal;
mod webhooks;

use std::path::Path;

use tempfile::TempDir;
use tidegate::Backend;

use crate::Result;
use crate::catalogue::{DISCIPLINES, Discipline, Wanted, discipline};
use crate::pg::{Database, Server};
use crate::report::Measured;
use crate::runner::progress;
use crate::scale::Scale;

/// Both kinds of databases, by what the names of their disciplines begin with.
const BACKENDS: [(&str, Backend); 2] = [("postgres", Backend::Postgres), ("sqlite", Backend::Sqlite)];

/// What all disciplines share: scale, selection, temporary folder and PostgreSQL server.
#[derive(Debug)]
pub(crate) struct Bench {
    scale: Scale,
    wanted: Wanted,
    folder: TempDir,
    server: Option<Server>,
}

impl Bench {
    /// Prepares a run; PostgreSQL is started only if a discipline needs it.
    ///
    /// # Errors
    /// When the temporary folder cannot be created, or PostgreSQL does not start.
    pub(crate) fn new(scale: Scale, wanted: Wanted) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("tidegate-bench-").tempdir()?;
        let needs_server = DISCIPLINES.iter().any(|one| one.name.contains("postgres") && wanted.has(one.name));
        if needs_server {
            progress("starting PostgreSQL");
        }
        let server = if needs_server { Some(Server::start()?) } else { None };
        Ok(Self { scale, wanted, folder, server })
    }

    /// The folder of the SQLite databases.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The PostgreSQL server; `None` when no selected discipline needs it.
    pub(crate) fn started_server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    fn server(&self) -> Result<&Server> {
        self.server.as_ref().ok_or_else(|| "PostgreSQL was not started for this run".into())
    }

    /// A new folder for one SQLite database; removed when dropped.
    fn sqlite_folder(&self) -> Result<TempDir> {
        Ok(tempfile::tempdir_in(self.folder.path())?)
    }

    /// An empty database.
    async fn fresh(&self, backend: Backend) -> Result<Fresh> {
        match backend {
            Backend::Sqlite => Ok(Fresh::Sqlite(self.sqlite_folder()?)),
            Backend::Postgres => Ok(Fresh::Postgres(self.server()?.database().await?)),
        }
    }
}

/// A database of either kind; removed when dropped.
enum Fresh {
    Sqlite(TempDir),
    Postgres(Database),
}

impl Fresh {
    /// What opens it.
    fn address(&self) -> String {
        match self {
            Self::Sqlite(folder) => folder.path().join("tidegate.db").to_string_lossy().into_owned(),
            Self::Postgres(database) => database.url.clone(),
        }
    }

    /// Vacuums PostgreSQL after it was filled.
    async fn vacuum(&self) -> Result<()> {
        match self {
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(database) => database.vacuum().await,
        }
    }
}

/// Runs every selected discipline, family by family.
///
/// # Errors
/// The error of the first discipline that cannot be measured.
pub(crate) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    outcomes.extend(postgres::run(bench).await?);
    outcomes.extend(sqlite::run(bench).await?);
    outcomes.extend(claim_flat::run(bench).await?);
    outcomes.extend(held_snapshot::run(bench).await?);
    outcomes.extend(wal::run(bench).await?);
    outcomes.extend(memory::run(bench).await?);
    outcomes.extend(manager::run(bench).await?);
    outcomes.extend(wake::run(bench).await?);
    outcomes.extend(projection::run(bench).await?);
    outcomes.extend(server::run(bench).await?);
    outcomes.extend(tags::run(bench).await?);
    outcomes.extend(lists::run(bench).await?);
    outcomes.extend(list_load::run(bench).await?);
    outcomes.extend(server_memory::run(bench).await?);
    outcomes.extend(long_polls::run(bench).await?);
    outcomes.extend(schema::run(bench).await?);
    outcomes.extend(types::run(bench).await?);
    outcomes.extend(matching::run(bench).await?);
    outcomes.extend(ingest::run(bench).await?);
    outcomes.extend(ingest_batch::run(bench).await?);
    outcomes.extend(fan_out::run(bench).await?);
    outcomes.extend(search::run(bench).await?);
    outcomes.extend(deliver::run(bench).await?);
    outcomes.extend(deliver_beside::run(bench).await?);
    outcomes.extend(deliver_backlog::run(bench).await?);
    outcomes.extend(deliver_due::run(bench).await?);
    outcomes.extend(deliver_limits::run(bench).await?);
    outcomes.retain(|outcome| bench.wanted.has(outcome.name));
    Ok(outcomes)
}

/// The discipline with a name that the code uses; it has to be in the catalogue.
fn known(name: &str) -> Result<&'static Discipline> {
    discipline(name).ok_or_else(|| format!("{name} is not in the catalogue").into())
}
