use serde_json::{Value, json};

use super::*;
use crate::definition::Definition;
use crate::json::source;

fn compiled(schema: &Value, strict: bool) -> Compiled {
    let definition = Definition { content: schema.to_string(), strict, ..Definition::default() };
    source::compile(&definition).unwrap()
}

fn report(schema: &Value, document: &str) -> Report {
    compiled(schema, true).validate(Document { bytes: document.as_bytes(), format: Format::Json })
}

/// The only violation: where it is, and what.
fn violation(schema: &Value, document: &str) -> (String, String) {
    let report = report(schema, document);
    assert_eq!((report.total(), report.violations().len()), (1, 1), "{schema} {document}: {report:?}");
    let violation = &report.violations()[0];
    (violation.path.clone(), violation.message.clone())
}

#[test]
fn violations_say_where_what_was_found_and_what_is_expected() {
    let cases = [
        (json!({"type": "string"}), "1", "", "expected a string, found the integer 1"),
        (json!({"type": ["integer", "null"]}), "1.5", "", "expected null or an integer, found the number 1.5"),
        (json!({"type": "object"}), "[1,2]", "", "expected an object, found an array of 2 items"),
        (
            json!({"properties": {"a/b": {"type": "null"}}}),
            r#"{"a/b":"x"}"#,
            "/a~1b",
            "expected null, found the string \"x\"",
        ),
        (json!({"items": {"required": ["a"]}}), "[{\"a\":1},{}]", "/1", "the property \"a\" is missing"),
        (
            json!({"additionalProperties": false}),
            r#"{"a":1}"#,
            "",
            "no value is allowed here, found an object of 1 property",
        ),
        (
            json!({"properties": {"a": true}, "additionalProperties": false}),
            r#"{"a":1,"b":2,"c":3}"#,
            "",
            "the properties \"b\", \"c\" are not allowed",
        ),
        (json!({"minimum": 5}), "4", "", "expected at least 5, found 4"),
        (json!({"maximum": 5}), "5.01", "", "expected at most 5, found 5.01"),
        (json!({"exclusiveMinimum": 5}), "5", "", "expected more than 5, found 5"),
        (json!({"exclusiveMaximum": 5}), "5.0", "", "expected less than 5, found 5.0"),
        (json!({"multipleOf": 0.01}), "0.075", "", "expected a multiple of 0.01, found 0.075"),
        (json!({"minLength": 3}), "\"ä\"", "", "\"ä\" has 1 characters, expected at least 3"),
        (json!({"maxLength": 1}), "\"\\u00e4b\"", "", "\"äb\" has 2 characters, expected at most 1"),
        (json!({"pattern": "^a+$"}), "\"b\"", "", "\"b\" does not match the pattern ^a+$"),
        (json!({"format": "ipv4"}), "\"b\"", "", "\"b\" is no valid ipv4"),
        (
            json!({"const": {"a": 1}}),
            "{\"a\":2}",
            "",
            "expected a certain object of 1 properties, found an object of 1 property",
        ),
        (json!({"const": "x"}), "1", "", "expected \"x\", found 1"),
        (json!({"enum": ["a", 1, null]}), "\"b\"", "", "expected one of \"a\", 1, null, found \"b\""),
        (json!({"minItems": 1}), "[]", "", "the array has 0 items, expected at least 1"),
        (json!({"maxItems": 1}), "[1,2]", "", "the array has 2 items, expected at most 1"),
        (json!({"minProperties": 1}), "{}", "", "the object has 0 properties, expected at least 1"),
        (json!({"uniqueItems": true}), "[1,{},1.0]", "", "items of the array are equal, all have to differ"),
        (
            json!({"contains": {"const": 1}}),
            "[2]",
            "",
            "the array does not contain as many of the items of `contains` as it has to",
        ),
        (json!({"not": {"type": "null"}}), "null", "", "null matches the schema in `not`, which it must not"),
        (
            json!({"items": [true], "additionalItems": false}),
            "[1,2]",
            "",
            "the array has 2 items, at most 1 are allowed",
        ),
        (json!({"oneOf": [true, true]}), "1", "", "1 matches more than one of the alternatives of `oneOf`"),
        (
            json!({"anyOf": [{"type": "string"}, {"properties": {"a": {"minimum": 3}}, "required": ["a"]}]}),
            "{\"a\":1}",
            "",
            "an object of 1 property matches none of the 2 alternatives of `anyOf`: 1. expected a string, found an object \
             of 1 property; 2. /a: expected at least 3, found 1",
        ),
        (
            json!({"propertyNames": {"maxLength": 2}}),
            "{\"abc\":1}",
            "",
            "the name of a property is not allowed: \"abc\" has 3 characters, expected at most 2",
        ),
    ];
    for (schema, document, path, message) in cases {
        assert_eq!(violation(&schema, document), (path.into(), message.into()), "{schema} {document}");
    }
}

