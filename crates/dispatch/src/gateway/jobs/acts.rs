//! What people do to jobs: retry, cancel and ignore, one by one or all that match.

use std::time::{Duration, Instant};

use tidegate::{EntryId, Error, ErrorKind, ManualAction, Tsid};

use super::values::{JobKind, JobStatus};
use super::{Job, JobsFilter, NoSender, Senders};
use crate::gateway::Gateway;
use crate::gateway::error::{GatewayError, Result};

/// How many jobs are changed in one transaction.
const PIECE: usize = 100;
/// How long one call goes on; whoever asked repeats it with what it answered.
const MOST_TIME: Duration = Duration::from_secs(20);

/// What is done to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobAct {
    /// It is started over, with a new budget of attempts.
    Retry,
    /// It ends as cancelled, also while it is delivered.
    Cancel,
    /// It failed and needs nothing more; its group goes on.
    Ignore,
}

impl JobAct {
    /// The act of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [("retry", Self::Retry), ("cancel", Self::Cancel), ("ignore", Self::Ignore)]
            .into_iter()
            .find_map(|(known, act)| (known == name).then_some(act))
    }

    /// Whether it can be done to a job.
    fn suits(self, job: &Job) -> bool {
        match self {
            Self::Retry => matches!(job.status, JobStatus::Error | JobStatus::Cancelled),
            Self::Cancel => is_live(job),
            Self::Ignore => job.status == JobStatus::Error && job.ignored_at.is_none(),
        }
    }

    /// Whether it is done to a job where many are changed and no status is named: what was given up is not tried again.
    fn is_usual(self, job: &Job) -> bool {
        let is_given_up = job.status == JobStatus::Cancelled || job.ignored_at.is_some();
        self.suits(job) && !(self == Self::Retry && is_given_up)
    }

    /// Whether it was done to a job already.
    fn is_done(self, job: &Job) -> bool {
        match self {
            Self::Retry => false,
            Self::Cancel => job.status == JobStatus::Cancelled,
            Self::Ignore => job.ignored_at.is_some(),
        }
    }
}

fn is_live(job: &Job) -> bool {
    let waits = matches!(job.status, JobStatus::Pending | JobStatus::Queued | JobStatus::InProgress);
    waits || job.is_kept
}

/// What is done to all jobs that match.
#[derive(Debug, Clone)]
pub struct BulkAct {
    /// What.
    pub act: JobAct,
    /// To which. Without a status: to all to which it can be done, but what was cancelled or ignored is not retried.
    pub filter: JobsFilter,
    /// Only to those with smaller numbers: where an earlier call has ended.
    pub before: Option<EntryId>,
    /// To how many at most.
    pub limit: usize,
    /// To how many per second at most.
    pub per_second: u32,
}

/// What became of it.
#[derive(Debug, Default)]
pub struct Acted {
    /// How many jobs were changed.
    pub done: usize,
    /// How many match, but have changed meanwhile or cannot be changed.
    pub refused: usize,
    /// Where to go on, if more may match.
    pub next: Option<EntryId>,
}

/// Who does it, and why.
#[derive(Debug, Clone, Copy)]
struct Who<'a> {
    actor: &'a str,
    reason: Option<&'a str>,
}

impl Who<'_> {
    fn action(self, id: EntryId) -> ManualAction {
        ManualAction { id, actor: Some(self.actor.to_owned()), reason: self.reason.map(str::to_owned) }
    }
}

impl Gateway {
    /// Does something to a job, if it belongs to this client (`None`: whoever it belongs to), and returns it. Doing it again
    /// changes nothing, but a retry is refused while the job is on its way.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when the job's status or its deleted subscription does not allow it; or the store's.
    pub async fn act_on_job(
        &self,
        id: Tsid,
        client: Option<Tsid>,
        act: JobAct,
        actor: &str,
        reason: Option<&str>,
    ) -> Result<Job> {
        let senders = self.senders().await?;
        let job = self.job_of(self.stored_job(id, client).await?, &senders).await?;
        if act.is_done(&job) {
            return Ok(job);
        }
        if !act.suits(&job) {
            return Err(unsuited(act, &job));
        }
        if act == JobAct::Retry {
            check_retry(&job, &senders)?;
        }
        let mut answers = self.do_to(act, vec![Who { actor, reason }.action(job.number)]).await?;
        let answer = answers.pop().unwrap_or_else(|| Err(Error::new(ErrorKind::Corrupt, "a job was not answered")));
        let now = self.job_of(self.stored_job(id, client).await?, &senders).await?;
        match answer {
            Ok(()) => Ok(now),
            Err(error) if is_race(&error) && act.is_done(&now) => Ok(now),
            Err(error) if is_race(&error) => Err(unsuited(act, &now)),
            Err(error) => Err(error.into()),
        }
    }

