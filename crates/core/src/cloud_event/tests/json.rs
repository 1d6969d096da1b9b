//! The JSON event format: how values and data are mapped.

use super::*;

/// What data become.
#[derive(Debug, PartialEq, Eq)]
enum Becomes {
    /// Bytes, and the member that they are given back as.
    Bytes(&'static [u8], &'static str),
    Nothing,
    Refused(&'static str),
}
use Becomes::{Bytes as Is, Nothing, Refused};

/// What the specification demands, the members, and what the data become.
type Case = (&'static str, &'static [(&'static str, &'static str)], Becomes);

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("no data", &[], Nothing),
    ("no data, but a media type", &[("datacontenttype", r#""text/plain""#)], Nothing),
    ("JSON without a media type", &[("data", r#"{"a": 1}"#)], Is(br#"{"a": 1}"#, r#""data":{"a": 1}"#)),
    ("a JSON string without a media type", &[("data", r#""I'm just a string""#)],
        Is(br#""I'm just a string""#, r#""data":"I'm just a string""#)),
    ("a string is not parsed as JSON", &[("data", r#""[1,2]""#)], Is(br#""[1,2]""#, r#""data":"[1,2]""#)),
    ("a string is not parsed as JSON", &[("datacontenttype", r#""application/json""#), ("data", r#""{}""#)],
        Is(br#""{}""#, r#""data":"{}""#)),
    ("null is a payload", &[("data", "null")], Is(b"null", r#""data":null"#)),
    ("null is a payload", &[("datacontenttype", r#""application/json""#), ("data", "null")], Is(b"null", r#""data":null"#)),
    ("a number", &[("data", "1.50e+3")], Is(b"1.50e+3", r#""data":1.50e+3"#)),
    ("a great number", &[("data", "9007199254740993.00")], Is(b"9007199254740993.00", r#""data":9007199254740993.00"#)),
    ("a boolean", &[("data", "true")], Is(b"true", r#""data":true"#)),
    ("a list", &[("data", "[1,\t2 ]")], Is(b"[1,\t2 ]", "\"data\":[1,\t2 ]")),
    ("escapes, repeated keys and white space stay", &[("data", "{\"a\":\"\\u0000\\/\\u00e9\",\n \"a\": 1.0}")],
        Is(b"{\"a\":\"\\u0000\\/\\u00e9\",\n \"a\": 1.0}", "\"data\":{\"a\":\"\\u0000\\/\\u00e9\",\n \"a\": 1.0}")),
    ("lone surrogates stay", &[("data", r#""\ud800""#)], Is(br#""\ud800""#, r#""data":"\ud800""#)),
    ("*/json", &[("datacontenttype", r#""text/json""#), ("data", "[]")], Is(b"[]", r#""data":[]"#)),
    ("*/*+json", &[("datacontenttype", r#""application/geo+json""#), ("data", "[]")], Is(b"[]", r#""data":[]"#)),
    ("media types have no case", &[("datacontenttype", r#""Application/Geo+JSON""#), ("data", "[]")], Is(b"[]", r#""data":[]"#)),
    ("parameters do not count", &[("datacontenttype", r#""application/json; charset=utf-8""#), ("data", "[]")],
        Is(b"[]", r#""data":[]"#)),
    ("not JSON: jsonl", &[("datacontenttype", r#""application/jsonl""#), ("data", "[]")], Refused("data must be a string")),
    ("not JSON: a parameter", &[("datacontenttype", r#""text/plain; a=json""#), ("data", "[]")], Refused("data must be a string")),
    ("text", &[("datacontenttype", r#""text/plain""#), ("data", r#""a\u00e9\n\"""#)], Is("aé\n\"".as_bytes(), r#""data":"aé\n\"""#)),
    ("empty text", &[("datacontenttype", r#""text/plain""#), ("data", r#""""#)], Is(b"", r#""data":"""#)),
    ("text as XML", &[("datacontenttype", r#""application/xml""#), ("data", r#""<much wow=\"xml\"/>""#)],
        Is(br#"<much wow="xml"/>"#, r#""data":"<much wow=\"xml\"/>""#)),
    ("text of any media type", &[("datacontenttype", r#""application/x-any""#), ("data", r#""abc""#)], Is(b"abc", r#""data":"abc""#)),
    ("NUL in text", &[("datacontenttype", r#""text/plain""#), ("data", r#""\u0000""#)], Is(b"\0", r#""data":"\u0000""#)),
    ("text is Unicode", &[("datacontenttype", r#""text/plain""#), ("data", r#""\ud800""#)], Refused("data must be valid Unicode")),
    ("text is a string", &[("datacontenttype", r#""text/xml""#), ("data", r#"{"a": 1}"#)], Refused("data must be a string")),
    ("text is a string", &[("datacontenttype", r#""text/xml""#), ("data", "1")], Refused("data must be a string")),
    ("text that is null", &[("datacontenttype", r#""text/xml""#), ("data", "null")], Nothing),
    ("text in its charset", &[("datacontenttype", r#""text/plain; charset=iso-8859-1""#), ("data", r#""e""#)], Is(b"e", r#""data":"e""#)),
    ("text in its charset", &[("datacontenttype", r#""text/plain; charset=iso-8859-1""#), ("data", r#""\u00e9""#)],
        Refused("data cannot be sent as a string in the charset")),
    ("text in its charset", &[("datacontenttype", r#""text/plain; charset=utf-16""#), ("data", r#""e""#)],
        Refused("data cannot be sent as a string in the charset")),
    ("Base64", &[("datacontenttype", r#""application/octet-stream""#), ("data_base64", r#""AAH/""#)],
        Is(b"\0\x01\xff", r#""data_base64":"AAH/""#)),
    ("Base64 without a media type is not JSON", &[("data_base64", r#""e30=""#)], Is(b"{}", r#""data_base64":"e30=""#)),
    ("Base64 of JSON is JSON", &[("datacontenttype", r#""application/json""#), ("data_base64", r#""e30=""#)], Is(b"{}", r#""data":{}"#)),
    ("Base64 of what is no JSON", &[("datacontenttype", r#""application/json""#), ("data_base64", r#""ew==""#)],
        Is(b"{", r#""data_base64":"ew==""#)),
    ("Base64 of two documents", &[("datacontenttype", r#""application/json""#), ("data_base64", r#""e317fQ==""#)],
        Is(b"{}{}", r#""data_base64":"e317fQ==""#)),
    ("Base64 of text is text", &[("datacontenttype", r#""text/plain""#), ("data_base64", r#""w6k=""#)], Is("é".as_bytes(), r#""data":"é""#)),
    ("Base64 of text that is not UTF-8", &[("datacontenttype", r#""text/plain; charset=iso-8859-1""#), ("data_base64", r#""6Q==""#)],
        Is(b"\xe9", r#""data_base64":"6Q==""#)),
    ("Base64 of nothing", &[("datacontenttype", r#""image/png""#), ("data_base64", r#""""#)], Is(b"", r#""data_base64":"""#)),
    ("Base64 with escapes", &[("datacontenttype", r#""image/png""#), ("data_base64", r#""AAH\/""#)], Is(b"\0\x01\xff", r#""data_base64":"AAH/""#)),
    ("Base64 that is null", &[("data_base64", "null")], Nothing),
    ("Base64 is a string", &[("data_base64", "1")], Refused("data_base64 must be a string")),
    ("Base64 is a string", &[("data_base64", "[1]")], Refused("data_base64 must be a string")),
    ("Base64 has padding", &[("data_base64", r#""AA""#)], Refused("data_base64 must be Base64")),
    ("Base64 has its alphabet", &[("data_base64", r#""_-==""#)], Refused("data_base64 must be Base64")),
    ("Base64 has no white space", &[("data_base64", r#""AA A=""#)], Refused("data_base64 must be Base64")),
    ("Base64 has no bits left", &[("data_base64", r#""AB==""#)], Refused("data_base64 must be Base64")),
    ("Base64 is none", &[("data_base64", r#""... base64 encoded string ...""#)], Refused("data_base64 must be Base64")),
    ("data and data_base64 exclude each other", &[("data", "1"), ("data_base64", r#""AA==""#)], Refused("data_base64 must not be given")),
    ("data and data_base64 exclude each other", &[("data", "null"), ("data_base64", r#""AA==""#)], Refused("data_base64 must not be")),
];

#[test]
fn data_become_what_the_media_type_says() {
    for (rule, members, becomes) in CASES {
        let json = with(members);
        let read = structured(&json);
        match (&read, becomes) {
            (Ok(event), Nothing) => assert_eq!(event.data, None, "{rule}: {json}"),
            (Ok(event), Is(bytes, back)) => {
                assert_eq!(event.data.as_ref().map(|data| &data.bytes[..]), Some(*bytes), "{rule}: {json}");
                let shown = String::from_utf8(event.to_structured(OWN).to_vec()).unwrap();
                assert!(shown.ends_with(&format!("{back}}}")), "{rule}: {shown}");
                assert_eq!(structured(&shown).as_ref(), Ok(event), "{rule}");
            }
            (Err(error), Refused(expected)) => assert!(error.to_string().contains(expected), "{rule}: {json}: {error}"),
            _ => panic!("{rule}: {json}: {read:?}, not {becomes:?}"),
        }
    }
}

#[test]
fn data_is_a_part_of_the_body() {
    let body = Bytes::from(with(&[("data", r#"{"a": [1, 2]}"#)]));
    let data = CloudEvent::from_structured(&body).unwrap().data.unwrap().bytes;
    let range = body.as_ptr_range();
    assert!(range.contains(&data.as_ptr()) && range.contains(&data.last_chunk::<1>().unwrap().as_ptr()));
}

#[test]
fn null_attributes_are_unset() {
    let event = structured(&with(&[
        ("subject", "null"),
        ("time", "null"),
        ("datacontenttype", "null"),
        ("dataschema", "null"),
        ("unsetextension", "null"),
        ("contextdata", "null"),
        ("sequence", "null"),
        ("data", "{}"),
    ]));
    assert_eq!(event, structured(&with(&[("data", "{}")])));
}

/// The examples of the format's section 3.2, with Base64 where the specification has an ellipsis, and their headers in
/// binary mode.
#[test]
fn examples_of_the_format() {
    let cases: [(&str, &str, &str, &[u8]); 4] = [
        (
            "A234-1234-1234",
            r#""datacontenttype":"application/vnd.apache.thrift.binary","data_base64":"AAECAwQ=""#,
            "application/vnd.apache.thrift.binary",
            b"\x00\x01\x02\x03\x04",
        ),
        (
            "B234-1234-1234",
            r#""unsetextension":null,"datacontenttype":"application/xml","data":"<much wow=\"xml\"/>""#,
            "application/xml",
            br#"<much wow="xml"/>"#,
        ),
        (
            "C234-1234-1234",
            r#""subject":null,"datacontenttype":"application/json","data":{"appinfoA":"abc","appinfoB":123,"appinfoC":true}"#,
            "application/json",
            br#"{"appinfoA":"abc","appinfoB":123,"appinfoC":true}"#,
        ),
        (
            "D234-1234-1234",
            r#""subject":null,"data":"I'm just a string""#,
            "application/json",
            br#""I'm just a string""#,
        ),
    ];
    for (id, members, content_type, body) in cases {
        let json = format!(
            r#"{{"specversion":"1.0","type":"com.example.someevent","source":"/mycontext","id":"{id}",
                "time":"2018-04-05T17:31:00Z","comexampleextension1":"value","comexampleothervalue":5,{members}}}"#
        );
        let event = structured(&json).unwrap();
        let message = event.to_binary(OWN);
        let mut headers: Vec<_> = message.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        headers.sort_unstable();
        let expected = [
            ("ce-comexampleextension1", "value"),
            ("ce-comexampleothervalue", "5"),
            ("ce-id", id),
            ("ce-source", "/mycontext"),
            ("ce-specversion", "1.0"),
            ("ce-time", "2018-04-05T17:31:00Z"),
            ("ce-type", "com.example.someevent"),
            ("content-type", content_type),
        ];
        assert_eq!((headers.as_slice(), &message.body[..]), (expected.as_slice(), body), "{id}");
        let mut sent: serde_json::Map<_, _> = serde_json::from_str(&json).unwrap();
        sent.retain(|name, value| name == "data" || !value.is_null());
        assert_eq!(shown(&event), serde_json::Value::from(sent), "{id}");
    }
}

#[test]
fn what_is_no_object_is_refused() {
    let cases: [(&[u8], &str); 8] = [
        (b"", "the event is not JSON"),
        (b"{", "the event is not JSON"),
        (b"[]", "the event must be a JSON object"),
        (b"\"{}\"", "the event must be a JSON object"),
        (b"null", "the event must be a JSON object"),
        (b"{\"id\": \"1\",}", "the event is not JSON"),
        (b"\xef\xbb\xbf{}", "the event is not JSON"),
        (b"{\"id\": \"\xff\"}", "the event is not UTF-8 from byte 8 on"),
    ];
    for (body, expected) in cases {
        let error = CloudEvent::from_structured(&Bytes::from_static(body)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(error.field(), "the event");
    }
}

/// Attributes are top-level members: an object `extensions`, as older drafts had it, is none.
#[test]
fn extensions_are_top_level_members() {
    let event = structured(&with(&[("comexample", "\"x\"")])).unwrap();
    assert_eq!(shown(&event)["comexample"], "x");
    let error = structured(&with(&[("extensions", "{\"comexample\": \"x\"}")])).unwrap_err();
    assert_eq!(error.field(), "extensions");
}

#[test]
fn our_id_stands_in_where_the_producer_gave_none() {
    let mut event = structured(&with(&[])).unwrap();
    event.id = None;
    assert_eq!(shown(&event)["id"], "0000000000007");
    assert_eq!(header(&event, "ce-id").as_deref(), Some("0000000000007"));
}

#[test]
fn data_that_are_json_are_known_as_such() {
    let json = |members| structured(&with(members)).unwrap().json().map(|json| json.get().to_owned());
    assert_eq!(json(&[("data", "[1]")]).as_deref(), Some("[1]"));
    assert_eq!(json(&[]), None);
    assert_eq!(json(&[("data_base64", "\"e30=\"")]), None);
    assert_eq!(json(&[("datacontenttype", "\"text/plain\""), ("data", "\"{}\"")]), None);
    assert_eq!(json(&[("datacontenttype", "\"application/json\""), ("data_base64", "\"ew==\"")]), None);
}

#[test]
fn data_that_are_text_are_known_as_such() {
    let text = |members| structured(&with(members)).unwrap().text().map(str::to_owned);
    assert_eq!(text(&[("datacontenttype", "\"text/plain\""), ("data", "\"é\"")]).as_deref(), Some("é"));
    assert_eq!(text(&[("datacontenttype", "\"a/b\""), ("data", "\"{}\"")]).as_deref(), Some("{}"), "sent as a string");
    assert_eq!(text(&[("datacontenttype", "\"text/plain\""), ("data_base64", "\"w6k=\"")]).as_deref(), Some("é"));
    assert_eq!(text(&[("datacontenttype", "\"text/plain\""), ("data_base64", "\"/w==\"")]), None);
    assert_eq!(text(&[("datacontenttype", "\"a/b\""), ("data_base64", "\"e30=\"")]), None);
    assert_eq!(text(&[("data", "\"JSON\"")]), None);
    assert_eq!(text(&[("data_base64", "\"e30=\"")]), None);
    assert_eq!(text(&[]), None);
}
