//! Checks deliveries: order within groups, limits of pools, and that what is recorded is what a receiver saw.
//!
//! All moments are of this machine's clock, which is also that of the databases under test. A request is in flight from when
//! it was read completely until right before its answer was written, or until its connection was seen to close: a node that
//! is killed closes all its connections at that moment, so its requests need no exception.
//!
//! What a node that was killed had not recorded yet is in doubt: that is the last thing that happened to a job over a
//! connection that closed at a kill ([`Run::is_in_doubt`]). Only there may a webhook be delivered again.

mod limits;
mod orders;
mod records;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Serialize;

use super::{Invariant, Report};
use crate::state::deliver::{EndedJob, Jobs};

/// The type of events that all subscriptions take, and that of events which some take.
pub(crate) const ALL: &str = "sim.all";
pub(crate) const SOME: &str = "sim.some";
/// The sequence of events that have none.
const DEFAULT_SEQUENCE: i32 = 99;
/// How long before and after a kill, as it was noticed, connections may be seen to close by it. A process that kills itself closes its
/// connections first and is noticed once all of it is gone, which took 63 ms on a busy machine.
const BEFORE_KILL: i64 = 200_000;
const AFTER_KILL: i64 = 500_000;
/// A node records an attempt within this time, unless it is killed or the database is.
const RECORDED_WITHIN: i64 = 2_000_000;

/// A pool of a run.
#[derive(Debug)]
pub(crate) struct PoolPlan {
    pub(crate) code: &'static str,
    pub(crate) concurrency: u32,
    pub(crate) per_minute: Option<u32>,
}

/// The pools.
pub(crate) const POOLS: [PoolPlan; 3] = [
    PoolPlan { code: "wide", concurrency: 8, per_minute: None },
    PoolPlan { code: "narrow", concurrency: 3, per_minute: None },
    PoolPlan { code: "rated", concurrency: 5, per_minute: Some(1_200) },
];

/// What a failed delivery means for the rest of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Immediate,
    NextOnError,
    BlockOnError,
}

/// A subscription of a run.
#[derive(Debug)]
pub(crate) struct SubscriptionPlan {
    pub(crate) code: &'static str,
    pub(crate) mode: Mode,
    /// Which of the pools.
    pub(crate) pool: usize,
    pub(crate) max_retries: u32,
    /// Whether its jobs expire within the run.
    pub(crate) expires: bool,
    pub(crate) data_only: bool,
    /// Whether it also takes the events that not all take.
    pub(crate) takes_some: bool,
    /// Whether the receiver refuses some of its events for good.
    pub(crate) has_refused: bool,
}

/// The subscriptions: each mode in several pools, so that the jobs of one group of events are in several pools too.
pub(crate) const SUBSCRIPTIONS: [SubscriptionPlan; 6] = [
    subscription("immediate", Mode::Immediate, 0),
    SubscriptionPlan { max_retries: 0, data_only: false, ..subscription("once", Mode::Immediate, 1) },
    SubscriptionPlan { takes_some: true, ..subscription("next", Mode::NextOnError, 0) },
    SubscriptionPlan { max_retries: 1, ..subscription("next-rated", Mode::NextOnError, 2) },
    SubscriptionPlan {
        max_retries: 1_000,
        takes_some: true,
        has_refused: false,
        data_only: false,
        ..subscription("block", Mode::BlockOnError, 1)
    },
    SubscriptionPlan { max_retries: 2, expires: true, ..subscription("block-expires", Mode::BlockOnError, 0) },
];

const fn subscription(code: &'static str, mode: Mode, pool: usize) -> SubscriptionPlan {
    SubscriptionPlan {
        code,
        mode,
        pool,
        max_retries: 3,
        expires: false,
        data_only: true,
        takes_some: false,
        has_refused: true,
    }
}

impl SubscriptionPlan {
    /// Whether the receiver refuses this event of it for good.
    pub(crate) fn is_refused(&self, event: u64) -> bool {
        self.has_refused && event % 23 == 7
    }
}

/// Whether all subscriptions take the event of a number.
pub(crate) fn is_for_all(number: u64) -> bool {
    !number.is_multiple_of(3)
}

/// How the receiver answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Answered {
    Status(u16),
    /// It reset the connection.
    Reset,
    /// The other end closed the connection before the answer.
    Nothing,
}

/// A request that the receiver took.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Taken {
    /// `webhook-id`.
    pub(crate) id: String,
    /// The number of the event.
    pub(crate) event: Option<u64>,
    /// Which of the subscriptions.
    pub(crate) subscription: Option<usize>,
    pub(crate) connection: usize,
    /// When it was read completely.
    pub(crate) read_at: i64,
    /// When it was not in flight any more; `None` if it is.
    pub(crate) ended_at: Option<i64>,
    /// When its connection was closed by the other end, then or later.
    pub(crate) closed_at: Option<i64>,
    pub(crate) answer: Answered,
    /// Why its signature is wrong.
    pub(crate) unsigned: Option<String>,
}

