//! In whose name webhooks are sent: the secrets that sign them and the credentials that go with them, of subscriptions and of
//! service accounts, as the catalogue has them. What is encrypted is opened once, when it is first asked for.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use tidegate::{CatalogueVersion, Resource, Timestamp, Tsid};

use crate::Subscription;
use crate::gateway::Gateway;
use crate::gateway::accounts::{ACCOUNT, ACCOUNT_SECRET, Account};
use crate::gateway::error::Result;
use crate::gateway::kept::{Kept, Kind, Snapshot};
use crate::gateway::secrets::Opened;
use crate::gateway::subscriptions::SIGNING_SECRET;
use crate::secrets::{SecretKeys, Unreadable};
use crate::webhook::credentials::Credentials;
use crate::webhook::signature::SigningSecret;

/// What a webhook is signed with and carries. Nothing by default.
#[derive(Debug, Clone, Default)]
pub(super) struct Authority {
    /// One signature for each of them, the newest first.
    pub(super) secrets: Arc<[SigningSecret]>,
    pub(super) credentials: Option<Credentials>,
}

/// Why a webhook cannot be sent in somebody's name yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoAuthority {
    #[error("the service account {0} is not there")]
    NoAccount(Tsid),
    #[error("the stored secret is not there")]
    NoSecret,
    #[error("the stored secret cannot be used: {0}")]
    Unreadable(#[from] Unreadable),
}

/// The client and the code of a subscription or an account.
type Key = (Option<Tsid>, String);

/// The service accounts by their ids.
#[derive(Debug, Clone, Default)]
struct Accounts(HashMap<Tsid, Arc<Account>>);

/// The secrets of a kind, by client and code.
struct Secrets<K> {
    by_code: HashMap<Key, Arc<Secret>>,
    codes: HashMap<Tsid, Key>,
    of: PhantomData<K>,
}

struct Secret {
    stored: Resource,
    opened: OnceLock<Opened>,
}

/// A kind of secrets.
trait SecretKind: Clone + Default + Send + Sync {
    const NAME: &'static str;
}

#[derive(Debug, Clone, Copy, Default)]
struct OfSubscriptions;

#[derive(Debug, Clone, Copy, Default)]
struct OfAccounts;

/// The caches.
#[derive(Debug, Default)]
pub(super) struct KeptAuthorities {
    accounts: Kept<Accounts>,
    of_subscriptions: Kept<Secrets<OfSubscriptions>>,
    of_accounts: Kept<Secrets<OfAccounts>>,
}

/// All of them as of one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Authorities {
    keys: Option<Arc<SecretKeys>>,
    accounts: Snapshot<Accounts>,
    of_subscriptions: Snapshot<Secrets<OfSubscriptions>>,
    of_accounts: Snapshot<Secrets<OfAccounts>>,
}

impl KeptAuthorities {
    pub(super) async fn at(&self, gateway: &Gateway, version: CatalogueVersion) -> Result<Authorities> {
        let queue = gateway.queue();
        Ok(Authorities {
            keys: Some(Arc::clone(gateway.secret_keys())),
            accounts: self.accounts.at(queue, version).await?,
            of_subscriptions: self.of_subscriptions.at(queue, version).await?,
            of_accounts: self.of_accounts.at(queue, version).await?,
        })
    }
}

impl Authorities {
    /// The signing secrets of a subscription, and the credentials of the account that it names.
    pub(super) fn of_subscription(&self, subscription: &Subscription) -> Result<Authority, NoAuthority> {
        let key = (subscription.client, subscription.code.clone());
        let own = self.open(self.of_subscriptions.by_code.get(&key))?;
        let credentials = match subscription.body.service_account {
            Some(id) => self.of_account(subscription.client, id)?.credentials,
            None => None,
        };
        Ok(Authority { secrets: own.signing(Timestamp::now()), credentials })
    }

    /// The signing secrets and the credentials of an account that this client may name.
    pub(super) fn of_account(&self, client: Option<Tsid>, id: Tsid) -> Result<Authority, NoAuthority> {
        let account = self.accounts.0.get(&id).filter(|account| account.is_for(client));
        let account = account.ok_or(NoAuthority::NoAccount(id))?;
        let own = self.open(self.of_accounts.by_code.get(&(account.client, account.code.clone())))?;
        Ok(Authority { secrets: own.signing(Timestamp::now()), credentials: own.credentials.clone() })
    }

    pub(super) fn is_as(&self, others: &Self) -> bool {
        self.accounts.is_as(&others.accounts)
            && self.of_subscriptions.is_as(&others.of_subscriptions)
            && self.of_accounts.is_as(&others.of_accounts)
    }

    /// What a secret's resource holds. What could not be opened is tried again: its key may have come.
    fn open<'a>(&self, secret: Option<&'a Arc<Secret>>) -> Result<&'a Opened, NoAuthority> {
        let (secret, keys) = secret.zip(self.keys.as_ref()).ok_or(NoAuthority::NoSecret)?;
        if let Some(opened) = secret.opened.get() {
            return Ok(opened);
        }
        let opened = Opened::read(&secret.stored, keys)?;
        Ok(secret.opened.get_or_init(|| opened))
    }
}

impl SecretKind for OfSubscriptions {
    const NAME: &'static str = SIGNING_SECRET;
}

impl SecretKind for OfAccounts {
    const NAME: &'static str = ACCOUNT_SECRET;
}

impl Kind for Accounts {
    const NAME: &'static str = ACCOUNT;

    fn apply(&mut self, resource: &Resource) {
        self.0.remove(&resource.id);
        if resource.deleted {
            return;
        }
        match Account::read(resource) {
            Ok(read) => drop(self.0.insert(resource.id, Arc::new(read))),
            Err(error) => tracing::error!(%error, code = resource.code, "what names a service account waits"),
        }
    }
}

impl<K: SecretKind> Kind for Secrets<K> {
    const NAME: &'static str = K::NAME;

    fn apply(&mut self, resource: &Resource) {
        if let Some(key) = self.codes.remove(&resource.id) {
            self.by_code.remove(&key);
        }
        if resource.deleted {
            return;
        }
        let key = (resource.client, resource.code.clone());
        self.codes.insert(resource.id, key.clone());
        self.by_code.insert(key, Arc::new(Secret { stored: resource.clone(), opened: OnceLock::new() }));
    }
}

impl<K> Clone for Secrets<K> {
    fn clone(&self) -> Self {
        Self { by_code: self.by_code.clone(), codes: self.codes.clone(), of: PhantomData }
    }
}

impl<K> Default for Secrets<K> {
    fn default() -> Self {
        Self { by_code: HashMap::new(), codes: HashMap::new(), of: PhantomData }
    }
}

impl<K> fmt::Debug for Secrets<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("count", &self.by_code.len()).finish()
    }
}
