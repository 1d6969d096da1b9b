//! The core specification: attributes, their names, types and constraints.

use super::*;

/// What the specification demands, a member, and what becomes of the event.
type Case = (&'static str, (&'static str, &'static str), Result<(), &'static str>);

const CASES: &[Case] = &[
    // REQUIRED attributes.
    ("id is required", ("id", ""), Err("id is missing")),
    ("id null is unset", ("id", "null"), Err("id is missing")),
    ("id is not empty", ("id", "\"\""), Err("id must not be empty")),
    ("id is a string", ("id", "5"), Err("id must be a string")),
    ("id is a string", ("id", "true"), Err("id must be a string")),
    ("id may be anything else", ("id", "\"A 234/\\u00e9\""), Ok(())),
    ("source is required", ("source", ""), Err("source is missing")),
    ("source null is unset", ("source", "null"), Err("source is missing")),
    ("source is not empty", ("source", "\"\""), Err("source must not be empty")),
    ("source is a string", ("source", "1"), Err("source must be a string")),
    ("source is a URI-reference", ("source", "\"my system\""), Err("source must be a URI-reference")),
    ("source is a URI-reference", ("source", "\"/\u{fc}ber\""), Err("source must be a URI-reference")),
    ("source is a URI-reference", ("source", "\"http://[::1\""), Err("source must be a URI-reference")),
    ("example of source", ("source", "\"https://github.com/cloudevents\""), Ok(())),
    ("example of source", ("source", "\"mailto:cncf-wg-serverless@lists.cncf.io\""), Ok(())),
    ("example of source", ("source", "\"urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66\""), Ok(())),
    ("example of source", ("source", "\"/cloudevents/spec/pull/123\""), Ok(())),
    ("example of source", ("source", "\"/sensors/tn-1234567/alerts\""), Ok(())),
    ("example of source", ("source", "\"1-555-123-4567\""), Ok(())),
    ("specversion is required", ("specversion", ""), Err("specversion is missing")),
    ("specversion null is unset", ("specversion", "null"), Err("specversion is missing")),
    ("specversion is not empty", ("specversion", "\"\""), Err("specversion must be \"1.0\"")),
    ("specversion is 1.0", ("specversion", "\"0.3\""), Err("specversion must be \"1.0\"")),
    ("specversion has no patch", ("specversion", "\"1.0.2\""), Err("specversion must be \"1.0\"")),
    ("specversion is a string", ("specversion", "1"), Err("specversion must be a string")),
    ("specversion is a string", ("specversion", "1.0"), Err("specversion must be a string")),
    ("type is required", ("type", ""), Err("type is missing")),
    ("type null is unset", ("type", "null"), Err("type is missing")),
    ("type is not empty", ("type", "\"\""), Err("type must not be empty")),
    ("type is a string", ("type", "1"), Err("type must be a string")),
    ("example of type", ("type", "\"com.github.pull_request.opened\""), Ok(())),
    ("example of type", ("type", "\"com.example.object.deleted.v2\""), Ok(())),
    // OPTIONAL attributes.
    ("datacontenttype is a media type", ("datacontenttype", "\"json\""), Err("datacontenttype must be a media type")),
    ("datacontenttype is not empty", ("datacontenttype", "\"\""), Err("datacontenttype must not be empty")),
    ("datacontenttype is a string", ("datacontenttype", "1"), Err("datacontenttype must be a string")),
    ("datacontenttype may have parameters", ("datacontenttype", "\"text/xml; charset=utf-8\""), Ok(())),
    ("datacontenttype may appear without data", ("datacontenttype", "\"text/xml\""), Ok(())),
    ("dataschema is a URI", ("dataschema", "\"/schemas/1\""), Err("dataschema must be an absolute URI")),
    ("dataschema is a URI", ("dataschema", "\"http://a b\""), Err("dataschema must be an absolute URI")),
    ("dataschema is not empty", ("dataschema", "\"\""), Err("dataschema must be an absolute URI")),
    ("dataschema is a string", ("dataschema", "1"), Err("dataschema must be a string")),
    ("dataschema is a URI", ("dataschema", "\"https://example.com/schemas/1\""), Ok(())),
    ("subject is not empty", ("subject", "\"\""), Err("subject must not be empty")),
    ("subject is a string", ("subject", "1"), Err("subject must be a string")),
    ("example of subject", ("subject", "\"mynewfile.jpg\""), Ok(())),
    ("example of subject", ("subject", "\"partnerid/5/clientid/100\""), Ok(())),
    ("time is of RFC 3339", ("time", "\"yesterday\""), Err("time must be a date and time of RFC 3339")),
    ("time is of RFC 3339", ("time", "\"2018-04-05\""), Err("time must be a date and time of RFC 3339")),
    ("time is of RFC 3339", ("time", "\"2018-02-30T00:00:00Z\""), Err("time must be a date and time of RFC 3339")),
    ("time is of RFC 3339", ("time", "\"\""), Err("time must be a date and time of RFC 3339")),
    ("time is a string", ("time", "1522949460"), Err("time must be a string")),
    ("time can be stored", ("time", "\"1969-12-31T23:59:59Z\""), Err("time must be between 1970 and 9998")),
    ("time may have an offset", ("time", "\"2018-04-05T19:31:00.5+02:00\""), Ok(())),
    // Names.
    ("names have no upper case", ("myExt", "\"x\""), Err("myExt is not a valid attribute name")),
    ("names have no upper case, null or not", ("Myext", "null"), Err("Myext is not a valid attribute name")),
    ("names have no dash", ("my-ext", "\"x\""), Err("my-ext is not a valid attribute name")),
    ("names have no underscore", ("my_ext", "\"x\""), Err("my_ext is not a valid attribute name")),
    ("names have no dot", ("my.ext", "1"), Err("my.ext is not a valid attribute name")),
    ("names are ASCII", ("\u{fc}ber", "1"), Err("\u{fc}ber is not a valid attribute name")),
    ("names have no digits of other scripts", ("a\u{661}", "1"), Err("is not a valid attribute name")),
    ("names are not empty", ("", "1"), Err("\"\" is not a valid attribute name")),
    ("names differ from the specification's in case only", ("Subject", "\"x\""), Err("Subject is not a valid")),
    ("names of digits", ("123", "1"), Ok(())),
    ("names should have 20 characters, but may have more", ("comexampleextension1withmore", "1"), Ok(())),
    // Types.
    ("Boolean", ("ext", "true"), Ok(())),
    ("Boolean", ("ext", "false"), Ok(())),
    ("Integer, the greatest", ("ext", "2147483647"), Ok(())),
    ("Integer, the least", ("ext", "-2147483648"), Ok(())),
    ("Integer has 32 bits", ("ext", "2147483648"), Err("ext must be a whole number between")),
    ("Integer has 32 bits", ("ext", "-2147483649"), Err("ext must be a whole number between")),
    ("Integer has no fraction", ("ext", "1.0"), Err("ext must be a whole number between")),
    ("Integer has no exponent", ("ext", "1e2"), Err("ext must be a whole number between")),
    ("String may be empty", ("ext", "\"\""), Ok(())),
    ("String has no C0 controls", ("ext", "\"a\\u0000b\""), Err("ext must not have control characters")),
    ("String has no C0 controls", ("ext", "\"a\\u001fb\""), Err("ext must not have control characters")),
    ("String has no line feed", ("subject", "\"a\\nb\""), Err("subject must not have control characters")),
    ("String has no C1 controls", ("ext", "\"\\u007f\""), Err("ext must not have control characters")),
    ("String has no C1 controls", ("ext", "\"\\u009f\""), Err("ext must not have control characters")),
    ("String has no noncharacters", ("ext", "\"\\ufdd0\""), Err("ext must not have control characters or Unicode non")),
    ("String has no noncharacters", ("ext", "\"\\uffff\""), Err("ext must not have control characters or Unicode non")),
    (
        "String has no noncharacters",
        ("id", "\"\\ud83f\\udfff\""),
        Err("id must not have control characters or Unicode"),
    ),
    ("String has no lone surrogates", ("ext", "\"\\uDEAD\""), Err("ext must be valid Unicode")),
    ("String has no lone surrogates", ("ext", "\"\\uD800x\""), Err("ext must be valid Unicode")),
    ("String may have pairs of surrogates", ("ext", "\"\\uD800\\uDEAD\""), Ok(())),
    ("no other types", ("ext", "{\"a\": 1}"), Err("ext must be a string, a whole number or a boolean")),
    ("no other types", ("ext", "[1]"), Err("ext must be a string, a whole number or a boolean")),
    // Attributes of ours.
    ("correlationid", ("correlationid", "\"req-1\""), Ok(())),
    ("correlationid", ("correlationid", "\"\""), Err("correlationid must not be empty")),
    ("causationid", ("causationid", "5"), Err("causationid must be a string")),
    ("deduplicationid", ("deduplicationid", "\"\""), Err("deduplicationid must not be empty")),
    ("messagegroup", ("messagegroup", "\"order:12345\""), Ok(())),
    ("messagegroup", ("messagegroup", "[]"), Err("messagegroup must be a string")),
    ("sequence", ("sequence", "5"), Ok(())),
    ("sequence as the documented extension has it", ("sequence", "\"01F8MECHZX3TBDSZ7XRADM79XE\""), Ok(())),
    ("sequence", ("sequence", "true"), Err("sequence must be a string or a whole number")),
    ("sequence", ("sequence", "1.5"), Err("sequence must be a string or a whole number between")),
    ("sequence", ("sequence", "[1]"), Err("sequence must be a string or a whole number between")),
    ("sequence", ("sequence", "\"\""), Err("sequence must not be empty")),
    ("contextdata is JSON text", ("contextdata", "\"[{\\\"key\\\":\\\"a\\\",\\\"value\\\":\\\"b\\\"}]\""), Ok(())),
    (
        "contextdata is text",
        ("contextdata", "[{\"key\":\"a\",\"value\":\"b\"}]"),
        Err("contextdata must be a string: the pairs as JSON"),
    ),
    ("contextdata", ("contextdata", "\"region=eu\""), Err("contextdata must be a JSON array of pairs")),
    ("contextdata", ("contextdata", "\"[{}]\""), Err("contextdata item 0: key is missing")),
    ("schemaversion", ("schemaversion", "\"1.0\""), Ok(())),
    ("schemaversion", ("schemaversion", "\"v1\""), Err("schemaversion must be MAJOR.MINOR")),
    ("schemaversion", ("schemaversion", "1"), Err("schemaversion must be a string")),
    ("traceparent", ("traceparent", "1"), Err("traceparent must be a string")),
    ("tracestate", ("tracestate", "\"a=1,b=2\""), Ok(())),
];

