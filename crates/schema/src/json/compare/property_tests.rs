//! What is told to be compatible accepts what was accepted: pairs of schemas that have much in common, and documents that
//! both versions judge.

use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use serde_json::{Map, json};

use super::*;
use crate::definition::{Document, Format};
use crate::json::source;
use crate::language::Validator;

const NAMES: [&str; 4] = ["a", "b", "c", "ab"];
const TEXTS: [&str; 10] = ["", "a", "ab", "xyz", "b1", "a@b.example", "2024-02-29", "YQ==", "MQ==", "1"];
const DRAFTS: [&str; 3] = [
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
];

fn numbers() -> BoxedStrategy<Value> {
    prop_oneof![(-3..8_i64).prop_map(Value::from), (-6..9_i64).prop_map(|halves| json!(halves as f64 / 2.0))].boxed()
}

fn documents() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        numbers(),
        select(TEXTS.to_vec()).prop_map(Value::from),
    ];
    scalar.prop_recursive(3, 12, 3, |inner| {
        let member = (select(NAMES.to_vec()), inner.clone());
        let members = prop::collection::vec(member, 0..4);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            members.prop_map(|members| members.into_iter().map(|(name, value)| (name.to_string(), value)).collect()),
        ]
    })
}

/// Schemas by the names of properties.
fn by_name(inner: &BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let map = prop::collection::btree_map(select(NAMES.to_vec()), inner.clone(), 0..3);
    map.prop_map(|map| map.into_iter().map(|(name, value)| (name.to_string(), value)).collect::<Value>()).boxed()
}

/// A keyword with a value.
fn keyword(inner: BoxedStrategy<Value>) -> BoxedStrategy<(String, Value)> {
    let named = |name: &'static str, values: BoxedStrategy<Value>| {
        values.prop_map(move |value| (name.to_string(), value)).boxed()
    };
    let one_of = |names: &[&'static str], values: BoxedStrategy<Value>| {
        (select(names.to_vec()), values).prop_map(|(name, value)| (name.to_string(), value)).boxed()
    };
    let schemas = prop::collection::vec(inner.clone(), 1..3).prop_map(Value::from).boxed();
    let texts = |texts: &[&'static str]| select(texts.to_vec()).prop_map(Value::from).boxed();
    let count = (0..4_i64).prop_map(Value::from).boxed();
    let open = prop_oneof![any::<bool>().prop_map(Value::from), inner.clone()].boxed();
    let values =
        prop::collection::vec(select(vec![json!(1), json!("a"), json!(null), json!(2.5), json!({"a": 1})]), 1..4);
    let values = values.prop_map(|mut values| {
        values.sort_by_key(Value::to_string);
        values.dedup();
        Value::from(values)
    });
    let patterned = prop::collection::btree_map(select(vec!["^a", "b$"]), inner.clone(), 0..3);
    let patterned = patterned.prop_map(|map| map.into_iter().map(|(name, value)| (name.to_string(), value)).collect());
    let dependencies = |inner: BoxedStrategy<Value>| {
        let names = subsequence(NAMES.to_vec(), 0..3).prop_map(Value::from);
        by_name(&prop_oneof![names, inner].boxed())
    };
    let names = subsequence(NAMES.to_vec(), 0..3).prop_map(Value::from).boxed();
    prop_oneof![
        3 => named("type", types()),
        3 => named("properties", by_name(&inner)),
        2 => one_of(&["additionalProperties", "additionalItems"], open.clone()),
        1 => one_of(&["unevaluatedProperties", "unevaluatedItems"], open),
        2 => named("required", names.clone()),
        3 => one_of(&["items", "contains", "propertyNames", "if", "then", "else", "not"], inner.clone()),
        1 => one_of(&["items", "prefixItems"], schemas.clone()),
        2 => named("enum", values.boxed()),
        1 => named("const", documents().boxed()),
        3 => one_of(&["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"], numbers()),
        1 => named("multipleOf", select(vec![json!(0.5), json!(1), json!(2), json!(1.5)]).boxed()),
        3 => one_of(&["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"], count.clone()),
        1 => one_of(&["minContains", "maxContains"], count),
        1 => named("uniqueItems", any::<bool>().prop_map(Value::from).boxed()),
        1 => named("pattern", texts(&["^a", "b$"])),
        1 => named("format", texts(&["email", "date", "nothing"])),
        1 => named("contentEncoding", texts(&["base64", "nothing"])),
        1 => named("contentMediaType", texts(&["application/json", "nothing"])),
        1 => named("patternProperties", patterned.boxed()),
        1 => named("dependencies", dependencies(inner.clone())),
        1 => named("dependentSchemas", by_name(&inner)),
        1 => named("dependentRequired", by_name(&names)),
        3 => one_of(&["allOf", "anyOf", "oneOf"], schemas),
        1 => one_of(&["title", "$comment"], texts(&["a", "b"])),
    ]
    .boxed()
}

