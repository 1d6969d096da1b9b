//! The threads that read. Each has its own connection and runs one job per snapshot.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::error::{Error, Result};
use crate::listing::too_slow;
use crate::sqlite::engine::families::PerFamily;
use crate::sqlite::engine::jobs::Jobs;
use crate::sqlite::engine::shared::Shared;
use crate::sqlite::engine::tx::Tx;

/// How many readers there are.
pub(in crate::sqlite) const READERS: usize = 2;
/// How many further readers there are for lists.
pub(in crate::sqlite) const LIST_READERS: usize = 2;
/// The page cache of a reader, in KiB.
pub(in crate::sqlite) const CACHE_KIB: i32 = 2 << 10;

/// After how many of its operations SQLite checks whether a list shall go on: some tens of microseconds.
const OPERATIONS: std::ffi::c_int = 1_000;

/// Until when a list may run, and whether its caller is gone.
struct Watch {
    until: Instant,
    gone: Arc<AtomicBool>,
}

thread_local! {
    /// The limits of the list that this thread runs. SQLite's progress handler runs on the same thread.
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// Has SQLite check regularly whether what runs on this connection shall go on.
pub(in crate::sqlite) fn check_progress(conn: &mut Connection) -> Result<()> {
    let over = |watch: &Watch| Instant::now() >= watch.until || watch.gone.load(Ordering::Acquire);
    conn.progress_handler(OPERATIONS, Some(move || WATCH.with_borrow(|watch| watch.as_ref().is_some_and(over))))?;
    Ok(())
}

/// Runs a list that is stopped at its time limit or when its caller is gone. Without the progress handler it just runs.
pub(in crate::sqlite) fn watched<T>(
    limit: Duration,
    gone: Arc<AtomicBool>,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let until = Instant::now() + limit;
    WATCH.set(Some(Watch { until, gone }));
    let answer = work();
    WATCH.set(None);
    answer.map_err(|error| if Instant::now() >= until { too_slow(limit) } else { error })
}

/// Works until the jobs are closed and empty.
pub(in crate::sqlite) fn run(conn: &Connection, shared: &Arc<Shared>, jobs: &Jobs) {
    while let Some(mut job) = jobs.next() {
        if job.job.abandoned() {
            continue;
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            snapshot(conn, || {
                let mut states = PerFamily::default();
                job.job.run(&mut Tx::new(conn, shared, &mut states, job.family))
            })
        }));
        let outcome = outcome.unwrap_or_else(|_| Err(Error::invalid("the query panicked")));
        if outcome.is_err() && !conn.is_autocommit() {
            // Reported below; a transaction left open would keep the write-ahead log from starting over.
            let _ = conn.execute_batch("ROLLBACK");
        }
        job.job.answer(outcome);
    }
}

fn snapshot(conn: &Connection, work: impl FnOnce() -> Result<()>) -> Result<()> {
    conn.prepare_cached("BEGIN")?.execute([])?;
    work()?;
    conn.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}
