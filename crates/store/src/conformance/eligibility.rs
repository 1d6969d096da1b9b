//! Which entries can be claimed, and the life of an entry from publish to end.

use tidegate_core::{End, LeaseToken, NewEvent, Timestamp, Tsid};

use super::scene::*;
use crate::values::*;

pub(super) async fn publish_is_pending_with_no_attempts(scene: Scene) {
    let store = scene.open().await;
    let published = try_publish(&store, event("t")).await.unwrap();
    assert_eq!(published.outcome, PublishOutcome::Created);
    assert_eq!(published.created_at, scene.now());
    let view = view(&store, published.id).await;
    assert_eq!(view.phase, EntryPhase::Waiting { due: None });
    assert_eq!((view.attempts, view.max_attempts, view.generation, view.token), (0, 20, 1, LeaseToken(0)));
    assert_eq!((view.event_id, view.queue, view.priority), (published.event_id, default_queue(), 0));
}

pub(super) async fn nothing_to_claim_is_an_empty_answer(scene: Scene) {
    let store = scene.open().await;
    assert_eq!(claim(&store, 10).await, []);
    publish_one(&store, event("t")).await;
    claim_one(&store).await;
    assert_eq!(claim(&store, 10).await, []);
}

pub(super) async fn claim_leases_and_counts_an_attempt(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    scene.advance(5);
    let claimed = claim_one(&store).await;
    assert_eq!((claimed.id, claimed.attempts, claimed.generation), (id, 1, 1));
    assert_eq!((claimed.claimed_at, claimed.lease_until), (scene.now(), scene.moment(60)));
    let view = view(&store, id).await;
    let leased = EntryPhase::Leased { worker: "w".into(), since: scene.now(), until: scene.moment(60) };
    assert_eq!((view.phase, view.attempts, view.token), (leased, 1, claimed.token));
}

pub(super) async fn a_leased_entry_is_not_offered(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, events(2)).await;
    assert_eq!(claim_ids(&store, 1).await, [ids[0]]);
    assert_eq!(claim_ids(&store, 5).await, [ids[1]]);
    scene.advance(59);
    assert_eq!(claim_ids(&store, 5).await, []);
}

pub(super) async fn an_abandoned_entry_is_claimed_again(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, events(3)).await;
    let first = claim_one(&store).await;
    scene.advance(60);
    let again = store.claim(Claim { worker: "v".into(), ..want(2) }).await.unwrap();
    assert_eq!(super::scene::ids(&again), ids[..2], "the abandoned entry is first again");
    assert_eq!((again[0].attempts, again[1].attempts), (2, 1));
    assert!(again[0].token > first.token);
    let EntryPhase::Leased { worker, .. } = view(&store, ids[0]).await.phase else { panic!("it is leased") };
    assert_eq!(worker, "v");
}

pub(super) async fn the_lease_runs_from_each_claim(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    for (lease, wait) in [(10, 10), (300, 300), (1, 1)] {
        let claimed = store.claim(Claim { lease: seconds(lease), ..want(1) }).await.unwrap();
        assert_eq!(ids(&claimed), [id]);
        scene.advance(wait - 1);
        assert_eq!(claim(&store, 1).await, [], "the lease of {lease} s has not ended");
        scene.advance(1);
    }
    assert_eq!(claim_ids(&store, 1).await, [id]);
}

pub(super) async fn finalize_moves_to_the_log(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let claimed = claim_one(&store).await;
    scene.advance(3);
    complete(&store, &claimed).await;
    let ended = EntryPhase::Ended { end: End::Completed, at: scene.now(), worker: Some("w".into()), superseded: false };
    let view = view(&store, id).await;
    assert_eq!((view.phase, view.attempts, view.error), (ended, 1, None));
    assert_eq!(depth(&store).await.total(), 0);
    assert_eq!(census(&store).await, Census { events: 1, waiting: 0, leased: 0, ended: 1 });
    scene.advance(3600);
    assert_eq!(claim(&store, 1).await, [], "an ended entry never comes back");
}

