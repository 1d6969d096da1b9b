use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::name::MAX_NAME;

fn id(raw: i64) -> Tsid {
    Tsid::from_i64(raw)
}

fn number(text: &str) -> VersionNumber {
    text.parse().unwrap()
}

/// `shop:*:order:*`, or with a version `shop:*:order:*@1.2`.
fn binding(text: &str) -> Binding {
    let (pattern, version) = text.split_once('@').map_or((text, None), |(pattern, version)| (pattern, Some(version)));
    Binding { pattern: pattern.parse().unwrap(), version: version.map(number) }
}

fn index(all: &[(i64, Option<i64>, &[&str])]) -> Index<i64> {
    let mut index = Index::default();
    for (raw, client, bindings) in all {
        index.insert(id(*raw), client.map(id), bindings.iter().map(|text| binding(text)).collect(), *raw);
    }
    index
}

fn found(index: &Index<i64>, client: Option<i64>, event_type: &str, version: Option<&str>) -> Vec<i64> {
    let all = index.matching(client.map(id), event_type, version.map(number));
    assert!(all.iter().all(|(found, kept)| found.to_i64() == **kept));
    all.into_iter().map(|(_, kept)| *kept).collect()
}

#[test]
fn patterns_are_types_with_wildcards_for_whole_parts() {
    let cases = [
        ("shop:orders:order:created", "shop:orders:order:created", true),
        ("shop:orders:order:created", "shop:orders:order:create", false),
        ("shop:*:order:*", "shop:orders:order:created", true),
        ("shop:*:order:*", "shop:orders:line:created", false),
        ("*:*:*:*", "a:b:c:d", true),
        ("*:*:*:*", "a:b:c", false),
        ("*:*:*:*", "a:b:c:d:e", false),
        ("*:*:*:*", ":::", true),
        ("*", "order.created", true),
        ("*", "a:b", false),
        ("*:b", "a:b", true),
        ("com.github.push", "com.github.push", true),
        ("a:b:c:d:e", "a:b:c:d:e", true),
        ("Bestellung:*", "Bestellung:größer", true),
        ("shop:*", "SHOP:x", false),
    ];
    for (pattern, event_type, matches) in cases {
        let parsed: TypePattern = pattern.parse().unwrap();
        assert_eq!(parsed.matches(event_type), matches, "{pattern} {event_type}");
        let index = index(&[(1, None, &[pattern])]);
        assert_eq!(!found(&index, None, event_type, None).is_empty(), matches, "{pattern} {event_type}");
        let text = serde_json::to_string(&parsed).unwrap();
        assert_eq!((text.as_str(), serde_json::from_str(&text).unwrap()), (&*format!("{pattern:?}"), parsed));
    }
}

#[test]
fn what_is_no_pattern_is_told_why() {
    let long = "x".repeat(MAX_NAME + 1);
    let cases = [
        ("", InvalidPattern::NotAType),
        (long.as_str(), InvalidPattern::NotAType),
        ("a:\0:c:d", InvalidPattern::NotAType),
        ("a::c:d", InvalidPattern::EmptyPart),
        ("a:b:c:", InvalidPattern::EmptyPart),
        (":", InvalidPattern::EmptyPart),
        ("shop:order-*:x:y", InvalidPattern::PartialWildcard),
        ("shop:**", InvalidPattern::PartialWildcard),
        ("a:b:c:d:*", InvalidPattern::TooManyParts),
        ("*:b:c:d:e", InvalidPattern::TooManyParts),
    ];
    for (text, expected) in cases {
        assert_eq!(text.parse::<TypePattern>().unwrap_err(), expected, "{text}");
    }
    let error = serde_json::from_str::<TypePattern>("\"a*\"").unwrap_err().to_string();
    assert!(error.contains("whole part"), "{error}");
    assert!("x".repeat(MAX_NAME).parse::<TypePattern>().is_ok());
}

#[test]
fn clients_see_their_own_events_and_the_anchor_level_all() {
    let all: [(i64, Option<i64>, &[&str]); 4] =
        [(4, Some(7), &["a:b:c:d"]), (3, Some(8), &["a:b:c:d"]), (2, None, &["*:*:*:*"]), (1, Some(7), &["a:*:c:*"])];
    let index = index(&all);
    assert_eq!(found(&index, Some(7), "a:b:c:d", None), [1, 2, 4]);
    assert_eq!(found(&index, Some(8), "a:b:c:d", None), [2, 3]);
    assert_eq!(found(&index, Some(9), "a:b:c:d", None), [2]);
    assert_eq!(found(&index, None, "a:b:c:d", None), [2], "an event of no client is no client's");
}

