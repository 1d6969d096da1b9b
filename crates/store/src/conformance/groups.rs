//! Groups: at most one entry of a group is in flight, in order, and a group never stalls.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tidegate_core::{End, EntryId, NewEvent};
use tokio::sync::Mutex;

use super::scene::*;
use crate::values::*;

fn of(group: &str) -> NewEvent {
    event("t").group(group)
}

pub(super) async fn one_of_a_group_in_flight_in_order(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("g"), of("g"), of("g")]).await;
    for (index, id) in ids.iter().enumerate() {
        let claimed = claim(&store, 10).await;
        assert_eq!(super::scene::ids(&claimed), [*id], "only the head is offered");
        assert_eq!(claim(&store, 10).await, [], "no follower is offered while the head is leased");
        assert_eq!(depth(&store).await.parked, 2 - index as u64);
        complete(&store, &claimed[0]).await;
    }
    assert_eq!(claim(&store, 10).await, []);
}

pub(super) async fn groups_do_not_hold_each_other_up(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("a"), of("a"), of("b"), event("t")]).await;
    assert_eq!(claim_ids(&store, 1).await, [ids[0]]);
    let rest: HashSet<EntryId> = claim_ids(&store, 10).await.into_iter().collect();
    assert_eq!(rest, HashSet::from([ids[2], ids[3]]));
}

pub(super) async fn one_claim_takes_one_of_each_group(scene: Scene) {
    let store = scene.open().await;
    let batch: Vec<NewEvent> = (0..60).map(|number| of(&format!("g{}", number % 6))).collect();
    publish(&store, batch).await;
    for round in 0..10 {
        let claimed = claim(&store, 100).await;
        let groups: HashSet<_> = claimed.iter().map(|claimed| claimed.group.clone()).collect();
        assert_eq!((claimed.len(), groups.len()), (6, 6), "round {round}");
        for claimed in &claimed {
            complete(&store, claimed).await;
        }
    }
    assert_eq!(claim(&store, 100).await, []);
}

pub(super) async fn a_released_head_stays_first(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("g"), of("g")]).await;
    for _ in 0..3 {
        let claimed = claim_one(&store).await;
        assert_eq!(claimed.id, ids[0]);
        requeue(&store, release(&claimed)).await.unwrap();
    }
}

pub(super) async fn a_retrying_head_holds_its_group(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("g"), of("g")]).await;
    let head = claim_one(&store).await;
    requeue(&store, retry(&head, RequeueAt::After(seconds(30)))).await.unwrap();
    assert_eq!(claim(&store, 10).await, []);
    scene.advance(30);
    let head = claim_one(&store).await;
    assert_eq!(head.id, ids[0]);
    complete(&store, &head).await;
    assert_eq!(claim_ids(&store, 10).await, [ids[1]]);
}

pub(super) async fn a_delayed_head_holds_its_group(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("g").delay(seconds(30)), of("g")]).await;
    assert_eq!(claim(&store, 10).await, []);
    scene.advance(30);
    let head = claim_one(&store).await;
    assert_eq!(head.id, ids[0]);
    complete(&store, &head).await;
    assert_eq!(claim_ids(&store, 10).await, [ids[1]]);
}

pub(super) async fn a_cancelled_head_frees_the_next(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("g"), of("g"), of("g")]).await;
    cancel(&store, ids[0]).await.unwrap();
    let second = claim_one(&store).await;
    assert_eq!(second.id, ids[1]);
    cancel(&store, ids[1]).await.unwrap();
    assert_eq!(claim_ids(&store, 10).await, [ids[2]]);
    let late = finalize(&store, end(&second, End::Completed)).await.unwrap();
    assert_eq!(late, Finalized { repeated: true, end: End::Cancelled }, "its holder learns how it ended");
}

pub(super) async fn an_exhausted_head_frees_the_next(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("g").max_attempts(1), of("g")]).await;
    claim_one(&store).await;
    scene.advance(60);
    let next = claim_until(&store, 1).await;
    assert_eq!(super::scene::ids(&next), [ids[1]]);
    assert_eq!(ended(&view(&store, ids[0]).await), Some(End::CompletedWithErrors));
}

pub(super) async fn a_cancelled_follower_is_skipped(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("g"), of("g"), of("g")]).await;
    cancel(&store, ids[1]).await.unwrap();
    let head = claim_one(&store).await;
    complete(&store, &head).await;
    assert_eq!(claim_ids(&store, 10).await, [ids[2]]);
}

pub(super) async fn a_redriven_member_goes_in_by_its_number(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("g"), of("g"), of("g")]).await;
    let first = claim_one(&store).await;
    finalize(&store, end(&first, End::Failed)).await.unwrap();
    let second = claim_one(&store).await;
    redrive(&store, ids[0]).await.unwrap();
    assert_eq!(claim(&store, 10).await, [], "the second is in flight");
    complete(&store, &second).await;
    let again = claim_one(&store).await;
    assert_eq!((again.id, again.generation), (ids[0], 2));
    complete(&store, &again).await;
    assert_eq!(claim_ids(&store, 10).await, [ids[2]]);
}

