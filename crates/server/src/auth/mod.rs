//! Authentication: finds out by API keys and OIDC tokens who a caller is. What the caller may do then is not decided
//! here.

mod keys;
mod oidc;
mod open;

use std::sync::Arc;

use http::header;
use http::request::Parts;
use tidegate::EventQueue;

pub use keys::{KeyInfo, Keyring, NewKey};

use crate::access::Caller;
use crate::error::{ApiError, Code, Result};
use crate::options::AuthOptions;
use oidc::Issuer;
use open::OpenHosts;

/// Checks the credentials of requests.
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

    /// The caller that the credentials of a request belong to. 401 when they are missing or not valid.
    pub(crate) async fn caller(&self, parts: &Parts) -> Result<Caller> {
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
