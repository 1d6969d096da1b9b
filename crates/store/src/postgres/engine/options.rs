//! Settings of a PostgreSQL store.

use std::time::Duration;

use crate::values::StoreOptions;

/// Settings of a PostgreSQL store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// Settings that both databases share.
    pub store: StoreOptions,
    /// Most connections of the pool. Two more listen for wake-ups and keep the heartbeat.
    pub max_connections: usize,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long a call waits for a free connection, and keeps trying after it lost one. It gives up sooner when the
    /// database is known to be down.
    pub retry_for: Duration,
    /// How long one statement may take.
    pub statement_timeout: Duration,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            store: StoreOptions::default(),
            max_connections: 10,
            connect_timeout: Duration::from_secs(5),
            retry_for: Duration::from_secs(15),
            statement_timeout: Duration::from_secs(30),
        }
    }
}

impl PostgresOptions {
    /// The namespace as an SQL identifier: quoted, since it may be a keyword.
    pub(in crate::postgres) fn schema(&self) -> String {
        format!("\"{}\"", self.store.namespace)
    }
}