/// An event that was accepted.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Published {
    pub(crate) number: u64,
    pub(crate) group: String,
    pub(crate) sequence: Option<i32>,
    /// When it was sent for the first time, and when it was answered.
    pub(crate) sent_at: i64,
    pub(crate) accepted_at: i64,
    /// Ids of its jobs, and of the subscriptions that they are for.
    pub(crate) jobs: Vec<(String, String)>,
}

/// A kill, some time from one moment until another.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Kill {
    pub(crate) from: i64,
    /// Or until when the database was down.
    pub(crate) until: i64,
    pub(crate) is_of_database: bool,
}

/// What happened in a run.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// The ids of the pools and of the subscriptions.
    pub(crate) pools: Vec<String>,
    pub(crate) subscriptions: Vec<String>,
    /// In microseconds.
    pub(crate) lease: i64,
    pub(crate) published: Vec<Published>,
    /// Unexpected answers: all requests of this load are valid.
    pub(crate) refused: Vec<String>,
    pub(crate) taken: Vec<Taken>,
    pub(crate) kills: Vec<Kill>,
}

/// How much a run exercised.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) jobs: usize,
    pub(crate) requests: usize,
    /// Jobs that failed for good, and that expired.
    pub(crate) failed: usize,
    pub(crate) expired: usize,
    /// Requests in flight at a kill.
    pub(crate) cut: usize,
    /// Requests whose record a kill prevented, and repeats of webhooks that had been delivered.
    pub(crate) unrecorded: usize,
    pub(crate) delivered_again: usize,
    /// Jobs that began before others of their group which had been accepted earlier.
    pub(crate) overtakes: usize,
    /// Jobs that waited for a retry while another of their group began.
    pub(crate) stepped_aside: usize,
    /// The most requests of each pool at once, and the most of the rated one within a minute.
    pub(crate) most: [usize; POOLS.len()],
    pub(crate) in_a_minute: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { jobs, requests, failed, expired, cut, unrecorded, delivered_again, overtakes, .. } = self;
        let Self { stepped_aside, most, in_a_minute, .. } = self;
        write!(
            f,
            "{jobs} jobs ended after {requests} requests ({failed} failed, {expired} expired; {cut} requests in flight at a \
             kill, {unrecorded} not recorded, {delivered_again} delivered again; {overtakes} overtook, {stepped_aside} stepped \
             aside; at once {most:?} of {:?}, in a minute {in_a_minute} of {:?})",
            POOLS.map(|pool| pool.concurrency),
            POOLS.iter().find_map(|pool| pool.per_minute).unwrap_or_default(),
        )
    }
}

/// A job, with all that is known of it.
#[derive(Debug)]
struct Job<'a> {
    id: &'a str,
    subscription: usize,
    event: &'a Published,
    /// Its requests, by time.
    requests: Vec<&'a Taken>,
    ended: Option<&'a EndedJob>,
}

impl Taken {
    fn is_success(&self) -> bool {
        matches!(self.answer, Answered::Status(200..=299))
    }

    fn end(&self) -> i64 {
        self.ended_at.unwrap_or(i64::MAX)
    }
}

impl Run {
    /// Whether a node may have been killed, or cut off from its database, before it recorded this request.
    fn is_in_doubt(&self, request: &Taken) -> bool {
        self.is_hit(request)
            || (!request.is_success()
                && self.kills.iter().any(|kill| {
                    // Its connection was closed by whoever answered or gave up, not by the kill. What came of it is then
                    // recorded within a moment, and once: an answer that the database lost is not sent again.
                    (kill.from - RECORDED_WITHIN..=kill.until + RECORDED_WITHIN).contains(&request.end())
                }))
    }

    /// Whether the node that made this request was killed right after it or before it ended: a kill closed its connection.
    fn is_hit(&self, request: &Taken) -> bool {
        let Some(closed) = request.closed_at else { return false };
        let by = |kill: &Kill| (kill.from - BEFORE_KILL..=kill.until + AFTER_KILL).contains(&closed);
        request.end() + self.lease >= closed && self.kills.iter().any(|kill| !kill.is_of_database && by(kill))
    }