fn types() -> BoxedStrategy<Value> {
    let kinds = vec!["string", "number", "integer", "boolean", "null", "object", "array"];
    let one = select(kinds.clone()).prop_map(Value::from);
    prop_oneof![one, subsequence(kinds, 1..5).prop_map(Value::from)].boxed()
}

fn schemas() -> BoxedStrategy<Value> {
    let leaf =
        prop_oneof![Just(json!({})), Just(json!(true)), Just(json!(false)), Just(json!({"$ref": "#/definitions/x"}))];
    leaf.prop_recursive(3, 16, 3, |inner| {
        prop::collection::vec(keyword(inner.boxed()), 0..4).prop_map(|keywords| keywords.into_iter().collect::<Value>())
    })
    .boxed()
}

/// A pair of schemas that have much in common: the second one is the first one with keywords replaced or removed
/// somewhere.
fn pairs() -> impl Strategy<Value = (Definition, Definition)> {
    let change = (keyword(schemas()), any::<Index>(), prop::bool::weighted(0.3));
    let changes = prop::collection::vec(change, 0..3);
    let modes = (select(DRAFTS.to_vec()), any::<[bool; 3]>());
    (schemas(), schemas(), changes, modes).prop_map(|(schema, defined, changes, (draft, [other, old, new]))| {
        let root = |schema: Value, defined: &Value, strict: bool| {
            let mut root = match schema {
                Value::Object(map) if !map.contains_key("$ref") => map,
                schema => Map::from_iter([("allOf".to_string(), json!([schema]))]),
            };
            root.insert("definitions".into(), json!({"x": defined}));
            root.insert("$schema".into(), draft.into());
            Definition { content: Value::Object(root).to_string(), strict, ..Definition::default() }
        };
        // What is defined must not lead to itself.
        let defined = if defined.to_string().contains("$ref") { json!({"type": "string"}) } else { defined };
        let mut changed = schema.clone();
        for ((name, value), index, remove) in changes {
            let places = 1 + count(&changed);
            change_at(&mut changed, index.index(places), &name, &value, remove);
        }
        let defined_after = if other { json!({"type": ["string", "null"]}) } else { defined.clone() };
        (root(schema, &defined, old), root(changed, &defined_after, new))
    })
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
                let first = map.keys().next().cloned();
                first.map(|first| map.remove(&first));
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

/// The properties that a comparison says were added to open objects, which is compatible by decision only.
fn added(comparison: &Comparison) -> Vec<&str> {
    let added = comparison.changes().iter().filter(|change| change.message.contains("is added to an open object"));
    added.filter_map(|change| change.path.rsplit('/').next()).collect()
}

/// Whether an object in a document has one of these members.
fn has(document: &Value, names: &[&str]) -> bool {
    match document {
        Value::Object(map) => map.iter().any(|(name, value)| names.contains(&name.as_str()) || has(value, names)),
        Value::Array(items) => items.iter().any(|item| has(item, names)),
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_compatible_accepts_what_was_accepted(
        (old, new) in pairs(),
        documents in prop::collection::vec(documents(), 24),
    ) {
        let Ok(comparison) = compare(&old, &new) else { return Ok(()) };
        if comparison.verdict() != Verdict::Compatible {
            return Ok(());
        }
        let added = added(&comparison);
        let (Ok(before), Ok(after)) = (source::compile(&old), source::compile(&new)) else { return Ok(()) };
        for document in documents.iter().filter(|document| !has(document, &added)) {
            let bytes = document.to_string();
            let document = Document { bytes: bytes.as_bytes(), format: Format::Json };
            if before.validate(document).is_valid() {
                prop_assert!(after.validate(document).is_valid(), "{:?} -> {:?}: {}", old, new, bytes);
            }
        }
    }
}
