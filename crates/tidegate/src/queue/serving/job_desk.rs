//! Jobs as operators see them, and what operators do with them.

use std::sync::Arc;

use tidegate_core::{End, EntryId, Generation, Tsid, Why};
use tidegate_store::{
    BlockedCount, BlockedPage, BlockedQuery, Family, Finalize, HeldSlots, JobAttempt, JobLane, JobView, JobsPage,
    JobsQuery, LaneAsk, LaneHolds, MAX_TASKS, ManualAction, PoolKey, PoolView, Store,
};

use crate::error::Result;
use crate::queue::EventQueue;

/// The jobs of a database for operators; see [`EventQueue::job_desk`].
#[derive(Clone)]
pub struct JobDesk(Arc<dyn Store>);

impl std::fmt::Debug for JobDesk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobDesk").finish_non_exhaustive()
    }
}

impl EventQueue {
    /// The jobs of the database as operators see them. Nothing runs for it.
    #[must_use]
    pub fn job_desk(&self) -> JobDesk {
        JobDesk(self.shared().store.family(Family::Jobs))
    }
}

impl JobDesk {
    /// The job with a public id, with all of its event; `None` if there is none.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn get(&self, id: Tsid) -> Result<Option<JobView>> {
        self.0.job(id).await
    }

    /// Jobs, live or ended, youngest first.
    ///
    /// # Errors
    /// `Invalid` when a bound of the query is out of range, `Busy` when too many lists run at once, or any error of the store.
    pub async fn list(&self, query: JobsQuery) -> Result<JobsPage> {
        self.0.list_jobs(query).await
    }

    /// The attempts at a job that were recorded, of all its generations, in order.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn attempts(&self, id: EntryId) -> Result<Vec<JobAttempt>> {
        self.0.job_attempts(id).await
    }

    /// What is said about jobs that are tasks, in the order of their numbers; `None` for others.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn tasks(&self, ids: &[EntryId]) -> Result<Vec<Option<String>>> {
        let mut tasks = Vec::with_capacity(ids.len());
        for ids in ids.chunks(MAX_TASKS) {
            tasks.extend(self.0.tasks(ids.to_vec()).await?);
        }
        Ok(tasks)
    }

    /// Why a job is not delivered, as far as the store knows.
    ///
    /// # Errors
    /// `NotFound`, or any error of the store.
    pub async fn why(&self, id: EntryId) -> Result<Why> {
        self.0.why(id).await
    }

    /// Starts failed, cancelled and kept jobs over, with a new budget of attempts. `Conflict` for any other.
    ///
    /// # Errors
    /// Any error of the store; a job that is refused has one of its own.
    pub async fn retry(&self, items: Vec<ManualAction>) -> Result<Vec<Result<Generation>>> {
        self.0.retry_jobs(items).await
    }

    /// Ends live jobs as cancelled, held or not. `AlreadyEnded` for ended ones.
    ///
    /// # Errors
    /// Any error of the store; a job that is refused has one of its own.
    pub async fn cancel(&self, items: Vec<ManualAction>) -> Result<Vec<Result<()>>> {
        self.0.cancel_manually(items).await
    }

    /// Notes that failed jobs need nothing more; a kept one ends, and its group goes on. `Conflict` for any other.
    ///
    /// # Errors
    /// Any error of the store; a job that is refused has one of its own.
    pub async fn ignore(&self, items: Vec<ManualAction>) -> Result<Vec<Result<()>>> {
        self.0.ignore_jobs(items).await
    }

    /// The groups in which nothing runs, because their head is exhausted and keeps its place.
    ///
    /// # Errors
    /// `Invalid` when a bound of the query is out of range, `Busy` when too many lists run at once, or any error of the store.
    pub async fn blocked_groups(&self, query: BlockedQuery) -> Result<BlockedPage> {
        self.0.blocked_groups(query).await
    }

    /// How many of the groups after this one, of all queues, are blocked: among a bounded number of them.
    ///
    /// # Errors
    /// `Busy` when too many lists run at once, or any error of the store.
    pub async fn count_blocked(&self, after: Option<(i64, String)>) -> Result<BlockedCount> {
        self.0.count_blocked(after).await
    }

    /// What waits in lanes, in their order, counted up to a bound.
    ///
    /// # Errors
    /// `Busy` when too many lists run at once, or any error of the store.
    pub async fn lanes_hold(&self, lanes: Vec<LaneAsk>) -> Result<Vec<LaneHolds>> {
        self.0.lanes_hold(lanes).await
    }

    /// The slots of pools that nodes hold, in the order of the pools.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn slots_held(&self, pools: Vec<PoolKey>) -> Result<Vec<Vec<HeldSlots>>> {
        self.0.slots_held(pools).await
    }

    /// What is known of the deliveries of a pool.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn pool_view(&self, pool: PoolKey) -> Result<PoolView> {
        self.0.pool_view(pool).await
    }

    /// Lanes with greater numbers than `after`, in their order.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn lanes(&self, after: i64, limit: usize) -> Result<Vec<JobLane>> {
        self.0.job_lanes(after, limit).await
    }

    /// Some of the live jobs of a lane that no node holds, wherever they wait; none once there are none.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn of_lane(&self, lane: i64, limit: usize) -> Result<Vec<EntryId>> {
        self.0.jobs_of_lane(lane, limit).await
    }

    /// Ends live jobs as cancelled for a reason that no operator has; nothing is recorded but that. Those that have ended stay.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn discontinue(&self, ids: Vec<EntryId>, reason: &str) -> Result<()> {
        let errors = serde_json::to_string(&[reason]).ok();
        let end = |id| Finalize {
            id,
            token: None,
            end: End::Cancelled,
            errors: errors.clone(),
            results: None,
            attempt: None,
        };
        self.0.finalize(ids.into_iter().map(end).collect()).await.map(drop)
    }

    /// Whether this process is to do a task for all, for as long as it is elected.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn elect(&self, task: &'static str, lease: std::time::Duration) -> Result<bool> {
        self.0.elect(task, lease).await
    }
}
