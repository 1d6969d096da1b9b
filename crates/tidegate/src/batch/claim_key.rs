//! Claim parameters, by which polls are merged.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::QueueName;
use tidegate_store::Claim;

/// Claim parameters. Concurrent polls merge when all of them are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ClaimKey {
    pub(crate) queue: QueueName,
    pub(crate) types: Option<Vec<String>>,
    pub(crate) lease: Duration,
    pub(crate) worker: String,
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) audit: bool,
}

impl ClaimKey {
    /// A claim of at most `max` entries with these parameters.
    pub(crate) fn claim(&self, max: usize) -> Claim {
        Claim {
            queue: self.queue.clone(),
            types: self.types.clone(),
            max,
            lease: self.lease,
            worker: self.worker.clone(),
            quotas: BTreeMap::new(),
            tags: self.tags.clone(),
            audit: self.audit,
        }
    }
}
