//! Keys of facts: under each, a client's fact is stored once.

use std::collections::BTreeSet;

use tidegate_core::{NewEvent, QueueState, Tsid};

use super::facts::{counted, fact, ingest_one, to, to_default, try_ingest};
use super::scene::*;
use crate::ErrorKind::{Conflict, Full, Invalid, NotFound};
use crate::error::Result;
use crate::values::*;

const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

fn named(id: &str, fingerprint: i64) -> FactKey {
    FactKey::deduplication(id, fingerprint, DAY)
}

fn of_source(id: &str, fingerprint: i64) -> FactKey {
    FactKey::identity("source", id, fingerprint, DAY)
}

/// A fact with one entry that stands alone, under these keys.
fn keyed<const N: usize>(payload: &str, keys: [FactKey; N]) -> Ingest {
    Ingest { keys: keys.into(), stands_alone: true, ..fact("t", payload, to_default(1)) }
}

async fn answer(store: &AnyStore, item: Ingest) -> Result<Ingested> {
    try_ingest(store, vec![item]).await.remove(0)
}

/// What a repeat of this fact is answered with.
fn repeat(first: &Ingested) -> Ingested {
    Ingested { targets: Vec::new(), outcome: IngestOutcome::Duplicate, ..first.clone() }
}

pub(super) async fn a_repeat_is_answered_with_the_first(scene: Scene) {
    let store = scene.open().await;
    let first = ingest_one(&store, keyed("1", [named("k", 1)])).await;
    assert_eq!((first.outcome, first.targets.len()), (IngestOutcome::New, 1));
    scene.advance(60);
    assert_eq!(answer(&store, keyed("1", [named("k", 1)])).await.unwrap(), repeat(&first));
    // Another process knows it too.
    let other = scene.open().await;
    assert_eq!(answer(&other, keyed("other targets", [named("k", 1)])).await.unwrap(), repeat(&first));
    let error = answer(&store, keyed("2", [named("k", 2)])).await.unwrap_err();
    assert_eq!(error.kind(), Conflict);
    assert!(error.to_string().starts_with("deduplicationId \"k\" was used for another event"), "{error}");
    let error = answer(&store, keyed("2", [of_source("i", 1), named("k", 2)])).await.unwrap_err();
    assert!(error.to_string().starts_with("deduplicationId \"k\""), "{error}");
    assert_eq!(counted(&store).await, (1, 1), "nothing else was written");
    assert_eq!(
        scene.fixture.number("SELECT count(*) FROM tidegate.deduplication").await,
        1,
        "and no other key was taken"
    );
}

pub(super) async fn either_key_of_a_fact_is_enough(scene: Scene) {
    let store = scene.open().await;
    let both = || keyed("1", [named("k", 1), of_source("i", 1)]);
    let first = ingest_one(&store, both()).await;
    for keys in [vec![named("k", 1)], vec![of_source("i", 1)], vec![of_source("i", 1), named("k", 1)]] {
        let item = Ingest { keys, ..keyed("1", []) };
        assert_eq!(answer(&store, item).await.unwrap(), repeat(&first));
    }
    // A new key beside a known one is not taken.
    assert_eq!(answer(&store, keyed("1", [named("k", 1), of_source("j", 1)])).await.unwrap(), repeat(&first));
    let other = ingest_one(&store, keyed("2", [of_source("j", 1)])).await;
    assert_eq!(other.outcome, IngestOutcome::New);
    let error = answer(&store, keyed("1", [named("k", 1), of_source("j", 1)])).await.unwrap_err();
    assert_eq!(error.kind(), Conflict);
    assert!(error.to_string().contains("two different events"), "{error}");
    // The same text is another key as another kind, and of another source.
    let text = of_source("i", 1).text;
    assert_eq!(ingest_one(&store, keyed("3", [named(&text, 9)])).await.outcome, IngestOutcome::New);
    let elsewhere = FactKey::identity("elsewhere", "i", 9, DAY);
    assert_eq!(ingest_one(&store, keyed("4", [elsewhere])).await.outcome, IngestOutcome::New);
    assert_eq!(counted(&store).await, (4, 4));
}