#[test]
fn a_version_is_that_version_and_none_is_all() {
    let all: [(i64, Option<i64>, &[&str]); 4] = [
        (1, None, &["a:b:c:d@1.0"]),
        (2, None, &["a:b:c:d@1.1"]),
        (3, None, &["a:b:c:d"]),
        (4, None, &["a:*:*:*@1.1"]),
    ];
    let index = index(&all);
    assert_eq!(found(&index, None, "a:b:c:d", Some("1.0")), [1, 3]);
    assert_eq!(found(&index, None, "a:b:c:d", Some("1.1")), [2, 3, 4]);
    assert_eq!(found(&index, None, "a:b:c:d", Some("2.0")), [3]);
    assert_eq!(found(&index, None, "a:b:c:d", None), [3], "an event that was not validated has no version");
}

#[test]
fn several_bindings_find_a_subscription_once() {
    let bindings = ["a:b:c:d", "a:b:c:d", "a:b:c:d@1.0", "a:*:c:d", "*:*:*:*", "e"];
    let mut index = index(&[(1, Some(7), &bindings), (2, Some(7), &["a:b:c:d"])]);
    assert_eq!(found(&index, Some(7), "a:b:c:d", Some("1.0")), [1, 2]);
    assert_eq!(found(&index, Some(7), "e", None), [1]);
    assert!(index.remove(id(1)) && !index.remove(id(1)));
    assert_eq!(found(&index, Some(7), "a:b:c:d", Some("1.0")), [2]);
    assert_eq!((index.len(), index.get(id(1)), index.get(id(2))), (1, None, Some(&2)));
}

#[test]
fn a_subscription_is_replaced_with_its_client_and_bindings() {
    let mut index = index(&[(1, Some(7), &["a:b:c:d"])]);
    index.insert(id(1), Some(id(8)), vec![binding("a:b:c:*")], 1);
    assert_eq!(index.len(), 1);
    assert_eq!(found(&index, Some(7), "a:b:c:d", None), Vec::<i64>::new());
    assert_eq!(found(&index, Some(8), "a:b:c:d", None), [1]);
    index.insert(id(1), Some(id(8)), Vec::new(), 1);
    assert_eq!(found(&index, Some(8), "a:b:c:d", None), Vec::<i64>::new());
    assert_eq!((index.len(), index.get(id(1))), (1, Some(&1)));
}

#[test]
fn what_is_removed_leaves_nothing_behind() {
    let mut index = Index::default();
    for raw in 0..500 {
        let bindings = ["x:y:z:w", "x:*:z:w", "x:y:z:w@1.0"].map(binding).into();
        index.insert(id(raw), Some(id(raw % 5)), bindings, raw);
    }
    assert_eq!(found(&index, Some(3), "x:y:z:w", Some("1.0")).len(), 100);
    let before = index.clone();
    (0..500).for_each(|raw| assert!(index.remove(id(raw))));
    assert!(index.is_empty() && index.scopes.len() == 0);
    assert_eq!(found(&before, Some(3), "x:y:z:w", Some("1.0")).len(), 100, "a snapshot stays");
}

/// Types that no sender of good will would choose cost what others cost, since no more than five parts are looked at.
#[test]
fn hostile_types_find_nothing() {
    let index = index(&[(1, None, &["*:*:*:*"]), (2, None, &["*"]), (3, None, &["a:b:c:d:e"])]);
    for event_type in [":".repeat(1 << 20), "*:".repeat(1 << 19), "\0:".repeat(5)] {
        assert_eq!(found(&index, None, &event_type, None), Vec::<i64>::new());
    }
    assert_eq!(found(&index, None, "", None), [2], "one part, though empty");
    assert_eq!(found(&index, None, "*:*:*:*", None), [1], "an event's * is a letter like others");
}

