//! Facts by id, with what was made for them and where that is in its life.

use tidegate_core::{Availability, End, EntryId, Expiry, NewEvent, Tsid};

use super::fact_retention::{end_all, run_retention};
use super::facts::{fact, ingest_one, made, payload, to, to_default, to_group};
use super::scene::*;
use crate::ErrorKind::Invalid;
use crate::values::*;

/// Jobs are sorted by what they are for, however many that are: no two share a lane.
pub(super) async fn an_event_is_made_into_jobs_of_thousands_of_lanes(scene: Scene) {
    let store = scene.open().await;
    let jobs = store.family(Family::Jobs);
    let lanes: Vec<String> = (0..3_000).map(|number| format!("subscription {number}")).collect();
    let job = |lane: &String| Target { family: Family::Jobs, lane_type: Some(lane.clone()), ..to(&default_queue()) };
    let stored = ingest_one(&store, fact("t", "{}", lanes.iter().map(job).collect())).await;
    assert_eq!(stored.targets.len(), lanes.len());
    for at in [0, 255, 256, 2_999] {
        let claimed = jobs.claim(want_types(9, &[&lanes[at]])).await.unwrap();
        assert_eq!(ids(&claimed), [stored.targets[at]], "of lane {at}");
        assert_eq!(claimed[0].lane_type.as_deref(), Some(&*lanes[at]), "a job tells what it was sorted by");
    }
    ingest_one(&store, fact("t", "{}", vec![job(&lanes[2_998])])).await;
    assert_eq!(jobs.claim(want_types(9, &[&lanes[2_998]])).await.unwrap().len(), 2);
}

