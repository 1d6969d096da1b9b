//! Service accounts: create, list, show, change, delete, rotate their signing secrets. An account is what webhooks are sent in
//! the name of: its credentials are sent with them, and its signing secret signs those of jobs that name it.
//!
//! Its secrets are in a resource of their own, which is never shown. An account that a subscription or an open task names is not deleted; both
//! sides meet in the account's row, as with [pools](super::pools).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::{
    ChangeResource, DeleteResource, ErrorKind, JobLane, MAX_RESOURCES, PutResource, Resource, ResourcesQuery,
    Timestamp, Tsid,
};

use super::error::{GatewayError, Result};
use super::event_types::only;
use super::secrets::{Contents, Rotated, SecretText, SigningScheme, StoredCredentials};
use super::tasks::TaskLane;
use super::values::{check_code, check_name, damaged, write};
use super::{Gateway, Listed, Match, TRIES};
use crate::secrets::Place;

/// How many lanes are read at once.
const LANES: usize = 1_000;
/// The kind of resources that are service accounts.
pub(crate) const ACCOUNT: &str = "service_account";
/// The kind of resources that are secrets of service accounts, by the account's client and code.
pub(crate) const ACCOUNT_SECRET: &str = "account_secret";

/// What an account is known by to receivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountAuth {
    /// By signatures alone.
    None,
    /// By a bearer token; the one that is stored if absent.
    Bearer {
        /// The token.
        token: Option<SecretText>,
    },
    /// By a user name and a password; the one that is stored if absent.
    Basic {
        /// The user name.
        username: String,
        /// The password.
        password: Option<SecretText>,
    },
}

/// What can be said about an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountBody {
    /// A name for people.
    pub name: String,
    /// What it is known by.
    pub auth: AccountAuth,
}

/// What is shown of what an account is known by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "authType", rename_all = "UPPERCASE")]
pub enum ShownAuth {
    /// Signatures alone.
    None,
    /// A bearer token.
    Bearer,
    /// A user name and a password.
    Basic {
        /// The user name.
        username: String,
    },
}

/// A service account, without its secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its number.
    pub id: Tsid,
    /// Its code, unique per client; it never changes.
    pub code: String,
    /// The client whose subscriptions and jobs may name it, and no others; `None` for the anchor level: those of no client.
    pub client: Option<Tsid>,
    /// A name for people.
    pub name: String,
    /// What it is known by.
    pub auth: ShownAuth,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// Changes with every change: an entity tag.
    pub revision: i64,
    is_closing: bool,
}

/// Which accounts to list, by client and code.
#[derive(Debug, Clone, Default)]
pub struct AccountsQuery {
    /// Only those of this client (`Some(None)`: of the anchor level); of all if `None`.
    pub client: Option<Option<Tsid>>,
    /// Only those after this client and code.
    pub after: Option<(Option<Tsid>, String)>,
    /// At most so many.
    pub limit: usize,
}

/// An account in its resource's body.
#[derive(Debug, Serialize, Deserialize)]
struct StoredAccount {
    name: String,
    #[serde(flatten)]
    auth: ShownAuth,
    /// Rises with every change of its credentials, so that its entity tag does too.
    #[serde(default, skip_serializing_if = "is_zero")]
    edition: u32,
    /// Somebody deletes it: no subscription may begin to name it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    closing: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl AccountAuth {
    fn shown(&self) -> ShownAuth {
        match self {
            Self::None => ShownAuth::None,
            Self::Bearer { .. } => ShownAuth::Bearer,
            Self::Basic { username, .. } => ShownAuth::Basic { username: username.clone() },
        }
    }

