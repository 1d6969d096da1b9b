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

/// A [`Native`] in the signatures of a sealed trait; opaque outside this crate.
#[derive(Debug)]
pub struct NativeRef(pub(crate) Native);