pub(super) async fn a_key_is_known_until_it_expires(scene: Scene) {
    let store = scene.open().await;
    let minute = || FactKey { window: seconds(60), ..named("k", 1) };
    let first = ingest_one(&store, keyed("1", [minute(), of_source("i", 1)])).await;
    scene.advance(59);
    assert_eq!(answer(&store, keyed("1", [minute()])).await.unwrap(), repeat(&first));
    scene.advance(1);
    let second = ingest_one(&store, keyed("2", [FactKey { fingerprint: 2, ..minute() }])).await;
    assert_eq!(second.outcome, IngestOutcome::New);
    assert_eq!(answer(&store, keyed("1", [of_source("i", 1)])).await.unwrap(), repeat(&first), "each for its own time");
    scene.advance(60);
    eventually("the expired key is removed", async || {
        store.maintain().await.unwrap();
        scene.fixture.number("SELECT count(*) FROM tidegate.deduplication").await == 1
    })
    .await;
}

pub(super) async fn keys_are_a_clients_own(scene: Scene) {
    let store = scene.open().await;
    let of = |client: Option<i64>, fingerprint| {
        let mut item = keyed("1", [named("k", fingerprint), of_source("i", fingerprint)]);
        item.fact.client = client.map(Tsid::from_i64);
        item
    };
    let first = [ingest_one(&store, of(None, 1)).await, ingest_one(&store, of(Some(7), 2)).await];
    let other = ingest_one(&store, of(Some(8), 3)).await;
    assert!(first.iter().chain([&other]).all(|fact| fact.outcome == IngestOutcome::New));
    assert_eq!(answer(&store, of(Some(7), 2)).await.unwrap(), repeat(&first[1]));
    assert_eq!(answer(&store, of(None, 1)).await.unwrap(), repeat(&first[0]));
    assert_eq!(kind(answer(&store, of(Some(8), 1)).await), Conflict);
}

/// Keys of facts are apart from those of publishes, of both families.
pub(super) async fn keys_of_publishes_are_others(scene: Scene) {
    let store = scene.open().await;
    let key = named("k", 1);
    let (window, fingerprint) = (DAY, 1);
    let idempotency = tidegate_core::Idempotency { key: "k".into(), fingerprint, window };
    let mut published = NewEvent::new("t", "1").deduplicate("k");
    published.idempotency = Some(idempotency);
    publish_one(&store, published).await;
    assert_eq!(ingest_one(&store, keyed("1", [key])).await.outcome, IngestOutcome::New);
    assert_eq!(counted(&store).await, (2, 2));
}

/// Items of one batch are answered as if they came one after the other.
pub(super) async fn a_batch_repeats_itself(scene: Scene) {
    let store = scene.open().await;
    let narrow = queue("narrow");
    let one = QueueChange { depth_limit: Some(Some(1)), ..QueueChange::default() };
    store.put_queue(&narrow, one).await.unwrap();
    let to_narrow = |count: usize| vec![to(&narrow); count];
    let batch = vec![
        keyed("a", [named("k", 1)]),
        keyed("a", [named("k", 1)]),
        keyed("b", [named("k", 2)]),
        // Refused, so that its key is free for the next one.
        Ingest { targets: to_narrow(2), ..keyed("c", [named("full", 1)]) },
        Ingest { targets: to_narrow(1), ..keyed("d", [named("full", 2)]) },
        // A repeat of the first, so that its other key is free for the next one.
        keyed("a", [named("k", 1), of_source("i", 1)]),
        keyed("e", [of_source("i", 5)]),
        keyed("e", [named("full", 2), of_source("i", 5)]),
        keyed("f", [named("f", 1), of_source("f", 1)]),
        keyed("f", [of_source("f", 1)]),
        keyed("g", []),
    ];
    let answers = try_ingest(&store, batch).await;
    let of = |at: usize| answers[at].as_ref().unwrap();
    assert_eq!(kinds(&answers)[2..4], [Some(Conflict), Some(Full)]);
    assert_eq!(answers[7].as_ref().unwrap_err().kind(), Conflict, "of two facts");
    for (repeated, first) in [(1, 0), (5, 0), (9, 8)] {
        assert_eq!(*of(repeated), repeat(of(first)), "item {repeated}");
    }
    let new = [0, 4, 6, 8, 10];
    assert!(new.iter().all(|at| of(*at).outcome == IngestOutcome::New));
    let ids: BTreeSet<Tsid> = new.iter().map(|at| of(*at).event_id).collect();
    assert_eq!((ids.len(), counted(&store).await), (5, (5, 5)));
    // As many as one likes.
    let many = try_ingest(&store, (0..300).map(|_| keyed("h", [named("h", 1)])).collect()).await;
    let new = many.iter().flatten().filter(|fact| fact.outcome == IngestOutcome::New);
    assert_eq!((many.iter().flatten().count(), new.count()), (300, 1));
}

