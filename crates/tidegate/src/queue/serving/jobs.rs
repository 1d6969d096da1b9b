//! The jobs of a database: claimed lane by lane under quotas, their leases kept while they are worked on. Each is ended or
//! retried like an entry. Knows nothing of subscriptions or webhooks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::NoopRecorder;
use tidegate_core::{EntryId, QueueName};
use tidegate_store::{Claim, Family, LimitAsk, LimitGrant, MAX_TASKS, WaitingLanes};

use super::hints::WakeHints;
use crate::background;
use crate::batch::claim_key::ClaimKey;
use crate::error::{Result, closed, lost};
use crate::manager::keeper::Keeper;
use crate::queue::EventQueue;
use crate::queue::delivery::{Origin, QueuedEvent};
use crate::queue::native::Native;
use crate::queue::shared::{Closes, Shared};

/// The jobs of a database; see [`EventQueue::jobs`]. Clones are handles of the same.
#[derive(Debug, Clone)]
pub struct Jobs {
    shared: Arc<Shared>,
    keeper: Arc<Keeper>,
}

/// Which jobs to claim.
#[derive(Debug, Clone)]
pub struct JobClaim {
    /// The queue of jobs.
    pub queue: QueueName,
    /// The most jobs to take of each lane, by what its jobs are sorted by. Other lanes are left alone.
    pub quotas: BTreeMap<String, usize>,
    /// The most jobs to take in all.
    pub max: usize,
}

impl EventQueue {
    /// The jobs of this queue's database. They have batchers of their own, are not among the library's metrics of entries,
    /// and must be closed before the queue is.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    #[must_use]
    pub fn jobs(&self) -> Jobs {
        let shared = self.shared();
        let store = shared.store.family(Family::Jobs);
        let opened = || Shared::new(shared.options.clone(), store, Native::Other);
        let (shared, signals) = metrics::with_local_recorder(&NoopRecorder, opened);
        background::start_for_jobs(&shared, signals);
        let keeper = Keeper::new(shared.batchers.extend.clone(), shared.options.lease);
        Jobs { shared, keeper: Arc::new(keeper) }
    }
}

impl Jobs {
    /// How long the lease of a job lasts that nobody keeps, such as that of a process that died.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.shared.options.lease
    }

    /// Claims jobs, and keeps their leases until each of them is ended, retried or dropped.
    ///
    /// # Errors
    /// Any error of the store; or `Unavailable` when the thread that keeps leases cannot be started, and then what was
    /// claimed is released.
    pub async fn claim(&self, claim: JobClaim) -> Result<Vec<QueuedEvent>> {
        let jobs = self.clone();
        // In a task of its own: what it claims for a caller that is gone is dropped, and thus released.
        let claimed = tokio::spawn(async move { jobs.claim_and_keep(claim).await });
        claimed.await.unwrap_or_else(|_| Err(lost()))
    }

    async fn claim_and_keep(&self, JobClaim { queue, quotas, max }: JobClaim) -> Result<Vec<QueuedEvent>> {
        if self.shared.is_closed() {
            return Err(closed());
        }
        let options = &self.shared.options;
        let key = ClaimKey {
            queue,
            types: Some(quotas.keys().cloned().collect()),
            lease: options.lease,
            worker: options.worker.clone(),
            tags: None,
            audit: false,
        };
        let claim = Claim { quotas, ..key.claim(max) };
        let origin = Arc::new(Origin { shared: Arc::clone(&self.shared), key });
        let from = Instant::now();
        let claimed = self.shared.store.claim(claim).await?;
        let now = Instant::now();
        let jobs: Vec<_> =
            claimed.into_iter().map(|data| QueuedEvent::new(data, Arc::clone(&origin), from, now)).collect();
        self.keeper.hold(jobs.iter().map(QueuedEvent::lease))?;
        Ok(jobs)
    }

    /// The lanes with jobs that may be claimable now, of one queue or of all that are not paused, and when the next timed job
    /// is due.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn waiting_lanes(&self, queue: Option<QueueName>) -> Result<WaitingLanes> {
        self.shared.store.waiting_lanes(queue).await
    }

    /// Asks for slots and moments of pools on behalf of a node, and returns what it gets, in the order of the pools.
    ///
    /// # Errors
    /// Any error of the store; `Invalid` when a pool is named twice.
    pub async fn limits(&self, node: &str, asks: Vec<LimitAsk>, hold: Duration) -> Result<Vec<LimitGrant>> {
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        self.shared.store.limits(node, asks, hold).await
    }

    /// The nodes that slots of pools are stored for.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn slot_holders(&self) -> Result<Vec<String>> {
        self.shared.store.slot_holders().await
    }

    /// Gives back all slots of nodes that are known not to deliver any more.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn release_slots(&self, nodes: Vec<String>) -> Result<()> {
        self.shared.store.release_slots(nodes).await
    }

    /// What is said about jobs that are tasks, in the order of their numbers; `None` for others.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn tasks(&self, ids: &[EntryId]) -> Result<Vec<Option<String>>> {
        let mut tasks = Vec::with_capacity(ids.len());
        for ids in ids.chunks(MAX_TASKS) {
            tasks.extend(self.shared.store.tasks(ids.to_vec()).await?);
        }
        Ok(tasks)
    }

    /// Wake-ups from now on: hints that some job may be claimable. Losing one costs time, never a job.
    #[must_use]
    pub fn wake_hints(&self) -> WakeHints {
        WakeHints::of(&*self.shared.store)
    }

    /// Refuses claims, flushes admitted calls and releases dropped jobs. The store stays open. Calling it twice is fine.
    pub async fn close(&self) {
        let shared = Arc::clone(&self.shared);
        // In a task of its own, so that a caller that drops this future does not leave it half closed.
        let closing = tokio::spawn(async move { shared.close(std::future::ready(()), Closes::Nothing).await });
        if closing.await.is_err() {
            tracing::error!(error = %lost(), "closing the jobs failed: leases of dropped jobs may have to run out");
        }
    }
}