pub(super) async fn finalize_with_errors_is_completed_with_errors(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let claimed = claim_one(&store).await;
    let errors = Some(r#"[{"handler": "h", "message": "no"}]"#.to_owned());
    let item = Finalize { errors: errors.clone(), ..end(&claimed, End::CompletedWithErrors) };
    assert_eq!(finalize(&store, item).await.unwrap().end, End::CompletedWithErrors);
    let view = view(&store, id).await;
    assert_eq!((ended(&view), view.error), (Some(End::CompletedWithErrors), errors));
}

pub(super) async fn finalize_by_id_without_a_claim(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, events(2)).await;
    let claimed = claim_one(&store).await;
    for id in &ids {
        let finalized = finalize(&store, end_by_id(*id, End::Completed)).await.unwrap();
        assert!(!finalized.repeated, "it ends whether it is held or not");
        assert_eq!(ended(&view(&store, *id).await), Some(End::Completed));
    }
    assert_eq!(claimed.id, ids[0]);
}

pub(super) async fn finalize_is_idempotent(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let claimed = claim_one(&store).await;
    complete(&store, &claimed).await;
    let before = view(&store, id).await;
    scene.advance(10);
    for item in [end(&claimed, End::Completed), end(&claimed, End::Failed), end_by_id(id, End::Failed)] {
        let repeat = finalize(&store, item).await.unwrap();
        assert_eq!(repeat, Finalized { repeated: true, end: End::Completed }, "the first end counts");
    }
    assert_eq!(view(&store, id).await, before);
    assert_eq!(census(&store).await.ended, 1);
}

pub(super) async fn claim_by_type_takes_only_these_types(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, ["a", "b", "c", "a", "b"].map(event).to_vec()).await;
    let claimed = store.claim(want_types(10, &["b"])).await.unwrap();
    assert_eq!(super::scene::ids(&claimed), [ids[1], ids[4]]);
    assert_eq!(store.claim(want_types(10, &["never.seen"])).await.unwrap(), []);
    assert_eq!(store.claim(want_types(10, &[])).await.unwrap(), [], "an empty list of types means none, not all");
    let claimed = store.claim(want_types(10, &["c", "a", "a", "never.seen"])).await.unwrap();
    assert_eq!(super::scene::ids(&claimed), [ids[0], ids[2], ids[3]]);
}

pub(super) async fn facts_come_back_in_full(scene: Scene) {
    let store = scene.open().await;
    let mut full = NewEvent::new("order.créé", "{\"a\": 1}").group("order:1").priority(-7).max_attempts(3);
    full.content_type = Some("application/cloudevents+json".into());
    full.source = Some("shop".into());
    full.subject = Some("order:1".into());
    full.time = Some(Timestamp::from_microsecond(1_700_000_000_123_456).unwrap());
    full.external_id = Some("x-1".into());
    full.correlation_id = Some("c-1".into());
    full.causation_id = Some("b-1".into());
    full.attributes = Some("{\"title\":  \"two  spaces\"}".into());
    full = full.title("Order créée").description("two\nlines").tags(["a b", "é"]);
    full.retry = Some(tidegate_core::RetryPolicy::list([seconds(1), seconds(5)]));
    full.client = Some(Tsid::from_parts(1_700_000_000_000, 7));
    let expected = full.clone();
    let id = publish_one(&store, full).await;
    let created_at = scene.now();
    scene.advance(1);
    let claimed = claim_one(&store).await;
    let view = view(&store, id).await;
    assert_eq!((claimed.group.as_deref(), claimed.max_attempts), (Some("order:1"), 3));
    assert_eq!((view.group.as_deref(), view.priority, view.max_attempts), (Some("order:1"), -7, 3));
    assert_eq!(view.fact, claimed.fact);
    let fact = Fact {
        client: expected.client,
        event_type: expected.event_type,
        payload: expected.payload,
        content_type: expected.content_type,
        source: expected.source,
        subject: expected.subject,
        time: expected.time,
        external_id: expected.external_id,
        correlation_id: expected.correlation_id,
        causation_id: expected.causation_id,
        attributes: expected.attributes,
        created_at,
        title: expected.title,
        description: expected.description,
        tags: expected.tags,
        retry: expected.retry,
    };
    assert_eq!(claimed.fact, fact);
    assert_eq!(claimed.event_id, view.event_id);
}
