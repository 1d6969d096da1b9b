//! Transactions that block the other writers, or that the database ends by itself: reported, counted, and never kept in
//! part. And what the parameters of a statement mean.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::{
    Delivered, End, EntryId, EntryPhase, EntryView, ErrorKind, Event, EventLogProjectionBuilder, EventManager,
    EventQueue, NewEvent, RetryPolicy, SqlValue,
};

use crate::databases::{Place, on_each_database};
use crate::support::soon;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Wanted {
    number: i64,
}

impl Event for Wanted {
    const TYPE: &'static str = "wanted";
}

/// A queue whose transactions may be idle for half a second at most.
async fn impatient(place: &Place) -> EventQueue {
    let queue = place
        .open_with(|builder| builder.with(|options| options.transaction_patience = Duration::from_millis(500)))
        .await;
    queue.in_transaction(|tx| Box::pin(tx.execute("CREATE TABLE own (n INTEGER PRIMARY KEY)", &[]))).await.unwrap();
    queue
}

async fn own_rows(queue: &EventQueue) -> Vec<i64> {
    let rows = queue.in_transaction(|tx| Box::pin(tx.query("SELECT n FROM own ORDER BY n", &[]))).await.unwrap();
    rows.iter().map(|row| row[0].as_i64().unwrap()).collect()
}

async fn wanted(queue: &EventQueue, attempts: u32) -> EntryId {
    queue.publish(Wanted { number: 1 }.to_new().unwrap().max_attempts(attempts)).await.unwrap().id
}

fn manager(queue: &EventQueue) -> tidegate::ManagerBuilder {
    EventManager::builder(queue).retry(RetryPolicy::fixed(Duration::ZERO))
}

async fn view(queue: &EventQueue, id: EntryId) -> EntryView {
    queue.entry(id).await.unwrap().unwrap()
}

fn is_dead(view: &EntryView) -> bool {
    matches!(view.phase, EntryPhase::Ended { end: End::CompletedWithErrors, .. })
}

/// All attempts at an event are counted and fail with this error, and nothing that its handler wrote is kept.
async fn fails_each_time(queue: &EventQueue, manager: &EventManager, attempts: u32, error: &str) {
    let id = wanted(queue, attempts).await;
    soon("all attempts", manager.drain()).await.unwrap();
    let view = view(queue, id).await;
    assert!(is_dead(&view), "{view:?}");
    assert_eq!(view.attempts, attempts, "each attempt counted");
    assert!(view.error.as_deref().unwrap().contains(error), "{view:?}");
    assert_eq!(own_rows(queue).await, [0_i64; 0]);
}

