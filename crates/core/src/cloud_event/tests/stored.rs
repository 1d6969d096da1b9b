//! Events as facts.

use super::*;
use crate::event::{MAX_ATTRIBUTES, NewEvent, PayloadLimit};

fn stored(fact: &NewEvent) -> CloudEvent {
    CloudEvent::from_stored(&StoredEvent::from(fact))
}

#[test]
fn every_attribute_has_its_place() {
    let event = structured(&with(&[
        ("id", r#""A234""#),
        ("subject", r#""x""#),
        ("time", r#""2018-04-05T19:31:00+02:00""#),
        ("datacontenttype", r#""application/xml""#),
        ("dataschema", r#""https://example.com/1""#),
        ("data", r#""<a/>""#),
        ("correlationid", r#""co""#),
        ("causationid", r#""ca""#),
        ("deduplicationid", r#""d""#),
        ("messagegroup", r#""g""#),
        ("contextdata", r#""[{\"key\":\"b\",\"value\":\"1\"},{\"key\":\"a\",\"value\":\"2\"}]""#),
        ("sequence", r#""5""#),
        ("schemaversion", r#""1.2""#),
        ("traceparent", r#""00-a-b-01""#),
        ("tracestate", r#""x=y""#),
        ("extb", "true"),
        ("exta", "5"),
    ]))
    .unwrap();
    let fact = event.to_fact();
    assert_eq!((&*fact.event_type, &fact.payload[..]), ("t", &b"<a/>"[..]));
    let texts = [&fact.content_type, &fact.source, &fact.subject, &fact.external_id];
    assert_eq!(texts.map(Option::as_deref), ["application/xml", "/s", "x", "A234"].map(Some));
    assert_eq!((fact.correlation_id.as_deref(), fact.causation_id.as_deref()), (Some("co"), Some("ca")));
    assert_eq!(fact.time, Some("2018-04-05T17:31:00Z".parse().unwrap()));
    let attributes = r#"{"traceparent":"00-a-b-01","tracestate":"x=y","time":"2018-04-05T19:31:00+02:00","data":"text",
        "dataschema":"https://example.com/1","schemaversion":"1.2","deduplicationid":"d","messagegroup":"g","sequence":"5",
        "contextdata":[["b","1"],["a","2"]],"extensions":{"exta":5,"extb":true}}"#;
    let attributes: String = attributes.split("\n        ").collect();
    assert_eq!(fact.attributes, Some(attributes));
    assert_eq!((&fact.client, &fact.group, &fact.deduplication), (&None, &None, &None));
    assert!(fact.check(PayloadLimit::default()).is_ok());
    assert_eq!(stored(&fact), event);
}

/// A version that an event names, of a type that has none, is kept and is no version that it was validated against.
#[test]
fn a_version_that_nobody_validated_by_is_told_from_others() {
    let mut event = structured(&with(&[("schemaversion", r#""1.2""#)])).unwrap();
    assert_eq!(stored(&event.to_fact()).validated_version(), event.schema_version);
    event.is_unvalidated = true;
    let read = stored(&event.to_fact());
    assert_eq!((read.validated_version(), read.schema_version), (None, event.schema_version));
    assert_eq!(read, event);
}

#[test]
fn what_needs_no_attributes_has_none() {
    for members in [
        &[("data", "{}")][..],
        &[("data", "{}"), ("time", r#""2018-04-05T17:31:00.123456Z""#), ("subject", r#""x""#)],
        &[("data", r#""x""#), ("datacontenttype", r#""text/plain""#)],
        &[("data_base64", r#""AAE=""#), ("datacontenttype", r#""image/png""#), ("correlationid", r#""c""#)],
    ] {
        let event = structured(&with(members)).unwrap();
        let fact = event.to_fact();
        assert_eq!(fact.attributes, None, "{members:?}");
        assert_eq!(stored(&fact), event, "{members:?}");
    }
}

/// Members, and the columns that they become: media type, payload and attributes.
type Case = (&'static [(&'static str, &'static str)], Option<&'static str>, &'static str, Option<&'static str>);

#[test]
fn payloads_say_what_they_are() {
    let cases: [Case; 6] = [
        (&[], None, "", Some(r#"{"data":"none"}"#)),
        (&[("datacontenttype", r#""text/plain""#)], Some("text/plain"), "", Some(r#"{"data":"none"}"#)),
        (&[("datacontenttype", r#""text/plain""#), ("data", r#""""#)], Some("text/plain"), "", None),
        (&[("data", "null")], None, "null", None),
        (&[("datacontenttype", r#""a/b""#), ("data", r#""x""#)], Some("a/b"), "x", Some(r#"{"data":"text"}"#)),
        // Without a media type a fact is JSON, which these bytes are not known to be.
        (&[("data_base64", r#""e30=""#)], Some("application/octet-stream"), "{}", Some(r#"{"data":"untyped"}"#)),
    ];
    for (members, content_type, payload, attributes) in cases {
        let event = structured(&with(members)).unwrap();
        let fact = event.to_fact();
        assert_eq!(
            (fact.content_type.as_deref(), fact.attributes.as_deref()),
            (content_type, attributes),
            "{members:?}"
        );
        assert_eq!(fact.payload, payload, "{members:?}");
        assert_eq!(stored(&fact), event, "{members:?}");
    }
}

/// Databases keep microseconds: the text brings the rest back, unless the column says another moment.
#[test]
fn times_come_back_as_they_were_sent() {
    let event = structured(&with(&[("time", r#""2018-04-05T17:31:00.123456789Z""#)])).unwrap();
    let fact = event.to_fact();
    for column in ["2018-04-05T17:31:00.123456Z", "2018-04-05T17:31:00.123457Z"] {
        let fact = NewEvent { time: Some(column.parse().unwrap()), ..fact.clone() };
        assert_eq!(stored(&fact).time, event.time, "{column}");
    }
    let other = NewEvent { time: Some("2020-01-01T00:00:00Z".parse().unwrap()), ..fact.clone() };
    assert_eq!(stored(&other).time.unwrap().as_str(), "2020-01-01T00:00:00Z");
    assert_eq!(stored(&NewEvent { time: None, ..fact }).time, None);
}

/// A fact of the library, or one that was written by plain SQL, is an event too.
#[test]
fn any_fact_is_an_event() {
    let fact = NewEvent::new("order created", r#"{"a": 1}"#);
    let event = stored(&fact);
    assert_eq!(
        event.to_structured(OWN),
        r#"{"specversion":"1.0","id":"0000000000007","source":"/tidegate","type":"order created","data":{"a": 1}}"#
    );
    assert!(CloudEvent::from_structured(&event.to_structured(OWN)).is_ok());
    let odd = NewEvent {
        source: Some("my system: billing".into()),
        content_type: Some("nönsense".into()),
        attributes: Some(
            r#"{"traceparent": 5, "time": "x", "data": "none", "dataschema": [], "schemaversion": "x", "sequence": {},
                "contextdata": [["a"]], "extensions": {"id": "x", "data": "x", "Upper": 1, "ok": 1, "no": [1], "nil": null,
                "traceparent": "x", "float": 1.5}, "tenant": "t", "messagegroup": "g"}"#
                .into(),
        ),
        ..NewEvent::new("t", vec![0xff])
    };
    let event = stored(&odd);
    assert_eq!(event.extensions.keys().collect::<Vec<_>>(), ["ok"]);
    assert_eq!((event.message_group.as_deref(), event.traceparent.as_deref()), (Some("g"), None));
    assert_eq!((&event.sequence, event.schema_version, &event.time), (&None, None, &None));
    assert_eq!(event.data.as_ref().unwrap().bytes, &[0xff][..], "a payload is never left out");
    assert_eq!(shown(&event)["data_base64"], "/w==");
    assert_eq!(shown(&event)["source"], "my%20system%3A%20billing");
    let message = event.to_binary(OWN);
    assert!(message.headers.iter().all(|(_, value)| value.bytes().all(|byte| (0x20..=0x7e).contains(&byte))));
    for attributes in ["", "[]", "null", "{", r#"{"extensions": 1}"#, r#"{"data": "other"}"#] {
        let fact = NewEvent { attributes: Some(attributes.into()), ..NewEvent::new("t", "{}") };
        assert_eq!(stored(&fact), stored(&NewEvent::new("t", "{}")), "{attributes}");
    }
}

/// Whatever is accepted can be stored.
#[test]
fn the_largest_attributes_fit_into_a_fact() {
    let largest = |unit: &str, count: usize| {
        let value = format!("\"{}\"", unit.repeat(count));
        structured(&with(&[("ext", &value)])).map(|event| event.to_fact())
    };
    for (unit, least, most) in [("x", 60_000, 65_536), ("\\\"", 30_000, 33_000), ("\u{1f600}", 15_000, 16_500)] {
        let sizes = [least, usize::midpoint(least, most), most];
        let facts: Vec<_> = sizes.into_iter().map(|count| largest(unit, count)).collect();
        assert!(facts[0].is_ok() && facts[2].is_err(), "{unit}");
        for fact in facts.into_iter().flatten() {
            assert!(fact.check(PayloadLimit::default()).is_ok());
            assert!(fact.attributes.unwrap().len() <= MAX_ATTRIBUTES);
        }
    }
    // Many short names: JSON takes more for each than they have themselves.
    let names: Vec<_> = (0..20_000).map(|number| format!("{number:x}")).collect();
    let few: Vec<_> = names.iter().take(4_000).map(|name| (name.as_str(), "\"\"")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), "\"\"")).collect();
    assert!(structured(&with(&few)).unwrap().to_fact().check(PayloadLimit::default()).is_ok());
    assert_eq!(structured(&with(&many)).unwrap_err().field(), "the context attributes");
}
