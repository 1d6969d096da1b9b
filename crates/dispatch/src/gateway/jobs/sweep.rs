//! Cancels what waits for deleted subscriptions: what is delayed, aside, behind others or blocks its group is not claimed for
//! long, so that no router meets it. Nothing is made for a subscription once it is deleted, so each of its lanes is swept once;
//! after a restart once more.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{CatalogueVersion, JobLane, Tsid};

use super::DELETED;
use crate::gateway::Gateway;
use crate::gateway::error::Result;

/// How often it is looked whether the catalogue has changed.
const EVERY: Duration = Duration::from_secs(2);
/// How often lanes are looked through even if it has not.
const ANYWAY: Duration = Duration::from_secs(600);
/// For how long a node is elected.
const ELECTED: Duration = Duration::from_secs(30);
/// The task that it is elected for.
const TASK: &str = "deleted_subscriptions";
/// How many lanes are read, and how many jobs are cancelled, at once.
const LANES: usize = 1_000;
const JOBS: usize = 500;
/// After each of these pieces others have so many times as long to themselves.
const PAUSE: u32 = 2;

/// What was swept.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    swept: HashSet<i64>,
    /// The catalogue version that all lanes were looked through under, and when.
    done: Option<(CatalogueVersion, Instant)>,
}

impl Sweep {
    /// Sweeps for as long as it is polled.
    pub(crate) async fn run(mut self, gateway: Arc<Gateway>) {
        loop {
            if let Err(error) = self.look(&gateway).await {
                tracing::warn!(%error, "jobs of deleted subscriptions could not be cancelled; trying again");
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn look(&mut self, gateway: &Gateway) -> Result<()> {
        let version = gateway.queue.catalogue_version().await?;
        let is_done = |(done, at): &(CatalogueVersion, Instant)| *done == version && at.elapsed() < ANYWAY;
        if self.done.as_ref().is_some_and(is_done) || !gateway.queue.job_desk().elect(TASK, ELECTED).await? {
            return Ok(());
        }
        let lanes = self.lanes(gateway).await?;
        // Read after the lanes: whose subscription is not among these was deleted.
        let senders = gateway.senders().await?;
        for (lane, subscription) in lanes {
            if !senders.is_there(subscription) {
                self.sweep(gateway, &lane).await?;
            }
        }
        self.done = Some((version, Instant::now()));
        Ok(())
    }

    /// The lanes of subscriptions that were not swept.
    async fn lanes(&self, gateway: &Gateway) -> Result<Vec<(JobLane, Tsid)>> {
        let (desk, mut found, mut after) = (gateway.queue.job_desk(), Vec::new(), 0);
        loop {
            let page = desk.lanes(after, LANES).await?;
            let Some(last) = page.last() else { return Ok(found) };
            after = last.id;
            let new = page.into_iter().filter(|lane| !self.swept.contains(&lane.id));
            found.extend(
                new.filter_map(|lane| Some((lane.lane_type.parse::<Tsid>().ok()?, lane))).map(|(id, lane)| (lane, id)),
            );
        }
    }

    async fn sweep(&mut self, gateway: &Gateway, lane: &JobLane) -> Result<()> {
        let (desk, mut cancelled) = (gateway.queue.job_desk(), 0);
        loop {
            let began = Instant::now();
            let jobs = desk.of_lane(lane.id, JOBS).await?;
            if jobs.is_empty() {
                break;
            }
            cancelled += jobs.len();
            desk.discontinue(jobs, DELETED).await?;
            // It may take long: another node must not begin meanwhile.
            desk.elect(TASK, ELECTED).await?;
            tokio::time::sleep(began.elapsed() * PAUSE).await;
        }
        if cancelled > 0 {
            tracing::info!(cancelled, subscription = lane.lane_type, "jobs of a deleted subscription are cancelled");
        }
        self.swept.insert(lane.id);
        Ok(())
    }
}
