//! Tables of filters and events; `oracle` compares with a naive evaluation.

mod oracle;
mod refused;

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::cloud_event::CloudEvent;

/// An event in the simplest form.
#[derive(Debug, Default)]
pub(super) struct Event {
    attributes: Vec<(String, String)>,
    pairs: Vec<(String, String)>,
    data: Option<String>,
    reads: AtomicUsize,
}

impl Facts for Event {
    fn attribute(&self, name: &str, test: &mut dyn FnMut(&str) -> bool) -> bool {
        self.attributes.iter().any(|(other, value)| other == name && test(value))
    }

    fn context(&self, key: &str, test: &mut dyn FnMut(&str) -> bool) -> bool {
        self.pairs.iter().any(|(other, value)| other == key && test(value))
    }

    fn json(&self) -> Option<&RawValue> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        serde_json::from_str(self.data.as_deref()?).ok()
    }
}

fn owned(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(one, other)| ((*one).into(), (*other).into())).collect()
}

fn event() -> Event {
    let data = r#"{"total": 1e2, "big": 9007199254740993, "name": "Ann\u0061", "empty": "", "yes": true, "no": null,
        "items": [{"sku": "a/1", "n": -0.50}, {"sku": "b"}], "a/b": {"~": 7}, "when": "2030-01-31T12:00:00+01:00",
        "digits": "100", "half": "\ud800", "deep": {"deep": {"deep": {}}}}"#;
    Event {
        attributes: owned(&[
            ("type", "shop:orders:order:created"),
            ("source", "/shop/eu"),
            ("time", "2030-01-31T10:30:00Z"),
            ("sequence", "5"),
            ("flag", "true"),
            ("off", "false"),
            ("zeros", "007"),
        ]),
        pairs: owned(&[("region", "eu"), ("region", "us"), ("amount", "12.50"), ("a.b", "")]),
        data: Some(data.into()),
        ..Event::default()
    }
}

pub(super) fn filter(json: &str) -> Filter {
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"))
}

fn passes(json: &str, event: &Event) -> bool {
    filter(&format!("[{json}]")).accepts(&Candidate::new(event))
}

