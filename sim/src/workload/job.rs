//! What one process has to do.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What one process has to do. Passed to the child as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The name of the process and of its history files.
    pub(crate) process: String,
    /// The folder for histories and logs.
    pub(crate) folder: PathBuf,
    /// `sqlite:PATH` or `postgres://…`.
    pub(crate) address: String,
    pub(crate) seed: u64,
    /// Events to publish, over all restarts together.
    pub(crate) events: u64,
    pub(crate) publishers: usize,
    pub(crate) consumers: usize,
    /// Entries that one claim asks for.
    pub(crate) batch: usize,
    pub(crate) lease_ms: u64,
    /// FIFO groups that the processes share.
    pub(crate) groups: u32,
    /// Pause between snapshots in milliseconds; `None` takes no snapshots.
    pub(crate) census_ms: Option<u64>,
    /// Whether consumers also fail, release, hang up, hold leases too long and so on; otherwise they only complete.
    pub(crate) mischief: bool,
    /// Publish one event that kills each process that claims it.
    pub(crate) poison: bool,
    /// The attempts each event has.
    pub(crate) max_attempts: u32,
    /// Run handlers with this concurrency, and publish events of their type.
    #[serde(default)]
    pub(crate) handlers: Option<usize>,
    /// All events are in groups; about half of them are published and ended in the process's own transactions.
    #[serde(default)]
    pub(crate) grouped: bool,
    /// Additional environment variables of the process.
    #[serde(default)]
    pub(crate) environment: Vec<(String, String)>,
}

/// The file of a `sqlite:` address.
pub(crate) fn sqlite_path(address: &str) -> Option<&Path> {
    address.strip_prefix("sqlite:").map(Path::new)
}