/// An entry that carries the whole event does so wherever it is shown, in every state; the fact keeps its data.
pub(super) async fn an_entry_can_carry_the_whole_event(scene: Scene) {
    let store = scene.open().await;
    let whole = || Target { in_envelope: true, ..to(&default_queue()) };
    let mut item = fact("t", r#"{"a": 1.0}"#, vec![to(&default_queue()), whole(), whole(), whole()]);
    item.fact.tags = vec!["x".into()];
    item.fact.source = Some("/shop".into());
    item.fact.content_type = Some("application/json".into());
    let stored = ingest_one(&store, item).await;
    let envelope = format!(
        r#"{{"specversion":"1.0","id":"{}","source":"/shop","type":"t","datacontenttype":"application/json","data":{{"a": 1.0}}}}"#,
        stored.event_id
    );
    let plain = r#"{"a": 1.0}"#;
    let shown = async |at: usize| {
        let fact = view(&store, stored.targets[at]).await.fact;
        (payload(&fact).to_owned(), fact.content_type.unwrap_or_default())
    };
    let expected = (envelope.clone(), "application/cloudevents+json".to_owned());
    assert_eq!((shown(0).await.0, shown(1).await), (plain.to_owned(), expected.clone()), "waiting");
    let claimed = claim(&store, 9).await;
    let payloads: Vec<&str> = claimed.iter().map(|held| payload(&held.fact)).collect();
    assert_eq!(payloads, [plain, &envelope, &envelope, &envelope]);
    complete(&store, &claimed[1]).await;
    finalize(&store, end(&claimed[2], End::Failed)).await.unwrap();
    assert_eq!(shown(1).await, expected, "ended");
    redrive(&store, stored.targets[2]).await.unwrap();
    let again = claim_one(&store).await;
    assert_eq!((again.id, payload(&again.fact)), (stored.targets[2], &*envelope), "another generation");
    let started = std::time::Instant::now();
    let seen = loop {
        let query = ReadLog { after: Position::START, ends: vec![End::Completed], types: None, limit: 9 };
        let page = store.read_log(query).await.unwrap();
        if let Some(row) = page.rows.first() {
            break payload(&row.fact).to_owned();
        }
        assert!(started.elapsed().as_secs() < 60, "the end is not readable");
        tokio::task::yield_now().await;
    };
    assert_eq!(seen, envelope, "in the log, as projections read it");
    assert_eq!(payload(&read(&store, stored.event_id, 9).await.fact), plain);
}

async fn read(store: &AnyStore, id: Tsid, targets: usize) -> StoredFact {
    let mut found = store.facts(vec![id], targets).await.expect("the fact is read");
    found.remove(0).expect("there is one")
}

fn numbers(fact: &StoredFact) -> Vec<EntryId> {
    fact.targets.iter().map(|target| target.id).collect()
}

pub(super) async fn a_fact_shows_its_targets_in_every_state(scene: Scene) {
    let store = scene.open().await;
    let jobs = store.family(Family::Jobs);
    let a = made(&store, "a").await;
    let job = |lane: &str| Target { family: Family::Jobs, lane_type: Some(lane.into()), ..to(&default_queue()) };
    let kept = Target {
        keeps_place: true,
        expires: Some(Expiry::After(seconds(100))),
        group: Some("g".into()),
        ..job("kept")
    };
    let targets = vec![
        to(&a),
        job("subscription"),
        to_group(&a, "g"),
        to_group(&a, "g"),
        Target { available: Availability::After(seconds(50)), ..to(&default_queue()) },
        kept,
        job("failing"),
        to(&default_queue()),
    ];
    let mut item = fact("t", "[1]", targets);
    item.fact.client = Some(Tsid::from_i64(7));
    let stored = ingest_one(&store, item).await;
    let id = stored.targets.clone();
    // Others have numbers beside it, and in PostgreSQL maybe between.
    ingest_one(&store, fact("t", "[2]", to_default(3))).await;
    let head = store.claim(Claim { queue: a.clone(), ..want(9) }).await.unwrap();
    assert_eq!(ids(&head), [id[0], id[2]]);
    complete(&store, &head[0]).await;
    for claimed in jobs.claim(want_types(9, &["kept", "failing"])).await.unwrap() {
        finalize(&jobs, end(&claimed, End::Failed)).await.unwrap();
    }
    let fact = read(&store, stored.event_id, 100).await;
    assert_eq!((fact.id, fact.made, fact.fact.client), (stored.event_id, 8, Some(Tsid::from_i64(7))));
    assert_eq!(&fact.fact.payload[..], b"[1]");
    assert_eq!(numbers(&fact), id, "in the order of the targets");
    let families = fact.targets.iter().map(|target| target.family == Family::Jobs).collect::<Vec<_>>();
    assert_eq!(families, [false, true, false, false, false, true, true, false]);
    let lanes: Vec<&str> = fact.targets.iter().map(|target| target.lane_type.as_deref().unwrap_or("")).collect();
    assert_eq!(lanes, ["t", "subscription", "t", "t", "t", "kept", "failing", "t"]);
    assert!(fact.targets[..4].iter().all(|target| (target.queue == a) == (target.family == Family::Entries)));
    let phases: Vec<&EntryPhase> = fact.targets.iter().map(|target| &target.phase).collect();
    for (target, family) in fact.targets.iter().zip(&families) {
        let of = if *family { &jobs } else { &store };
        let shown = view(of, target.id).await;
        assert_eq!((shown.phase, shown.queue), (target.phase.clone(), target.queue.clone()), "as by itself");
    }
    assert!(matches!(phases[0], EntryPhase::Ended { end: End::Completed, .. }));
    assert!(matches!(phases[1], EntryPhase::Waiting { due: None }));
    assert!(matches!(phases[2], EntryPhase::Leased { worker, .. } if worker == "w"));
    assert!(matches!(phases[3], EntryPhase::Parked));
    assert!(matches!(phases[4], EntryPhase::Waiting { due: Some(_) }));
    assert!(matches!(phases[5], EntryPhase::Kept { end: End::Failed }));
    assert!(matches!(phases[6], EntryPhase::Ended { end: End::Failed, superseded: false, .. }));
    redrive(&jobs, id[6]).await.unwrap();
    let again = read(&store, stored.event_id, 100).await;
    assert_eq!(numbers(&again), id, "each once");
    assert!(matches!(again.targets[6].phase, EntryPhase::Waiting { .. }), "it is live again");
    // As many as are asked for, whatever family they are of.
    let some = read(&jobs, stored.event_id, 3).await;
    assert_eq!((numbers(&some), some.made), (id[..3].to_vec(), 8));
    assert_eq!(read(&store, stored.event_id, 0).await.targets, []);
}

pub(super) async fn published_facts_show_their_entry(scene: Scene) {
    let ids = tidegate_core::IdSpace::new(3, 10).unwrap();
    let store = scene.open_with(StoreOptions { ids, ..scene.options() }).await;
    let published = try_publish(&store, NewEvent::new("t", "1")).await.unwrap();
    let single = ingest_one(&store, fact("t", "2", to_default(1))).await;
    let none = ingest_one(&store, fact("t", "3", vec![])).await;
    let job = try_publish(&store.family(Family::Jobs), NewEvent::new("t", "4")).await.unwrap();
    let unknown = Tsid::from_i64(12_345);
    let asked = vec![published.event_id, unknown, single.event_id, none.event_id, job.event_id, published.event_id];
    let found = store.facts(asked, 10).await.unwrap();
    let shown: Vec<Option<(Vec<EntryId>, usize)>> =
        found.iter().map(|fact| fact.as_ref().map(|fact| (numbers(fact), fact.made))).collect();
    let one = |id| Some((vec![id], 1));
    assert_eq!(
        shown,
        [one(published.id), None, one(single.targets[0]), Some((vec![], 0)), one(job.id), one(published.id)]
    );
    assert_eq!(found[4].as_ref().unwrap().targets[0].family, Family::Jobs);
    // Its number is far from the first one with the same low bits.
    let far = "UPDATE tidegate.event_queue SET id = id + 3 * 4194304 WHERE id = ";
    scene.fixture.sql(&format!("{far}{}", published.id.get())).await;
    let reach = if scene.is_sqlite() {
        "UPDATE tidegate.sequence SET entry_id = entry_id + 3 * 4194304"
    } else {
        "SELECT setval('tidegate.entry_id', 3 * 4194304 + 1003)"
    };
    scene.fixture.sql(reach).await;
    let moved = read(&store, published.event_id, 10).await;
    assert_eq!(moved.targets[0].id.get(), published.id.get() + 3 * 4_194_304);
    assert_eq!(store.facts(vec![], 10).await.unwrap(), []);
    assert_eq!(kind(store.facts(vec![unknown; MAX_FACTS + 1], 1).await), Invalid);
    assert_eq!(kind(store.facts(vec![unknown], MAX_TARGETS + 1).await), Invalid);
}

/// A fact that stands alone outlives its only entry, and has the retention of facts.
pub(super) async fn a_fact_that_stands_alone_outlives_its_entry(scene: Scene) {
    let store = scene.open().await;
    let alone = |payload: &str| Ingest { stands_alone: true, ..fact("t", payload, to_default(1)) };
    let by_term = Ingest { terms: vec![FactTerm::new("a", "b")], ..fact("t", "2", to_default(1)) };
    let facts = [ingest_one(&store, alone("1")).await, ingest_one(&store, by_term).await];
    let single = ingest_one(&store, fact("t", "3", to_default(1))).await;
    let entries: Vec<EntryId> = facts.iter().chain([&single]).flat_map(|fact| fact.targets.clone()).collect();
    end_all(&store, &entries, End::Completed).await;
    scene.advance(100);
    let log = Retention { log: Some(seconds(50)), batch: 10, ..Retention::default() };
    let gone = std::sync::atomic::AtomicU64::new(0);
    eventually("the log rows are removed", || async {
        store.maintain().await.unwrap();
        let removed = run_retention(&store, log).await.entries;
        gone.fetch_add(removed, std::sync::atomic::Ordering::SeqCst) + removed == 3
    })
    .await;
    assert_eq!(store.facts(vec![single.event_id], 1).await.unwrap(), [None], "it went with its entry");
    for (fact, payload) in facts.iter().zip(["1", "2"]) {
        let kept = read(&store, fact.event_id, 10).await;
        assert_eq!((&kept.fact.payload[..], kept.targets.len(), kept.made), (payload.as_bytes(), 0, 1));
    }
    let of_facts = Retention { facts: Some(seconds(50)), log: None, ..log };
    assert_eq!(run_retention(&store, of_facts).await.facts, 2);
    assert_eq!(scene.fixture.number("SELECT count(*) FROM tidegate.events").await, 0);
    assert_eq!(scene.fixture.number("SELECT count(*) FROM tidegate.fact_terms").await, 0);
}

/// Another event may replace what waits under a key, but not a fact that stands alone.
pub(super) async fn a_fact_that_stands_alone_outlives_a_replacement(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let alone = Ingest { stands_alone: true, ..fact("t", "1", to_default(1)) };
    let stored = ingest_one(&store, alone).await;
    let keyed = |payload: &str| NewEvent::new("t", payload.to_owned()).replace_waiting("k");
    let first = try_publish(&store, keyed("0")).await.unwrap();
    let (entry, event) = (stored.targets[0].get(), stored.event_id.to_i64());
    let point = format!(
        "UPDATE tidegate.deduplication SET entry_id = {entry}, event_id = {event} WHERE entry_id = {}",
        first.id.get()
    );
    scene.fixture.sql(&point).await;
    let replaced = try_publish(&store, keyed("2")).await.unwrap();
    assert_eq!((replaced.id, replaced.outcome), (stored.targets[0], PublishOutcome::Replaced));
    let kept = read(&store, stored.event_id, 10).await;
    assert_eq!((&kept.fact.payload[..], kept.targets.len()), (&b"1"[..], 0), "its entry has another fact now");
    assert_eq!(&read(&store, replaced.event_id, 10).await.fact.payload[..], b"2");
}
