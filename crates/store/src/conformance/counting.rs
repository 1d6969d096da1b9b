//! Depth and census: counted in one snapshot, so that they always balance.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::{Depth, End, QueueState};

use super::scene::*;
use crate::values::*;

pub(super) async fn depth_counts_each_kind(scene: Scene) {
    let store = scene.open().await;
    assert_eq!(depth(&store).await, Depth::default());
    let batch = vec![
        event("t"),
        event("t"),
        event("u"),
        event("t").delay(seconds(10)),
        event("t").group("g"),
        event("t").group("g"),
        event("t").group("g"),
    ];
    publish(&store, batch).await;
    assert_eq!(depth(&store).await, Depth { ready: 4, delayed: 1, parked: 2, leased: 0 });
    let claimed = claim(&store, 2).await;
    assert_eq!(depth(&store).await, Depth { ready: 2, delayed: 1, parked: 2, leased: 2 });
    scene.advance(60);
    let expected = Depth { ready: 3, delayed: 0, parked: 2, leased: 2 };
    assert_eq!(depth(&store).await, expected, "an expired lease counts as leased until it is taken");
    complete(&store, &claimed[0]).await;
    assert_eq!(depth(&store).await.leased, 1);
    assert_eq!(census(&store).await, Census { events: 7, waiting: 5, leased: 1, ended: 1 });
}

pub(super) async fn census_balances_over_every_end(scene: Scene) {
    let store = scene.open().await;
    publish(&store, events(8)).await;
    let claimed = claim(&store, 6).await;
    for (claimed, how) in claimed.iter().zip(End::ALL) {
        finalize(&store, end(claimed, how)).await.unwrap();
        census(&store).await;
    }
    redrive(&store, claimed[1].id).await.unwrap();
    assert_eq!(census(&store).await, Census { events: 8, waiting: 3, leased: 2, ended: 3 });
    discard(&store, claimed[2].id).await.unwrap();
    assert_eq!(census(&store).await, Census { events: 8, waiting: 3, leased: 2, ended: 3 });
    cancel(&store, claimed[4].id).await.unwrap();
    requeue(&store, release(&claimed[5])).await.unwrap();
    assert_eq!(census(&store).await, Census { events: 8, waiting: 4, leased: 0, ended: 4 });
}

pub(super) async fn census_balances_while_others_write(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (store, stop) = (scene.open_on_database_time().await, stop.clone());
        async move {
            while !stop.load(Ordering::SeqCst) {
                publish(&store, events(7)).await;
                for claimed in claim(&store, 5).await {
                    finalize(&store, end(&claimed, End::Failed)).await.unwrap();
                }
                for id in dead_letters(&store).await.into_iter().take(2) {
                    redrive(&store, id).await.unwrap();
                }
            }
        }
    });
    for _ in 0..40 {
        census(&store).await;
        let depth = depth(&store).await;
        assert!(depth.total() <= census(&store).await.events);
    }
    stop.store(true, Ordering::SeqCst);
    writer.await.unwrap();
    assert!(census(&store).await.events > 0);
}

pub(super) async fn depth_of_a_paused_queue_counts_ready(scene: Scene) {
    let store = scene.open().await;
    publish(&store, events(2)).await;
    let change = QueueChange { state: Some(QueueState::Paused), ..QueueChange::default() };
    store.put_queue(&default_queue(), change).await.unwrap();
    assert_eq!(depth(&store).await, Depth { ready: 2, ..Depth::default() });
}
