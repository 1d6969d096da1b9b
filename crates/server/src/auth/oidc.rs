//! Bearer tokens of an OpenID Connect issuer: its keys are fetched and kept, tokens are checked here.
//!
//! Knows signatures and claims; which scope a route needs is not its business.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use tidegate::Tsid;
use tokio::sync::Mutex;

use super::{Caller, Scopes};
use crate::error::{ApiError, Code, Result};
use crate::options::OidcOptions;

/// Keys are fetched anew after this long,
const KEYS_LAST: Duration = Duration::from_secs(300);
/// and for a key that is not known, but not more often than this.
const FETCH_PAUSE: Duration = Duration::from_secs(5);
const FETCH_TIME: Duration = Duration::from_secs(5);
const MAX_DOCUMENT: usize = 1 << 20;
const ALGORITHMS: [Algorithm; 2] = [Algorithm::RS256, Algorithm::ES256];

/// An issuer and what is known of its keys.
#[derive(Debug)]
pub(crate) struct Issuer {
    options: OidcOptions,
    http: reqwest::Client,
    keys: Mutex<Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    set: Option<Arc<JwkSet>>,
    fetched: Option<Instant>,
    tried: Option<Instant>,
}

/// The claims that matter here. Issuer, audience and times are checked by the decoder.
#[derive(Debug, Deserialize)]
struct Claims {
    sub: Option<String>,
    /// Scopes as one text (RFC 8693) …
    scope: Option<OneOrMany>,
    /// … or as a list.
    scp: Option<OneOrMany>,
    /// The tenant; without it the token is of the anchor level.
    tidegate_client: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn words(&self) -> Vec<&str> {
        match self {
            Self::One(text) => text.split_whitespace().collect(),
            Self::Many(list) => list.iter().flat_map(|text| text.split_whitespace()).collect(),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

impl Issuer {
    pub(crate) fn new(options: OidcOptions) -> Result<Self, String> {
        if options.issuer.is_empty() || options.audience.is_empty() {
            return Err("an OIDC issuer needs both its address (auth.oidc.issuer) and an audience".into());
        }
        let http = reqwest::Client::builder()
            .timeout(FETCH_TIME)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|error| format!("the HTTP client for the OIDC issuer cannot be made: {error}"))?;
        Ok(Self { options, http, keys: Mutex::default() })
    }

    /// Who a token stands for.
    pub(crate) async fn check(&self, token: &str) -> Result<Caller> {
        let refuse = |why: &str| ApiError::new(Code::Unauthorized, format!("the token is not accepted: {why}"));
        let header = decode_header(token).map_err(|_| refuse("it is not a JSON web token"))?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(refuse("it must be signed with RS256 or ES256"));
        }
        let key = self.key(header.kid.as_deref(), header.alg).await?;
        let mut validation = Validation::new(header.alg);
        validation.set_issuer(&[&self.options.issuer]);
        validation.set_audience(&[&self.options.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.validate_nbf = true;
        let claims = decode::<Claims>(token, &key, &validation).map_err(|error| refuse(&error.to_string()))?.claims;
        let mut scopes = Scopes::default();
        for list in [&claims.scope, &claims.scp].into_iter().flatten() {
            for word in list.words() {
                scopes.add(word.strip_prefix("tidegate:").unwrap_or(word));
            }
        }
        let client = claims.tidegate_client.as_deref().map(str::parse::<Tsid>).transpose();
        let client = client.map_err(|_| refuse("tidegate_client is not a client id"))?;
        Ok(Caller { name: claims.sub.unwrap_or_else(|| "token".into()), client, scopes })
    }

    async fn key(&self, id: Option<&str>, algorithm: Algorithm) -> Result<DecodingKey> {
        let mut keys = self.keys.lock().await;
        let fresh = keys.fetched.is_some_and(|at| at.elapsed() < KEYS_LAST);
        let known = keys.set.as_ref().and_then(|set| find(set, id, algorithm));
        if let (Some(key), true) = (&known, fresh) {
            return Ok(key.clone());
        }
        if keys.tried.is_none_or(|at| at.elapsed() >= FETCH_PAUSE) {
            keys.tried = Some(Instant::now());
            match self.fetch().await {
                Ok(set) => {
                    keys.set = Some(Arc::new(set));
                    keys.fetched = Some(Instant::now());
                }
                Err(error) => tracing::warn!(issuer = self.options.issuer, error, "the issuer's keys were not fetched"),
            }
        }
        let Some(set) = &keys.set else {
            return Err(ApiError::new(Code::Unavailable, "the OIDC issuer's keys cannot be fetched; try again"));
        };
        find(set, id, algorithm)
            .ok_or_else(|| ApiError::new(Code::Unauthorized, "the token is signed with a key the issuer does not show"))
    }

    async fn fetch(&self) -> Result<JwkSet, String> {
        let issuer = self.options.issuer.trim_end_matches('/');
        let found: Discovery = self.get(&format!("{issuer}/.well-known/openid-configuration")).await?;
        if found.issuer != self.options.issuer {
            return Err(format!("the issuer calls itself {:?}", found.issuer));
        }
        self.get(&found.jwks_uri).await
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, address: &str) -> Result<T, String> {
        let told = |error: reqwest::Error| error.to_string();
        let mut response = self.http.get(address).send().await.and_then(|r| r.error_for_status()).map_err(told)?;
        let mut document = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(told)? {
            if document.len() + chunk.len() > MAX_DOCUMENT {
                return Err(format!("{address} answers more than {MAX_DOCUMENT} bytes"));
            }
            document.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&document).map_err(|error| format!("{address}: {error}"))
    }
}

fn find(set: &JwkSet, id: Option<&str>, algorithm: Algorithm) -> Option<DecodingKey> {
    let fits = |key: &&jsonwebtoken::jwk::Jwk| match (&key.algorithm, algorithm) {
        (jsonwebtoken::jwk::AlgorithmParameters::RSA(_), Algorithm::RS256) => true,
        (jsonwebtoken::jwk::AlgorithmParameters::EllipticCurve(curve), Algorithm::ES256) => {
            curve.curve == jsonwebtoken::jwk::EllipticCurve::P256
        }
        _ => false,
    };
    let key = match id {
        Some(id) => set.find(id).filter(fits)?,
        None => set.keys.iter().find(fits)?,
    };
    DecodingKey::from_jwk(key).ok()
}
