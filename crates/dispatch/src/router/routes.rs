//! Where the jobs of each lane go: of a subscription, as the catalogue has it, with the pool that limits it and what its
//! webhooks are signed with and carry, or tasks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use tidegate::{PoolKey, QueueName, Resource, Tsid};
use tidegate_core::pool::rate::Rate;

use super::authority::{Authorities, Authority, KeptAuthorities, NoAuthority};
use super::task_lanes::TaskLanes;
use crate::gateway::Gateway;
use crate::gateway::error::Result;
use crate::gateway::ingest::JOBS;
use crate::gateway::kept::{Kept, Kind, Snapshot};
use crate::gateway::pools::{POOL, Pool, PoolStatus};
use crate::gateway::subscriptions::SUBSCRIPTION;
use crate::gateway::tasks::TaskLane;
use crate::{PoolBody, Subscription, SubscriptionStatus, Target};

/// Slots of the pool of subscriptions that name none.
const DEFAULT_CONCURRENCY: u32 = 10;

/// What a pool allows on all nodes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) concurrency: u32,
    pub(super) rate: Option<Rate>,
    pub(super) is_suspended: bool,
}

/// What breakers are kept for: a client, and the scheme, host and port of a target.
pub(super) type Origin = (Option<Tsid>, String);

/// Where the jobs of a lane go: of a subscription, or tasks.
#[derive(Debug)]
pub(super) struct Route {
    /// `None` for a lane of tasks.
    pub(super) subscription: Option<Arc<Subscription>>,
    /// The service account in whose name tasks are sent.
    pub(super) account: Option<Tsid>,
    /// The lane as the store knows it.
    pub(super) lane: String,
    /// The queue of its jobs.
    pub(super) queue: QueueName,
    pub(super) pool: PoolKey,
    pub(super) origin: Origin,
}

/// The subscriptions, whatever their status.
#[derive(Debug, Clone, Default)]
struct Webhooks {
    /// Those with webhooks, by their ids.
    routes: HashMap<Tsid, Arc<Route>>,
    /// Those with another target, and those that this program cannot read. Their jobs wait, or expire.
    others: HashSet<Tsid>,
}

/// What each pool allows, by its id.
#[derive(Debug, Clone, Default)]
struct Rules(HashMap<Tsid, Rule>);

/// The caches.
#[derive(Debug, Default)]
pub(super) struct KeptRoutes {
    webhooks: Kept<Webhooks>,
    rules: Kept<Rules>,
    authorities: KeptAuthorities,
}

/// All routes as of one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Routes {
    webhooks: Snapshot<Webhooks>,
    rules: Snapshot<Rules>,
    authorities: Authorities,
    /// Not of the catalogue: met by the router.
    tasks: TaskLanes,
    /// When they began to be read.
    read_at: Option<Instant>,
}

impl KeptRoutes {
    /// The routes, read after this was called.
    pub(super) async fn read(&self, gateway: &Gateway) -> Result<Routes> {
        let (queue, read_at) = (gateway.queue(), Some(Instant::now()));
        let version = queue.catalogue_version().await?;
        let webhooks = self.webhooks.at(queue, version).await?;
        let rules = self.rules.at(queue, version).await?;
        let authorities = self.authorities.at(gateway, version).await?;
        Ok(Routes { webhooks, rules, authorities, tasks: TaskLanes::default(), read_at })
    }
}

impl Routes {
    pub(super) fn all(&self) -> impl Iterator<Item = (Tsid, &Arc<Route>)> {
        self.webhooks.routes.iter().map(|(id, route)| (*id, route)).chain(self.tasks.all())
    }

    pub(super) fn get(&self, id: Tsid) -> Option<&Arc<Route>> {
        self.webhooks.routes.get(&id).or_else(|| self.tasks.get(id))
    }

    /// Takes over the lanes of tasks that were met before.
    pub(super) fn with_tasks_of(mut self, before: &mut Self) -> Self {
        self.tasks = std::mem::take(&mut before.tasks);
        let rules = &self.rules.0;
        self.tasks.go_by(|pool| rules.contains_key(&pool));
        self
    }

    /// A lane of tasks, and its route if it was not met before; `None` if the name is none of such a lane.
    pub(super) fn task_lane(
        &mut self,
        queue: &QueueName,
        name: &str,
        now: Instant,
    ) -> Option<(Tsid, Option<Arc<Route>>)> {
        if let Some(id) = self.tasks.find(queue, name) {
            self.tasks.used(id, now);
            return Some((id, None));
        }
        let rules = &self.rules.0;
        let (id, route) = self.tasks.add(queue, name, |pool| rules.contains_key(&pool), now)?;
        Some((id, Some(route)))
    }

    /// The lane that jobs with this name in a queue are in, if it is known.
    pub(super) fn lane_of(&self, queue: &QueueName, name: &str) -> Option<Tsid> {
        if TaskLane::is_one(name) { self.tasks.find(queue, name) } else { name.parse().ok() }
    }

    /// Forgets lanes of tasks in which nothing has waited for long, as far as `may_go` has it.
    pub(super) fn forget_tasks(&mut self, now: Instant, may_go: impl FnMut(Tsid) -> bool) {
        self.tasks.forget(now, may_go);
    }

