//! Readiness: whether a write and a claim would succeed now, tested with as little as possible.

use crate::error::Result;
use crate::postgres::engine::store::Inner;
use crate::values::Probe;

impl Inner {
    /// Gets a connection and runs a statement that changes nothing but fails where nothing can be written: on a standby
    /// or a read-only database, without the right to write, or without the schema.
    pub(super) async fn probe(&self) -> Result<Probe> {
        self.execute(&self.sql.heartbeat.probe, &[]).await?;
        // Finds out, also while nothing else runs, that the schema was upgraded.
        self.reload_catalog().await?;
        Ok(Probe::default())
    }
}
