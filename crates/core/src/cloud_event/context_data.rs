//! Context data: the searchable pairs of an event.

use serde::Serialize;
use serde_json::value::RawValue;

use super::envelope::members;
use super::invalid::InvalidCloudEvent;
use super::text::{check_key, check_text};

/// The most pairs of one event.
pub const MAX_CONTEXT_DATA: usize = 100;
/// The longest value of a pair, in bytes.
pub const MAX_CONTEXT_VALUE: usize = 1024;

/// A searchable pair. A key may have several values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContextData {
    /// The key: 1 to 255 bytes.
    pub key: String,
    /// The value; it may be empty.
    pub value: String,
}

const SHAPE: &str = r#"must be a JSON array of pairs such as {"key": "region", "value": "us-west"}"#;

/// Reads the pairs from a JSON array. `field` names it in errors.
pub(super) fn read(field: &'static str, json: &str) -> Result<Vec<ContextData>, InvalidCloudEvent> {
    let invalid = |reason: String| InvalidCloudEvent::new(field, reason);
    if !json.trim_ascii_start().starts_with('[') {
        return Err(invalid(SHAPE.into()));
    }
    let items: Vec<&RawValue> = serde_json::from_str(json).map_err(|error| invalid(format!("{SHAPE}: {error}")))?;
    if items.len() > MAX_CONTEXT_DATA {
        return Err(invalid(format!("has {} pairs: it may have {MAX_CONTEXT_DATA}", items.len())));
    }
    let within = |at: usize, error: InvalidCloudEvent| invalid(format!("item {at}: {error}"));
    items.into_iter().enumerate().map(|(at, item)| pair(item).map_err(|error| within(at, error))).collect()
}

fn pair(item: &RawValue) -> Result<ContextData, InvalidCloudEvent> {
    let (mut key, mut value) = (None, None);
    for (name, raw) in members("a pair", item.get())? {
        let text = || {
            let invalid = |_| InvalidCloudEvent::of(&name, "must be a string");
            serde_json::from_str::<String>(raw.get()).map_err(invalid)
        };
        match &*name {
            "key" => key = Some(text()?),
            "value" => value = Some(text()?),
            _ => return Err(InvalidCloudEvent::of(&name, "is not known: a pair has \"key\" and \"value\"")),
        }
    }
    let key = key.ok_or_else(|| InvalidCloudEvent::new("key", "is missing"))?;
    let value = value.ok_or_else(|| InvalidCloudEvent::new("value", "is missing"))?;
    check_key("key", &key)?;
    check_text("value", &value)?;
    if value.len() > MAX_CONTEXT_VALUE {
        let reason = format!("has {} bytes: it may have {MAX_CONTEXT_VALUE}", value.len());
        return Err(InvalidCloudEvent::new("value", reason));
    }
    Ok(ContextData { key, value })
}

/// The pairs as JSON text, as [`read`] takes it.
pub(super) fn write(pairs: &[ContextData]) -> String {
    serde_json::to_string(pairs).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_keep_their_order_and_repeats() {
        let json = r#" [ {"value": "b", "key": "a"}, {"key":"a","value":""}, {"key":"ä","value":"\u00e9"} ] "#;
        let pairs = read("contextdata", json).unwrap();
        let expected = [("a", "b"), ("a", ""), ("ä", "é")];
        assert_eq!(pairs.iter().map(|pair| (&*pair.key, &*pair.value)).collect::<Vec<_>>(), expected);
        assert_eq!(read("contextdata", &write(&pairs)).unwrap(), pairs);
        assert_eq!(read("contextdata", "[]").unwrap(), []);
    }

    #[test]
    fn each_bad_pair_is_named() {
        let many = format!("[{}]", vec![r#"{"key":"a","value":"b"}"#; 101].join(","));
        let long_value = format!(r#"[{{"key":"a","value":"{}"}}]"#, "x".repeat(1025));
        let long_key = format!(r#"[{{"key":"{}","value":""}}]"#, "x".repeat(256));
        let cases = [
            ("", "array of pairs"),
            ("region=eu", "array of pairs"),
            (r#"{"a":"b"}"#, "array of pairs"),
            ("[1]", "item 0: a pair must be a JSON object"),
            (r#"[["a","b"]]"#, "item 0: a pair must be a JSON object"),
            (r#"[{"key":"a","value":"b"},{"key":"a"}]"#, "item 1: value is missing"),
            (r#"[{"key":"a","value":1}]"#, "item 0: value must be a string"),
            (r#"[{"key":"a","value":null}]"#, "item 0: value must be a string"),
            (r#"[{"key":"a","value":"b","x":1}]"#, "item 0: x is not known"),
            (r#"[{"key":"a","key":"a","value":"b"}]"#, "item 0: key is given twice"),
            (r#"[{"key":"","value":"b"}]"#, "item 0: key must not be empty"),
            (r#"[{"key":"a\n","value":"b"}]"#, "item 0: key must not have control"),
            (r#"[{"key":"a","value":"\u0000"}]"#, "item 0: value must not have control"),
            (r#"[{"key":"a","value":"\ud800"}]"#, "item 0: value must be a string"),
            ("[", "EOF"),
            (&many, "101 pairs"),
            (&long_value, "1025 bytes"),
            (&long_key, "256 bytes"),
        ];
        for (json, expected) in cases {
            let error = read("contextData", json).unwrap_err();
            assert_eq!(error.field(), "contextData");
            assert!(error.to_string().contains(expected), "{json}: {error}");
        }
    }
}
