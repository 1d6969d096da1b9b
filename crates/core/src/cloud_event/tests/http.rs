//! The HTTP binding: modes, headers and their values.

use super::*;

const CE: [(&str, &str); 4] = [("ce-id", "1"), ("ce-source", "/"), ("ce-type", "t"), ("ce-specversion", "1.0")];

fn form(headers: &[(&str, &str)]) -> Result<Form, UnsupportedMediaType> {
    Form::of(headers.iter().map(|(name, value)| (*name, value.as_bytes())))
}

#[test]
fn modes_are_told_by_the_media_type() {
    let cases = [
        ("application/cloudevents+json", Form::Structured),
        ("application/cloudevents+json; charset=UTF-8", Form::Structured),
        ("Application/CloudEvents+JSON;charset=\"utf-8\"", Form::Structured),
        ("application/cloudevents-batch+json", Form::Batched),
        ("application/cloudevents-batch+json; charset=UTF-8", Form::Batched),
        ("APPLICATION/CLOUDEVENTS-BATCH+JSON ; a=b", Form::Batched),
    ];
    for (media_type, expected) in cases {
        assert_eq!(form(&[("Content-Type", media_type)]), Ok(expected), "{media_type}");
        // The same attributes may be headers too.
        let both = [&CE[..], &[("content-type", media_type)]].concat();
        assert_eq!(form(&both), Ok(expected), "{media_type}");
    }
    for media_type in ["application/json", "text/plain", "application/xml", "image/png", "nonsense", ""] {
        assert_eq!(form(&[&CE[..], &[("content-type", media_type)]].concat()), Ok(Form::Binary), "{media_type}");
    }
    assert_eq!(form(&CE), Ok(Form::Binary));
    for header in CE {
        assert_eq!(form(&[header]), Ok(Form::Binary), "what is missing is said by name");
        assert_eq!(form(&[(&header.0.to_uppercase(), header.1), ("CONTENT-TYPE", "text/csv")]), Ok(Form::Binary));
    }
}

#[test]
fn the_sources_json_has_neither_headers_nor_a_media_type_of_cloud_events() {
    for media_type in ["application/json", "application/JSON; charset=utf-8", "application/vnd.x+json"] {
        assert_eq!(form(&[("content-type", media_type)]), Ok(Form::Json), "{media_type}");
    }
    assert_eq!(form(&[]), Ok(Form::Json));
    assert_eq!(form(&[("ce-other", "x"), ("content-type", "application/json")]), Ok(Form::Json));
}

#[test]
fn other_formats_are_not_supported() {
    let cases = [
        "application/cloudevents",
        "application/cloudevents+avro",
        "application/cloudevents+xml",
        "application/cloudevents+protobuf",
        "application/cloudevents-batch",
        "application/cloudevents-batch+protobuf",
        "application/cloudevents+json; charset=utf-16",
    ];
    for media_type in cases {
        let error = form(&[&CE[..], &[("content-type", media_type)]].concat()).unwrap_err().to_string();
        assert!(error.contains(media_type) && error.contains("application/cloudevents+json,"), "{error}");
    }
    for media_type in ["text/plain", "application/xml", "nonsense", "text/json"] {
        let error = form(&[("content-type", media_type)]).unwrap_err().to_string();
        assert!(error.contains(media_type) && error.contains("ce-specversion"), "{error}");
    }
    let bytes = Form::of([("content-type", &b"\xff\x1b"[..])]).unwrap_err().to_string();
    assert!(!bytes.contains('\u{1b}'), "{bytes:?}");
}

