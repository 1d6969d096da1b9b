//! How long a migration waits for its locks.

use std::time::{Duration, Instant};

use crate::error::{ErrorKind, Result};
use crate::postgres::engine::errors::Fault;

/// How long a statement of a migration waits for a lock. Later transactions queue behind it, so this is how long each
/// try may hold them up.
pub(in crate::postgres) const LOCK_PATIENCE: &str = "250ms";
/// The same for locks that others may hold while they wait for one that the migration holds: longer than PostgreSQL's
/// `deadlock_timeout`, after which it ends the statements of those others.
pub(in crate::postgres) const CYCLE_PATIENCE: &str = "1500ms";
/// How long a migration keeps trying to get its locks.
const TRY_FOR: Duration = Duration::from_secs(60);

/// Retries while locks are not granted, until a deadline ([`TRY_FOR`]).
pub(in crate::postgres) struct Patience(Instant);

impl Patience {
    pub(in crate::postgres) fn new() -> Self {
        Self(Instant::now() + TRY_FOR)
    }

    /// Whether trying again may help: another transaction was in the way.
    pub(in crate::postgres) fn may_help(fault: &Fault) -> bool {
        match fault {
            Fault::Again(_) => true,
            Fault::Final(error) => error.kind() == ErrorKind::Busy,
            _ => false,
        }
    }

    /// Waits a moment before the next try; gives the fault back when trying again does not help or time is up.
    pub(in crate::postgres) async fn bear(&self, fault: Fault) -> Result<(), Fault> {
        if !Self::may_help(&fault) || Instant::now() >= self.0 {
            return Err(fault);
        }
        tracing::debug!(error = %fault.into_error(), "a lock for the migration was not granted, trying again");
        tokio::time::sleep(Duration::from_millis(rand::random_range(100..500))).await;
        Ok(())
    }
}
