//! Outages: time during which the store was down expires no lease. These cases run on the database's own clock.

use std::time::Duration;

use super::scene::*;
use crate::values::*;

const SHORT_LEASE: Duration = Duration::from_millis(20);

fn until(view: &EntryView) -> tidegate_core::Timestamp {
    match &view.phase {
        EntryPhase::Leased { until, .. } => *until,
        other => panic!("it is not leased: {other:?}"),
    }
}

pub(super) async fn leases_do_not_expire_while_the_store_was_down(scene: Scene) {
    let store = scene.open_on_database_time().await;
    store.maintain().await.unwrap();
    let id = publish_one(&store, event("t")).await;
    let claimed = store.claim(Claim { lease: SHORT_LEASE, ..want(1) }).await.unwrap().remove(0);
    store.close().await;
    scene.fixture.age_heartbeat(Duration::from_secs(600)).await;
    let store = scene.open_on_database_time().await;
    assert_eq!(claim(&store, 9).await, [], "the lease was held when the store went down");
    store.maintain().await.unwrap();
    assert_eq!(claim(&store, 9).await, []);
    let view = view(&store, id).await;
    let moved = until(&view).duration_since(claimed.lease_until);
    assert!(moved.as_secs() >= 599, "the lease was moved by less than the gap: {moved}");
    assert!(moved.as_secs() <= 660, "the lease was moved by more than the gap: {moved}");
    complete(&store, &claimed).await;
}

pub(super) async fn leases_expire_while_the_heartbeat_is_young(scene: Scene) {
    let store = scene.open_on_database_time().await;
    store.maintain().await.unwrap();
    let id = publish_one(&store, event("t")).await;
    let claimed = store.claim(Claim { lease: SHORT_LEASE, ..want(1) }).await.unwrap().remove(0);
    let mut again = Vec::new();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while again.is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "the lease did not expire");
        store.maintain().await.unwrap();
        again = claim(&store, 1).await;
    }
    assert_eq!((again[0].id, again[0].attempts), (id, 2));
    assert!(again[0].claimed_at >= claimed.lease_until, "not before its end, in database time");
}

pub(super) async fn an_outage_is_told_once(scene: Scene) {
    let store = scene.open_on_database_time().await;
    assert_eq!(store.maintain().await.unwrap().outage, None);
    scene.fixture.age_heartbeat(Duration::from_secs(600)).await;
    let outage = store.maintain().await.unwrap().outage.expect("the gap is found");
    assert!((599..660).contains(&outage.as_secs()), "{outage:?}");
    assert_eq!(store.maintain().await.unwrap().outage, None);
    let other = scene.open_on_database_time().await;
    assert_eq!(other.maintain().await.unwrap().outage, None);
}

pub(super) async fn a_heartbeat_alone_keeps_leases_running_out(scene: Scene) {
    let store = scene.open_on_database_time().await;
    assert_eq!(store.beat().await.unwrap(), None);
    scene.fixture.age_heartbeat(Duration::from_secs(600)).await;
    let outage = store.beat().await.unwrap().expect("the gap is found");
    assert!((599..660).contains(&outage.as_secs()), "{outage:?}");
    let id = publish_one(&store, event("t")).await;
    let claimed = store.claim(Claim { lease: SHORT_LEASE, ..want(1) }).await.unwrap().remove(0);
    let mut again = Vec::new();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while again.is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "the lease did not expire");
        assert_eq!(store.beat().await.unwrap(), None);
        again = claim(&store, 1).await;
    }
    assert_eq!((again[0].id, again[0].attempts), (id, 2));
    assert!(again[0].claimed_at >= claimed.lease_until);
}
