//! Jobs as operators see them.

use std::time::Duration;

use tidegate_core::{End, EntryId, QueueName, Timestamp, Tsid};

use crate::values::{EntryPhase, EntryView};

/// The most jobs of one page.
pub const MAX_JOBS: usize = 1_000;
/// The most live and the most ended jobs that are looked at for one page.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const LOOKED_AT: i64 = 5_000;
/// How many of the jobs that were added to an event are read at once.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const ADDED_AT_ONCE: usize = 200;
/// How many of each are looked at first. Most pages need no more.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const FIRST_LOOK: i64 = 500;

/// A job with its event, live or ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobView {
    /// The job. In a list its fact has no payload.
    pub entry: EntryView,
    /// What it was sorted by, its [`Target::lane_type`](crate::Target::lane_type).
    pub lane_type: Option<String>,
}

impl JobView {
    /// Its public id: the moment of its event, and the number.
    #[must_use]
    pub fn id(&self) -> Tsid {
        Tsid::from_parts(self.entry.fact.created_at.as_millisecond(), self.entry.id.get())
    }
}

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    /// Claimable, or due at some moment.
    Waiting,
    /// Behind others of its group.
    Parked,
    /// Held by a node.
    Leased,
    /// Exhausted, and keeps its place: nothing else of its group runs.
    Kept,
    /// In the log.
    Ended(End),
}

impl From<&EntryPhase> for JobState {
    fn from(phase: &EntryPhase) -> Self {
        match phase {
            EntryPhase::Waiting { .. } | EntryPhase::Aside { .. } => Self::Waiting,
            EntryPhase::Parked => Self::Parked,
            EntryPhase::Leased { .. } => Self::Leased,
            EntryPhase::Kept { .. } => Self::Kept,
            EntryPhase::Ended { end, .. } => Self::Ended(*end),
        }
    }
}

/// Which jobs to list, youngest first. A job must match every field that is set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobsQuery {
    /// In any of these states; in all when empty.
    pub states: Vec<JobState>,
    /// Of this client's queues.
    pub client: Option<Tsid>,
    /// In lanes of any of these types.
    pub lane_types: Option<Vec<String>>,
    /// Also in lanes whose types begin with this. With `lane_types`, one of both is enough.
    pub lane_prefix: Option<String>,
    /// Made for this event.
    pub event: Option<Tsid>,
    /// Made at this moment or later.
    pub from: Option<Timestamp>,
    /// Made before this moment.
    pub to: Option<Timestamp>,
    /// Only jobs with a smaller number (a cursor).
    pub before: Option<EntryId>,
    /// The most jobs to return, at most [`MAX_JOBS`].
    pub limit: usize,
}

/// One page of a list of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobsPage {
    /// The jobs, youngest first.
    pub jobs: Vec<JobView>,
    /// The cursor of the next page; `None` on the last page. A page may be short, even empty, although there is a next one:
    /// no more than 5,000 live and 5,000 ended jobs are looked at for one.
    pub next: Option<EntryId>,
}

/// How far jobs that wait are counted.
pub const COUNTED_JOBS: u64 = 1_000;

/// Which blocked groups to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockedQuery {
    /// Of this queue; of all when `None`.
    pub queue: Option<QueueName>,
    /// Only groups after this one: the number of its queue, and the group (a cursor).
    pub after: Option<(i64, String)>,
    /// The most groups to return, at most [`MAX_JOBS`].
    pub limit: usize,
}

/// A group in which nothing runs, because its head is exhausted and keeps its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedGroup {
    /// The head, without its payload.
    pub head: JobView,
    /// How many wait behind it, counted up to one more than [`COUNTED_JOBS`].
    pub behind: u64,
}

/// One page of blocked groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockedPage {
    /// The groups.
    pub groups: Vec<BlockedGroup>,
    /// The cursor of the next page; `None` on the last page. A page may be short, even empty, although there is a next one:
    /// no more than 10,000 groups are looked at for one.
    pub next: Option<(i64, String)>,
}

