//! The database under the load, and its size.

use std::path::PathBuf;

use crate::Result;

/// The database that holds the queue.
#[derive(Debug)]
pub(super) enum Database {
    Sqlite(PathBuf),
    Postgres(String),
}

impl Database {
    pub(super) fn address(&self) -> String {
        match self {
            Self::Sqlite(path) => format!("sqlite:{}", path.display()),
            Self::Postgres(url) => url.clone(),
        }
    }

    /// Bytes of tables, indexes, the write-ahead log and the database files; `None` where the database does not say.
    pub(super) async fn sizes(&self) -> Result<[Option<u64>; 4]> {
        match self {
            Self::Sqlite(path) => {
                let length = |path: PathBuf| std::fs::metadata(path).map_or(0, |about| about.len());
                let log = length(PathBuf::from(format!("{}-wal", path.display())));
                let connection = rusqlite::Connection::open(path)?;
                connection.busy_timeout(std::time::Duration::from_secs(10))?;
                let pragma =
                    |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0));
                // SQLite does not say which pages belong to indexes: all pages in use count as tables.
                let used = (pragma("page_count")? - pragma("freelist_count")?) * pragma("page_size")?;
                Ok([Some(u64::try_from(used)?), None, Some(log), Some(length(path.clone()))])
            }
            Self::Postgres(url) => {
                let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
                // The task ends with the client, and its errors are also those of the client's calls.
                tokio::spawn(connection);
                let sql = "SELECT coalesce(sum(pg_table_size(c.oid)), 0)::bigint,
                                  coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint,
                                  (SELECT sum(size)::bigint FROM pg_ls_waldir()), pg_database_size(current_database())
                           FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                           WHERE n.nspname = 'tidegate' AND c.relkind = 'r'";
                let row = client.query_one(sql, &[]).await?;
                let bytes = |column: usize| row.try_get::<_, i64>(column).map(|size| Some(size.unsigned_abs()));
                Ok([bytes(0)?, bytes(1)?, bytes(2)?, bytes(3)?])
            }
        }
    }
}