    /// Does something to the jobs that match, youngest first, in pieces and no faster than asked. A crash leaves what was done
    /// done; whatever follows is found by the same call.
    ///
    /// # Errors
    /// `Invalid`, or the store's: what was done before stays done.
    pub async fn act_on_jobs(&self, bulk: &BulkAct, actor: &str, reason: Option<&str>) -> Result<Acted> {
        let who = Who { actor, reason };
        let (began, mut acted) = (Instant::now(), Acted { next: bulk.before, ..Acted::default() });
        let piece = PIECE.min(usize::try_from(bulk.per_second).unwrap_or(PIECE)).max(1);
        loop {
            let left = bulk.limit.saturating_sub(acted.done);
            if left == 0 || began.elapsed() > MOST_TIME {
                return Ok(acted);
            }
            let started = Instant::now();
            let page = self.jobs(&bulk.filter, acted.next, piece.min(left)).await?;
            let senders = self.senders().await?;
            let may_be_done = |job: &Job| bulk.act != JobAct::Retry || check_retry(job, &senders).is_ok();
            let (suited, others): (Vec<Job>, Vec<Job>) = page
                .jobs
                .into_iter()
                .filter(|job| bulk.filter.status.is_some() || bulk.act.is_usual(job))
                .partition(|job| bulk.act.suits(job) && may_be_done(job));
            acted.refused += others.len();
            let count = suited.len();
            let items = suited.iter().map(|job| who.action(job.number)).collect();
            for answer in self.do_to(bulk.act, items).await? {
                match answer {
                    Ok(()) => acted.done += 1,
                    Err(error) if is_race(&error) => acted.refused += 1,
                    Err(error) => return Err(error.into()),
                }
            }
            acted.next = page.next;
            if acted.next.is_none() {
                return Ok(acted);
            }
            let due = Duration::from_secs_f64(count as f64 / f64::from(bulk.per_second.max(1)));
            tokio::time::sleep(due.saturating_sub(started.elapsed())).await;
        }
    }

    async fn do_to(&self, act: JobAct, items: Vec<ManualAction>) -> Result<Vec<Result<(), Error>>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let desk = self.queue.job_desk();
        Ok(match act {
            JobAct::Retry => desk.retry(items).await?.into_iter().map(|answer| answer.map(drop)).collect(),
            JobAct::Cancel => desk.cancel(items).await?,
            JobAct::Ignore => desk.ignore(items).await?,
        })
    }
}

/// Refuses the retry of a job that nobody would deliver.
fn check_retry(job: &Job, senders: &Senders) -> Result<()> {
    if job.terms.is_some() {
        return Ok(());
    }
    let sender = job.subscription.map_or(Err(NoSender::Deleted), |id| senders.of(id).map(drop));
    let why = match (job.kind, sender) {
        (JobKind::Task, _) => "what was said about it cannot be read",
        (JobKind::Event, Err(NoSender::Deleted)) => "its subscription was deleted",
        (JobKind::Event, Err(NoSender::NoWebhook)) => "its subscription sends to a queue now: give it a webhook first",
        (JobKind::Event, Err(NoSender::Unreadable)) => {
            "this server cannot read its subscription, which a newer program has written: ask a server of that version"
        }
        // It has changed since the job was read.
        (JobKind::Event, Ok(())) => return Ok(()),
    };
    Err(GatewayError::Conflict(format!("the dispatch job {} cannot be retried: {why}", job.id)))
}

/// Whether the job has changed since it was read.
fn is_race(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyEnded | ErrorKind::NotFound)
}

fn unsuited(act: JobAct, job: &Job) -> GatewayError {
    let can = match act {
        JobAct::Retry => "one that is ERROR or CANCELLED can be retried",
        JobAct::Cancel => "one that has not ended can be cancelled",
        JobAct::Ignore => "one that is ERROR can be ignored",
    };
    let status = job.status.as_str();
    GatewayError::Conflict(format!("the dispatch job {} is {status}: only {can}", job.id))
}