/// How many groups are blocked, among some of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockedCount {
    /// How many.
    pub groups: u64,
    /// The cursor of the next count; `None` after the last group. One count looks at up to 10,000 groups.
    pub next: Option<(i64, String)>,
}

/// A lane, and the groups that its jobs can be in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneAsk {
    /// The queue of its jobs.
    pub queue: QueueName,
    /// What they are sorted by.
    pub lane_type: String,
    /// Their groups are this text, or begin with it and a colon.
    pub groups: Option<String>,
}

/// What waits in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneHolds {
    /// How many jobs wait, counted up to about [`COUNTED_JOBS`].
    pub waiting: u64,
    /// How many are leased, counted likewise.
    pub leased: u64,
    /// Whether there may be more of either.
    pub is_capped: bool,
    /// For how long the oldest has waited that could be claimed.
    pub oldest: Option<Duration>,
}

/// The slots of a pool that a node holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldSlots {
    /// The node.
    pub node: String,
    /// How many.
    pub slots: u32,
    /// How many it could use when it said so last.
    pub wanted: u32,
}

/// What the database knows of the deliveries of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolView {
    /// The slots that nodes hold.
    pub slots: Vec<HeldSlots>,
    /// The first moment that no node has reserved, if that is still to come.
    pub moment: Option<Timestamp>,
    /// Whether any node holds slots, of whatever pool.
    pub has_nodes: bool,
}

