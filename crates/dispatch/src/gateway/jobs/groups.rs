//! Which groups are blocked, and what pools hold and wait for.

use std::time::Duration;

use tidegate::{
    BlockedQuery, COUNTED_JOBS, HeldSlots, LaneAsk, LaneHolds, MAX_JOBS, PoolKey, QueueName, Timestamp, Tsid,
};

use super::{Job, Senders, job_of};
use crate::DispatchMode;
use crate::gateway::Gateway;
use crate::gateway::error::Result;
use crate::gateway::ingest::JOBS;

/// In how many lanes it is counted what waits.
const LANES: usize = 512;

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
    /// The jobs that wait, as far as they were counted.
    pub waiting: u64,
    /// Whether there may be more of either.
    pub is_capped: bool,
    /// For how long the oldest has waited that could be delivered.
    pub oldest: Option<Duration>,
}

impl PoolHolds {
    /// The slots that are in use, by what nodes said last.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.slots.iter().map(|held| held.slots.min(held.wanted)).sum()
    }

    fn add(&mut self, holds: &LaneHolds) {
        self.waiting_subscriptions += usize::from(holds.waiting > 0);
        self.waiting += holds.waiting;
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
        let group = |found: tidegate::BlockedGroup| {
            let since = found.head.entry.updated_at;
            let group = found.head.entry.group.clone().unwrap_or_default();
            let behind = found.behind.min(COUNTED_JOBS);
            let is_capped = found.behind > COUNTED_JOBS;
            BlockedJobs { group, job: job_of(found.head, &senders), since, behind, is_capped }
        };
        Ok(BlockedJobsPage { groups: page.groups.into_iter().map(group).collect(), next: page.next })
    }

    /// What pools hold and what waits for them, in their order; `None` is the built-in default pool of all clients together,
    /// whose slots are not told.
    ///
    /// # Errors
    /// The store's.
    pub async fn pools_hold(&self, pools: &[Option<Tsid>]) -> Result<Vec<PoolHolds>> {
        let (senders, desk) = (self.senders().await?, self.queue.job_desk());
        let mut holds: Vec<PoolHolds> = vec![PoolHolds::default(); pools.len()];
        let named: Vec<(usize, PoolKey)> =
            pools.iter().enumerate().filter_map(|(at, pool)| Some((at, PoolKey::of((*pool)?)))).collect();
        let slots = desk.slots_held(named.iter().map(|(_, key)| *key).collect()).await?;
        for ((at, _), slots) in named.iter().zip(slots) {
            holds[*at].slots = slots;
        }
        let mut asks = senders.asks(pools);
        if asks.len() > LANES {
            asks.truncate(LANES);
            holds.iter_mut().for_each(|pool| pool.is_capped = true);
        }
        let (of, lanes): (Vec<usize>, Vec<LaneAsk>) = asks.into_iter().unzip();
        for (at, lane) in of.into_iter().zip(desk.lanes_hold(lanes).await?) {
            holds[at].add(&lane);
        }
        Ok(holds)
    }
}

impl Senders {
    /// The lanes of the subscriptions that name pools, each with the position of its pool.
    fn asks(&self, pools: &[Option<Tsid>]) -> Vec<(usize, LaneAsk)> {
        let ask = |one: &std::sync::Arc<crate::Subscription>| {
            let at = pools.iter().position(|pool| *pool == one.body.dispatch_pool)?;
            let queue = QueueName::of(one.client, JOBS).ok()?;
            let groups = (one.body.mode != DispatchMode::Immediate).then(|| one.code.clone());
            Some((at, LaneAsk { queue, lane_type: one.id.to_string(), groups }))
        };
        self.by_id.values().filter_map(ask).collect()
    }
}