const TYPES: [&str; 12] = [
    "a:b:c:d",
    "a:b:c:e",
    "a:b:d:d",
    "b:b:c:d",
    "a:a:a:a",
    "a:b",
    "a:b:c",
    "a",
    "x.y",
    "a:b:c:d:e",
    "b:*:c:d",
    "a::c:d",
];
const VERSIONS: [Option<&str>; 3] = [None, Some("1.0"), Some("1.1")];

fn any_binding() -> impl Strategy<Value = Binding> {
    let any_part = proptest::sample::select(vec!["*", "*", "a", "b", "c", "d"]);
    let wild = proptest::collection::vec(any_part, 1..=4).prop_map(|parts| parts.join(":"));
    let plain = proptest::sample::select(vec!["a:b:c:d", "a:b:c:e", "a:b:c:d:e", "x.y", "a:b"]).prop_map(String::from);
    let pattern = prop_oneof![3 => wild, 2 => plain];
    (pattern, proptest::sample::select(VERSIONS.to_vec()))
        .prop_map(|(pattern, version)| Binding { pattern: pattern.parse().unwrap(), version: version.map(number) })
}

#[derive(Debug, Clone)]
enum Change {
    Insert(i64, Option<i64>, Vec<Binding>),
    Remove(i64),
    Snapshot,
}

fn any_change() -> impl Strategy<Value = Change> {
    let client = proptest::option::of(0_i64..3);
    let bindings = proptest::collection::vec(any_binding(), 0..5);
    prop_oneof![
        6 => (0_i64..60, client, bindings).prop_map(|(id, client, bindings)| Change::Insert(id, client, bindings)),
        3 => (0_i64..60).prop_map(Change::Remove),
        1 => Just(Change::Snapshot),
    ]
}

type Scanned = BTreeMap<i64, (Option<i64>, Vec<Binding>)>;

/// Asks every subscription, part by part.
fn scan(all: &Scanned, client: Option<i64>, event_type: &str, version: Option<VersionNumber>) -> Vec<i64> {
    let asks = |binding: &Binding| {
        let (wanted, parts): (Vec<_>, Vec<_>) =
            (binding.pattern.as_str().split(':').collect(), event_type.split(':').collect());
        wanted.len() == parts.len()
            && wanted.iter().zip(&parts).all(|(wanted, part)| *wanted == "*" || wanted == part)
            && binding.version.is_none_or(|wanted| Some(wanted) == version)
    };
    let sees = |of: &Option<i64>| of.is_none() || *of == client;
    let of_all = all.iter().filter(|(_, (of, bindings))| sees(of) && bindings.iter().any(asks));
    of_all.map(|(id, _)| *id).collect()
}

fn agree(index: &Index<i64>, all: &Scanned) -> Result<(), TestCaseError> {
    prop_assert_eq!(index.len(), all.len());
    for event_type in TYPES {
        for version in VERSIONS {
            for client in [None, Some(0), Some(1), Some(2)] {
                let expected = scan(all, client, event_type, version.map(number));
                prop_assert_eq!(found(index, client, event_type, version), expected, "{} {:?}", event_type, version);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is inserted, replaced and removed in whatever order, a look-up finds what a scan finds, and a snapshot
    /// finds what was there when it was taken.
    #[test]
    fn look_ups_find_what_a_scan_finds(changes in proptest::collection::vec(any_change(), 0..80)) {
        let (mut index, mut all) = (Index::default(), Scanned::new());
        let mut snapshots = Vec::new();
        for change in changes {
            match change {
                Change::Insert(raw, client, bindings) => {
                    index.insert(id(raw), client.map(id), bindings.clone(), raw);
                    all.insert(raw, (client, bindings));
                }
                Change::Remove(raw) => prop_assert_eq!(index.remove(id(raw)), all.remove(&raw).is_some()),
                Change::Snapshot => snapshots.push((index.clone(), all.clone())),
            }
        }
        agree(&index, &all)?;
        for (index, all) in &snapshots {
            agree(index, all)?;
        }
    }

    /// What is found under a hash is taken for a pattern exactly if that is the one that was looked for.
    #[test]
    fn a_pattern_is_made_from_the_types_that_it_matches(binding in any_binding(), at in 0..TYPES.len(), wild in 0_u8..16) {
        let (pattern, event_type) = (binding.pattern, TYPES[at]);
        let made = Parts::of(event_type, &RandomState::new()).make(wild, &pattern);
        prop_assert_eq!(made, pattern.wild() == wild && pattern.matches(event_type));
    }
}
