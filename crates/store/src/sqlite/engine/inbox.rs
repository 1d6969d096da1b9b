//! What the writer shares with the store's other threads and its callers.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use tokio::sync::broadcast;

use crate::error::Error;
use crate::sqlite::engine::checkpoints::Checkpoints;
use crate::sqlite::engine::errors;
use crate::sqlite::engine::families::PerFamily;
use crate::sqlite::engine::file_identity::Place;
use crate::sqlite::engine::jobs::Jobs;
use crate::sqlite::engine::waiting_claims;
use crate::values::Wake;
use crate::waiting_claim::WaitingClaims;

/// What the writer shares with the store's other threads and its callers.
#[derive(Debug)]
pub(in crate::sqlite) struct Inbox {
    pub(in crate::sqlite) jobs: Jobs,
    pub(in crate::sqlite) waiting_claims: waiting_claims::List,
    pub(in crate::sqlite) wake: PerFamily<broadcast::Sender<Wake>>,
    /// Why the store has stopped for good, if it has.
    pub(in crate::sqlite) stopped: OnceLock<Error>,
    /// The number of commits so far.
    pub(in crate::sqlite) commits: AtomicU64,
    /// The database's files, to check that they were not moved.
    pub(in crate::sqlite) place: Place,
    pub(in crate::sqlite) checkpoints: Checkpoints,
}

impl WaitingClaims for Inbox {
    fn look(&self, number: u64) {
        if self.waiting_claims.look(number) {
            self.jobs.nudge();
        }
    }

    fn withdraw(&self, number: u64) -> bool {
        self.waiting_claims.withdraw(number)
    }
}

impl Inbox {
    /// Tells the receivers of both families that something may be claimable. There may be none.
    pub(in crate::sqlite) fn wake_all(&self) {
        for wake in self.wake.all() {
            let _ = wake.send(Wake::Any);
        }
    }

    /// Stops the store for good: after a failed fsync, written data may be lost although the kernel says it is not.
    pub(in crate::sqlite) fn stop(&self, error: &Error) {
        tracing::error!(%error, "data could not be made durable: the store has stopped. Repair the disk and restart");
        // The first error stays.
        let _ = self.stopped.set(errors::stopped(error));
    }
}
