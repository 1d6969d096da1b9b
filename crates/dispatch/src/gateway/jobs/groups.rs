//! Which groups are blocked, and what pools hold and wait for.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tidegate::{
    BlockedQuery, COUNTED_JOBS, HeldSlots, JobLane, LaneAsk, LaneHolds, MAX_JOBS, PoolKey, QueueName, Timestamp, Tsid,
};

use super::{Job, Senders};
use crate::DispatchMode;
use crate::gateway::Gateway;
use crate::gateway::error::Result;
use crate::gateway::ingest::JOBS;
use crate::gateway::pools::POOL;
use crate::gateway::tasks::TaskLane;

/// In how many lanes it is counted what waits.
const LANES: usize = 512;

/// How many lanes are read at once, and at most, to find those of tasks.
const READ: usize = 1_000;
const MOST_READ: usize = 20_000;

/// Whose jobs a lane has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Subscription,
    Tasks,
}

/// A lane to be counted.
struct Asked {
    /// The position of its pool.
    at: usize,
    of: Of,
    lane: LaneAsk,
}

/// The lanes of tasks.
#[derive(Debug, Default)]
pub(super) struct TaskLanes {
    /// Each with the pool that its tasks name, which may be gone; `None` for the default pool of its client.
    lanes: Vec<(Option<Tsid>, JobLane)>,
    /// Whether there may be more.
    is_capped: bool,
}

impl TaskLanes {
    /// The pools that they name.
    pub(super) fn pools(&self) -> impl Iterator<Item = Option<Tsid>> {
        self.lanes.iter().map(|(pool, _)| *pool)
    }

    /// Those lanes that name these pools.
    fn asks(self, pools: &[Option<Tsid>]) -> impl Iterator<Item = Asked> {
        let positions = positions(pools);
        self.lanes.into_iter().filter_map(move |(pool, JobLane { queue, lane_type, .. })| {
            let at = *positions.get(&pool)?;
            Some(Asked { at, of: Of::Tasks, lane: LaneAsk { queue, lane_type, groups: None } })
        })
    }
}

fn positions(pools: &[Option<Tsid>]) -> HashMap<Option<Tsid>, usize> {
    pools.iter().enumerate().map(|(at, pool)| (*pool, at)).collect()
}

/// A group in which nothing is delivered, because a job has failed that keeps its place.
#[derive(Debug)]
pub struct BlockedJobs {
    /// The group.
    pub group: String,
    /// The job that blocks it.
    pub job: Job,
    /// Since when.
    pub since: Timestamp,
    /// How many jobs wait behind it, as far as they were counted.
    pub behind: u64,
    /// Whether there may be more.
    pub is_capped: bool,
}

/// A page of blocked groups. It may hold fewer than were asked for although there are more.
#[derive(Debug)]
pub struct BlockedJobsPage {
    /// The groups.
    pub groups: Vec<BlockedJobs>,
    /// Where the next page begins, if there may be one.
    pub next: Option<(i64, String)>,
}

/// What a pool holds, and what waits for it.
#[derive(Debug, Clone, Default)]
pub struct PoolHolds {
    /// The slots that nodes hold.
    pub slots: Vec<HeldSlots>,
    /// The subscriptions with jobs that wait.
    pub waiting_subscriptions: usize,
    /// The jobs that wait, as far as they were counted. Tasks that are behind others of their group are not: the store knows
    /// the groups of subscriptions alone.
    pub waiting: u64,
    /// The deliveries under way, counted likewise: the jobs that nodes have claimed. Nodes may hold more slots than they use.
    pub in_use: u64,
    /// Whether there may be more of any.
    pub is_capped: bool,
    /// For how long the oldest has waited that could be delivered.
    pub oldest: Option<Duration>,
}

impl PoolHolds {
    fn add(&mut self, of: Of, holds: &LaneHolds) {
        self.waiting_subscriptions += usize::from(of == Of::Subscription && holds.waiting > 0);
        self.waiting += holds.waiting;
        self.in_use += holds.leased;
        self.is_capped |= holds.is_capped;
        self.oldest = self.oldest.max(holds.oldest);
    }
}

impl Gateway {
    /// Lists the blocked groups of a client, or of all.
    ///
    /// # Errors
    /// `Invalid` when a bound is out of range, or the store's.
    pub async fn blocked_groups(
        &self,
        client: Option<Tsid>,
        after: Option<(i64, String)>,
        limit: usize,
    ) -> Result<BlockedJobsPage> {
        let queue =
            client.map(|client| QueueName::of(Some(client), JOBS)).transpose().map_err(tidegate::Error::from)?;
        let query = BlockedQuery { queue, after, limit: limit.min(MAX_JOBS) };
        let page = match self.queue.job_desk().blocked_groups(query).await {
            // Nothing was ever made for this client.
            Err(error) if error.kind() == tidegate::ErrorKind::NotFound => tidegate::BlockedPage::default(),
            page => page?,
        };
        let senders = self.senders().await?;
        let (heads, behind): (Vec<_>, Vec<_>) = page.groups.into_iter().map(|found| (found.head, found.behind)).unzip();
        let groups: Vec<String> = heads.iter().map(|head| head.entry.group.clone().unwrap_or_default()).collect();
        let jobs = self.jobs_of(heads, &senders).await?;
        let blocked = groups.into_iter().zip(jobs).zip(behind).map(|((group, job), behind)| BlockedJobs {
            group,
            since: job.updated_at,
            job,
            behind: behind.min(COUNTED_JOBS),
            is_capped: behind > COUNTED_JOBS,
        });
        Ok(BlockedJobsPage { groups: blocked.collect(), next: page.next })
    }

