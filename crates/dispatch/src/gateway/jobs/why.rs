//! Why a job is not delivered: what the store says of it, and what its subscription, its pool and its credentials say. What only
//! a node knows that delivers, such as that a breaker is open, is not told.

use tidegate::{HeldSlots, PoolKey, Resource, Timestamp, Tsid, Why};

use super::{Job, JobKind, NoSender, Senders};
use crate::gateway::Gateway;
use crate::gateway::accounts::{ACCOUNT, ACCOUNT_SECRET, Account};
use crate::gateway::error::{GatewayError, Result};
use crate::gateway::pools::{DEFAULT_CONCURRENCY, PoolBody, PoolStatus};
use crate::gateway::subscriptions::{SIGNING_SECRET, Subscription, SubscriptionStatus};

/// Why a job is not delivered.
#[derive(Debug)]
pub enum JobWhy {
    /// Its subscription is gone: it is cancelled soon.
    SubscriptionDeleted,
    /// Its subscription sends to a queue now: it waits until that has a webhook again.
    NoWebhook,
    /// This node cannot read its subscription: a newer program has written it.
    SubscriptionUnreadable,
    /// Its subscription is paused.
    SubscriptionPaused,
    /// What it is signed with or carries is not there, or cannot be read by this node.
    NoCredentials {
        /// The account that has it; `None` for the subscription itself.
        account: Option<Tsid>,
    },
    /// Its pool is suspended.
    PoolSuspended {
        /// The pool.
        pool: Tsid,
    },
    /// No node seems to deliver: this one does not, and none holds slots of any pool.
    NoRouter,
    /// All slots of its pool are in use.
    PoolFull {
        /// The pool; `None` for the default pool of its client.
        pool: Option<Tsid>,
        /// Who holds them.
        slots: Vec<HeldSlots>,
    },
    /// Its pool has used up its limit per minute.
    PoolLimited {
        /// The pool.
        pool: Tsid,
        /// From when on there is a delivery that no node has reserved.
        at: Timestamp,
    },
    /// What the store says.
    Store(Why),
}

impl Gateway {
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
        if !is_open {
            return Ok(JobWhy::Store(why));
        }
        let senders = self.senders().await?;
        let job = self.job_of(view, &senders).await?;
        let is_ready = matches!(why, Why::Ready { .. });
        Ok(self.why_held(&job, is_ready, &senders).await?.unwrap_or(JobWhy::Store(why)))
    }

    /// Why a router would not deliver a job once it is due, or, if it `is_ready`, does not deliver it now.
    async fn why_held(&self, job: &Job, is_ready: bool, senders: &Senders) -> Result<Option<JobWhy>> {
        let (mut account, mut pool) = (None, None);
        match (job.kind, job.subscription) {
            (JobKind::Event, None) => return Ok(None),
            (JobKind::Event, Some(subscription)) => {
                let subscription = match senders.of(subscription) {
                    Ok(subscription) => subscription,
                    Err(NoSender::Deleted) => return Ok(Some(JobWhy::SubscriptionDeleted)),
                    Err(NoSender::NoWebhook) => return Ok(Some(JobWhy::NoWebhook)),
                    Err(NoSender::Unreadable) => return Ok(Some(JobWhy::SubscriptionUnreadable)),
                };
                if subscription.status == SubscriptionStatus::Paused {
                    return Ok(Some(JobWhy::SubscriptionPaused));
                }
                if !self.can_sign(subscription).await? {
                    return Ok(Some(JobWhy::NoCredentials { account: None }));
                }
                (account, pool) = (subscription.body.service_account, subscription.body.dispatch_pool);
            }
            (JobKind::Task, _) => {
                if let Some(terms) = &job.terms {
                    (account, pool) = (terms.service_account, terms.pool);
                }
            }
        }
        if let Some(account) = account
            && !self.has_credentials(account, job.client).await?
        {
            return Ok(Some(JobWhy::NoCredentials { account: Some(account) }));
        }
        // Tasks whose pool is gone go by the default pool of their client.
        let found = match pool {
            Some(pool) => match self.pool(pool, None).await {
                Err(GatewayError::NotFound(_)) => None,
                found => Some(found?),
            },
            None => None,
        };
        match found {
            Some(found) if found.body.status == PoolStatus::Suspended => {
                Ok(Some(JobWhy::PoolSuspended { pool: found.id }))
            }
            found if is_ready => self.why_not_now(job, found.map(|found| (found.id, found.body)), senders).await,
            _ => Ok(None),
        }
    }

    /// Why a job that is ready is not delivered at this moment, by its pool, if it has one of its own.
    async fn why_not_now(
        &self,
        job: &Job,
        pool: Option<(Tsid, PoolBody)>,
        senders: &Senders,
    ) -> Result<Option<JobWhy>> {
        let id = pool.as_ref().map(|(id, _)| *id);
        let key = id.map_or_else(|| PoolKey::default_of(job.client), PoolKey::of);
        let view = self.queue.job_desk().pool_view(key).await?;
        if !view.has_nodes && !self.made.is_heard() {
            return Ok(Some(JobWhy::NoRouter));
        }
        let concurrency = pool.as_ref().map_or(DEFAULT_CONCURRENCY, |(_, body)| body.concurrency);
        let held: u32 = view.slots.iter().map(|held| held.slots).sum();
        // Nodes may hold more slots than they use.
        if held >= concurrency && self.in_use(id, job.client, senders).await? >= u64::from(concurrency) {
            return Ok(Some(JobWhy::PoolFull { pool: id, slots: view.slots }));
        }
        let is_limited = |body: &PoolBody| body.rate_limit_per_minute.is_some();
        let limited = pool.filter(|(_, body)| is_limited(body)).zip(view.moment);
        Ok(limited.map(|((pool, _), at)| JobWhy::PoolLimited { pool, at }))
    }

    async fn can_sign(&self, subscription: &Subscription) -> Result<bool> {
        let (client, code) = (subscription.client, &subscription.code);
        let secret = self.queue.resources().by_code(SIGNING_SECRET, client, code).await?;
        Ok(self.can_be_used(secret.as_ref()))
    }

    async fn has_credentials(&self, account: Tsid, client: Option<Tsid>) -> Result<bool> {
        let resources = self.queue.resources();
        let Some(account) = resources.get(ACCOUNT, account).await? else { return Ok(false) };
        if !Account::read(&account).is_ok_and(|account| account.is_for(client)) {
            return Ok(false);
        }
        let secret = resources.by_code(ACCOUNT_SECRET, account.client, &account.code).await?;
        Ok(self.can_be_used(secret.as_ref()))
    }

    fn can_be_used(&self, secret: Option<&Resource>) -> bool {
        secret.is_some_and(|secret| self.contents_of(secret).is_ok())
    }
}
