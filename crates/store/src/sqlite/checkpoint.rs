//! Copies the write-ahead log into the database on a thread and a connection of its own, so that no call waits for it, and
//! has the log start over before it grows without bound. Knows nothing of jobs.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::errors::{self, is_fatal};
use super::writer::Inbox;
use crate::error::{Error, ErrorKind, Result};

/// Pages in the write-ahead log from which on it is copied.
pub(super) const PAGES: i32 = 4_000;
/// Pages from which on the writer is asked to stand aside for a moment: a log that is written all the time never starts
/// over by itself.
const TOO_MANY: i32 = 2 * PAGES;
/// A file longer than this is cut to nothing. A shorter one is kept, for writing over is faster than growing.
pub(super) const KEPT_BYTES: u64 = 64 << 20;
/// How long readers are waited for while the writer stands aside.
const ASIDE: Duration = Duration::from_millis(50);
/// How long the writer's transaction is waited for before that.
const TRANSACTION: Duration = Duration::from_secs(1);
/// The pause after each round.
const PAUSE: Duration = Duration::from_millis(20);
/// The same after one that a reader or a long transaction kept from doing all: the writer stands aside in vain for at
/// most a twentieth of the time.
const PAUSE_WHEN_BLOCKED: Duration = Duration::from_secs(1);

/// What the writer and the thread that copies say to each other.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Pages in the log, as the writer said when it asked.
    wanted: Option<i32>,
    /// The writer is asked to stand aside.
    aside: bool,
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

    /// Asks for a round.
    pub(super) fn want(&self, pages: i32) {
        self.lock().wanted = Some(pages);
        self.changed.notify_all();
    }

    /// The writer begins a transaction, once it need not stand aside any more.
    pub(super) fn enter(&self) {
        let waited = self.changed.wait_timeout_while(self.lock(), 10 * ASIDE, |state| state.aside);
        waited.unwrap_or_else(PoisonError::into_inner).0.writing = true;
    }

    /// The writer's transaction is over.
    pub(super) fn leave(&self) {
        let mut state = self.lock();
        state.writing = false;
        if state.aside {
            self.changed.notify_all();
        }
    }

    /// Does something while the writer stands aside; `None` when its transaction takes too long for that.
    fn while_aside<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let mut state = self.lock();
        state.aside = true;
        let waited = self.changed.wait_timeout_while(state, TRANSACTION, |state| state.writing && !state.closed);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let free = !state.writing;
        drop(state);
        let done = free.then(work);
        let mut state = self.lock();
        state.aside = false;
        if done.is_some() {
            // What the writer said before that is no longer true.
            state.wanted = None;
        }
        drop(state);
        self.changed.notify_all();
        done
    }

    /// Why the log cannot be copied, if that is so.
    pub(super) fn check(&self) -> Result<()> {
        self.lock().failure.clone().map_or(Ok(()), Err)
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits until a round is wanted; `None` once closed.
    fn wait(&self) -> Option<i32> {
        let waited = self.changed.wait_while(self.lock(), |state| state.wanted.is_none() && !state.closed);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.closed { None } else { state.wanted.take() }
    }

    fn pause(&self, time: Duration) {
        let waited = self.changed.wait_timeout_while(self.lock(), time, |state| !state.closed);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Works until it is closed.
pub(super) fn run(conn: &Connection, inbox: &Inbox) {
    let checkpoints = &inbox.checkpoints;
    while let Some(pages) = checkpoints.wait() {
        let outcome = round(conn, inbox, pages);
        let blocked = !matches!(outcome, Ok(true));
        let failure = outcome.err();
        if let Some(error) = &failure {
            tracing::warn!(%error, "the write-ahead log could not be copied into the database: it goes on growing");
            if is_fatal(error) {
                inbox.stop(error);
            }
        }
        checkpoints.lock().failure = failure;
        checkpoints.pause(if blocked { PAUSE_WHEN_BLOCKED } else { PAUSE });
    }
}

/// Copies what can be copied, and has the log start over where it is too long. Answers whether nothing stood in the way.
fn round(conn: &Connection, inbox: &Inbox, pages: i32) -> Result<bool> {
    let (all, copied) = match conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE).map_err(Error::from) {
        Ok(frames) => frames,
        // Another process is at it.
        Err(error) if error.kind() == ErrorKind::Busy => return Ok(false),
        Err(error) => return Err(error),
    };
    let bytes = inbox.place.wal_bytes().unwrap_or_default();
    if pages < TOO_MANY && bytes <= KEPT_BYTES {
        return Ok(true);
    }
    if copied < all - PAGES {
        // A reader still needs most of it: nothing is won by holding the writer up.
        return Ok(false);
    }
    let mode = if bytes > KEPT_BYTES { CheckpointMode::TRUNCATE } else { CheckpointMode::RESTART };
    conn.busy_timeout(ASIDE)?;
    let restart = || conn.wal_checkpoint_v2(None::<&str>, mode).map_err(Error::from);
    match inbox.checkpoints.while_aside(restart) {
        Some(Ok(_)) => Ok(true),
        // A reader, another process, or a long transaction of our own.
        Some(Err(error)) if error.kind() == ErrorKind::Busy => Ok(false),
        None => Ok(false),
        Some(Err(error)) => Err(error),
    }
}

impl Inbox {
    /// Stops the store for good: what was written may be gone while the system believes that it is not.
    pub(super) fn stop(&self, error: &Error) {
        tracing::error!(%error, "data could not be made durable: the store stops for good. Mend the disk and restart");
        // Whoever came first has said why.
        let _ = self.stopped.set(errors::stopped(error));
    }
}
