//! Filters agree with a naive evaluation over `serde_json::Value`.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

const TEXTS: [&str; 9] = ["a", "ab", "b", "", "1", "1.0", "true", "2030-01-31T10:30:00Z", "2030-01-31T11:30:00+01:00"];

fn any_leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => proptest::sample::select(TEXTS.to_vec()).prop_map(Value::from),
        2 => (-4_i32..8).prop_map(|quarters| Value::from(f64::from(quarters) / 4.0)),
        1 => (-1_i64..3).prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
    ]
}

fn any_data() -> impl Strategy<Value = Value> {
    let nested = any_leaf().prop_recursive(2, 24, 12, |inner| {
        prop_oneof![1 => proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from), 2 => any_object(inner)]
    });
    prop_oneof![9 => any_object(nested.clone().boxed()), 1 => nested]
}

/// Members with names that pointers have and, so that it is sometimes large, with others.
fn any_object(value: BoxedStrategy<Value>) -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        3 => proptest::sample::select(vec!["a", "b", "0", "a/b", "~", "h"]),
        1 => proptest::sample::select(vec!["c", "d", "e", "f", "g", "i"]),
    ];
    let members = proptest::collection::vec((name.prop_map(String::from), value), 0..14);
    members.prop_map(|members| Value::Object(members.into_iter().collect()))
}

fn any_attribute() -> impl Strategy<Value = String> {
    let pointer =
        proptest::collection::vec(proptest::sample::select(vec!["a", "b", "0", "1", "a~1b", "~0", "h"]), 1..3);
    prop_oneof![
        proptest::sample::select(vec!["type", "source", "ext", "context.a", "context.b"]).prop_map(String::from),
        pointer.prop_map(|tokens| format!("data/{}", tokens.join("/"))),
    ]
}

fn any_expression() -> impl Strategy<Value = Value> {
    let attribute = any_attribute;
    let text = || proptest::sample::select(vec!["a", "ab", "b", "1", "2030"]).prop_map(Value::from);
    let exact = any_leaf().prop_map(|value| if value == json!("") { json!("a") } else { value });
    let limit = prop_oneof![
        (-4_i32..8).prop_map(|quarters| Value::from(f64::from(quarters) / 4.0)),
        proptest::sample::select(vec!["2030-01-31T10:30:00Z", "2030-01-31T10:29:59Z", "2030-02-01T00:00:00Z"])
            .prop_map(Value::from),
    ];
    let of = |dialect: &'static str, value: BoxedStrategy<Value>| {
        let tests = proptest::collection::btree_map(attribute(), value, 1..3);
        tests.prop_map(move |tests| json!({ dialect: tests.into_iter().collect::<Map<_, _>>() })).boxed()
    };
    let sides = ["gt", "gte", "lt", "lte"].map(|side| of(side, limit.clone().boxed()));
    let [gt, gte, lt, lte] = sides;
    let leaf = prop_oneof![
        4 => of("exact", exact.boxed()),
        1 => of("prefix", text().boxed()),
        1 => of("suffix", text().boxed()),
        2 => of("in", proptest::collection::vec(any_leaf(), 1..9).prop_map(Value::from).boxed()),
        1 => gt,
        1 => gte,
        1 => lt,
        1 => lte,
        1 => attribute().prop_map(|name| json!({ "exists": name })),
        1 => proptest::collection::vec(attribute(), 1..3).prop_map(|names| json!({ "exists": names })),
    ];
    leaf.prop_recursive(4, 12, 3, |inner| {
        let list = || proptest::collection::vec(inner.clone(), 1..4);
        prop_oneof![
            list().prop_map(|nested| json!({ "all": nested })),
            list().prop_map(|nested| json!({ "any": nested })),
            inner.clone().prop_map(|nested| json!({ "not": nested })),
        ]
    })
}

/// The values of an attribute, and whether they are texts that may mean more.
fn values(event: &Event, data: &Value, name: &str) -> (Vec<Value>, bool) {
    if let Some(pointer) = name.strip_prefix("data") {
        return (data.pointer(pointer).cloned().into_iter().collect(), false);
    }
    let (all, key) = name.strip_prefix("context.").map_or((&event.attributes, name), |key| (&event.pairs, key));
    (all.iter().filter(|(other, _)| other == key).map(|(_, value)| Value::from(value.as_str())).collect(), true)
}

/// What a text of an attribute may be equal to: itself, and what it reads as.
fn equal(value: &Value, wanted: &Value, plain: bool) -> bool {
    let same = |one: &Value| match (one.as_f64(), wanted.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == wanted,
    };
    let read = || serde_json::from_str::<Value>(value.as_str()?).ok().filter(|read| !read.is_null());
    same(value) || plain && read().is_some_and(|read| same(&read))
}

