use serde_json::json;

use super::*;

fn definition(schema: &Value) -> Definition {
    Definition { content: schema.to_string(), ..Definition::default() }
}

fn compared(old: &Value, new: &Value) -> Comparison {
    compare(&definition(old), &definition(new)).unwrap()
}

/// A case: two schemas, the verdict, and the path of the worst change.
fn check(old: Value, new: Value, verdict: Verdict, path: &str) {
    let comparison = compared(&old, &new);
    assert_eq!(comparison.verdict(), verdict, "{old} -> {new}: {:?}", comparison.changes());
    if verdict > Verdict::Compatible || !path.is_empty() {
        let paths: Vec<&str> = comparison.at_least(verdict).map(|change| change.path.as_str()).collect();
        assert!(paths.contains(&path), "{old} -> {new}: {path} in {paths:?}");
    }
}

#[test]
fn what_is_tightened_breaks_and_the_reverse_does_not() {
    let cases = [
        (json!({}), json!({"required": ["a"]}), ""),
        (json!({"title": "x", "type": "object"}), json!({"type": "object", "required": ["a"]}), "/required"),
        (json!({"type": ["string", "null"]}), json!({"type": "string"}), "/type"),
        (json!({"type": "number"}), json!({"type": "integer"}), "/type"),
        (json!({"enum": [1, "a", null]}), json!({"enum": [1.0, "a"]}), "/enum"),
        (json!({"enum": [1, 2]}), json!({"const": 1}), "/const"),
        (json!({"type": "string"}), json!({"type": "string", "enum": ["a"]}), "/enum"),
        (json!({"type": "string"}), json!({"type": "string", "pattern": "^a"}), "/pattern"),
        (json!({"type": "string"}), json!({"type": "string", "minLength": 1}), "/minLength"),
        (json!({"maxLength": 9}), json!({"maxLength": 8}), "/maxLength"),
        (json!({"minimum": 1}), json!({"exclusiveMinimum": 1}), "/exclusiveMinimum"),
        (json!({"minimum": 1}), json!({"minimum": 1.5}), "/minimum"),
        (json!({"maximum": 10, "exclusiveMaximum": 20}), json!({"maximum": 9}), "/maximum"),
        (json!({"multipleOf": 3}), json!({"multipleOf": 6}), "/multipleOf"),
        (json!({"multipleOf": 0.1}), json!({"multipleOf": 0.3}), "/multipleOf"),
        (json!({"type": "array"}), json!({"type": "array", "uniqueItems": true}), "/uniqueItems"),
        (json!({"type": "array"}), json!({"type": "array", "maxItems": 3}), "/maxItems"),
        (json!({"type": "object"}), json!({"type": "object", "minProperties": 1}), "/minProperties"),
        (json!({"type": "object"}), json!({"type": "object", "additionalProperties": false}), "/additionalProperties"),
        (
            json!({"type": "object"}),
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            "/additionalProperties",
        ),
        (json!({"type": "array"}), json!({"type": "array", "items": {"type": "string"}}), "/items"),
        (json!({"type": "array", "items": {"type": "string"}}), json!({"type": "array", "items": false}), "/items"),
        (
            json!({"properties": {"a": {"type": ["string", "null"]}}}),
            json!({"properties": {"a": {"type": "string"}}}),
            "/properties/a/type",
        ),
        (
            json!({"$ref": "#/definitions/x", "definitions": {"x": {"type": ["string", "null"]}}}),
            json!({"$ref": "#/definitions/y", "definitions": {"y": {"type": "string"}}}),
            "/definitions/y/type",
        ),
        (
            json!({"allOf": [{"type": ["string", "null"]}, true]}),
            json!({"allOf": [{"type": "string"}, true]}),
            "/allOf/0/type",
        ),
        (json!({"not": {"type": "null"}}), json!(false), ""),
    ];
    for (old, new, path) in cases {
        check(old.clone(), new.clone(), Verdict::Breaking, path);
        check(new, old, Verdict::Compatible, "");
    }
}

#[test]
fn content_that_is_not_decoded_any_more_is_another() {
    let old = json!({"contentMediaType": "application/json", "contentEncoding": "base64"});
    check(old.clone(), json!({"contentMediaType": "application/json"}), Verdict::Breaking, "/contentEncoding");
    check(old, json!({"contentEncoding": "base64"}), Verdict::Compatible, "/contentMediaType");
}

