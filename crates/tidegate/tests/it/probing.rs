//! Health says whether a write and a claim would succeed.

use std::time::Duration;

use tidegate::{ErrorKind, NewEvent};

use crate::databases::{Place, on_each_database};
use crate::support::eventually;

on_each_database! {
    async fn health_is_good_while_the_store_can_be_written_to(place) {
        let queue = place.open_with(|builder| builder.with(|options| options.upkeep_interval = Duration::from_millis(20))).await;
        queue.publish(NewEvent::new("t", "{}")).await.unwrap();
        eventually("it is good", || async { queue.health().await.is_good() }).await;
        let health = queue.health().await;
        assert!(health.writes.is_ok(), "{health:?}");
        assert_eq!(queue.poll_many(9).await.unwrap().len(), 1, "the probe changed nothing");
        queue.close().await;
        assert_eq!(queue.health().await.writes.unwrap_err().kind(), ErrorKind::Unavailable);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_health_sees_a_foreign_lock_and_a_deleted_file() {
    let place = Place::sqlite();
    let queue = place
        .open_with(|builder| {
            builder.with(|options| {
                options.upkeep_interval = Duration::from_millis(20);
                options.store.lock_timeout = Duration::from_millis(50);
            })
        })
        .await;
    eventually("the length of the WAL is known", || async { queue.health().await.wal_bytes.is_some() }).await;
    let path = place.address().replacen("sqlite:", "", 1);
    let foreign = rusqlite::Connection::open(&path).unwrap();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    eventually("a foreign lock is seen", || async {
        let health = queue.health().await;
        !health.is_good() && health.writes.is_err_and(|error| error.kind() == ErrorKind::Busy)
    })
    .await;
    foreign.execute_batch("ROLLBACK").unwrap();
    eventually("it is good again", || async { queue.health().await.is_good() }).await;
    std::fs::remove_file(&path).unwrap();
    eventually("the deleted file is seen", || async {
        queue.health().await.writes.is_err_and(|error| error.to_string().contains("moved or deleted"))
    })
    .await;
    assert_eq!(queue.publish(NewEvent::new("t", "{}")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    queue.close().await;
}