fn order(value: &Value, limit: &Value, plain: bool) -> Option<std::cmp::Ordering> {
    if let Some(limit) = limit.as_f64() {
        let read = || serde_json::from_str::<Value>(value.as_str()?).ok()?.as_f64();
        return value.as_f64().or_else(|| if plain { read() } else { None })?.partial_cmp(&limit);
    }
    let time = |value: &Value| value.as_str()?.parse::<jiff::Timestamp>().ok();
    Some(time(value)?.cmp(&time(limit)?))
}

fn holds(expression: &Value, event: &Event, data: &Value) -> bool {
    let (dialect, inner) = expression.as_object().unwrap().iter().next().unwrap();
    let nested = |inner: &Value| holds(inner, event, data);
    let tests = |test: &dyn Fn(&Value, &Value, bool) -> bool| {
        inner.as_object().unwrap().iter().all(|(name, wanted)| {
            let (values, plain) = values(event, data, name);
            values.iter().any(|value| test(value, wanted, plain))
        })
    };
    let text = |test: fn(&str, &str) -> bool| {
        tests(&|value, wanted, _| value.as_str().is_some_and(|value| test(value, wanted.as_str().unwrap())))
    };
    let side = |test: fn(std::cmp::Ordering) -> bool| {
        tests(&|value, limit, plain| order(value, limit, plain).is_some_and(test))
    };
    let exists = |name: &Value| !values(event, data, name.as_str().unwrap()).0.is_empty();
    match dialect.as_str() {
        "all" => inner.as_array().unwrap().iter().all(nested),
        "any" => inner.as_array().unwrap().iter().any(nested),
        "not" => !nested(inner),
        "exists" => inner.as_array().map_or_else(|| exists(inner), |names| names.iter().all(exists)),
        "exact" => tests(&equal),
        "in" => tests(&|value, all, plain| all.as_array().unwrap().iter().any(|wanted| equal(value, wanted, plain))),
        "prefix" => text(|value, wanted| value.starts_with(wanted)),
        "suffix" => text(|value, wanted| value.ends_with(wanted)),
        "gt" => side(std::cmp::Ordering::is_gt),
        "gte" => side(std::cmp::Ordering::is_ge),
        "lt" => side(std::cmp::Ordering::is_lt),
        "lte" => side(std::cmp::Ordering::is_le),
        _ => unreachable!("{dialect}"),
    }
}

fn any_event() -> impl Strategy<Value = (Event, Value)> {
    let named = |names: &'static [&'static str]| {
        let text = proptest::sample::select(TEXTS.to_vec()).prop_map(String::from);
        proptest::collection::vec((proptest::sample::select(names).prop_map(String::from), text), 0..4)
    };
    (named(&["type", "source", "ext"]), named(&["a", "b"]), any_data()).prop_map(|(mut attributes, pairs, data)| {
        attributes.sort();
        attributes.dedup_by(|one, other| one.0 == other.0);
        let text = serde_json::to_string(&data).unwrap();
        (Event { attributes, pairs, data: Some(text), ..Event::default() }, data)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn filters_agree_with_a_naive_evaluation(
        expressions in proptest::collection::vec(any_expression(), 0..2),
        (event, data) in any_event(),
    ) {
        let parsed: Filter = filter(&Value::from(expressions.clone()).to_string());
        let expected = expressions.iter().all(|expression| holds(expression, &event, &data));
        prop_assert_eq!(parsed.accepts(&Candidate::new(&event)), expected, "{:?} {:?}", expressions, event);
    }

    /// Whatever is sent, it is a filter or is told why not, and is given back as it came.
    #[test]
    fn any_json_is_a_filter_or_is_told_why_not(expression in any_expression(), at in 0_usize..200, with in "[\\[\\]{}\":,a-c0-2 ]{0,3}") {
        let mut text = json!([expression]).to_string();
        let at = at % (text.len() + 1);
        let end = (at + with.len()).min(text.len());
        if text.is_char_boundary(at) && text.is_char_boundary(end) {
            text.replace_range(at..end, &with);
        }
        if let Ok(raw) = serde_json::from_str::<Box<RawValue>>(&text) {
            match Filter::parse(raw) {
                Ok(parsed) => prop_assert_eq!(serde_json::to_string(&parsed).unwrap(), text.trim()),
                Err(invalid) => prop_assert!(!invalid.problems().is_empty() && !invalid.to_string().is_empty()),
            }
        }
    }
}