#[test]
fn violations_have_positions() {
    let schema = json!({"properties": {"a": {"type": "null"}, "list": {"items": {"type": "null"}}}});
    let report = report(&schema, "{\n  \"list\": [null,\n    \"ä\", 2],\n \"a\": 1}");
    let places: Vec<_> = report.violations().iter().map(|one| (one.path.as_str(), one.position)).collect();
    let at = |line, column| Some(Position { line, column });
    assert_eq!(places, [("/list/1", at(3, 5)), ("/list/2", at(3, 10)), ("/a", at(4, 7))]);
}

#[test]
fn what_is_no_json_is_one_violation() {
    let validator = compiled(&json!({}), false);
    let report = |bytes: &[u8]| validator.validate(Document { bytes, format: Format::Json });
    type Case<'a> = (&'a [u8], &'a str, Option<(u32, u32)>);
    let cases: [Case<'_>; 5] = [
        (b"", "expected a value, found the end", Some((1, 1))),
        (b"{\n \"a\": tru}", "expected `true`, found 't'", Some((2, 7))),
        (b"{\"a\":1,\"a\":2}", "the name \"a\" occurs twice in an object", Some((1, 8))),
        (b"\"\xff\"", "is not UTF-8", Some((1, 2))),
        (b"[1e999999, 1] x", "expected the end", Some((1, 15))),
    ];
    for (bytes, message, position) in cases {
        let report = report(bytes);
        let violation = &report.violations()[0];
        assert!(violation.message.contains(message), "{violation:?}");
        assert_eq!(violation.position.map(|at| (at.line, at.column)), position, "{message}");
        assert_eq!(report.total(), 1);
    }
    let large = vec![b' '; DOCUMENT_BYTES + 1];
    assert!(report(&large).violations()[0].message.contains("at most 1048576 are validated"));
    for format in [Format::Protobuf, Format::Xml] {
        let report = validator.validate(Document { bytes: b"{}", format });
        assert!(report.violations()[0].message.contains("send the event as application/json"));
    }
}

