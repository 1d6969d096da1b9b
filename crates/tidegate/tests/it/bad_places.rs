//! Addresses and files that cannot work: a typed error, soon, and no panic.

use std::time::{Duration, Instant};

use tidegate::{ErrorKind, EventQueue, NewEvent};

use crate::databases::{Place, on_each_database};
use crate::support::soon;

async fn refused(address: &str) -> ErrorKind {
    let started = Instant::now();
    let error = soon(address, EventQueue::open(address)).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(20), "{address} took {:?}", started.elapsed());
    assert!(!error.to_string().is_empty());
    assert!(!error.to_string().contains("secret"), "{error}");
    error.kind()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_that_can_never_work_are_invalid() {
    for address in ["", "sqlite:", "mysql://u:secret@h/d", "redis://h", "postgres://u:secret@[bad/d"] {
        assert_eq!(refused(address).await, ErrorKind::Invalid, "{address:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_that_cannot_be_reached_are_unavailable() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let closed = format!("postgres://u:secret@127.0.0.1:{port}/d");
    assert_eq!(refused(&closed).await, ErrorKind::Unavailable);
    assert_eq!(refused("sqlite:/no/such/folder/queue.db").await, ErrorKind::Unavailable);
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(refused(&format!("sqlite:{}", folder.path().display())).await, ErrorKind::Unavailable, "a folder");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_no_database_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letter.txt");
    std::fs::write(&path, "Dear reader, this is not a database.".repeat(100)).unwrap();
    let kind = refused(&format!("sqlite:{}", path.display())).await;
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("Dear reader"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_file_is_unavailable() {
    let place = Place::sqlite();
    place.open().await.close().await;
    let Place::Sqlite(folder) = &place else { unreachable!() };
    let path = folder.path().join("queue.db");
    // Connections that close at the same moment may leave the write-ahead log behind, and the header in it would count.
    drop(rusqlite::Connection::open(&path).unwrap().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
    // Permissions do not bind root; a file whose write version SQLite does not know is read-only to every user.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[18] = 3;
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(refused(&place.address()).await, ErrorKind::Unavailable);
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "nothing was written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_is_unavailable_and_recovers() {
    let place = Place::postgres();
    let queue = place.open().await;
    let (client, connection) = tokio_postgres::connect(&place.address(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let name: String = client.query_one("SELECT current_database()::text", &[]).await.unwrap().get(0);
    client.batch_execute(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await.unwrap();
    assert_eq!(refused(&place.address()).await, ErrorKind::Unavailable);
    // Only new sessions are read-only: those of the open queue are closed, so that it connects again.
    let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                  WHERE datname = current_database() AND pid <> pg_backend_pid()";
    client.query(others, &[]).await.unwrap();
    let error = soon("refused", queue.publish(NewEvent::new("t", "{}"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    client.batch_execute(&format!("ALTER DATABASE {name} SET default_transaction_read_only = off")).await.unwrap();
    client.query(others, &[]).await.unwrap();
    crate::support::eventually("it works again", || async { queue.publish(NewEvent::new("t", "{}")).await.is_ok() })
        .await;
    queue.close().await;
}

on_each_database! {
    async fn settings_that_cannot_work_are_named(place) {
        for builder in [
            EventQueue::builder().namespace("Not A Name"),
            EventQueue::builder().lease(Duration::ZERO),
            EventQueue::builder().worker("a\nb"),
        ] {
            assert_eq!(builder.open(place.address()).await.unwrap_err().kind(), ErrorKind::Invalid);
        }
        assert!(EventQueue::builder().queue("no spaces, please").is_err());
    }

    async fn bad_events_are_refused_with_what_to_change(place) {
        let queue = place.open_with(|builder| builder.payload_limit(1_000)).await;
        let cases = [
            (NewEvent::new("t", vec![0_u8; 1_001]), "limit of 1000"),
            (NewEvent::new("", "x"), "event type"),
            (NewEvent::new("t", "x").priority(101), "priority"),
            (NewEvent::new("t", "x").max_attempts(0), "max attempts"),
        ];
        for (event, word) in cases {
            let error = queue.publish(event).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(word), "{error}");
        }
        assert_eq!(queue.depth().await.unwrap().total(), 0);
        queue.publish(NewEvent::new("t", vec![0_u8; 1_000])).await.unwrap();
        queue.close().await;
    }
}
