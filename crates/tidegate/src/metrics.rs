//! The library's own metrics, through the `metrics` facade. The names are listed in the crate's documentation.
//!
//! Handles are made once, when a queue is opened, so that the hot path pays one branch when nobody records. A recorder
//! must therefore be installed before the queue is opened.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use tidegate_core::{Depth, End, QueueName};
use tidegate_store::{ErrorKind, Result};

/// Handles of every metric that the hot paths touch.
pub(crate) struct Meters {
    pub(crate) published: Counter,
    pub(crate) claimed: Counter,
    finalized: [Counter; End::ALL.len()],
    pub(crate) retried: Counter,
    pub(crate) released: Counter,
    leases_lost: Counter,
    pub(crate) publish_to_claim: Histogram,
    pub(crate) claim_to_finish: Histogram,
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}

impl Meters {
    pub(crate) fn new() -> Self {
        Self {
            published: counter!("tidegate_published_total"),
            claimed: counter!("tidegate_claimed_total"),
            finalized: End::ALL.map(|end| counter!("tidegate_finalized_total", "end" => end.as_str())),
            retried: counter!("tidegate_retried_total"),
            released: counter!("tidegate_released_total"),
            leases_lost: counter!("tidegate_leases_lost_total"),
            publish_to_claim: histogram!("tidegate_publish_to_claim_seconds"),
            claim_to_finish: histogram!("tidegate_claim_to_finish_seconds"),
        }
    }

    pub(crate) fn ended(&self, end: End, count: u64) {
        if count > 0 {
            self.finalized[end.code() as usize].increment(count);
        }
    }

    /// Counts the answers that say a lease was no longer held.
    pub(crate) fn lost_leases<T>(&self, answers: &[Result<T>]) {
        let fenced = |answer: &&Result<T>| answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Fenced);
        let lost = answers.iter().filter(fenced).count();
        if lost > 0 {
            self.leases_lost.increment(lost as u64);
        }
    }
}

/// Shows what a queue holds.
pub(crate) fn show_depth(queue: &QueueName, depth: &Depth) {
    let states =
        [("ready", depth.ready), ("delayed", depth.delayed), ("parked", depth.parked), ("leased", depth.leased)];
    for (state, count) in states {
        depth_gauge(queue, state).set(count as f64);
    }
}

fn depth_gauge(queue: &QueueName, state: &'static str) -> Gauge {
    gauge!("tidegate_depth", "queue" => queue.to_string(), "state" => state)
}

/// Shows how long the first claimable entry of a queue has been waiting.
pub(crate) fn show_oldest_age(queue: &QueueName, seconds: f64) {
    gauge!("tidegate_oldest_age_seconds", "queue" => queue.to_string()).set(seconds);
}
