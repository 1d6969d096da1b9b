//! Where the jobs of each subscription go, as the catalogue has it: the subscription, its secrets, and the pool that limits
//! it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tidegate::{EventQueue, PoolKey, QueueName, Resource, Tsid};
use tidegate_core::pool::rate::Rate;

use crate::gateway::error::Result;
use crate::gateway::ingest::JOBS;
use crate::gateway::kept::{Kept, Kind, Snapshot};
use crate::gateway::pools::{POOL, Pool, PoolStatus};
use crate::gateway::subscriptions::secret::Secrets;
use crate::gateway::subscriptions::{SIGNING_SECRET, SUBSCRIPTION};
use crate::webhook::signature::SigningSecret;
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

/// The secrets of subscriptions, by client and code.
#[derive(Clone, Default)]
struct SigningSecrets {
    by_code: HashMap<(Option<Tsid>, String), Arc<[SigningSecret]>>,
    codes: HashMap<Tsid, (Option<Tsid>, String)>,
}

/// The caches.
#[derive(Debug, Default)]
pub(super) struct KeptRoutes {
    webhooks: Kept<Webhooks>,
    rules: Kept<Rules>,
    secrets: Kept<SigningSecrets>,
}

/// All routes as of one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Routes {
    webhooks: Snapshot<Webhooks>,
    rules: Snapshot<Rules>,
    secrets: Snapshot<SigningSecrets>,
}

impl KeptRoutes {
    /// The routes, read after this was called.
    pub(super) async fn read(&self, queue: &EventQueue) -> Result<Routes> {
        let version = queue.catalogue_version().await?;
        let webhooks = self.webhooks.at(queue, version).await?;
        let rules = self.rules.at(queue, version).await?;
        let secrets = self.secrets.at(queue, version).await?;
        Ok(Routes { webhooks, rules, secrets })
    }
}

impl Routes {
    pub(super) fn all(&self) -> impl Iterator<Item = (Tsid, &Arc<Route>)> {
        self.webhooks.routes.iter().map(|(id, route)| (*id, route))
    }

    pub(super) fn get(&self, id: Tsid) -> Option<&Arc<Route>> {
        self.webhooks.routes.get(&id)
    }

    /// Whether there is no such subscription any more.
    pub(super) fn is_deleted(&self, id: Tsid) -> bool {
        !self.webhooks.routes.contains_key(&id) && !self.webhooks.others.contains(&id)
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

    /// The secrets of a subscription, the one to sign with first. None if they are missing.
    pub(super) fn secrets(&self, subscription: &Subscription) -> Arc<[SigningSecret]> {
        let key = (subscription.client, subscription.code.clone());
        self.secrets.by_code.get(&key).cloned().unwrap_or_default()
    }

    /// Whether nothing has changed since those others.
    pub(super) fn is_as(&self, others: &Self) -> bool {
        self.webhooks.is_as(&others.webhooks) && self.rules.is_as(&others.rules)
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

impl Kind for SigningSecrets {
    const NAME: &'static str = SIGNING_SECRET;

    fn apply(&mut self, resource: &Resource) {
        if let Some(key) = self.codes.remove(&resource.id) {
            self.by_code.remove(&key);
        }
        if resource.deleted {
            return;
        }
        match Secrets::read(resource) {
            Ok(secrets) => {
                let key = (resource.client, resource.code.clone());
                self.codes.insert(resource.id, key.clone());
                self.by_code.insert(key, secrets.parsed().into());
            }
            Err(error) => tracing::error!(%error, code = resource.code, "the secrets of a subscription cannot be read"),
        }
    }
}

impl std::fmt::Debug for SigningSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningSecrets").field("subscriptions", &self.by_code.len()).finish()
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
            secrets: Snapshot::default(),
        }
    }
}
