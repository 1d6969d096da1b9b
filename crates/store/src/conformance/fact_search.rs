//! Searches for facts: by everything that they are found by, alone and combined, page by page.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidegate_core::{NewEvent, PayloadLimit, Timestamp, Tsid};

use super::facts::{fact, ingest, ingest_one, to_default};
use super::scene::*;
use crate::ErrorKind::Invalid;
use crate::values::*;

const CLIENTS: [Option<i64>; 3] = [None, Some(7), Some(8)];
const TYPES: [&str; 6] = ["a:b:c:d", "a:b:c:e", "a:b:x:d", "b:b:c:d", "a:b:c", "plain"];
const PATTERNS: [&str; 6] = ["a:b:c:*", "a:*:*:d", "*:b:c:d", "*:*:*:*", "a:b:c:d", "c:*:*:*"];
const TEXTS: [&str; 3] = ["one", "two", "three"];
const NAMES: [&str; 2] = ["tenant", "region"];

fn one_of<T: Copy>(rng: &mut StdRng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

fn maybe(rng: &mut StdRng) -> Option<String> {
    rng.random_bool(0.7).then(|| one_of(rng, &TEXTS).to_owned())
}

/// A fact with random attributes, which stands alone.
fn random_fact(rng: &mut StdRng) -> Ingest {
    let mut event = NewEvent::new(one_of(rng, &TYPES), rng.random_range(0..1_000).to_string());
    event.client = one_of(rng, &CLIENTS).map(Tsid::from_i64);
    (event.source, event.subject) = (maybe(rng), maybe(rng));
    (event.external_id, event.correlation_id) = (maybe(rng), maybe(rng));
    let terms = (0..rng.random_range(0..3)).map(|_| FactTerm::new(one_of(rng, &NAMES), one_of(rng, &TEXTS)));
    let terms = terms.collect();
    let targets = to_default(rng.random_range(0..3));
    Ingest { terms, stands_alone: true, ..Ingest::new(event, targets) }
}

fn random_query(rng: &mut StdRng, moments: &[Timestamp]) -> FactsQuery {
    let rarely = |rng: &mut StdRng| if rng.random_bool(0.2) { Some(one_of(rng, &TEXTS).to_owned()) } else { None };
    let exact = |rng: &mut StdRng| TypeFilter::Exact(one_of(rng, &TYPES).to_owned());
    let pattern = |rng: &mut StdRng| TypeFilter::Pattern(one_of(rng, &PATTERNS).parse().expect("a pattern"));
    let event_type = match rng.random_range(0..5) {
        0 => Some(exact(rng)),
        1 => Some(pattern(rng)),
        _ => None,
    };
    FactsQuery {
        client: rng.random_bool(0.7).then(|| one_of(rng, &CLIENTS).map(Tsid::from_i64)),
        event_type,
        source: rarely(rng),
        subject: rarely(rng),
        external_id: rarely(rng),
        correlation_id: rarely(rng),
        terms: (0..rng.random_range(0..5_usize).saturating_sub(2))
            .map(|_| FactTerm::new(one_of(rng, &NAMES), one_of(rng, &TEXTS)))
            .collect(),
        from: rng.random_bool(0.2).then(|| one_of(rng, moments)),
        to: rng.random_bool(0.2).then(|| one_of(rng, moments)),
        before: None,
        limit: rng.random_range(5..80),
        targets: 2,
    }
}

/// Whether a fact matches a query, read from its description.
fn matches(query: &FactsQuery, item: &Ingest, stored: &Ingested) -> bool {
    let same = |wanted: &Option<String>, has: &Option<String>| wanted.is_none() || wanted == has;
    let is_of_type = match &query.event_type {
        None => true,
        Some(TypeFilter::Exact(exact)) => *exact == item.fact.event_type,
        Some(TypeFilter::Pattern(pattern)) => pattern.matches(&item.fact.event_type),
    };
    is_of_type
        && query.client.is_none_or(|client| client == item.fact.client)
        && same(&query.source, &item.fact.source)
        && same(&query.subject, &item.fact.subject)
        && same(&query.external_id, &item.fact.external_id)
        && same(&query.correlation_id, &item.fact.correlation_id)
        && query.terms.iter().all(|term| item.terms.contains(term))
        && query.from.is_none_or(|from| stored.created_at >= from)
        && query.to.is_none_or(|to| stored.created_at < to)
        && query.before.is_none_or(|before| stored.event_id < before)
}

/// The ids of all pages of a search. No page may be longer than its limit.
async fn all_pages(store: &AnyStore, mut query: FactsQuery) -> Vec<Tsid> {
    let mut found = Vec::new();
    loop {
        let page = store.find_facts(query.clone()).await.expect("the search is answered");
        assert!(page.facts.len() <= query.limit, "{page:?}");
        found.extend(page.facts.iter().map(|fact| fact.id));
        match page.next {
            Some(next) => query.before = Some(next),
            None => return found,
        }
    }
}

async fn found(store: &AnyStore, query: FactsQuery) -> Vec<Tsid> {
    store.find_facts(query).await.expect("the search is answered").facts.into_iter().map(|fact| fact.id).collect()
}

fn of_correlation(id: &str) -> FactsQuery {
    FactsQuery { correlation_id: Some(id.into()), limit: 100, ..FactsQuery::default() }
}

/// Random facts and random queries, compared with a scan over everything that was stored.
pub(super) async fn every_filter_finds_what_a_scan_finds(scene: Scene) {
    let store = scene.open().await;
    let mut rng = StdRng::seed_from_u64(12);
    let (mut items, mut stored, mut moments) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..40 {
        let batch: Vec<Ingest> = (0..12).map(|_| random_fact(&mut rng)).collect();
        // Neither is found: they have one entry each, and go with it.
        publish_one(&store, NewEvent::new("a:b:c:d", "published")).await;
        ingest_one(&store, fact("a:b:c:d", "single", to_default(1))).await;
        moments.push(scene.now());
        stored.extend(ingest(&store, batch.clone()).await);
        items.extend(batch);
        scene.advance(rng.random_range(0..3));
    }
    let mut hits = 0;
    for round in 0..250 {
        let mut query = random_query(&mut rng, &moments);
        if rng.random_bool(0.2) {
            query.before = Some(stored[rng.random_range(0..stored.len())].event_id);
        }
        let of_both = items.iter().zip(&stored).filter(|(item, stored)| matches(&query, item, stored));
        let mut expected: Vec<Tsid> = of_both.map(|(_, stored)| stored.event_id).collect();
        expected.sort_unstable_by(|a, b| b.cmp(a));
        hits += expected.len();
        assert_eq!(all_pages(&store, query.clone()).await, expected, "in round {round}: {query:?}");
    }
    assert!(hits > 1_000, "the queries find something: {hits}");
}

/// What is found has everything that was stored, and the first of its targets.
pub(super) async fn facts_are_found_in_full(scene: Scene) {
    let store = scene.open().await;
    let mut item = fact("a:b:c:d", "[ 1 ]", to_default(5));
    item.fact.client = Some(Tsid::from_i64(7));
    (item.fact.source, item.fact.external_id) = (Some("source".into()), Some("external".into()));
    item.fact.attributes = Some("{\"a\": 1}".into());
    let stored = ingest_one(&store, item.clone()).await;
    let by_external = FactsQuery {
        client: Some(item.fact.client),
        source: Some("source".into()),
        external_id: Some("external".into()),
        limit: 1,
        targets: 3,
        ..FactsQuery::default()
    };
    let page = store.find_facts(by_external.clone()).await.unwrap();
    assert_eq!(page.next, None);
    let [one] = &page.facts[..] else { panic!("one fact: {page:?}") };
    assert_eq!((one.id, one.made, one.fact.created_at), (stored.event_id, 5, stored.created_at));
    assert_eq!((&one.fact.payload, &one.fact.attributes), (&item.fact.payload, &item.fact.attributes));
    assert_eq!(one.targets.iter().map(|target| target.id).collect::<Vec<_>>(), stored.targets[..3]);
    let none = FactsQuery { client: Some(None), ..by_external.clone() };
    assert_eq!(found(&store, none).await, []);
    for bad in [
        FactsQuery { limit: MAX_FACTS + 1, ..by_external.clone() },
        FactsQuery { targets: MAX_TARGETS_FOUND + 1, ..by_external.clone() },
        FactsQuery { terms: vec![FactTerm::new("a", "b"); MAX_TERMS + 1], ..by_external.clone() },
    ] {
        assert_eq!(kind(store.find_facts(bad).await), Invalid);
    }
    let nothing = store.find_facts(FactsQuery { limit: 0, ..by_external }).await.unwrap();
    assert_eq!((nothing.facts.len(), nothing.next), (0, None));
}

/// A page examines 10,000 facts at most; what it has not come to is on the next one.
pub(super) async fn a_page_examines_no_more_than_it_may(scene: Scene) {
    let store = scene.open().await;
    let of = |source: &str| {
        let mut item = fact("t", "", vec![]);
        (item.fact.source, item.fact.correlation_id) = (Some(source.into()), Some("c".into()));
        item
    };
    let rare = ingest(&store, vec![of("rare"), of("rare")]).await;
    for _ in 0..4 {
        scene.advance(1);
        ingest(&store, vec![of("common"); 3_000]).await;
    }
    let query = FactsQuery { source: Some("rare".into()), ..of_correlation("c") };
    let first = store.find_facts(query.clone()).await.unwrap();
    assert_eq!(first.facts, []);
    let next = first.next.expect("it has not come to the end");
    let second = store.find_facts(FactsQuery { before: Some(next), ..query.clone() }).await.unwrap();
    let ids: Vec<Tsid> = second.facts.iter().map(|fact| fact.id).collect();
    assert_eq!((ids, second.next), (vec![rare[1].event_id, rare[0].event_id], None));
    // Where an index serves the rare one, the first page has it.
    let by_source = FactsQuery { source: Some("rare".into()), limit: 100, ..FactsQuery::default() };
    assert_eq!(found(&store, by_source).await.len(), 2);
    let timed = FactsQuery { to: Some(scene.moment(0)), from: Some(rare[0].created_at), ..query };
    assert_eq!(all_pages(&store, timed).await.len(), 2);
}

pub(super) async fn a_page_is_bounded_in_bytes(scene: Scene) {
    let payload_limit = PayloadLimit(16 << 20);
    let store = scene.open_with(StoreOptions { payload_limit, ..scene.options() }).await;
    let sizes = [3 << 20, 4 << 20, 10 << 20, 1 << 20];
    let large = |size: usize| {
        let mut item = Ingest::new(NewEvent::new("t", vec![b'x'; size]), vec![]);
        item.fact.correlation_id = Some("c".into());
        item
    };
    let stored = ingest(&store, sizes.map(large).to_vec()).await;
    let mut query = of_correlation("c");
    let mut pages = Vec::new();
    loop {
        let page = store.find_facts(query.clone()).await.unwrap();
        pages.push(page.facts.iter().map(|fact| fact.fact.payload.len()).collect::<Vec<_>>());
        match page.next {
            Some(next) => query.before = Some(next),
            None => break,
        }
    }
    assert_eq!(pages, [vec![1 << 20], vec![10 << 20], vec![4 << 20, 3 << 20]], "{stored:?}");
}

/// More clients, or more types, than are merged: the search goes on another way.
pub(super) async fn more_streams_than_are_merged_are_searched_all_the_same(scene: Scene) {
    let store = scene.open().await;
    let of_client = |client: i64| {
        let mut item = fact("a:b:c:d", "", vec![]);
        item.fact.client = Some(Tsid::from_i64(client));
        item.fact.correlation_id = Some("c".into());
        item
    };
    let of_many = ingest(&store, (1..=520).map(of_client).collect()).await;
    let of_type = |number: i64| {
        let mut item = fact(&format!("a:b:c:t{number}"), "", vec![]);
        (item.fact.client, item.fact.source) = (Some(Tsid::from_i64(9_999)), Some("many".into()));
        item
    };
    let of_types = ingest(&store, (1..=520).map(of_type).collect()).await;
    let young = |stored: &[Ingested]| stored.iter().rev().map(|fact| fact.event_id).collect::<Vec<_>>();
    let all = [young(&of_types), young(&of_many)].concat();
    assert_eq!(all_pages(&store, of_correlation("c")).await, young(&of_many));
    let everything = FactsQuery { limit: 1_000, ..FactsQuery::default() };
    assert_eq!(all_pages(&store, everything.clone()).await, all);
    let pattern = |text: &str| Some(TypeFilter::Pattern(text.parse().unwrap()));
    let of_pattern = FactsQuery { event_type: pattern("a:*:c:*"), ..everything.clone() };
    assert_eq!(all_pages(&store, of_pattern.clone()).await, all);
    let of_one = FactsQuery { client: Some(Some(Tsid::from_i64(9_999))), ..of_pattern };
    assert_eq!(all_pages(&store, of_one).await, young(&of_types));
    let of_both = FactsQuery { event_type: pattern("*:b:c:d"), source: Some("many".into()), ..everything };
    assert_eq!(all_pages(&store, of_both).await, []);
}

/// The terms of a fact go with it.
pub(super) async fn terms_go_with_their_facts(scene: Scene) {
    let store = scene.open().await;
    let with = |count: usize, targets: usize| {
        let terms = (0..count).map(|number| FactTerm::new("name", number.to_string())).collect();
        Ingest { terms, ..fact("t", "", to_default(targets)) }
    };
    let mut of_client = with(2, 0);
    of_client.fact.client = Some(Tsid::from_i64(7));
    // A term that is given twice is one.
    let twice = Ingest { terms: vec![FactTerm::new("a", "b"); 2], ..with(0, 0) };
    let old = ingest(&store, vec![with(64, 0), of_client, twice, with(3, 1)]).await;
    scene.advance(100);
    let young = ingest_one(&store, with(2, 0)).await;
    let terms = "SELECT count(*) FROM tidegate.fact_terms";
    assert_eq!(scene.fixture.number(terms).await, 64 + 2 + 1 + 3 + 2);
    let by_term =
        |value: &str| FactsQuery { terms: vec![FactTerm::new("name", value)], limit: 9, ..FactsQuery::default() };
    let all: BTreeSet<Tsid> = found(&store, by_term("1")).await.into_iter().collect();
    assert_eq!(all, BTreeSet::from([old[0].event_id, old[1].event_id, old[3].event_id, young.event_id]));
    let now = Retention { facts: Some(seconds(50)), batch: 10, ..Retention::default() };
    assert_eq!(store.retain(now).await.unwrap().facts, 3, "one has an entry, one is too young");
    assert_eq!(scene.fixture.number(terms).await, 3 + 2);
    assert_eq!(found(&store, by_term("1")).await, [young.event_id, old[3].event_id]);
    // A term whose fact is gone, as after damage, finds nothing.
    scene.fixture.lose_fact(young.event_id).await;
    assert_eq!(found(&store, by_term("1")).await, [old[3].event_id]);
}
