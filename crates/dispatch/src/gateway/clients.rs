//! Clients: create, list, show, change, delete. A client's id is what keys, queues, events and subscriptions carry.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidegate::{
    CatalogueVersion, ChangeResource, DeleteResource, EntryId, Error, ErrorKind, JobState, JobsQuery, ManualAction,
    PutResource, Resource, Timestamp, Tsid,
};

use super::accounts::AccountsQuery;
use super::error::{GatewayError, Result};
use super::event_types::only;
use super::kept::Kind;
use super::pools::PoolsQuery;
use super::subscriptions::SubscriptionsQuery;
use super::tasks::TaskLane;
use super::values::{check_code, check_name, damaged, write};
use super::{Gateway, Match};

/// The kind of resources that are clients.
const CLIENT: &str = "client";
/// How many things of a client are looked at at once when it is deleted.
const PAGE: usize = 100;

/// A client: a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Its number.
    pub id: Tsid,
    /// Its code, which never changes.
    pub code: String,
    /// A name for people.
    pub name: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// Changes with every change: an entity tag.
    pub revision: i64,
}

/// Which clients to list, in the order of their codes.
#[derive(Debug, Clone, Default)]
pub struct ClientsQuery {
    /// Only this one.
    pub id: Option<Tsid>,
    /// Only those after this code.
    pub after: Option<String>,
    /// At most so many.
    pub limit: usize,
}

/// A client in its resource's body.
#[derive(Debug, Serialize, Deserialize)]
struct StoredClient {
    name: String,
}

/// The clients by their codes.
#[derive(Debug, Clone, Default)]
pub(super) struct Clients {
    by_code: BTreeMap<String, Arc<Client>>,
    codes: HashMap<Tsid, String>,
}

impl Clients {
    fn by_id(&self, id: Tsid) -> Option<&Arc<Client>> {
        self.codes.get(&id).and_then(|code| self.by_code.get(code))
    }
}

impl Kind for Clients {
    const NAME: &'static str = CLIENT;

    fn apply(&mut self, resource: &Resource) {
        if let Some(code) = self.codes.remove(&resource.id) {
            self.by_code.remove(&code);
        }
        if resource.deleted {
            return;
        }
        match Client::read(resource) {
            Ok(read) => {
                self.codes.insert(read.id, read.code.clone());
                self.by_code.insert(read.code.clone(), Arc::new(read));
            }
            Err(error) => tracing::error!(%error, code = resource.code, "a client is left out"),
        }
    }
}

impl Client {
    fn read(resource: &Resource) -> Result<Self> {
        let damaged = damaged(resource);
        let Ok(stored) = serde_json::from_str::<StoredClient>(&resource.body) else { return Err(damaged("its body")) };
        Ok(Self {
            id: resource.id,
            code: resource.code.clone(),
            name: stored.name,
            created_at: resource.created_at,
            updated_at: resource.updated_at,
            revision: resource.version,
        })
    }
}

impl Gateway {
    /// Creates a client.
    ///
    /// # Errors
    /// `Invalid`, or `Conflict` when the code is taken.
    pub async fn create_client(&self, code: &str, name: &str) -> Result<Client> {
        check_code(code)?;
        check_name(name)?;
        let put = PutResource::Create {
            id: None,
            kind: CLIENT.into(),
            client: None,
            code: code.to_owned(),
            body: write(&StoredClient { name: name.to_owned() })?,
        };
        match self.queue.resources().change(vec![ChangeResource::Put(put)]).await {
            Err(error) if error.kind() == ErrorKind::Conflict => {
                Err(GatewayError::Conflict(format!("there is a client {code} already: change that one")))
            }
            written => Client::read(only(&written?)?),
        }
    }

    /// Lists clients, and says whether there are more.
    ///
    /// # Errors
    /// The store's.
    pub async fn list_clients(
        &self,
        query: &ClientsQuery,
        version: Option<CatalogueVersion>,
    ) -> Result<(Vec<Arc<Client>>, bool)> {
        use std::ops::Bound;
        let clients = self.clients.at(&self.queue, self.version(version).await?).await?;
        let first = query.after.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let all = clients.by_code.range((first, Bound::Unbounded)).map(|(_, client)| client);
        let mut found = all.filter(|client| query.id.is_none_or(|id| id == client.id));
        let page: Vec<_> = found.by_ref().take(query.limit).cloned().collect();
        Ok((page, found.next().is_some()))
    }

    /// A client by its id.
    ///
    /// # Errors
    /// `NotFound`, or the store's.
    pub async fn client(&self, id: Tsid, version: Option<CatalogueVersion>) -> Result<Arc<Client>> {
        let clients = self.clients.at(&self.queue, self.version(version).await?).await?;
        clients.by_id(id).cloned().ok_or_else(|| no_client(id))
    }

    /// Changes the name of a client.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, or `Invalid`.
    pub async fn change_client(&self, id: Tsid, on: Match, name: &str) -> Result<Client> {
        check_name(name)?;
        self.until_written(|| async move {
            let found = self.stored_client(id, on).await?;
            let put = PutResource::Change {
                id,
                kind: CLIENT.into(),
                expected: Some(found.revision),
                body: write(&StoredClient { name: name.to_owned() })?,
            };
            Client::read(only(&self.queue.resources().change(vec![ChangeResource::Put(put)]).await?)?)
        })
        .await
    }

