//! Ingest under a version of the catalogue: nothing is written under any other.

use super::facts::{counted, fact, to, to_default};
use super::scene::*;
use crate::ErrorKind::NotFound;
use crate::values::*;

async fn version(store: &AnyStore) -> CatalogueVersion {
    store.catalogue_version().await.expect("the version is read")
}

async fn under(store: &AnyStore, version: CatalogueVersion, items: Vec<Ingest>) -> IngestAnswer {
    store.ingest(items, Some(version)).await.expect("the batch is answered")
}

fn stale(answer: IngestAnswer) -> CatalogueVersion {
    match answer {
        IngestAnswer::Stale(version) => version,
        IngestAnswer::Done(answers) => panic!("it was written: {answers:?}"),
    }
}

fn done(answer: IngestAnswer) -> Batch<Ingested> {
    match answer {
        IngestAnswer::Done(answers) => answers,
        IngestAnswer::Stale(version) => panic!("the catalogue has another version: {version:?}"),
    }
}

/// Ingests as a caller does that decides anew under each version it is told. Returns how often it was told one.
async fn until_done(store: &AnyStore, items: &[Ingest]) -> (Batch<Ingested>, usize) {
    let mut known = version(store).await;
    for tries in 0..5 {
        match under(store, known, items.to_vec()).await {
            IngestAnswer::Done(answers) => return (answers, tries),
            IngestAnswer::Stale(present) => known = present,
        }
    }
    panic!("it never became current");
}

fn resource(code: &str) -> PutResource {
    PutResource::Create { id: None, kind: "pool".into(), client: None, code: code.into(), body: "{}".into() }
}

/// Items for both families.
fn items() -> Vec<Ingest> {
    let job = Target { family: Family::Jobs, ..to(&default_queue()) };
    vec![fact("t", "1", vec![]), fact("t", "2", to_default(1)), fact("t", "3", vec![to(&default_queue()), job])]
}

pub(super) async fn nothing_is_written_under_another_version(scene: Scene) {
    let (store, other) = (scene.open().await, scene.open().await);
    let (first, _) = until_done(&store, &items()).await;
    assert!(first.iter().all(Result::is_ok));
    let before = version(&store).await;
    assert_eq!(done(under(&store, before, items()).await).len(), 3, "its lanes are there");
    let written = counted(&store).await;
    assert_eq!(written, (6, 6));
    // A change by another process, which this one has not heard of.
    other.put_resources(vec![resource("a")]).await.unwrap();
    let present = version(&other).await;
    assert_eq!(stale(under(&store, before, items()).await), present);
    assert_eq!(stale(under(&store, before, items()[..1].to_vec()).await), present, "without a target too");
    let refused = fact("t", "4", vec![to(&queue("unknown"))]);
    assert_eq!(stale(under(&store, before, vec![refused.clone()]).await), present, "and where all would be refused");
    for wrong in [
        CatalogueVersion { stamp: present.stamp ^ 1, ..present },
        CatalogueVersion { number: present.number + 1, stamp: present.stamp ^ 2 },
    ] {
        assert_eq!(stale(under(&store, wrong, items()).await), present);
    }
    assert_eq!(counted(&store).await, written);
    assert_eq!(done(under(&store, present, items()).await).len(), 3);
    assert_eq!(kinds(&done(under(&store, present, vec![refused]).await)), [Some(NotFound)]);
    assert_eq!(done(under(&store, present, Vec::new()).await).len(), 0);
    assert!(store.ingest(items(), None).await.is_ok());
}

/// Lanes that the store adds are changes too; they end.
pub(super) async fn lanes_that_are_missing_do_not_keep_an_ingest_from_ending(scene: Scene) {
    let store = scene.open().await;
    for round in 0..5 {
        let named = |name: String| Target { lane_type: Some(name), ..to(&default_queue()) };
        let job = Target { family: Family::Jobs, ..named(format!("j{round}")) };
        let batch = vec![fact("t", "{}", vec![named(format!("e{round}")), job]), fact("t", "{}", vec![])];
        let (answers, tries) = until_done(&store, &batch).await;
        assert!(answers.iter().all(Result::is_ok) && tries <= 2, "{tries}: {answers:?}");
        assert_eq!(counted(&store).await.0, 2 * (round + 1));
    }
}

/// A flood of changes on another process: every event is written once, under the version that it was decided under.
pub(super) async fn a_flood_of_changes_does_not_stop_ingest(scene: Scene) {
    let (store, other) = (scene.open_on_database_time().await, scene.open_on_database_time().await);
    until_done(&store, &items()).await;
    let flood = tokio::spawn(async move {
        for number in 0..100 {
            other.put_resources(vec![resource(&format!("r{number}"))]).await.unwrap().remove(0).unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
    let (mut written, mut told) = (0, 0);
    while !flood.is_finished() || written < 20 {
        let known = version(&store).await;
        match under(&store, known, vec![fact("t", "{}", to_default(1))]).await {
            IngestAnswer::Done(answers) => written += answers.iter().filter(|answer| answer.is_ok()).count() as u64,
            IngestAnswer::Stale(present) => {
                assert_ne!(present, known);
                told += 1;
            }
        }
    }
    flood.await.unwrap();
    assert_eq!(counted(&store).await, (3 + written, 3 + written), "{told} were told another version");
}

/// A batch of several transactions: the first finds the version, and lanes that are made between them stop nothing.
pub(super) async fn a_large_batch_is_written_under_one_version(scene: Scene) {
    let store = scene.open().await;
    let batch: Vec<Ingest> = (0..12).map(|_| fact("t", "{}", to_default(1_999))).collect();
    let (answers, _) = until_done(&store, &batch).await;
    assert!(answers.iter().all(Result::is_ok), "{:?}", kinds(&answers));
    let named = |name: &str| vec![Target { lane_type: Some(name.into()), ..to(&default_queue()) }; 9_000];
    let (answers, _) = until_done(&store, &[fact("t", "{}", named("a")), fact("t", "{}", named("b"))]).await;
    assert_eq!(kinds(&answers), [None, None]);
    assert_eq!(counted(&store).await.0, 14);
}
