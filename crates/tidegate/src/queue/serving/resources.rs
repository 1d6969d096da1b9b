//! Resources: configuration that layers above define and every node caches by the catalogue version.

use tidegate_core::Tsid;
use tidegate_store::{CatalogueVersion, ChangeResource, Resource, ResourceChanges, ResourcesQuery, Store};

use crate::error::Result;
use crate::queue::EventQueue;

/// The resources of a database; see [`EventQueue::resources`].
#[derive(Clone, Copy)]
pub struct Resources<'a>(&'a dyn Store);

impl std::fmt::Debug for Resources<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resources").finish_non_exhaustive()
    }
}

impl EventQueue {
    /// The resources of the database.
    #[must_use]
    pub fn resources(&self) -> Resources<'_> {
        Resources(self.shared().store.as_ref())
    }
}

impl Resources<'_> {
    /// Makes all of these changes or, if one is refused, none. The answers show the resources as they are left.
    ///
    /// # Errors
    /// `Conflict` when a code is taken or a resource has another version than expected, `NotFound` when there is none of
    /// an id and kind, or any error of the store.
    pub async fn change(&self, items: Vec<ChangeResource>) -> Result<Vec<Resource>> {
        self.0.change_resources(items).await
    }

    /// What changed among the resources of a kind since a version; everything where that version is not known.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn changes(&self, kind: &str, since: Option<CatalogueVersion>) -> Result<ResourceChanges> {
        self.0.resource_changes(Some(kind), since).await
    }

    /// A resource by its id; `None` when there is none of this kind.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn get(&self, kind: &str, id: Tsid) -> Result<Option<Resource>> {
        self.0.resource(kind, id).await
    }

    /// A resource by its code; `None` when there is none.
    ///
    /// # Errors
    /// `Invalid` when no resource can have this code, or any error of the store.
    pub async fn by_code(&self, kind: &str, client: Option<Tsid>, code: &str) -> Result<Option<Resource>> {
        self.0.resource_by_code(kind, client, code).await
    }

    /// Resources of one kind by client and code.
    ///
    /// # Errors
    /// `Invalid` when the query's limit is out of range, or any error of the store.
    pub async fn list(&self, query: ResourcesQuery) -> Result<Vec<Resource>> {
        self.0.resources(query).await
    }
}