#[test]
fn properties_are_added_and_removed() {
    let none = json!({"type": "object", "properties": {}});
    let one = json!({"type": "object", "properties": {"a/b": {"type": "string"}}});
    let with = |schema: &Value, rest: Value| {
        let mut schema = schema.clone();
        schema["additionalProperties"] = rest;
        schema
    };
    // The decision: an optional property added to an open object is compatible.
    check(none.clone(), one.clone(), Verdict::Compatible, "/properties/a~1b");
    check(one.clone(), none.clone(), Verdict::Compatible, "/properties/a~1b");
    let closed = json!(false);
    check(with(&none, closed.clone()), with(&one, closed.clone()), Verdict::Compatible, "/properties/a~1b");
    check(with(&one, closed.clone()), with(&none, closed), Verdict::Breaking, "/properties/a~1b");
    let numbers = json!({"type": "number"});
    check(with(&none, numbers.clone()), with(&one, numbers.clone()), Verdict::Breaking, "/properties/a~1b/type");
    check(with(&one, numbers.clone()), with(&none, numbers), Verdict::Breaking, "/additionalProperties/type");
    let strings = json!({"type": "string", "title": "any"});
    check(with(&none, strings.clone()), with(&one, strings.clone()), Verdict::Compatible, "");
    check(with(&one, strings.clone()), with(&none, strings), Verdict::Compatible, "");
    let required = json!({"type": "object", "properties": {"a/b": {"type": "string"}}, "required": ["a/b"]});
    check(none, required.clone(), Verdict::Breaking, "/required");
    check(required, one, Verdict::Compatible, "/required");
}

#[test]
fn what_is_not_on_the_list_cannot_be_told() {
    let cases = [
        (json!({"pattern": "^a"}), json!({"pattern": "^b"}), "/pattern"),
        (json!({"anyOf": [{"type": "string"}]}), json!({"anyOf": [{"type": "null"}]}), "/anyOf"),
        (json!({"oneOf": [true, {"type": "null"}]}), json!({"oneOf": [true]}), "/oneOf"),
        (json!({"not": {"const": 1}}), json!({"not": {"const": 2}}), "/not"),
        (json!({"if": {"const": 1}, "then": false}), json!({"if": {"const": 1}, "then": true}), "/then"),
        (json!({"propertyNames": {"minLength": 1}}), json!({"propertyNames": {"minLength": 2}}), "/propertyNames"),
        (json!({"contains": {"const": 1}}), json!({"contains": {"const": 2}}), "/contains"),
        (json!({"dependencies": {"a": ["b"]}}), json!({"dependencies": {"a": ["c"]}}), "/dependencies"),
        (
            json!({"patternProperties": {"^a": {"type": "null"}}}),
            json!({"patternProperties": {"^a": {"type": "string"}}}),
            "/patternProperties/^a",
        ),
        (json!({"patternProperties": {"^a": true}}), json!({"patternProperties": {"^b": true}}), "/patternProperties"),
        (json!({"allOf": [true]}), json!({"allOf": [true, {"type": "null"}]}), "/allOf"),
        (json!({"items": [true]}), json!({"items": [true, true]}), "/items"),
        (json!({}), json!({"$schema": "https://json-schema.org/draft/2020-12/schema"}), "/$schema"),
    ];
    for (old, new, path) in cases {
        check(old.clone(), new.clone(), Verdict::CannotTell, path);
        let equal = compared(&old, &old);
        assert_eq!((equal.verdict(), equal.changes().len()), (Verdict::Compatible, 0), "{old}");
    }
    let modern = |mut schema: Value| {
        schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
        schema
    };
    let cases = [
        (json!({"dependentRequired": {"a": ["b"]}}), json!({"dependentRequired": {"a": ["c"]}}), "/dependentRequired"),
        (json!({"dependentSchemas": {"a": true}}), json!({"dependentSchemas": {"a": false}}), "/dependentSchemas"),
        (
            json!({"properties": {"a": true}, "unevaluatedProperties": false}),
            json!({"properties": {"b": true}, "unevaluatedProperties": false}),
            "/unevaluatedProperties",
        ),
        (json!({"contains": true, "minContains": 1}), json!({"contains": true, "minContains": 2}), "/minContains"),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": true}}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [true, false]}}}),
            "/$defs/a/anyOf",
        ),
    ];
    for (old, new, path) in cases {
        let (old, new) = (modern(old), modern(new));
        let comparison = compared(&old, &new);
        assert!(comparison.verdict() >= Verdict::CannotTell, "{old} -> {new}: {comparison:?}");
        let _ = path;
    }
}

