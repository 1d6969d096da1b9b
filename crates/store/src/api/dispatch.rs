//! What delivers jobs: which lanes wait, the limits of pools that hold across nodes, and attempts.

use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::{EntryId, QueueName};

use crate::error::Result;
use crate::values::{JobAttempt, LimitAsk, LimitGrant, WaitingLanes};

/// The verbs for deliveries. They are about jobs through the handle of either family.
#[async_trait]
pub trait Dispatch: std::fmt::Debug + Send + Sync + 'static {
    /// The lanes with jobs that may be claimable now, of one queue or of all that are not paused, and when the next timed
    /// job is due. A hint: what is leased may be among them, and what is aside is not until its group has its turn.
    /// Costs a few index probes for each lane that holds something, however much that is.
    async fn waiting_lanes(&self, queue: Option<QueueName>) -> Result<WaitingLanes>;

    /// Asks for slots and moments of pools on behalf of a node, and returns what it gets, in the order of the pools.
    /// Slots are the node's until `hold` from now; asking again extends that, and says what it needs now. By database
    /// time; no slot expires during an outage. Which node gets how many is decided by
    /// [`slots::grant`](tidegate_core::pool::slots::grant), which moments by
    /// [`Rate::reserve`](tidegate_core::pool::rate::Rate::reserve). `Invalid` when a pool is named twice.
    async fn limits(&self, node: &str, asks: Vec<LimitAsk>, hold: Duration) -> Result<Vec<LimitGrant>>;

    /// The nodes that slots of pools are stored for, each once and in order, whether or not they still hold them. Few: a
    /// node is a process.
    async fn slot_holders(&self) -> Result<Vec<String>>;

    /// Gives back all slots of nodes, each by its exact name. Only for nodes that are known not to deliver any more: what they
    /// held is granted to others at once. `Invalid` for an empty name.
    async fn release_slots(&self, nodes: Vec<String>) -> Result<()>;

    /// The attempts at a job that were recorded, of all its generations, in order. None for an unknown job.
    async fn job_attempts(&self, id: EntryId) -> Result<Vec<JobAttempt>>;

    /// What is said about jobs that are tasks ([`Target::task`](crate::Target::task)), in the order of `ids`; `None` for
    /// others. `Invalid` for more than 10,000 jobs.
    async fn tasks(&self, ids: Vec<EntryId>) -> Result<Vec<Option<String>>>;
}
