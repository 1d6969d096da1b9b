//! Replacing the waiting entry of a key: concurrent publishers, and what is removed with the old contents.

use tidegate_core::{End, NewEvent};

use super::scene::*;
use crate::values::*;
use crate::values::{HandlerHistory, HandlerState};

fn replacing(key: &str, payload: impl Into<String>) -> NewEvent {
    NewEvent::new("t", payload.into()).replace_waiting(key)
}

/// Publishes under one key from eight tasks of two processes at once; returns every answer.
async fn race(stores: &[AnyStore; 2], key: &str) -> Vec<Published> {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let store = stores[number % 2].clone();
        let event = replacing(key, format!("{number}"));
        tasks.spawn(async move { try_publish(&store, event).await.expect("the event is published") });
    }
    tasks.join_all().await
}

pub(super) async fn concurrent_replacements_leave_one_entry_with_its_fact(scene: Scene) {
    let stores = [scene.open_on_database_time().await, scene.open_on_database_time().await];
    for round in 0..12 {
        let key = format!("k{round}");
        let first = publish_one(&stores[0], replacing(&key, "first")).await;
        let answers = race(&stores, &key).await;
        assert!(
            answers.iter().all(|answer| answer.id == first && answer.outcome == PublishOutcome::Replaced),
            "{answers:?}"
        );
        let claimed = claim(&stores[0], 9).await;
        assert_eq!(ids(&claimed), [first], "round {round}");
        let last = answers.iter().any(|answer| answer.event_id == claimed[0].event_id);
        assert!(last, "it has the contents of one of them: {claimed:?}");
        complete(&stores[0], &claimed[0]).await;
    }
    assert_eq!(census(&stores[0]).await.events, 12);
}

pub(super) async fn concurrent_takeovers_of_a_key_make_one_entry(scene: Scene) {
    let stores = [scene.open_on_database_time().await, scene.open_on_database_time().await];
    for round in 0..12 {
        let key = format!("k{round}");
        let first = publish_one(&stores[0], replacing(&key, "first")).await;
        let held = claim_one(&stores[0]).await;
        let answers = race(&stores, &key).await;
        let created = answers.iter().filter(|answer| answer.outcome == PublishOutcome::Created).count();
        assert_eq!(created, 1, "one takes the key over and the others replace what it made: {answers:?}");
        assert!(answers.iter().all(|answer| answer.id == answers[0].id && answer.id != first), "{answers:?}");
        complete(&stores[0], &held).await;
        complete(&stores[0], &claim_one(&stores[0]).await).await;
        assert_eq!(claim(&stores[0], 9).await, [], "round {round}");
    }
    census(&stores[0]).await;
}

/// The second publisher waits for the first one's transaction and then finds other contents than it had seen.
pub(super) async fn a_replacement_that_waited_for_another_finds_its_contents(scene: Scene) {
    let store = scene.open().await;
    let first = publish_one(&store, replacing("k", "1")).await;
    let mut caller = scene.begin().await;
    caller.publish_in(vec![replacing("k", "2")]).await.unwrap();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { try_publish(&store, replacing("k", "3")).await }
    });
    scene.until_blocked().await;
    caller.commit().await;
    let replaced = waiting.await.unwrap().unwrap();
    assert_eq!((replaced.id, replaced.outcome), (first, PublishOutcome::Replaced));
    let claimed = claim_one(&store).await;
    assert_eq!((claimed.id, claimed.fact.payload.as_ref()), (first, b"3".as_slice()));
    complete(&store, &claimed).await;
    assert_eq!(census(&store).await.events, 1);
}

pub(super) async fn several_are_replaced_in_one_batch(scene: Scene) {
    let store = scene.open().await;
    let batch = |round: usize| -> Vec<NewEvent> {
        let event = |number: usize| replacing(&format!("k{number}"), format!("{number} in {round}"));
        let mut batch: Vec<NewEvent> = (0..6).map(|number| event(number).group(format!("g{}", number % 2))).collect();
        batch.push(event(6).tags(["a", "b"]));
        batch.push(event(7).tags([format!("only.{round}")]));
        batch
    };
    let first = publish(&store, batch(1)).await;
    let head = claim_one(&store).await;
    assert_eq!(head.id, first[0]);
    let answers = store.publish(batch(2)).await.unwrap();
    let answers: Vec<Published> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers[0].outcome, PublishOutcome::Created, "its first entry is leased");
    for (answer, id) in answers.iter().zip(&first).skip(1) {
        assert_eq!((answer.id, answer.outcome), (*id, PublishOutcome::Replaced));
        assert_eq!(view(&store, *id).await.event_id, answer.event_id);
    }
    complete(&store, &head).await;
    let mut payloads = Vec::new();
    while let Some(claimed) = claim(&store, 1).await.pop() {
        payloads.push(String::from_utf8(claimed.fact.payload.to_vec()).unwrap());
        complete(&store, &claimed).await;
    }
    payloads.sort();
    let expected: Vec<String> = (0..8).map(|number| format!("{number} in 2")).collect();
    assert_eq!(payloads, expected);
    census(&store).await;
}

