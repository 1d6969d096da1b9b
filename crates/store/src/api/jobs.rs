//! Jobs as operators see them, and what operators do with them.

use async_trait::async_trait;
use tidegate_core::{EntryId, Generation, Tsid};

use crate::error::Result;
use crate::values::{
    Batch, BlockedCount, BlockedPage, BlockedQuery, HeldSlots, JobLane, JobView, JobsPage, JobsQuery, LaneAsk,
    LaneHolds, ManualAction, PoolKey, PoolView,
};

/// The verbs for operators. They are about jobs through the handle of either family.
#[async_trait]
pub trait JobDesk: std::fmt::Debug + Send + Sync + 'static {
    /// The job with a public id ([`JobView::id`]), with all of its event; `None` if there is none.
    async fn job(&self, id: Tsid) -> Result<Option<JobView>>;

    /// Jobs, live or ended, youngest first. A page looks at a bounded number of them, whatever waits.
    async fn list_jobs(&self, query: JobsQuery) -> Result<JobsPage>;

    /// Starts a new generation of jobs that failed or were cancelled, and of kept ones. `Conflict` for any other.
    async fn retry_jobs(&self, items: Vec<ManualAction>) -> Result<Batch<Generation>>;

    /// Notes that failed jobs need nothing more; a kept one ends, and others of its group go on. Again, it changes nothing.
    /// `Conflict` for a job that has not failed.
    async fn ignore_jobs(&self, items: Vec<ManualAction>) -> Result<Batch<()>>;

    /// The groups whose head is kept, by queue and group. A page looks at a bounded number of groups, whatever waits.
    async fn blocked_groups(&self, query: BlockedQuery) -> Result<BlockedPage>;

    /// How many of the groups after this one, of all queues, are blocked: among a bounded number of them.
    async fn count_blocked(&self, after: Option<(i64, String)>) -> Result<BlockedCount>;

    /// What waits in lanes, in their order, counted up to a bound.
    async fn lanes_hold(&self, lanes: Vec<LaneAsk>) -> Result<Vec<LaneHolds>>;

    /// The slots of pools that nodes hold, in the order of the pools.
    async fn slots_held(&self, pools: Vec<PoolKey>) -> Result<Vec<Vec<HeldSlots>>>;

    /// What is known of the deliveries of a pool.
    async fn pool_view(&self, pool: PoolKey) -> Result<PoolView>;

    /// Lanes with greater numbers than `after`, in their order.
    async fn job_lanes(&self, after: i64, limit: usize) -> Result<Vec<JobLane>>;

    /// Live jobs of a lane that no node holds, wherever they wait, also behind heads of other lanes: as many as there are, up to
    /// the limit.
    async fn jobs_of_lane(&self, lane: i64, limit: usize) -> Result<Vec<EntryId>>;
}
