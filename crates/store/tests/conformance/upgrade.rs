//! Databases as the version with schema 13 left them: it had migrated those of schema 5 and added data of its own. Every
//! total, group, retry and dead letter is as before, and what waited is worked off.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{End, NewEvent, QueueName, Status, Tsid};
use tidegate_store::api::Queue as _;
use tidegate_store::{Census, Claim, Claimed, DeadLetters, ErrorKind, Finalize, ListQuery, PublishOutcome, Store};

fn want(queue: &QueueName, event_type: &str) -> Claim {
    Claim {
        queue: queue.clone(),
        types: Some(vec![event_type.to_owned()]),
        max: 1,
        lease: Duration::from_secs(60),
        worker: "new:1".into(),
        quotas: BTreeMap::new(),
        tags: None,
        audit: false,
    }
}

/// Claims and completes the events of a type, one by one.
async fn worked_off(store: &Arc<dyn Store>, queue: &QueueName, event_type: &str) -> Vec<Claimed> {
    let mut taken = Vec::new();
    for _ in 0..100 {
        let Some(claimed) = store.claim(want(queue, event_type)).await.unwrap().pop() else { return taken };
        let end = Finalize {
            id: claimed.id,
            token: Some(claimed.token),
            end: End::Completed,
            errors: None,
            results: None,
            attempt: None,
        };
        store.finalize(vec![end]).await.unwrap().remove(0).unwrap();
        taken.push(claimed);
    }
    panic!("events of type {event_type} do not end: {taken:?}");
}

fn payloads(taken: &[Claimed]) -> Vec<&str> {
    taken.iter().map(|claimed| std::str::from_utf8(&claimed.fact.payload).unwrap()).collect()
}

async fn dead_letters(store: &Arc<dyn Store>, queue: &QueueName) -> Vec<tidegate_store::EntryView> {
    let query = DeadLetters { queue: queue.clone(), event_type: None, after: None, limit: 100 };
    store.dead_letters(query).await.unwrap()
}

async fn total(store: &Arc<dyn Store>, status: Status, client: Option<Tsid>) -> u64 {
    let query = ListQuery { status: Some(status), client, limit: 1, ..ListQuery::default() };
    store.list(query).await.unwrap().total
}

async fn goes_on(store: Arc<dyn Store>) {
    let (default, client) = (QueueName::default(), Tsid::from_i64(7));
    let orders = QueueName::of(Some(client), "orders").unwrap();
    let drained = QueueName::new("drained").unwrap();
    assert_eq!(store.census().await.unwrap(), Census { events: 55, waiting: 28, leased: 4, ended: 23 });
    assert_eq!(dead_letters(&store, &default).await.len(), 4);
    let dead = dead_letters(&store, &orders).await;
    assert_eq!((dead.len(), dead[0].error.as_deref()), (1, Some(r#"["no"]"#)));
    assert_eq!(total(&store, Status::Failed, Some(client)).await, 1);
    assert_eq!(total(&store, Status::Cancelled, None).await, 2);

    let group = worked_off(&store, &default, "t13.group").await;
    assert_eq!(payloads(&group), [r#"{"n":0}"#, r#"{"n":1}"#, r#"{"n":2}"#], "in order");
    assert_eq!(worked_off(&store, &default, "t13.held").await, [], "the group's head is held by a worker of before");
    let retried = worked_off(&store, &default, "t13.retried").await;
    assert_eq!((retried[0].attempts, retried[0].last_error.as_deref()), (2, Some("it failed")));
    let repeat = NewEvent::new("t13.retried", r#"{"r":1}"#).deduplicate("key-13");
    assert_eq!(store.publish(vec![repeat]).await.unwrap().remove(0).unwrap().outcome, PublishOutcome::Duplicate);
    assert_eq!(payloads(&worked_off(&store, &default, "t13.replaced").await), [r#"{"v":2}"#]);
    let refused = store.publish(vec![NewEvent::new("t", "{}").queue(drained.clone())]).await.unwrap().remove(0);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(payloads(&worked_off(&store, &drained, "t13.drained").await), [r#"{"d":1}"#]);

    assert_eq!(store.redrive(vec![dead[0].id]).await.unwrap().remove(0).unwrap(), 2);
    let theirs = worked_off(&store, &orders, "t13.client").await;
    let theirs: BTreeSet<&str> = payloads(&theirs).into_iter().collect();
    assert_eq!(theirs, BTreeSet::from([r#"{"n":0}"#, r#"{"n":1}"#]));
    let census = store.census().await.unwrap();
    assert_eq!(census.events, census.waiting + census.leased + census.ended, "{census:?}");
    // What the version before did not know works on its rows.
    let ranked = NewEvent::new("t13.held", "{}").group("h13").rank(-1);
    store.publish(vec![ranked]).await.unwrap().remove(0).unwrap();
    assert_eq!(worked_off(&store, &default, "t13.held").await, [], "the head was started");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sqlite_file_of_schema_13_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    std::fs::write(&path, include_bytes!("../fixtures/schema-13.db")).unwrap();
    let store = tidegate_store::sqlite::SqliteStore::open(&path, Default::default()).await.unwrap();
    goes_on(Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_database_of_schema_13_goes_on_where_it_was() {
    let url = tokio::task::spawn_blocking(tidegate_testing::fresh_database).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(include_str!("../fixtures/schema-13.sql")).await.unwrap();
    drop(client);
    let store = tidegate_store::postgres::PostgresStore::open(&url, Default::default()).await.unwrap();
    goes_on(Arc::new(store)).await;
    tokio::task::spawn_blocking(move || tidegate_testing::drop_database(&url)).await.unwrap().unwrap();
}

/// What a program of schema 13 reads first in each of its transactions, as a number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_an_older_program_on_sqlite_find_text_that_says_to_upgrade() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.db");
    std::fs::write(&path, include_bytes!("../fixtures/schema-13.db")).unwrap();
    tidegate_store::sqlite::SqliteStore::open(&path, Default::default()).await.unwrap().close().await;
    let file = rusqlite::Connection::open(&path).unwrap();
    for column in ["generation", "catalogue_stamp"] {
        let read = format!("SELECT {column} FROM tidegate_meta");
        let number = file.query_row(&read, [], |row| row.get::<_, i64>(column));
        assert!(matches!(number, Err(rusqlite::Error::InvalidColumnType(..))), "{number:?}");
        let text: String = file.query_row(&read, [], |row| row.get(column)).unwrap();
        assert!(text.contains("upgrade"), "{text}");
    }
}
