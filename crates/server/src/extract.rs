//! From a request to values: JSON bodies, query parameters, ids in paths. Every refusal is an [`ApiError`].

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use http::request::Parts;
use serde::de::DeserializeOwned;
use tidegate::EntryId;

use crate::bodies::Share;
use crate::body::{self, BodyLimits};
use crate::error::{ApiError, Code, Result};
use crate::service::Service;

/// The largest page.
pub(crate) const MAX_LIMIT: u64 = 1_000;

/// A JSON body with one event, or less.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

/// A JSON body with many events.
#[derive(Debug)]
pub(crate) struct BatchBody<T>(pub(crate) T);

/// A JSON body that may be left out.
#[derive(Debug)]
pub(crate) struct OptionalBody<T>(pub(crate) T);

/// How large a body may be.
enum Size {
    Single,
    Batch,
}

async fn read(request: Request, service: &Service, size: Size) -> Result<bytes::Bytes> {
    let limits = &service.options.limits;
    let (bytes, together) = match size {
        Size::Single => (limits.body_bytes(), service.bodies.most()),
        Size::Batch => (limits.batch_bytes, service.bodies.most_of_batches()),
    };
    let limits = BodyLimits { bytes, depth: limits.json_depth, time: limits.body_time, together };
    let (parts, body) = request.into_parts();
    let share = parts.extensions.get::<Arc<Share>>().cloned();
    let share = share.unwrap_or_else(|| Arc::new(Share::new(&service.bodies)));
    body::read(&parts.headers, body, limits, &share).await
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
            // curl says application/x-www-form-urlencoded even when it sends nothing.
            request.headers_mut().remove(http::header::CONTENT_TYPE);
        }
        let bytes = read(request, service, Size::Single).await?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self(T::default()));
        }
        Ok(Self(body::parse(&bytes)?))
    }
}

/// Query parameters. A parameter given several times is the comma-separated list of its values; all are text here, and
/// the helpers below read numbers and moments out of them.
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
            let slot = merged.entry(name).or_default();
            if !slot.is_empty() {
                slot.push(',');
            }
            slot.push_str(&value);
        }
        merged.retain(|_, value| !value.is_empty());
        let fields = merged.into_iter().map(|(name, value)| (name, value.into()));
        let value = serde_json::from_value(serde_json::Value::Object(fields.collect()));
        let value = value.map_err(|error| ApiError::invalid(format!("the query cannot be read: {error}")))?;
        Ok(Self(value))
    }
}

/// Percent-decodes one part of a query.
pub(crate) fn decode(text: &str) -> Result<String> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |offset: usize| bytes.get(at + offset).and_then(|byte| (*byte as char).to_digit(16));
        match bytes[at] {
            b'+' => decoded.push(b' '),
            b'%' => {
                let (Some(high), Some(low)) = (hex(1), hex(2)) else {
                    return Err(ApiError::invalid("the query has a % that is not followed by two hexadecimal digits"));
                };
                decoded.push((high * 16 + low) as u8);
                at += 2;
            }
            byte => decoded.push(byte),
        }
        at += 1;
    }
    String::from_utf8(decoded).map_err(|_| ApiError::invalid("the query is not UTF-8"))
}

/// The number of an event in the path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventId(pub(crate) EntryId);

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

/// Reads an event's number.
pub(crate) fn entry_id(text: &str) -> Result<EntryId> {
    text.parse::<i64>().ok().and_then(|raw| EntryId::new(raw).ok()).ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        ApiError::new(Code::InvalidId, format!("{shown:?} is not an event id: it must be between 1 and 2^53 - 1"))
    })
}

/// Reads a whole number within bounds.
pub(crate) fn number(name: &str, text: Option<&str>, least: u64, most: u64) -> Result<Option<u64>> {
    let Some(text) = text else { return Ok(None) };
    match text.trim().parse::<u64>() {
        Ok(value) if (least..=most).contains(&value) => Ok(Some(value)),
        _ => {
            let shown: String = text.chars().take(40).collect();
            Err(ApiError::invalid(format!("{name} {shown:?} does not fit: it must be a number from {least} to {most}")))
        }
    }
}

/// Reads a yes or a no.
pub(crate) fn flag(name: &str, text: Option<&str>) -> Result<bool> {
    match text.unwrap_or("false") {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        other => {
            let shown: String = other.chars().take(40).collect();
            Err(ApiError::invalid(format!("{name} {shown:?} does not fit: it must be true or false")))
        }
    }
}

/// Reads a moment.
pub(crate) fn moment(name: &str, text: Option<&str>) -> Result<Option<tidegate::Timestamp>> {
    let Some(text) = text else { return Ok(None) };
    let in_range = |at: &tidegate::Timestamp| (0..253_370_764_800).contains(&at.as_second());
    match text.parse::<tidegate::Timestamp>() {
        Ok(at) if in_range(&at) => Ok(Some(at)),
        _ => {
            let shown: String = text.chars().take(40).collect();
            Err(ApiError::invalid(format!(
                "{name} {shown:?} does not fit: it must be a moment after 1970 in RFC 3339, such as 2030-01-31T10:30:00Z"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_strictly() {
        assert_eq!(decode("a%20b+c").unwrap(), "a b c");
        assert_eq!(decode("%C3%A4").unwrap(), "ä");
        for bad in ["%", "%2", "%zz", "%ff%fe", "%c3"] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_are_numbers_below_2_to_the_53() {
        assert_eq!(entry_id("1001").unwrap().get(), 1001);
        for bad in ["0", "-1", "abc", "", "1.5", "9007199254740992", "9223372036854775808", "1e3", " 1"] {
            assert!(entry_id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_moments_and_flags_have_bounds() {
        assert_eq!(number("limit", Some("10"), 1, 100).unwrap(), Some(10));
        for bad in ["-1", "0", "101", "99999999999999999999999", "x"] {
            assert!(number("limit", Some(bad), 1, 100).is_err(), "{bad}");
        }
        assert!(flag("include_logs", Some("true")).unwrap());
        assert!(flag("include_logs", Some("maybe")).is_err());
        assert!(moment("from", Some("2025-12-24T10:30:00Z")).unwrap().is_some());
        for bad in ["yesterday", "-009999-01-01T00:00:00Z", "1960-01-01T00:00:00Z"] {
            assert!(moment("from", Some(bad)).is_err(), "{bad}");
        }
    }
}
