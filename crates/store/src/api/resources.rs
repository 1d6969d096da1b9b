//! Resources, and the version of the catalogue that they are part of.

use async_trait::async_trait;
use tidegate_core::Tsid;

use crate::error::Result;
use crate::values::{
    Batch, CatalogueVersion, ChangeResource, DeleteResource, PutResource, Resource, ResourceChanges, ResourcesQuery,
};

/// Stores configuration that every node caches: resources of any kind, in one table.
#[async_trait]
pub trait Resources: Send + Sync {
    /// The version of the catalogue. As cheap as a read can be: one row.
    async fn catalogue_version(&self) -> Result<CatalogueVersion>;

    /// Creates and changes resources in one transaction. The answers show them as the batch leaves them. An item may
    /// refer to what an earlier one wrote, though not by its version, which no caller can know yet. All that one call
    /// writes has the same version; a change without effect writes nothing.
    async fn put_resources(&self, items: Vec<PutResource>) -> Result<Batch<Resource>>;

    /// Deletes resources in one transaction. Deleting what is deleted is `Ok`; `NotFound` when there is none of this id
    /// and kind, `Conflict` when it has another version than expected.
    async fn delete_resources(&self, items: Vec<DeleteResource>) -> Result<Batch<()>>;

    /// Makes all of these changes in one transaction or, if one of them is refused, none; the error is that of the first
    /// refused one. The answers show the resources as the changes leave them. Otherwise as
    /// [`put_resources`](Self::put_resources) and [`delete_resources`](Self::delete_resources).
    async fn change_resources(&self, items: Vec<ChangeResource>) -> Result<Vec<Resource>>;

    /// What changed since a version, of one kind or of all, in one snapshot. Where that version is not in this database's
    /// history, or none is given, everything follows.
    async fn resource_changes(&self, kind: Option<&str>, since: Option<CatalogueVersion>) -> Result<ResourceChanges>;

    /// A resource by its id; `None` when there is none of this kind, or it was deleted.
    async fn resource(&self, kind: &str, id: Tsid) -> Result<Option<Resource>>;

    /// A resource by its code; `None` when there is none.
    async fn resource_by_code(&self, kind: &str, client: Option<Tsid>, code: &str) -> Result<Option<Resource>>;

    /// Resources of one kind by client and code.
    async fn resources(&self, query: ResourcesQuery) -> Result<Vec<Resource>>;
}
