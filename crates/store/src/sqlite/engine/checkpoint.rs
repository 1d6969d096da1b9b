//! Checkpoints: copies the write-ahead log into the database on its own thread and connection, so that no call waits
//! for it, and has the log start over before it grows without bound. Knows nothing of jobs.

use std::time::Duration;

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use crate::error::{Error, ErrorKind, Result};
use crate::sqlite::engine::checkpoints::WRITER_PAUSE;
use crate::sqlite::engine::errors::is_fatal;
use crate::sqlite::engine::inbox::Inbox;

/// The length of the write-ahead log, in pages, from which on it is copied.
pub(in crate::sqlite) const PAGES: i32 = 4_000;
/// From this length on the writer is paused for a moment: a log that is written all the time never starts over.
const TOO_MANY: i32 = 2 * PAGES;
/// A file longer than this is truncated. A shorter one is kept, as overwriting is faster than growing.
pub(in crate::sqlite) const KEPT_BYTES: u64 = 64 << 20;
/// The pause after each round.
const PAUSE: Duration = Duration::from_millis(20);
/// The pause after a round that a reader or a long transaction blocked: the writer is paused in vain for at most a
/// twentieth of the time.
const PAUSE_WHEN_BLOCKED: Duration = Duration::from_secs(1);

/// Works until it is closed.
pub(in crate::sqlite) fn run(conn: &Connection, inbox: &Inbox) {
    let checkpoints = &inbox.checkpoints;
    while let Some(pages) = checkpoints.wait() {
        let outcome = round(conn, inbox, pages);
        let blocked = !matches!(outcome, Ok(true));
        let failure = outcome.err();
        if let Some(error) = &failure {
            tracing::warn!(%error, "checkpoint failed: the write-ahead log keeps growing");
            if is_fatal(error) {
                inbox.stop(error);
            }
        }
        checkpoints.ended(failure);
        checkpoints.pause(if blocked { PAUSE_WHEN_BLOCKED } else { PAUSE });
    }
}

/// Copies what can be copied, and has the log start over if it is too long. Returns whether nothing blocked it.
fn round(conn: &Connection, inbox: &Inbox, pages: i32) -> Result<bool> {
    let (all, copied) = match conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE).map_err(Error::from) {
        Ok(frames) => frames,
        // Another process is doing a checkpoint.
        Err(error) if error.kind() == ErrorKind::Busy => return Ok(false),
        Err(error) => return Err(error),
    };
    let bytes = inbox.place.wal_bytes().unwrap_or_default();
    if pages < TOO_MANY && bytes <= KEPT_BYTES {
        return Ok(true);
    }
    if copied < all - PAGES {
        // A reader still needs most of the log: pausing the writer would gain nothing.
        return Ok(false);
    }
    let mode = if bytes > KEPT_BYTES { CheckpointMode::TRUNCATE } else { CheckpointMode::RESTART };
    conn.busy_timeout(WRITER_PAUSE)?;
    let restart = || conn.wal_checkpoint_v2(None::<&str>, mode).map_err(Error::from);
    match inbox.checkpoints.while_writer_paused(restart) {
        Some(Ok(_)) => Ok(true),
        // Blocked by a reader or by another process.
        Some(Err(error)) if error.kind() == ErrorKind::Busy => Ok(false),
        None => Ok(false),
        Some(Err(error)) => Err(error),
    }
}