    /// Whether there is no such subscription any more.
    pub(super) fn is_deleted(&self, id: Tsid) -> bool {
        let is_known = self.webhooks.routes.contains_key(&id) || self.webhooks.others.contains(&id);
        // Lanes of tasks have ids of their own.
        id.to_i64() > 0 && !is_known
    }

    /// What a pool allows. One that is not there allows nothing: it is being deleted, and its subscriptions have changed.
    pub(super) fn rule(&self, pool: PoolKey) -> Rule {
        match pool.pool {
            None => Rule { concurrency: DEFAULT_CONCURRENCY, rate: None, is_suspended: false },
            Some(id) => {
                let nothing = Rule { concurrency: 1, rate: None, is_suspended: true };
                self.rules.0.get(&id).copied().unwrap_or(nothing)
            }
        }
    }

    /// What webhooks of a subscription are signed with and carry.
    ///
    /// # Errors
    /// Why there is nothing yet: its jobs wait.
    pub(super) fn authority(&self, subscription: &Subscription) -> Result<Authority, NoAuthority> {
        self.authorities.of_subscription(subscription)
    }

    /// What webhooks of a client's job that names a service account are signed with and carry.
    ///
    /// # Errors
    /// Why there is nothing yet: the job waits.
    pub(super) fn account(&self, client: Option<Tsid>, id: Tsid) -> Result<Authority, NoAuthority> {
        self.authorities.of_account(client, id)
    }

    /// What webhooks of a lane's jobs are signed with and carry.
    ///
    /// # Errors
    /// Why there is nothing yet: its jobs wait.
    pub(super) fn authority_of(&self, route: &Route) -> Result<Authority, NoAuthority> {
        match (&route.subscription, route.account) {
            (Some(subscription), _) => self.authority(subscription),
            (None, Some(account)) => self.account(route.queue.client(), account),
            (None, None) => Ok(Authority::default()),
        }
    }

    /// Whether those others began to be read later.
    pub(super) fn is_older_than(&self, others: &Self) -> bool {
        self.read_at < others.read_at
    }

    /// Whether nothing has changed since those others.
    pub(super) fn is_as(&self, others: &Self) -> bool {
        self.webhooks.is_as(&others.webhooks)
            && self.rules.is_as(&others.rules)
            && self.authorities.is_as(&others.authorities)
    }
}

impl Route {
    fn of(subscription: Subscription) -> Option<Self> {
        let Target::Webhook(url) = &subscription.body.target else { return None };
        let queue = QueueName::of(subscription.client, JOBS).ok()?;
        let of_client = || PoolKey::default_of(subscription.client);
        let pool = subscription.body.dispatch_pool.map_or_else(of_client, PoolKey::of);
        let origin = (subscription.client, url.origin().ascii_serialization());
        let lane = subscription.id.to_string();
        Some(Self { subscription: Some(Arc::new(subscription)), account: None, lane, queue, pool, origin })
    }

    /// Whether its jobs are delivered at present.
    pub(super) fn is_active(&self) -> bool {
        self.subscription.as_ref().is_none_or(|subscription| subscription.status == SubscriptionStatus::Active)
    }
}

impl Rule {
    fn of(pool: &PoolBody) -> Self {
        Self {
            concurrency: pool.concurrency,
            rate: pool.rate_limit_per_minute.and_then(Rate::per_minute),
            is_suspended: pool.status == PoolStatus::Suspended,
        }
    }
}

impl Kind for Webhooks {
    const NAME: &'static str = SUBSCRIPTION;

    fn apply(&mut self, resource: &Resource) {
        let Self { routes, others } = self;
        routes.remove(&resource.id);
        others.remove(&resource.id);
        if resource.deleted {
            return;
        }
        let route = match Subscription::read(resource) {
            Ok(read) => Route::of(read),
            Err(error) => {
                tracing::error!(%error, code = resource.code, "the jobs of a subscription wait");
                None
            }
        };
        match route {
            Some(route) => drop(routes.insert(resource.id, Arc::new(route))),
            None => drop(others.insert(resource.id)),
        }
    }
}

impl Kind for Rules {
    const NAME: &'static str = POOL;

    fn apply(&mut self, resource: &Resource) {
        self.0.remove(&resource.id);
        if resource.deleted {
            return;
        }
        match Pool::read(resource) {
            Ok(read) => drop(self.0.insert(resource.id, Rule::of(&read.body))),
            Err(error) => tracing::error!(%error, code = resource.code, "the jobs of a pool wait"),
        }
    }
}

#[cfg(test)]
impl Routes {
    /// Routes by subscriptions and pools.
    pub(super) fn of(subscriptions: Vec<Resource>, pools: Vec<Resource>) -> Self {
        let version = tidegate::CatalogueVersion { number: 1, stamp: 1 };
        let all = |items| tidegate::ResourceChanges { version, complete: true, items };
        Self {
            webhooks: Snapshot::<Webhooks>::default().after(all(subscriptions)),
            rules: Snapshot::<Rules>::default().after(all(pools)),
            authorities: Authorities::default(),
            tasks: TaskLanes::default(),
            read_at: None,
        }
    }
}