#[test]
fn annotations_and_other_places_of_the_same_change_nothing() {
    let old = json!({
        "description": "old", "definitions": {"a": {"type": "string", "examples": ["x"]}},
        "anyOf": [{"$ref": "#/definitions/a"}, {"items": {"$ref": "#"}}]
    });
    let new = json!({
        "description": "new", "definitions": {"b": {"type": "string", "default": "y"}},
        "anyOf": [{"$ref": "#/definitions/b"}, {"items": {"$ref": "#"}, "$comment": "again"}]
    });
    check(old.clone(), new.clone(), Verdict::Compatible, "");
    check(new, old, Verdict::Compatible, "");
}

#[test]
fn strict_mode_asserts_formats() {
    let schema = json!({"type": "string", "format": "email"}).to_string();
    let of = |strict| Definition { content: schema.clone(), strict, ..Definition::default() };
    assert_eq!(compare(&of(false), &of(true)).unwrap().verdict(), Verdict::Breaking);
    assert_eq!(compare(&of(true), &of(false)).unwrap().verdict(), Verdict::Compatible);
    assert_eq!(compare(&of(true), &of(true)).unwrap().verdict(), Verdict::Compatible);
    // So do formats in what is only compared for being equal: with `not` it is the other way round.
    for schema in [
        json!({"anyOf": [{"format": "email"}, {"type": "null"}]}),
        json!({"not": {"format": "email"}}),
        json!({"patternProperties": {"^a": {"items": {"$ref": "#/definitions/x"}}}, "definitions": {"x": {"format": "email"}}}),
    ] {
        let of = |strict| Definition { content: schema.to_string(), strict, ..Definition::default() };
        assert_eq!(compare(&of(false), &of(true)).unwrap().verdict(), Verdict::CannotTell, "{schema}");
        assert_eq!(compare(&of(true), &of(false)).unwrap().verdict(), Verdict::CannotTell, "{schema}");
        assert_eq!(compare(&of(true), &of(true)).unwrap().changes(), [], "{schema}");
    }
}

#[test]
fn a_property_that_is_forbidden_breaks() {
    let forbidden = json!({"type": "object", "properties": {"a": false}});
    check(json!({"type": "object"}), forbidden.clone(), Verdict::Breaking, "/properties/a");
    check(forbidden, json!({"type": "object"}), Verdict::Compatible, "");
    let closed = json!({"type": "object", "additionalProperties": false});
    let both = json!({"type": "object", "additionalProperties": false, "properties": {"a": false}});
    check(closed, both, Verdict::Compatible, "/properties/a");
}

#[test]
fn recursive_schemas_are_compared_once() {
    let tree = |kind: &str| json!({"type": "object", "properties": {"value": {"type": kind}, "next": {"$ref": "#"}}});
    check(tree("string"), tree("string"), Verdict::Compatible, "");
    check(tree("string"), tree("number"), Verdict::Breaking, "/properties/value/type");
    let ring = |count: usize| {
        let link = |at: usize| json!({"properties": {"next": {"$ref": format!("#/definitions/{}", (at + 1) % count)}}});
        let definitions: serde_json::Map<_, _> = (0..count).map(|at| (at.to_string(), link(at))).collect();
        json!({"$ref": "#/definitions/0", "definitions": definitions})
    };
    // Rings of 200 and 201 links meet in 40,200 pairs.
    check(ring(2), ring(3), Verdict::Compatible, "");
    let comparison = compared(&ring(200), &ring(201));
    assert_eq!(comparison.verdict(), Verdict::CannotTell);
    assert!(comparison.changes()[0].message.contains("the rest is not compared"), "{comparison:?}");
}

#[test]
fn many_changes_are_counted() {
    let properties = |kind: &str| {
        let properties: serde_json::Map<_, _> = (0..2_000).map(|at| (at.to_string(), json!({"type": kind}))).collect();
        json!({"properties": properties})
    };
    let comparison = compared(&properties("string"), &properties("null"));
    assert_eq!(comparison.changes().len(), MAX_CHANGES + 1);
    assert_eq!(comparison.changes().last().unwrap().message, "1000 more changes");
    assert_eq!(comparison.verdict(), Verdict::Breaking);
}