    /// Deletes a client that has no subscriptions, no dispatch pools, no service accounts, no tasks that have not ended and no keys
    /// that are not revoked. Its queues and events stay. What is made for it at the same moment goes with it.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, or `Conflict` with what it still has.
    pub async fn delete_client(&self, id: Tsid, on: Match) -> Result<()> {
        self.until_written(|| async move {
            let found = self.stored_client(id, on).await?;
            if let Some(held) = self.held_by(id).await? {
                let text = format!("the client {} still has {held}: remove or cancel that first", found.code);
                return Err(GatewayError::Conflict(text));
            }
            let delete = DeleteResource { id, kind: CLIENT.into(), expected: Some(found.revision) };
            self.queue.resources().change(vec![ChangeResource::Delete(delete)]).await?;
            Ok(())
        })
        .await?;
        self.remove_latecomers(id).await
    }

    /// Revokes the keys, deletes the subscriptions, pools and accounts and cancels the tasks that were made after it was seen that a
    /// client has none, and before it was gone. Whoever makes one looks afterwards whether the client is still there.
    async fn remove_latecomers(&self, id: Tsid) -> Result<()> {
        for key in self.queue.api_keys().list().await? {
            if key.client == Some(id) && key.revoked_at.is_none() {
                self.queue.api_keys().revoke(key.id).await?;
            }
        }
        let gone = |deleted: Result<()>| match deleted {
            Err(GatewayError::NotFound(_)) => Ok(()),
            other => other,
        };
        // Subscriptions first: what one of them names is not deleted.
        loop {
            let found = self.subscription_rows(&subscriptions_of(id), PAGE).await?;
            for row in &found {
                gone(self.delete_subscription(row.id, Some(id), Match::Any).await)?;
            }
            if found.len() < PAGE {
                break;
            }
        }
        loop {
            let found = self.pool_rows(&pools_of(id), PAGE).await?;
            for row in &found {
                gone(self.delete_pool(row.id, Some(id), Match::Any).await)?;
            }
            if found.len() < PAGE {
                break;
            }
        }
        // Before accounts: what a task names is not deleted.
        self.cancel_tasks(id).await?;
        loop {
            let found = self.account_rows(&accounts_of(id), PAGE).await?;
            for row in &found {
                gone(self.delete_account(row.id, Some(id), Match::Any).await)?;
            }
            if found.len() < PAGE {
                return Ok(());
            }
        }
    }

    /// Cancels the tasks of a client that is gone.
    async fn cancel_tasks(&self, client: Tsid) -> Result<()> {
        loop {
            let found = self.live_tasks(client, PAGE).await?;
            if found.is_empty() {
                return Ok(());
            }
            let reason = Some("its client was deleted".to_owned());
            let action = |id| ManualAction { id, actor: None, reason: reason.clone() };
            for cancelled in self.queue.job_desk().cancel(found.into_iter().map(action).collect()).await? {
                let is_over = |error: &Error| matches!(error.kind(), ErrorKind::AlreadyEnded | ErrorKind::NotFound);
                cancelled.or_else(|error| if is_over(&error) { Ok(()) } else { Err(error) })?;
            }
        }
    }

    /// Some tasks of a client that have not ended; none once there are none.
    async fn live_tasks(&self, client: Tsid, limit: usize) -> Result<Vec<EntryId>> {
        let mut query = JobsQuery {
            states: vec![JobState::Waiting, JobState::Parked, JobState::Leased, JobState::Kept],
            client: Some(client),
            lane_prefix: Some(TaskLane::prefix(None)),
            limit,
            ..JobsQuery::default()
        };
        loop {
            let page = self.queue.job_desk().list(query.clone()).await?;
            // An empty page may only say that there are many other jobs.
            if !page.jobs.is_empty() || page.next.is_none() {
                return Ok(page.jobs.into_iter().map(|job| job.entry.id).collect());
            }
            query.before = page.next;
        }
    }

    /// What a client still has.
    async fn held_by(&self, id: Tsid) -> Result<Option<&'static str>> {
        let keys = self.queue.api_keys().list().await?;
        if keys.iter().any(|key| key.client == Some(id) && key.revoked_at.is_none()) {
            return Ok(Some("keys that are not revoked"));
        }
        if !self.subscription_rows(&subscriptions_of(id), 1).await?.is_empty() {
            return Ok(Some("subscriptions"));
        }
        if !self.pool_rows(&pools_of(id), 1).await?.is_empty() {
            return Ok(Some("dispatch pools"));
        }
        if !self.account_rows(&accounts_of(id), 1).await?.is_empty() {
            return Ok(Some("service accounts"));
        }
        let has_tasks = !self.live_tasks(id, 1).await?.is_empty();
        Ok(has_tasks.then_some("dispatch jobs of the kind TASK that have not ended"))
    }

    async fn stored_client(&self, id: Tsid, on: Match) -> Result<Client> {
        let found = self.queue.resources().get(CLIENT, id).await?.ok_or_else(|| no_client(id))?;
        let found = Client::read(&found)?;
        on.check(found.revision, &format_args!("the client {}", found.code))?;
        Ok(found)
    }
}

fn no_client(id: Tsid) -> GatewayError {
    GatewayError::NotFound(format!("there is no client {id}"))
}

fn subscriptions_of(client: Tsid) -> SubscriptionsQuery {
    SubscriptionsQuery { client: Some(Some(client)), ..SubscriptionsQuery::default() }
}

fn pools_of(client: Tsid) -> PoolsQuery {
    PoolsQuery { client: Some(Some(client)), ..PoolsQuery::default() }
}

fn accounts_of(client: Tsid) -> AccountsQuery {
    AccountsQuery { client: Some(Some(client)), ..AccountsQuery::default() }
}
