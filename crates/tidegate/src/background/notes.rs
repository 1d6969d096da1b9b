//! What background tasks last found out, for [`health`](crate::EventQueue::health).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tidegate_store::Probe;

use crate::error::{Error, Result};

/// When the heartbeat and upkeep last succeeded, and their last errors since.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) last_heartbeat: Option<Instant>,
    pub(crate) heartbeat_error: Option<(Instant, Error)>,
    pub(crate) last_upkeep: Option<Instant>,
    pub(crate) last_error: Option<(Instant, Error)>,
}

pub(crate) fn lock(notes: &Mutex<Notes>) -> MutexGuard<'_, Notes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of the last probe; good before the first one.
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

    /// Records the result of a probe; a change of it is logged.
    pub(crate) fn note(&self, answer: Result<Probe>) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*last, &answer) {
            (Ok(_), Err(error)) => tracing::warn!(%error, "store probe failed: writes and claims do not succeed"),
            (Err(_), Ok(_)) => tracing::info!("store probe succeeded: writes and claims work again"),
            _ => {}
        }
        *last = answer;
    }
}
