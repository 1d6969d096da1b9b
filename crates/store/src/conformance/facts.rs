//! Facts apart from entries: stored with no, one or many targets, which live on their own, and removed when nothing refers
//! to them any more.

use std::collections::{BTreeSet, HashMap};

use tidegate_core::{Availability, End, EntryId, Expiry, IdSpace, NewEvent, PayloadLimit, QueueName, QueueState, Tsid};

use super::scene::*;
use crate::ErrorKind::{Full, Invalid, NotFound};
use crate::error::Result;
use crate::values::*;

/// A fact of this type, with a payload that says which one it is.
fn fact(event_type: &str, payload: &str, targets: Vec<Target>) -> Ingest {
    Ingest { fact: NewEvent::new(event_type, payload.to_owned()), targets }
}

fn to(name: &QueueName) -> Target {
    Target::new(name.clone())
}

fn to_group(name: &QueueName, group: &str) -> Target {
    Target { group: Some(group.into()), ..to(name) }
}

fn to_default(count: usize) -> Vec<Target> {
    vec![to(&default_queue()); count]
}

async fn ingest(store: &AnyStore, items: Vec<Ingest>) -> Vec<Ingested> {
    let answers = store.ingest(items).await.expect("the batch is ingested");
    answers.into_iter().map(|answer| answer.expect("the fact is stored")).collect()
}

async fn ingest_one(store: &AnyStore, item: Ingest) -> Ingested {
    ingest(store, vec![item]).await.remove(0)
}

async fn made(store: &AnyStore, name: &str) -> QueueName {
    let name = queue(name);
    store.put_queue(&name, QueueChange::default()).await.expect("the queue is created");
    name
}

async fn claim_from(store: &AnyStore, name: &QueueName, max: usize) -> Vec<Claimed> {
    store.claim(Claim { queue: name.clone(), ..want(max) }).await.expect("the claim is answered")
}

/// Facts and entries.
async fn counted(store: &AnyStore) -> (u64, u64) {
    let census = store.census().await.expect("everything is counted");
    (census.events, census.entries())
}

fn payload(fact: &Fact) -> &str {
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
    let ingested = ingest_one(&store, Ingest { fact: wanted.clone(), targets: to_default(2) }).await;
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
    let batch = sizes.map(|size| Ingest { fact: NewEvent::new("t", vec![b'x'; size]), targets: to_default(3) });
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
    let answers = store
        .ingest(vec![
            fact("t", "{}", vec![named("new")]),
            fact("new", "{}", vec![named("new")]),
            fact("t", "{}", vec![named("x")]),
        ])
        .await
        .unwrap();
    assert_eq!(kinds(&answers), [Some(Full), None, None]);
    let claimed = store.claim(want_types(9, &["new"])).await.unwrap();
    assert_eq!(ids(&claimed), answers[1].as_ref().unwrap().targets);
}

