//! Targets that are added to facts which are stored: made once under a key, and kept together with the fact.

use tidegate_core::{Availability, End, Tsid};

use super::fact_retention::{end_all, run_retention};
use super::facts::{claim_from, fact, ingest, ingest_one, made, payload, to, to_default, to_group};
use super::scene::*;
use crate::ErrorKind::{Full, Invalid, NotFound};
use crate::values::*;

fn job(lane: &str) -> Target {
    Target { family: Family::Jobs, lane_type: Some(lane.into()), ..to(&default_queue()) }
}

/// A target for a fact of the type `t`.
fn add(fact: &Ingested, key: &str, target: Target) -> AddTarget {
    let (client, event_type, tags) = (None, "t".to_owned(), Vec::new());
    AddTarget { fact: fact.event_id, client, event_type, tags, key: key.into(), target }
}

async fn try_add(store: &AnyStore, items: Vec<AddTarget>) -> Batch<AddedTarget> {
    store.add_targets(items).await.expect("the batch is answered")
}

async fn add_all(store: &AnyStore, items: Vec<AddTarget>) -> Vec<AddedTarget> {
    try_add(store, items).await.into_iter().map(|answer| answer.expect("it is added")).collect()
}

async fn read(store: &AnyStore, id: Tsid, targets: usize) -> Option<StoredFact> {
    store.facts(vec![id], targets).await.expect("facts are read").remove(0)
}

pub(super) async fn a_target_is_added_once_under_its_key(scene: Scene) {
    let store = scene.open().await;
    let jobs = store.family(Family::Jobs);
    let alone = Ingest { stands_alone: true, ..fact("t", "old", vec![job("a")]) };
    let stored = ingest_one(&store, alone).await;
    scene.advance(100);
    let items = || vec![add(&stored, "k", job("a")), add(&stored, "other", job("b")), add(&stored, "k", job("a"))];
    let first = add_all(&store, items()).await;
    assert_eq!(first.iter().map(|added| added.is_new).collect::<Vec<_>>(), [true, true, false]);
    assert!(first[0].id > stored.targets[0] && first[1].id > first[0].id, "numbers rise in the order of the items");
    assert_eq!(first[2].id, first[0].id);
    scene.advance(100);
    let again = add_all(&store, items()).await;
    assert!(again.iter().all(|added| !added.is_new));
    assert_eq!(again.iter().map(|added| (added.id, added.made_at)).collect::<Vec<_>>(), {
        first.iter().map(|added| (added.id, added.made_at)).collect::<Vec<_>>()
    });
    let found = read(&store, stored.event_id, 9).await.unwrap();
    let shown: Vec<_> = found.targets.iter().map(|target| (target.id, target.made_at)).collect();
    let expected =
        [(stored.targets[0], None), (first[0].id, Some(first[0].made_at)), (first[1].id, Some(first[1].made_at))];
    assert_eq!((shown, found.made), (expected.to_vec(), 3));
    assert_eq!(read(&store, stored.event_id, 2).await.unwrap().targets.len(), 2);
    // Each is claimed with the fact's contents, and its own moment.
    let claimed = jobs.claim(want_types(9, &["a", "b"])).await.unwrap();
    let seen: Vec<_> = claimed.iter().map(|one| (one.id, payload(&one.fact), one.fact.created_at)).collect();
    let expected = [
        (stored.targets[0], "old", stored.created_at),
        (first[0].id, "old", first[0].made_at),
        (first[1].id, "old", first[1].made_at),
    ];
    assert_eq!(seen, expected);
    assert!(claimed.iter().all(|one| one.event_id == stored.event_id));
    for one in &claimed {
        jobs.finalize(vec![end_by_id(one.id, End::Completed)]).await.unwrap().remove(0).unwrap();
    }
    let ended = read(&store, stored.event_id, 9).await.unwrap();
    assert_eq!(ended.targets.iter().map(|target| target.made_at.is_some()).collect::<Vec<_>>(), [false, true, true]);
    assert!(!add_all(&store, items()).await[0].is_new, "what has ended is known");
}

