//! Facts apart from entries: stored with no, one or many targets, which live on their own, and removed when nothing refers
//! to them any more.

use std::collections::{BTreeSet, HashMap};

use tidegate_core::{Availability, End, EntryId, Expiry, IdSpace, NewEvent, PayloadLimit, QueueName, Tsid};

use super::scene::*;
use crate::ErrorKind::Full;
use crate::values::*;

/// A fact of this type, with a payload that says which one it is.
pub(super) fn fact(event_type: &str, payload: &str, targets: Vec<Target>) -> Ingest {
    Ingest::new(NewEvent::new(event_type, payload.to_owned()), targets)
}

pub(super) fn to(name: &QueueName) -> Target {
    Target::new(name.clone())
}

pub(super) fn to_group(name: &QueueName, group: &str) -> Target {
    Target { group: Some(group.into()), ..to(name) }
}

pub(super) fn to_default(count: usize) -> Vec<Target> {
    vec![to(&default_queue()); count]
}

/// Ingests under whatever version the catalogue has.
pub(super) async fn try_ingest(store: &AnyStore, items: Vec<Ingest>) -> Batch<Ingested> {
    match store.ingest(items, None).await.expect("the batch is ingested") {
        IngestAnswer::Done(answers) => answers,
        IngestAnswer::Stale(version) => panic!("no version was asked for: {version:?}"),
    }
}

pub(super) async fn ingest(store: &AnyStore, items: Vec<Ingest>) -> Vec<Ingested> {
    let answers = try_ingest(store, items).await;
    answers.into_iter().map(|answer| answer.expect("the fact is stored")).collect()
}

pub(super) async fn ingest_one(store: &AnyStore, item: Ingest) -> Ingested {
    ingest(store, vec![item]).await.remove(0)
}

pub(super) async fn made(store: &AnyStore, name: &str) -> QueueName {
    let name = queue(name);
    store.put_queue(&name, QueueChange::default()).await.expect("the queue is created");
    name
}

pub(super) async fn claim_from(store: &AnyStore, name: &QueueName, max: usize) -> Vec<Claimed> {
    store.claim(Claim { queue: name.clone(), ..want(max) }).await.expect("the claim is answered")
}

/// Facts and entries.
pub(super) async fn counted(store: &AnyStore) -> (u64, u64) {
    let census = store.census().await.expect("everything is counted");
    (census.events, census.entries())
}

pub(super) fn payload(fact: &Fact) -> &str {
    std::str::from_utf8(&fact.payload).expect("text")
}

pub(super) async fn a_fact_has_any_number_of_entries(scene: Scene) {
    let ids = IdSpace::new(3, 10).unwrap();
    let store = scene.open_with(StoreOptions { ids, ..scene.options() }).await;
    let (a, b) = (made(&store, "a").await, made(&store, "b").await);
    let many = vec![to(&a), to(&b), to_group(&a, "g"), to(&a)];
    let batch = vec![
        fact("t", "none", vec![]),
        fact("t", "one", to_default(1)),
        fact("t", "many", many),
        fact("u", "none", vec![]),
    ];
    let facts = ingest(&store, batch).await;
    let counts: Vec<usize> = facts.iter().map(|fact| fact.targets.len()).collect();
    assert_eq!(counts, [0, 1, 4, 0]);
    assert_eq!(counted(&store).await, (4, 5));
    let numbers: Vec<i64> = facts.iter().flat_map(|fact| &fact.targets).map(|id| id.get()).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    assert!(numbers.iter().all(|number| number % 10 == 3), "{numbers:?}");
    assert!(facts[2].targets.windows(2).all(|pair| pair[1].get() - pair[0].get() == 10), "neighbours: {facts:?}");
    assert_eq!(facts.iter().map(|fact| fact.event_id).collect::<BTreeSet<_>>().len(), 4);
    assert!(facts.iter().all(|fact| fact.created_at == scene.now() && fact.event_id.unix_ms() > 0));
    let later = publish_one(&store, event("t")).await;
    assert!(later.get() > *numbers.last().unwrap(), "numbers rise");
    for id in &facts[2].targets {
        let shown = view(&store, *id).await;
        assert_eq!((shown.event_id, payload(&shown.fact)), (facts[2].event_id, "many"));
        assert_eq!(store.event_of(*id).await.unwrap(), Some(facts[2].event_id));
    }
    let page = store.list(ListQuery { limit: 10, ..ListQuery::default() }).await.unwrap();
    let mut listed: Vec<EntryId> = page.items.iter().map(|item| item.id).collect();
    listed.reverse();
    assert_eq!(listed, [facts[1].targets.clone(), facts[2].targets.clone(), vec![later]].concat());
    assert_eq!(page.total, 6);
}