fn check(cases: &[(&str, bool)]) {
    let event = event();
    for (json, expected) in cases {
        assert_eq!(passes(json, &event), *expected, "{json}");
        assert_eq!(passes(&format!(r#"{{"not":{json}}}"#), &event), !expected, "not {json}");
    }
}

#[test]
fn the_dialects_of_cloud_events() {
    check(&[
        (r#"{"exact": {"type": "shop:orders:order:created"}}"#, true),
        (r#"{"exact": {"type": "shop:orders:order:Created"}}"#, false),
        (r#"{"exact": {"type": "shop:orders:order:created", "source": "/shop/eu"}}"#, true),
        (r#"{"exact": {"type": "shop:orders:order:created", "source": "/shop"}}"#, false),
        (r#"{"exact": {"subject": "x"}}"#, false),
        (r#"{"prefix": {"type": "shop:", "source": "/"}}"#, true),
        (r#"{"prefix": {"type": "shop:", "source": "x"}}"#, false),
        (r#"{"prefix": {"subject": "x"}}"#, false),
        (r#"{"suffix": {"type": ":created"}}"#, true),
        (r#"{"suffix": {"type": ":shipped"}}"#, false),
        (r#"{"prefix": {"source": "shop/"}}"#, false),
        (r#"{"suffix": {"source": "/shop"}}"#, false),
        (r#"{"suffix": {"source": "long before /shop/eu"}}"#, false),
        (r#"{"all": [{"exact": {"source": "/shop/eu"}}, {"suffix": {"type": "created"}}]}"#, true),
        (r#"{"all": [{"exact": {"source": "/shop/eu"}}, {"suffix": {"type": "shipped"}}]}"#, false),
        (r#"{"any": [{"exact": {"source": "x"}}, {"suffix": {"type": "created"}}]}"#, true),
        (r#"{"any": [{"exact": {"source": "x"}}, {"suffix": {"type": "shipped"}}]}"#, false),
        (r#"{"not": {"not": {"exact": {"flag": "true"}}}}"#, true),
    ]);
}

#[test]
fn the_dialects_of_ours() {
    check(&[
        (r#"{"exists": "source"}"#, true),
        (r#"{"exists": ["source", "context.region", "data/items/1"]}"#, true),
        (r#"{"exists": ["source", "subject"]}"#, false),
        (r#"{"exists": "context.a.b"}"#, true),
        (r#"{"exists": "context.a"}"#, false),
        (r#"{"exists": "data/no"}"#, true),
        (r#"{"exists": "data/half"}"#, true),
        (r#"{"exists": "data/none"}"#, false),
        (r#"{"in": {"context.region": ["asia", "us"]}}"#, true),
        (r#"{"in": {"context.region": ["asia"]}}"#, false),
        (r#"{"in": {"data/total": ["100", 100.0], "data/no": [1, null]}}"#, true),
        (r#"{"in": {"data/total": ["100", 1, true, null]}}"#, false),
        (r#"{"in": {"data/name": ["z", "Anna", 3, null, "b", true]}}"#, true),
        (r#"{"in": {"sequence": ["z", 7, 5.0, -1, true]}}"#, true),
        (r#"{"in": {"off": ["z", true, null, 3, false]}}"#, true),
        (r#"{"gt": {"data/total": 99.9999999999999999999}}"#, true),
        (r#"{"gt": {"data/total": 100}}"#, false),
        (r#"{"gte": {"data/total": 1.0e2}}"#, true),
        (r#"{"lt": {"data/big": 9007199254740993}}"#, false),
        (r#"{"lt": {"data/big": 9007199254740993.1}}"#, true),
        (r#"{"lte": {"data/big": 9007199254740992}}"#, false),
        (r#"{"lt": {"data/items/0/n": 0}}"#, true),
        (r#"{"gt": {"time": "2030-01-31T10:29:59.999Z"}}"#, true),
        (r#"{"gt": {"time": "2030-01-31T11:30:00+01:00"}}"#, false),
        (r#"{"gte": {"time": "2030-01-31T11:30:00+01:00"}}"#, true),
        (r#"{"lte": {"data/when": "2030-01-31T11:00:00Z"}}"#, true),
        (r#"{"lt": {"data/when": "2030-01-31T11:00:00Z"}}"#, false),
        (r#"{"gt": {"data/name": "2030-01-31T11:00:00Z"}}"#, false),
        (r#"{"gt": {"data/total": "1970-01-01T00:00:00Z"}}"#, false),
        (r#"{"gt": {"subject": 0}}"#, false),
        (r#"{"lte": {"data/yes": 1}}"#, false),
        (r#"{"lte": {"data/no": 1}}"#, false),
        (r#"{"lte": {"data/items": 1}}"#, false),
    ]);
}

#[test]
fn data_compare_by_kind_and_value() {
    check(&[
        (r#"{"exact": {"data/total": 100}}"#, true),
        (r#"{"exact": {"data/total": 10e1}}"#, true),
        (r#"{"exact": {"data/total": "100"}}"#, false),
        (r#"{"exact": {"data/total": "1e2"}}"#, false),
        (r#"{"exact": {"data/digits": "100"}}"#, true),
        (r#"{"exact": {"data/digits": 100}}"#, false),
        (r#"{"gt": {"data/digits": 1}}"#, false),
        (r#"{"exact": {"data/big": 9007199254740993}}"#, true),
        (r#"{"exact": {"data/big": 9007199254740992}}"#, false),
        (r#"{"exact": {"data/name": "Anna"}}"#, true),
        (r#"{"exact": {"data/name": "\u0041nna"}}"#, true),
        (r#"{"prefix": {"data/name": "Ann"}}"#, true),
        (r#"{"suffix": {"data/name": "na"}}"#, true),
        (r#"{"exact": {"data/empty": ""}}"#, true),
        (r#"{"exact": {"data/yes": true}}"#, true),
        (r#"{"exact": {"data/yes": false}}"#, false),
        (r#"{"exact": {"data/yes": "true"}}"#, false),
        (r#"{"exact": {"data/no": null}}"#, true),
        (r#"{"exact": {"data/none": null}}"#, false),
        (r#"{"exact": {"data/no": false}}"#, false),
        (r#"{"exact": {"data/items/0/sku": "a/1"}}"#, true),
        (r#"{"exact": {"data/items/0/n": -5e-1}}"#, true),
        (r#"{"exact": {"data/a~1b/~0": 7}}"#, true),
        (r#"{"exact": {"data/half": "\ufffd"}}"#, false),
        (r#"{"prefix": {"data/total": "1"}}"#, false),
        (r#"{"prefix": {"data/items": "["}}"#, false),
        (r#"{"exists": "data/deep/deep/deep"}"#, true),
        (r#"{"exists": "data/deep/deep/deep/deep"}"#, false),
    ]);
}

#[test]
fn attributes_and_context_data_are_texts_that_may_read_as_more() {
    check(&[
        (r#"{"exact": {"sequence": "5"}}"#, true),
        (r#"{"exact": {"sequence": 5}}"#, true),
        (r#"{"exact": {"sequence": 5.0}}"#, true),
        (r#"{"exact": {"sequence": "5.0"}}"#, false),
        (r#"{"gte": {"sequence": 5}}"#, true),
        (r#"{"exact": {"zeros": 7}}"#, false),
        (r#"{"exact": {"flag": true}}"#, true),
        (r#"{"exact": {"flag": false}}"#, false),
        (r#"{"exact": {"flag": null}}"#, false),
        (r#"{"exact": {"off": false}}"#, true),
        (r#"{"exact": {"off": true}}"#, false),
        (r#"{"exact": {"context.amount": 12.5}}"#, true),
        (r#"{"exact": {"context.amount": "12.5"}}"#, false),
        (r#"{"lt": {"context.amount": 12.500001}}"#, true),
        (r#"{"exact": {"context.a.b": ""}}"#, true),
        (r#"{"exact": {"context.region": "eu"}}"#, true),
        (r#"{"exact": {"context.region": "us"}}"#, true),
        (r#"{"exact": {"context.Region": "us"}}"#, false),
        (r#"{"all": [{"exact": {"context.region": "us"}}, {"exact": {"context.region": "eu"}}]}"#, true),
        (r#"{"exact": {"context.region": "asia"}}"#, false),
    ]);
}

#[test]
fn a_filter_is_a_list_that_must_hold_as_a_whole() {
    let event = event();
    let accepts = |json: &str| filter(json).accepts(&Candidate::new(&event));
    assert!(accepts("[]"));
    assert!(accepts(r#"[{"exists": "type"}, {"exists": "source"}]"#));
    assert!(!accepts(r#"[{"exists": "type"}, {"exists": "subject"}]"#));
}

#[test]
fn data_that_are_no_json_have_no_values() {
    let mut event = event();
    for data in [None, Some(""), Some("{"), Some("{\"total\": 100} x"), Some("<total>100</total>"), Some("\"text\"")] {
        event.data = data.map(Into::into);
        assert!(!passes(r#"{"exists": "data/total"}"#, &event), "{data:?}");
        assert!(passes(r#"{"not": {"exact": {"data/total": 100}}}"#, &event), "{data:?}");
    }
}

#[test]
fn data_are_read_once_for_all_filters_and_only_if_one_asks() {
    let event = event();
    let (of_attributes, of_data) = (filter(r#"[{"exists": "type"}]"#), filter(r#"[{"exact": {"data/total": 100}}]"#));
    let candidate = Candidate::new(&event);
    assert!(of_attributes.accepts(&candidate) && of_attributes.accepts(&candidate));
    assert_eq!(event.reads.load(Ordering::Relaxed), 0);
    assert!((0..100).all(|_| of_data.accepts(&candidate)));
    assert_eq!(event.reads.load(Ordering::Relaxed), 1);
}

#[test]
fn filters_are_given_back_as_they_came() {
    let texts = [
        "[]",
        r#"[ {"exact":{"data/n":1e2,"type":"\u0061"}} , {"in":{"context.x":[1.0,"b",null,12345678901234567890123]}} ]"#,
        "[\n  {\"not\": {\"exists\": [\"a\"]}}\n]",
    ];
    for text in texts {
        let parsed = filter(text);
        assert_eq!((serde_json::to_string(&parsed).unwrap().as_str(), parsed.as_json()), (text, text));
        assert_eq!(filter(text), parsed);
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        assert!(serde_json::from_value::<Filter>(value).is_ok(), "values have raw values, too");
    }
    assert_ne!(filter("[]"), filter("[ ]"));
}

#[test]
fn all_attributes_of_cloud_events_are_known() {
    let json = r#"{"specversion": "1.0", "id": "i", "source": "/s", "type": "t", "subject": "su", "sequence": "7",
        "time": "2030-01-31T10:30:00Z", "datacontenttype": "application/json", "dataschema": "http://x/y",
        "deduplicationid": "d", "correlationid": "co", "causationid": "ca", "messagegroup": "m", "schemaversion": "1.20",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b",
        "contextdata": "[{\"key\":\"region\",\"value\":\"eu\"}]", "text": "x", "whole": -2147483648, "yes": true,
        "data": {"n": 1.0}}"#;
    let event = CloudEvent::from_structured(&json.into()).unwrap();
    let cases = [
        ("id", r#""i""#),
        ("source", r#""/s""#),
        ("specversion", r#""1.0""#),
        ("type", r#""t""#),
        ("subject", r#""su""#),
        ("time", r#""2030-01-31T10:30:00Z""#),
        ("datacontenttype", r#""application/json""#),
        ("dataschema", r#""http://x/y""#),
        ("deduplicationid", r#""d""#),
        ("correlationid", r#""co""#),
        ("causationid", r#""ca""#),
        ("messagegroup", r#""m""#),
        ("sequence", "7"),
        ("schemaversion", r#""1.20""#),
        ("traceparent", r#""00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01""#),
        ("tracestate", r#""a=b""#),
        ("text", r#""x""#),
        ("whole", r#""-2147483648""#),
        ("whole", "-2147483648"),
        ("yes", r#""true""#),
        ("yes", "true"),
        ("context.region", r#""eu""#),
        ("data/n", "1"),
    ];
    let accepts = |json: &str| filter(json).accepts(&Candidate::new(&event));
    for (name, value) in cases {
        assert!(accepts(&format!(r#"[{{"exact": {{"{name}": {value}}}}}]"#)), "{name}");
        assert!(!accepts(&format!(r#"[{{"exact": {{"{name}": "another"}}}}]"#)), "{name}");
    }
    let bare = r#"{"specversion": "1.0", "id": "i", "source": "/s", "type": "t"}"#;
    let bare = CloudEvent::from_structured(&bare.into()).unwrap();
    for (name, _) in cases.iter().filter(|(name, _)| !["id", "source", "type", "specversion"].contains(name)) {
        assert!(!filter(&format!(r#"[{{"exists": "{name}"}}]"#)).accepts(&Candidate::new(&bare)), "{name}");
    }
}
