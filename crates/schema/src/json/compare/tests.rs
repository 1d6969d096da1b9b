use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::definition::{Document, Format};
use crate::json::source;
use crate::language::Validator;

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

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn documents() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3..8_i64).prop_map(Value::from),
        (-6..9_i64).prop_map(|halves| json!(halves as f64 / 2.0)),
        prop::sample::select(vec!["", "a", "ab", "xyz"]).prop_map(Value::from),
    ];
    scalar.prop_recursive(3, 12, 3, |inner| {
        let member = (prop::sample::select(NAMES.to_vec()), inner.clone());
        let members = prop::collection::vec(member, 0..4);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            members.prop_map(|members| members.into_iter().map(|(name, value)| (name.to_string(), value)).collect()),
        ]
    })
}

/// A keyword with a value.
fn keyword(inner: BoxedStrategy<Value>) -> BoxedStrategy<(String, Value)> {
    let kinds = vec!["string", "number", "integer", "boolean", "null", "object", "array"];
    let one = prop::sample::select(kinds.clone()).prop_map(Value::from);
    let many = prop::sample::subsequence(kinds, 1..5).prop_map(Value::from);
    let named = |name: &str, values: BoxedStrategy<Value>| {
        let name = name.to_string();
        values.prop_map(move |value| (name.clone(), value)).boxed()
    };
    let count = || (0..4_i64).prop_map(Value::from).boxed();
    let number = || (-2..5_i64).prop_map(|halves| json!(halves as f64 / 2.0)).boxed();
    let names = prop::sample::subsequence(NAMES.to_vec(), 0..3).prop_map(Value::from).boxed();
    let schemas = prop::collection::vec(inner.clone(), 1..3).prop_map(Value::from).boxed();
    let properties = prop::collection::btree_map(prop::sample::select(NAMES.to_vec()), inner.clone(), 0..3)
        .prop_map(|map| map.into_iter().map(|(name, value)| (name.to_string(), value)).collect::<Value>())
        .boxed();
    let values = prop::collection::vec(prop::sample::select(vec![json!(1), json!("a"), json!(null), json!(2.5)]), 1..4);
    let values = values.prop_map(|mut values| {
        values.sort_by_key(Value::to_string);
        values.dedup();
        Value::from(values)
    });
    prop_oneof![
        named("type", prop_oneof![one, many].boxed()),
        named("properties", properties),
        named("additionalProperties", prop_oneof![any::<bool>().prop_map(Value::from), inner.clone()].boxed()),
        named("required", names),
        named("items", inner.clone()),
        named("enum", values.boxed()),
        named("minimum", number()),
        named("exclusiveMaximum", number()),
        named("multipleOf", prop::sample::select(vec![json!(0.5), json!(1), json!(2)]).boxed()),
        named("minLength", count()),
        named("maxItems", count()),
        named("maxProperties", count()),
        named("uniqueItems", any::<bool>().prop_map(Value::from).boxed()),
        named("pattern", prop::sample::select(vec![json!("^a"), json!("b$")]).boxed()),
        named("allOf", schemas.clone()),
        named("anyOf", schemas),
        named("not", inner),
    ]
    .boxed()
}

fn schemas() -> BoxedStrategy<Value> {
    let leaf = prop_oneof![Just(json!({})), Just(json!(true)), Just(json!({"$ref": "#/definitions/x"}))];
    leaf.prop_recursive(3, 16, 3, |inner| {
        prop::collection::vec(keyword(inner.boxed()), 0..4).prop_map(|keywords| keywords.into_iter().collect::<Value>())
    })
    .boxed()
}

/// A pair of schemas that have much in common: the second one is the first one with a keyword replaced somewhere.
fn pairs() -> impl Strategy<Value = (Value, Value)> {
    let change = (keyword(schemas()), any::<prop::sample::Index>(), any::<bool>());
    (schemas(), schemas(), prop::collection::vec(change, 0..3), any::<bool>()).prop_map(
        |(schema, defined, changes, other)| {
            let root = |schema: Value, defined: &Value| match schema {
                Value::Object(mut map) if !map.contains_key("$ref") => {
                    map.insert("definitions".into(), json!({"x": defined}));
                    Value::Object(map)
                }
                schema => json!({"allOf": [schema], "definitions": {"x": defined}}),
            };
            // What is defined must not lead to itself.
            let defined = if defined.to_string().contains("$ref") { json!({"type": "string"}) } else { defined };
            let mut changed = schema.clone();
            for ((name, value), index, remove) in changes {
                let places = 1 + count(&changed);
                change_at(&mut changed, index.index(places), &name, &value, remove);
            }
            let defined_after = if other { json!({"type": ["string", "null"]}) } else { defined.clone() };
            (root(schema, &defined), root(changed, &defined_after))
        },
    )
}

fn count(value: &Value) -> usize {
    match value {
        Value::Object(map) => 1 + map.values().map(count).sum::<usize>(),
        Value::Array(items) => items.iter().map(count).sum(),
        _ => 0,
    }
}

/// Changes the object at an index, in the order of a walk.
fn change_at(value: &mut Value, mut index: usize, name: &str, new: &Value, remove: bool) {
    let children: Vec<&mut Value> = match value {
        Value::Object(map) if index == 0 => {
            if remove {
                map.remove(name);
            } else {
                map.insert(name.into(), new.clone());
            }
            return;
        }
        Value::Object(map) => {
            index -= 1;
            map.values_mut().collect()
        }
        Value::Array(items) => items.iter_mut().collect(),
        _ => return,
    };
    for child in children {
        let size = count(child);
        if index < size {
            return change_at(child, index, name, new, remove);
        }
        index -= size;
    }
}

/// Whether a comparison says that a property was added to an open object, which is compatible by decision only.
fn adds_to_an_open_object(comparison: &Comparison) -> bool {
    comparison.changes().iter().any(|change| change.message.contains("is added to an open object"))
}

fn accepts(schema: &Value, document: &Value) -> Option<bool> {
    let compiled = source::compile(&definition(schema)).ok()?;
    let bytes = document.to_string();
    Some(compiled.validate(Document { bytes: bytes.as_bytes(), format: Format::Json }).is_valid())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn what_is_compatible_accepts_what_was_accepted(
        (old, new) in pairs(),
        documents in prop::collection::vec(documents(), 12),
    ) {
        let Ok(comparison) = compare(&definition(&old), &definition(&new)) else { return Ok(()) };
        if comparison.verdict() != Verdict::Compatible || adds_to_an_open_object(&comparison) {
            return Ok(());
        }
        for document in documents {
            if accepts(&old, &document) == Some(true) {
                prop_assert_eq!(accepts(&new, &document), Some(true), "{} -> {}: {}", old, new, document);
            }
        }
    }
}
