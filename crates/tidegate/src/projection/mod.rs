//! Projections: views that are made from the event log and follow it.
//!
//! This module owns how events become documents or SQL writes, and the loop that does it; it must not know how a database
//! keeps a log or a position. Position and effects commit together, so each event counts once in a database view, whatever
//! crashes. See [`EventLogProjectionBuilder`].

mod builder;
mod core;
mod documents;
mod event;
mod kind;
mod reading;
mod run;
mod sql;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_core::EntryId;
pub use tidegate_store::{
    Blocker, Document, Lag, Position, ProjectionFailure, ProjectionId, ProjectionState, ProjectionView,
};
use tidegate_store::{ErrorKind, ListDocuments};

pub use self::builder::{EventLogProjectionBuilder, FormBuilder};
use self::core::Core;
pub use self::documents::Documents;
pub use self::event::{BoxError, FoldAnswer, LoggedEvent};
use self::kind::Failure;
use self::reading::of_active;
pub use self::reading::{ProjectionStatus, VersionStatus};
use self::run::{LAG_BOUND, Loop, Passed, Session, reader_name};
pub use self::sql::Sql;
use crate::error::{Error, Result};
use crate::moments::after;

/// A form of projection: [`Documents`] or [`Sql`].
#[allow(private_bounds)] // the two forms are all there are
pub trait ProjectionForm: kind::Form {}

impl<F: kind::Form> ProjectionForm for F {}

/// A projection of this process. Clones are handles of the same one.
///
/// Any number of processes may run it: one of them reads, the others stand by and take over when its lease runs out.
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
    /// Follows the log until `shutdown` completes or the queue is closed. An event that fails stops it there, and so does a hook:
    /// that shows in [`status`](Self::status), [`EventQueue::health`] and the metrics, and it is tried again with growing
    /// pauses. Trouble with the database is waited out. The reader's lease is kept however long a batch takes.
    ///
    /// # Errors
    /// What only people can mend: a schema that does not fit, damaged data.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let mut reading = Loop::new(&self.core, &self.form);
        let outcome = tokio::select! {
            biased;
            () = shutdown => Ok(()),
            outcome = reading.run() => outcome,
        };
        if let Err(error) = reading.leave().await {
            tracing::debug!(%error, projection = %self.core.id, "the reader's lease runs out by itself");
        }
        outcome
    }

    /// Takes in what the log holds, and returns when nothing is left, whoever reads. A new version takes over. Events that
    /// an open transaction holds back are waited for.
    ///
    /// # Errors
    /// `Invalid` when an event fails; else the store's.
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
        Error::invalid(format!("projection {} stands still{}: {error}", self.core.id, Failure::place(entry)))
    }
}

impl<F> Projection<F> {
    /// Name and version.
    #[must_use]
    pub fn id(&self) -> &ProjectionId {
        &self.core.id
    }

    /// How this version stands: its position, who reads, and the event that it stopped at, if it did.
    ///
    /// # Errors
    /// The store's.
    pub async fn status(&self) -> Result<ProjectionView> {
        self.core.log()?.register(&self.core.id).await
    }

    /// How far this version is behind the log, and whose open transaction holds it back, if one does. Rows are counted up
    /// to 10,000.
    ///
    /// # Errors
    /// The store's; `NotFound` once a later version is active.
    pub async fn lag(&self) -> Result<Lag> {
        self.core.log()?.lag(&self.core.id, LAG_BOUND).await
    }

    /// Waits until the active version has passed an entry's end, so that what is read next reflects it.
    ///
    /// # Errors
    /// `Busy` when that takes longer than `timeout` (why is said), `NotFound` when there is no such entry.
    pub async fn wait_for(&self, entry: EntryId, timeout: Duration) -> Result<()> {
        let until = after(Instant::now(), timeout);
        let mut progress = self.core.progress.subscribe();
        let mut pause = Duration::from_millis(2);
        let mut logged = None;
        loop {
            progress.mark_unchanged();
            let log = self.core.log()?;
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
            Some(failure) => format!("it stands still{}: {}", Failure::place(failure.entry), failure.error),
            None => "it is behind".to_owned(),
        };
        Ok(Error::new(
            ErrorKind::Busy,
            format!("projection {name} has not passed entry {entry} within {timeout:?}: {why}"),
        ))
    }

    async fn active(&self) -> Result<Option<ProjectionView>> {
        self.core.log()?.active(&self.core.id.name).await
    }
}

impl<S: Serialize + DeserializeOwned + Send + Sync + 'static> Projection<Documents<S>> {
    /// The document under a key, of the active version.
    ///
    /// # Errors
    /// `Invalid` when it cannot be read as `S`, as while this version is still built and the active one keeps another
    /// shape; else the store's.
    pub async fn get(&self, key: &str) -> Result<Option<S>> {
        of_active(self.core.log()?, &self.core.id.name, |id| async move {
            let found = self.core.log()?.documents(&id, vec![key.to_owned()]).await?.into_iter().next().flatten();
            found.map(|document| self.read(&id, key, &document)).transpose()
        })
        .await
        .map(Option::flatten)
    }

    /// Documents of the active version whose keys begin with `prefix`, in the order of their keys' bytes, after the key
    /// `after`, at most `limit`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<(String, S)>> {
        let found = of_active(self.core.log()?, &self.core.id.name, |id| async move {
            let query = ListDocuments { prefix: prefix.to_owned(), after: after.map(Into::into), limit };
            let found = self.core.log()?.list_documents(&id, query).await?;
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
