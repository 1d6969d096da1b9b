//! Where the jobs of each subscription go, as the catalogue has it: the subscription, the pool that limits it, and what its
//! webhooks are signed with and carry.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::{PoolKey, QueueName, Resource, Tsid};
use tidegate_core::pool::rate::Rate;

use super::authority::{Authorities, Authority, KeptAuthorities, NoAuthority};
use crate::gateway::Gateway;
use crate::gateway::error::Result;
use crate::gateway::ingest::JOBS;
use crate::gateway::kept::{Kept, Kind, Snapshot};
use crate::gateway::pools::{POOL, Pool, PoolStatus};
use crate::gateway::subscriptions::SUBSCRIPTION;
use crate::{PoolBody, Subscription, Target};

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

/// Where the jobs of a subscription go.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) subscription: Arc<Subscription>,
    /// The queue of its jobs.
    pub(super) queue: QueueName,
    pub(super) pool: PoolKey,
    pub(super) origin: Origin,
}

/// The subscriptions with webhooks, by their ids, whatever their status.
#[derive(Debug, Clone, Default)]
struct Webhooks(HashMap<Tsid, Arc<Route>>);

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
}

impl KeptRoutes {
    /// The routes, read after this was called.
    pub(super) async fn read(&self, gateway: &Gateway) -> Result<Routes> {
        let queue = gateway.queue();
        let version = queue.catalogue_version().await?;
        let webhooks = self.webhooks.at(queue, version).await?;
        let rules = self.rules.at(queue, version).await?;
        let authorities = self.authorities.at(gateway, version).await?;
        Ok(Routes { webhooks, rules, authorities })
    }
}

impl Routes {
    pub(super) fn all(&self) -> impl Iterator<Item = (Tsid, &Arc<Route>)> {
        self.webhooks.0.iter().map(|(id, route)| (*id, route))
    }

    pub(super) fn get(&self, id: Tsid) -> Option<&Arc<Route>> {
        self.webhooks.0.get(&id)
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
    #[expect(dead_code, reason = "for jobs that name an account")]
    pub(super) fn account(&self, client: Option<Tsid>, id: Tsid) -> Result<Authority, NoAuthority> {
        self.authorities.of_account(client, id)
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
        Some(Self { subscription: Arc::new(subscription), queue, pool, origin })
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
        self.0.remove(&resource.id);
        if resource.deleted {
            return;
        }
        match Subscription::read(resource) {
            Ok(read) => drop(Route::of(read).map(|route| self.0.insert(resource.id, Arc::new(route)))),
            Err(error) => tracing::error!(%error, code = resource.code, "the jobs of a subscription wait"),
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
        }
    }
}
