//! What callers see when PostgreSQL fails, stalls or goes away under them.

use std::time::{Duration, Instant};

use tidegate::{ErrorKind, EventQueue, NewEvent, SqlValue};
use tidegate_testing::{PgServer, PgSettings};
use tokio_postgres::Client;

use crate::databases::Place;
use crate::support::{eventually, soon};

/// While the database is known to be down, an answer takes at most a second; the rest is for slow machines.
const AT_ONCE: Duration = Duration::from_secs(3);

async fn connect(address: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(address, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

async fn own_server() -> PgServer {
    let settings = PgSettings { fsync: false, ..PgSettings::default() };
    tokio::task::spawn_blocking(|| PgServer::start(settings)).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_that_was_passed_over_rolls_back_and_is_told() {
    let place = Place::postgres();
    let queue = place.open().await;
    let ended = queue
        .in_transaction(|tx| {
            Box::pin(async move {
                tx.publish(NewEvent::new("t", "{}")).await?;
                assert!(tx.execute("INSERT INTO nowhere VALUES (1)", &[]).await.is_err());
                Ok(())
            })
        })
        .await;
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("rolled back"), "{error}");
    assert_eq!(queue.depth().await.unwrap().total(), 0);
    // With a savepoint the rest of the transaction is kept.
    let kept = queue.in_transaction(|tx| {
        Box::pin(async move {
            tx.publish(NewEvent::new("t", "{}")).await?;
            tx.execute("SAVEPOINT before", &[]).await?;
            assert!(tx.execute("INSERT INTO nowhere VALUES (1)", &[]).await.is_err());
            tx.execute("ROLLBACK TO before", &[]).await.map(|_| ())
        })
    });
    soon("a transaction", kept).await.unwrap();
    assert_eq!(queue.depth().await.unwrap().total(), 1);
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_given_up_stops_its_statement_and_its_connection() {
    let place = Place::postgres();
    let queue = place.open().await;
    let client = connect(&place.address()).await;
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
                    AND query LIKE 'SELECT pg_sleep%'";
    let task = {
        let queue = queue.clone();
        tokio::spawn(async move {
            let slow = queue.in_transaction(|tx| {
                Box::pin(async move { tx.query("SELECT pg_sleep(600)::text", &[]).await.map(|_| ()) })
            });
            slow.await
        })
    };
    eventually("the statement runs", || async { count(&client, sleeping).await == 1 }).await;
    task.abort();
    eventually("the statement is stopped", || async { count(&client, sleeping).await == 0 }).await;
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'";
    eventually("no transaction is open", || async { count(&client, open).await == 0 }).await;
    // The next callers get connections that answer.
    for _ in 0..20 {
        let one = queue.in_transaction(|tx| Box::pin(async move { tx.query("SELECT 1::bigint", &[]).await }));
        assert_eq!(soon("a query", one).await.unwrap(), vec![vec![SqlValue::from(1_i64)]]);
    }
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acknowledged_is_durable_whatever_the_database_defaults_to() {
    let place = Place::postgres();
    let client = connect(&place.address()).await;
    let name: String = client.query_one("SELECT current_database()::text", &[]).await.unwrap().get(0);
    client.batch_execute(&format!("ALTER DATABASE {name} SET synchronous_commit = off")).await.unwrap();
    let queue = place.open().await;
    // Transactions of the application take connections from the pool; several at once take several.
    let asked = (0..4).map(|_| {
        queue.in_transaction(|tx| {
            Box::pin(async move { tx.query("SELECT current_setting('synchronous_commit')", &[]).await })
        })
    });
    for answer in futures_util::future::join_all(asked).await {
        assert_eq!(answer.unwrap(), vec![vec![SqlValue::from("on")]]);
    }
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_stops_answering_is_given_up_and_found_again() {
    let server = own_server().await;
    let queue = EventQueue::open(server.url("postgres")).await.unwrap();
    queue.publish(NewEvent::new("t", "{}")).await.unwrap();
    server.pause().unwrap();
    let waiting = {
        let queue = queue.clone();
        tokio::spawn(async move {
            (queue.consumer().types(["other"]).unwrap().next(Duration::from_secs(1)).await, Instant::now())
        })
    };
    let started = Instant::now();
    let error = soon("the first publish", queue.publish(NewEvent::new("t", "{}"))).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate), "{error}");
    assert!(started.elapsed() < Duration::from_secs(20), "it took {:?}", started.elapsed());
    let (_, ended) = soon("a wait of a second", waiting).await.unwrap();
    assert!(ended - started < Duration::from_secs(12), "a wait of a second took {:?}", ended - started);
    refused_at_once(&queue).await;
    server.resume().unwrap();
    found_again(&queue).await;
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_down_is_refused_at_once_and_found_again() {
    let mut server = own_server().await;
    let queue = EventQueue::open(server.url("postgres")).await.unwrap();
    queue.publish(NewEvent::new("t", "{}")).await.unwrap();
    server.kill().unwrap();
    let _ = soon("the first publish", queue.publish(NewEvent::new("t", "{}"))).await;
    refused_at_once(&queue).await;
    let server = tokio::task::spawn_blocking(move || server.restart().map(|()| server)).await.unwrap().unwrap();
    found_again(&queue).await;
    queue.close().await;
    drop(server);
}

/// While the database is down, every kind of call is refused at once.
async fn refused_at_once(queue: &EventQueue) {
    let calls = async {
        let started = Instant::now();
        let publish = queue.publish(NewEvent::new("t", "{}")).await.unwrap_err();
        let publish = (publish, started.elapsed());
        let started = Instant::now();
        let wait = queue.consumer().next(Duration::from_secs(600)).await.unwrap_err();
        let wait = (wait, started.elapsed());
        let started = Instant::now();
        let depth = queue.depth().await.unwrap_err();
        [publish, wait, (depth, started.elapsed())]
    };
    for (error, took) in soon("refusals", calls).await {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(took < AT_ONCE, "{error} took {took:?}");
    }
}

/// Once the database is back, it is used again soon.
async fn found_again(queue: &EventQueue) {
    let started = Instant::now();
    eventually("it is found again", || async { queue.publish(NewEvent::new("t", "{}")).await.is_ok() }).await;
    assert!(started.elapsed() < AT_ONCE + Duration::from_secs(2), "it took {:?}", started.elapsed());
}