pub(super) async fn every_field_of_a_fact_comes_back(scene: Scene) {
    let store = scene.open().await;
    let client = Tsid::from_i64(77);
    let mut wanted = NewEvent::new("t", "{}").title("title").description("text").tags(["a", "b"]);
    wanted.client = Some(client);
    (wanted.source, wanted.subject) = (Some("source".into()), Some("subject".into()));
    (wanted.content_type, wanted.external_id) = (Some("application/json".into()), Some("external".into()));
    (wanted.correlation_id, wanted.causation_id) = (Some("correlation".into()), Some("causation".into()));
    (wanted.attributes, wanted.time) = (Some("{}".into()), Some(scene.now()));
    wanted.retry = Some(tidegate_core::RetryPolicy::List { delays_ms: vec![7000] });
    let ingested = ingest_one(&store, Ingest::new(wanted.clone(), to_default(2))).await;
    let claimed = store.claim(Claim { tags: Some(vec!["b".into()]), ..want(9) }).await.unwrap();
    assert_eq!(ids(&claimed), ingested.targets, "both are found by the tag");
    for Claimed { fact, event_id, .. } in &claimed {
        assert_eq!((*event_id, fact.created_at), (ingested.event_id, ingested.created_at));
        assert_eq!((fact.client, &fact.event_type, &fact.payload), (Some(client), &wanted.event_type, &wanted.payload));
        assert_eq!((&fact.source, &fact.subject), (&wanted.source, &wanted.subject));
        assert_eq!((&fact.content_type, &fact.external_id), (&wanted.content_type, &wanted.external_id));
        assert_eq!((&fact.correlation_id, &fact.causation_id), (&wanted.correlation_id, &wanted.causation_id));
        assert_eq!((&fact.attributes, fact.time), (&wanted.attributes, wanted.time));
        assert_eq!((&fact.title, &fact.description), (&wanted.title, &wanted.description));
        assert_eq!((&fact.tags, &fact.retry), (&wanted.tags, &wanted.retry));
    }
    let queries = [Some("a"), Some("b"), None].map(|tag| tag.map(str::to_owned).into_iter().collect::<Vec<_>>());
    finalize(&store, end(&claimed[0], End::Completed)).await.unwrap();
    for tags in queries {
        let page = store.list(ListQuery { tags, limit: 10, ..ListQuery::default() }).await.unwrap();
        assert_eq!((page.items.len(), page.total), (2, 2));
    }
}

/// Entries of one fact in several queues and groups: claimed, ended, retried, redriven and listed each on its own.
pub(super) async fn entries_of_a_fact_live_on_their_own(scene: Scene) {
    let store = scene.open().await;
    let (a, b) = (made(&store, "a").await, made(&store, "b").await);
    let targets = vec![
        to_group(&a, "g"),
        to_group(&a, "g"),
        to_group(&b, "g"),
        Target { priority: -5, max_attempts: 1, exhausted_as: End::Failed, ..to(&b) },
        Target { available: Availability::After(seconds(30)), ..to(&b) },
    ];
    let made = ingest_one(&store, fact("t", "shared", targets)).await;
    let [first, second, other, urgent, delayed] = made.targets[..] else { panic!("five entries: {made:?}") };
    let head = claim_from(&store, &a, 9).await;
    assert_eq!(ids(&head), [first], "one of the group runs");
    let of_b = claim_from(&store, &b, 9).await;
    assert_eq!(ids(&of_b), [urgent, other], "by priority, and the delayed one waits");
    assert!(head.iter().chain(&of_b).all(|held| held.event_id == made.event_id && payload(&held.fact) == "shared"));
    complete(&store, &head[0]).await;
    assert_eq!(ids(&claim_from(&store, &a, 9).await), [second], "the next of the group");
    scene.advance(30);
    assert_eq!(ids(&claim_from(&store, &b, 9).await), [delayed]);
    scene.advance(60);
    // Its only attempt was abandoned; the others are taken over.
    assert_eq!(ids(&claim_from(&store, &b, 9).await), [other, delayed]);
    assert_eq!(ended(&view(&store, urgent).await), Some(End::Failed));
    assert_eq!(redrive(&store, urgent).await.unwrap(), 2);
    let again = claim_from(&store, &b, 9).await;
    assert_eq!((ids(&again), again[0].generation, payload(&again[0].fact)), (vec![urgent], 2, "shared"));
    cancel(&store, delayed).await.unwrap();
    assert_eq!(ended(&view(&store, delayed).await), Some(End::Cancelled));
    assert_eq!(ended(&view(&store, other).await), None);
    let query = ListQuery { queue: Some(b), limit: 10, ..ListQuery::default() };
    let listed: Vec<EntryId> = store.list(query).await.unwrap().items.iter().map(|item| item.id).collect();
    assert_eq!(listed, [delayed, urgent, other]);
    assert_eq!(counted(&store).await, (1, 5));
}

