//! A process that dies between two statements of an ingest: nothing of it is left, and a retry writes all of it once.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{NewEvent, QueueName};
use tidegate_store::postgres::PostgresStore;
use tidegate_store::sqlite::SqliteStore;
use tidegate_store::{FactKey, FactTerm, FactsQuery, Family, Ingest, IngestAnswer, IngestOutcome, Store, Target};

/// The database of the process that is to die.
const TARGET: &str = "TIDEGATE_CRASH_TARGET";
/// The points between the statements of an ingest.
const POINTS: [&str; 6] =
    ["ingest.planned", "ingest.keys", "ingest.facts", "ingest.terms", "ingest.targets", "ingest.promoted"];

async fn open(target: &str) -> Arc<dyn Store> {
    if target.starts_with("postgres") {
        Arc::new(PostgresStore::open(target, Default::default()).await.expect("the store opens"))
    } else {
        Arc::new(SqliteStore::open(target, Default::default()).await.expect("the store opens"))
    }
}

/// Two facts with keys, terms, and targets of both families.
fn batch(round: &str) -> Vec<Ingest> {
    let entry = || Target::new(QueueName::default());
    let grouped = Target { group: Some("g".into()), ..entry() };
    let job = Target { family: Family::Jobs, ..entry() };
    let fact = |number: usize| Ingest {
        keys: vec![
            FactKey::deduplication(format!("{round} {number}"), 1, Duration::from_secs(3_600)),
            FactKey::identity("source", &format!("{round} {number}"), 1, Duration::from_secs(3_600)),
        ],
        terms: vec![FactTerm::new("round", round), FactTerm::new("number", number.to_string())],
        ..Ingest::new(NewEvent::new("t", number.to_string()), vec![entry(), grouped.clone(), job.clone()])
    };
    vec![fact(1), fact(2)]
}

async fn ingest(store: &Arc<dyn Store>, round: &str) -> Vec<IngestOutcome> {
    match store.ingest(batch(round), None).await.expect("the batch is ingested") {
        IngestAnswer::Done(answers) => {
            answers.into_iter().map(|answer| answer.expect("it is stored").outcome).collect()
        }
        IngestAnswer::Stale(version) => panic!("no version was asked for: {version:?}"),
    }
}

/// Facts, and entries of both families.
async fn counted(store: &Arc<dyn Store>) -> (u64, u64) {
    let census = store.census().await.expect("everything is counted");
    (census.events, census.entries())
}

async fn found(store: &Arc<dyn Store>, round: &str) -> usize {
    let terms = vec![FactTerm::new("round", round)];
    let query = FactsQuery { terms, limit: 10, targets: 10, ..FactsQuery::default() };
    let page = store.find_facts(query).await.expect("the search is answered");
    assert!(page.facts.iter().all(|fact| fact.targets.len() == 3), "{page:?}");
    page.facts.len()
}

/// Not a test by itself: the body of the process that dies, once that is started with a failpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_that_dies() {
    let Ok(target) = std::env::var(TARGET) else { return };
    let store = open(&target).await;
    let round = std::env::var("TIDEGATE_FAILPOINT").expect("a failpoint is set");
    ingest(&store, &round).await;
    panic!("it lived through {round}");
}

async fn dies_at_every_point(target: &str) {
    let store = open(target).await;
    // Makes the lanes.
    ingest(&store, "first").await;
    let (mut facts, mut entries) = counted(&store).await;
    assert_eq!((facts, entries), (2, 6));
    for (point, pass) in POINTS.into_iter().flat_map(|point| [(point, 1), (point, 2)]) {
        // On PostgreSQL the statements are about the whole batch, on SQLite those about terms are.
        if pass == 2 && (target.starts_with("postgres") || point == "ingest.terms") {
            continue;
        }
        let round = format!("{point}:{pass}");
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["crashes::the_process_that_dies", "--exact", "--nocapture"]);
        child.env("TIDEGATE_FAILPOINT", &round).env(TARGET, target);
        let ended =
            tokio::task::spawn_blocking(move || child.output()).await.expect("no panic").expect("it was started");
        assert_eq!(ended.status.signal(), Some(9), "at {round}: {}", String::from_utf8_lossy(&ended.stdout));
        assert_eq!(counted(&store).await, (facts, entries), "nothing is left of {round}");
        assert_eq!(found(&store, &round).await, 0);
        assert_eq!(ingest(&store, &round).await, [IngestOutcome::New; 2], "{round}");
        assert_eq!(ingest(&store, &round).await, [IngestOutcome::Duplicate; 2]);
        (facts, entries) = (facts + 2, entries + 6);
        assert_eq!((counted(&store).await, found(&store, &round).await), ((facts, entries), 2));
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ingest_on_sqlite_takes_place_completely_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    dies_at_every_point(folder.path().join("events.db").to_str().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ingest_on_postgres_takes_place_completely_or_not_at_all() {
    let url = tokio::task::spawn_blocking(tidegate_testing::fresh_database).await.unwrap();
    dies_at_every_point(&url).await;
    tokio::task::spawn_blocking(move || tidegate_testing::drop_database(&url)).await.unwrap().unwrap();
}
