//! What the writer and the checkpoint thread tell each other.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};

/// How long it waits for the writer's transaction before that.
const TRANSACTION: Duration = Duration::from_secs(1);

/// How long a checkpoint waits for readers while the writer is paused.
pub(in crate::sqlite) const WRITER_PAUSE: Duration = Duration::from_millis(50);

/// What the writer and the checkpoint thread tell each other.
#[derive(Debug, Default)]
pub(in crate::sqlite) struct Checkpoints {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The length of the log in pages when the writer asked for a round.
    wanted: Option<i32>,
    /// The writer must not begin a transaction.
    pause_writer: bool,
    /// The writer is in a transaction.
    writing: bool,
    closed: bool,
    /// Why the last round failed.
    failure: Option<Error>,
}

impl Checkpoints {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a round; called by the writer with the length of the log in pages.
    pub(in crate::sqlite) fn want(&self, pages: i32) {
        self.lock().wanted = Some(pages);
        self.changed.notify_all();
    }

    /// The writer begins a transaction, once it is no longer paused.
    pub(in crate::sqlite) fn enter(&self) {
        let waited = self.changed.wait_timeout_while(self.lock(), 10 * WRITER_PAUSE, |state| state.pause_writer);
        waited.unwrap_or_else(PoisonError::into_inner).0.writing = true;
    }

    /// The writer's transaction is over.
    pub(in crate::sqlite) fn leave(&self) {
        let mut state = self.lock();
        state.writing = false;
        if state.pause_writer {
            self.changed.notify_all();
        }
    }

    /// Does something while the writer is paused; `None` when the writer's transaction takes too long.
    pub(in crate::sqlite) fn while_writer_paused<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let mut state = self.lock();
        state.pause_writer = true;
        let waited = self.changed.wait_timeout_while(state, TRANSACTION, |state| state.writing && !state.closed);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let free = !state.writing;
        drop(state);
        let done = free.then(work);
        let mut state = self.lock();
        state.pause_writer = false;
        if done.is_some() {
            // The length that the writer reported before is outdated.
            state.wanted = None;
        }
        drop(state);
        self.changed.notify_all();
        done
    }

    /// The error of the last round, if it failed.
    pub(in crate::sqlite) fn check(&self) -> Result<()> {
        self.lock().failure.clone().map_or(Ok(()), Err)
    }

    pub(in crate::sqlite) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits until a round is asked for; `None` once closed.
    pub(in crate::sqlite) fn wait(&self) -> Option<i32> {
        let waited = self.changed.wait_while(self.lock(), |state| state.wanted.is_none() && !state.closed);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.closed { None } else { state.wanted.take() }
    }

    pub(in crate::sqlite) fn pause(&self, time: Duration) {
        let waited = self.changed.wait_timeout_while(self.lock(), time, |state| !state.closed);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Records how a round ended.
    pub(in crate::sqlite) fn ended(&self, failure: Option<Error>) {
        self.lock().failure = failure;
    }
}