#[test]
fn each_attribute_is_accepted_or_refused_by_name() {
    for (rule, (name, value), expected) in CASES {
        let json = with(&[(name, value)]);
        match (structured(&json), expected) {
            (Ok(event), Ok(())) => assert_eq!(structured(&with_all(&event)).unwrap(), event, "{rule}: {json}"),
            (Err(error), Err(expected)) => {
                let said = error.to_string();
                assert!(said.contains(expected), "{rule}: {json}: {said}");
                assert!(said.starts_with(error.field()) && said.ends_with(error.reason()), "{rule}: {said}");
            }
            (read, expected) => panic!("{rule}: {json}: {read:?}, not {expected:?}"),
        }
    }
}

fn with_all(event: &CloudEvent) -> String {
    String::from_utf8(event.to_structured(OWN).to_vec()).unwrap()
}

#[test]
fn the_least_event_has_four_attributes() {
    let event = structured(&with(&[])).unwrap();
    assert_eq!((event.id.as_deref(), &*event.source, &*event.event_type), (Some("A1"), "/s", "t"));
    assert_eq!((&event.subject, &event.time, &event.datacontenttype, &event.data), (&None, &None, &None, &None));
    assert!(event.extensions.is_empty() && event.context_data.is_empty());
    assert_eq!(with_all(&event), r#"{"specversion":"1.0","id":"A1","source":"/s","type":"t"}"#);
}

#[test]
fn every_attribute_appears_at_most_once() {
    for name in ["id", "subject", "ext", "data", "data_base64", "specversion"] {
        let json = format!(
            r#"{{"{name}": null, "specversion": "1.0", "id": "1", "source": "/", "type": "t", "{name}": null}}"#
        );
        let error = structured(&json).unwrap_err();
        assert_eq!((error.field(), error.reason()), (name, "is given twice"));
    }
    let escaped = with(&[("subject", "\"a\""), ("s\\u0075bject", "\"b\"")]);
    assert_eq!(structured(&escaped).unwrap_err().field(), "subject");
}

#[test]
fn data_is_no_attribute() {
    assert_eq!(binary(&[("ce-data", "x")], "").unwrap_err().field(), "data");
    assert_eq!(binary(&[("ce-data_base64", "x")], "").unwrap_err().field(), "data_base64");
}

#[test]
fn the_example_of_the_specification() {
    let json = r#"{
        "specversion" : "1.0",
        "type" : "com.github.pull_request.opened",
        "source" : "https://github.com/cloudevents/spec/pull",
        "subject" : "123",
        "id" : "A234-1234-1234",
        "time" : "2018-04-05T17:31:00Z",
        "comexampleextension1" : "value",
        "comexampleothervalue" : 5,
        "datacontenttype" : "text/xml",
        "data" : "<much wow=\"xml\"/>"
    }"#;
    let event = structured(json).unwrap();
    assert_eq!(event.event_type, "com.github.pull_request.opened");
    assert_eq!(event.source, "https://github.com/cloudevents/spec/pull");
    assert_eq!((event.subject.as_deref(), event.id.as_deref()), (Some("123"), Some("A234-1234-1234")));
    assert_eq!(event.time.as_ref().unwrap().at(), "2018-04-05T17:31:00Z".parse().unwrap());
    assert_eq!(event.extensions["comexampleextension1"], text("value"));
    assert_eq!(event.extensions["comexampleothervalue"], AttributeValue::Integer(5));
    assert_eq!(event.data.as_ref().unwrap().bytes, r#"<much wow="xml"/>"#);
    assert_eq!(shown(&event), serde_json::from_str::<serde_json::Value>(json).unwrap());
}

/// The canonical text of each type, and that types are kept where the form has them.
#[test]
fn types_have_one_text_each() {
    let event = structured(&with(&[("b", "true"), ("i", "-5"), ("s", "\"true\"")])).unwrap();
    let texts = ["ce-b", "ce-i", "ce-s"].map(|name| header(&event, name).unwrap());
    assert_eq!(texts, ["true", "-5", "true"]);
    assert_eq!(shown(&event)["b"], true);
    assert_eq!(shown(&event)["i"], -5);
    assert_eq!(shown(&event)["s"], "true");
}

#[test]
fn intermediaries_forward_what_has_64_kib() {
    let of = |length: usize| with(&[("ext", &format!("\"{}\"", "x".repeat(length)))]);
    let most = (64 << 10) - of(0).len();
    assert_eq!(of(most).len(), 64 << 10);
    let event = structured(&of(most)).unwrap();
    assert_eq!(event.extensions["ext"], text(&"x".repeat(most)));
    let (least, headers) = ("specversion1.0idA1source/stypetext".len(), "x".repeat(most));
    assert_eq!(binary(&[("ce-ext", &headers)], "").unwrap(), event);
    let error = structured(&of(MAX_CONTEXT - least + 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the context attributes have more than 65536 bytes together: put what is large into data"
    );
    assert_eq!(binary(&[("ce-ext", &"x".repeat(MAX_CONTEXT - least + 1))], "").unwrap_err(), error);
    let error = structured(&of(MAX_CONTEXT - least)).unwrap_err();
    assert!(error.reason().contains("as JSON"), "{error}");
}

/// Context attributes count together, whichever has how much of them.
#[test]
fn context_attributes_count_together() {
    let part = format!("\"{}\"", "x".repeat(9_000));
    let names = ["a", "b", "c", "dataschemas", "tracestate", "traceparent", "g", "h"];
    let members: Vec<_> = names.iter().map(|name| (*name, part.as_str())).collect();
    assert!(structured(&with(&members[..7])).is_ok());
    assert_eq!(structured(&with(&members)).unwrap_err().field(), "the context attributes");
    // As JSON, quotes take twice as much: what is accepted can always be stored.
    let quotes = format!("\"{}\"", "\\\"".repeat(40_000));
    assert_eq!(structured(&with(&[("ext", &quotes)])).unwrap_err().field(), "the context attributes");
    let quotes = format!("\"{}\"", "\\\"".repeat(32_000));
    assert!(structured(&with(&[("ext", &quotes)])).is_ok());
    // Escapes that the sender need not have written do not count.
    let escaped = format!("\"{}\"", "\\u0061".repeat(60_000));
    assert_eq!(structured(&with(&[("ext", &escaped)])).unwrap().extensions["ext"], text(&"a".repeat(60_000)));
}

#[test]
fn keys_that_are_searched_have_255_bytes() {
    for name in ["id", "source", "type", "subject", "correlationid", "causationid", "deduplicationid", "messagegroup"] {
        let value = |length| format!("\"{}\"", "x".repeat(length));
        assert!(structured(&with(&[(name, &value(255))])).is_ok(), "{name}");
        let error = structured(&with(&[(name, &value(256))])).unwrap_err();
        assert_eq!((error.field(), error.reason()), (name, "has 256 bytes: it must have at most 255"));
    }
}

#[test]
fn sequences_order_when_they_are_numbers() {
    let cases = [
        ("5", Some(5)),
        ("-5", Some(-5)),
        ("\"5\"", Some(5)),
        ("\"0042\"", Some(42)),
        ("\"2147483648\"", None),
        ("\"01F8ME\"", None),
    ];
    for (value, order) in cases {
        let event = structured(&with(&[("sequence", value)])).unwrap();
        assert_eq!(event.order(), order, "{value}");
        assert_eq!(shown(&event)["sequence"].to_string(), value);
    }
    assert_eq!(structured(&with(&[])).unwrap().order(), None);
}
