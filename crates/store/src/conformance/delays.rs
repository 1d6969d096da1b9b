//! Delays: entries that are not due yet.

use tidegate_core::NewEvent;

use super::scene::*;
use crate::values::*;

pub(super) async fn a_delayed_entry_waits_for_its_moment(scene: Scene) {
    let store = scene.open().await;
    let at = scene.moment(20);
    let ids = publish(&store, vec![event("t").delay(seconds(10)), event("t").available_at(at), event("t")]).await;
    assert_eq!(view(&store, ids[0]).await.phase, EntryPhase::Waiting { due: Some(scene.moment(10)) });
    assert_eq!(view(&store, ids[1]).await.phase, EntryPhase::Waiting { due: Some(at) });
    assert_eq!(claim_ids(&store, 9).await, [ids[2]]);
    scene.advance(9);
    assert_eq!(claim_ids(&store, 9).await, []);
    scene.advance(1);
    assert_eq!(claim_ids(&store, 9).await, [ids[0]]);
    scene.advance(10);
    assert_eq!(claim_ids(&store, 9).await, [ids[1]]);
}

pub(super) async fn a_moment_in_the_past_is_due_at_once(scene: Scene) {
    let store = scene.open().await;
    let past = jiff::Timestamp::from_second(1_000_000_000).unwrap();
    let ids = publish(&store, vec![event("t").available_at(past), event("t").delay(seconds(0))]).await;
    assert_eq!(claim_ids(&store, 9).await, ids);
}

pub(super) async fn many_delayed_in_front_hide_nothing(scene: Scene) {
    let store = scene.open().await;
    let delayed: Vec<NewEvent> = (0..500).map(|_| event("t").delay(seconds(100))).collect();
    let delayed = publish(&store, delayed).await;
    let fresh = publish(&store, events(5)).await;
    assert_eq!(claim_ids(&store, 50).await, fresh);
    scene.advance(100);
    assert_eq!(claim_ids(&store, 500).await, delayed);
}

pub(super) async fn snooze_waits_without_counting(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t").max_attempts(1)).await;
    for _ in 0..5 {
        let claimed = claim_one(&store).await;
        assert_eq!(claimed.attempts, 1);
        let until = scene.moment(30);
        requeue(&store, Requeue { when: RequeueAt::At(until), ..release(&claimed) }).await.unwrap();
        assert_eq!(view(&store, id).await.phase, EntryPhase::Waiting { due: Some(until) });
        assert_eq!(claim(&store, 1).await, []);
        scene.advance(30);
    }
}

pub(super) async fn retry_at_waits_and_counts(scene: Scene) {
    let store = scene.open().await;
    publish_one(&store, event("t")).await;
    for attempt in 1..=4 {
        let claimed = claim_one(&store).await;
        assert_eq!(claimed.attempts, attempt);
        requeue(&store, retry(&claimed, RequeueAt::After(seconds(30)))).await.unwrap();
        scene.advance(29);
        assert_eq!(claim(&store, 1).await, []);
        scene.advance(1);
    }
}

pub(super) async fn due_entries_go_by_their_due_moment_within_a_lane(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, [30, 10, 20].map(|delay| event("t").delay(seconds(delay))).to_vec()).await;
    scene.advance(60);
    assert_eq!(claim_ids(&store, 1).await, [ids[1]], "the one that was due first");
    assert_eq!(claim_ids(&store, 1).await, [ids[2]]);
    assert_eq!(claim_ids(&store, 1).await, [ids[0]]);
}
