//! Bearer tokens of an OpenID Connect issuer: fetches and caches its keys, and checks tokens against them.
//!
//! Knows signatures and claims, not which scope a route needs. Keys are fetched by a background task while the cached
//! ones are still used, so a request waits for the issuer only when no cached key fits its token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use tidegate::Tsid;
use tokio::sync::watch;

use crate::access::Caller;
use crate::error::{ApiError, Code, Result};
use crate::options::OidcOptions;
use crate::scope::Scopes;

/// How long fetched keys are used while fetching newer ones fails.
const KEYS_LAST: Duration = Duration::from_secs(24 * 3600);
/// The least time between two fetches of the keys, whatever key ids tokens name.
const FETCH_PAUSE: Duration = Duration::from_secs(5);
/// How long a fetch may take, and how long a request waits for it.
const FETCH_TIME: Duration = Duration::from_secs(5);
/// How long a key id that the issuer does not publish is refused without another fetch.
const UNKNOWN_FOR: Duration = Duration::from_secs(30);
/// Unknown key ids that are cached.
const MAX_UNKNOWN: usize = 1_000;
/// Bytes of a key id; longer ones are refused.
const MAX_KEY_ID: usize = 256;
/// Bytes of a document of the issuer.
const MAX_DOCUMENT: usize = 1 << 20;
const ALGORITHMS: [Algorithm; 2] = [Algorithm::RS256, Algorithm::ES256];
/// Prefix of Tidegate's scopes in a token, so that another application's `admin` grants nothing here.
const SCOPE_PREFIX: &str = "tidegate:";

/// An issuer and its cached keys.
#[derive(Debug)]
pub(crate) struct Issuer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: OidcOptions,
    http: reqwest::Client,
    keys: Mutex<Keys>,
    /// The number of fetches that have ended; it changes with each.
    fetches: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Keys {
    /// The keys, and when they were fetched.
    set: Option<(Arc<JwkSet>, Instant)>,
    /// When the last fetch began.
    tried: Option<Instant>,
    fetching: bool,
    /// Key ids that the issuer does not publish, and since when that is known.
    unknown: HashMap<String, Instant>,
}

/// The result of looking for a token's key among the cached keys.
enum Found {
    Key(Box<DecodingKey>),
    /// Keys are cached, but not this one.
    Missing,
    /// No keys were fetched, or too long ago.
    NoKeys,
}

impl Keys {
    fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Found {
        match self.set.as_ref().filter(|(_, at)| at.elapsed() < KEYS_LAST) {
            Some((set, _)) => find(set, id, algorithm).map_or(Found::Missing, |key| Found::Key(Box::new(key))),
            None => Found::NoKeys,
        }
    }

    fn is_unknown(&self, id: Option<&str>) -> bool {
        id.and_then(|id| self.unknown.get(id)).is_some_and(|since| since.elapsed() < UNKNOWN_FOR)
    }

    /// Caches that the issuer does not publish a key.
    fn add_unknown(&mut self, id: &str) {
        if self.unknown.len() >= MAX_UNKNOWN {
            self.unknown.retain(|_, since| since.elapsed() < UNKNOWN_FOR);
        }
        if self.unknown.len() < MAX_UNKNOWN {
            self.unknown.insert(id.to_owned(), Instant::now());
        }
    }
}