pub(super) async fn entries_that_are_added_are_like_others(scene: Scene) {
    let store = scene.open().await;
    let a = made(&store, "a").await;
    let limited = QueueChange { depth_limit: Some(Some(1)), ..QueueChange::default() };
    store.put_queue(&queue("full"), limited).await.unwrap();
    let stored = ingest(&store, vec![fact("t", "one", vec![]), fact("t", "two", to_default(2))]).await;
    let whole = Target { in_envelope: true, ..to(&a) };
    let later = Target { available: Availability::After(seconds(50)), ..to(&a) };
    let items = vec![
        add(&stored[0], "1", to_group(&a, "g")),
        add(&stored[1], "1", to_group(&a, "g")),
        add(&stored[0], "2", whole),
        add(&stored[0], "3", later),
        add(&stored[0], "4", to(&queue("full"))),
        add(&stored[1], "4", to(&queue("full"))),
        add(&stored[1], "5", to(&queue("nowhere"))),
    ];
    let answers = try_add(&store, items.clone()).await;
    let refused: Vec<_> = answers.iter().map(|answer| answer.as_ref().err().map(|error| error.kind())).collect();
    assert_eq!(refused, [None, None, None, None, None, Some(Full), Some(NotFound)]);
    let claimed = claim_from(&store, &a, 9).await;
    assert_eq!(claimed.len(), 2, "the head of the group, and the one without a group");
    assert!(claimed.iter().any(|one| payload(&one.fact) == "one"));
    assert!(claimed.iter().any(|one| payload(&one.fact).contains(r#""specversion":"1.0""#)));
    for one in &claimed {
        complete(&store, one).await;
    }
    let next = claim_from(&store, &a, 9).await.remove(0);
    assert_eq!(payload(&next.fact), "two", "the next of the group");
    complete(&store, &next).await;
    scene.advance(60);
    assert_eq!(claim_from(&store, &a, 9).await.len(), 1, "it was due later");
    // What was refused is made by a repeat, once there is room.
    end_all(&store, &[answers[4].as_ref().unwrap().id], End::Completed).await;
    assert!(try_add(&store, items).await[5].as_ref().is_ok_and(|added| added.is_new));
}

pub(super) async fn a_fact_stays_while_something_that_was_added_refers_to_it(scene: Scene) {
    let store = scene.open().await;
    let facts = Retention {
        audit: None,
        log: None,
        dead_letters: None,
        facts: Some(seconds(50)),
        batch: 2,
        from: None,
        facts_from: None,
    };
    let log = Retention { log: Some(seconds(50)), dead_letters: Some(seconds(50)), facts: None, ..facts };
    let stored = ingest(&store, vec![fact("t", "none", vec![]), fact("t", "kept", vec![])]).await;
    scene.advance(100);
    let added = add_all(&store, vec![add(&stored[1], "k", to(&default_queue()))]).await;
    assert_eq!(run_retention(&store, facts).await.facts, 1, "the other one");
    let gone = try_add(&store, vec![add(&stored[0], "k", to(&default_queue()))]).await;
    assert_eq!(gone[0].as_ref().unwrap_err().kind(), NotFound);
    assert_eq!(payload(&claim_one(&store).await.fact), "kept");
    end_all(&store, &[added[0].id], End::Completed).await;
    assert_eq!(run_retention(&store, facts).await.facts, 0, "it is in the log");
    scene.advance(100);
    eventually("the log row and then the fact are removed", || async {
        store.maintain().await.unwrap();
        run_retention(&store, log).await;
        run_retention(&store, facts).await.facts == 1
    })
    .await;
    assert!(read(&store, stored[1].event_id, 9).await.is_none());
    let keys = "SELECT count(*) FROM tidegate.deduplication WHERE kind = 7";
    assert_eq!(scene.fixture.number(keys).await, 0, "its keys went with it");
}

pub(super) async fn what_cannot_be_added_is_refused(scene: Scene) {
    let store = scene.open().await;
    let single = ingest_one(&store, fact("t", "{}", to_default(1))).await;
    let stored = ingest_one(&store, fact("t", "{}", vec![])).await;
    let refused = try_add(&store, vec![add(&single, "k", to(&default_queue()))]).await;
    assert_eq!(refused[0].as_ref().unwrap_err().kind(), NotFound, "it goes with its only entry");
    for items in [
        vec![add(&stored, "", to(&default_queue()))],
        vec![add(&stored, &"k".repeat(2_000), to(&default_queue()))],
        vec![add(&stored, "k", to(&default_queue())); MAX_ADDED + 1],
    ] {
        assert_eq!(store.add_targets(items).await.unwrap_err().kind(), Invalid);
    }
    assert!(store.add_targets(Vec::new()).await.unwrap().is_empty());
}

/// Two who add the same at once: each target is made once.
pub(super) async fn of_many_at_once_each_is_added_once(scene: Scene) {
    let store = scene.open().await;
    let other = scene.open().await;
    let stored = ingest(&store, (0..50).map(|_| fact("t", "{}", vec![])).collect()).await;
    let items: Vec<_> = stored.iter().map(|one| add(one, "k", job("a"))).collect();
    let mut backwards = items.clone();
    backwards.reverse();
    let (first, second) = tokio::join!(add_all(&store, items.clone()), add_all(&other, backwards));
    let new = first.iter().chain(&second).filter(|added| added.is_new).count();
    assert_eq!(new, 50);
    for (one, same) in first.iter().zip(second.iter().rev()) {
        assert_eq!(one.id, same.id);
    }
    let jobs = store.family(Family::Jobs);
    assert_eq!(jobs.claim(want_types(100, &["a"])).await.unwrap().len(), 50);
}

/// Numbers follow the moments of what is listed, not those of the facts.
pub(super) async fn a_time_range_finds_entries_beside_those_that_were_added(scene: Scene) {
    let store = scene.open().await;
    let old = ingest(&store, (0..200).map(|_| fact("t", "old", vec![])).collect()).await;
    scene.advance(100);
    let between = publish(&store, events(100)).await;
    scene.advance(100);
    let items = old.iter().map(|one| add(one, "k", to(&default_queue()))).collect();
    let added = add_all(&store, items).await;
    scene.advance(100);
    let last = publish(&store, events(100)).await;
    let moment = view(&store, between[0]).await.fact.created_at;
    let listed = async |from: u64, to: u64| {
        let at = |after: u64| moment.checked_add(seconds(after)).unwrap();
        let query = ListQuery { from: Some(at(from)), to: Some(at(to)), limit: 500, ..ListQuery::default() };
        let mut found: Vec<_> = store.list(query).await.unwrap().items.iter().map(|item| item.id).collect();
        found.sort_unstable();
        found
    };
    let numbers: Vec<_> = added.iter().map(|added| added.id).collect();
    assert_eq!(listed(0, 50).await, between);
    assert_eq!(listed(50, 150).await, numbers, "by when they were made");
    assert_eq!(listed(150, 300).await, last);
}

/// A walk comes by every fact that a search finds, oldest first, in stretches that are bounded.
pub(super) async fn a_walk_comes_by_every_fact_in_order(scene: Scene) {
    let store = scene.open().await;
    let mut expected = Vec::new();
    for number in 0..30 {
        let mut item = fact("t", &format!("{number}"), to_default([0, 2][number % 2]));
        item.fact.client = [None, Some(Tsid::from_i64(7))][usize::from(number % 3 == 0)];
        item.targets.clear();
        expected.push((ingest_one(&store, item.clone()).await.event_id, item.fact.client));
        publish(&store, events(1)).await;
    }
    let ids = |client: Option<Option<Tsid>>| -> Vec<Tsid> {
        let wanted = expected.iter().filter(|(_, of)| client.is_none_or(|client| client == *of));
        wanted.map(|(id, _)| *id).collect()
    };
    for client in [None, Some(None), Some(Some(Tsid::from_i64(7))), Some(Some(Tsid::from_i64(8)))] {
        for limit in [1, 7, 1_000] {
            let (mut after, before) = (Tsid::from_i64(0), Tsid::from_i64(i64::MAX));
            let mut found = Vec::new();
            loop {
                let walked = store.walk_facts(FactsWalk { client, after, before, limit }).await.unwrap();
                found.extend(walked.facts.iter().map(|fact| fact.id));
                match walked.next {
                    Some(next) => after = next,
                    None => break,
                }
            }
            assert_eq!(found, ids(client), "{client:?} by {limit}");
        }
    }
    let (first, last) = (expected[3].0, expected[9].0);
    let between = store.walk_facts(FactsWalk { client: None, after: first, before: last, limit: 100 }).await.unwrap();
    assert_eq!(between.facts.iter().map(|fact| fact.id).collect::<Vec<_>>(), ids(None)[4..9]);
    let bad = FactsWalk { client: None, after: first, before: last, limit: 1_001 };
    assert_eq!(store.walk_facts(bad).await.unwrap_err().kind(), Invalid);
}
