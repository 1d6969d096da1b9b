//! Threads that read. Each has its own connection and sees one snapshot per job.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rusqlite::Connection;

use super::jobs::Jobs;
use super::tx::{Known, Shared, Tx};
use crate::error::{Error, Result};

/// How many there are.
pub(super) const READERS: usize = 2;
/// The page cache of a reader, in KiB.
pub(super) const CACHE_KIB: i32 = 2 << 10;

/// Works until the jobs are closed and empty.
pub(super) fn run(conn: &Connection, shared: &Arc<Shared>, jobs: &Jobs) {
    while let Some(mut job) = jobs.next() {
        if job.job.abandoned() {
            continue;
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            snapshot(conn, || {
                let (mut known, mut woken) = (Known::default(), BTreeSet::new());
                job.job.run(&mut Tx::new(conn, shared, &mut known, &mut woken))
            })
        }));
        let outcome = outcome.unwrap_or_else(|_| Err(Error::invalid("the query panicked")));
        if outcome.is_err() && !conn.is_autocommit() {
            // What failed is told below; a transaction that stays open would hold back the write-ahead log.
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