pub(super) async fn recorded_successes_go_with_the_contents(scene: Scene) {
    let store = scene.open().await;
    let states = store.as_ref();
    let success = |held: &Claimed| HandlerState {
        id: held.id,
        token: held.token,
        handler: "a".into(),
        result: r#"{"result":"SUCCESS"}"#.into(),
    };
    let id = publish_one(&store, replacing("k", "1")).await;
    let held = claim_one(&store).await;
    states.record_handled(vec![success(&held)]).await.unwrap();
    requeue(&store, retry(&held, RequeueAt::Now)).await.unwrap();
    assert_eq!(states.handled(vec![id]).await.unwrap()[0].states.len(), 1);
    publish_one(&store, replacing("k", "2")).await;
    assert_eq!(states.handled(vec![id]).await.unwrap(), [HandlerHistory::default()], "`a` must see the new contents");
    let held = claim_one(&store).await;
    assert_eq!(held.fact.payload, "2");
    let results = Some(r#"{"a":{"result":"SUCCESS"}}"#.into());
    finalize(&store, Finalize { results, ..end(&held, End::Failed) }).await.unwrap();
    redrive(&store, id).await.unwrap();
    assert!(states.handled(vec![id]).await.unwrap()[0].previous.is_some());
    publish_one(&store, replacing("k", "3")).await;
    assert_eq!(states.handled(vec![id]).await.unwrap(), [HandlerHistory::default()], "earlier results do not count");
    assert_eq!(claim_one(&store).await.fact.payload, "3");
}

/// A missing fact (deleted manually, or lost in a restore of some tables only) affects that entry alone.
pub(super) async fn an_entry_without_its_fact_is_set_aside_with_the_reason(scene: Scene) {
    let store = scene.open().await;
    let batch = vec![
        event("t"),
        event("t"),
        event("t").group("g"),
        event("t").group("g"),
        event("t").tags(["a"]),
        event("t").tags(["a"]),
        event("t").delay(seconds(5)),
        event("t"),
    ];
    let published = store.publish(batch).await.unwrap();
    let published: Vec<Published> = published.into_iter().map(Result::unwrap).collect();
    let lost = [0, 2, 4, 6];
    for index in lost {
        scene.fixture.lose_fact(published[index].event_id).await;
    }
    scene.advance(5);
    let tagged = store.claim(Claim { tags: Some(vec!["a".into()]), ..want(9) }).await.unwrap();
    assert_eq!(ids(&tagged), [published[5].id], "its neighbours are claimed");
    let claimed: Vec<_> = claim_until(&store, 3).await;
    assert_eq!(ids(&claimed), [1, 3, 7].map(|index: usize| published[index].id));
    assert_eq!(claim(&store, 9).await, []);
    assert_eq!(dead_letters(&store).await, lost.map(|index| published[index].id));
    for index in lost {
        let view = view(&store, published[index].id).await;
        assert_eq!(ended(&view), Some(End::CompletedWithErrors));
        let errors = view.error.unwrap_or_default();
        assert!(errors.contains("missing") && errors.contains("restore"), "{errors}");
    }
    let claimable = store.claimable(&default_queue(), vec!["a".into()]).await.unwrap();
    assert_eq!(claimable, Vec::<String>::new(), "its tag rows are gone");
    // Redriven without its fact, it ends as a dead letter again.
    redrive(&store, published[0].id).await.unwrap();
    assert_eq!(claim(&store, 9).await, []);
    assert_eq!(ended(&view(&store, published[0].id).await), Some(End::CompletedWithErrors));
}

/// New contents under the key repair an entry whose fact was lost.
pub(super) async fn a_replacement_mends_an_entry_without_its_fact(scene: Scene) {
    let store = scene.open().await;
    let first = try_publish(&store, replacing("k", "1")).await.unwrap();
    scene.fixture.lose_fact(first.event_id).await;
    let replaced = try_publish(&store, replacing("k", "2")).await.unwrap();
    assert_eq!((replaced.id, replaced.outcome), (first.id, PublishOutcome::Replaced));
    let claimed = claim_one(&store).await;
    assert_eq!((claimed.id, claimed.fact.payload.as_ref()), (first.id, b"2".as_slice()));
    assert_eq!(claimed.fact.event_type, "t");
    complete(&store, &claimed).await;
    census(&store).await;
}