/// What has become of a repeat's targets does not matter.
pub(super) async fn a_repeat_needs_no_queue(scene: Scene) {
    let store = scene.open().await;
    let first = ingest_one(&store, keyed("1", [named("k", 1)])).await;
    let draining = QueueChange { state: Some(QueueState::Draining), ..QueueChange::default() };
    store.put_queue(&default_queue(), draining).await.unwrap();
    assert_eq!(answer(&store, keyed("1", [named("k", 1)])).await.unwrap(), repeat(&first));
    let gone = Ingest { targets: vec![to(&queue("gone"))], ..keyed("1", [named("k", 1)]) };
    let answers = try_ingest(&store, vec![gone, keyed("2", [named("l", 1)])]).await;
    assert_eq!((answers[0].as_ref().unwrap(), kinds(&answers)[1]), (&repeat(&first), Some(Full)));
    let nobody = Ingest { targets: vec![to(&queue("gone"))], ..keyed("1", [named("m", 1)]) };
    assert_eq!(kind(answer(&store, nobody).await), NotFound);
    assert_eq!(
        scene.fixture.number("SELECT count(*) FROM tidegate.deduplication").await,
        1,
        "a refused item takes no key"
    );
}

/// Retention may remove the first fact while its key is known.
pub(super) async fn a_repeat_outlives_its_first(scene: Scene) {
    let store = scene.open().await;
    let first = ingest_one(&store, Ingest { targets: Vec::new(), ..keyed("1", [named("k", 1)]) }).await;
    scene.advance(100);
    let now = Retention { facts: Some(seconds(1)), batch: 10, ..Retention::default() };
    assert_eq!(store.retain(now).await.unwrap().facts, 1);
    let again = answer(&store, keyed("1", [named("k", 1)])).await.unwrap();
    assert_eq!((again.event_id, again.outcome), (first.event_id, IngestOutcome::Duplicate));
    let apart = again.created_at.duration_since(first.created_at).unsigned_abs();
    assert!(apart <= std::time::Duration::from_millis(1), "the id tells when");
    assert_eq!(counted(&store).await, (0, 0));
}

pub(super) async fn bad_keys_are_refused(scene: Scene) {
    let store = scene.open().await;
    let batch = vec![
        keyed("1", [named("", 1)]),
        keyed("1", [named(&"k".repeat(5_000), 1)]),
        keyed("1", [named("a", 1), named("b", 1)]),
        Ingest { terms: (0..=MAX_TERMS).map(|n| FactTerm::new("n", n.to_string())).collect(), ..keyed("1", []) },
        keyed("1", [named("\u{0}", 1)]),
    ];
    let invalid = Some(Invalid);
    assert_eq!(kinds(&try_ingest(&store, batch).await), [invalid, invalid, invalid, invalid, None]);
    assert_eq!(counted(&store).await, (1, 1));
}

/// Two processes get the same facts at once, from many callers: each is stored once, and every caller gets the same one.
pub(super) async fn of_many_at_once_one_is_new(scene: Scene) {
    const TASKS: usize = 16;
    let stores = [scene.open_on_database_time().await, scene.open_on_database_time().await];
    for round in 0..8 {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            let store = stores[task % 2].clone();
            tasks.spawn(async move {
                // In different orders, and beside items of its own.
                let mut batch: Vec<Ingest> = (0..6)
                    .map(|number| {
                        let text = format!("{round} {number}");
                        keyed(&text, [named(&text, 1), of_source(&text, 1)])
                    })
                    .collect();
                batch.rotate_left(task % 6);
                batch.push(keyed("own", [named(&format!("{round} own {task}"), 1)]));
                batch.push(keyed("free", []));
                let answers = try_ingest(&store, batch).await;
                let mut of_texts: Vec<Ingested> =
                    answers[..6].iter().map(|answer| answer.as_ref().expect("an answer").clone()).collect();
                of_texts.rotate_right(task % 6);
                assert!(answers[6..].iter().flatten().all(|fact| fact.outcome == IngestOutcome::New));
                of_texts
            });
        }
        let answers = tasks.join_all().await;
        for number in 0..6 {
            let of_text: Vec<&Ingested> = answers.iter().map(|answers| &answers[number]).collect();
            let ids: BTreeSet<Tsid> = of_text.iter().map(|fact| fact.event_id).collect();
            assert_eq!(ids.len(), 1, "{of_text:?}");
            assert_eq!(of_text.iter().filter(|fact| fact.outcome == IngestOutcome::New).count(), 1, "{of_text:?}");
        }
        assert_eq!(counted(&stores[0]).await.0, (round + 1) * (6 + 2 * TASKS as u64));
    }
}
