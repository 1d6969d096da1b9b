//! A wall clock that is set back or forward.

use super::*;

const HOUR: i64 = 3_600_000_000;

async fn publish(store: &SqliteStore, event: NewEvent) -> Published {
    store.publish(vec![event]).await.unwrap().remove(0).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn delays_and_leases_go_on_after_the_wall_clock_was_set_back() {
    let scene = Scene::new();
    let store = scene.open().await;
    let first = publish(&store, event()).await;
    let short = Claim { lease: Duration::from_millis(1), ..want(1) };
    assert_eq!(store.claim(short).await.unwrap().len(), 1);
    let delayed = publish(&store, NewEvent::new("later", "{}").delay(Duration::from_millis(1))).await;
    store.inner.shared.time.step.store(-HOUR, Ordering::SeqCst);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    let mut found = BTreeSet::new();
    while found.len() < 2 {
        assert!(tokio::time::Instant::now() < deadline, "time stands still: {found:?}");
        found.extend(store.claim(want(9)).await.unwrap().into_iter().map(|claimed| claimed.id));
    }
    assert!(found.contains(&first.id) && found.contains(&delayed.id));
    let next = publish(&store, event()).await;
    assert!(next.created_at > delayed.created_at && next.event_id > delayed.event_id);

    store.inner.shared.time.step.store(HOUR, Ordering::SeqCst);
    let ahead = publish(&store, event()).await;
    assert!(ahead.created_at.as_microsecond() - next.created_at.as_microsecond() >= HOUR, "a step forward is followed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_goes_on_from_the_last_moment_that_was_stored() {
    let scene = Scene::new();
    let store = scene.open().await;
    store.inner.shared.time.step.store(HOUR, Ordering::SeqCst);
    let before = publish(&store, event()).await;
    store.close().await;
    // Since then the wall clock was set back by an hour.
    let store = scene.open().await;
    let after = publish(&store, event()).await;
    assert!(after.created_at > before.created_at && after.event_id > before.event_id, "{before:?} {after:?}");
    store.maintain().await.unwrap();
    store.close().await;
    scene.connect().execute_batch("DELETE FROM tidegate_event_queue; DELETE FROM tidegate_events").unwrap();
    let store = scene.open().await;
    assert!(publish(&store, event()).await.created_at > after.created_at, "the heartbeat counts too");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_follows_another_that_has_seen_a_later_moment() {
    let scene = Scene::new();
    let (store, other) = (scene.open().await, scene.open().await);
    other.inner.shared.time.step.store(HOUR, Ordering::SeqCst);
    other.maintain().await.unwrap();
    let ahead = publish(&other, event()).await;
    store.maintain().await.unwrap();
    let next = publish(&store, event()).await;
    assert!(next.created_at.as_microsecond() > ahead.created_at.as_microsecond() - HOUR / 60);
}
