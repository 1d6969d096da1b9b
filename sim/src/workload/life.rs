//! One incarnation of a process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tidegate::{ErrorKind, EventQueue};

use super::job::Job;
use super::plan;
use crate::history::{Answer, OpOutcome, Recorder};

/// Pause after an operation with an unknown result, and between tries to open the database.
pub(crate) const BACK_OFF: Duration = Duration::from_millis(50);
/// Pause after busy or unavailable: while the database is known to be down, calls are refused at once.
const DENIED_BACK_OFF: Duration = Duration::from_millis(500);

/// What the tasks of one incarnation of a process share.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) job: Job,
    pub(super) queue: EventQueue,
    pub(super) recorder: Recorder,
    /// Set when the parent asks the process to stop.
    pub(super) stop: AtomicBool,
    /// How many incarnations there were before.
    pub(super) incarnation: u64,
    /// The Postgres connection for the process's own transactions that end entries.
    pub(super) own: tokio::sync::Mutex<Option<tokio_postgres::Client>>,
}

impl Life {
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The random choices of one task in this incarnation.
    pub(super) fn choices(&self, task: u64) -> StdRng {
        StdRng::seed_from_u64(plan::mix(&[self.job.seed, plan::hash(&self.job.process), self.incarnation, task]))
    }

    pub(super) fn lease(&self) -> Duration {
        Duration::from_millis(self.job.lease_ms)
    }

    pub(super) async fn back_off(&self, outcome: &OpOutcome) {
        match outcome {
            OpOutcome::Unknown { .. } => tokio::time::sleep(BACK_OFF).await,
            OpOutcome::Denied { .. } => tokio::time::sleep(DENIED_BACK_OFF).await,
            OpOutcome::Published { answers }
                if answers.iter().any(|answer| matches!(answer, Answer::Denied { .. })) =>
            {
                tokio::time::sleep(DENIED_BACK_OFF).await;
            }
            _ => {}
        }
    }
}

/// What an error of the library says about the operation: refused, denied, fenced or unknown.
pub(super) fn outcome_of(error: &tidegate::Error) -> OpOutcome {
    let text = format!("{:?}: {error}", error.kind());
    match error.kind() {
        ErrorKind::Fenced => OpOutcome::Fenced,
        ErrorKind::Busy | ErrorKind::Unavailable => OpOutcome::Denied { error: text },
        ErrorKind::Indeterminate | ErrorKind::Corrupt => OpOutcome::Unknown { error: text },
        _ => OpOutcome::Refused { error: text },
    }
}
