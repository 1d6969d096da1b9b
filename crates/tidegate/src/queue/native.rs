//! The store by its concrete type, for what only one database can do.

/// One of the two stores that come with Tidegate, or another one.
#[derive(Debug, Clone)]
pub(crate) enum Native {
    #[cfg(feature = "sqlite")]
    Sqlite(std::sync::Arc<tidegate_store::sqlite::SqliteStore>),
    #[cfg(feature = "postgres")]
    Postgres(std::sync::Arc<tidegate_store::postgres::PostgresStore>),
    Other,
}

/// Where a database is, for what is kept beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatabasePlace {
    /// In this file on this machine.
    File(std::path::PathBuf),
    /// In the memory of this process.
    Memory,
    /// Elsewhere, perhaps shared by several machines.
    Elsewhere,
}

impl Native {
    pub(crate) fn place(&self) -> DatabasePlace {
        match self {
            #[cfg(feature = "sqlite")]
            // As SQLite does: what belongs to a file is beside that which a link leads to.
            Self::Sqlite(store) => store.path().canonicalize().map_or(DatabasePlace::Memory, DatabasePlace::File),
            _ => DatabasePlace::Elsewhere,
        }
    }
}

/// A [`Native`] in the signatures of a sealed trait; opaque outside this crate.
#[derive(Debug)]
pub struct NativeRef(pub(crate) Native);
