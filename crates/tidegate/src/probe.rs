//! Tries about once a second whether the store could be written to and claimed from, and remembers the answer for
//! [`health`](crate::EventQueue::health). Knows nothing of upkeep, which a store that is blocked may hold up for long.

use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use tidegate_store::Probe;
use tokio::sync::watch;

use crate::error::{Error, ErrorKind, Result};
use crate::shared::Shared;

/// A store that takes longer than this for a small write is not ready.
const PATIENCE: Duration = Duration::from_secs(2);

/// The last answer; good until there is one.
#[derive(Debug)]
pub(crate) struct Probed(Mutex<Result<Probe>>);

impl Default for Probed {
    fn default() -> Self {
        Self(Mutex::new(Ok(Probe::default())))
    }
}

impl Probed {
    pub(crate) fn last(&self) -> Result<Probe> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, answer: Result<Probe>) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*last, &answer) {
            (Ok(_), Err(error)) => tracing::warn!(%error, "nothing can be written to the store or claimed from it now"),
            (Err(_), Ok(_)) => tracing::info!("the store can be written to again"),
            _ => {}
        }
        *last = answer;
    }
}

/// Runs until the queue is closed or its last handle is gone.
pub(crate) async fn run(shared: Weak<Shared>, every: Duration, mut stop: watch::Receiver<bool>) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let answer = tokio::time::timeout(PATIENCE, strong.store.probe()).await.unwrap_or_else(|_| {
            let message = format!("no write got through within {PATIENCE:?}: the store is blocked or overloaded");
            Err(Error::new(ErrorKind::Unavailable, message))
        });
        if strong.is_closed() {
            return;
        }
        if let Ok(Probe { wal_bytes: Some(bytes), .. }) = &answer {
            metrics::gauge!("tidegate_sqlite_wal_bytes").set(*bytes as f64);
        }
        strong.probed.note(answer);
        drop(strong);
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            // Either told to stop, or the last handle is gone.
            _ = stop.changed() => return,
        }
    }
}
