//! Reads request bodies within bounds: size (each and all together), time, depth and encoding. Knows bytes and JSON,
//! but no resources.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use crate::body_budget::Share;
use crate::error::{ApiError, Code, Result};
use crate::{unknown_fields, wrong_type};

/// Bytes of a refused body that are still read and discarded, so that its sender gets to read the answer.
const DRAIN: usize = 4 << 20;

/// Bounds of a body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    pub(crate) bytes: usize,
    pub(crate) depth: usize,
    pub(crate) time: Duration,
    /// This body is refused when all bodies together would take more bytes than this.
    pub(crate) together: usize,
}

/// Reads a whole body and checks that it is UTF-8 and within `limits`. It is not parsed yet.
pub(crate) async fn read(headers: &HeaderMap, body: Body, limits: BodyLimits, share: &Share) -> Result<Bytes> {
    check_type(headers)?;
    let bytes = read_any(headers, body, limits, share).await?;
    if let Err(error) = std::str::from_utf8(&bytes) {
        let at = error.valid_up_to();
        return Err(ApiError::new(Code::InvalidJson, format!("the body is not UTF-8 from byte {at} on")));
    }
    check_depth(&bytes, limits.depth)?;
    Ok(bytes)
}

/// Reads a whole body within `limits`, whatever it is.
pub(crate) async fn read_any(headers: &HeaderMap, body: Body, limits: BodyLimits, share: &Share) -> Result<Bytes> {
    check_encoding(headers)?;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    tokio::time::timeout(limits.time, collect(body, limits, share, announced)).await.map_err(|_| late(limits))?
}

fn late(limits: BodyLimits) -> ApiError {
    let seconds = limits.time.as_secs_f64();
    ApiError::new(Code::RequestTimeout, format!("the body did not arrive within {seconds} s"))
}

/// Parses a JSON object into a value.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let failed = |error: serde_json::Error| {
        if let Some(refusal) = unknown_fields::field(&error) {
            return refusal;
        }
        match error.is_data() {
            true => ApiError::invalid(wrong_type::said(&error.to_string())),
            false => ApiError::new(Code::InvalidJson, format!("the body is not JSON: {error}")),
        }
    };
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        // serde would read a list as the fields in their order.
        serde_json::from_slice::<serde::de::IgnoredAny>(bytes).map_err(failed)?;
        return Err(ApiError::invalid("the body must be a JSON object"));
    }
    wrong_type::from_slice(bytes).map_err(failed)
}

async fn collect(mut body: Body, limits: BodyLimits, share: &Share, announced: Option<u64>) -> Result<Bytes> {
    let limit = limits.bytes;
    let too_large = || {
        let text = format!(
            "the body is above the limit of {limit} bytes: store large data elsewhere, for instance in an object \
             store, and send a URI to it"
        );
        ApiError::new(Code::PayloadTooLarge, text)
    };
    let too_much = || ApiError::new(Code::Busy, "the memory for request bodies is used up; try again");
    let last = limit.saturating_add(DRAIN);
    if announced.is_some_and(|length| length > last as u64) {
        return Err(too_large());
    }
    let mut read = BytesMut::new();
    let mut seen = 0_usize;
    let mut refused = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::invalid(format!("the body ended early: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        seen += data.len();
        if refused.is_none() && seen > limit {
            refused = Some((too_large(), last));
        } else if refused.is_none() && !share.take(data.len(), limits.together) {
            refused = Some((too_much(), seen.saturating_add(DRAIN)));
        }
        match &refused {
            None => read.extend_from_slice(&data),
            Some((_, last)) if seen > *last => break,
            Some(_) => {
                // The refused body is not needed any more: free its memory for others.
                read = BytesMut::new();
                share.release();
            }
        }
    }
    refused.map_or_else(|| Ok(read.freeze()), |(error, _)| Err(error))
}

/// Refuses compressed bodies, which could be decompression bombs.
fn check_encoding(headers: &HeaderMap) -> Result<()> {
    for value in headers.get_all(header::CONTENT_ENCODING) {
        if !value.as_bytes().eq_ignore_ascii_case(b"identity") {
            let text = "compressed bodies are not accepted: send the body without Content-Encoding";
            return Err(ApiError::new(Code::UnsupportedMediaType, text));
        }
    }
    Ok(())
}

fn check_type(headers: &HeaderMap) -> Result<()> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let essence = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    if is_json {
        return Ok(());
    }
    let text = format!("{essence:?} is not accepted: send JSON with Content-Type: application/json");
    Err(ApiError::new(Code::UnsupportedMediaType, text))
}

/// Refuses JSON that is nested too deeply for the programs that will read it. Raw payloads are passed on unparsed, so
/// the parser's own limit does not apply to them.
fn check_depth(json: &[u8], limit: usize) -> Result<()> {
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut escaped = false;
    for byte in json {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                if depth > limit {
                    let text = format!("the JSON is nested deeper than {limit} levels");
                    return Err(ApiError::new(Code::InvalidJson, text));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_brackets_outside_strings() {
        assert!(check_depth(br#"{"a":[1,{"b":"[[[[["}]}"#, 3).is_ok());
        assert!(check_depth(br#"{"a":"\"[[[[","b":[]}"#, 2).is_ok());
        assert!(check_depth(b"[[[]]]", 2).is_err());
        assert!(check_depth("[".repeat(10_000).as_bytes(), 128).is_err());
    }

    #[test]
    fn types_and_encodings() {
        let with = |name: http::HeaderName, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, http::HeaderValue::from_static(value));
            headers
        };
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/cloudevents+json"] {
            assert!(check_type(&with(header::CONTENT_TYPE, good)).is_ok(), "{good}");
        }
        for bad in ["text/plain", "application/x-www-form-urlencoded", "", "application/xml"] {
            assert!(check_type(&with(header::CONTENT_TYPE, bad)).is_err(), "{bad}");
        }
        assert!(check_encoding(&with(header::CONTENT_ENCODING, "identity")).is_ok());
        assert!(check_encoding(&with(header::CONTENT_ENCODING, "gzip")).is_err());
    }
}
