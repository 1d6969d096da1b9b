//! Why a job is not delivered: what the store says of it, and what its subscription, its pool and its credentials say.

use tidegate::{Resource, Tsid, Why};

use super::{Job, JobKind, Senders};
use crate::gateway::Gateway;
use crate::gateway::accounts::{ACCOUNT, ACCOUNT_SECRET, Account};
use crate::gateway::error::{GatewayError, Result};
use crate::gateway::pools::PoolStatus;
use crate::gateway::subscriptions::{SIGNING_SECRET, Subscription, SubscriptionStatus};

/// Why a job is not delivered.
#[derive(Debug)]
pub enum JobWhy {
    /// Its subscription is gone: it is cancelled soon.
    SubscriptionDeleted,
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
        Ok(self.why_held(&job, &senders).await?.unwrap_or(JobWhy::Store(why)))
    }

    /// Why a router would not deliver a job that is due.
    async fn why_held(&self, job: &Job, senders: &Senders) -> Result<Option<JobWhy>> {
        let (mut account, mut pool) = (None, None);
        match (job.kind, job.subscription) {
            (JobKind::Event, None) => return Ok(None),
            (JobKind::Event, Some(subscription)) => {
                let Some(subscription) = senders.by_id.get(&subscription) else {
                    return Ok(Some(JobWhy::SubscriptionDeleted));
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
        let Some(pool) = pool else { return Ok(None) };
        match self.pool(pool, None).await {
            Ok(found) if found.body.status == PoolStatus::Suspended => Ok(Some(JobWhy::PoolSuspended { pool })),
            Ok(_) | Err(GatewayError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
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
