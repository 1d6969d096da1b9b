//! The health of a queue: whether its store answers, and what background tasks last found out.

use std::time::{Duration, Instant};

use tidegate_store::ProjectionView;

use super::EventQueue;
use crate::background::notes::lock;
use crate::error::{Error, ErrorKind, Result, closed};

const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// The health of a queue.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Health {
    /// Whether the store answers a read, or the error.
    pub store: Result<()>,
    /// How long that read took.
    pub answered_in: Duration,
    /// How long ago this process last wrote the store's heartbeat, without which no lease expires; `None` if it never
    /// did.
    pub last_heartbeat: Option<Duration>,
    /// How long ago upkeep last succeeded; `None` if it never did.
    pub last_upkeep: Option<Duration>,
    /// The last error of the heartbeat or of upkeep, and how long ago it was; `None` after a success.
    pub last_error: Option<(Duration, Error)>,
    /// Whether a write and a claim succeeded in the last probe, or the error (no space left, a lock held by another
    /// process, a database file that was removed).
    pub writes: Result<()>,
    /// Length of SQLite's write-ahead log at the last probe; `None` on another database.
    pub wal_bytes: Option<u64>,
    /// Projections that are stopped at a failure, whichever process reads for them.
    pub stopped_projections: Vec<ProjectionView>,
}

impl Health {
    /// Whether the store answers and takes writes, heartbeat and upkeep succeed, and no projection is stopped.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.store.is_ok() && self.writes.is_ok() && self.last_error.is_none() && self.stopped_projections.is_empty()
    }
}

impl EventQueue {
    /// Tries a write and a claim now, without changing anything.
    ///
    /// # Errors
    /// The error that they would get.
    pub async fn probe(&self) -> Result<()> {
        self.shared().store.probe().await.map(drop)
    }

    /// Asks the store for an answer, and reports it with the state of heartbeat, upkeep, probe and projections.
    pub async fn health(&self) -> Health {
        let shared = self.shared();
        let started = Instant::now();
        let store = if shared.is_closed() {
            Err(closed())
        } else {
            match tokio::time::timeout(HEALTH_TIMEOUT, shared.store.queue(self.name())).await {
                Ok(answer) => answer.map(drop),
                Err(_) => Err(Error::new(ErrorKind::Unavailable, "the store did not answer within 5 s")),
            }
        };
        let known = match &store {
            Ok(()) => tokio::time::timeout(HEALTH_TIMEOUT, shared.store.projections()).await,
            Err(_) => Ok(Ok(Vec::new())),
        };
        let mut stopped_projections = known.unwrap_or_else(|_| Ok(Vec::new())).unwrap_or_default();
        stopped_projections.retain(|projection| projection.failure.is_some());
        let probed = if shared.is_closed() { Err(closed()) } else { shared.probed.last() };
        let notes = lock(&shared.notes);
        Health {
            wal_bytes: probed.as_ref().ok().and_then(|probe| probe.wal_bytes),
            writes: probed.map(drop),
            store,
            answered_in: started.elapsed(),
            last_heartbeat: notes.last_heartbeat.map(|at| at.elapsed()),
            last_upkeep: notes.last_upkeep.map(|at| at.elapsed()),
            last_error: notes
                .heartbeat_error
                .as_ref()
                .or(notes.last_error.as_ref())
                .map(|(at, error)| (at.elapsed(), error.clone())),
            stopped_projections,
        }
    }
}
