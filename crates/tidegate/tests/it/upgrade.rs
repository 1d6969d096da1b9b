//! Databases of an earlier version: their data is kept, and work goes on.

use std::time::Duration;

use tidegate::{EntryPhase, EventQueue, QueueState};

use crate::databases::{Place, on_each_database};
use crate::support::PATIENCE;

/// Fills the database as the version with schema 5 left it, with data of every kind.
async fn written_by_schema_5(place: &Place) {
    match place {
        Place::Sqlite(folder) => {
            let bytes = include_bytes!("../../../store/tests/fixtures/schema-5.db");
            std::fs::write(folder.path().join("queue.db"), bytes).unwrap();
        }
        Place::Postgres(url) => {
            let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute(include_str!("../../../store/tests/fixtures/schema-5.sql")).await.unwrap();
        }
    }
}

/// Waits for and completes `count` events of a type, then those that are left. Returns their payloads.
async fn claimed_payloads(queue: &EventQueue, event_type: &str, count: usize) -> Vec<String> {
    let consumer = queue.consumer().types([event_type]).unwrap();
    let mut payloads = Vec::new();
    loop {
        let patience = if payloads.len() < count { PATIENCE } else { Duration::ZERO };
        let Some(event) = consumer.next(patience).await.unwrap() else { break };
        payloads.push(String::from_utf8_lossy(event.payload()).into_owned());
        event.complete().await.unwrap();
    }
    payloads
}

on_each_database! {
    async fn a_database_of_schema_5_goes_on_where_it_was(place) {
        written_by_schema_5(place).await;
        let queue = place.open().await;

        let dead = queue.dead_letters(None, 10).await.unwrap();
        assert_eq!(dead.len(), 2, "one was redriven, one discarded: {dead:?}");
        assert!(dead.iter().all(|entry| entry.error.as_deref().is_some_and(|text| text.contains("cannot be done"))));
        assert_eq!(claimed_payloads(&queue, "order.poison", 1).await, [r#"{"n":0}"#], "the redriven one waits");

        assert_eq!(claimed_payloads(&queue, "mail.latest", 1).await, [r#"{"v":2}"#]);
        assert_eq!(claimed_payloads(&queue, "mail.later", 0).await, [""; 0], "it is due in a year");
        let mails = [r#"{"to":0}"#, r#"{"to":1}"#, r#"{"to":2}"#, r#"{"to":3}"#, r#"{"to":4}"#];
        assert_eq!(claimed_payloads(&queue, "mail.due", 5).await, mails, "in the order of their priorities");
        assert_eq!(claimed_payloads(&queue, "sql.unsorted", 1).await, [r#"{"sql":1}"#]);
        assert_eq!(claimed_payloads(&queue, "full.event", 1).await, [r#"{"bytes": "as  sent"}"#]);

        let names = queue.queues().await.unwrap();
        let state = |name: &str| names.iter().find(|queue| queue.name.name() == name).unwrap();
        assert_eq!(state("paused").state, QueueState::Paused);
        assert_eq!(state("billing").depth_limit, Some(500));
        let nightly = queue.schedules().get("nightly").await.unwrap().unwrap();
        assert_eq!(nightly.spec.event.event_type, "night.due");
        queue.close().await;
    }

    async fn groups_of_schema_5_keep_their_order(place) {
        written_by_schema_5(place).await;
        let queue = place.open().await;
        let shelf_2 = claimed_payloads(&queue, "stock.moved", 1).await;
        assert_eq!(shelf_2, [r#"{"step":1}"#], "the other group's head is held");

        let mut held = None;
        for id in 1..100_i64 {
            let id = tidegate::EntryId::new(id).unwrap();
            if let Some(entry) = queue.entry(id).await.unwrap()
                && let EntryPhase::Leased { worker, .. } = &entry.phase
                && worker == "held-worker:1"
            {
                held = Some(id);
            }
        }
        queue.finalize(held.unwrap(), [""; 0]).await.unwrap();
        let steps = [r#"{"step":2}"#, r#"{"step":3}"#, r#"{"step":4}"#];
        assert_eq!(claimed_payloads(&queue, "stock.moved", 3).await, steps);
        queue.close().await;
    }

    async fn projections_of_schema_5_count_on(place) {
        written_by_schema_5(place).await;
        let queue = place.open().await;
        let totals = tidegate::EventLogProjectionBuilder::new("totals")
            .documents::<u64>()
            .on_bytes("order.placed", |_| Some("all".to_owned()), |total: Option<u64>, _| Some(total.unwrap_or(0) + 1))
            .open(&queue)
            .await
            .unwrap();
        totals.catch_up().await.unwrap();
        let documents = totals.list("", None, 10).await.unwrap();
        let expected = [("ann".to_owned(), 30), ("bob".to_owned(), 22), ("carl".to_owned(), 26)];
        assert_eq!(documents, expected, "nothing was read twice");
        queue.close().await;
    }
}
