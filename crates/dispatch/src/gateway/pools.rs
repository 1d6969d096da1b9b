//! Dispatch pools: create, list, show, change, delete. Only their configuration: what they limit is not made here.
//!
//! A pool that a subscription names is not deleted. Both sides meet in the pool's row: who begins to name a pool writes
//! over the revision that it has read, and who deletes one first marks it as closing, which is such a change, and looks for
//! subscriptions after that.

use serde::{Deserialize, Serialize};
use tidegate::{
    ChangeResource, DeleteResource, ErrorKind, MAX_RESOURCES, PutResource, Resource, ResourcesQuery, Timestamp, Tsid,
};

use super::error::{GatewayError, Result};
use super::event_types::only;
use super::values::{check_code, check_name, damaged, write};
use super::{Gateway, Listed, Match, TRIES};

/// The kind of resources that are dispatch pools.
pub(crate) const POOL: &str = "dispatch_pool";
/// Deliveries at once, unless a pool says otherwise.
pub(super) const DEFAULT_CONCURRENCY: u32 = 10;
/// The most deliveries at once.
const MAX_CONCURRENCY: u32 = 10_000;
/// The highest rate, in deliveries per minute.
const MAX_RATE: u32 = 10_000_000;

/// Whether a pool delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PoolStatus {
    /// It does.
    #[default]
    Active,
    /// Its jobs wait.
    Suspended,
}

/// What can be said about a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolBody {
    /// A name for people.
    pub name: String,
    /// Deliveries at once, on all nodes together.
    pub concurrency: u32,
    /// Deliveries per minute, on all nodes together; as many as there are if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit_per_minute: Option<u32>,
    /// Whether it delivers.
    pub status: PoolStatus,
}

/// A pool: limits that deliveries share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its number.
    pub id: Tsid,
    /// Its code, unique per client; it never changes.
    pub code: String,
    /// The client whose subscriptions may name it; `None` for the anchor level, whose pools all may name.
    pub client: Option<Tsid>,
    /// What is said about it.
    pub body: PoolBody,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// Changes with every change: an entity tag.
    pub revision: i64,
    is_closing: bool,
}

/// Which pools to list, by client and code.
#[derive(Debug, Clone, Default)]
pub struct PoolsQuery {
    /// Only those of this client (`Some(None)`: of the anchor level); of all if `None`.
    pub client: Option<Option<Tsid>>,
    /// Only those after this client and code.
    pub after: Option<(Option<Tsid>, String)>,
    /// At most so many.
    pub limit: usize,
}

/// A pool in its resource's body.
#[derive(Debug, Serialize, Deserialize)]
struct StoredPool {
    #[serde(flatten)]
    said: PoolBody,
    /// Somebody deletes it: no subscription may begin to name it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    closing: bool,
}

impl PoolBody {
    /// What a pool says that says no more than its name.
    #[must_use]
    pub fn new(name: String) -> Self {
        let (concurrency, status) = (DEFAULT_CONCURRENCY, PoolStatus::default());
        Self { name, concurrency, rate_limit_per_minute: None, status }
    }

    fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        if !(1..=MAX_CONCURRENCY).contains(&self.concurrency) {
            return Err(GatewayError::Invalid(format!("concurrency must be 1 to {MAX_CONCURRENCY}")));
        }
        if self.rate_limit_per_minute.is_some_and(|rate| !(1..=MAX_RATE).contains(&rate)) {
            let text = format!("rateLimitPerMinute must be 1 to {MAX_RATE}: leave it out for no limit");
            return Err(GatewayError::Invalid(text));
        }
        Ok(())
    }

    fn stored(&self, closing: bool) -> Result<String> {
        write(&StoredPool { said: self.clone(), closing })
    }
}

impl Pool {
    pub(crate) fn read(resource: &Resource) -> Result<Self> {
        let damaged = damaged(resource);
        let Ok(stored) = serde_json::from_str::<StoredPool>(&resource.body) else { return Err(damaged("its body")) };
        Ok(Self {
            id: resource.id,
            code: resource.code.clone(),
            client: resource.client,
            body: stored.said,
            created_at: resource.created_at,
            updated_at: resource.updated_at,
            revision: resource.version,
            is_closing: stored.closing,
        })
    }

    /// A change over the revision that was read.
    fn change(&self, body: &PoolBody, closing: bool) -> Result<ChangeResource> {
        let (id, kind, body) = (self.id, POOL.to_owned(), body.stored(closing)?);
        Ok(ChangeResource::Put(PutResource::Change { id, kind, expected: Some(self.revision), body }))
    }
}

impl Gateway {
    /// Creates a pool.
    ///
    /// # Errors
    /// `Invalid`, or `Conflict` when the client has one of this code.
    pub async fn create_pool(&self, client: Option<Tsid>, code: &str, body: &PoolBody) -> Result<Pool> {
        check_code(code)?;
        body.check()?;
        let (kind, code, body) = (POOL.to_owned(), code.to_owned(), body.stored(false)?);
        let put = PutResource::Create { id: None, kind, client, code: code.clone(), body };
        match self.queue.resources().change(vec![ChangeResource::Put(put)]).await {
            Err(error) if error.kind() == ErrorKind::Conflict => {
                Err(GatewayError::Conflict(format!("there is a dispatch pool {code} already: change that one")))
            }
            written => Pool::read(only(&written?)?),
        }
    }

