//! The settings of a queue, and their checks.

use std::time::Duration;

use tidegate_core::name::check_text;
use tidegate_core::{QueueName, RetryPolicy};
use tidegate_store::StoreOptions;

use crate::batch::limits::BatcherLimits;
use crate::error::{Error, Result};

/// Settings of an [`EventQueue`](crate::EventQueue).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The queue to publish into and claim from; `default` by default.
    pub queue: QueueName,
    /// The worker name that this process claims under; `host:pid` by default.
    pub worker: String,
    /// Length of a lease; 60 s by default.
    pub lease: Duration,
    /// The delays between attempts; 3 s doubling to 10 min with jitter by default.
    pub retry: RetryPolicy,
    /// How often a waiting consumer polls without a wake-up; 500 ms by default.
    pub poll_interval: Duration,
    /// How often upkeep runs; 1 s by default, at most half of the store's `outage_after`.
    pub upkeep_interval: Duration,
    /// How long a transaction on SQLite may be idle before it is rolled back, since all other writers wait for it; 10 s
    /// by default.
    pub transaction_patience: Duration,
    /// How many queues have a label of their own in metrics, in the order in which they are first used; all others are
    /// summed as `_other`. 1,000 by default.
    pub queue_labels: usize,
    /// Limits of batches and of waiting calls.
    pub limits: Limits,
    /// Settings of the store.
    pub store: StoreOptions,
}

/// Limits of batches and of waiting calls, per batcher.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Limits {
    /// Most items of one transaction; 1,000 by default.
    pub batch_items: usize,
    /// Most bytes of one transaction; 8 MiB by default.
    pub batch_bytes: usize,
    /// Most items that wait for their transaction or are in it; 10,000 by default.
    pub waiting_items: usize,
    /// Most bytes that wait for their transaction or are in it; 32 MiB by default.
    pub waiting_bytes: usize,
    /// How long a call waits to be admitted before it fails with `Busy`; 30 s by default.
    pub deadline: Duration,
    /// Transactions of one batcher at once; `None`: 1 on SQLite, 2 on PostgreSQL (4 for publishes with keys).
    pub in_flight: Option<usize>,
}

impl Default for Limits {
    fn default() -> Self {
        let batcher = BatcherLimits::default();
        Self {
            batch_items: batcher.batch_items,
            batch_bytes: batcher.batch_weight,
            waiting_items: batcher.room_items,
            waiting_bytes: batcher.room_weight,
            deadline: batcher.deadline,
            in_flight: None,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue: QueueName::default(),
            worker: default_worker(),
            lease: Duration::from_secs(60),
            retry: RetryPolicy::default(),
            poll_interval: Duration::from_millis(500),
            upkeep_interval: Duration::from_secs(1),
            transaction_patience: Duration::from_secs(10),
            queue_labels: 1_000,
            limits: Limits::default(),
            store: StoreOptions::default(),
        }
    }
}

impl Options {
    pub(crate) fn check(&self) -> Result<()> {
        check_text("worker", &self.worker)?;
        check_lease(self.lease)?;
        if self.poll_interval.is_zero() || self.upkeep_interval.is_zero() {
            return Err(Error::invalid("poll_interval and upkeep_interval must be above zero"));
        }
        if self.upkeep_interval > self.store.outage_after / 2 {
            return Err(Error::invalid(format!(
                "upkeep_interval ({:?}) must be at most half of store.outage_after ({:?}): a longer gap between \
                 heartbeats counts as an outage, in which no lease expires",
                self.upkeep_interval, self.store.outage_after
            )));
        }
        if self.transaction_patience.is_zero() {
            return Err(Error::invalid("transaction_patience must be above zero"));
        }
        self.store.check()
    }
}

/// A lease must be between 1 ms and 366 days.
pub(crate) fn check_lease(lease: Duration) -> Result<()> {
    if lease < Duration::from_millis(1) || lease > Duration::from_secs(366 * 24 * 3600) {
        return Err(Error::invalid(format!("lease must be between 1 ms and 366 days, not {lease:?}")));
    }
    Ok(())
}

fn default_worker() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .or_else(|| std::env::var("COMPUTERNAME").ok())
        .map(|name| name.trim().chars().filter(|c| !c.is_control()).take(100).collect::<String>())
        .filter(|name| !name.is_empty() && name.len() <= 200)
        .unwrap_or_else(|| "localhost".into());
    format!("{host}:{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_worker_can_be_stored() {
        Options::default().check().unwrap();
    }

    #[test]
    fn bad_settings_are_named() {
        let zero = Options { lease: Duration::ZERO, ..Options::default() };
        assert!(zero.check().unwrap_err().to_string().contains("lease"));
        let nobody = Options { worker: String::new(), ..Options::default() };
        assert!(nobody.check().unwrap_err().to_string().contains("worker"));
        let mut slow = Options { upkeep_interval: Duration::from_secs(6), ..Options::default() };
        assert!(slow.check().unwrap_err().to_string().contains("outage_after"));
        slow.store.outage_after = Duration::from_secs(12);
        slow.check().unwrap();
    }
}
