//! Upkeep and maintenance: a heartbeat that nothing delays, retention, expired keys, and changes of the catalogue.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::projection::ProjectionId;
use tidegate::{Clock, ErrorKind, EventQueue, ManualClock, NewEvent, QueueState, Retention, Store};
use tokio_postgres::{Client, NoTls};

use crate::databases::{Place, on_each_database};
use crate::memory::MemoryStore;
use crate::support::{eventually, soon};

async fn connect(place: &Place) -> Client {
    let (client, connection) = tokio_postgres::connect(&place.address(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn the_heartbeat_goes_on_while_upkeep_is_held_up() {
    let store = MemoryStore::new();
    let held = MemoryStore::shut(&store.maintain_gate);
    let builder = EventQueue::builder().with(|options| {
        options.upkeep_interval = Duration::from_millis(20);
        options.store.outage_after = Duration::from_millis(40);
    });
    let queue = builder.with_store(Arc::clone(&store) as Arc<dyn Store>).await.unwrap();
    eventually("heartbeats are written", || async { store.beaten.load(Ordering::SeqCst) >= 5 }).await;
    assert_eq!(store.maintained.load(Ordering::SeqCst), 1, "upkeep is held back in its first round");
    assert!(queue.health().await.last_heartbeat.is_some());
    let beaten = store.beaten.load(Ordering::SeqCst);
    eventually("it goes on", || async { store.beaten.load(Ordering::SeqCst) > beaten }).await;
    drop(queue);
    held.add_permits(1_000);
    soon("its task ends with the last handle", async {
        while Arc::strong_count(&store) > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Upkeep waits for a table that another session has locked: consumers cannot be announced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_heartbeat_goes_on_while_a_table_of_upkeep_is_locked() {
    let place = Place::postgres();
    let queue = place.open().await;
    let client = connect(&place).await;
    client.batch_execute("BEGIN; LOCK TABLE tidegate.consumers IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let client = &client;
    queue.poll().await.unwrap();
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'tidegate.consumers'::regclass";
    eventually("upkeep waits for the lock", || async {
        client.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
    for _ in 0..3 {
        let at = || async {
            let row = client.query_one("SELECT extract(epoch FROM at)::float8 FROM tidegate.heartbeat", &[]).await;
            row.unwrap().get::<_, f64>(0)
        };
        let before = at().await;
        eventually("the heartbeat is written", || async { at().await > before }).await;
    }
    assert!(client.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) > 0, "upkeep still waits");
    client.batch_execute("ROLLBACK").await.unwrap();
    queue.close().await;
}

/// Every read of the catalogue's version returns another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_catalogue_that_never_stands_still_is_an_error_not_an_empty_claim() {
    let place = Place::postgres();
    let queue = place.open().await;
    queue.publish(NewEvent::new("t", "{}")).await.unwrap();
    let client = connect(&place).await;
    let restless = "ALTER TABLE tidegate.store RENAME TO store_kept;
        CREATE SEQUENCE tidegate.restless;
        CREATE VIEW tidegate.store AS SELECT only_row, schema_version, oldest_compatible, id_offset, id_step, log_xid_offset,
            history, token_base,
            nextval('tidegate.restless') AS catalogue_version, nextval('tidegate.restless') AS stamp
        FROM tidegate.store_kept";
    client.batch_execute(restless).await.unwrap();
    assert_eq!(queue.poll().await.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(queue.publish(NewEvent::new("t", "{}")).await.unwrap_err().kind(), ErrorKind::Busy);
    let still = "DROP VIEW tidegate.store; ALTER TABLE tidegate.store_kept RENAME TO store";
    client.batch_execute(still).await.unwrap();
    queue.poll().await.unwrap().expect("the event is there").complete().await.unwrap();
    queue.close().await;
}

/// Another session has locked a row that stays: retention passes it without waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_waits_for_no_lock_on_what_stays() {
    let place = Place::postgres();
    let queue = place.open().await;
    for errors in [vec!["broken"], vec![]] {
        queue.publish(NewEvent::new("t", "{}")).await.unwrap();
        queue.poll().await.unwrap().unwrap().finalize(errors).await.unwrap();
    }
    let client = connect(&place).await;
    let held = "BEGIN; SELECT FROM tidegate.event_log WHERE status = 1 FOR UPDATE";
    client.batch_execute(held).await.unwrap();
    let old = Retention { log: Some(Duration::ZERO), batch: 10, ..Retention::default() };
    soon("the completed one is gone", async {
        while queue.retain_all(old, Duration::ZERO).await.unwrap().entries == 0 {
            queue.store().maintain().await.unwrap();
        }
    })
    .await;
    assert_eq!(queue.dead_letters(None, 9).await.unwrap().len(), 1);
    client.batch_execute("ROLLBACK").await.unwrap();
    queue.close().await;
}

on_each_database! {
    async fn one_of_many_processes_does_the_retention(place) {
        let (one, other) = (place.open().await, place.open().await);
        let old = Retention { log: Some(Duration::ZERO), batch: 10, ..Retention::default() };
        let budget = Duration::from_secs(5);
        assert!(one.retain_for_all(old, Duration::ZERO, budget).await.unwrap().is_some());
        assert_eq!(other.retain_for_all(old, Duration::ZERO, budget).await.unwrap(), None);
        assert!(one.retain_for_all(old, Duration::ZERO, budget).await.unwrap().is_some(), "it stays elected");
        one.close().await;
        assert!(other.retain_for_all(old, Duration::ZERO, budget).await.unwrap().is_some(), "then another is elected");
        other.close().await;
    }

    async fn a_projection_that_is_gone_can_be_removed(place) {
        let queue = place.open().await;
        let projections = queue.store();
        projections.register(&ProjectionId::new("totals", 1).unwrap()).await.unwrap();
        assert!(!queue.remove_projection("others").await.unwrap());
        assert!(queue.remove_projection("totals").await.unwrap());
        assert_eq!(projections.projections().await.unwrap(), []);
        assert!(!queue.remove_projection("totals").await.unwrap());
        queue.close().await;
    }

    async fn expired_keys_are_forgotten_however_many_there_are(place) {
        let clock = ManualClock::at("2026-01-01T00:00:00Z".parse().unwrap());
        let queue = place
            .open_with(|builder| {
                builder.clock(Clock::Manual(clock.clone())).with(|options| {
                    // Only the test calls upkeep.
                    options.upkeep_interval = Duration::from_secs(3600);
                    options.store.outage_after = Duration::from_secs(7200);
                })
            })
            .await;
        let keyed = |number: usize| NewEvent::new("t", "{}").deduplicate(format!("k{number}"));
        for answer in queue.publish_many((0..2_500).map(keyed).collect()).await {
            answer.unwrap();
        }
        clock.advance(Duration::from_secs(25 * 3600));
        let mut rounds = 0;
        let mut expired = 0;
        while expired < 2_500 {
            expired += queue.store().maintain().await.unwrap().keys_expired;
            rounds += 1;
            assert!(rounds < 20, "only {expired} are gone");
        }
        queue.close().await;
    }

    async fn asking_for_a_queue_makes_it_once_and_never_changes_it(place) {
        let queue = place.open().await;
        let name = queue.named("billing").await.unwrap().name().clone();
        queue.named("billing").await.unwrap().pause().await.unwrap();
        let again = queue.named("billing").await.unwrap();
        assert_eq!(again.config().await.unwrap().state, QueueState::Paused);
        assert_eq!(queue.config_of(&name).await.unwrap(), Some(again.config().await.unwrap()));
        assert_eq!(queue.config_of(&"nowhere".try_into().unwrap()).await.unwrap(), None);
        assert_eq!(queue.queues().await.unwrap().len(), 2, "asking makes nothing");
        queue.close().await;
    }
}