pub(super) async fn a_refused_fact_takes_room_in_no_family(scene: Scene) {
    let store = scene.open().await;
    let (name, jobs) = (queue("narrow"), store.family(Family::Jobs));
    let one = QueueChange { depth_limit: Some(Some(1)), ..QueueChange::default() };
    store.put_queue(&name, one.clone()).await.unwrap();
    jobs.put_queue(&name, one).await.unwrap();
    publish_one(&jobs, event("t").queue(name.clone())).await;
    let job = || Target { family: Family::Jobs, ..to(&name) };
    let batch = vec![fact("t", "{}", vec![to(&name), job()]), fact("t", "{}", vec![to(&name)])];
    assert_eq!(kinds(&store.ingest(batch).await.unwrap()), [Some(Full), None]);
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

pub(super) async fn a_bad_target_refuses_its_item_alone(scene: Scene) {
    let store = scene.open_with(StoreOptions { max_lanes: 2, ..scene.options() }).await;
    let (full, drained) = (made(&store, "full").await, made(&store, "drained").await);
    store.put_queue(&full, QueueChange { depth_limit: Some(Some(3)), ..QueueChange::default() }).await.unwrap();
    let state = Some(QueueState::Draining);
    store.put_queue(&drained, QueueChange { state, ..QueueChange::default() }).await.unwrap();
    let with = |bad: Target| fact("t", "{}", vec![to(&default_queue()), to(&full), bad]);
    let good = to(&default_queue());
    let batch = vec![
        with(to(&queue("nobody"))),
        with(to(&drained)),
        with(to_group(&full, "")),
        with(Target { priority: 101, ..good.clone() }),
        with(Target { max_attempts: 0, ..good.clone() }),
        with(Target { exhausted_as: End::Completed, ..good.clone() }),
        with(Target { keeps_place: true, ..good.clone() }),
        with(Target { family: Family::Jobs, ..to(&full) }),
        with(to(&QueueName::of(Some(Tsid::from_i64(5)), "theirs").unwrap())),
        fact("", "{}", vec![]),
        fact("t", "{}", vec![to(&full); 4]),
        fact("t", "{}", vec![to(&full); 2]),
        fact("t", "{}", vec![to(&default_queue()), to(&full), to(&full)]),
        fact("t", "{}", vec![to(&default_queue()), to(&full)]),
        fact("t", "{}", vec![to(&full)]),
        fact("t", "{}", vec![good.clone()]),
    ];
    let answers = store.ingest(batch).await.unwrap();
    let invalid = Some(Invalid);
    assert_eq!(
        kinds(&answers),
        [
            vec![
                Some(NotFound),
                Some(Full),
                invalid,
                invalid,
                invalid,
                invalid,
                invalid,
                Some(NotFound),
                invalid,
                invalid
            ],
            vec![Some(Full), None, Some(Full), None, Some(Full), None],
        ]
        .concat()
    );
    assert!(answers[10].as_ref().unwrap_err().to_string().contains("full is full"));
    assert_eq!(counted(&store).await, (3, 5), "a refused item leaves nothing");
    // The queue has one lane more to give.
    let lanes = vec![Target { priority: 1, ..good.clone() }, Target { priority: 2, ..good.clone() }];
    let first = store.ingest(vec![fact("t", "{}", lanes.clone()), fact("t", "{}", lanes[..1].to_vec())]).await.unwrap();
    let again = store.ingest(vec![fact("t", "{}", lanes.clone()), fact("t", "{}", lanes[..1].to_vec())]).await.unwrap();
    assert!(kinds(&first).contains(&Some(Full)) && kinds(&again).contains(&Some(Full)), "{first:?} {again:?}");
    let done = first.iter().chain(&again).flatten().map(|fact| fact.targets.len()).sum::<usize>() as u64;
    assert_eq!(counted(&store).await.1, 5 + done);
}

pub(super) async fn a_large_batch_is_written_in_parts(scene: Scene) {
    let store = scene.open().await;
    let other = made(&store, "other").await;
    let batch: Vec<Ingest> = (0..102)
        .map(|number| {
            let targets =
                if number == 50 { vec![to(&queue("nobody"))] } else { [to_default(50), vec![to(&other); 50]].concat() };
            fact("t", &number.to_string(), targets)
        })
        .collect();
    let answers = store.ingest(batch).await.unwrap();
    assert_eq!(answers.len(), 102);
    let mut last = 0;
    for (number, answer) in answers.iter().enumerate() {
        match answer {
            Err(error) => assert_eq!((number, error.kind()), (50, NotFound)),
            Ok(fact) => {
                assert_eq!(fact.targets.len(), 100);
                assert!(fact.targets[0].get() > last && fact.targets.is_sorted());
                last = fact.targets[99].get();
            }
        }
    }
    assert_eq!(counted(&store).await, (101, 10_100));
    let by_id: HashMap<EntryId, usize> = (answers.iter().enumerate())
        .flat_map(|(number, answer)| {
            answer.iter().flat_map(move |fact| fact.targets.iter().map(move |id| (*id, number)))
        })
        .collect();
    let claimed = claim_from(&store, &other, 1000).await;
    assert_eq!(claimed.len(), 1000);
    for held in claimed {
        assert_eq!(payload(&held.fact), by_id[&held.id].to_string());
    }
    let too_many = fact("t", "{}", to_default(MAX_TARGETS + 1));
    assert_eq!(kind(only(store.ingest(vec![too_many]).await)), Invalid);
    assert_eq!(ingest_one(&store, fact("t", "{}", to_default(MAX_TARGETS))).await.targets.len(), MAX_TARGETS);
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

/// Runs retention until its round is over; returns what was removed in total.
async fn run_retention(store: &AnyStore, retention: Retention) -> Retained {
    let (mut all, mut step) = (Retained::default(), retention);
    loop {
        let done = store.retain(step).await.expect("old rows are removed");
        (all.entries, all.facts) = (all.entries + done.entries, all.facts + done.facts);
        if done.next.is_none() {
            (step.log, step.dead_letters) = (None, None);
        }
        if done.next_facts.is_none() {
            step.facts = None;
        }
        (step.from, step.facts_from) = (done.next, done.next_facts);
        if done.next.is_none() && done.next_facts.is_none() {
            return all;
        }
    }
}

const LOG: Retention = Retention {
    audit: None,
    log: Some(std::time::Duration::from_secs(50)),
    dead_letters: Some(std::time::Duration::from_secs(50)),
    facts: None,
    batch: 2,
    from: None,
    facts_from: None,
};
const FACTS: Retention =
    Retention { log: None, dead_letters: None, facts: Some(std::time::Duration::from_secs(50)), ..LOG };

/// Runs retention of the log until it has removed so many entries. Rows stay until they are counted.
async fn until_removed(store: &AnyStore, entries: u64) {
    let gone = std::sync::atomic::AtomicU64::new(0);
    eventually("ended entries are removed", || async {
        store.maintain().await.unwrap();
        let removed = run_retention(store, LOG).await;
        assert_eq!(removed.facts, 0);
        let before = gone.fetch_add(removed.entries, std::sync::atomic::Ordering::SeqCst);
        before + removed.entries >= entries
    })
    .await;
    assert_eq!(gone.into_inner(), entries);
}

async fn end_all(store: &AnyStore, ids: &[EntryId], how: End) {
    for id in ids {
        finalize(store, end_by_id(*id, how)).await.unwrap();
    }
}

pub(super) async fn a_fact_stays_while_anything_refers_to_it(scene: Scene) {
    let store = scene.open().await;
    let batch = vec![
        fact("t", "none", vec![]),
        fact("t", "one", to_default(1)),
        fact("t", "many", to_default(3)),
        fact("t", "none", vec![]),
        fact("t", "other", to_default(2)),
    ];
    let facts = ingest(&store, batch).await;
    assert_eq!(run_retention(&store, FACTS).await.facts, 0, "they are too young");
    scene.advance(100);
    assert_eq!(run_retention(&store, FACTS).await.facts, 2, "those without targets");
    assert_eq!(counted(&store).await, (3, 6), "entries refer to the others");
    let many = facts[2].targets.clone();
    end_all(&store, &many[..2], End::Completed).await;
    end_all(&store, &facts[1].targets, End::Completed).await;
    assert_eq!(run_retention(&store, FACTS).await.facts, 0);
    scene.advance(100);
    until_removed(&store, 3).await;
    assert_eq!(counted(&store).await, (2, 3), "the fact of one entry went with it, the others stay");
    assert_eq!(run_retention(&store, FACTS).await.facts, 0, "the last entry is live");
    assert_eq!(payload(&view(&store, many[2]).await.fact), "many");
    // As a dead letter, redriven, and ended again it still needs its fact.
    end_all(&store, &many[2..], End::Failed).await;
    assert_eq!(run_retention(&store, FACTS).await.facts, 0, "it is in the log");
    redrive(&store, many[2]).await.unwrap();
    assert_eq!(run_retention(&store, FACTS).await.facts, 0, "it is live again");
    assert_eq!(payload(&claim_one(&store).await.fact), "many");
    end_all(&store, &many[2..], End::Completed).await;
    scene.advance(100);
    until_removed(&store, 1).await;
    assert_eq!(run_retention(&store, FACTS).await.facts, 1, "nothing refers to it any more");
    assert_eq!(counted(&store).await, (1, 2));
    assert_eq!(ids(&claim(&store, 9).await), facts[4].targets, "others are intact");
}

/// Facts and log in one call, in batches that hold fewer than there are.
pub(super) async fn facts_are_removed_in_batches_beside_the_log(scene: Scene) {
    let store = scene.open().await;
    let published = publish(&store, events(5)).await;
    let batch = (0..7).map(|number| fact("t", "{}", to_default([0, 2, 0, 3, 0, 0, 2][number]))).collect();
    let facts = ingest(&store, batch).await;
    let entries: Vec<EntryId> = facts.iter().flat_map(|fact| fact.targets.clone()).collect();
    end_all(&store, &[published, entries].concat(), End::Completed).await;
    scene.advance(100);
    let young = ingest_one(&store, fact("t", "{}", vec![])).await;
    let both = Retention { facts: FACTS.facts, ..LOG };
    let gone = std::sync::Mutex::new((0, 0));
    eventually("everything old is removed", || async {
        store.maintain().await.unwrap();
        let removed = run_retention(&store, both).await;
        let mut gone = gone.lock().unwrap();
        *gone = (gone.0 + removed.entries, gone.1 + removed.facts);
        *gone == (12, 7)
    })
    .await;
    assert_eq!(counted(&store).await, (1, 0), "the young one stays: {young:?}");
    let left = "SELECT count(*) FROM tidegate.events WHERE first_number IS NOT NULL";
    assert_eq!(scene.fixture.number(left).await, 1);
}

/// A projection reads the log row of each entry with the shared fact, and what it has not read stays.
pub(super) async fn a_projection_reads_each_entry_with_its_fact(scene: Scene) {
    let store = scene.open().await;
    let projections = store.as_ref();
    let projection = ProjectionId { name: "totals".into(), version: 1 };
    projections.register(&projection).await.expect("the projection is registered");
    let made = ingest_one(&store, fact("t", "shared", to_default(3))).await;
    let alone = publish_one(&store, NewEvent::new("t", "alone")).await;
    let expected: Vec<EntryId> = [made.targets.clone(), vec![alone]].concat();
    end_all(&store, &expected, End::Completed).await;
    let query = ReadLog { after: Position::START, types: None, ends: End::ALL.to_vec(), limit: 100 };
    eventually("the rows can be read", || async {
        projections.read_log(query.clone()).await.unwrap().rows.len() == expected.len()
    })
    .await;
    let page = projections.read_log(query).await.unwrap();
    let mut read: Vec<(EntryId, &str)> = page.rows.iter().map(|row| (row.id, payload(&row.fact))).collect();
    read.sort_unstable();
    let wanted: Vec<(EntryId, &str)> =
        expected.iter().map(|id| (*id, if *id == alone { "alone" } else { "shared" })).collect();
    assert_eq!(read, wanted);
    scene.advance(100);
    for _ in 0..3 {
        store.maintain().await.unwrap();
        let removed = run_retention(&store, Retention { facts: FACTS.facts, ..LOG }).await;
        assert_eq!((removed.entries, removed.facts), (0, 0), "the projection has not read them");
    }
    let reader = projections.take_reader(&projection, "r", LEASE).await.unwrap().expect("the reader lease is free");
    let (from, to) = (Position::START, page.end);
    let step = Step { id: projection, token: reader.token, from, to, events: 4, lease: LEASE };
    projections.apply(step, Vec::new()).await.expect("the position moves");
    until_removed(&store, 4).await;
    assert_eq!(run_retention(&store, FACTS).await.facts, 1);
    assert_eq!(counted(&store).await, (0, 0));
}

/// An entry of a shared fact gets other contents under a key: the others keep theirs.
pub(super) async fn one_of_many_gets_other_contents(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let keyed = |key: &str, payload: &str| NewEvent::new("t", payload.to_owned()).replace_waiting(key);
    let shared = fact("t", "shared", to_default(3));
    let made = ingest_one(&store, Ingest { fact: shared.fact.tags(["old"]), ..shared }).await;
    // Keys of ingested entries are not written by any verb yet.
    for (key, id) in ["a", "b"].into_iter().zip(&made.targets) {
        let first = publish_one(&store, keyed(key, "first")).await;
        let (id, event) = (id.get(), made.event_id.to_i64());
        let point = format!(
            "UPDATE tidegate.deduplication SET entry_id = {id}, event_id = {event} WHERE entry_id = {}",
            first.get()
        );
        scene.fixture.sql(&point).await;
        cancel(&store, first).await.unwrap();
    }
    let replaced = try_publish(&store, keyed("a", "by the library").tags(["new"])).await.unwrap();
    assert_eq!((replaced.id, replaced.outcome), (made.targets[0], PublishOutcome::Replaced));
    let mut caller = scene.begin().await;
    caller.publish_sql(&keyed("b", "by plain SQL").tags(["new"])).await.unwrap();
    caller.commit().await;
    let by_tag = |tag: &str| Claim { tags: Some(vec![tag.into()]), ..want(9) };
    let old = store.claim(by_tag("old")).await.unwrap();
    assert_eq!(ids(&old), made.targets[2..], "only one has the old contents");
    assert_eq!((old[0].event_id, payload(&old[0].fact)), (made.event_id, "shared"));
    let new = store.claim(by_tag("new")).await.unwrap();
    assert_eq!(ids(&new), made.targets[..2]);
    let contents: Vec<&str> = new.iter().map(|held| payload(&held.fact)).collect();
    assert_eq!(contents, ["by the library", "by plain SQL"]);
    assert!(new[0].event_id != made.event_id && new[1].event_id != new[0].event_id);
    assert_eq!(counted(&store).await, (5, 5), "two keyed, two new contents, one shared");
    end_all(&store, &made.targets, End::Completed).await;
    // Its age counts from the ingest, so everything is old enough at once.
    let now = Retention { facts: Some(std::time::Duration::ZERO), ..FACTS };
    assert_eq!(run_retention(&store, now).await.facts, 0, "a log row still refers to the shared fact");
}

pub(super) async fn a_lost_fact_ends_all_of_its_entries(scene: Scene) {
    let store = scene.open().await;
    let made = ingest_one(&store, fact("t", "{}", to_default(3))).await;
    let sound = ingest_one(&store, fact("t", "sound", to_default(2))).await;
    scene.fixture.lose_fact(made.event_id).await;
    assert_eq!(ids(&claim(&store, 9).await), sound.targets);
    assert_eq!(dead_letters(&store).await, made.targets);
    for id in made.targets {
        assert!(view(&store, id).await.error.is_some_and(|error| error.contains("missing")));
    }
}

pub(super) async fn nothing_to_ingest_is_an_empty_answer(scene: Scene) {
    let store = scene.open().await;
    let none: Result<Batch<Ingested>> = store.ingest(Vec::new()).await;
    assert!(none.unwrap().is_empty());
    let refused = store.ingest(vec![fact("t", "{}", vec![to(&queue("nobody"))]); 2]).await.unwrap();
    assert_eq!(kinds(&refused), [Some(NotFound); 2]);
    assert_eq!(counted(&store).await, (0, 0));
}
