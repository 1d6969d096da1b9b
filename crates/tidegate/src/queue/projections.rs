//! Projections by name, without their Rust types: their status, documents as stored bytes, and their removal. Owns which
//! version answers a read; must not know what is in a document.

use std::future::Future;

use bytes::Bytes;
use tidegate_store::{
    Document, ErrorKind, Lag, ListDocuments, ProjectionId, ProjectionState, ProjectionView, Projections,
};

use super::EventQueue;
use crate::error::{Error, Result};

/// Most rows that are counted as lag.
pub(crate) const LAG_BOUND: u32 = 10_000;

/// The status of a projection: the version that answers reads, and versions that are being built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectionStatus {
    /// The version that answers reads.
    pub active: VersionStatus,
    /// Later versions that are being built and will take over, by number; usually none.
    pub building: Vec<VersionStatus>,
}

/// The status of one version of a projection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionStatus {
    /// Its position, its reader, and its failure if it is stopped.
    pub view: ProjectionView,
    /// How far it is behind the log; rows are counted up to 10,000.
    pub lag: Lag,
}

impl EventQueue {
    /// All versions of all projections in this database.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn projections(&self) -> Result<Vec<ProjectionView>> {
        self.projection_store().projections().await
    }

    /// The status of all projections, by name.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn projection_statuses(&self) -> Result<Vec<ProjectionStatus>> {
        statuses(self.projection_store(), |_| true).await
    }

    /// The status of a projection.
    ///
    /// # Errors
    /// `NotFound` when there is none of this name, or any error of the store.
    pub async fn projection_status(&self, name: &str) -> Result<ProjectionStatus> {
        check_name(name)?;
        let found = statuses(self.projection_store(), |view| view.id.name == name).await?;
        found.into_iter().next().ok_or_else(|| missing(name))
    }

    /// The stored document of a key in the active version of a projection; `None` when there is none.
    ///
    /// # Errors
    /// `NotFound` when there is no projection of this name, or any error of the store.
    pub async fn projection_document(&self, name: &str, key: &str) -> Result<Option<Bytes>> {
        check_name(name)?;
        check_key(key)?;
        let log = self.projection_store();
        let found = of_active(log, name, |id| async move { log.documents(&id, vec![key.to_owned()]).await });
        Ok(found.await?.ok_or_else(|| missing(name))?.into_iter().next().flatten())
    }

    /// Stored documents of the active version of a projection, in byte order of their keys: at most `limit` after the
    /// key `after`.
    ///
    /// # Errors
    /// `NotFound` when there is no projection of this name, or any error of the store.
    pub async fn projection_documents(&self, name: &str, after: Option<&str>, limit: usize) -> Result<Vec<Document>> {
        check_name(name)?;
        after.map_or(Ok(()), check_key)?;
        let log = self.projection_store();
        let found = of_active(log, name, |id| async move {
            let query = ListDocuments { prefix: String::new(), after: after.map(Into::into), limit };
            log.list_documents(&id, query).await
        });
        found.await?.ok_or_else(|| missing(name))
    }

    /// Removes a projection with all its versions and documents, whichever process created it; retention then no longer
    /// waits for it. Returns false when there is none of that name. A process that still reads for it is fenced; a
    /// process that opens it again starts from the oldest row of the log.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn remove_projection(&self, name: &str) -> Result<bool> {
        let projections = self.projection_store();
        let removed = projections.remove(name).await?;
        while projections.sweep(name).await? {}
        Ok(removed)
    }

    pub(crate) fn projection_store(&self) -> &dyn Projections {
        self.store().as_ref()
    }
}

fn missing(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no projection {name:?}"))
}

fn check_name(name: &str) -> Result<()> {
    ProjectionId::new(name, 1).map(drop)
}

/// Refuses a zero byte: no fold can have stored such a key, and PostgreSQL cannot be queried for it.
fn check_key(key: &str) -> Result<()> {
    if key.contains('\0') {
        return Err(Error::invalid("a key must not contain a zero byte"));
    }
    Ok(())
}

/// The status of the wanted projections, without retired versions, by name.
async fn statuses(log: &dyn Projections, wanted: impl Fn(&ProjectionView) -> bool) -> Result<Vec<ProjectionStatus>> {
    loop {
        let views = log.projections().await?;
        let views = views.into_iter().filter(|view| view.state != ProjectionState::Retired && wanted(view));
        match measured(log, views.collect()).await {
            Ok(versions) => return Ok(by_name(versions)),
            // A version was retired meanwhile. Versions only go up, so this loop ends.
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

/// Groups versions, which are sorted by name and number. The active version is the lowest: those below it are retired.
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

/// Reads from the active version, and again when another version has become active meanwhile: part of the old one's
/// documents may be removed by then. `None` when there is no such projection.
pub(crate) async fn of_active<T, Fut>(
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