/// Publishes from another task; that waits for the end of the transaction that the caller is in.
async fn publish_elsewhere(queue: EventQueue) {
    tokio::spawn(async move { queue.publish(NewEvent::new("from.elsewhere", "{}")).await }).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_a_call_of_the_queue_inside_its_own_transaction_is_refused_at_once() {
    let place = Place::sqlite();
    let queue = place.open().await;
    let inner = queue.clone();
    let answer = queue.in_transaction(|tx| {
        Box::pin(async move {
            let refused = [
                inner.publish(NewEvent::new("t", "{}")).await.err(),
                inner.publish_many(vec![NewEvent::new("t", "{}"); 3_000]).await.remove(0).err(),
                inner.poll().await.err(),
                inner.pause().await.err(),
                inner.in_transaction(|tx| Box::pin(tx.execute("SELECT 1", &[]))).await.err(),
            ];
            for error in refused {
                let error = error.expect("it must not wait for its own transaction");
                assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
                assert!(error.to_string().contains("transaction's own"), "{error}");
            }
            tx.publish(NewEvent::new("t", "{}")).await
        })
    });
    soon("the transaction", answer).await.unwrap();
    assert_eq!(queue.depth().await.unwrap().ready, 1, "only what the transaction published is there");

    let (inner, runtime) = (queue.clone(), tokio::runtime::Handle::current());
    let on_writer = queue.transaction(move |_| runtime.block_on(inner.publish(NewEvent::new("t", "{}"))).map(drop));
    assert_eq!(soon("on the writer's thread", on_writer).await.unwrap_err().kind(), ErrorKind::Invalid);

    // A queue on another database does not wait for this one.
    let elsewhere = Place::sqlite();
    let other = elsewhere.open().await;
    let target = other.clone();
    queue
        .in_transaction(|_| Box::pin(async move { target.publish(NewEvent::new("t", "{}")).await.map(drop) }))
        .await
        .unwrap();
    assert_eq!(other.depth().await.unwrap().ready, 1);
    queue.close().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_a_handler_tx_that_publishes_through_the_queue_ends_in_the_dead_letters() {
    let place = Place::sqlite();
    let queue = impatient(&place).await;
    let inner = queue.clone();
    let manager = manager(&queue)
        .handler_tx("h", move |_: Delivered<Wanted>, tx| {
            let queue = inner.clone();
            Box::pin(async move {
                tx.execute("INSERT INTO own VALUES ($1)", &[1.into()]).await?;
                queue.publish(NewEvent::new("other", "{}")).await?;
                Ok::<_, tidegate::Error>(())
            })
        })
        .build()
        .unwrap();
    fails_each_time(&queue, &manager, 3, "transaction's own").await;
    assert_eq!(queue.depth().await.unwrap().total(), 0, "nothing was published");
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_a_handler_tx_that_stands_still_is_counted_and_ends_in_the_dead_letters() {
    let place = Place::sqlite();
    let queue = impatient(&place).await;
    let inner = queue.clone();
    let manager = manager(&queue)
        .handler_tx("h", move |_: Delivered<Wanted>, tx| {
            let queue = inner.clone();
            Box::pin(async move {
                tx.execute("INSERT INTO own VALUES ($1)", &[1.into()]).await?;
                // This is answered only once this transaction is over.
                publish_elsewhere(queue).await;
                Ok::<_, tidegate::Error>(())
            })
        })
        .build()
        .unwrap();
    fails_each_time(&queue, &manager, 2, "held up all writers").await;
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_a_projection_whose_sql_stands_still_is_shown_as_failing() {
    let place = Place::sqlite();
    let queue = impatient(&place).await;
    let inner = queue.clone();
    let projection = EventLogProjectionBuilder::new("slow")
        .retry(RetryPolicy::fixed(Duration::from_millis(5)))
        .sql()
        .on::<Wanted>("wanted", move |tx, event| {
            let queue = inner.clone();
            Box::pin(async move {
                tx.execute("INSERT INTO own VALUES ($1)", &[event.data.number.into()]).await?;
                if event.data.number == 2 {
                    publish_elsewhere(queue).await;
                }
                Ok(())
            })
        })
        .open(&queue)
        .await
        .unwrap();
    let mut ids = Vec::new();
    for number in 1..=3 {
        let id = queue.publish(Wanted { number }.to_new().unwrap()).await.unwrap().id;
        queue.finalize(id, [""; 0]).await.unwrap();
        ids.push(id);
    }
    let error = soon("a pass", projection.catch_up()).await.unwrap_err();
    assert!(error.to_string().contains("held up all writers"), "{error}");
    let stopped = queue.health().await.stopped_projections;
    assert_eq!(stopped[0].failure.as_ref().unwrap().entry, Some(ids[1]), "the event whose handler was idle");
    assert_eq!(own_rows(&queue).await, [1], "what came before is kept, what it wrote is not");
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_nothing_completes_after_the_database_rolled_a_handlers_writes_back() {
    let place = Place::sqlite();
    let queue = impatient(&place).await;
    let manager = manager(&queue)
        .handler_tx("h", move |_: Delivered<Wanted>, tx| {
            Box::pin(async move {
                tx.execute("INSERT INTO own VALUES (1)", &[]).await?;
                // SQLite ends the whole transaction here, and the handler ignores that.
                let _ = tx.execute("INSERT OR ROLLBACK INTO own VALUES (1)", &[]).await;
                let refused = tx.execute("INSERT INTO own VALUES (2)", &[]).await;
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
                let _ = tx.publish(NewEvent::new("other", "{}")).await;
                Ok::<_, tidegate::Error>(())
            })
        })
        .build()
        .unwrap();
    let id = wanted(&queue, 2).await;
    soon("all attempts", manager.drain()).await.unwrap();
    let dead = view(&queue, id).await;
    assert!(is_dead(&dead), "{dead:?}");
    assert!(dead.error.as_deref().unwrap().contains("rolled back"), "{dead:?}");
    assert_eq!(own_rows(&queue).await, [0_i64; 0]);
    assert_eq!(queue.depth().await.unwrap().total(), 0);

    // The same within one closure, where the queue does not see the statements, also with a BEGIN of the application.
    for after in ["INSERT INTO own VALUES (2)", "BEGIN; INSERT INTO own VALUES (2)"] {
        let answer = queue.in_transaction(|tx| {
            Box::pin(async move {
                tx.sqlite(move |conn| {
                    conn.execute_batch("INSERT INTO own VALUES (1)")?;
                    let _ = conn.execute_batch("INSERT OR ROLLBACK INTO own VALUES (1)");
                    let _ = conn.execute_batch(after);
                    Ok(())
                })
                .await
            })
        });
        assert_eq!(answer.await.unwrap_err().kind(), ErrorKind::Conflict, "{after}");
        assert_eq!(own_rows(&queue).await, [0_i64; 0], "{after}");
    }
    queue.close().await;
}

on_each_database! {
    async fn a_parameter_means_the_value_of_its_number(place) {
        let queue = place.open().await;
        let bytes: Vec<u8> = (0..=255).collect();
        let sent = bytes.clone();
        let rows = queue.in_transaction(|tx| Box::pin(async move {
            let blob = if tx.postgres().is_some() { "BYTEA" } else { "BLOB" };
            tx.execute(&format!("CREATE TABLE kept (id BIGINT PRIMARY KEY, x TEXT, body {blob})"), &[]).await?;
            let insert = "INSERT INTO kept (body, x, id) VALUES ($3, $2, $1)";
            tx.execute(insert, &[1.into(), "first".into(), sent.clone().into()]).await?;
            tx.execute(insert, &[2.into(), "second".into(), SqlValue::Bytes(Vec::new())]).await?;
            assert_eq!(tx.execute("UPDATE kept SET x = $2 WHERE id = $1", &[1.into(), "changed".into()]).await?, 1);
            let found = tx.query("SELECT id FROM kept WHERE x = $2 AND id <> $1 AND x <> $3", &[9.into(), "changed".into(), "z".into()]).await?;
            assert_eq!(found, [vec![SqlValue::Int(1)]]);
            let twice = tx.query("SELECT id FROM kept WHERE id = $2 OR id = $1 OR id = $2 ORDER BY id", &[2.into(), 1.into()]).await?;
            assert_eq!(twice.len(), 2);
            tx.query("SELECT id, x, body FROM kept ORDER BY id", &[]).await
        })).await.unwrap();
        let expected = [
            vec![SqlValue::Int(1), "changed".into(), bytes.into()],
            vec![SqlValue::Int(2), "second".into(), SqlValue::Bytes(Vec::new())],
        ];
        assert_eq!(rows, expected);
        for values in [vec![], vec![1.into()], vec![1.into(), "x".into(), 3.into()]] {
            let answer = queue.in_transaction(|tx| Box::pin(async move {
                tx.execute("UPDATE kept SET x = $2 WHERE id = $1", &values).await
            }));
            assert_eq!(answer.await.unwrap_err().kind(), ErrorKind::Invalid, "values and parameters do not match");
        }
        queue.close().await;
    }
}
