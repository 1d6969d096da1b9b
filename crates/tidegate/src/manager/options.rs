//! The settings of a manager.

use std::time::Duration;

use tidegate_core::RetryPolicy;

/// Settings of an [`EventManager`](crate::EventManager).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ManagerOptions {
    /// How often it polls without a wake-up; 100 ms by default.
    pub poll_interval: Duration,
    /// Most events that are claimed and not ended or given back yet; 100 by default.
    pub concurrency: usize,
    /// Length of a lease, which heartbeats extend; `None`: as the queue was opened with (60 s by default).
    pub lease: Option<Duration>,
    /// How long a handler may take; 5 min by default.
    pub timeout: Duration,
    /// The delays between attempts, for events and queues without a retry policy of their own; `None`: as the queue was
    /// opened with.
    pub retry: Option<RetryPolicy>,
    /// How long a shutdown waits for running handlers; 30 s by default.
    pub grace: Duration,
    /// How often handler states of ended events are removed; 60 s by default.
    pub cleanup_interval: Duration,
    /// Whether events without a handler are claimed and completed; false by default, since they may belong to other
    /// services.
    pub complete_unhandled: bool,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_millis(100),
            concurrency: 100,
            lease: None,
            timeout: Duration::from_secs(300),
            retry: None,
            grace: Duration::from_secs(30),
            cleanup_interval: Duration::from_secs(60),
            complete_unhandled: false,
        }
    }
}
