//! The form in which documents and what the server has are compared: whatever may be said in two ways is said in one.

use serde_json::{Map, Value, json};

use super::kinds::Kind;
use crate::exact;

/// Brings the fields of a document into the form, defaults of defaults included.
pub(crate) fn document(kind: Kind, fields: &mut Map<String, Value>) {
    match kind {
        Kind::Queue => retry(fields),
        Kind::Schema => mime_type(fields),
        Kind::EventType => {
            let versions = fields.get_mut("versions").and_then(Value::as_array_mut);
            versions.into_iter().flatten().filter_map(Value::as_object_mut).for_each(mime_type);
        }
        Kind::Subscription => {
            let bindings = fields.get_mut("eventTypes").and_then(Value::as_array_mut);
            bindings.into_iter().flatten().filter_map(Value::as_object_mut).for_each(without_nulls);
            if let Some(filter) = fields.get_mut("filter").filter(|filter| filter.is_object()) {
                *filter = json!([filter.take()]);
            }
        }
        Kind::Schedule => {
            if let Some(said) = fields.get_mut("event").and_then(Value::as_object_mut) {
                event(said);
            }
        }
        Kind::Client | Kind::Pool => {}
    }
}

/// The media type that a schema's language suggests.
fn mime_type(fields: &mut Map<String, Value>) {
    if fields.get("mimeType").is_none_or(Value::is_null) {
        let usual = match fields.get("schemaType").and_then(Value::as_str) {
            Some("PROTO") => "application/protobuf",
            Some("XSD") => "application/xml",
            _ => "application/json",
        };
        fields.insert("mimeType".into(), usual.into());
    }
}

/// A retry policy with all that it leaves to its defaults.
fn retry(fields: &mut Map<String, Value>) {
    let Some(policy) = fields.get_mut("retry").and_then(Value::as_object_mut) else { return };
    if policy.get("kind").is_some_and(|kind| kind == "exponential") {
        policy.entry("factor").or_insert(json!(2.0));
        policy.entry("jitter").or_insert(json!(0.25));
    }
}

/// A schedule's event, with the same words whether they were said or not.
pub(crate) fn event(fields: &mut Map<String, Value>) {
    without_nulls(fields);
    let default = |fields: &mut Map<String, Value>, name: &str, value: Value| {
        fields.entry(name).or_insert(value);
    };
    default(fields, "queue", json!("default"));
    default(fields, "exhausted_as", json!("FAILED"));
    let own_retries = fields.contains_key("max_retries");
    default(fields, "retries_of_queue", json!(!own_retries));
    default(fields, "max_retries", json!(3));
    if !fields.contains_key("payload_base64") {
        default(fields, "payload", Value::Null);
    }
    if fields.contains_key("deduplication_id") {
        default(fields, "deduplication_mode", json!("keep_first"));
        default(fields, "deduplication_seconds", json!(86_400));
    }
    for (name, nothing) in
        [("priority", json!(0)), ("rank", json!(0)), ("delay_seconds", json!(0)), ("keep_place", json!(false))]
    {
        if fields.get(name).is_some_and(|said| same(said, &nothing)) {
            fields.remove(name);
        }
    }
    if let Some(tags) = fields.remove("tags") {
        let tags = tag_list(&tags);
        if !tags.is_empty() {
            fields.insert("tags".into(), tags.into());
        }
    }
    if let Some(at) = fields.get_mut("expires_at")
        && let Some(moment) = at.as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok())
    {
        *at = moment.to_string().into();
    }
    retry(fields);
}

/// Tags as a list, whether they were one or a text with commas.
fn tag_list(tags: &Value) -> Vec<String> {
    let all: Vec<&str> = match tags {
        Value::String(text) => text.split(',').collect(),
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let mut list: Vec<String> = Vec::new();
    for tag in all.into_iter().map(str::trim).filter(|tag| !tag.is_empty()) {
        if !list.iter().any(|known| known == tag) {
            list.push(tag.to_owned());
        }
    }
    list
}

fn without_nulls(fields: &mut Map<String, Value>) {
    let payload = fields.get("payload").is_some_and(Value::is_null);
    fields.retain(|_, value| !value.is_null());
    if payload && !fields.contains_key("payload_base64") {
        fields.insert("payload".into(), Value::Null);
    }
}

/// Whether two values say the same: numbers count as numbers, however they are written.
pub(crate) fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) => a == b || (a.is_f64() != b.is_f64() && a.as_f64() == b.as_f64()),
        _ if exact::digits(one).is_some() => exact::canonical(one) == exact::canonical(other),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        _ => one == other,
    }
}

/// Whether two schemas of a language say the same: JSON by its values, others by their texts.
pub(crate) fn same_schema(language: &Value, one: &Value, other: &Value) -> bool {
    if language == "JSON_SCHEMA"
        && let (Some(one), Some(other)) = (one.as_str(), other.as_str())
        && let (Ok(one), Ok(other)) = (exact::from_str(one), exact::from_str(other))
    {
        return same(&one, &other);
    }
    one == other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_the_same_in_two_ways() {
        let mut short =
            json!({ "type": "t", "tags": "a, b,a", "priority": 0, "expires_at": "2030-01-01T01:00:00+01:00" });
        let mut long = json!({
            "type": "t", "tags": ["a", "b"], "queue": "default", "payload": null, "max_retries": 3,
            "retries_of_queue": true, "exhausted_as": "FAILED", "expires_at": "2030-01-01T00:00:00Z",
        });
        for fields in [&mut short, &mut long] {
            event(fields.as_object_mut().unwrap());
        }
        assert_eq!(short, long);
    }

    #[test]
    fn numbers_and_schemas_are_compared_by_what_they_say() {
        assert!(same(&json!({ "a": [1, 2.0] }), &json!({ "a": [1.0, 2] })));
        assert!(!same(&json!({ "a": 1 }), &json!({ "a": 1, "b": null })));
        assert!(!same(&json!(9_007_199_254_740_993_u64), &json!(9_007_199_254_740_992_u64)));
        let long = |text: &str| exact::from_str(text).unwrap();
        assert!(same(&long("[1.00000000000000000001]"), &long("[100000000000000000001e-20]")));
        assert!(!same(&long("1.00000000000000000001"), &long("1.00000000000000000002")));
        assert!(!same(&long("1.00000000000000000001"), &json!(1)) && !same(&json!(1), &long("1.00000000000000000001")));
        let schema = |number: &str| json!(format!("{{\"maximum\": {number}}}"));
        assert!(!same_schema(&json!("JSON_SCHEMA"), &schema("99999999999999999998"), &schema("99999999999999999999")));
        assert!(same_schema(&json!("JSON_SCHEMA"), &json!("{\"a\": 1}"), &json!("{ \"a\":1 }\n")));
        assert!(!same_schema(&json!("XSD"), &json!("<a/>"), &json!("<a/>\n")));
    }
}