pub(super) async fn the_same_group_in_two_queues_is_two_groups(scene: Scene) {
    let store = scene.open().await;
    store.put_queue(&queue("other"), QueueChange::default()).await.unwrap();
    let ids = publish(&store, vec![of("g"), of("g").queue(queue("other"))]).await;
    assert_eq!(claim_ids(&store, 10).await, [ids[0]]);
    let other = store.claim(Claim { queue: queue("other"), ..want(10) }).await.unwrap();
    assert_eq!(super::scene::ids(&other), [ids[1]]);
}

pub(super) async fn an_abandoned_head_is_taken_over_before_its_followers(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("g"), of("g")]).await;
    claim_one(&store).await;
    scene.advance(60);
    assert_eq!(claim_ids(&store, 10).await, [ids[0]]);
    assert_eq!(claim_ids(&store, 10).await, []);
}

/// The head ends while its follower is in an open transaction, which commits afterwards.
pub(super) async fn a_follower_in_an_open_transaction_while_the_head_ends(scene: Scene) {
    let store = scene.open().await;
    publish_one(&store, of("g")).await;
    let head = claim_one(&store).await;
    let mut caller = scene.begin().await;
    let follower = caller.publish_in(vec![of("g")]).await.unwrap()[0].id;
    let ending = tokio::spawn({
        let store = store.clone();
        async move { complete(&store, &head).await }
    });
    if scene.is_sqlite() {
        // SQLite has one writer: the end waits for the caller's transaction.
        caller.commit().await;
        ending.await.unwrap();
    } else {
        ending.await.unwrap();
        assert_eq!(claim(&store, 10).await, [], "the follower is not committed yet");
        store.maintain().await.unwrap();
        caller.commit().await;
    }
    assert_eq!(ids(&claim_until(&store, 1).await), [follower]);
}

/// The follower commits while the head is leased; then the head ends.
pub(super) async fn a_follower_that_commits_before_the_head_ends(scene: Scene) {
    let store = scene.open().await;
    publish_one(&store, of("g")).await;
    let head = claim_one(&store).await;
    let mut caller = scene.begin().await;
    let follower = caller.publish_in(vec![of("g")]).await.unwrap()[0].id;
    caller.commit().await;
    assert_eq!(claim(&store, 10).await, []);
    store.wake([default_queue()].into());
    store.maintain().await.unwrap();
    assert_eq!(claim(&store, 10).await, [], "the head is still in flight");
    complete(&store, &head).await;
    assert_eq!(ids(&claim_until(&store, 1).await), [follower]);
}

/// Two processes publish into the same groups and work them off at the same time.
pub(super) async fn concurrent_publishers_and_workers_keep_groups_in_order(scene: Scene) {
    const GROUPS: usize = 5;
    const EACH: usize = 24;
    let stores = [scene.open_on_database_time().await, scene.open_on_database_time().await];
    let seen: Arc<Mutex<HashMap<String, Vec<EntryId>>>> = Arc::default();
    let in_flight: Arc<Mutex<HashSet<String>>> = Arc::default();
    let mut tasks = tokio::task::JoinSet::new();
    for group in 0..GROUPS {
        let store = stores[group % 2].clone();
        tasks.spawn(async move {
            for _ in 0..EACH / 4 {
                publish(&store, vec![of(&format!("g{group}")); 4]).await;
            }
        });
    }
    for worker in 0..6 {
        let (store, seen, in_flight) = (stores[worker % 2].clone(), seen.clone(), in_flight.clone());
        tasks.spawn(async move {
            let all_seen = async || seen.lock().await.values().map(Vec::len).sum::<usize>() == GROUPS * EACH;
            eventually("all groups are worked off", async || {
                for claimed in claim(&store, 3).await {
                    let group = claimed.group.clone().unwrap();
                    assert!(in_flight.lock().await.insert(group.clone()), "two of {group} in flight");
                    seen.lock().await.entry(group.clone()).or_default().push(claimed.id);
                    tokio::task::yield_now().await;
                    in_flight.lock().await.remove(&group);
                    complete(&store, &claimed).await;
                }
                all_seen().await
            })
            .await;
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    for (group, ids) in seen.lock().await.iter() {
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{group} went out of order: {ids:?}");
    }
    assert_eq!(census(&stores[0]).await.ended, (GROUPS * EACH) as u64);
}

/// The end of the head races with the publish of its follower: whichever commits first, the follower is claimable.
pub(super) async fn a_group_never_stalls_when_ends_race_with_publishes(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let other = scene.open_on_database_time().await;
    let mut last = publish_one(&store, of("g")).await;
    for round in 0..40 {
        let head = claim_until(&store, 1).await.remove(0);
        assert_eq!(head.id, last, "round {round}");
        let publisher = tokio::spawn({
            let other = other.clone();
            async move { publish_one(&other, of("g")).await }
        });
        complete(&store, &head).await;
        last = publisher.await.unwrap();
    }
    assert_eq!(ids(&claim_until(&store, 1).await), [last]);
}
