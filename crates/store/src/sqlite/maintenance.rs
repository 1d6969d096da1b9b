//! Maintenance tasks, which one process does for all, elected by a lease.

use std::time::Duration;

use crate::error::Result;
use crate::sqlite::engine::tx::{Tx, later};

/// Gives a process the lease of a maintenance task, or extends it. `false` when another process holds it.
pub(super) fn elect(tx: &Tx<'_>, task: &str, holder: &str, lease: Duration) -> Result<bool> {
    let until = later(tx.now, lease)?;
    Ok(tx.execute(&tx.sql().heartbeat.elect, (task, holder, until, tx.now))? > 0)
}

/// Gives up all tasks of a process, so that another one can take over at once.
pub(super) fn resign(tx: &Tx<'_>, holder: &str) -> Result<()> {
    tx.execute(&tx.sql().heartbeat.resign, [holder]).map(drop)
}
