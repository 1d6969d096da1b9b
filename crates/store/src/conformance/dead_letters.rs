//! Dead letters: listing, redriving and discarding them; and cancelling entries.

use tidegate_core::{End, EntryId, NewEvent};

use super::scene::*;
use crate::ErrorKind::{AlreadyEnded, Conflict, NotFound};
use crate::values::*;

/// Publishes one event and ends it this way.
async fn ended_as(store: &AnyStore, event: NewEvent, how: End) -> EntryId {
    let id = publish_one(store, event).await;
    finalize(store, end_by_id(id, how)).await.unwrap();
    id
}

async fn list(store: &AnyStore, query: DeadLetters) -> Vec<EntryId> {
    store.dead_letters(query).await.unwrap().iter().map(|view| view.id).collect()
}

fn all() -> DeadLetters {
    DeadLetters { queue: default_queue(), event_type: None, after: None, limit: 100 }
}

pub(super) async fn listed_by_queue_type_and_page(scene: Scene) {
    let store = scene.open().await;
    store.put_queue(&queue("other"), QueueChange::default()).await.unwrap();
    let mut dead = Vec::new();
    for kind in ["a", "b", "a", "b", "a"] {
        dead.push(ended_as(&store, event(kind), End::Failed).await);
    }
    let there = ended_as(&store, event("a").queue(queue("other")), End::Failed).await;
    assert_eq!(list(&store, all()).await, dead, "oldest first");
    assert_eq!(list(&store, DeadLetters { queue: queue("other"), ..all() }).await, [there]);
    let of_a = DeadLetters { event_type: Some("a".into()), ..all() };
    assert_eq!(list(&store, of_a.clone()).await, [dead[0], dead[2], dead[4]]);
    assert_eq!(list(&store, DeadLetters { limit: 2, ..all() }).await, dead[..2]);
    assert_eq!(list(&store, DeadLetters { limit: 2, after: Some(dead[1]), ..all() }).await, dead[2..4]);
    assert_eq!(list(&store, DeadLetters { limit: 1, after: Some(dead[0]), ..of_a }).await, [dead[2]]);
    assert_eq!(list(&store, DeadLetters { limit: 0, ..all() }).await, []);
}

pub(super) async fn only_the_middle_two_ends_are_dead_letters(scene: Scene) {
    let store = scene.open().await;
    let mut by_end = Vec::new();
    for how in End::ALL {
        by_end.push(ended_as(&store, event("t"), how).await);
    }
    publish_one(&store, event("t")).await;
    assert_eq!(list(&store, all()).await, by_end[1..3]);
    for view in store.dead_letters(all()).await.unwrap() {
        assert!(ended(&view).is_some_and(End::is_dead_letter));
    }
}

pub(super) async fn redrive_starts_a_generation(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t").max_attempts(1)).await;
    let first = claim_one(&store).await;
    finalize(&store, end(&first, End::Failed)).await.unwrap();
    scene.advance(10);
    assert_eq!(redrive(&store, id).await.unwrap(), 2);
    assert_eq!(list(&store, all()).await, []);
    let waiting = view(&store, id).await;
    assert!(matches!(waiting.phase, EntryPhase::Waiting { .. }), "{waiting:?}");
    assert_eq!((waiting.generation, waiting.attempts, waiting.token), (2, 0, first.token));
    assert_eq!(census(&store).await, Census { events: 1, waiting: 1, leased: 0, ended: 0 });
    let again = claim_one(&store).await;
    assert_eq!((again.id, again.generation, again.attempts), (id, 2, 1));
    assert_eq!((again.event_id, &again.fact), (first.event_id, &first.fact), "the fact is the same");
    complete(&store, &again).await;
    assert_eq!(view(&store, id).await.generation, 2);
    assert_eq!(census(&store).await, Census { events: 1, waiting: 0, leased: 0, ended: 1 });
}

pub(super) async fn a_new_generation_has_no_error_yet(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let first = claim_one(&store).await;
    let errors = Some("[\"no such\"]".to_owned());
    finalize(&store, Finalize { errors: errors.clone(), ..end(&first, End::Failed) }).await.unwrap();
    assert_eq!(view(&store, id).await.error, errors);
    redrive(&store, id).await.unwrap();
    assert_eq!(view(&store, id).await.error, None, "no attempt of this generation has failed");
    assert_eq!(claim_one(&store).await.last_error, None);
}

