//! Deduplication keys: at most one entry per key until the key expires.

use std::time::Duration;

use tidegate_core::{End, EntryId, NewEvent, QueueState, Tsid};

use super::scene::*;
use crate::ErrorKind::{Conflict, Full};
use crate::values::*;

fn keyed(payload: &str) -> NewEvent {
    NewEvent::new("t", payload.to_owned()).deduplicate("k")
}

pub(super) async fn a_repeat_answers_the_first(scene: Scene) {
    let store = scene.open().await;
    let first = try_publish(&store, keyed("1")).await.unwrap();
    scene.advance(5);
    let repeat = try_publish(&store, keyed("1")).await.unwrap();
    assert_eq!((repeat.id, repeat.event_id), (first.id, first.event_id));
    assert_eq!((first.outcome, repeat.outcome), (PublishOutcome::Created, PublishOutcome::Duplicate));
    assert_eq!(census(&store).await.events, 1);
    assert_eq!(claim_ids(&store, 9).await, [first.id]);
}

pub(super) async fn a_repeat_after_the_end_still_answers_the_first(scene: Scene) {
    let store = scene.open().await;
    let first = publish_one(&store, keyed("1")).await;
    complete(&store, &claim_one(&store).await).await;
    let repeat = try_publish(&store, keyed("1")).await.unwrap();
    assert_eq!((repeat.id, repeat.outcome), (first, PublishOutcome::Duplicate));
    assert_eq!(claim(&store, 9).await, []);
}

pub(super) async fn another_body_under_the_key_is_a_conflict(scene: Scene) {
    let store = scene.open().await;
    let first = publish_one(&store, keyed("1")).await;
    assert_eq!(kind(try_publish(&store, keyed("2")).await), Conflict);
    assert_eq!(kind(try_publish(&store, NewEvent::new("u", "1").deduplicate("k")).await), Conflict);
    assert_eq!(view(&store, first).await.fact.payload, "1");
    assert_eq!(census(&store).await.events, 1);
}

pub(super) async fn keys_are_scoped_by_queue(scene: Scene) {
    let store = scene.open().await;
    store.put_queue(&queue("other"), QueueChange::default()).await.unwrap();
    let here = publish_one(&store, keyed("1")).await;
    let there = try_publish(&store, keyed("2").queue(queue("other"))).await.unwrap();
    assert_eq!(there.outcome, PublishOutcome::Created);
    assert_ne!(here, there.id);
}

pub(super) async fn keys_are_scoped_by_client(scene: Scene) {
    let store = scene.open().await;
    let mut theirs = keyed("2");
    theirs.client = Some(Tsid::from_parts(1_700_000_000_000, 1));
    let mut others = keyed("3");
    others.client = Some(Tsid::from_parts(1_700_000_000_000, 2));
    for event in [keyed("1"), theirs, others] {
        assert_eq!(try_publish(&store, event).await.unwrap().outcome, PublishOutcome::Created);
    }
}

pub(super) async fn keys_expire(scene: Scene) {
    let store = scene.open().await;
    let mut short = keyed("1");
    short.deduplication.as_mut().unwrap().window = Duration::from_secs(10);
    let first = publish_one(&store, short).await;
    publish_one(&store, NewEvent::new("t", "x").deduplicate("long")).await;
    scene.advance(9);
    assert_eq!(kind(try_publish(&store, keyed("2")).await), Conflict);
    scene.advance(1);
    let second = try_publish(&store, keyed("2")).await.unwrap();
    assert_eq!(second.outcome, PublishOutcome::Created);
    assert_ne!(second.id, first);
    scene.advance(24 * 3600 - 1);
    assert_eq!(try_publish(&store, keyed("2")).await.unwrap().outcome, PublishOutcome::Duplicate);
    assert_eq!(store.maintain().await.unwrap().keys_expired, 1, "upkeep removes `long`, which has expired");
    assert_eq!(try_publish(&store, keyed("2")).await.unwrap().outcome, PublishOutcome::Duplicate);
    assert_eq!(census(&store).await.events, 3);
}

pub(super) async fn a_repeat_inside_one_batch(scene: Scene) {
    let store = scene.open().await;
    let answers = store.publish(vec![keyed("1"), event("u"), keyed("1"), keyed("2")]).await.unwrap();
    assert_eq!(kinds(&answers), [None, None, None, Some(Conflict)]);
    let first = answers[0].as_ref().unwrap();
    let repeat = answers[2].as_ref().unwrap();
    assert_eq!((repeat.id, repeat.event_id, repeat.outcome), (first.id, first.event_id, PublishOutcome::Duplicate));
    assert_eq!(census(&store).await.events, 2);
}