/// Neighbours that share a fact, beside others that do not: one claim gets all of them with their facts, one call ends them.
pub(super) async fn a_claim_takes_several_entries_of_a_fact(scene: Scene) {
    let store = scene.open().await;
    let mut expected: Vec<(EntryId, String)> = Vec::new();
    for round in 0..4 {
        let alone = publish_one(&store, NewEvent::new("t", format!("alone {round}"))).await;
        expected.push((alone, format!("alone {round}")));
        let text = format!("shared {round}");
        let shared = ingest_one(&store, fact("t", &text, to_default(10))).await;
        expected.extend(shared.targets.into_iter().map(|id| (id, text.clone())));
        scene.advance(1);
    }
    for (first, count) in [(0, 3), (3, 30), (33, 11)] {
        let claimed = claim(&store, count).await;
        let got: Vec<(EntryId, String)> =
            claimed.iter().map(|held| (held.id, payload(&held.fact).to_owned())).collect();
        assert_eq!(got, expected[first..first + count]);
        let answers = store.finalize(claimed.iter().map(|held| end(held, End::Completed)).collect()).await.unwrap();
        assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|done| !done.repeated)), "{answers:?}");
    }
    assert_eq!(counted(&store).await, (8, 44));
    assert_eq!(store.census().await.unwrap().ended, 44);
}

pub(super) async fn a_shared_payload_counts_with_each_entry(scene: Scene) {
    let payload_limit = PayloadLimit(16 << 20);
    let store = scene.open_with(StoreOptions { payload_limit, ..scene.options() }).await;
    let sizes = [3 << 20, 10 << 20, 1 << 20];
    let batch = sizes.map(|size| Ingest::new(NewEvent::new("t", vec![b'x'; size]), to_default(3)));
    let made = ingest(&store, batch.to_vec()).await;
    let (mut all, mut counts) = (Vec::new(), Vec::new());
    while all.len() < 9 {
        let claimed = claim(&store, 100).await;
        let bytes: usize = claimed.iter().map(|held| held.fact.payload.len()).sum();
        assert!(claimed.len() == 1 || (bytes <= MAX_CLAIM_BYTES && !claimed.is_empty()), "{bytes} bytes");
        assert!(claimed.iter().all(|held| (held.attempts, held.token.0) == (1, 1)), "each is leased once");
        counts.push(claimed.len());
        all.extend(ids(&claimed));
    }
    let expected: Vec<EntryId> = made.into_iter().flat_map(|fact| fact.targets).collect();
    assert_eq!(all, expected, "in claims of {counts:?}");
}

/// A target says by which type its entry is claimed; the fact keeps its own.
pub(super) async fn a_target_can_name_its_lane(scene: Scene) {
    let store = scene.open().await;
    let named = |name: &str| Target { lane_type: Some(name.into()), ..to(&default_queue()) };
    let made = ingest_one(&store, fact("t", "{}", vec![to(&default_queue()), named("x"), named("y")])).await;
    for (lane, id) in ["t", "x", "y"].into_iter().zip(made.targets) {
        let claimed = store.claim(want_types(9, &[lane])).await.unwrap();
        assert_eq!(ids(&claimed), [id], "of lane {lane}");
        assert_eq!(claimed[0].fact.event_type, "t");
    }
    // Past as many types as have lanes of their own, entries are told apart by their facts.
    for batch in (0..260).map(|number| event(&format!("own {number}"))).collect::<Vec<_>>().chunks(130) {
        publish(&store, batch.to_vec()).await;
    }
    let batch = vec![
        fact("t", "{}", vec![named("new")]),
        fact("new", "{}", vec![named("new")]),
        fact("t", "{}", vec![named("x")]),
    ];
    let answers = try_ingest(&store, batch).await;
    assert_eq!(kinds(&answers), [Some(Full), None, None]);
    let claimed = store.claim(want_types(9, &["new"])).await.unwrap();
    assert_eq!(ids(&claimed), answers[1].as_ref().unwrap().targets);
}