pub(super) async fn redrive_of_anything_else_is_a_conflict(scene: Scene) {
    let store = scene.open().await;
    let completed = ended_as(&store, event("t"), End::Completed).await;
    let cancelled = ended_as(&store, event("t"), End::Cancelled).await;
    let leased = publish_one(&store, event("t")).await;
    claim_one(&store).await;
    let waiting = publish_one(&store, event("t")).await;
    for id in [completed, cancelled, leased, waiting] {
        assert_eq!(kind(redrive(&store, id).await), Conflict, "{id}");
    }
    let unknown = EntryId::new(999_999).unwrap();
    assert_eq!(kind(redrive(&store, unknown).await), NotFound);
    let dead = ended_as(&store, event("t"), End::Failed).await;
    redrive(&store, dead).await.unwrap();
    assert_eq!(kind(redrive(&store, dead).await), Conflict, "it is live again");
}

pub(super) async fn each_generation_ends_once(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    for generation in 1..=5 {
        let claimed = claim_one(&store).await;
        assert_eq!(claimed.generation, generation);
        assert!(!finalize(&store, end(&claimed, End::Failed)).await.unwrap().repeated);
        assert!(finalize(&store, end(&claimed, End::Failed)).await.unwrap().repeated);
        assert!(finalize(&store, end_by_id(id, End::Completed)).await.unwrap().repeated);
        assert_eq!(list(&store, all()).await, [id], "listed once, however many generations it has");
        assert_eq!(redrive(&store, id).await.unwrap(), generation + 1);
    }
    census(&store).await;
}

pub(super) async fn discard_takes_off_the_list(scene: Scene) {
    let store = scene.open().await;
    let kept = ended_as(&store, event("t"), End::Failed).await;
    let dropped = ended_as(&store, event("t"), End::CompletedWithErrors).await;
    let completed = ended_as(&store, event("t"), End::Completed).await;
    let waiting = publish_one(&store, event("t")).await;
    discard(&store, dropped).await.unwrap();
    assert_eq!(list(&store, all()).await, [kept]);
    let view = view(&store, dropped).await;
    assert!(
        matches!(view.phase, EntryPhase::Ended { end: End::CompletedWithErrors, superseded: true, .. }),
        "{view:?}"
    );
    assert_eq!(kind(redrive(&store, dropped).await), Conflict);
    assert_eq!(kind(discard(&store, completed).await), Conflict);
    assert_eq!(kind(discard(&store, waiting).await), Conflict);
    assert_eq!(kind(discard(&store, EntryId::new(999_999).unwrap()).await), NotFound);
    assert_eq!(census(&store).await.ended, 3, "a discarded entry still counts as ended");
}

pub(super) async fn cancel_ends_whoever_holds(scene: Scene) {
    let store = scene.open().await;
    let batch =
        vec![event("t"), event("t"), event("t").delay(seconds(100)), event("t").group("g"), event("t").group("g")];
    let ids = publish(&store, batch).await;
    let held = claim_one(&store).await;
    let answers = store.cancel(ids.clone()).await.unwrap();
    assert_eq!(kinds(&answers), [None; 5]);
    for id in &ids {
        assert_eq!(ended(&view(&store, *id).await), Some(End::Cancelled));
    }
    let late = finalize(&store, end(&held, End::Completed)).await.unwrap();
    assert_eq!(late, Finalized { repeated: true, end: End::Cancelled }, "its holder learns how it ended");
    assert_eq!(depth(&store).await.total(), 0);
    scene.advance(1000);
    assert_eq!(claim(&store, 9).await, []);
    assert_eq!(census(&store).await.ended, 5);
}

pub(super) async fn cancel_tells_ended_from_unknown(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let unknown = EntryId::new(999_999).unwrap();
    let done = ended_as(&store, event("t"), End::Completed).await;
    let answers = store.cancel(vec![done, unknown, id]).await.unwrap();
    assert_eq!(kinds(&answers), [Some(AlreadyEnded), Some(NotFound), None]);
    assert_eq!(kind(cancel(&store, id).await), AlreadyEnded);
    assert_eq!(ended(&view(&store, done).await), Some(End::Completed));
}

pub(super) async fn errors_and_results_are_kept(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let claimed = claim_one(&store).await;
    let item = Finalize {
        errors: Some("[\"no  such\\u0000\"]".into()),
        results: Some("{\"h\":  \"ok\"}".into()),
        ..end(&claimed, End::Failed)
    };
    finalize(&store, item.clone()).await.unwrap();
    let view = view(&store, id).await;
    assert_eq!((&view.error, &view.results), (&item.errors, &item.results));
    let listed = store.dead_letters(all()).await.unwrap();
    assert_eq!(listed, [view]);
}
