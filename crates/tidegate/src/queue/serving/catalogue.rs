//! The catalogue version: what a server has looked up under it is valid as long as it is the present one.

use tidegate_store::CatalogueVersion;

use crate::error::Result;
use crate::queue::EventQueue;

impl EventQueue {
    /// The catalogue version, read after this call began. It changes with every change of a queue, a lane or a key on any
    /// node. Calls that come while a read is under way share the next one.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn catalogue_version(&self) -> Result<CatalogueVersion> {
        let shared = self.shared();
        shared.catalogue_reads.get(|| shared.store.catalogue_version()).await
    }
}
