//! Wake-ups: hints that something may be claimable.

use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::scene::*;
use crate::values::*;

/// Waits for a wake-up that may concern the default queue.
async fn woken(what: &str, hints: &mut Receiver<Wake>) {
    let hint = async {
        loop {
            match hints.recv().await {
                Ok(Wake::Queues(queues)) if !queues.contains(&default_queue()) => {}
                Ok(_) | Err(RecvError::Lagged(_)) => return,
                Err(RecvError::Closed) => panic!("{what}: the store was dropped"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), hint).await.unwrap_or_else(|_| panic!("{what}: no wake-up came"));
}

pub(super) async fn a_publish_wakes_its_own_process(scene: Scene) {
    let store = scene.open().await;
    let mut hints = store.wakeups();
    publish_one(&store, event("t")).await;
    woken("a publish", &mut hints).await;
}

pub(super) async fn a_publish_wakes_another_process(scene: Scene) {
    let store = scene.open().await;
    let other = scene.open().await;
    let mut hints = other.wakeups();
    publish_one(&store, event("t")).await;
    woken("another process's publish", &mut hints).await;
}

pub(super) async fn a_callers_commit_wakes_when_told(scene: Scene) {
    let store = scene.open().await;
    let other = scene.open().await;
    let mut hints = [store.wakeups(), other.wakeups()];
    let mut caller = scene.begin().await;
    caller.publish_in(vec![event("t"), event("t").group("g")]).await.unwrap();
    caller.commit().await;
    other.wake([default_queue()].into());
    for hints in &mut hints {
        woken("a caller's commit", hints).await;
    }
    assert_eq!(claim_until(&store, 2).await.len(), 2);
}

pub(super) async fn a_freed_group_wakes(scene: Scene) {
    let store = scene.open().await;
    publish(&store, vec![event("t").group("g"); 2]).await;
    let head = claim_one(&store).await;
    let mut hints = store.wakeups();
    complete(&store, &head).await;
    woken("the end of a group's head", &mut hints).await;
    claim_one(&store).await;
}
