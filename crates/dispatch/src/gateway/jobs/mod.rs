//! Jobs: listed, shown, and why one is not delivered. What a job is sent to and how often is said by its subscription, as that
//! is now.

mod acts;
mod gauges;
mod groups;
mod sweep;
mod values;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tidegate::{EntryId, JobView, JobsQuery, MAX_JOBS, Resource, Timestamp, Tsid, Why};

pub use acts::{Acted, BulkAct, JobAct};
pub use groups::{BlockedJobs, BlockedJobsPage, PoolHolds};
pub(crate) use sweep::Sweep;
pub(crate) use values::DELETED;
pub use values::{AttemptRecord, CancelReason, Job, JobKind, JobStatus, JobTerms, JobTry};

use super::Gateway;
use super::error::{GatewayError, Result};
use super::kept::{Kind, Snapshot};
use super::pools::PoolStatus;
use super::subscriptions::{SUBSCRIPTION, Subscription, SubscriptionStatus};

/// How many jobs a page reads at most to find those that match what no index tells.
const EXAMINED: usize = 1_000;
/// How many it reads at once, unless it shows more.
const AT_ONCE: usize = 100;

/// All subscriptions with webhooks, by their ids, whatever their status.
#[derive(Debug, Clone, Default)]
pub(super) struct Senders {
    by_id: HashMap<Tsid, Arc<Subscription>>,
    /// All subscriptions, those with other targets and those that this program cannot read included.
    all: HashSet<Tsid>,
}

impl Senders {
    /// Whether there is a subscription, whatever it says.
    fn is_there(&self, id: Tsid) -> bool {
        self.all.contains(&id)
    }
}

impl Kind for Senders {
    const NAME: &'static str = SUBSCRIPTION;

    fn apply(&mut self, resource: &Resource) {
        self.by_id.remove(&resource.id);
        if resource.deleted {
            self.all.remove(&resource.id);
            return;
        }
        self.all.insert(resource.id);
        match Subscription::read(resource) {
            Ok(read) if values::is_webhook(&read) => drop(self.by_id.insert(read.id, Arc::new(read))),
            Ok(_) => {}
            Err(error) => tracing::error!(%error, code = resource.code, "jobs are shown without their subscription"),
        }
    }
}

/// Which jobs to list. A job must match every field that is set.
#[derive(Debug, Clone, Default)]
pub struct JobsFilter {
    /// Of this client.
    pub client: Option<Tsid>,
    /// With this status.
    pub status: Option<JobStatus>,
    /// Of this kind.
    pub kind: Option<JobKind>,
    /// Whose event has this type.
    pub code: Option<String>,
    /// Made for this subscription.
    pub subscription: Option<Tsid>,
    /// Made for this event.
    pub event: Option<Tsid>,
    /// In this message group.
    pub message_group: Option<String>,
    /// Limited by this pool.
    pub pool: Option<Tsid>,
    /// Made at this moment or later.
    pub from: Option<Timestamp>,
    /// Made before this moment.
    pub to: Option<Timestamp>,
}

/// A page of jobs. It may hold fewer than were asked for although there are more.
#[derive(Debug)]
pub struct JobsFound {
    /// The jobs, youngest first, without data.
    pub jobs: Vec<Job>,
    /// The number below which the next page begins, if there may be one.
    pub next: Option<EntryId>,
}

/// A job with the attempts at it.
#[derive(Debug)]
pub struct JobShown {
    /// The job.
    pub job: Job,
    /// The attempts, in order.
    pub attempts: Vec<JobTry>,
}

/// Why a job is not delivered.
#[derive(Debug)]
pub enum JobWhy {
    /// Its subscription is gone: it is cancelled soon.
    SubscriptionDeleted,
    /// Its subscription is paused.
    SubscriptionPaused,
    /// Its pool is suspended.
    PoolSuspended {
        /// The pool.
        pool: Tsid,
    },
    /// What the store says.
    Store(Why),
}

impl JobsFilter {
    /// Whether a job matches what the store was not asked for.
    fn fits(&self, job: &Job) -> bool {
        self.kind.is_none_or(|kind| kind == job.kind)
            && self.code.as_ref().is_none_or(|code| *code == job.event.event_type)
            && self.message_group.as_ref().is_none_or(|group| Some(group) == job.message_group.as_ref())
    }

    /// What the store is asked for; `None` if nothing can match.
    fn query(&self, senders: &Senders) -> Option<JobsQuery> {
        let in_pool = |pool: Tsid| {
            let of_pool = senders.by_id.values().filter(move |one| one.body.dispatch_pool == Some(pool));
            of_pool.map(|one| one.id).collect::<Vec<Tsid>>()
        };
        let lanes = match (self.subscription, self.pool) {
            (None, None) => None,
            (Some(one), None) => Some(vec![one]),
            (None, Some(pool)) => Some(in_pool(pool)),
            (Some(one), Some(pool)) => Some(in_pool(pool).into_iter().filter(|id| *id == one).collect()),
        };
        if lanes.as_ref().is_some_and(Vec::is_empty) || self.kind == Some(JobKind::Task) {
            return None;
        }
        Some(JobsQuery {
            states: self.status.map(JobStatus::states).unwrap_or_default(),
            client: self.client,
            lane_types: lanes.map(|lanes| lanes.into_iter().map(|id| id.to_string()).collect()),
            lane_prefix: None,
            event: self.event,
            from: self.from,
            to: self.to,
            before: None,
            limit: 0,
        })
    }
}

