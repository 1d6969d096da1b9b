use proptest::prelude::*;
use serde_json::Value;

use super::*;

/// A tree as `serde_json` would read it.
fn to_value(cursor: Cursor<'_>) -> Value {
    let tree = cursor.tree;
    match cursor.entry().kind {
        Kind::Null => Value::Null,
        Kind::True => Value::Bool(true),
        Kind::False => Value::Bool(false),
        Kind::Number => serde_json::from_str(cursor.source()).unwrap(),
        Kind::String => Value::String(tree.string(cursor.at).into()),
        Kind::Array => cursor.items().map(to_value).collect(),
        Kind::Object => {
            let mut members = serde_json::Map::new();
            let mut at = cursor.at + 1;
            while at < cursor.entry().next {
                let value = Cursor { tree, at: at + 1 };
                members.insert(tree.string(at).into(), to_value(value));
                at = value.entry().next;
            }
            Value::Object(members)
        }
    }
}

fn values() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    scalar.prop_recursive(5, 60, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map(".{0,12}", inner, 0..40).prop_map(|members| members.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn what_serde_json_writes_is_read(value in values(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let tree = Tree::read(&text).unwrap();
        prop_assert_eq!(to_value(tree.root()), value);
    }

    /// Texts that are nearly JSON. Numbers beyond those of `serde_json` are JSON all the same.
    #[test]
    fn what_serde_json_refuses_is_refused(text in "([\\[\\]{},:]|\"[a\\\\/u0D8C\\n]{0,7}\"|-?[0-9]{1,3}(\\.[0-9]?)?([eE][+-]?[0-9]?)?|true|fals|nul|null| |\t){0,9}") {
        let expected = serde_json::from_str::<Value>(&text);
        match Tree::read(&text) {
            Ok(tree) => match expected {
                Ok(expected) => prop_assert_eq!(to_value(tree.root()), expected),
                Err(error) => prop_assert!(error.to_string().starts_with("number out of range"), "{}: {}", text, error),
            },
            Err(fault) => {
                let allowed = fault.message.contains("twice");
                prop_assert!(allowed || expected.is_err(), "{}: {}", text, fault.message);
                prop_assert!(fault.at <= text.len());
            }
        }
    }
}

#[test]
fn numbers_that_no_float_holds_are_read() {
    for text in ["1E310", "-1E310", "[1e999999999]"] {
        assert!(Tree::read(text).is_ok(), "{text}");
        assert!(serde_json::from_str::<Value>(text).is_err(), "{text}");
    }
}

#[test]
fn values_know_where_they_are() {
    let text = " {\"a\": [1, \"\\u00e4\\ud83d\\ude00\"], \"b\": {}} ";
    let tree = Tree::read(text).unwrap();
    assert_eq!(tree.depth, 2);
    let root = tree.root();
    assert_eq!(root.source(), text.trim());
    let list = root.get_member("a").unwrap();
    assert_eq!(list.source(), "[1, \"\\u00e4\\ud83d\\ude00\"]");
    let items: Vec<Cursor<'_>> = list.items().collect();
    assert_eq!((items.len(), items[0].source(), tree.string(items[1].at)), (2, "1", "ä😀"));
    assert_eq!(root.get_member("b").unwrap().source(), "{}");
    assert!(root.get_member("c").is_none());
}

#[test]
fn names_are_found_in_objects_of_all_sizes() {
    for count in [1, 2, 31, 32, 33, 34, 1000] {
        let members: Vec<String> = (0..count).map(|at| format!("\"name {at}\": {at}")).collect();
        let text = format!("{{{}}}", members.join(","));
        let tree = Tree::read(&text).unwrap();
        for at in 0..count {
            let found = tree.root().get_member(&format!("name {at}")).map(Cursor::source);
            assert_eq!(found, Some(at.to_string().as_str()), "{count}");
        }
        assert!(tree.root().get_member("name").is_none());
        let twice = format!("{{{},\"name \\u0030\":1}}", members.join(","));
        let fault = Tree::read(&twice).unwrap_err();
        assert_eq!(fault.message, "the name \"name 0\" occurs twice in an object", "{count}");
    }
}

#[test]
fn faults_say_what_was_expected_and_where() {
    let cases = [
        ("", "expected a value, found the end", 0),
        ("  ", "expected a value, found the end", 2),
        ("\u{feff}{}", "expected a value, found a byte order mark: leave it out", 0),
        ("[1,]", "expected a value, found ']'", 3),
        ("[1 2]", "expected `,` or `]`, found '2'", 3),
        ("{\"a\" 1}", "expected `:`, found '1'", 5),
        ("{\"a\":1,}", "expected a name in quotes, found '}'", 7),
        ("{a:1}", "expected a name in quotes, found 'a'", 1),
        ("{\"a\":1 ü}", "expected `,` or `}`, found 'ü'", 7),
        ("1 2", "expected the end, found '2'", 2),
        ("01", "expected no digit after a leading zero, found '1'", 1),
        ("-", "expected a digit, found the end", 1),
        ("1.e1", "expected a digit, found 'e'", 2),
        ("1e", "expected a digit, found the end", 2),
        ("nul", "expected `null`, found 'n'", 0),
        ("\"a", "expected `\"`, found the end", 2),
        ("\"\\x\"", "expected an escape, found 'x'", 2),
        ("\"\\u12g4\"", "expected four hexadecimal digits, found 'g'", 5),
        ("\"\\ud800\"", "half of a surrogate pair in a string", 1),
        ("\"\\ud800\\u0041\"", "half of a surrogate pair in a string", 1),
        ("\"\\udc00\"", "half of a surrogate pair in a string", 1),
        ("\"a\nb\"", "a control character in a string has to be escaped", 2),
    ];
    for (text, message, at) in cases {
        assert_eq!(Tree::read(text).unwrap_err(), Fault { message: message.into(), at }, "{text:?}");
    }
}

#[test]
fn depth_and_pointers_are_bounded() {
    let nested = |count: usize| format!("{}1{}", "[".repeat(count), "]".repeat(count));
    assert_eq!(Tree::read(&nested(DEPTH)).unwrap().depth, DEPTH);
    let fault = Tree::read(&nested(DEPTH + 1)).unwrap_err();
    assert_eq!((fault.message.as_str(), fault.at), ("arrays and objects are nested more than 128 deep", DEPTH));
    assert!(Tree::read(&"[".repeat(100_000)).is_err());
    let named = |length: usize| format!("{{\"{}\":1}}", "n".repeat(length));
    assert!(Tree::read(&named(MAX_POINTER - 1)).is_ok());
    assert!(Tree::read(&named(MAX_POINTER)).unwrap_err().message.contains("more than 4096 bytes in total"));
}
