//! A server whose clock is set. The tests leave the clock alone and move the stored moments instead.

use std::time::Duration;

use tidegate_core::Timestamp;
use tidegate_store::api::*;
use tidegate_store::postgres::PostgresStore;
use tidegate_store::{Claim, Claimed, EntryPhase, Extend, Holder};

use crate::scene::*;

const HOUR: i64 = 3_600;
const SHORT_LEASE: Duration = Duration::from_millis(20);

/// Moves the heartbeat and all leases, as if a clock that was `seconds` ahead of now had written them.
async fn written_ahead(database: &Database, seconds: i64) {
    let by = format!("interval '{seconds} seconds'");
    database
        .execute(&format!(
            "UPDATE tidegate.heartbeat SET at = at + {by};
             UPDATE tidegate.event_queue
             SET lease_until = lease_until + {by}, updated_at = updated_at + {by},
                 processing_started_at = processing_started_at + {by};
             UPDATE tidegate.event_tags SET rank = rank + {seconds} * 1000000::bigint WHERE state = 3;"
        ))
        .await;
}

async fn until(store: &PostgresStore, claimed: &Claimed) -> Timestamp {
    let view = store.entries(vec![claimed.id]).await.unwrap().remove(0).unwrap();
    match view.phase {
        EntryPhase::Leased { until, .. } => until,
        other => panic!("it is not leased: {other:?}"),
    }
}

#[track_caller]
fn assert_near(one: Timestamp, other: Timestamp) {
    let apart = one.duration_since(other).unsigned_abs();
    assert!(apart < Duration::from_secs(60), "{one} and {other} are {apart:?} apart");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_a_clock_ahead_wrote_ends_in_time_once_it_is_back() {
    let database = Database::new().await;
    let store = database.open().await;
    publish(&store, vec![event("t"), event("t"), event("t").tags(["blue"])]).await;
    let held = claim(&store, 1).await.remove(0);
    let lost = store.claim(Claim { lease: SHORT_LEASE, ..want(9) }).await.unwrap();
    assert_eq!(lost.len(), 2);
    written_ahead(&database, HOUR).await;

    let mut again = Vec::new();
    eventually("the abandoned entry is claimed by its tag", async || {
        let tagged = Claim { tags: Some(vec!["blue".into()]), ..want(9) };
        again.extend(store.claim(tagged).await.unwrap());
        again.len() == 1
    })
    .await;
    again.extend(claim(&store, 9).await);
    again.sort_by_key(|claimed| claimed.id);
    assert_eq!(ids(&again), ids(&lost), "both abandoned entries, not the held one");
    assert_near(until(&store, &held).await, held.lease_until);
    complete(&store, &[held]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_says_it_has_started_does_not_hide_a_lease_that_a_clock_ahead_wrote() {
    let database = Database::new().await;
    let store = database.open().await;
    publish(&store, vec![event("t")]).await;
    let held = claim(&store, 1).await.remove(0);
    written_ahead(&database, HOUR).await;
    let holder = Holder { id: held.id, worker: "w".into(), lease: None };
    store.started(vec![holder]).await.unwrap().remove(0).unwrap();
    store.beat().await.unwrap();
    assert_near(until(&store, &held).await, held.lease_until);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_was_written_since_the_clock_went_back_stands() {
    let database = Database::new().await;
    let store = database.open().await;
    publish(&store, vec![event("t")]).await;
    let held = claim(&store, 1).await.remove(0);
    database.execute("UPDATE tidegate.heartbeat SET at = at + interval '1 hour'").await;
    store.beat().await.unwrap();
    assert_eq!(until(&store, &held).await, held.lease_until);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_goes_forward_and_back_leaves_leases_where_they_were() {
    let database = Database::new().await;
    let store = database.open().await;
    publish(&store, vec![event("t")]).await;
    let held = claim(&store, 1).await.remove(0);
    written_ahead(&database, -HOUR).await;
    assert!(store.beat().await.unwrap().is_some(), "a step forward looks like an outage");
    assert_near(until(&store, &held).await, held.lease_until);
    written_ahead(&database, HOUR).await;
    assert_eq!(store.beat().await.unwrap(), None);
    assert_near(until(&store, &held).await, held.lease_until);
    assert_eq!(store.beat().await.unwrap(), None);
    assert_near(until(&store, &held).await, held.lease_until);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_extended_first_after_an_outage_is_not_moved_by_it() {
    let database = Database::new().await;
    let store = database.open().await;
    publish(&store, vec![event("t")]).await;
    let held = claim(&store, 1).await.remove(0);
    database.execute("UPDATE tidegate.heartbeat SET at = at - interval '1 hour'").await;
    let extend = Extend { id: held.id, token: held.token, lease: Duration::from_secs(60) };
    let extended = store.extend(vec![extend]).await.unwrap().remove(0).unwrap();
    store.beat().await.unwrap();
    assert_eq!(until(&store, &held).await, extended);
    assert_near(extended, held.lease_until);
}
