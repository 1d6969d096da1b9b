//! The source's own JSON.

use super::*;

fn sent(json: &str) -> Result<Sent, InvalidCloudEvent> {
    Sent::from_json(&Bytes::copy_from_slice(json.as_bytes()))
}

#[test]
fn the_example_of_the_source() {
    let sent = sent(
        r#"{
          "type": "order.created",
          "source": "ecommerce-api",
          "subject": "order:12345",
          "data": {"amount": 99.99, "items": 3}
        }"#,
    );
    let Sent { event, client } = sent.unwrap();
    assert_eq!((&*event.event_type, &*event.source), ("order.created", "ecommerce-api"));
    assert_eq!((event.subject.as_deref(), &event.id, client), (Some("order:12345"), &None, None));
    assert_eq!(event.data.as_ref().unwrap().bytes, r#"{"amount": 99.99, "items": 3}"#);
    assert_eq!(shown(&event)["id"], OWN.to_string());
}

#[test]
fn every_field_is_read() {
    let Sent { event, client } = sent(
        r#"{"specVersion": "1.0", "type": "t", "source": "s", "subject": "x", "time": "2024-01-02T03:04:05Z", "data": [1],
            "correlationId": "co", "causationId": "ca", "deduplicationId": "d", "messageGroup": "g",
            "contextData": [{"key": "customer_id", "value": "cust_789"}, {"key": "region", "value": "us-west"}],
            "schemaVersion": "1.2", "sequence": -3, "clientId": "0HZXEQ5Y8JY5Z"}"#,
    )
    .unwrap();
    let expected = [
        ("specversion", "1.0"),
        ("id", "0000000000007"),
        ("source", "s"),
        ("type", "t"),
        ("subject", "x"),
        ("time", "2024-01-02T03:04:05Z"),
        ("correlationid", "co"),
        ("causationid", "ca"),
        ("deduplicationid", "d"),
        ("messagegroup", "g"),
        ("contextdata", r#"[{"key":"customer_id","value":"cust_789"},{"key":"region","value":"us-west"}]"#),
        ("schemaversion", "1.2"),
    ];
    let mut shown = shown(&event).as_object().unwrap().clone();
    for (name, value) in expected {
        assert_eq!(shown.remove(name).unwrap(), value, "{name}");
    }
    assert_eq!(serde_json::Value::from(shown), serde_json::json!({ "sequence": -3, "data": [1] }));
    assert_eq!((event.order(), client), (Some(-3), Some("0HZXEQ5Y8JY5Z".parse().unwrap())));
}