pub(super) async fn replace_changes_what_waits(scene: Scene) {
    let store = scene.open().await;
    let first = publish_one(&store, NewEvent::new("t", "1").replace_waiting("k")).await;
    let second = publish_one(&store, event("t")).await;
    let replaced = try_publish(&store, NewEvent::new("t", "2").replace_waiting("k")).await.unwrap();
    assert_eq!((replaced.id, replaced.outcome), (first, PublishOutcome::Replaced));
    let claimed = claim(&store, 9).await;
    assert_eq!(ids(&claimed), [first, second], "it keeps its id and order");
    assert_eq!(claimed[0].fact.payload, "2");
    assert_eq!(view(&store, first).await.fact.payload, "2");
    census(&store).await;
}

pub(super) async fn replace_of_a_taken_entry_is_a_new_one(scene: Scene) {
    let store = scene.open().await;
    let replacing = |payload: &str| NewEvent::new("t", payload.to_owned()).replace_waiting("k");
    let first = publish_one(&store, replacing("1")).await;
    let claimed = claim_one(&store).await;
    let second = try_publish(&store, replacing("2")).await.unwrap();
    assert_eq!(second.outcome, PublishOutcome::Created);
    assert_ne!(second.id, first);
    complete(&store, &claimed).await;
    assert_eq!(view(&store, first).await.fact.payload, "1", "a claimed entry is not replaced");
    let third = try_publish(&store, replacing("3")).await.unwrap();
    assert_eq!((third.id, third.outcome), (second.id, PublishOutcome::Replaced));
    finalize(&store, end_by_id(second.id, End::Completed)).await.unwrap();
    assert_eq!(try_publish(&store, replacing("4")).await.unwrap().outcome, PublishOutcome::Created);
    assert_eq!(census(&store).await.events, 3);
}

pub(super) async fn concurrent_repeats_make_one_entry(scene: Scene) {
    let stores = [scene.open_on_database_time().await, scene.open_on_database_time().await];
    for round in 0..10 {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..8 {
            let store = stores[number % 2].clone();
            let event = NewEvent::new("t", "same").deduplicate(format!("k{round}"));
            tasks.spawn(async move { try_publish(&store, event).await.unwrap() });
        }
        let answers = tasks.join_all().await;
        let created = answers.iter().filter(|published| published.outcome == PublishOutcome::Created).count();
        assert_eq!(created, 1, "{answers:?}");
        assert!(answers.iter().all(|published| published.id == answers[0].id));
    }
    assert_eq!(census(&stores[0]).await.events, 10);
}

pub(super) async fn a_rolled_back_key_is_free(scene: Scene) {
    let store = scene.open().await;
    let mut caller = scene.begin().await;
    caller.publish_in(vec![keyed("1")]).await.unwrap();
    caller.rollback().await;
    assert_eq!(try_publish(&store, keyed("2")).await.unwrap().outcome, PublishOutcome::Created);
    let mut caller = scene.begin().await;
    let repeat = caller.publish_in(vec![keyed("2")]).await.unwrap()[0];
    assert_eq!(repeat.outcome, PublishOutcome::Duplicate);
    caller.commit().await;
    assert_eq!(census(&store).await.events, 1);
}

pub(super) async fn a_repeat_is_answered_by_a_queue_that_takes_nothing_new(scene: Scene) {
    let store = scene.open().await;
    let asked = |key: &str| {
        let mut event = event("t");
        event.idempotency = Some(tidegate_core::Idempotency::new(key, 7));
        event
    };
    let replacing = |payload: &str| NewEvent::new("t", payload.to_owned()).replace_waiting("r");
    let first = publish(&store, vec![keyed("1"), asked("a"), replacing("1")]).await;
    let repeats = || vec![keyed("1"), asked("a"), event("t"), keyed("2"), asked("b"), replacing("2")];
    let outcomes = async |change: QueueChange| -> Vec<std::result::Result<EntryId, crate::ErrorKind>> {
        store.put_queue(&default_queue(), change).await.unwrap();
        let answers = store.publish(repeats()).await.unwrap();
        answers.into_iter().map(|answer| answer.map(|made| made.id).map_err(|error| error.kind())).collect()
    };
    let draining = QueueChange { state: Some(QueueState::Draining), ..QueueChange::default() };
    let expected = [Ok(first[0]), Ok(first[1]), Err(Full), Err(Conflict), Err(Full), Err(Full)];
    assert_eq!(outcomes(draining).await, expected);
    let full = QueueChange { state: Some(QueueState::Active), depth_limit: Some(Some(3)), ..QueueChange::default() };
    let expected = [Ok(first[0]), Ok(first[1]), Err(Full), Err(Conflict), Err(Full), Ok(first[2])];
    assert_eq!(outcomes(full).await, expected);
    assert_eq!(census(&store).await.events, 3);
}