    /// What pools hold and what waits for them, in their order; `None` is the built-in default pool of all clients together,
    /// whose slots are not told.
    ///
    /// # Errors
    /// The store's.
    pub async fn pools_hold(&self, pools: &[Option<Tsid>]) -> Result<Vec<PoolHolds>> {
        let (senders, mut tasks) = (self.senders().await?, self.task_lanes().await?);
        if pools.contains(&None) {
            tasks = self.with_pools_as_they_are(tasks).await?;
        }
        self.pools_hold_in(pools, &senders, tasks).await
    }

    /// The same, of these lanes.
    pub(super) async fn pools_hold_in(
        &self,
        pools: &[Option<Tsid>],
        senders: &Senders,
        tasks: TaskLanes,
    ) -> Result<Vec<PoolHolds>> {
        let desk = self.queue.job_desk();
        let mut holds: Vec<PoolHolds> = vec![PoolHolds::default(); pools.len()];
        let named: Vec<(usize, PoolKey)> =
            pools.iter().enumerate().filter_map(|(at, pool)| Some((at, PoolKey::of((*pool)?)))).collect();
        let slots = desk.slots_held(named.iter().map(|(_, key)| *key).collect()).await?;
        for ((at, _), slots) in named.iter().zip(slots) {
            holds[*at].slots = slots;
        }
        let is_capped = tasks.is_capped;
        let mut asks = senders.asks(pools);
        asks.extend(tasks.asks(pools));
        if is_capped || asks.len() > LANES {
            asks.truncate(LANES);
            holds.iter_mut().for_each(|pool| pool.is_capped = true);
        }
        let lanes = asks.iter().map(|asked| asked.lane.clone()).collect();
        for (asked, lane) in asks.iter().zip(desk.lanes_hold(lanes).await?) {
            holds[asked.at].add(asked.of, &lane);
        }
        Ok(holds)
    }

    /// How many deliveries of a pool are under way, as far as they were counted; of a client's default pool if `None`.
    pub(super) async fn in_use(&self, pool: Option<Tsid>, client: Option<Tsid>, senders: &Senders) -> Result<u64> {
        let tasks = self.with_pools_as_they_are(self.task_lanes().await?).await?;
        let pools = [pool];
        let asks = senders.asks(&pools).into_iter().chain(tasks.asks(&pools));
        let is_its = |asked: &Asked| pool.is_some() || asked.lane.queue.client() == client;
        let lanes = asks.filter(is_its).take(LANES).map(|asked| LaneAsk { groups: None, ..asked.lane }).collect();
        Ok(self.queue.job_desk().lanes_hold(lanes).await?.iter().map(|holds| holds.leased).sum())
    }

    /// The lanes of tasks, found by looking through a bounded number of all lanes.
    pub(super) async fn task_lanes(&self) -> Result<TaskLanes> {
        let (desk, mut after, mut read) = (self.queue.job_desk(), 0, 0);
        let mut found = TaskLanes::default();
        loop {
            let page = desk.lanes(after, READ).await?;
            let Some(last) = page.last() else { return Ok(found) };
            (after, read) = (last.id, read + page.len());
            let of_tasks = |lane: JobLane| Some((TaskLane::parse(&lane.lane_type)?.pool, lane));
            found.lanes.extend(page.into_iter().filter_map(of_tasks));
            if read >= MOST_READ {
                found.is_capped = true;
                return Ok(found);
            }
        }
    }

    /// The same lanes, where those of tasks that name deleted pools are limited by the default pools of their clients.
    pub(super) async fn with_pools_as_they_are(&self, mut tasks: TaskLanes) -> Result<TaskLanes> {
        let named: BTreeSet<Tsid> = tasks.pools().flatten().collect();
        let mut gone = BTreeSet::new();
        for pool in named {
            if self.queue.resources().get(POOL, pool).await?.is_none() {
                gone.insert(pool);
            }
        }
        for (pool, _) in &mut tasks.lanes {
            *pool = pool.filter(|pool| !gone.contains(pool));
        }
        Ok(tasks)
    }
}

impl Senders {
    /// The pools that subscriptions name.
    pub(super) fn pools(&self) -> impl Iterator<Item = Option<Tsid>> {
        self.by_id.values().map(|one| one.body.dispatch_pool)
    }

    /// The lanes of the subscriptions that name pools, each with the position of its pool.
    fn asks(&self, pools: &[Option<Tsid>]) -> Vec<Asked> {
        let positions = positions(pools);
        let ask = |one: &std::sync::Arc<crate::Subscription>| {
            let at = *positions.get(&one.body.dispatch_pool)?;
            let queue = QueueName::of(one.client, JOBS).ok()?;
            let groups = (one.body.mode != DispatchMode::Immediate).then(|| one.code.clone());
            let lane = LaneAsk { queue, lane_type: one.id.to_string(), groups };
            Some(Asked { at, of: Of::Subscription, lane })
        };
        self.by_id.values().filter_map(ask).collect()
    }
}