    /// Lists pools. One that this program cannot read is left out.
    ///
    /// # Errors
    /// The store's.
    pub async fn list_pools(&self, query: &PoolsQuery) -> Result<Listed<Pool>> {
        let limit = query.limit.min(MAX_RESOURCES - 1);
        Ok(Listed::of(self.pool_rows(query, limit + 1).await?, limit, Pool::read))
    }

    /// Pools as they are stored, also those that this program cannot read.
    pub(super) async fn pool_rows(&self, query: &PoolsQuery, limit: usize) -> Result<Vec<Resource>> {
        let (kind, client, after) = (POOL.to_owned(), query.client, query.after.clone());
        Ok(self.queue.resources().list(ResourcesQuery { kind, client, after, limit }).await?)
    }

    /// A pool by its id, if it belongs to this client (`None`: whoever it belongs to).
    ///
    /// # Errors
    /// `NotFound`, or the store's.
    pub async fn pool(&self, id: Tsid, client: Option<Tsid>) -> Result<Pool> {
        self.stored_pool(id, client, Match::Any).await
    }

    /// Changes what is said about a pool; its code and its client stay.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, or `Invalid`.
    pub async fn change_pool(&self, id: Tsid, client: Option<Tsid>, on: Match, body: &PoolBody) -> Result<Pool> {
        body.check()?;
        self.until_written(|| async move {
            let found = self.stored_pool(id, client, on).await?;
            Pool::read(only(&self.queue.resources().change(vec![found.change(body, false)?]).await?)?)
        })
        .await
    }

    /// Deletes a pool that no subscription names.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, or `Conflict` with the subscription that names it.
    pub async fn delete_pool(&self, id: Tsid, client: Option<Tsid>, on: Match) -> Result<()> {
        for _ in 0..TRIES {
            let Some(changed) = self.try_delete_pool(id, client, on).await? else { return Ok(()) };
            if on != Match::Any {
                return Err(GatewayError::Changed(format!(
                    "the dispatch pool {changed} has changed since it was read: read it again and repeat the deletion"
                )));
            }
        }
        Err(GatewayError::Conflict("others keep changing the dispatch pool at the same time; try again".into()))
    }

    /// Deletes a pool; the code of one that has changed meanwhile.
    async fn try_delete_pool(&self, id: Tsid, client: Option<Tsid>, on: Match) -> Result<Option<String>> {
        let closing = self
            .until_written(|| async move {
                let found = self.stored_pool(id, client, on).await?;
                self.check_unnamed(&found).await?;
                if found.is_closing {
                    // Another one deletes it too: the revision stays, so that either of them succeeds.
                    return Ok(found);
                }
                let closing = found.change(&found.body, true)?;
                Pool::read(only(&self.queue.resources().change(vec![closing]).await?)?)
            })
            .await?;
        if let Err(error) = self.check_unnamed(&closing).await {
            // Somebody was faster. Whoever changes the pool meanwhile opens it again as well.
            let open = closing.change(&closing.body, false)?;
            return match self.queue.resources().change(vec![open]).await {
                Err(lost) if lost.kind() != ErrorKind::Conflict => Err(lost.into()),
                _ => Err(error),
            };
        }
        let delete = DeleteResource { id, kind: POOL.into(), expected: Some(closing.revision) };
        match self.queue.resources().change(vec![ChangeResource::Delete(delete)]).await {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(Some(closing.code)),
            deleted => Ok(deleted.map(|_| None)?),
        }
    }

    /// Refuses a pool that a subscription names.
    async fn check_unnamed(&self, pool: &Pool) -> Result<()> {
        let naming = self.naming(pool.client, pool.id, |read| read.body.dispatch_pool).await?;
        let Some(naming) = naming else { return Ok(()) };
        Err(GatewayError::Conflict(format!(
            "the subscription {} with the id {} names the dispatch pool {}: change or delete it first",
            naming.code, naming.id, pool.code
        )))
    }

    /// What is to be written with a subscription of this client so that the pool which it names is there.
    ///
    /// # Errors
    /// `Invalid` when there is no such pool that the client may name.
    pub(super) async fn named_pool(&self, client: Option<Tsid>, id: Option<Tsid>) -> Result<Option<ChangeResource>> {
        let Some(id) = id else { return Ok(None) };
        let missing = || GatewayError::Invalid(format!("dispatchPoolId: there is no dispatch pool {id}"));
        let found = self.queue.resources().get(POOL, id).await?.ok_or_else(missing)?;
        let found = Pool::read(&found)?;
        if found.client.is_some() && found.client != client {
            return Err(missing());
        }
        if found.is_closing {
            let text =
                format!("dispatchPoolId: the dispatch pool {} is being deleted: change it to keep it", found.code);
            return Err(GatewayError::Invalid(text));
        }
        Ok(Some(found.change(&found.body, false)?))
    }

    async fn stored_pool(&self, id: Tsid, client: Option<Tsid>, on: Match) -> Result<Pool> {
        let missing = || GatewayError::NotFound(format!("there is no dispatch pool {id}"));
        let found = self.queue.resources().get(POOL, id).await?.ok_or_else(missing)?;
        if client.is_some() && found.client != client {
            return Err(missing());
        }
        let found = Pool::read(&found)?;
        on.check(found.revision, &format_args!("the dispatch pool {}", found.code))?;
        Ok(found)
    }
}