    /// What is stored for it, where `stored` is there already.
    fn stored(&self, stored: Option<StoredCredentials>) -> Result<Option<StoredCredentials>> {
        let missing = |field: &str| GatewayError::Invalid(format!("{field} is required: none is stored yet"));
        let wanted = match self {
            Self::None => None,
            Self::Bearer { token: Some(token) } => Some(StoredCredentials::Bearer { token: token.clone() }),
            Self::Bearer { token: None } => match stored {
                Some(kept @ StoredCredentials::Bearer { .. }) => Some(kept),
                _ => return Err(missing("token")),
            },
            Self::Basic { username, password } => {
                let kept = match stored {
                    Some(StoredCredentials::Basic { password, .. }) => Some(password),
                    _ => None,
                };
                let password = password.clone().or(kept).ok_or_else(|| missing("password"))?;
                Some(StoredCredentials::Basic { username: username.clone(), password })
            }
        };
        if let Some(Err(error)) = wanted.as_ref().map(StoredCredentials::header) {
            return Err(GatewayError::Invalid(error.to_string()));
        }
        Ok(wanted)
    }

    /// Whether nothing of what is stored is needed.
    fn says_all(&self) -> bool {
        matches!(self, Self::None) || self.says_secret()
    }

    /// Whether something that is secret is to be stored.
    fn says_secret(&self) -> bool {
        matches!(self, Self::Bearer { token: Some(_) } | Self::Basic { password: Some(_), .. })
    }
}

impl StoredAccount {
    fn of(body: &AccountBody, edition: u32) -> Self {
        Self { name: body.name.clone(), auth: body.auth.shown(), edition, closing: false }
    }

    fn read(resource: &Resource) -> Result<Self> {
        serde_json::from_str(&resource.body).map_err(|_| damaged(resource)("its body"))
    }

    /// A change over the revision that was read.
    fn change(&self, found: &Resource) -> Result<ChangeResource> {
        let (id, kind, body) = (found.id, ACCOUNT.to_owned(), write(self)?);
        Ok(ChangeResource::Put(PutResource::Change { id, kind, expected: Some(found.version), body }))
    }
}

impl Account {
    pub(crate) fn read(resource: &Resource) -> Result<Self> {
        let stored = StoredAccount::read(resource)?;
        Ok(Self {
            id: resource.id,
            code: resource.code.clone(),
            client: resource.client,
            name: stored.name,
            auth: stored.auth,
            created_at: resource.created_at,
            updated_at: resource.updated_at,
            revision: resource.version,
            is_closing: stored.closing,
        })
    }

    /// Whether subscriptions and jobs of this client may name it. One of the anchor level is for no client: who says where a
    /// webhook goes receives its token, and has what it likes signed with its secret.
    pub(crate) fn is_for(&self, client: Option<Tsid>) -> bool {
        self.client == client
    }
}

impl Gateway {
    /// Creates an account, and returns it with its signing secret, which is shown this once.
    ///
    /// # Errors
    /// `Invalid`, `Conflict` when the client has one of this code, or `Unavailable` when there is no key to encrypt with.
    pub async fn create_account(
        &self,
        client: Option<Tsid>,
        code: &str,
        body: &AccountBody,
    ) -> Result<(Account, SecretText)> {
        check_code(code)?;
        check_name(&body.name)?;
        let (contents, secret) = Contents::new(body.auth.stored(None)?);
        let sealed = contents.seal(Place { kind: ACCOUNT_SECRET, client, code }, &self.secret_keys)?;
        let create = |kind: &str, body| {
            let (id, kind, code) = (None, kind.to_owned(), code.to_owned());
            ChangeResource::Put(PutResource::Create { id, kind, client, code, body })
        };
        let items = vec![create(ACCOUNT, write(&StoredAccount::of(body, 0))?), create(ACCOUNT_SECRET, sealed)];
        match self.queue.resources().change(items).await {
            Err(error) if error.kind() == ErrorKind::Conflict => {
                Err(GatewayError::Conflict(format!("there is a service account {code} already: change that one")))
            }
            written => Ok((Account::read(only(&written?)?)?, secret)),
        }
    }

    /// Lists accounts. One that this program cannot read is left out.
    ///
    /// # Errors
    /// The store's.
    pub async fn list_accounts(&self, query: &AccountsQuery) -> Result<Listed<Account>> {
        let limit = query.limit.min(MAX_RESOURCES - 1);
        Ok(Listed::of(self.account_rows(query, limit + 1).await?, limit, Account::read))
    }

