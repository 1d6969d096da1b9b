//! Context data: the searchable pairs of an event.

use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
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
    if let Some(pairs) = read_valid(json) {
        return Ok(pairs);
    }
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

/// The pairs if nothing is wrong with them: in one pass, for most have none of what is told in detail otherwise.
fn read_valid(json: &str) -> Option<Vec<ContextData>> {
    let pairs: Vec<Pair> =
        serde_json::from_str(json).ok().filter(|pairs: &Vec<Pair>| pairs.len() <= MAX_CONTEXT_DATA)?;
    let pairs: Vec<ContextData> = pairs.into_iter().map(|Pair(pair)| pair).collect();
    pairs.iter().all(|pair| check(pair).is_ok()).then_some(pairs)
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
    let pair = ContextData { key, value };
    check(&pair).map(|()| pair)
}

fn check(pair: &ContextData) -> Result<(), InvalidCloudEvent> {
    check_key("key", &pair.key)?;
    check_text("value", &pair.value)?;
    if pair.value.len() > MAX_CONTEXT_VALUE {
        let reason = format!("has {} bytes: it may have {MAX_CONTEXT_VALUE}", pair.value.len());
        return Err(InvalidCloudEvent::new("value", reason));
    }
    Ok(())
}

/// A JSON object with `key` and `value`, each once, and nothing else.
struct Pair(ContextData);

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairVisitor)
    }
}

struct PairVisitor;

impl<'de> Visitor<'de> for PairVisitor {
    type Value = Pair;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pair of key and value")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Pair, M::Error> {
        let (mut key, mut value) = (None, None);
        while let Some(name) = map.next_key::<&str>()? {
            let slot = match name {
                "key" if key.is_none() => &mut key,
                "value" if value.is_none() => &mut value,
                _ => return Err(M::Error::custom("a name that is not known, or is there twice")),
            };
            *slot = Some(map.next_value()?);
        }
        let missing = || M::Error::custom("something is missing");
        Ok(Pair(ContextData { key: key.ok_or_else(missing)?, value: value.ok_or_else(missing)? }))
    }
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