#[test]
fn numbers_are_judged_by_all_their_digits() {
    let cases = [
        (json!({"type": "integer"}), "1e400", true),
        (json!({"type": "integer"}), "1e-400", false),
        (json!({"type": "integer"}), "18446744073709551617", true),
        (json!({"type": "integer"}), "1.0", true),
        (json!({"maximum": 18_446_744_073_709_551_615_u64}), "18446744073709551615", true),
        (json!({"maximum": 18_446_744_073_709_551_615_u64}), "18446744073709551615.5", false),
        (json!({"maximum": 18_446_744_073_709_551_615_u64}), "18446744073709551616", false),
        (json!({"maximum": 9_007_199_254_740_993_i64}), "9007199254740993.5", false),
        (json!({"minimum": 9_007_199_254_740_993_i64}), "9007199254740992", false),
        (json!({"minimum": -9_007_199_254_740_993_i64}), "-9007199254740994", false),
        (json!({"maximum": 1}), "1e400", false),
        (json!({"minimum": 1}), "-1e400", false),
        (json!({"exclusiveMaximum": 0.1}), "0.0999999999999999999999999", true),
        (json!({"exclusiveMaximum": 0.1}), "0.1000", false),
        (json!({"maximum": 0.1}), "0.1000000000000000000000001", false),
        (json!({"multipleOf": 0.01}), "19.99", true),
        (json!({"multipleOf": 0.01}), "1e400", true),
        (json!({"multipleOf": 0.01}), "12345678901234567890.015", false),
        (json!({"multipleOf": 3}), "18446744073709551618", true),
        (json!({"multipleOf": 3}), "18446744073709551617", false),
        (json!({"const": 0.1}), "0.10000000000000000000", true),
        (json!({"const": 0.1}), "0.10000000000000000001", false),
        (json!({"const": 1e22}), "10000000000000000000001", false),
        (json!({"enum": [1, 2.5]}), "2.50", true),
        (json!({"enum": [9_007_199_254_740_993_i64]}), "9007199254740992", false),
        (json!({"enum": [1, 2.5]}), "1e0", true),
        (json!({"uniqueItems": true}), "[9007199254740992, 9007199254740993]", true),
        (json!({"uniqueItems": true}), "[1e1, 10.0]", false),
        (json!({"const": [1, {"a": 2}]}), "[1.0, {\"a\": 2e0}]", true),
    ];
    for (schema, document, valid) in cases {
        assert_eq!(report(&schema, document).is_valid(), valid, "{schema} {document}");
    }
}

#[test]
fn formats_are_asserted_in_strict_mode_only() {
    let schema = json!({"format": "email"});
    let document = Document { bytes: b"\"x\"", format: Format::Json };
    assert!(compiled(&schema, false).validate(document).is_valid());
    assert!(!compiled(&schema, true).validate(document).is_valid());
    let unknown = json!({"format": "there-is-none"});
    assert!(compiled(&unknown, true).validate(document).is_valid());
}

#[test]
fn a_hundred_violations_are_shown_and_all_are_counted() {
    let schema = json!({"items": {"type": "string"}});
    let document = format!("[{}]", vec!["1"; 5_000].join(","));
    let report = report(&schema, &document);
    assert_eq!((report.violations().len(), report.total()), (MAX_VIOLATIONS, 5_000));
    assert_eq!(report.violations()[99].path, "/99");
    assert_eq!(report.violations()[99].position, Some(Position { line: 1, column: 200 }));
}

#[test]
fn messages_are_bounded() {
    let long = "x".repeat(50_000);
    let schema = json!({"anyOf": vec![json!({"pattern": "^a$"}); 50]});
    let (_, message) = violation(&schema, &format!("\"{long}\""));
    assert!(message.chars().count() <= 501, "{message}");
    let schema = json!({"enum": [long]});
    let (_, message) = violation(&schema, "\"a\"");
    assert!(message.chars().count() <= 501, "{message}");
}

/// The deepest recursion that is let in, on the small stack of a test's thread.
#[test]
fn the_stack_suffices() {
    let levels = 20;
    let mut definitions = serde_json::Map::new();
    for level in 0..levels - 2 {
        let schema =
            json!({"allOf": [{"$ref": format!("#/$defs/{}", level + 1)}], "unevaluatedProperties": {"$ref": "#"}});
        definitions.insert(level.to_string(), schema);
    }
    definitions.insert((levels - 2).to_string(), json!({"properties": {"a": {"$ref": "#"}}}));
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let text = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": "#/$defs/0", "$defs": definitions
        });
        let text = text.to_string().replace("allOf", keyword).replace("\"unevaluatedProperties\"", "\"x\"");
        let definition = Definition { content: text, ..Definition::default() };
        let validator = source::compile(&definition).unwrap();
        let deepest = MAX_CALLS / validator.costs.depth;
        for depth in [deepest, deepest + 1] {
            let document = format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
            let report = validator.validate(Document { bytes: document.as_bytes(), format: Format::Json });
            let refused = report.violations().iter().any(|one| one.message.contains("can be validated"));
            assert_eq!(refused, depth > deepest, "{keyword} {depth}: {report:?}");
        }
    }
}
