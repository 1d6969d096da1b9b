//! Payloads, which are answered as they were published.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// A payload as it is stored: JSON is sent byte for byte as it was published, anything else as base64.
#[derive(Debug, Serialize)]
pub(crate) struct Payload {
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl From<&Bytes> for Payload {
    fn from(bytes: &Bytes) -> Self {
        match std::str::from_utf8(bytes).ok().and_then(|text| RawValue::from_string(text.to_owned()).ok()) {
            Some(raw) => Self { payload: Some(raw), payload_base64: None },
            None => Self { payload: None, payload_base64: Some(base64(bytes)) },
        }
    }
}

pub(super) fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| (bits << 8) | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let letter = LETTERS[((bits >> (18 - 6 * place)) & 63) as usize] as char;
            text.push(if place <= chunk.len() { letter } else { '=' });
        }
    }
    text
}

/// A payload.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it only describes an answer")]
pub(crate) struct PayloadSchema {
    /// Any JSON, as it was published; null when it is not JSON.
    #[schema(value_type = Value)]
    payload: serde_json::Value,
    /// A payload that is not JSON, in base64; absent otherwise.
    payload_base64: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_that_are_not_json_go_as_base64() {
        let shown = |bytes: &'static [u8]| serde_json::to_string(&Payload::from(&Bytes::from_static(bytes))).unwrap();
        assert_eq!(shown(b"{\"a\": 1.0e2,  \"b\":\"\\u0000\"}"), r#"{"payload":{"a": 1.0e2,  "b":"\u0000"}}"#);
        assert_eq!(shown(b"\xff\xfe\x00"), r#"{"payload":null,"payload_base64":"//4A"}"#);
        assert_eq!(shown(b"hello"), r#"{"payload":null,"payload_base64":"aGVsbG8="}"#);
        assert_eq!(shown(b""), r#"{"payload":null,"payload_base64":""}"#);
    }
}
