//! Extractors: JSON bodies, query parameters, ids in paths. Every rejection is an [`ApiError`].

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use http::request::Parts;
use serde::de::DeserializeOwned;
use tidegate::Tsid;
use tidegate_dispatch::Match;

use crate::access::NamedEntry;
use crate::body::{self, BodyLimits};
use crate::body_budget::Share;
use crate::error::{ApiError, Code, Result};
use crate::parameters::entry_id;
use crate::percent::decode;
use crate::service::Service;

/// A JSON body with at most one event, bounded by the limit for single events.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

/// A JSON body with many events, bounded by the limit for batches.
#[derive(Debug)]
pub(crate) struct BatchBody<T>(pub(crate) T);

/// A JSON body that may be empty; `T::default()` then.
#[derive(Debug)]
pub(crate) struct OptionalBody<T>(pub(crate) T);

/// Which limit applies to a body.
enum Size {
    Single,
    Batch,
}

/// A body of any type, bounded by the limit for documents that are validated, with its content type.
#[derive(Debug)]
pub(crate) struct AnyBody {
    pub(crate) content_type: Option<String>,
    pub(crate) bytes: bytes::Bytes,
}

impl FromRequest<Arc<Service>> for AnyBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, service: &Arc<Service>) -> Result<Self> {
        let content_type = request.headers().get(http::header::CONTENT_TYPE);
        let content_type = content_type.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let limits = &service.options.limits;
        let limits = BodyLimits {
            bytes: tidegate_dispatch::DOCUMENT_BYTES,
            depth: limits.json_depth,
            time: limits.body_time,
            together: service.bodies.most(),
        };
        let (parts, body) = request.into_parts();
        let bytes = body::read_any(&parts.headers, body, limits, &share(&parts, service)).await?;
        Ok(Self { content_type, bytes })
    }
}

/// A body with events in any form, bounded by the limit for batches; it is not read yet.
#[derive(Debug)]
pub(crate) struct EventsBody(pub(crate) bytes::Bytes);

impl FromRequest<Arc<Service>> for EventsBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, service: &Arc<Service>) -> Result<Self> {
        let limits = &service.options.limits;
        let limits = BodyLimits {
            bytes: limits.batch_bytes,
            depth: limits.json_depth,
            time: limits.body_time,
            together: service.bodies.most_of_batches(),
        };
        let (parts, body) = request.into_parts();
        Ok(Self(body::read_any(&parts.headers, body, limits, &share(&parts, service)).await?))
    }
}

/// What a change is made on: the entity tag in `If-Match`, if there is one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IfMatch(pub(crate) Match);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let mut values = parts.headers.get_all(http::header::IF_MATCH).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return match parts.headers.contains_key(http::header::IF_MATCH) {
                true => Err(ApiError::invalid("If-Match must name one entity tag")),
                false => Ok(Self(Match::Any)),
            };
        };
        if value.as_bytes() == b"*" {
            return Ok(Self(Match::Any));
        }
        let tag = value.to_str().ok().and_then(|text| text.strip_prefix('"')?.strip_suffix('"'));
        let tag = tag.filter(|tag| !tag.contains('"'));
        // A tag that no resource can have fits none; tags are compared letter by letter.
        let revision = tag.and_then(|tag| tag.parse::<i64>().ok().filter(|revision| revision.to_string() == tag));
        let revision = revision.unwrap_or(i64::MIN);
        match tag {
            Some(_) => Ok(Self(Match::Is(revision))),
            None => Err(ApiError::invalid("If-Match must be one entity tag in quotation marks as ETag had it, or *")),
        }
    }
}

/// The id of an event type or a schema in a path, and whatever follows it.
pub(crate) fn tsid(what: &str, text: &str) -> Result<Tsid> {
    let shown: String = text.chars().take(40).collect();
    text.parse().map_err(|_| ApiError::new(Code::NotFound, format!("there is no {what} {shown}")))
}

fn share(parts: &Parts, service: &Service) -> Arc<Share> {
    let share = parts.extensions.get::<Arc<Share>>().cloned();
    share.unwrap_or_else(|| Arc::new(Share::new(&service.bodies)))
}

async fn read(request: Request, service: &Service, size: Size) -> Result<bytes::Bytes> {
    let limits = &service.options.limits;
    let (bytes, together) = match size {
        Size::Single => (limits.body_bytes(), service.bodies.most()),
        Size::Batch => (limits.batch_bytes, service.bodies.most_of_batches()),
    };
    let limits = BodyLimits { bytes, depth: limits.json_depth, time: limits.body_time, together };
    let (parts, body) = request.into_parts();
    body::read(&parts.headers, body, limits, &share(&parts, service)).await
}

impl<T: DeserializeOwned> FromRequest<Arc<Service>> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, service: &Arc<Service>) -> Result<Self> {
        Ok(Self(body::parse(&read(request, service, Size::Single).await?)?))
    }
}

impl<T: DeserializeOwned> FromRequest<Arc<Service>> for BatchBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, service: &Arc<Service>) -> Result<Self> {
        Ok(Self(body::parse(&read(request, service, Size::Batch).await?)?))
    }
}

impl<T: DeserializeOwned + Default> FromRequest<Arc<Service>> for OptionalBody<T> {
    type Rejection = ApiError;

    async fn from_request(mut request: Request, service: &Arc<Service>) -> Result<Self> {
        if http_body::Body::is_end_stream(request.body()) {
            // curl sets application/x-www-form-urlencoded even for an empty body.
            request.headers_mut().remove(http::header::CONTENT_TYPE);
        }
        let bytes = read(request, service, Size::Single).await?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self(T::default()));
        }
        Ok(Self(body::parse(&bytes)?))
    }
}

/// Query parameters. A parameter given several times becomes the comma-separated list of its values; an empty one
/// counts as absent. All are text; [`parameters`](crate::parameters) parses them.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let query = parts.uri.query().unwrap_or_default();
        let mut merged: BTreeMap<String, String> = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            // No text that is looked for has one, and PostgreSQL takes none.
            if name.contains('\0') || value.contains('\0') {
                return Err(ApiError::invalid(format!("{name:?} must not have a NUL character")));
            }
            let slot = merged.entry(name).or_default();
            if !slot.is_empty() {
                slot.push(',');
            }
            slot.push_str(&value);
        }
        merged.retain(|_, value| !value.is_empty());
        let fields = merged.into_iter().map(|(name, value)| (name, value.into()));
        let value = serde_json::from_value(serde_json::Value::Object(fields.collect()));
        let value = value.map_err(|error| ApiError::invalid(format!("the query is invalid: {error}")))?;
        Ok(Self(value))
    }
}

/// The id of an event in the path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventId(pub(crate) NamedEntry);

impl<S: Send + Sync> FromRequestParts<S> for EventId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::new(Code::InvalidId, error.body_text()))?;
        Ok(Self(entry_id(&text)?))
    }
}

/// Text in a path, for instance the name of a queue.
#[derive(Debug, Clone)]
pub(crate) struct PathText(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for PathText {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::invalid(error.body_text()))?;
        Ok(Self(text))
    }
}

/// Two texts in a path, for instance the name of a projection and a key.
#[derive(Debug, Clone)]
pub(crate) struct PathTexts(pub(crate) String, pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for PathTexts {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let Path((first, second)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::invalid(error.body_text()))?;
        Ok(Self(first, second))
    }
}
