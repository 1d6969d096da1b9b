//! Attempts: what counts as one, and what happens when they are used up.

use tidegate_core::{End, NewEvent};

use super::scene::*;
use crate::values::*;

pub(super) async fn each_abandonment_counts(scene: Scene) {
    let store = scene.open().await;
    publish_one(&store, event("t")).await;
    for attempt in 1..=5 {
        assert_eq!(claim_one(&store).await.attempts, attempt);
        scene.advance(60);
    }
}

pub(super) async fn releases_never_use_up_attempts(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t").max_attempts(2)).await;
    let mut last = None;
    for _ in 0..50 {
        let claimed = claim_one(&store).await;
        assert_eq!(claimed.attempts, 1);
        assert!(last.is_none_or(|last| claimed.token > last), "the token rises though the attempt does not count");
        last = Some(claimed.token);
        requeue(&store, release(&claimed)).await.unwrap();
        assert_eq!(view(&store, id).await.attempts, 0);
    }
}

pub(super) async fn failures_count_and_keep_their_error(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let first = claim_one(&store).await;
    assert_eq!(first.last_error, None);
    requeue(&store, retry(&first, RequeueAt::Now)).await.unwrap();
    let waiting = view(&store, id).await;
    assert_eq!((waiting.attempts, waiting.error.as_deref()), (1, Some("it failed")));
    let second = claim_one(&store).await;
    assert_eq!((second.attempts, second.last_error.as_deref()), (2, Some("it failed")));
}

/// Whichever way an entry ends: under its lease, in a group, by id alone, or cancelled.
pub(super) async fn an_end_that_says_no_errors_keeps_the_last_one(scene: Scene) {
    let store = scene.open().await;
    let plain = publish(&store, events(9)).await;
    let grouped = publish_one(&store, event("t").group("g")).await;
    let failed = claim(&store, 10).await;
    assert_eq!(failed.len(), 10);
    for claimed in &failed {
        requeue(&store, retry(claimed, RequeueAt::Now)).await.unwrap();
    }
    let held = claim(&store, 10).await;
    let error = async |id| view(&store, id).await.error;
    let held_as = |id| held.iter().find(|claimed| claimed.id == id).expect("the entry is claimed again");
    finalize(&store, end(held_as(plain[0]), End::Completed)).await.unwrap();
    assert_eq!(error(plain[0]).await, None, "a completed entry has no error");
    let other = Finalize { errors: Some("[\"other\"]".into()), ..end(held_as(plain[1]), End::Failed) };
    finalize(&store, other).await.unwrap();
    assert_eq!(error(plain[1]).await.as_deref(), Some("[\"other\"]"), "errors that a call names count");
    finalize(&store, end(held_as(plain[2]), End::CompletedWithErrors)).await.unwrap();
    finalize(&store, end_by_id(plain[3], End::Failed)).await.unwrap();
    cancel(&store, plain[4]).await.unwrap();
    finalize(&store, end(held_as(grouped), End::Failed)).await.unwrap();
    for id in [plain[2], plain[3], plain[4], grouped] {
        assert_eq!(error(id).await.as_deref(), Some("it failed"), "{id}");
    }
}

/// The same for neighbours that one batch ends together.
pub(super) async fn neighbours_that_say_no_errors_keep_their_last_ones(scene: Scene) {
    let store = scene.open().await;
    for (how, kept) in [(End::Completed, None), (End::Failed, Some("it failed"))] {
        let published = publish(&store, events(20)).await;
        for claimed in claim(&store, 20).await {
            requeue(&store, retry(&claimed, RequeueAt::Now)).await.unwrap();
        }
        let held = claim(&store, 20).await;
        assert_eq!(ids(&held), published);
        let answers = store.finalize(held.iter().map(|claimed| end(claimed, how)).collect()).await.unwrap();
        assert_eq!(kinds(&answers), [None; 20]);
        for id in published {
            assert_eq!(view(&store, id).await.error.as_deref(), kept, "{how:?}");
        }
    }
}

pub(super) async fn an_event_that_kills_its_worker_ends_in_the_log(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t").max_attempts(3)).await;
    let mut last = None;
    for attempt in 1..=3 {
        let claimed = claim_one(&store).await;
        assert_eq!(claimed.attempts, attempt);
        last = Some(claimed);
        scene.advance(60);
    }
    assert_eq!(claim(&store, 1).await, []);
    let view = view(&store, id).await;
    assert_eq!((ended(&view), view.attempts), (Some(End::CompletedWithErrors), 3));
    let late = end(&last.unwrap(), End::Completed);
    assert_eq!(kind(finalize(&store, late).await), crate::ErrorKind::Fenced);
    assert_eq!(dead_letters(&store).await, [id]);
    census(&store).await;
}

pub(super) async fn exhausted_entries_end_as_they_were_told(scene: Scene) {
    let store = scene.open().await;
    let mut failed = event("t").max_attempts(1);
    failed.exhausted_as = End::Failed;
    let id = publish_one(&store, failed).await;
    let claimed = claim_one(&store).await;
    let item = Requeue { when: RequeueAt::Now, error: Some("boom".into()), ..retry(&claimed, RequeueAt::Now) };
    requeue(&store, item).await.unwrap();
    assert_eq!(claim(&store, 1).await, []);
    let view = view(&store, id).await;
    assert_eq!(ended(&view), Some(End::Failed));
    assert!(view.error.is_some_and(|error| error.contains("boom")), "it ends with its last error");
}

pub(super) async fn a_retry_that_used_the_last_attempt_ends_at_the_next_claim(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t").max_attempts(2)).await;
    for _ in 0..2 {
        let claimed = claim_one(&store).await;
        requeue(&store, retry(&claimed, RequeueAt::After(seconds(10)))).await.unwrap();
        assert_eq!(claim(&store, 1).await, []);
        scene.advance(10);
    }
    assert_eq!(ended(&view(&store, id).await), None);
    assert_eq!(claim(&store, 1).await, []);
    assert_eq!(ended(&view(&store, id).await), Some(End::CompletedWithErrors));
}

pub(super) async fn exhausted_entries_do_not_hide_the_ones_behind(scene: Scene) {
    let store = scene.open().await;
    let poison: Vec<NewEvent> = (0..20).map(|_| event("t").max_attempts(1)).collect();
    let poisoned = publish(&store, poison).await;
    let good = publish(&store, events(3)).await;
    assert_eq!(claim_ids(&store, 20).await, poisoned);
    scene.advance(60);
    let came = claim_until(&store, 3).await;
    assert_eq!(ids(&came), good);
    assert_eq!(dead_letters(&store).await, poisoned);
    census(&store).await;
}