    /// Accounts as they are stored, also those that this program cannot read.
    pub(super) async fn account_rows(&self, query: &AccountsQuery, limit: usize) -> Result<Vec<Resource>> {
        let (kind, client, after) = (ACCOUNT.to_owned(), query.client, query.after.clone());
        Ok(self.queue.resources().list(ResourcesQuery { kind, client, after, limit }).await?)
    }

    /// An account by its id, if it belongs to this client (`None`: whoever it belongs to).
    ///
    /// # Errors
    /// `NotFound`, or the store's.
    pub async fn account(&self, id: Tsid, client: Option<Tsid>) -> Result<Account> {
        Account::read(&self.account_row(id, client, Match::Any).await?)
    }

    /// Changes what is said about an account; its code, its client and its signing secret stay, and so do a token and a password
    /// that are not named.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, `Invalid`, or `Unavailable` when what is stored cannot be read or encrypted.
    pub async fn change_account(
        &self,
        id: Tsid,
        client: Option<Tsid>,
        on: Match,
        body: &AccountBody,
    ) -> Result<Account> {
        check_name(&body.name)?;
        self.until_written(|| async move {
            let found = self.account_row(id, client, on).await?;
            let known = StoredAccount::read(&found)?;
            if known.auth == body.auth.shown() && !body.auth.says_secret() {
                let changed = StoredAccount::of(body, known.edition).change(&found)?;
                return Account::read(only(&self.queue.resources().change(vec![changed]).await?)?);
            }
            let secret = self.secret_of(&found, ACCOUNT_SECRET).await?;
            let mut contents = match self.contents(&secret) {
                // All is said anew: so an account recovers from a key that was lost, with a signing secret that is to be rotated.
                Err(_) if body.auth.says_all() => Contents::new(None).0,
                read => read?,
            };
            contents.credentials = body.auth.stored(contents.credentials.take())?;
            let edition = known.edition.wrapping_add(1);
            let items =
                vec![StoredAccount::of(body, edition).change(&found)?, contents.change(&secret, &self.secret_keys)?];
            Account::read(only(&self.queue.resources().change(items).await?)?)
        })
        .await
    }

    /// Gives an account a new signing secret. Those before it sign for `overlap` longer, a day if that is not said.
    ///
    /// # Errors
    /// `NotFound`, `Invalid`, `Conflict` when too many are valid, or `Unavailable` when they cannot be read or encrypted.
    pub async fn rotate_account_secret(
        &self,
        id: Tsid,
        client: Option<Tsid>,
        scheme: Option<SigningScheme>,
        overlap: Option<Duration>,
    ) -> Result<Rotated> {
        self.until_written(|| async move {
            let found = self.account_row(id, client, Match::Any).await?;
            self.rotate_secret_of(&found, ACCOUNT_SECRET, scheme, overlap).await
        })
        .await
    }

    /// Deletes an account that neither a subscription names nor a dispatch job that has not ended, with its secrets. A job that is
    /// under way, or created at the same time, may remain: it waits, and can be cancelled.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, or `Conflict` with what names it.
    pub async fn delete_account(&self, id: Tsid, client: Option<Tsid>, on: Match) -> Result<()> {
        for _ in 0..TRIES {
            let Some(changed) = self.try_delete_account(id, client, on).await? else { return Ok(()) };
            if on != Match::Any {
                return Err(GatewayError::Changed(format!(
                    "the service account {changed} has changed since it was read: read it again and repeat the deletion"
                )));
            }
        }
        Err(GatewayError::Conflict("others keep changing the service account at the same time; try again".into()))
    }