/// A lane of jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobLane {
    /// Its number.
    pub id: i64,
    /// The queue of its jobs.
    pub queue: QueueName,
    /// What they are sorted by.
    pub lane_type: String,
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod searched {
    use super::*;
    use crate::error::{Error, ErrorKind, Result};
    use crate::listing::Range;
    use crate::values::{Family, ManualAction};

    /// The codes of a job's states in statements: those of ends as they are stored, of live jobs below them.
    impl JobState {
        pub(crate) fn code(self) -> i16 {
            match self {
                Self::Waiting => -4,
                Self::Parked => -3,
                Self::Leased => -2,
                Self::Kept => -1,
                Self::Ended(end) => end.code(),
            }
        }

        fn all() -> impl Iterator<Item = Self> {
            let live = [Self::Waiting, Self::Parked, Self::Leased, Self::Kept];
            live.into_iter().chain(End::ALL.into_iter().map(Self::Ended))
        }
    }

    impl JobsQuery {
        /// Checks what can be checked without a database.
        pub(crate) fn check(&self) -> Result<()> {
            match self.limit > MAX_JOBS {
                true => Err(Error::invalid(format!("a page has at most {MAX_JOBS} jobs, not {}", self.limit))),
                false => Ok(()),
            }
        }

        /// The codes of the states that it asks for.
        pub(crate) fn codes(&self) -> Vec<i16> {
            let wanted = |state: &JobState| self.states.is_empty() || self.states.contains(state);
            JobState::all().filter(wanted).map(JobState::code).collect()
        }

        /// Whether a job that was read is one of those that it asks for.
        pub(crate) fn fits(&self, job: &JobView) -> bool {
            let entry = &job.entry;
            let state = JobState::from(&entry.phase);
            (self.states.is_empty() || self.states.contains(&state))
                && self.client.is_none_or(|client| entry.queue.client() == Some(client))
                && self.event.is_none_or(|event| entry.event_id == event)
                && self.from.is_none_or(|from| entry.fact.created_at >= from)
                && self.to.is_none_or(|to| entry.fact.created_at < to)
                && (!self.names_lanes() || job.lane_type.as_ref().is_some_and(|lane| self.is_wanted(lane)))
        }

        /// Whether it asks for some lanes only.
        pub(crate) fn names_lanes(&self) -> bool {
            self.lane_types.is_some() || self.lane_prefix.is_some()
        }

        fn is_wanted(&self, lane_type: &String) -> bool {
            self.lane_types.as_ref().is_some_and(|types| types.contains(lane_type))
                || self.lane_prefix.as_ref().is_some_and(|prefix| lane_type.starts_with(prefix))
        }
    }

    /// The most groups that are looked at for one page, and at once.
    pub(crate) const HEADS: (usize, usize) = (10_000, 2_000);

    impl BlockedQuery {
        /// Checks what can be checked without a database.
        pub(crate) fn check(&self) -> Result<()> {
            match self.limit > MAX_JOBS {
                true => Err(Error::invalid(format!("a page has at most {MAX_JOBS} groups, not {}", self.limit))),
                false => Ok(()),
            }
        }
    }

    /// The head of a group.
    #[derive(Debug)]
    pub(crate) struct Head {
        pub(crate) id: i64,
        pub(crate) queue_id: i64,
        pub(crate) group: String,
        pub(crate) is_kept: bool,
    }

    /// A page of blocked groups that is being found.
    #[derive(Debug)]
    pub(crate) struct Heads {
        pub(crate) after: (i64, String),
        pub(crate) kept: Vec<i64>,
        limit: usize,
        looked_at: usize,
        is_last: bool,
    }

    impl Heads {
        pub(crate) fn new(query: &BlockedQuery) -> Self {
            let after = query.after.clone().unwrap_or_default();
            Self { after, kept: Vec::new(), limit: query.limit, looked_at: 0, is_last: false }
        }

        /// To count those of all queues.
        pub(crate) fn to_count(after: Option<(i64, String)>) -> Self {
            Self::new(&BlockedQuery { queue: None, after, limit: usize::MAX })
        }

        pub(crate) fn count(self) -> BlockedCount {
            BlockedCount { groups: self.kept.len() as u64, next: self.next() }
        }

        /// How many heads to look at next; `None` once that is enough.
        pub(crate) fn step(&self) -> Option<usize> {
            let (most, at_once) = HEADS;
            let is_done = self.is_last || self.kept.len() >= self.limit || self.looked_at >= most;
            (!is_done).then_some(at_once)
        }

        pub(crate) fn add(&mut self, step: usize, heads: Vec<Head>) {
            self.is_last = heads.len() < step;
            self.looked_at += heads.len();
            for head in heads {
                if self.kept.len() == self.limit {
                    self.is_last = false;
                    return;
                }
                self.after = (head.queue_id, head.group);
                self.kept.extend(head.is_kept.then_some(head.id));
            }
        }

        /// Where the next page begins.
        pub(crate) fn next(self) -> Option<(i64, String)> {
            (!self.is_last).then_some(self.after)
        }
    }

    /// The errors of a job that is cancelled manually, as JSON text.
    pub(crate) fn cancel_errors(family: Family, item: &ManualAction) -> Option<String> {
        if family != Family::Jobs {
            return None;
        }
        let error = match (&item.actor, &item.reason) {
            (Some(actor), Some(reason)) => format!("cancelled by {actor}: {reason}"),
            (Some(actor), None) => format!("cancelled by {actor}"),
            (None, reason) => reason.clone()?,
        };
        serde_json::to_string(&[error]).ok()
    }

    /// What is noted about a job that is ignored, as JSON text.
    pub(crate) fn ignored_note(item: &ManualAction, now: Timestamp) -> String {
        let (by, reason) = (&item.actor, &item.reason);
        serde_json::json!({ "ignoredAt": now, "ignoredBy": by, "reason": reason }).to_string()
    }

    /// The error for a job that has not failed.
    pub(crate) fn not_failed(id: EntryId) -> Error {
        Error::new(ErrorKind::Conflict, format!("job {id} has not failed"))
    }

    /// The ids that the event of a job with this id can have. The millisecond in an id is rounded either way.
    pub(crate) fn near(id: Tsid) -> (i64, i64) {
        let at = |unix_ms: i64| Tsid::from_parts(unix_ms, 0).to_i64();
        (at(id.unix_ms().saturating_sub(1)), at(id.unix_ms().saturating_add(2)) - 1)
    }

    /// One look for jobs that may match.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Look {
        /// Only jobs below this number, and above that one.
        pub(crate) before: i64,
        pub(crate) after: i64,
        /// The most live and the most ended jobs to look at; 0 where none is wanted.
        pub(crate) live: i64,
        pub(crate) ended: i64,
        /// The most jobs to find.
        pub(crate) limit: i64,
    }

    /// What a look found: the numbers of jobs, youngest first, and the number below which nothing was looked at, if
    /// there may be more.
    #[derive(Debug, Default)]
    pub(crate) struct Seen {
        pub(crate) ids: Vec<i64>,
        pub(crate) down_to: Option<i64>,
    }

    /// A page of jobs that is being built.
    #[derive(Debug)]
    pub(crate) struct Looking<'a> {
        query: &'a JobsQuery,
        page: JobsPage,
        before: i64,
        after: i64,
        /// How many jobs of each kind were looked at, and how many the next look takes.
        looked_at: i64,
        step: i64,
        has_live: bool,
        has_ended: bool,
        done: bool,
    }

    impl<'a> Looking<'a> {
        pub(crate) fn new(query: &'a JobsQuery, range: Range) -> Self {
            let before = query.before.map_or(i64::MAX, EntryId::get).min(range.before);
            let codes = query.codes();
            Self {
                query,
                page: JobsPage::default(),
                before,
                after: range.after,
                looked_at: 0,
                step: FIRST_LOOK,
                has_live: codes.iter().any(|code| *code < 0),
                has_ended: codes.iter().any(|code| *code >= 0),
                done: query.limit == 0 || before <= range.after,
            }
        }

        /// Parts of the numbers of jobs that were added to the event that is asked for, the youngest first. They come before
        /// those of the range, and are to be read until [`Self::add_first`] has enough.
        pub(crate) fn added(&self, mut numbers: Vec<i64>) -> Vec<Vec<i64>> {
            let before = self.query.before.map_or(i64::MAX, EntryId::get);
            numbers.retain(|number| *number < before);
            numbers.sort_unstable_by(|a, b| b.cmp(a));
            numbers.chunks(ADDED_AT_ONCE).map(<[i64]>::to_vec).collect()
        }

        /// Adds jobs that were added to the event that is asked for. Returns whether the page takes more.
        pub(crate) fn add_first(&mut self, jobs: impl Iterator<Item = JobView>) -> bool {
            for job in jobs {
                if self.page.jobs.len() == self.query.limit {
                    self.done = true;
                    self.page.next = self.page.jobs.last().map(|last| last.entry.id);
                    return false;
                }
                self.page.jobs.extend(Some(job).filter(|job| self.query.fits(job)));
            }
            true
        }

        /// The next look; `None` once the page is complete.
        pub(crate) fn look(&self) -> Option<Look> {
            let (before, after) = (self.before, self.after);
            let of = |is_wanted: bool| if is_wanted { self.step } else { 0 };
            let limit = (self.query.limit - self.page.jobs.len() + 1) as i64;
            let look = Look { before, after, live: of(self.has_live), ended: of(self.has_ended), limit };
            (!self.done).then_some(look)
        }

        /// Adds what a look found; `jobs` returns the job of a number.
        pub(crate) fn add(&mut self, look: Look, seen: &Seen, mut jobs: impl FnMut(i64) -> Option<JobView>) {
            self.looked_at += self.step;
            self.step = (self.step * 4).min(LOOKED_AT - self.looked_at);
            for id in &seen.ids {
                if self.page.jobs.len() == self.query.limit {
                    self.stop_here();
                    return;
                }
                self.before = *id;
                self.page.jobs.extend(jobs(*id).filter(|job| self.query.fits(job)));
            }
            if (seen.ids.len() as i64) < look.limit {
                match seen.down_to {
                    Some(down_to) => self.before = self.before.min(down_to),
                    None => self.done = true,
                }
            }
            if !self.done && self.step <= 0 {
                self.stop_here();
            }
        }

        fn stop_here(&mut self) {
            self.done = true;
            self.page.next = EntryId::new(self.before).ok();
        }

        pub(crate) fn finish(self) -> JobsPage {
            self.page
        }
    }
}
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use searched::{Head, Heads, Look, Looking, Seen, cancel_errors, ignored_note, near, not_failed};
