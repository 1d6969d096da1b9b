//! Queues: states, depth limits, and their separation.

use tidegate_core::{End, NewEvent, QueueConfig, QueueSettings, QueueState};

use super::scene::*;
use crate::ErrorKind::{Full, NotFound};
use crate::values::*;

fn to(state: QueueState) -> QueueChange {
    QueueChange { state: Some(state), ..QueueChange::default() }
}

fn limit(limit: Option<u64>) -> QueueChange {
    QueueChange { depth_limit: Some(limit), ..QueueChange::default() }
}

pub(super) async fn the_default_queue_exists(scene: Scene) {
    let store = scene.open().await;
    let expected = QueueConfig {
        name: default_queue(),
        state: QueueState::Active,
        depth_limit: None,
        settings: QueueSettings::default(),
    };
    assert_eq!(store.queues().await.unwrap(), [expected]);
}

pub(super) async fn put_creates_and_changes(scene: Scene) {
    let store = scene.open().await;
    let name = queue("billing.eu-1/retry:x_y");
    let made = store.put_queue(&name, limit(Some(7))).await.unwrap();
    let settings = QueueSettings::default();
    assert_eq!(made, QueueConfig { name: name.clone(), state: QueueState::Active, depth_limit: Some(7), settings });
    let paused = store.put_queue(&name, to(QueueState::Paused)).await.unwrap();
    assert_eq!((paused.state, paused.depth_limit), (QueueState::Paused, Some(7)), "the other fields stay");
    let lifted = store.put_queue(&name, limit(None)).await.unwrap();
    assert_eq!((lifted.state, lifted.depth_limit), (QueueState::Paused, None));
    let listed = store.queues().await.unwrap();
    assert_eq!(listed.len(), 2);
    assert!(listed.contains(&lifted));
}

pub(super) async fn events_take_the_retries_of_their_queue(scene: Scene) {
    let (store, other) = (scene.open().await, scene.open().await);
    let set = |max_retries| QueueChange {
        settings: SettingsChange { max_retries: Some(max_retries), ..SettingsChange::default() },
        ..QueueChange::default()
    };
    let asks = || event("t").retries_of_queue(3);
    for (retries, expected) in [(None, 4), (Some(7), 8), (Some(0), 1)] {
        other.put_queue(&default_queue(), set(retries)).await.unwrap();
        let keyed = asks().deduplicate(format!("{retries:?}"));
        let events = vec![asks(), asks(), asks().group("g"), event("t").max_retries(2), keyed];
        let published: Vec<Published> = store.publish(events).await.unwrap().into_iter().map(Result::unwrap).collect();
        for (one, expected) in published.iter().zip([expected, expected, expected, 3, expected]) {
            let stored = view(&store, one.id).await.max_attempts;
            assert_eq!((one.max_attempts, stored), (expected, expected), "{retries:?}");
        }
    }
}

pub(super) async fn queues_are_apart(scene: Scene) {
    let store = scene.open().await;
    let name = queue("other");
    store.put_queue(&name, QueueChange::default()).await.unwrap();
    let ids = publish(&store, vec![event("t"), event("t").queue(name.clone())]).await;
    assert_eq!((depth(&store).await.ready, store.depth(&name).await.unwrap().ready), (1, 1));
    assert_eq!(claim_ids(&store, 9).await, [ids[0]]);
    let other = store.claim(Claim { queue: name.clone(), ..want(9) }).await.unwrap();
    assert_eq!(super::scene::ids(&other), [ids[1]]);
    assert_eq!(view(&store, ids[1]).await.queue, name);
}

pub(super) async fn a_paused_queue_accepts_but_does_not_deliver(scene: Scene) {
    let store = scene.open().await;
    let held = publish_one(&store, event("t")).await;
    let claimed = claim_one(&store).await;
    store.put_queue(&default_queue(), to(QueueState::Paused)).await.unwrap();
    let waiting = publish_one(&store, event("t")).await;
    assert_eq!(claim(&store, 9).await, []);
    extend(&store, &claimed, LEASE).await.unwrap();
    complete(&store, &claimed).await;
    assert_eq!(claimed.id, held);
    store.put_queue(&default_queue(), to(QueueState::Active)).await.unwrap();
    assert_eq!(claim_ids(&store, 9).await, [waiting]);
}

pub(super) async fn a_draining_queue_refuses_but_delivers(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    store.put_queue(&default_queue(), to(QueueState::Draining)).await.unwrap();
    assert_eq!(kind(try_publish(&store, event("t")).await), Full);
    assert_eq!(claim_ids(&store, 9).await, [id]);
    assert_eq!(census(&store).await.events, 1);
    store.put_queue(&default_queue(), to(QueueState::Active)).await.unwrap();
    publish_one(&store, event("t")).await;
}