    /// Deletes an account; the code of one that has changed meanwhile.
    async fn try_delete_account(&self, id: Tsid, client: Option<Tsid>, on: Match) -> Result<Option<String>> {
        let closing = self
            .until_written(|| async move {
                let found = self.account_row(id, client, on).await?;
                self.check_nothing_names(&found).await?;
                let known = StoredAccount::read(&found)?;
                if known.closing {
                    // Another one deletes it too: the revision stays, so that either of them succeeds.
                    return Ok(found);
                }
                let closing = StoredAccount { closing: true, ..known }.change(&found)?;
                Ok(only(&self.queue.resources().change(vec![closing]).await?)?.clone())
            })
            .await?;
        if let Err(error) = self.check_nothing_names(&closing).await {
            // Somebody was faster. Whoever changes the account meanwhile opens it again as well.
            let open = StoredAccount { closing: false, ..StoredAccount::read(&closing)? }.change(&closing)?;
            return match self.queue.resources().change(vec![open]).await {
                Err(lost) if lost.kind() != ErrorKind::Conflict => Err(lost.into()),
                _ => Err(error),
            };
        }
        let delete =
            |id, kind: &str, expected| ChangeResource::Delete(DeleteResource { id, kind: kind.into(), expected });
        let mut items = vec![delete(id, ACCOUNT, Some(closing.version))];
        let secret = self.queue.resources().by_code(ACCOUNT_SECRET, closing.client, &closing.code).await?;
        items.extend(secret.map(|secret| delete(secret.id, ACCOUNT_SECRET, None)));
        match self.queue.resources().change(items).await {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(Some(closing.code)),
            deleted => Ok(deleted.map(|_| None)?),
        }
    }

    async fn check_nothing_names(&self, account: &Resource) -> Result<()> {
        self.check_no_subscription_names(account).await?;
        self.check_no_task_names(account).await
    }

    /// Tasks need not expire: those of an account that is gone would wait, and block their groups, for ever.
    async fn check_no_task_names(&self, account: &Resource) -> Result<()> {
        let (desk, mut after) = (self.queue.job_desk(), 0);
        loop {
            let page = desk.lanes(after, LANES).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.id;
            let names =
                |lane: &&JobLane| TaskLane::parse(&lane.lane_type).is_some_and(|of| of.account == Some(account.id));
            for lane in page.iter().filter(names) {
                if !desk.of_lane(lane.id, 1).await?.is_empty() {
                    return Err(GatewayError::Conflict(format!(
                        "dispatch jobs that have not ended name the service account {}: cancel them, or wait for them",
                        account.code
                    )));
                }
            }
        }
    }

    async fn check_no_subscription_names(&self, account: &Resource) -> Result<()> {
        let naming = self.naming(account.client, account.id, |read| read.body.service_account).await?;
        let Some(naming) = naming else { return Ok(()) };
        Err(GatewayError::Conflict(format!(
            "the subscription {} with the id {} names the service account {}: change or delete it first",
            naming.code, naming.id, account.code
        )))
    }

    /// What is to be written with a subscription of this client so that the account which it names is there.
    ///
    /// # Errors
    /// `Invalid` when there is no such account that the client may name.
    pub(super) async fn named_account(&self, client: Option<Tsid>, id: Option<Tsid>) -> Result<Option<ChangeResource>> {
        let Some(id) = id else { return Ok(None) };
        let missing = || GatewayError::Invalid(format!("serviceAccountId: there is no service account {id}"));
        let row = self.queue.resources().get(ACCOUNT, id).await?.ok_or_else(missing)?;
        let found = Account::read(&row)?;
        if !found.is_for(client) {
            return Err(missing());
        }
        if found.is_closing {
            let text =
                format!("serviceAccountId: the service account {} is being deleted: change it to keep it", found.code);
            return Err(GatewayError::Invalid(text));
        }
        Ok(Some(StoredAccount::read(&row)?.change(&row)?))
    }

    async fn account_row(&self, id: Tsid, client: Option<Tsid>, on: Match) -> Result<Resource> {
        let missing = || GatewayError::NotFound(format!("there is no service account {id}"));
        let found = self.queue.resources().get(ACCOUNT, id).await?.ok_or_else(missing)?;
        if client.is_some() && found.client != client {
            return Err(missing());
        }
        on.check(found.version, &format_args!("the service account {}", found.code))?;
        Ok(found)
    }
}