pub(super) async fn a_fact_has_entries_and_jobs(scene: Scene) {
    let store = scene.open().await;
    let jobs = store.family(Family::Jobs);
    let job = |rank| Target { family: Family::Jobs, rank, ..to_group(&default_queue(), "g") };
    let kept = Target { keeps_place: true, expires: Some(Expiry::After(seconds(100))), ..job(-1) };
    let stored = ingest_one(&store, fact("t", "[1]", vec![to(&default_queue()), job(5), kept, job(1)])).await;
    let [entry, last, first, second] = stored.targets[..] else { panic!("four targets: {stored:?}") };
    assert_eq!(claim_ids(&store, 9).await, [entry]);
    let head = claim_one(&jobs).await;
    assert_eq!((head.id, head.event_id, payload(&head.fact)), (first, stored.event_id, "[1]"), "the smallest rank");
    finalize(&jobs, end(&head, End::Failed)).await.unwrap();
    assert_eq!(claim(&jobs, 9).await, [], "it keeps its place");
    finalize(&store, end_by_id(entry, End::Completed)).await.unwrap();
    scene.advance(100);
    for id in [second, last] {
        let head = claim_one(&jobs).await;
        assert_eq!(head.id, id, "by rank, once the first expired");
        complete(&jobs, &head).await;
    }
    let everything = Retention {
        log: Some(seconds(0)),
        dead_letters: Some(seconds(0)),
        facts: Some(seconds(0)),
        batch: 100,
        ..Retention::default()
    };
    scene.advance(10);
    // Counting, which comes first, stops at the oldest running transaction of the server.
    eventually("the fact goes with the last of them", || async {
        store.maintain().await.unwrap();
        store.retain(everything).await.unwrap();
        counted(&store).await == (0, 0)
    })
    .await;
    assert_eq!(jobs.entries(vec![first, second, last]).await.unwrap(), [None, None, None]);
}

/// Several processes ingest and publish at once, and work.
pub(super) async fn ingests_and_publishes_run_side_by_side(scene: Scene) {
    let stores = [scene.open_on_database_time().await, scene.open_on_database_time().await];
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..6 {
        let store = stores[task % 2].clone();
        tasks.spawn(async move {
            let mut expected = Vec::new();
            for round in 0..10 {
                let text = format!("{task}/{round}");
                if task < 2 {
                    expected.push((publish_one(&store, NewEvent::new("t", text.clone())).await, text));
                    continue;
                }
                let group = Target { group: Some(format!("g{round}")), ..to(&default_queue()) };
                let targets = [to_default(round % 4), vec![group; 2]].concat();
                let made = ingest_one(&store, fact("t", &text, targets)).await;
                expected.extend(made.targets.into_iter().map(|id| (id, text.clone())));
            }
            expected
        });
    }
    let expected: HashMap<EntryId, String> = tasks.join_all().await.into_iter().flatten().collect();
    let mut seen = BTreeSet::new();
    let mut last: HashMap<Tsid, EntryId> = HashMap::new();
    while seen.len() < expected.len() {
        for held in claim_until(&stores[0], 1).await {
            assert_eq!(payload(&held.fact), expected[&held.id]);
            assert!(seen.insert(held.id));
            // Items are promoted as they commit; the entries of one item keep their order.
            if held.group.is_some() {
                let before = last.insert(held.event_id, held.id);
                assert!(before.is_none_or(|before| before < held.id), "{held:?} after {before:?}");
            }
            complete(&stores[0], &held).await;
        }
    }
    assert_eq!(counted(&stores[0]).await, (60, expected.len() as u64));
}

pub(super) async fn an_ingest_wakes(scene: Scene) {
    let store = scene.open().await;
    let other = made(&store, "other").await;
    let mut hints = store.wakeups();
    ingest_one(&store, fact("t", "{}", vec![to(&default_queue()), to_group(&other, "g")])).await;
    let mut missing = BTreeSet::from([default_queue(), other]);
    while !missing.is_empty() {
        match tokio::time::timeout(seconds(20), hints.recv()).await.expect("a wake-up comes") {
            Ok(Wake::Queues(queues)) => missing.retain(|queue| !queues.contains(queue)),
            _ => missing.clear(),
        }
    }
}