#[test]
fn fields_that_are_null_are_absent() {
    let names = ["specVersion", "subject", "time", "data", "correlationId", "contextData", "sequence", "clientId"];
    let nulls: String = names.iter().map(|name| format!(", \"{name}\": null")).collect();
    assert_eq!(sent(&format!(r#"{{"type": "t", "source": "s"{nulls}}}"#)), sent(r#"{"type": "t", "source": "s"}"#));
}

/// Each row: a field, and the error.
#[rustfmt::skip]
const BAD: &[(&str, &str, &str)] = &[
    ("type", "", "type is missing"),
    ("type", "null", "type is missing"),
    ("type", "\"\"", "type must not be empty"),
    ("type", "1", "type must be a string"),
    ("source", "", "source is missing"),
    ("source", "\"my system\"", "source must be a URI-reference"),
    ("specVersion", "\"0.3\"", "specVersion must be \"1.0\""),
    ("specVersion", "1", "specVersion must be a string"),
    ("specVersion", "1.0", "specVersion must be a string"),
    ("subject", "{}", "subject must be a string"),
    ("time", "\"now\"", "time must be a date and time"),
    ("time", "1704164645", "time must be a string"),
    ("correlationId", "1", "correlationId must be a string"),
    ("causationId", "\"\"", "causationId must not be empty"),
    ("deduplicationId", "\"a\\u0000\"", "deduplicationId must not have control"),
    ("messageGroup", "[]", "messageGroup must be a string"),
    ("contextData", "{}", "contextData must be a JSON array of pairs"),
    ("contextData", "\"[]\"", "contextData must be a JSON array of pairs"),
    ("contextData", "[{\"key\": \"a\"}]", "contextData item 0: value is missing"),
    ("contextData", "[{\"key\": \"\", \"value\": \"\"}]", "contextData item 0: key must not be empty"),
    ("schemaVersion", "\"1\"", "schemaVersion must be MAJOR.MINOR"),
    ("schemaVersion", "1.0", "schemaVersion must be a string"),
    ("sequence", "\"1\"", "sequence must be a whole number"),
    ("sequence", "1.5", "sequence must be a whole number"),
    ("sequence", "2147483648", "sequence must be a whole number"),
    ("sequence", "true", "sequence must be a whole number"),
    ("clientId", "\"x\"", "clientId must be the id of a client"),
    ("clientId", "5", "clientId must be the id of a client"),
    ("id", "\"x\"", "id is not a known field"),
    ("correlationid", "\"x\"", "correlationid is not a known field; did you mean \"correlationId\"?"),
    ("message_group", "\"x\"", "message_group is not a known field; did you mean \"messageGroup\"?"),
    ("myext", "1", "myext is not a known field"),
];

#[test]
fn each_bad_field_is_named() {
    for (name, value, expected) in BAD {
        let mut fields = vec![("type", "\"t\""), ("source", "\"s\"")];
        fields.retain(|(other, _)| other != name);
        fields.push((name, value));
        let fields: Vec<_> = fields.iter().filter(|(_, value)| !value.is_empty()).collect();
        let fields: Vec<_> = fields.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
        let json = format!("{{{}}}", fields.join(","));
        let error = sent(&json).unwrap_err();
        assert!(error.to_string().contains(expected), "{json}: {error}");
        assert_eq!(error.field(), *name, "{json}");
    }
    let twice = sent(r#"{"type": "t", "source": "s", "data": 1, "data": 2}"#).unwrap_err();
    assert_eq!((twice.field(), twice.reason()), ("data", "is given twice"));
    assert!(sent("[]").unwrap_err().to_string().contains("must be a JSON object"));
}

#[test]
fn strings_that_hold_json_are_that_json() {
    let cases = [
        (r#""{\"amount\": 99.99}""#, r#"{"amount": 99.99}"#),
        (r#""[1,  2]""#, "[1,  2]"),
        (r#"" {\"a\":1} ""#, r#" {"a":1} "#),
        (r#""\u007b}""#, "{}"),
        (r#""\n[]""#, "\n[]"),
        // What is no object or array, or not one document, stays a string.
        (r#""5""#, r#""5""#),
        (r#""null""#, r#""null""#),
        (r#""\"x\"""#, r#""\"x\"""#),
        (r#""{not json""#, r#""{not json""#),
        (r#""{}{}""#, r#""{}{}""#),
        (r#""""#, r#""""#),
        (r#""\ud800{}""#, r#""\ud800{}""#),
        (r#""plain""#, r#""plain""#),
        // No string.
        ("5.0", "5.0"),
        (r#"{"a":"\u0000","a":1}"#, r#"{"a":"\u0000","a":1}"#),
        (r#"["{}"]"#, r#"["{}"]"#),
    ];
    for (data, bytes) in cases {
        let event = sent(&format!(r#"{{"type": "t", "source": "s", "data": {data}}}"#)).unwrap().event;
        assert_eq!(event.data.unwrap().bytes, bytes, "{data}");
    }
    let absent = sent(r#"{"type": "t", "source": "s"}"#).unwrap().event;
    assert_eq!(absent.data, None);
}

#[test]
fn attributes_are_bounded_together() {
    let pair = format!(r#"{{"key": "k", "value": "{}"}}"#, "x".repeat(1_000));
    let of = |count| {
        let pairs = vec![pair.as_str(); count].join(",");
        sent(&format!(r#"{{"type": "t", "source": "s", "contextData": [{pairs}]}}"#))
    };
    assert_eq!(of(60).unwrap().event.context_data.len(), 60);
    assert_eq!(of(70).unwrap_err().field(), "the context attributes");
}
