//! Cancels what waits for deleted subscriptions: what is delayed, aside, behind others or blocks its group is not claimed for
//! long, so that no router meets it. Nothing is made for a subscription once it is deleted. But an attempt that was under way
//! may give its job back, or leave it to block its group, so that every lane is swept again from time to time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{CatalogueVersion, JobLane, Tsid};

use super::DELETED;
use crate::gateway::Gateway;
use crate::gateway::error::Result;

/// How often it is looked whether the catalogue has changed.
const EVERY: Duration = Duration::from_secs(2);
/// How often lanes are looked through even if it has not, also those that were swept. Lanes in which nothing waits are removed
/// after a while, so that few are swept in vain.
const ANYWAY: Duration = Duration::from_secs(60);
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
    /// Since when that is remembered.
    since: Option<Instant>,
    /// The catalogue version that all lanes were looked through under.
    done: Option<CatalogueVersion>,
}

impl Sweep {
    /// Sweeps for as long as it is polled.
    pub(crate) async fn run(mut self, gateway: Arc<Gateway>) {
        loop {
            if let Err(error) = self.look(&gateway, Instant::now()).await {
                tracing::warn!(%error, "jobs of deleted subscriptions could not be cancelled; trying again");
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn look(&mut self, gateway: &Gateway, now: Instant) -> Result<()> {
        let version = gateway.queue.catalogue_version().await?;
        let is_old = self.since.is_none_or(|since| now.saturating_duration_since(since) >= ANYWAY);
        if (self.done == Some(version) && !is_old) || !gateway.queue.job_desk().elect(TASK, ELECTED).await? {
            return Ok(());
        }
        if is_old {
            self.swept.clear();
            self.since = Some(now);
        }
        let lanes = self.lanes(gateway).await?;
        // Read after the lanes: whose subscription is not among these was deleted.
        let senders = gateway.senders().await?;
        for (lane, subscription) in lanes {
            if !senders.is_there(subscription) {
                self.sweep(gateway, &lane).await?;
            }
        }
        self.done = Some(version);
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

#[cfg(test)]
mod tests {
    use tidegate::{End, EventQueue, JobClaim, QueueName};
    use tidegate_core::cloud_event::Sent;

    use super::*;
    use crate::gateway::ingest::JOBS;
    use crate::{CancelReason, DispatchMode, GatewayOptions, JobStatus, Match, NewFact, SubscriptionBody, TypeBinding};

    async fn scene(address: &str) -> (EventQueue, Gateway) {
        let queue = EventQueue::open(address).await.unwrap();
        let mut options = GatewayOptions::default();
        options.secrets.key = Some("tgkey_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".parse().unwrap());
        (queue.clone(), Gateway::new(queue, options))
    }

    /// An attempt is under way when its subscription is deleted, and fails after the sweep: what it leaves must not block those
    /// of a subscription that is made under the same code.
    async fn what_an_attempt_leaves_later_is_swept_too(address: &str) {
        let (queue, gateway) = scene(address).await;
        let binding = TypeBinding { event_type: None, code: "t".parse().unwrap(), version: None };
        let target = "https://hooks.example/".parse().unwrap();
        let mut body = SubscriptionBody::new("n".into(), vec![binding], target);
        body.mode = DispatchMode::BlockOnError;
        let (made, _) = gateway.create_subscription(None, "s", &body).await.unwrap();
        let mut ids = Vec::new();
        for _ in 0..2 {
            let text = r#"{"specVersion":"1.0","type":"t","source":"/s","data":1,"messageGroup":"g"}"#;
            let event = Sent::from_json(&text.into()).unwrap().event;
            ids.push(gateway.ingest(NewFact { event, client: None }).await.unwrap().view.jobs[0].id);
        }
        let jobs = queue.jobs();
        let quotas = [(made.id.to_string(), 1)].into();
        let claim = JobClaim { queue: QueueName::of(None, JOBS).unwrap(), quotas, max: 1 };
        let attempt = jobs.claim(claim).await.unwrap().remove(0);
        gateway.delete_subscription(made.id, None, Match::Any).await.unwrap();
        let (mut sweep, now) = (Sweep::default(), Instant::now());
        sweep.look(&gateway, now).await.unwrap();
        let reason = async |at: usize| {
            let job = gateway.job(ids[at], None).await.unwrap().job;
            (job.status, job.cancel_reason)
        };
        let cancelled = (JobStatus::Cancelled, Some(CancelReason::SubscriptionDeleted));
        assert_eq!((reason(0).await, reason(1).await), ((JobStatus::InProgress, None), cancelled));
        attempt.end_as(End::Failed, None, None).await.unwrap();
        assert_eq!(reason(0).await, (JobStatus::Error, None), "it blocks its group");
        // Again with every change of the catalogue, and after a while.
        gateway.create_client("c", "c").await.unwrap();
        sweep.look(&gateway, now + ANYWAY / 2).await.unwrap();
        assert_eq!(reason(0).await, (JobStatus::Error, None));
        sweep.look(&gateway, now + ANYWAY).await.unwrap();
        assert_eq!(reason(0).await, cancelled);
        jobs.close().await;
        queue.close().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn sqlite() {
        let dir = tempfile::tempdir().unwrap();
        what_an_attempt_leaves_later_is_swept_too(dir.path().join("tidegate.db").to_str().unwrap()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn postgres() {
        let url = tidegate_testing::fresh_database();
        what_an_attempt_leaves_later_is_swept_too(&url).await;
        let _ = tokio::task::spawn_blocking(move || tidegate_testing::drop_database(&url)).await;
    }
}
