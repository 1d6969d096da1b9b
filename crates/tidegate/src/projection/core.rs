//! What both forms of projections share: the queue, the id, the settings, the metrics.

use std::time::Duration;

use metrics::{Counter, Gauge, counter, gauge};
use tidegate_core::{End, RetryPolicy};
use tidegate_store::{Lag, ProjectionId, Projections, Step};
use tokio::sync::watch;

use crate::queue::EventQueue;

/// Settings of a projection.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Most events of one transaction.
    pub(crate) batch: usize,
    /// The ends of entries that it reads.
    pub(crate) ends: Vec<End>,
    /// Length of the reader's lease.
    pub(crate) lease: Duration,
    /// How often the reader reads the log without a wake-up.
    pub(crate) poll: Duration,
    /// The delays after a failure.
    pub(crate) retry: RetryPolicy,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch: 100,
            ends: vec![End::Completed],
            lease: Duration::from_secs(15),
            poll: Duration::from_millis(500),
            retry: RetryPolicy::exponential(Duration::from_secs(1), Duration::from_secs(60)),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) queue: EventQueue,
    pub(crate) id: ProjectionId,
    pub(crate) settings: Settings,
    pub(crate) types: Vec<String>,
    pub(crate) meters: Meters,
    /// Rises with every batch that this process commits.
    pub(crate) progress: watch::Sender<u64>,
}

impl Core {
    /// The projections and the log of the store.
    pub(crate) fn log(&self) -> &dyn Projections {
        self.queue.projection_store()
    }

    /// The same step, up to an earlier position.
    pub(crate) fn shortened(&self, step: &Step, to: tidegate_store::Position, events: u64) -> Step {
        Step { to, events, ..step.clone() }
    }
}

/// Metric handles of one projection.
pub(crate) struct Meters {
    pub(crate) events: Counter,
    pub(crate) failures: Counter,
    lag_events: Gauge,
    lag_seconds: Gauge,
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}

impl Meters {
    pub(crate) fn new(name: &str) -> Self {
        let name = name.to_owned();
        Self {
            events: counter!("tidegate_projection_events_total", "projection" => name.clone()),
            failures: counter!("tidegate_projection_failures_total", "projection" => name.clone()),
            lag_events: gauge!("tidegate_projection_lag_events", "projection" => name.clone()),
            lag_seconds: gauge!("tidegate_projection_lag_seconds", "projection" => name),
        }
    }

    pub(crate) fn show(&self, lag: &Lag) {
        self.lag_events.set(lag.rows as f64);
        self.lag_seconds.set(lag.age.as_secs_f64());
    }
}