pub(super) async fn a_full_queue_refuses(scene: Scene) {
    let store = scene.open().await;
    store.put_queue(&default_queue(), limit(Some(3))).await.unwrap();
    let answers = store.publish(events(5)).await.unwrap();
    assert_eq!(kinds(&answers), [None, None, None, Some(Full), Some(Full)]);
    let claimed = claim_one(&store).await;
    assert_eq!(kind(try_publish(&store, event("t")).await), Full, "a leased entry counts towards the limit");
    complete(&store, &claimed).await;
    publish_one(&store, event("t")).await;
    assert_eq!(kind(try_publish(&store, event("t")).await), Full);
    store.put_queue(&default_queue(), limit(Some(4))).await.unwrap();
    publish_one(&store, event("t")).await;
    store.put_queue(&default_queue(), limit(None)).await.unwrap();
    publish(&store, events(10)).await;
    assert_eq!(census(&store).await.events, 15);
}

pub(super) async fn a_repeated_key_is_answered_by_a_full_queue(scene: Scene) {
    let store = scene.open().await;
    store.put_queue(&default_queue(), limit(Some(1))).await.unwrap();
    let keyed = NewEvent::new("t", "1").deduplicate("k");
    let first = publish_one(&store, keyed.clone()).await;
    let repeat = try_publish(&store, keyed).await.unwrap();
    assert_eq!((repeat.id, repeat.outcome), (first, PublishOutcome::Duplicate));
    assert_eq!(kind(try_publish(&store, event("t")).await), Full);
}

pub(super) async fn changes_reach_other_processes(scene: Scene) {
    let store = scene.open().await;
    let other = scene.open().await;
    publish_one(&other, event("t")).await;
    store.put_queue(&default_queue(), to(QueueState::Paused)).await.unwrap();
    assert_eq!(claim(&other, 9).await, []);
    store.put_queue(&default_queue(), to(QueueState::Draining)).await.unwrap();
    assert_eq!(kind(try_publish(&other, event("t")).await), Full);
    store.put_queue(&queue("new"), QueueChange::default()).await.unwrap();
    publish_one(&other, event("t").queue(queue("new"))).await;
    let taken = store.claim(Claim { queue: queue("new"), ..want(9) }).await.unwrap();
    assert_eq!(taken.len(), 1);
}

pub(super) async fn an_unknown_queue_is_not_found(scene: Scene) {
    let store = scene.open().await;
    let nowhere = queue("nowhere");
    let answers = store.publish(vec![event("t"), event("t").queue(nowhere.clone()), event("t")]).await.unwrap();
    assert_eq!(kinds(&answers), [None, Some(NotFound), None]);
    assert_eq!(kind(store.claim(Claim { queue: nowhere.clone(), ..want(1) }).await), NotFound);
    assert_eq!(kind(store.depth(&nowhere).await), NotFound);
    let query = DeadLetters { queue: nowhere, event_type: None, after: None, limit: 1 };
    assert_eq!(kind(store.dead_letters(query).await), NotFound);
}

pub(super) async fn the_first_claimable_entry_tells_a_queues_age(scene: Scene) {
    let store = scene.open().await;
    let name = queue("other");
    store.put_queue(&name, QueueChange::default()).await.unwrap();
    let ages = || async {
        let mut ages = store.oldest().await.unwrap();
        ages.sort();
        assert_eq!(ages.iter().map(|(name, _)| name).collect::<Vec<_>>(), [&default_queue(), &name]);
        let age = |at: usize| ages[at].1.map(|age| age.as_secs_f64().round() as u64);
        (age(0), age(1))
    };
    assert_eq!(ages().await, (None, None));
    publish(&store, vec![event("a").priority(5), event("b").queue(name.clone())]).await;
    scene.advance(10);
    publish_one(&store, event("a")).await;
    assert_eq!(ages().await, (Some(10), Some(10)));
    scene.advance(20);
    assert_eq!(ages().await, (Some(30), Some(30)), "the age grows while nothing is claimed");
    let claimed = claim(&store, 9).await;
    assert_eq!(ages().await, (None, Some(30)), "leased entries are not claimable");
    scene.advance(61);
    assert_eq!(ages().await, (Some(91), Some(91)), "until their lease runs out");
    let ends = claimed.iter().map(|claimed| end_by_id(claimed.id, End::Completed)).collect();
    store.finalize(ends).await.unwrap();
    publish_one(&store, event("a").delay(seconds(100))).await;
    assert_eq!(ages().await, (None, Some(91)), "an entry that is not due is not claimable");
    scene.advance(107);
    assert_eq!(ages().await, (Some(7), Some(198)));
}