/// What the binding demands, headers that are changed, and what becomes of the event.
type Case = (&'static str, &'static [Pair], Result<Pair, &'static str>);
type Pair = (&'static str, &'static str);

#[rustfmt::skip]
const HEADERS: &[Case] = &[
    ("header names have no case", &[("CE-Subject", "x")], Ok(("subject", "x"))),
    ("header names have no case", &[("Ce-MyExt", "x")], Ok(("myext", "x"))),
    ("time maps to ce-time", &[("ce-time", "2018-04-05T03:56:24Z")], Ok(("time", "2018-04-05T03:56:24Z"))),
    ("percent-decoding", &[("ce-subject", "Euro%20%E2%82%AC%20%F0%9F%98%80")], Ok(("subject", "Euro € 😀"))),
    ("lower case is accepted", &[("ce-subject", "%e2%82%ac")], Ok(("subject", "€"))),
    ("what need not be encoded is accepted", &[("ce-subject", "%41%2f")], Ok(("subject", "A/"))),
    ("one round of decoding", &[("ce-subject", "%2541")], Ok(("subject", "%41"))),
    ("quoted strings are unescaped first", &[("ce-subject", r#""a \"b\" %20c""#)], Ok(("subject", "a \"b\"  c"))),
    ("spaces around a value do not count", &[("ce-subject", "  a b \t")], Ok(("subject", "a b"))),
    ("invalid UTF-8 is rejected", &[("ce-subject", "%C0%A0")], Err("subject must be UTF-8")),
    ("headers are ASCII", &[("ce-subject", "é")], Err("subject must be percent-encoded")),
    ("control characters", &[("ce-subject", "a%0Ab")], Err("subject must not have control characters")),
    ("control characters", &[("ce-ext", "%00")], Err("ext must not have control characters")),
    ("ce-datacontenttype must not be present", &[("ce-datacontenttype", "text/plain")], Err("datacontenttype must be sent as")),
    ("Content-Type is datacontenttype", &[("Content-Type", "Text/Plain; charset=utf-8")], Ok(("datacontenttype", "Text/Plain; charset=utf-8"))),
    ("Content-Type is not percent-decoded", &[("content-type", "a/b; c=\"%41\"")], Ok(("datacontenttype", "a/b; c=\"%41\""))),
    ("Content-Type is a media type", &[("content-type", "json")], Err("datacontenttype must be a media type")),
    ("Content-Type is ASCII", &[("content-type", "text/é")], Err("datacontenttype must be a media type")),
    ("names are checked", &[("ce-my-ext", "x")], Err("my-ext is not a valid attribute name")),
    ("names are checked", &[("ce-", "x")], Err("\"\" is not a valid attribute name")),
    ("once each", &[("ce-ext", "x"), ("CE-Ext", "x")], Err("ext is given twice")),
    ("once each", &[("ce-subject", "x"), ("ce-subject", "y")], Err("subject is given twice")),
    ("once each", &[("content-type", "a/b"), ("content-type", "a/b")], Err("datacontenttype is given twice")),
    ("required", &[("ce-id", "")], Err("id is missing")),
    ("required", &[("ce-source", "")], Err("source is missing")),
    ("required", &[("ce-type", "")], Err("type is missing")),
    ("required", &[("ce-specversion", "")], Err("specversion is missing")),
    ("not empty", &[("ce-id", "\"\"")], Err("id must not be empty")),
    ("specversion is 1.0", &[("ce-specversion", "0.3")], Err("specversion must be \"1.0\"")),
    ("null is a text", &[("ce-ext", "null")], Ok(("ext", "null"))),
    ("numbers are texts", &[("ce-ext", "5")], Ok(("ext", "5"))),
    ("contextdata, encoded", &[("ce-contextdata", "%5B%7B%22key%22:%22a%22,%22value%22:%22b%22%7D%5D")],
        Ok(("contextdata", r#"[{"key":"a","value":"b"}]"#))),
    ("contextdata, as it is", &[("ce-contextdata", r#"[{"key":"a","value":"b"}]"#)], Ok(("contextdata", r#"[{"key":"a","value":"b"}]"#))),
    ("sequence", &[("ce-sequence", "5")], Ok(("sequence", "5"))),
    ("traceparent has a header of its own beside", &[("ce-traceparent", "00-a-b-01"), ("traceparent", "00-c-d-01")], Ok(("traceparent", "00-a-b-01"))),
    ("other headers do not count", &[("x-ce-subject", "x"), ("subject", "y"), ("ce", "z"), ("ce-ext", "1")], Ok(("ext", "1"))),
];

#[test]
fn each_header_becomes_an_attribute_or_is_refused_by_name() {
    for (rule, headers, expected) in HEADERS {
        match (binary(headers, ""), expected) {
            (Ok(event), Ok((name, value))) => assert_eq!(shown(&event)[name], *value, "{rule}: {headers:?}"),
            (Err(error), Err(expected)) => {
                assert!(error.to_string().contains(expected), "{rule}: {headers:?}: {error}")
            }
            (read, expected) => panic!("{rule}: {headers:?}: {read:?}, not {expected:?}"),
        }
    }
}

#[test]
fn the_body_is_the_data() {
    let cases: [(&str, &[u8], &str); 10] = [
        ("application/json; charset=utf-8", b" {\"a\" : 1.0}\n", r#""data":{"a" : 1.0}}"#),
        ("application/json", b"{\"a\":1,\"a\":2}", r#""data":{"a":1,"a":2}}"#),
        ("application/json", b"not JSON", r#""data_base64":"bm90IEpTT04="}"#),
        ("application/json", b"\"\xff\"", r#""data_base64":"Iv8i"}"#),
        ("application/json", b"null", r#""data":null}"#),
        ("text/plain", "é".as_bytes(), r#""data":"é"}"#),
        ("text/plain", b"\xff", r#""data_base64":"/w=="}"#),
        ("application/xml", b"<a/>", r#""data_base64":"PGEvPg=="}"#),
        ("application/octet-stream", b"\0\xff", r#""data_base64":"AP8="}"#),
        ("", b"{}", r#""data_base64":"e30="}"#),
    ];
    for (content_type, body, shown) in cases {
        let event = binary(&[("content-type", content_type)], body).unwrap();
        assert_eq!(event.data.as_ref().unwrap().bytes, body);
        let json = event.to_structured(OWN);
        assert!(json.ends_with(shown.as_bytes()), "{content_type} {body:?}: {json:?}");
        let message = event.to_binary(OWN);
        assert_eq!(message.body, body);
        let sent = Some(content_type).filter(|text| !text.is_empty());
        assert_eq!(header(&event, "content-type").as_deref(), sent, "nothing is invented");
    }
    for content_type in ["", "text/plain", "application/json"] {
        assert_eq!(binary(&[("content-type", content_type)], "").unwrap().data, None);
    }
}

#[test]
fn the_example_of_the_binding() {
    let headers: [(&str, &[u8]); 7] = [
        ("Host", b"webhook.example.com"),
        ("ce-specversion", b"1.0"),
        ("ce-type", b"com.example.someevent"),
        ("ce-time", b"2018-04-05T03:56:24Z"),
        ("ce-id", b"1234-1234-1234"),
        ("ce-source", b"/mycontext/subcontext"),
        ("Content-Type", b"application/json; charset=utf-8"),
    ];
    assert_eq!(Form::of(headers), Ok(Form::Binary));
    let event = CloudEvent::from_binary(headers, Bytes::from_static(b"{\n  \"a\": 1\n}")).unwrap();
    assert_eq!((event.id.as_deref(), &*event.source), (Some("1234-1234-1234"), "/mycontext/subcontext"));
    assert_eq!(event.datacontenttype.as_deref(), Some("application/json; charset=utf-8"));
    assert_eq!(
        event.to_structured(OWN),
        concat!(
            r#"{"specversion":"1.0","id":"1234-1234-1234","source":"/mycontext/subcontext","type":"com.example.someevent","#,
            r#""time":"2018-04-05T03:56:24Z","datacontenttype":"application/json; charset=utf-8","data":{"#,
            "\n  \"a\": 1\n}}"
        )
    );
}

#[test]
fn headers_are_printable_ascii() {
    let event =
        structured(&with(&[("subject", "\"Euro \u{20ac} \u{1f600}\""), ("ext", "\"100% \\\"sure\\\"\"")])).unwrap();
    assert_eq!(header(&event, "ce-subject").as_deref(), Some("Euro%20%E2%82%AC%20%F0%9F%98%80"));
    assert_eq!(header(&event, "ce-ext").as_deref(), Some("100%25%20%22sure%22"));
    let names: Vec<_> = event.to_binary(OWN).headers.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["ce-specversion", "ce-id", "ce-source", "ce-type", "ce-subject", "ce-ext"]);
}

/// JSON without a media type is JSON in the JSON format only: elsewhere it is said.
#[test]
fn implied_media_types_are_made_explicit() {
    let implied = structured(&with(&[("data", "{}")])).unwrap();
    assert_eq!(header(&implied, "content-type").as_deref(), Some("application/json"));
    assert_eq!(shown(&implied).get("datacontenttype"), None);
    let untyped = structured(&with(&[("data_base64", "\"e30=\"")])).unwrap();
    assert_eq!(header(&untyped, "content-type"), None);
    let none = structured(&with(&[])).unwrap();
    assert_eq!(header(&none, "content-type"), None);
}
