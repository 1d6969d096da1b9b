//! Subscriptions: create, list, show, change, pause, resume, delete.

mod matched;
mod target;
mod values;

use std::time::Duration;

use tidegate::{
    ChangeResource, DeleteResource, Error, ErrorKind, MAX_RESOURCES, PutResource, QueueName, Resource, ResourcesQuery,
    Tsid,
};

use super::error::{GatewayError, Result, gone};
use super::event_types::only;
use super::ingest::JOBS;
use super::secrets::{Contents, Rotated, SecretText, SigningScheme};
use super::values::check_code;
use super::{Changed, Gateway, Listed, Match, Replay};
use crate::secrets::Place;

pub(super) use matched::Subscriptions;
pub use target::{AllowedTarget, Target};
pub use values::{
    ConfigEntry, DispatchMode, RetryStrategy, Subscription, SubscriptionBody, SubscriptionStatus, TypeBinding,
};

pub(super) use values::{MAX_RETRIES, MAX_TIMEOUT, within};
pub(crate) use values::{SIGNING_SECRET, SUBSCRIPTION};
use values::{stored, stored_new};

/// Events that were accepted this long before a pause, or after its end, may have been matched within it.
const AROUND_PAUSE: Duration = Duration::from_secs(5);

/// Which subscriptions to list, by client and code.
#[derive(Debug, Clone, Default)]
pub struct SubscriptionsQuery {
    /// Only those of this client (`Some(None)`: of the anchor level); of all if `None`.
    pub client: Option<Option<Tsid>>,
    /// Only those after this client and code.
    pub after: Option<(Option<Tsid>, String)>,
    /// At most so many.
    pub limit: usize,
}

impl SubscriptionsQuery {
    fn resources(&self, limit: usize) -> ResourcesQuery {
        ResourcesQuery { kind: SUBSCRIPTION.into(), client: self.client, after: self.after.clone(), limit }
    }
}

