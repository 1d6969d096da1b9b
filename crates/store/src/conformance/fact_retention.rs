//! What becomes of facts that were stored apart from entries: they stay while anything refers to them, and go when they are
//! old.

use tidegate_core::{End, EntryId, NewEvent};

use super::facts::{counted, fact, ingest, ingest_one, payload, to_default};
use super::scene::*;
use crate::values::*;

/// Runs retention until its round is over; returns what was removed in total.
pub(super) async fn run_retention(store: &AnyStore, retention: Retention) -> Retained {
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

pub(super) async fn end_all(store: &AnyStore, ids: &[EntryId], how: End) {
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
