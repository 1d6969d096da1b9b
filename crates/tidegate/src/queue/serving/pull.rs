//! Claims of pull workers: audited, under the lease that the worker, its queue or the server says.

use std::time::Duration;

use tidegate_core::QueueSettings;

use crate::error::Result;
use crate::queue::EventQueue;
use crate::queue::consumer::Consumer;

/// What a pull worker asks of a claim.
#[derive(Debug, Clone)]
pub struct PullClaim {
    /// The name of the worker.
    pub worker: String,
    /// Claims entries with any of these tags; `None`: any entry of the queue.
    pub tags: Option<Vec<String>>,
    /// How long the lease lasts; `None`: as set for the queue, or else as the server says.
    pub lease: Option<Duration>,
}

impl PullClaim {
    /// The length of the lease: the worker's, else the queue's, else `otherwise`.
    #[must_use]
    pub fn lease(&self, settings: &QueueSettings, otherwise: Duration) -> Duration {
        let of_queue = settings.lease_seconds.map(|seconds| Duration::from_secs(seconds.into()));
        self.lease.or(of_queue).unwrap_or(otherwise)
    }
}

impl EventQueue {
    /// A handle that claims from this queue for a pull worker. What it claims is recorded in the audit.
    ///
    /// # Errors
    /// `Invalid` when the worker's name, the tags or the lease are not valid.
    pub fn pull_consumer(&self, claim: PullClaim, lease: Duration) -> Result<Consumer> {
        let consumer = self.consumer().worker(claim.worker)?.lease(lease)?.audited();
        claim.tags.map_or(Ok(consumer.clone()), |tags| consumer.tags(tags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_claim_goes_before_the_queue_and_the_queue_before_the_server() {
        let (server, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let claim = |lease| PullClaim { worker: "w".into(), tags: None, lease };
        let set = QueueSettings { lease_seconds: Some(7), ..QueueSettings::default() };
        assert_eq!(claim(Some(second)).lease(&set, server), second);
        assert_eq!(claim(None).lease(&set, server), Duration::from_secs(7));
        assert_eq!(claim(None).lease(&QueueSettings::default(), server), server);
    }
}