impl Gateway {
    /// Creates a subscription, ACTIVE, and returns it with its signing secret, which is shown this once.
    ///
    /// # Errors
    /// `Invalid`, or `Conflict` when the client has one of this code.
    pub async fn create_subscription(
        &self,
        client: Option<Tsid>,
        code: &str,
        body: &SubscriptionBody,
    ) -> Result<(Subscription, SecretText)> {
        check_code(code)?;
        let (contents, secret) = Contents::new(None);
        let sealed = contents.seal(Place { kind: SIGNING_SECRET, client, code }, &self.secret_keys)?;
        let create = |kind: &str, body| {
            let (id, kind, code) = (None, kind.to_owned(), code.to_owned());
            ChangeResource::Put(PutResource::Create { id, kind, client, code, body })
        };
        let (create, sealed) = (&create, &sealed);
        let made = self.until_written(|| async move {
            let body = self.checked(body, client).await?;
            let mut items = vec![create(SUBSCRIPTION, stored_new(&body)?), create(SIGNING_SECRET, sealed.clone())];
            items.extend(self.named(client, &body).await?);
            match self.queue.resources().change(items).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    // Either the code is taken, or the pool or the account has changed and this is tried again.
                    if self.queue.resources().by_code(SUBSCRIPTION, client, code).await?.is_none() {
                        return Err(error.into());
                    }
                    Err(GatewayError::Conflict(format!("there is a subscription {code} already: change that one")))
                }
                written => Subscription::read(only(&written.map_err(gone)?)?),
            }
        });
        Ok((made.await?, secret))
    }

    /// Lists subscriptions. One that this program cannot read is left out.
    ///
    /// # Errors
    /// The store's.
    pub async fn list_subscriptions(&self, query: &SubscriptionsQuery) -> Result<Listed<Subscription>> {
        let limit = query.limit.min(MAX_RESOURCES - 1);
        Ok(Listed::of(self.subscription_rows(query, limit + 1).await?, limit, Subscription::read))
    }

    /// Subscriptions as they are stored, also those that this program cannot read.
    pub(super) async fn subscription_rows(&self, query: &SubscriptionsQuery, limit: usize) -> Result<Vec<Resource>> {
        Ok(self.queue.resources().list(query.resources(limit)).await?)
    }

    /// A subscription by its id, if it belongs to this client (`None`: whoever it belongs to).
    ///
    /// # Errors
    /// `NotFound`, or the store's.
    pub async fn subscription(&self, id: Tsid, client: Option<Tsid>) -> Result<Subscription> {
        self.stored_subscription(id, client, Match::Any).await
    }

    /// Changes what is said about a subscription; its code and its client stay.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, or `Invalid`.
    pub async fn change_subscription(
        &self,
        id: Tsid,
        client: Option<Tsid>,
        on: Match,
        body: &SubscriptionBody,
    ) -> Result<Subscription> {
        self.until_written(|| async move {
            let mut found = self.stored_subscription(id, client, on).await?;
            found.body = self.checked(body, found.client).await?;
            let named = self.named(found.client, &found.body).await?;
            self.write_subscription(&found, named, false).await
        })
        .await
    }

    /// Pauses a subscription: nothing is made for it from the next event on. Again, it changes nothing.
    ///
    /// # Errors
    /// `NotFound`, or `Changed`.
    pub async fn pause_subscription(
        &self,
        id: Tsid,
        client: Option<Tsid>,
        on: Match,
    ) -> Result<(Subscription, Changed)> {
        self.set_status(id, client, on, SubscriptionStatus::Paused).await
    }

    /// Resumes a paused subscription, from the next event on. Again, it changes nothing.
    ///
    /// # Errors
    /// `NotFound`, or `Changed`.
    pub async fn resume_subscription(
        &self,
        id: Tsid,
        client: Option<Tsid>,
        on: Match,
    ) -> Result<(Subscription, Changed)> {
        self.set_status(id, client, on, SubscriptionStatus::Active).await
    }

    async fn set_status(
        &self,
        id: Tsid,
        client: Option<Tsid>,
        on: Match,
        status: SubscriptionStatus,
    ) -> Result<(Subscription, Changed)> {
        self.until_written(|| async move {
            let mut found = self.stored_subscription(id, client, on).await?;
            if found.status == status {
                return Ok((found, Changed::No));
            }
            found.status = status;
            Ok((self.write_subscription(&found, Vec::new(), true).await?, Changed::Yes))
        })
        .await
    }

    /// What to replay so that a subscription gets what came during its last pause: the moments before it was paused and after
    /// it was resumed are included, and what it has a job of already is left out. `None` if it was never paused.
    #[must_use]
    pub fn missed(subscription: &Subscription) -> Option<Replay> {
        let (from, to) = (subscription.paused_from?, subscription.paused_to?);
        let from = from.saturating_sub(AROUND_PAUSE).unwrap_or(from);
        let to = to.saturating_add(AROUND_PAUSE).unwrap_or(to);
        Some(Replay { name: "resume".into(), missing_only: true, ..Replay::new(from, to) })
    }

    /// Deletes a subscription and its secret, even one that this program cannot read. Entries that were made for it stay.
    ///
    /// # Errors
    /// `NotFound`, or `Changed`.
    pub async fn delete_subscription(&self, id: Tsid, client: Option<Tsid>, on: Match) -> Result<()> {
        self.until_written(|| async move {
            let found = self.subscription_row(id, client).await?;
            on.check(found.version, &format_args!("the subscription {}", found.code))?;
            let delete =
                |id, kind: &str, expected| ChangeResource::Delete(DeleteResource { id, kind: kind.into(), expected });
            let mut items = vec![delete(id, SUBSCRIPTION, Some(found.version))];
            let secret = self.queue.resources().by_code(SIGNING_SECRET, found.client, &found.code).await?;
            items.extend(secret.map(|secret| delete(secret.id, SIGNING_SECRET, None)));
            self.queue.resources().change(items).await?;
            Ok(())
        })
        .await
    }

    /// Gives a subscription a new signing secret. Those before it sign for `overlap` longer, a day if that is not said.
    ///
    /// # Errors
    /// `NotFound`, `Invalid`, `Conflict` when too many are valid, or `Unavailable` when they cannot be read or encrypted.
    pub async fn rotate_subscription_secret(
        &self,
        id: Tsid,
        client: Option<Tsid>,
        scheme: Option<SigningScheme>,
        overlap: Option<Duration>,
    ) -> Result<Rotated> {
        self.until_written(|| async move {
            let found = self.subscription_row(id, client).await?;
            self.rotate_secret_of(&found, SIGNING_SECRET, scheme, overlap).await
        })
        .await
    }

    /// What is to be written with a subscription of this client so that what it names is there.
    async fn named(&self, client: Option<Tsid>, body: &SubscriptionBody) -> Result<Vec<ChangeResource>> {
        let pool = self.named_pool(client, body.dispatch_pool).await?;
        let account = self.named_account(client, body.service_account).await?;
        Ok(pool.into_iter().chain(account).collect())
    }

    /// A subscription of this client (`None`: of any) that names something by its id. One that this program cannot read does
    /// if it has that id anywhere.
    pub(super) async fn naming(
        &self,
        client: Option<Tsid>,
        id: Tsid,
        named: impl Fn(&Subscription) -> Option<Tsid>,
    ) -> Result<Option<Resource>> {
        let names = |row: &Resource| match Subscription::read(row) {
            Ok(read) => named(&read) == Some(id),
            Err(_) => row.body.contains(&id.to_string()),
        };
        let mut query = SubscriptionsQuery { client: client.map(Some), after: None, limit: MAX_RESOURCES };
        loop {
            let rows = self.subscription_rows(&query, query.limit).await?;
            let next = rows.last().filter(|_| rows.len() == query.limit);
            query.after = next.map(|last| (last.client, last.code.clone()));
            let found = rows.into_iter().find(names);
            if found.is_some() || query.after.is_none() {
                return Ok(found);
            }
        }
    }

    /// A body whose fields are checked, and whose types that were named by an id exist.
    async fn checked(&self, body: &SubscriptionBody, client: Option<Tsid>) -> Result<SubscriptionBody> {
        body.check()?;
        body.target.check(&self.options.allowed_targets)?;
        self.check_queue(&body.target, client).await?;
        let mut body = body.clone();
        let types = self.types.at(&self.queue, self.queue.catalogue_version().await?).await?;
        for (at, binding) in body.bindings.iter_mut().enumerate() {
            let Some(id) = binding.event_type else { continue };
            let missing =
                || GatewayError::Invalid(format!("eventTypes[{at}].eventTypeId: there is no event type {id}"));
            let found = types.by_id(id).ok_or_else(missing)?;
            let pattern = found.code.as_str().parse();
            let code = pattern.map_err(|error| GatewayError::Invalid(format!("eventTypes[{at}]: {error}")))?;
            if !binding.is_by_id_alone() && binding.code != code {
                let text = format!(
                    "eventTypes[{at}].eventTypeCode: the event type {id} is {}, not {}: name it once",
                    found.code, binding.code
                );
                return Err(GatewayError::Invalid(text));
            }
            binding.code = code;
        }
        Ok(body)
    }

    /// Refuses a queue that does not exist; makes that of a client's jobs.
    async fn check_queue(&self, target: &Target, client: Option<Tsid>) -> Result<()> {
        let Target::Queue(name) = target else {
            let jobs = QueueName::of(client, JOBS).map_err(Error::from)?;
            return Ok(self.queue.make_job_queue(&jobs).await?);
        };
        let queue = QueueName::of(client, name).map_err(Error::from)?;
        match self.queue.find_config(&queue).await? {
            Some(_) => Ok(()),
            None => Err(GatewayError::Invalid(format!("target: there is no queue {name}: create it first"))),
        }
    }

    async fn subscription_row(&self, id: Tsid, client: Option<Tsid>) -> Result<Resource> {
        let missing = || GatewayError::NotFound(format!("there is no subscription {id}"));
        let found = self.queue.resources().get(SUBSCRIPTION, id).await?.ok_or_else(missing)?;
        if client.is_some() && found.client != client {
            return Err(missing());
        }
        Ok(found)
    }

    async fn stored_subscription(&self, id: Tsid, client: Option<Tsid>, on: Match) -> Result<Subscription> {
        let found = Subscription::read(&self.subscription_row(id, client).await?)?;
        on.check(found.revision, &format_args!("the subscription {}", found.code))?;
        Ok(found)
    }

    /// Writes a subscription over the revision that was read, together with what it names. `moves` if its status changes.
    async fn write_subscription(
        &self,
        changed: &Subscription,
        named: Vec<ChangeResource>,
        moves: bool,
    ) -> Result<Subscription> {
        let put = PutResource::Change {
            id: changed.id,
            kind: SUBSCRIPTION.into(),
            expected: Some(changed.revision),
            body: stored(changed, moves)?,
        };
        let items = [ChangeResource::Put(put)].into_iter().chain(named).collect();
        Subscription::read(only(&self.queue.resources().change(items).await.map_err(gone)?)?)
    }
}
