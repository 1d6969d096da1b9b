//! Who calls: API keys and OIDC tokens, scopes, clients.
//!
//! Handlers name the scope they need by the type they extract; they never see credentials.

mod keys;
mod oidc;
mod open;

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::header;
use http::request::Parts;
use serde::{Deserialize, Serialize};
use tidegate::{EventQueue, Tsid};
use utoipa::ToSchema;

pub use keys::{KeyInfo, Keyring, NewKey};

use crate::error::{ApiError, Code, Result};
use crate::options::AuthOptions;
use crate::service::Service;
use oidc::Issuer;
use open::OpenHosts;

/// What a caller may do. `manage` includes `read`, `admin` everything; `publish` and `consume` read nothing but what they
/// publish and claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Publish events.
    Publish,
    /// Claim events and report on them.
    Consume,
    /// Look at events, lists, queues and projections.
    Read,
    /// Look after queues, workers and dead letters.
    Manage,
    /// Everything, resets and keys included.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 5] = [Self::Publish, Self::Consume, Self::Read, Self::Manage, Self::Admin];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Consume => "consume",
            Self::Read => "read",
            Self::Manage => "manage",
            Self::Admin => "admin",
        }
    }
}

impl std::str::FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is not a scope: use publish, consume, read, manage or admin"))
    }
}

/// A set of scopes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Scope::ALL.into_iter().collect()
    }

    /// Adds a scope by its name; other words are not ours.
    pub(crate) fn add(&mut self, word: &str) {
        if let Ok(scope) = word.parse::<Scope>() {
            self.0 |= 1 << scope as u8;
        }
    }

    /// Whether the scope is in it, or one that includes it.
    #[must_use]
    pub fn allow(self, scope: Scope) -> bool {
        let includes = |other: Scope| self.0 & (1 << other as u8) != 0;
        includes(scope) || includes(Scope::Admin) || (scope == Scope::Read && includes(Scope::Manage))
    }

    /// Those in it.
    #[must_use]
    pub fn list(self) -> Vec<Scope> {
        Scope::ALL.into_iter().filter(|scope| self.0 & (1 << *scope as u8) != 0).collect()
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |set, scope| set | (1 << scope as u8)))
    }
}

/// Who calls.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// For logs.
    pub(crate) name: String,
    /// The tenant; `None` is the anchor level, which sees everything.
    pub(crate) client: Option<Tsid>,
    pub(crate) scopes: Scopes,
}

impl Caller {
    fn anybody() -> Self {
        Self { name: "anybody".into(), client: None, scopes: Scopes::all() }
    }

    fn need(self, scope: Option<Scope>) -> Result<Self> {
        let Some(scope) = scope else { return Ok(self) };
        if self.scopes.allow(scope) {
            return Ok(self);
        }
        tracing::debug!(caller = self.name, scope = scope.as_str(), "refused");
        let text = format!("this needs the scope {}, which these credentials do not have", scope.as_str());
        Err(ApiError::new(Code::Forbidden, text))
    }

    /// What concerns the whole database is not a client's business.
    pub(crate) fn need_anchor(&self) -> Result<()> {
        match self.client {
            None => Ok(()),
            Some(_) => Err(ApiError::new(Code::Forbidden, "this needs credentials that belong to no client")),
        }
    }
}

/// Checks credentials.
#[derive(Debug)]
pub(crate) struct Authenticator {
    required: bool,
    open: OpenHosts,
    keys: Arc<Keyring>,
    issuer: Option<Issuer>,
}

impl Authenticator {
    pub(crate) fn new(options: &AuthOptions, queue: &EventQueue) -> Result<Self, String> {
        let issuer = options.oidc.clone().map(Issuer::new).transpose()?;
        let open = OpenHosts::new(&options.hosts)?;
        Ok(Self { required: options.required, open, keys: Arc::new(Keyring::new(queue.clone())), issuer })
    }

    pub(crate) fn keys(&self) -> &Arc<Keyring> {
        &self.keys
    }

    async fn caller(&self, parts: &Parts) -> Result<Caller> {
        if !self.required {
            return self.open.check(parts).map(|()| Caller::anybody());
        }
        let missing = || ApiError::new(Code::Unauthorized, "send Authorization: Bearer with an API key or a token");
        let header = parts.headers.get(header::AUTHORIZATION).ok_or_else(missing)?;
        let text = header.to_str().map_err(|_| missing())?;
        let (scheme, token) = text.split_once(' ').ok_or_else(missing)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(missing());
        }
        let token = token.trim();
        if keys::looks_like_key(token) {
            return self.keys.check(token).await;
        }
        match &self.issuer {
            Some(issuer) => issuer.check(token).await,
            None => Err(ApiError::new(Code::Unauthorized, "the key is not known")),
        }
    }
}

macro_rules! callers {
    ($($(#[$doc:meta])* $name:ident needs $scope:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name(pub(crate) Caller);

        impl FromRequestParts<Arc<Service>> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self> {
                Ok(Self(service.auth.caller(parts).await?.need($scope)?))
            }
        }
    )*};
}

callers! {
    /// Somebody who is known.
    Known needs None;
    /// Somebody who may publish.
    Publisher needs Some(Scope::Publish);
    /// Somebody who may claim.
    Worker needs Some(Scope::Consume);
    /// Somebody who may look at events and lists.
    Reader needs Some(Scope::Read);
    /// Somebody who may look after queues.
    Manager needs Some(Scope::Manage);
    /// Somebody who may do everything.
    Admin needs Some(Scope::Admin);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_include_what_they_say_and_no_more() {
        let admin: Scopes = [Scope::Admin].into_iter().collect();
        let publish: Scopes = [Scope::Publish].into_iter().collect();
        let manage: Scopes = [Scope::Manage].into_iter().collect();
        for scope in Scope::ALL {
            assert!(admin.allow(scope));
            assert_eq!(publish.allow(scope), scope == Scope::Publish);
            assert_eq!(manage.allow(scope), matches!(scope, Scope::Manage | Scope::Read));
        }
        assert_eq!(Scopes::all().list(), Scope::ALL);
    }

    #[test]
    fn words_that_are_no_scopes_add_nothing() {
        let mut scopes = Scopes::default();
        for word in ["openid", "ADMIN", "", "root"] {
            scopes.add(word);
        }
        assert_eq!(scopes, Scopes::default());
        scopes.add("consume");
        assert!(scopes.allow(Scope::Consume));
    }
}