/// The claims that matter here. Issuer, audience and times are checked by the decoder.
#[derive(Debug, Deserialize)]
struct Claims {
    sub: Option<String>,
    /// Scopes as one text (RFC 8693) …
    scope: Option<OneOrMany>,
    /// … or as a list.
    scp: Option<OneOrMany>,
    /// The client. A token without it is unscoped: refused, unless `allow_unscoped` is set.
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
            return Err("an OIDC issuer needs both auth.oidc.issuer and auth.oidc.audience".into());
        }
        let http = reqwest::Client::builder()
            .timeout(FETCH_TIME)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|error| format!("creating the HTTP client for the OIDC issuer failed: {error}"))?;
        Ok(Self(Arc::new(Inner { options, http, keys: Mutex::default(), fetches: watch::Sender::new(0) })))
    }

    /// The caller that a token belongs to. 401 when the token is not accepted.
    pub(crate) async fn check(&self, token: &str) -> Result<Caller> {
        let options = &self.0.options;
        let header = decode_header(token).map_err(|_| refuse("it is not a JSON web token"))?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(refuse("it must be signed with RS256 or ES256"));
        }
        let key = self.key(header.kid.as_deref(), header.alg).await?;
        let mut validation = Validation::new(header.alg);
        validation.set_issuer(&[&options.issuer]);
        validation.set_audience(&[&options.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.validate_nbf = true;
        let claims = decode::<Claims>(token, &key, &validation).map_err(|error| refuse(&error.to_string()))?.claims;
        let mut scopes = Scopes::default();
        for list in [&claims.scope, &claims.scp].into_iter().flatten() {
            list.words()
                .into_iter()
                .filter_map(|word| word.strip_prefix(SCOPE_PREFIX))
                .for_each(|word| scopes.add(word));
        }
        let client = claims.tidegate_client.as_deref().map(str::parse::<Tsid>).transpose();
        let client = client.map_err(|_| refuse("tidegate_client is not a client id"))?;
        if client.is_none() && !options.allow_unscoped {
            return Err(refuse(
                "it names no client: have the issuer add the claim tidegate_client, or set auth.oidc.allow_unscoped",
            ));
        }
        Ok(Caller::new(claims.sub.unwrap_or_else(|| "token".into()), client, scopes))
    }

    /// The key that a token is signed with. Waits for a fetch only when no cached key fits.
    async fn key(&self, id: Option<&str>, algorithm: Algorithm) -> Result<DecodingKey> {
        let unknown =
            || ApiError::new(Code::Unauthorized, "the token is signed with a key that the issuer does not publish");
        if id.is_some_and(|id| id.len() > MAX_KEY_ID) {
            return Err(unknown());
        }
        let mut fetched = self.0.fetches.subscribe();
        {
            let mut keys = self.0.keys();
            let found = keys.find(id, algorithm);
            let is_stale = keys.set.as_ref().is_none_or(|(_, at)| at.elapsed() >= self.0.options.refresh_after);
            match found {
                Found::Key(key) => {
                    if is_stale {
                        self.start_fetch(&mut keys);
                    }
                    return Ok(*key);
                }
                Found::Missing if keys.is_unknown(id) => return Err(unknown()),
                Found::Missing | Found::NoKeys => self.start_fetch(&mut keys),
            }
            if !keys.fetching {
                return Err(if matches!(found, Found::NoKeys) { no_keys() } else { unknown() });
            }
        }
        // The fetch has the same limit, but its task may report late.
        let _ = tokio::time::timeout(FETCH_TIME, fetched.changed()).await;
        let mut keys = self.0.keys();
        match keys.find(id, algorithm) {
            Found::Key(key) => Ok(*key),
            Found::NoKeys => Err(no_keys()),
            Found::Missing => {
                if let Some(id) = id.filter(|_| !keys.fetching) {
                    keys.add_unknown(id);
                }
                Err(unknown())
            }
        }
    }

    /// Starts a fetch of the keys, unless one is running or began less than [`FETCH_PAUSE`] ago.
    fn start_fetch(&self, keys: &mut Keys) {
        if keys.fetching || keys.tried.is_some_and(|at| at.elapsed() < FETCH_PAUSE) {
            return;
        }
        (keys.fetching, keys.tried) = (true, Some(Instant::now()));
        let fetching = Fetching(Arc::clone(&self.0));
        tokio::spawn(async move {
            let issuer = &fetching.0;
            let late = |_| Err(format!("it did not answer within {} s", FETCH_TIME.as_secs()));
            match tokio::time::timeout(FETCH_TIME, issuer.fetch()).await.unwrap_or_else(late) {
                Ok(set) => {
                    let mut keys = issuer.keys();
                    keys.set = Some((Arc::new(set), Instant::now()));
                    keys.unknown.clear();
                }
                Err(error) => tracing::warn!(
                    issuer = issuer.options.issuer,
                    error,
                    "fetching the keys of the OIDC issuer failed: keys fetched before are used for up to 24 hours"
                ),
            }
        });
    }
}

/// A running fetch. Dropping it, also by a panic, wakes the requests that wait for the fetch.
struct Fetching(Arc<Inner>);

impl Drop for Fetching {
    fn drop(&mut self) {
        self.0.keys().fetching = false;
        self.0.fetches.send_modify(|count| *count += 1);
    }
}

fn refuse(why: &str) -> ApiError {
    ApiError::new(Code::Unauthorized, format!("the token is not accepted: {why}"))
}

fn no_keys() -> ApiError {
    ApiError::new(Code::Unavailable, "the OIDC issuer's keys cannot be fetched; try again")
}

impl Inner {
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(&self) -> Result<JwkSet, String> {
        let issuer = self.options.issuer.trim_end_matches('/');
        let found: Discovery = self.get(&format!("{issuer}/.well-known/openid-configuration")).await?;
        if found.issuer != self.options.issuer {
            return Err(format!("the discovery document names another issuer: {:?}", found.issuer));
        }
        self.get(&found.jwks_uri).await
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, address: &str) -> Result<T, String> {
        let text = |error: reqwest::Error| error.to_string();
        let mut response = self.http.get(address).send().await.and_then(|r| r.error_for_status()).map_err(text)?;
        let mut document = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(text)? {
            if document.len() + chunk.len() > MAX_DOCUMENT {
                return Err(format!("{address} answered more than {MAX_DOCUMENT} bytes"));
            }
            document.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&document).map_err(|error| format!("{address}: {error}"))
    }
}

/// The key with this id, or without an id the first one that fits the algorithm.
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
