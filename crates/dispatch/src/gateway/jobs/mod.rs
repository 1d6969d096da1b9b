//! Jobs: listed and shown. What a job is sent to and how often is said by its subscription, as that
//! is now; of a task by what is stored beside it.

mod acts;
mod gauges;
mod groups;
mod sweep;
mod values;
mod why;

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::{EntryId, Error, ErrorKind, JobView, JobsQuery, MAX_JOBS, Resource, Timestamp, Tsid};

pub use acts::{Acted, BulkAct, JobAct};
pub(super) use gauges::Gauges;
pub use groups::{BlockedJobs, BlockedJobsPage, PoolHolds};
pub(crate) use sweep::Sweep;
pub(crate) use values::DELETED;
pub use values::{AttemptRecord, CancelReason, Job, JobKind, JobStatus, JobTerms, JobTry};
pub use why::JobWhy;

use super::Gateway;
use super::error::{GatewayError, Result};
use super::kept::{Kind, Snapshot};
use super::subscriptions::{SUBSCRIPTION, Subscription};
use super::tasks::{TaskLane, TaskRules};

/// How many jobs a page reads at most to find those that match what no index tells.
const EXAMINED: usize = 400;
/// How many it reads at once, unless it shows more.
const AT_ONCE: usize = 100;

/// All subscriptions with webhooks, by their ids, whatever their status.
#[derive(Debug, Clone, Default)]
pub(super) struct Senders {
    by_id: HashMap<Tsid, Arc<Subscription>>,
    /// All others.
    others: HashMap<Tsid, NoSender>,
}

/// Why a subscription says nothing about jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoSender {
    Deleted,
    /// It sends to a queue.
    NoWebhook,
    /// A newer program has written it, or it is damaged.
    Unreadable,
}

impl Senders {
    /// The subscription that jobs were made for.
    fn of(&self, id: Tsid) -> Result<&Arc<Subscription>, NoSender> {
        self.by_id.get(&id).ok_or_else(|| self.others.get(&id).copied().unwrap_or(NoSender::Deleted))
    }

    /// Whether there is a subscription, whatever it says.
    fn is_there(&self, id: Tsid) -> bool {
        self.of(id).err() != Some(NoSender::Deleted)
    }
}

impl Kind for Senders {
    const NAME: &'static str = SUBSCRIPTION;

    fn apply(&mut self, resource: &Resource) {
        self.by_id.remove(&resource.id);
        self.others.remove(&resource.id);
        if resource.deleted {
            return;
        }
        match Subscription::read(resource) {
            Ok(read) if values::is_webhook(&read) => drop(self.by_id.insert(read.id, Arc::new(read))),
            Ok(read) => drop(self.others.insert(read.id, NoSender::NoWebhook)),
            Err(error) => {
                tracing::error!(%error, code = resource.code, "jobs are shown without their subscription");
                self.others.insert(resource.id, NoSender::Unreadable);
            }
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
    /// With this code: of an event its type.
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

impl JobsFilter {
    /// Whether a job matches what the store was not asked for.
    fn fits(&self, job: &Job) -> bool {
        // What a task delivers is no event, though the store keeps both as facts.
        let may_have_event = self.event.is_none() || job.kind == JobKind::Event;
        may_have_event
            && self.kind.is_none_or(|kind| kind == job.kind)
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
        let of_events = self.kind != Some(JobKind::Task);
        let of_tasks = self.kind != Some(JobKind::Event) && self.subscription.is_none() && self.event.is_none();
        let lane_types: Option<Vec<String>> =
            lanes.filter(|_| of_events).map(|lanes| lanes.into_iter().map(|id| id.to_string()).collect());
        let lane_prefix = match (of_tasks, self.pool, self.kind) {
            (true, pool @ Some(_), _) => Some(TaskLane::prefix(pool)),
            (true, None, Some(JobKind::Task)) => Some(TaskLane::prefix(None)),
            _ => None,
        };
        if lane_prefix.is_none() && (!of_events || lane_types.as_ref().is_some_and(Vec::is_empty)) {
            return None;
        }
        Some(JobsQuery {
            states: self.status.map(JobStatus::states).unwrap_or_default(),
            client: self.client,
            lane_types,
            lane_prefix,
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
            let found = page.jobs.len();
            examined += found;
            for job in self.jobs_of(page.jobs, &senders).await? {
                if jobs.len() == limit {
                    return Ok(JobsFound { jobs, next: query.before });
                }
                query.before = Some(job.number);
                jobs.extend(Some(job).filter(|job| filter.fits(job)));
            }
            // A page with fewer than were asked for is one for which the store has looked at as many jobs as it may: so it ends
            // this one too, or a request could walk over all jobs that there are.
            let is_full = found == query.limit;
            let is_short = page.next.is_some() && is_full && examined < EXAMINED && jobs.len() < limit;
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
        let job = self.job_of(view, &*self.senders().await?).await?;
        Ok(JobShown { job, attempts: attempts.into_iter().map(JobTry::from).collect() })
    }

    async fn stored_job(&self, id: Tsid, client: Option<Tsid>) -> Result<JobView> {
        let missing = || GatewayError::NotFound(format!("there is no dispatch job {id}"));
        let found = self.queue.job_desk().get(id).await?.ok_or_else(missing)?;
        if client.is_some() && found.entry.queue.client() != client {
            return Err(missing());
        }
        Ok(found)
    }

    /// A job as it is shown.
    async fn job_of(&self, view: JobView, senders: &Senders) -> Result<Job> {
        let lost = || Error::new(ErrorKind::Corrupt, "a job was read, but is not shown");
        Ok(self.jobs_of(vec![view], senders).await?.pop().ok_or_else(lost)?)
    }

    /// Jobs as they are shown, in their order. What is said about tasks is read for all of them at once.
    async fn jobs_of(&self, views: Vec<JobView>, senders: &Senders) -> Result<Vec<Job>> {
        let tasks: Vec<EntryId> = views.iter().filter(|view| is_task(view)).map(|view| view.entry.id).collect();
        let mut said = self.queue.job_desk().tasks(&tasks).await?.into_iter();
        let job = |view: JobView| {
            if is_task(&view) {
                let rules = said.next().flatten().and_then(|text| read_rules(view.entry.id, &text));
                return Job::of_task(view, rules.as_ref());
            }
            let lane = view.lane_type.as_deref().and_then(|lane| lane.parse::<Tsid>().ok());
            let subscription = lane.and_then(|lane| senders.of(lane).ok());
            Job::of_event(view, subscription)
        };
        Ok(views.into_iter().map(job).collect())
    }
}

fn is_task(view: &JobView) -> bool {
    view.lane_type.as_deref().is_some_and(TaskLane::is_one)
}

fn read_rules(number: EntryId, text: &str) -> Option<TaskRules> {
    let read = serde_json::from_str(text);
    read.inspect_err(|error| tracing::error!(%error, %number, "a task is shown without what is said about it")).ok()
}