impl Gateway {
    /// The subscriptions with webhooks as they are now.
    async fn senders(&self) -> Result<Snapshot<Senders>> {
        let version = self.queue.catalogue_version().await?;
        self.senders.at(&self.queue, version).await
    }

    /// Lists jobs.
    ///
    /// # Errors
    /// `Invalid` when a bound is out of range, or the store's.
    pub async fn jobs(&self, filter: &JobsFilter, before: Option<EntryId>, limit: usize) -> Result<JobsFound> {
        let senders = self.senders().await?;
        let nothing = JobsFound { jobs: Vec::new(), next: None };
        let Some(mut query) = filter.query(&senders) else { return Ok(nothing) };
        let limit = limit.min(MAX_JOBS);
        (query.before, query.limit) = (before, limit.max(AT_ONCE));
        let (desk, mut jobs, mut examined) = (self.queue.job_desk(), Vec::new(), 0);
        loop {
            let page = desk.list(query.clone()).await?;
            examined += page.jobs.len();
            for view in page.jobs {
                let number = view.entry.id;
                if jobs.len() == limit {
                    return Ok(JobsFound { jobs, next: query.before });
                }
                query.before = Some(number);
                jobs.extend(Some(job_of(view, &senders)).filter(|job| filter.fits(job)));
            }
            let is_short = page.next.is_some() && examined < EXAMINED && jobs.len() < limit;
            if !is_short {
                return Ok(JobsFound { jobs, next: page.next });
            }
            query.before = page.next;
        }
    }

    /// A job by its id with the attempts at it, if it belongs to this client (`None`: whoever it belongs to).
    ///
    /// # Errors
    /// `NotFound`, or the store's.
    pub async fn job(&self, id: Tsid, client: Option<Tsid>) -> Result<JobShown> {
        let view = self.stored_job(id, client).await?;
        let attempts = self.queue.job_desk().attempts(view.entry.id).await?;
        let job = job_of(view, &*self.senders().await?);
        Ok(JobShown { job, attempts: attempts.into_iter().map(JobTry::from).collect() })
    }

    /// Why a job is not delivered: the first reason that applies.
    ///
    /// # Errors
    /// `NotFound`, or the store's.
    pub async fn why_not_delivered(&self, id: Tsid, client: Option<Tsid>) -> Result<JobWhy> {
        let view = self.stored_job(id, client).await?;
        let why = self.queue.job_desk().why(view.entry.id).await?;
        // The store knows nothing of routers: what it says about consumers is about those of queues.
        let why = if matches!(why, Why::NoLiveConsumer { .. }) { Why::Ready { ahead: 0 } } else { why };
        let is_open =
            matches!(why, Why::Ready { .. } | Why::DueAt { .. } | Why::SteppedAside { .. } | Why::QueuePaused);
        let job = job_of(view, &*self.senders().await?);
        let Some(subscription) = job.subscription.filter(|_| is_open) else { return Ok(JobWhy::Store(why)) };
        let senders = self.senders().await?;
        let Some(subscription) = senders.by_id.get(&subscription) else { return Ok(JobWhy::SubscriptionDeleted) };
        if subscription.status == SubscriptionStatus::Paused {
            return Ok(JobWhy::SubscriptionPaused);
        }
        let Some(pool) = subscription.body.dispatch_pool else { return Ok(JobWhy::Store(why)) };
        match self.pool(pool, None).await {
            Ok(found) if found.body.status == PoolStatus::Suspended => Ok(JobWhy::PoolSuspended { pool }),
            Ok(_) | Err(GatewayError::NotFound(_)) => Ok(JobWhy::Store(why)),
            Err(error) => Err(error),
        }
    }

    async fn stored_job(&self, id: Tsid, client: Option<Tsid>) -> Result<JobView> {
        let missing = || GatewayError::NotFound(format!("there is no dispatch job {id}"));
        let found = self.queue.job_desk().get(id).await?.ok_or_else(missing)?;
        if client.is_some() && found.entry.queue.client() != client {
            return Err(missing());
        }
        Ok(found)
    }
}

/// A job as it is shown.
fn job_of(view: JobView, senders: &Senders) -> Job {
    let subscription = view.lane_type.as_deref().and_then(|lane| senders.by_id.get(&lane.parse().ok()?)).cloned();
    Job::of_event(view, subscription.as_ref())
}
