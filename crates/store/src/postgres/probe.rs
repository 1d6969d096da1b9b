//! Whether a write and a claim would succeed now, tried with as little as possible.

use super::Inner;
use super::errors::Fault;
use crate::error::Result;
use crate::store::Probe;

impl Inner {
    /// A connection, and a statement that is refused where nothing can be written: a standby, a read-only database, a
    /// right that was revoked, a schema that is gone.
    pub(super) async fn probe(&self) -> Result<Probe> {
        let reader = self.database.reader().await.map_err(Fault::into_error)?;
        reader.execute(&self.sql.probe, &[]).await.map_err(Fault::into_error)?;
        Ok(Probe::default())
    }
}
