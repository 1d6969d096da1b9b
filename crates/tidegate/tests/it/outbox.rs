//! Publishing and finalising in the caller's own transaction.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::{Error, ErrorKind, NewEvent};

use crate::databases::Place;
use crate::support::{eventually, soon};

const HOUR: Duration = Duration::from_secs(3600);

fn event(kind: &str) -> NewEvent {
    NewEvent::new(kind, "{}")
}

fn own_connection(place: &Place) -> rusqlite::Connection {
    let Place::Sqlite(folder) = place else { panic!("not SQLite") };
    let connection = rusqlite::Connection::open(folder.path().join("queue.db")).unwrap();
    connection.busy_timeout(Duration::from_secs(10)).unwrap();
    connection
}

async fn own_client(place: &Place) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&place.address(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_publishes_with_the_callers_rows() {
    let place = Place::sqlite();
    let queue = place.open().await;
    let mut own = own_connection(&place);
    own.execute_batch("CREATE TABLE orders (id INTEGER)").unwrap();

    let mut tx = own.transaction().unwrap();
    tx.execute("INSERT INTO orders VALUES (1)", []).unwrap();
    let receipt = queue.publish_in(&mut tx, event("gone")).await.unwrap();
    assert_eq!(receipt.len(), 1);
    tx.rollback().unwrap();
    receipt.wake();
    assert!(queue.poll().await.unwrap().is_none(), "rolled back");

    let waiter = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next(HOUR).await }
    });
    let mut tx = own.transaction().unwrap();
    tx.execute("INSERT INTO orders VALUES (2)", []).unwrap();
    let receipt = queue.publish_many_in(&mut tx, vec![event("kept"), event("grouped").group("g")]).await.unwrap();
    tx.commit().unwrap();
    receipt.wake();
    let held = soon("woken by the receipt", waiter).await.unwrap().unwrap().unwrap();
    assert_eq!(held.event_type(), "kept");
    held.complete().await.unwrap();
    assert_eq!(soon("the grouped one", queue.next(HOUR)).await.unwrap().unwrap().event_type(), "grouped");
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_waits_for_the_lock_in_a_deferred_transaction() {
    static WAITING: AtomicBool = AtomicBool::new(false);
    let place = Place::sqlite();
    let queue = place.open().await;
    let holder = own_connection(&place);
    holder.execute_batch("BEGIN IMMEDIATE; CREATE TABLE orders (id INTEGER)").unwrap();
    let publisher = tokio::task::spawn_blocking({
        let (queue, mut own) = (queue.clone(), own_connection(&place));
        let runtime = tokio::runtime::Handle::current();
        move || {
            own.busy_handler(Some(|turns| {
                WAITING.store(true, Ordering::SeqCst);
                std::thread::yield_now();
                turns < 100_000_000
            }))
            .unwrap();
            let mut tx = own.transaction().unwrap();
            let receipt = runtime.block_on(queue.publish_in(&mut tx, event("t")));
            tx.commit().unwrap();
            receipt.map(|receipt| receipt.wake())
        }
    });
    eventually("the publisher waits for the lock", async || WAITING.load(Ordering::SeqCst) || publisher.is_finished())
        .await;
    holder.execute_batch("COMMIT").unwrap();
    publisher.await.unwrap().unwrap();
    assert!(queue.poll().await.unwrap().is_some());
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_says_how_to_begin_a_transaction_that_read_too_early() {
    let place = Place::sqlite();
    let queue = place.open().await;
    let mut own = own_connection(&place);
    own.execute_batch("CREATE TABLE orders (id INTEGER)").unwrap();
    let mut tx = own.transaction().unwrap();
    tx.query_row("SELECT count(*) FROM orders", [], |row| row.get::<_, i64>(0)).unwrap();
    queue.publish(event("other")).await.unwrap();
    let refused = queue.publish_in(&mut tx, event("t")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(refused.to_string().contains("BEGIN IMMEDIATE"), "{refused}");
    tx.rollback().unwrap();
    let mut tx = own.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    tx.query_row("SELECT count(*) FROM orders", [], |row| row.get::<_, i64>(0)).unwrap();
    let receipt = queue.publish_in(&mut tx, event("t")).await.unwrap();
    tx.commit().unwrap();
    receipt.wake();
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_publishes_with_the_callers_rows() {
    let place = Place::postgres();
    let queue = place.open().await;
    let mut own = own_client(&place).await;
    own.batch_execute("CREATE TABLE orders (id bigint)").await.unwrap();

    let mut tx = own.transaction().await.unwrap();
    let receipt = queue.publish_in(&mut tx, event("gone")).await.unwrap();
    soon("an open transaction blocks no publish", queue.publish(event("other"))).await.unwrap();
    queue.poll().await.unwrap().unwrap().complete().await.unwrap();
    tx.rollback().await.unwrap();
    receipt.wake();
    assert!(queue.poll().await.unwrap().is_none(), "rolled back");

    let waiter = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next(HOUR).await }
    });
    let mut tx = own.transaction().await.unwrap();
    tx.execute("INSERT INTO orders VALUES (2)", &[]).await.unwrap();
    let receipt = queue.publish_many_in(&mut tx, vec![event("kept"), event("grouped").group("g")]).await.unwrap();
    tx.commit().await.unwrap();
    receipt.wake();
    let held = soon("woken by the receipt", waiter).await.unwrap().unwrap().unwrap();
    held.complete().await.unwrap();
    soon("the grouped one", queue.next(HOUR)).await.unwrap().unwrap().complete().await.unwrap();
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_finalises_with_the_callers_effects() {
    let place = Place::postgres();
    let queue = place.open().await;
    let mut own = own_client(&place).await;
    own.batch_execute("CREATE TABLE effects (id bigint)").await.unwrap();
    queue.publish(event("t")).await.unwrap();

    let held = queue.poll().await.unwrap().unwrap();
    let none: [&str; 0] = [];
    let mut tx = own.transaction().await.unwrap();
    tx.execute("INSERT INTO effects VALUES ($1)", &[&held.id.get()]).await.unwrap();
    queue.finalize_in(&mut tx, &held, none).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(queue.depth().await.unwrap().leased, 1, "still leased after the rollback");

    let mut tx = own.transaction().await.unwrap();
    tx.execute("INSERT INTO effects VALUES ($1)", &[&held.id.get()]).await.unwrap();
    queue.finalize_in(&mut tx, &held, none).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(queue.depth().await.unwrap().total(), 0);

    let mut tx = own.transaction().await.unwrap();
    tx.execute("INSERT INTO effects VALUES (0)", &[]).await.unwrap();
    assert_eq!(queue.finalize_in(&mut tx, &held, none).await.unwrap_err().kind(), ErrorKind::Fenced);
    let _ = tx.commit().await;
    let rows = own.query_one("SELECT count(*) FROM effects", &[]).await.unwrap();
    assert_eq!(rows.get::<_, i64>(0), 1, "with a stale lease the caller's effects are rolled back");
    drop(held);
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_runs_closures_on_its_writer() {
    let place = Place::sqlite();
    let queue = place.open().await;
    let sql = |error: rusqlite::Error| Error::invalid(error.to_string());
    queue
        .transaction(move |tx| tx.connection().execute_batch("CREATE TABLE orders (id INTEGER)").map_err(sql))
        .await
        .unwrap();

    let refused = queue
        .transaction(move |tx| {
            tx.connection().execute("INSERT INTO orders VALUES (1)", []).map_err(sql)?;
            tx.publish(event("gone"))?;
            Err::<(), Error>(Error::new(ErrorKind::Conflict, "changed my mind"))
        })
        .await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
    assert!(queue.poll().await.unwrap().is_none());

    let waiter = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next(HOUR).await }
    });
    let published = queue
        .transaction(move |tx| {
            tx.connection().execute("INSERT INTO orders VALUES (2)", []).map_err(sql)?;
            tx.publish(event("kept"))
        })
        .await
        .unwrap();
    let held = soon("woken by the commit", waiter).await.unwrap().unwrap().unwrap();
    assert_eq!(held.id, published.id);

    let orders = queue
        .transaction(move |tx| {
            let none: [&str; 0] = [];
            tx.finalize(&held, none)?;
            tx.connection().query_row("SELECT count(*) FROM orders", [], |row| row.get::<_, i64>(0)).map_err(sql)
        })
        .await
        .unwrap();
    assert_eq!(orders, 1);
    assert_eq!(queue.depth().await.unwrap().total(), 0);
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_the_other_database_is_refused() {
    let (sqlite, postgres) = (Place::sqlite(), Place::postgres());
    let (on_sqlite, on_postgres) = (sqlite.open().await, postgres.open().await);
    let mut connection = own_connection(&sqlite);
    let mut client = own_client(&postgres).await;
    let error = on_postgres.publish_in(&mut connection, event("t")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let mut tx = client.transaction().await.unwrap();
    assert_eq!(on_sqlite.publish_in(&mut tx, event("t")).await.unwrap_err().kind(), ErrorKind::Invalid);
    drop(tx);
    assert_eq!(on_postgres.transaction(|_| Ok(())).await.unwrap_err().kind(), ErrorKind::Invalid);
    on_sqlite.close().await;
    on_postgres.close().await;
}
