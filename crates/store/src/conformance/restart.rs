//! Closing and reopening: everything acknowledged is still there.

use tidegate_core::{End, NewEvent, QueueState};

use super::scene::*;
use crate::values::*;

pub(super) async fn everything_is_there_after_reopening(scene: Scene) {
    let store = scene.open().await;
    let change = QueueChange { state: Some(QueueState::Paused), depth_limit: Some(Some(9)), ..QueueChange::default() };
    store.put_queue(&queue("other"), change).await.unwrap();
    let keyed = NewEvent::new("t", "keyed").deduplicate("k");
    let mut batch = events(4);
    batch.extend([event("t").group("g"), event("t").group("g"), event("t").delay(seconds(500)), keyed.clone()]);
    let published = publish(&store, batch).await;
    let claimed = claim(&store, 3).await;
    finalize(&store, Finalize { errors: Some("[1]".into()), ..end(&claimed[0], End::Failed) }).await.unwrap();
    requeue(&store, retry(&claimed[1], RequeueAt::After(seconds(5)))).await.unwrap();

    let before = store.entries(published.clone()).await.unwrap();
    let counted = (depth(&store).await, census(&store).await, store.queues().await.unwrap());
    store.close().await;
    drop(store);
    let store = scene.open().await;
    assert_eq!(store.entries(published.clone()).await.unwrap(), before);
    assert_eq!((depth(&store).await, census(&store).await, store.queues().await.unwrap()), counted);
    assert_eq!(dead_letters(&store).await, [claimed[0].id]);
    assert_eq!(try_publish(&store, keyed).await.unwrap().outcome, PublishOutcome::Duplicate);
    complete(&store, &claimed[2]).await;
    let next = claim(&store, 9).await;
    assert_eq!(ids(&next), [published[3], published[4], published[7]]);
    complete(&store, &next[1]).await;
    assert_eq!(claim_ids(&store, 9).await, [published[5]]);
}

pub(super) async fn closing_twice_is_fine(scene: Scene) {
    let store = scene.open().await;
    publish_one(&store, event("t")).await;
    store.close().await;
    store.close().await;
    let store = scene.open().await;
    assert_eq!(claim(&store, 9).await.len(), 1);
}

pub(super) async fn a_closed_store_answers_with_an_error(scene: Scene) {
    let store = scene.open().await;
    let other = scene.open().await;
    store.close().await;
    assert_eq!(kind(store.publish(events(1)).await), crate::ErrorKind::Unavailable);
    assert_eq!(kind(store.claim(want(1)).await), crate::ErrorKind::Unavailable);
    assert_eq!(kind(store.census().await), crate::ErrorKind::Unavailable);
    publish_one(&other, event("t")).await;
}

pub(super) async fn another_process_sees_every_commit_at_once(scene: Scene) {
    let (here, there) = (scene.open().await, scene.open().await);
    for round in 0..20 {
        let id = publish_one(&here, event("t")).await;
        let claimed = claim(&there, 1).await;
        assert_eq!(ids(&claimed), [id], "round {round}");
        assert!(matches!(view(&here, id).await.phase, EntryPhase::Leased { .. }));
        complete(&here, &claimed[0]).await;
        assert_eq!(ended(&view(&there, id).await), Some(End::Completed));
    }
}
