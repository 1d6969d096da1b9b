//! [`Projection`]: the handle of one projection, which runs it, asks how far it is, and reads its documents.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_core::EntryId;
use tidegate_store::{ErrorKind, Lag, ListDocuments, ProjectionId, ProjectionState, ProjectionView};

use super::core::Core;
use super::documents::Documents;
use super::kind::{Failure, Form};
use super::run::{Loop, Passed, Session, reader_name};
use crate::error::{Error, Result};
use crate::moments::after;
use crate::queue::projections::{LAG_BOUND, of_active};

/// A form of projection: [`Documents`] or [`Sql`](super::Sql).
#[expect(private_bounds, reason = "sealed: there are only these two forms")]
pub trait ProjectionForm: Form {}

impl<F: Form> ProjectionForm for F {}

/// A handle of a projection. Clones are handles of the same projection.
///
/// Any number of processes may run it: one of them is the reader, the others take over when its lease runs out.
pub struct Projection<F> {
    core: Arc<Core>,
    form: Arc<F>,
}

impl<F> Clone for Projection<F> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core), form: Arc::clone(&self.form) }
    }
}

impl<F> fmt::Debug for Projection<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Projection").field("id", &self.core.id).field("settings", &self.core.settings).finish()
    }
}

impl<F: ProjectionForm> Projection<F> {
    /// Follows the log until `shutdown` completes or the queue is closed. An event or a hook that fails stops the
    /// projection there: it shows in [`status`](Self::status), [`EventQueue::health`](crate::EventQueue::health) and
    /// the metrics, and is retried with growing pauses. After an error of the database it tries again. The reader's
    /// lease is extended however long a batch takes.
    ///
    /// # Errors
    /// `Schema` or `Corrupt`, which an operator has to resolve.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let mut reading = Loop::new(&self.core, &self.form);
        let outcome = tokio::select! {
            biased;
            () = shutdown => Ok(()),
            outcome = reading.run() => outcome,
        };
        if let Err(error) = reading.leave().await {
            tracing::debug!(%error, projection = %self.core.id, "giving the reader's lease back failed: it runs out");
        }
        outcome
    }

    /// Applies what is in the log, and returns when nothing is left; when another process is the reader, waits until it
    /// has done so. A new version takes over. Events that an open transaction holds back are waited for.
    ///
    /// # Errors
    /// `Invalid` when an event or a hook fails, or any error of the store.
    pub async fn catch_up(&self) -> Result<()> {
        let reader = reader_name(&self.core);
        loop {
            match Session::take(&self.core, &self.form, &reader).await? {
                Some(session) => return self.catch_up_as(session).await,
                None => {
                    let view = self.status().await?;
                    if view.state == ProjectionState::Retired || self.lag().await?.rows == 0 {
                        return Ok(());
                    }
                    if let Some(failure) = view.failure {
                        return Err(self.stopped(failure.entry, &failure.error));
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    async fn catch_up_as(&self, mut session: Session<F>) -> Result<()> {
        loop {
            session.keep().await?;
            if let Passed::Stopped(failure) = session.pass().await? {
                session.leave().await?;
                return Err(self.stopped(failure.entry, &failure.error));
            }
            if self.lag().await?.rows == 0 {
                return session.leave().await;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn stopped(&self, entry: Option<EntryId>, error: &str) -> Error {
        Error::invalid(format!("projection {} is stopped{}: {error}", self.core.id, Failure::location(entry)))
    }
}

impl<F> Projection<F> {
    pub(super) fn new(core: Core, form: F) -> Self {
        Self { core: Arc::new(core), form: Arc::new(form) }
    }

    /// The name and version of the projection.
    #[must_use]
    pub fn id(&self) -> &ProjectionId {
        &self.core.id
    }

    /// The status of this version: its position, its reader, and its failure if it is stopped.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn status(&self) -> Result<ProjectionView> {
        self.core.log().register(&self.core.id).await
    }

    /// How far this version is behind the log, and which open transaction holds it back, if one does. Rows are counted
    /// up to 10,000.
    ///
    /// # Errors
    /// `NotFound` once a later version is active, or any error of the store.
    pub async fn lag(&self) -> Result<Lag> {
        self.core.log().lag(&self.core.id, LAG_BOUND).await
    }

    /// Waits until the active version has applied the end of an entry, so that reads after this reflect it.
    ///
    /// # Errors
    /// `Busy` with the reason when that takes longer than `timeout`, `NotFound` when there is no such entry.
    pub async fn wait_for(&self, entry: EntryId, timeout: Duration) -> Result<()> {
        let until = after(Instant::now(), timeout);
        let mut progress = self.core.progress.subscribe();
        let mut pause = Duration::from_millis(2);
        let mut logged = None;
        loop {
            progress.mark_unchanged();
            let log = self.core.log();
            if logged.is_none() {
                logged = log.logged_at(entry).await?;
            }
            if let Some(position) = logged
                && let Some(active) = self.active().await?
                && active.position >= position
            {
                return Ok(());
            }
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(self.not_yet(entry, logged.is_some(), timeout).await?);
            }
            tokio::select! {
                () = tokio::time::sleep(pause.min(rest)) => {}
                _ = progress.changed() => {}
            }
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    async fn not_yet(&self, entry: EntryId, ended: bool, timeout: Duration) -> Result<Error> {
        let name = &self.core.id.name;
        if !ended && self.core.queue.store().entries(vec![entry]).await?.iter().all(Option::is_none) {
            return Ok(Error::new(ErrorKind::NotFound, format!("there is no entry {entry}")));
        }
        let why = match self.active().await?.and_then(|active| active.failure) {
            _ if !ended => "the entry has not ended yet".to_owned(),
            Some(failure) => format!("it is stopped{}: {}", Failure::location(failure.entry), failure.error),
            None => "it is behind the log".to_owned(),
        };
        Ok(Error::new(
            ErrorKind::Busy,
            format!("projection {name} has not applied entry {entry} within {timeout:?}: {why}"),
        ))
    }

    async fn active(&self) -> Result<Option<ProjectionView>> {
        self.core.log().active(&self.core.id.name).await
    }
}

impl<S: Serialize + DeserializeOwned + Send + Sync + 'static> Projection<Documents<S>> {
    /// The document of a key in the active version; `None` when there is none.
    ///
    /// # Errors
    /// `Invalid` when it cannot be deserialized as `S`, for instance while this version is being built and the active
    /// one has documents of another shape; or any error of the store.
    pub async fn get(&self, key: &str) -> Result<Option<S>> {
        of_active(self.core.log(), &self.core.id.name, |id| async move {
            let found = self.core.log().documents(&id, vec![key.to_owned()]).await?.into_iter().next().flatten();
            found.map(|document| self.read(&id, key, &document)).transpose()
        })
        .await
        .map(Option::flatten)
    }

    /// Documents of the active version whose keys begin with `prefix`, in byte order of their keys: at most `limit`
    /// after the key `after`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<(String, S)>> {
        let found = of_active(self.core.log(), &self.core.id.name, |id| async move {
            let query = ListDocuments { prefix: prefix.to_owned(), after: after.map(Into::into), limit };
            let found = self.core.log().list_documents(&id, query).await?;
            found
                .into_iter()
                .map(|found| Ok((found.key.clone(), self.read(&id, &found.key, &found.document)?)))
                .collect()
        });
        found.await.map(Option::unwrap_or_default)
    }

    fn read(&self, id: &ProjectionId, key: &str, document: &[u8]) -> Result<S> {
        serde_json::from_slice(document).map_err(|error| {
            Error::invalid(format!("the document {key:?} of projection {id} cannot be read: {error}"))
                .with_source(error)
        })
    }
}