    /// The jobs that were made.
    fn jobs<'a>(&'a self, stored: &'a Jobs) -> Vec<Job<'a>> {
        let mut requests: HashMap<&str, Vec<&Taken>> = HashMap::new();
        for taken in &self.taken {
            requests.entry(&taken.id).or_default().push(taken);
        }
        requests.values_mut().for_each(|all| all.sort_by_key(|taken| taken.read_at));
        let ended: HashMap<&str, &EndedJob> = stored.ended.iter().map(|job| (job.id.as_str(), job)).collect();
        let mut jobs = Vec::new();
        for event in &self.published {
            for (id, of) in &event.jobs {
                let Some(subscription) = self.subscriptions.iter().position(|one| one == of) else { continue };
                let requests = requests.remove(id.as_str()).unwrap_or_default();
                jobs.push(Job { id, subscription, event, requests, ended: ended.get(id.as_str()).copied() });
            }
        }
        jobs
    }
}

/// Checks a snapshot, of whatever moment.
pub(crate) fn check_snapshot(run: &Run, stored: &Jobs, report: &mut Report) {
    let mut leased = HashSet::new();
    for job in stored.live.iter().filter(|job| job.is_leased) {
        if let Some(group) = &job.group
            && !leased.insert(group)
        {
            report.violate(Invariant::GroupAlone, format!("two jobs of {group} are leased, one of them {}", job.id));
        }
    }
    let mut seen = HashSet::new();
    for id in stored.live.iter().map(|job| &job.id).chain(stored.ended.iter().map(|job| &job.id)) {
        if !seen.insert(id) {
            report.violate(Invariant::OneEnd, format!("job {id} is there twice"));
        }
    }
    for (pool, slots) in &stored.slots {
        let plan = run.pools.iter().position(|id| id == pool).map(|at| &POOLS[at]);
        if plan.is_none_or(|plan| *slots > i64::from(plan.concurrency)) {
            report.violate(Invariant::PoolLimits, format!("nodes hold {slots} slots of pool {plan:?}"));
        }
    }
}

/// Checks a whole run against what is stored at its end, when everything has ended.
pub(crate) fn check(run: &Run, stored: &Jobs) -> (Report, Tally) {
    let (mut report, mut tally) = (Report::default(), Tally::default());
    for refused in &run.refused {
        report.violate(Invariant::NothingRefused, refused.clone());
    }
    check_snapshot(run, stored, &mut report);
    let jobs = run.jobs(stored);
    (tally.jobs, tally.requests) = (jobs.len(), run.taken.len());
    check_made(run, &jobs, stored, &mut report);
    check_requests(run, &jobs, &mut report);
    records::check(run, &jobs, &mut report, &mut tally);
    orders::check(&jobs, &mut report, &mut tally);
    limits::check(run, &mut report, &mut tally);
    (report, tally)
}

/// Every event has one job for each subscription that takes it, and there are no others; all of them ended.
fn check_made(run: &Run, jobs: &[Job<'_>], stored: &Jobs, report: &mut Report) {
    let known: HashSet<&str> = jobs.iter().map(|job| job.id).collect();
    if known.len() < jobs.len() {
        report.violate(Invariant::NothingTwice, "two jobs have the same id".into());
    }
    for event in &run.published {
        let wanted = SUBSCRIPTIONS.iter().filter(|one| is_for_all(event.number) || one.takes_some).count();
        let of: HashSet<&str> = event.jobs.iter().map(|(_, of)| of.as_str()).collect();
        if of.len() != wanted || event.jobs.len() != wanted {
            let text = format!("event {} has jobs {:?}, and {wanted} subscriptions take it", event.number, event.jobs);
            report.violate(Invariant::AllOrNone, text);
        }
    }
    for job in jobs.iter().filter(|job| job.ended.is_none()) {
        report.violate(Invariant::Drained, format!("job {} of event {} has not ended", job.id, job.event.number));
    }
    for job in stored.ended.iter().filter(|job| !known.contains(job.id.as_str())) {
        report.violate(Invariant::NothingTwice, format!("job {} is of no event that was answered", job.id));
    }
}

/// Every request is signed, and carries the id of the one job of its event and subscription.
fn check_requests(run: &Run, jobs: &[Job<'_>], report: &mut Report) {
    let by_id: HashMap<&str, (u64, usize)> =
        jobs.iter().map(|job| (job.id, (job.event.number, job.subscription))).collect();
    for taken in &run.taken {
        if let Some(why) = &taken.unsigned {
            report.violate(Invariant::Signed, format!("{}: {why}", taken.id));
        }
        let is_its = by_id
            .get(taken.id.as_str())
            .is_some_and(|(event, of)| taken.event == Some(*event) && taken.subscription == Some(*of));
        if !is_its {
            let text = format!("{:?} of event {:?} carries {}", taken.subscription, taken.event, taken.id);
            report.violate(Invariant::Signed, text);
        }
    }
}
