use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn raw(text: &str) -> &RawValue {
    serde_json::from_str(text).unwrap()
}

fn tokens(pointer: &str) -> Vec<Box<str>> {
    pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~").into()).collect()
}

/// What a pointer finds, as JSON or the name of its kind.
fn found(text: &str, pointer: &str) -> Option<String> {
    let document = Document::index(raw(text)).unwrap();
    document.find(&tokens(pointer)).map(|node| format!("{:?}", document.value(node)))
}

#[test]
fn pointers_lead_to_values() {
    let text = r#" {"a": [10, {"b": "x"}, []], "": {"": true}, "a/b": null, "m~n": "\u00e9", "\u0061b": "\ud83d\ude00",
        "bad": "\ud800", "twice": 1, "twice": {"in": false}, "01": "names may look like numbers"} "#;
    let cases = [
        ("", Some("Object")),
        ("/a", Some("Array")),
        ("/a/1", Some("Object")),
        ("/a/1/b", Some(r#"Text("x")"#)),
        ("/a/2", Some("Array")),
        ("/a/2/0", None),
        ("/a/3", None),
        ("/a/-", None),
        ("/a/-1", None),
        ("/a/+1", None),
        ("/a/00", None),
        ("/a/01", None),
        ("/a/1/b/c", None),
        ("/a/99999999999999999999999", None),
        ("/", Some("Object")),
        ("//", Some("Boolean(true)")),
        ("/a~1b", Some("Null")),
        ("/m~0n", Some(r#"Text("é")"#)),
        ("/ab", Some(r#"Text("😀")"#)),
        ("/bad", Some("Unreadable")),
        ("/twice", Some("Object")),
        ("/twice/in", Some("Boolean(false)")),
        ("/01", Some(r#"Text("names may look like numbers")"#)),
        ("/none", None),
    ];
    for (pointer, expected) in cases {
        assert_eq!(found(text, pointer).as_deref(), expected, "{pointer}");
    }
    assert_eq!(found(r#"{"a": 1, "b": 2, "a": null}"#, "/a").as_deref(), Some("Null"), "the last one counts");
    assert_eq!(found("\"x\"", "").as_deref(), Some(r#"Text("x")"#));
    assert_eq!(found(" null ", "").as_deref(), Some("Null"));
    assert_eq!(found(r#"{"\ud800":1}"#, "/\u{fffd}"), None, "what has no text has no pointer");
}

#[test]
fn large_objects_find_all_their_members() {
    let members: Vec<String> = (0..500).map(|at| format!(r#""k{}":{at}"#, at * 7919 % 400)).collect();
    let text = format!(r#"{{"\ud800":0,{},"\u006b1":"last"}}"#, members.join(","));
    let document = Document::index(raw(&text)).unwrap();
    for key in 0..400 {
        let node = document.find(&tokens(&format!("/k{key}"))).unwrap();
        let last = (0..500).rfind(|at| at * 7919 % 400 == key).unwrap();
        let expected = if key == 1 {
            Json::Text("last")
        } else {
            Json::Number(Number::parse(&last.to_string()).unwrap().into_owned())
        };
        assert_eq!(document.value(node), expected, "{key}");
    }
    assert!(document.find(&tokens("/k")).is_none() && document.find(&tokens("/k400")).is_none());
    assert_eq!(document.members(document.whole()).count(), 502);
}

/// The index of hostile data is bounded, and its depth costs no stack.
#[test]
fn hostile_data_are_indexed_in_one_pass() {
    assert_eq!(size_of::<Node>(), 12);
    let size = 1 << 20;
    let cases = [
        format!("{}{}", "[".repeat(size / 2), "]".repeat(size / 2)),
        format!("[{}0]", "0,".repeat(size / 2)),
        format!("{{{}\"\":0}}", "\"\":0,".repeat(size / 5)),
        format!("\"{}\"", "\\n".repeat(size / 2)),
        format!("[{}\"\\n\"]", "\"\\n\",".repeat(size / 5)),
        format!("1{}.{}1e-5", "0".repeat(size / 2), "0".repeat(size / 2)),
    ];
    for text in &cases {
        let document = Document::index(raw(text)).unwrap();
        assert!(document.nodes.len() <= text.len() / 2 + 1, "{} nodes", document.nodes.len());
    }
    let long = Document::index(raw(&cases[5])).unwrap();
    let (one, other) = (long.value(long.whole()), Number::parse("5e99999999").unwrap());
    assert!(matches!(one, Json::Number(number) if number < other));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-c\"\\\\/~\u{e9}\u{1f600}\n]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 60, 14, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..14).prop_map(Value::from),
            proptest::collection::btree_map("[a-c\"\\\\/~\u{e9}]{0,2}", inner, 0..14)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn agree(document: &Document<'_>, node: Node, value: &Value, pointer: &str) -> Result<(), TestCaseError> {
    prop_assert_eq!(document.find(&tokens(pointer)), Some(node));
    match (document.value(node), value) {
        (Json::Null, Value::Null) => {}
        (Json::Boolean(one), Value::Bool(other)) => prop_assert_eq!(one, *other),
        (Json::Number(one), Value::Number(other)) => {
            let other = other.to_string();
            prop_assert_eq!(Some(one), Number::parse(&other));
        }
        (Json::Text(one), Value::String(other)) => prop_assert_eq!(one, other.as_str()),
        (Json::Array, Value::Array(items)) => {
            prop_assert_eq!(document.items(node).len(), items.len());
            for (at, item) in items.iter().enumerate() {
                let child = document.child(node, &at.to_string());
                prop_assert!(child.is_some());
                agree(document, child.unwrap(), item, &format!("{pointer}/{at}"))?;
            }
        }
        (Json::Object, Value::Object(members)) => {
            prop_assert_eq!(document.members(node).count(), members.len());
            for (name, member) in members {
                let child = document.child(node, name);
                prop_assert!(child.is_some());
                let token = name.replace('~', "~0").replace('/', "~1");
                agree(document, child.unwrap(), member, &format!("{pointer}/{token}"))?;
            }
        }
        (one, other) => prop_assert!(false, "{one:?} is not {other}"),
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_value_is_found(value in any_json(), pretty: bool) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let document = Document::index(raw(&text)).unwrap();
        agree(&document, document.whole(), &value, "")?;
    }

    #[test]
    fn whatever_json_accepts_has_an_index(text in "[\\[\\]{}\",:0-9eE.+\\-truefalsn\\\\u ]{0,40}") {
        if let Ok(json) = serde_json::from_str::<&RawValue>(&text) {
            prop_assert!(Document::index(json).is_some(), "{}", text);
        }
    }
}
