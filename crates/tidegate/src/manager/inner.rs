//! What all process loops of a manager share.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::attempt::{AttemptContext, HandlerSet};
use super::options::ManagerOptions;
use crate::error::{Error, Result};
use crate::queue::consumer::Consumer;

/// Handler states of ended events removed in one step.
const CLEANUP_STEP: usize = 1_000;

pub(crate) struct Inner {
    pub(super) options: ManagerOptions,
    pub(super) context: Arc<AttemptContext>,
    pub(super) consumer: Consumer,
    pub(super) by_type: HashMap<String, Arc<HandlerSet>>,
    /// Handlers of every type, for types that have no handlers of their own.
    pub(super) any: Option<Arc<HandlerSet>>,
    pub(super) stop: watch::Sender<bool>,
    /// Events claimed and not ended or given back yet.
    pub(super) running: AtomicUsize,
    /// Process loops that run.
    pub(super) loops: AtomicUsize,
    /// The last error of claiming; `None` after a success.
    pub(super) trouble: Mutex<Option<(Instant, Error)>>,
}

impl Inner {
    /// Removes the handler states of ended events, and returns how many.
    pub(super) async fn cleanup(&self) -> Result<u64> {
        let mut removed = 0;
        loop {
            let step = self.context.queue.store().forget_handled(CLEANUP_STEP).await?;
            removed += step;
            if step < CLEANUP_STEP as u64 {
                return Ok(removed);
            }
        }
    }

    pub(super) fn handlers_of(&self, event_type: &str) -> Option<&Arc<HandlerSet>> {
        self.by_type.get(event_type).or(self.any.as_ref())
    }

    /// Records the result of a claim for the manager's health.
    pub(super) fn note(&self, trouble: Option<Error>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble.map(|error| (Instant::now(), error));
    }
}
