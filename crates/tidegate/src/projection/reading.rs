//! Reading projections by name, whatever their states are in Rust: how they stand, and documents as they are stored.
//!
//! This module owns which version answers; it must not know what is in a document.

use std::future::Future;

use bytes::Bytes;
use tidegate_store::{
    Document, ErrorKind, Lag, ListDocuments, ProjectionId, ProjectionState, ProjectionView, Projections,
};

use super::core::projections;
use super::run::LAG_BOUND;
use crate::error::{Error, Result};
use crate::queue::EventQueue;

/// How a projection stands: the version that answers reads, and those that are built beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectionStatus {
    /// The version that answers reads.
    pub active: VersionStatus,
    /// Later versions that will take over, by number; mostly none.
    pub building: Vec<VersionStatus>,
}

/// How one version of a projection stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionStatus {
    /// Its position, who reads, and the event that it stopped at, if it did.
    pub view: ProjectionView,
    /// How far it is behind the log; rows are counted up to 10,000.
    pub lag: Lag,
}

impl EventQueue {
    /// All versions of all projections over this database's log.
    ///
    /// # Errors
    /// The store's.
    pub async fn projections(&self) -> Result<Vec<ProjectionView>> {
        projections(self)?.projections().await
    }

    /// How all projections stand, by name.
    ///
    /// # Errors
    /// The store's.
    pub async fn projection_statuses(&self) -> Result<Vec<ProjectionStatus>> {
        statuses(projections(self)?, |_| true).await
    }

    /// How a projection stands.
    ///
    /// # Errors
    /// `NotFound` when there is none of this name; else the store's.
    pub async fn projection_status(&self, name: &str) -> Result<ProjectionStatus> {
        check_name(name)?;
        let found = statuses(projections(self)?, |view| view.id.name == name).await?;
        found.into_iter().next().ok_or_else(|| missing(name))
    }

    /// The document under a key, of a projection's active version, as it is stored.
    ///
    /// # Errors
    /// `NotFound` when there is no projection of this name; else the store's.
    pub async fn projection_document(&self, name: &str, key: &str) -> Result<Option<Bytes>> {
        check_name(name)?;
        check_key(key)?;
        let log = projections(self)?;
        let found = of_active(log, name, |id| async move { log.documents(&id, vec![key.to_owned()]).await });
        Ok(found.await?.ok_or_else(|| missing(name))?.into_iter().next().flatten())
    }

    /// Documents of a projection's active version as they are stored, in the order of their keys' bytes, after the key
    /// `after`, at most `limit`.
    ///
    /// # Errors
    /// `NotFound` when there is no projection of this name; else the store's.
    pub async fn projection_documents(&self, name: &str, after: Option<&str>, limit: usize) -> Result<Vec<Document>> {
        check_name(name)?;
        after.map_or(Ok(()), check_key)?;
        let log = projections(self)?;
        let found = of_active(log, name, |id| async move {
            let query = ListDocuments { prefix: String::new(), after: after.map(Into::into), limit };
            log.list_documents(&id, query).await
        });
        found.await?.ok_or_else(|| missing(name))
    }
}

fn missing(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no projection {name:?}"))
}

fn check_name(name: &str) -> Result<()> {
    ProjectionId::new(name, 1).map(drop)
}

/// No fold can have made such a key, and not every database can be asked for it.
fn check_key(key: &str) -> Result<()> {
    if key.contains('\0') {
        return Err(Error::invalid("a key must not contain a zero byte"));
    }
    Ok(())
}

/// The versions that are wanted and not retired, by name.
async fn statuses(log: &dyn Projections, wanted: impl Fn(&ProjectionView) -> bool) -> Result<Vec<ProjectionStatus>> {
    loop {
        let views = log.projections().await?;
        let views = views.into_iter().filter(|view| view.state != ProjectionState::Retired && wanted(view));
        match measured(log, views.collect()).await {
            Ok(versions) => return Ok(by_name(versions)),
            // Another version took over meanwhile and this one is gone; versions only go up, so that ends.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
}

async fn measured(log: &dyn Projections, views: Vec<ProjectionView>) -> Result<Vec<VersionStatus>> {
    let mut versions = Vec::with_capacity(views.len());
    for view in views {
        let lag = log.lag(&view.id, LAG_BOUND).await?;
        versions.push(VersionStatus { view, lag });
    }
    Ok(versions)
}

/// Puts versions that come by name and number together. The active one is the lowest: those below it are retired.
fn by_name(versions: Vec<VersionStatus>) -> Vec<ProjectionStatus> {
    let mut statuses: Vec<ProjectionStatus> = Vec::new();
    for version in versions {
        match statuses.last_mut() {
            Some(status) if status.active.view.id.name == version.view.id.name => status.building.push(version),
            _ => statuses.push(ProjectionStatus { active: version, building: Vec::new() }),
        }
    }
    statuses
}

/// Reads from the active version; again when another took over meanwhile, for the old one's documents may be gone by half.
/// `None` when there is no such projection.
pub(super) async fn of_active<T, Fut>(
    log: &dyn Projections,
    name: &str,
    read: impl Fn(ProjectionId) -> Fut,
) -> Result<Option<T>>
where
    Fut: Future<Output = Result<T>>,
{
    let mut active = log.active(name).await?.map(|view| view.id);
    loop {
        let Some(id) = active else { return Ok(None) };
        let answer = read(id.clone()).await;
        active = log.active(name).await?.map(|view| view.id);
        if active.as_ref() == Some(&id) {
            return answer.map(Some);
        }
    }
}
