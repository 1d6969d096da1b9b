//! Handler states: what handlers answered about entries that are still live.

use tidegate_core::{End, EntryId};

use super::scene::*;
use crate::ErrorKind::Fenced;
use crate::api::*;
use crate::values::*;
use crate::values::{HandlerHistory, HandlerState};

fn states(store: &AnyStore) -> &dyn Store {
    store.as_ref()
}

fn answer(claimed: &Claimed, handler: &str, result: &str) -> HandlerState {
    HandlerState { id: claimed.id, token: claimed.token, handler: handler.into(), result: result.into() }
}

async fn recorded(store: &AnyStore, id: EntryId) -> Vec<(String, String)> {
    let mut history = states(store).handled(vec![id]).await.unwrap();
    let mut known = history.remove(0).states;
    known.sort();
    known
}

fn known(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(handler, result)| ((*handler).into(), (*result).into())).collect()
}

pub(super) async fn answers_are_kept_by_entry_and_handler(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, events(2)).await;
    let claimed = claim(&store, 2).await;
    let items = vec![answer(&claimed[0], "a", "1"), answer(&claimed[1], "b", "2"), answer(&claimed[0], "c", "3")];
    assert_eq!(kinds(&states(&store).record_handled(items).await.unwrap()), [None; 3]);
    assert_eq!(recorded(&store, ids[0]).await, known(&[("a", "1"), ("c", "3")]));
    assert_eq!(recorded(&store, ids[1]).await, known(&[("b", "2")]));
    let both = states(&store).handled(vec![ids[1], EntryId::new(999_999).unwrap(), ids[0]]).await.unwrap();
    assert_eq!(both.iter().map(|history| history.states.len()).collect::<Vec<_>>(), [1, 0, 2], "in order of the ids");
}

pub(super) async fn a_later_answer_replaces_an_earlier_one(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let claimed = claim_one(&store).await;
    let twice = vec![answer(&claimed, "a", "1"), answer(&claimed, "a", "2")];
    states(&store).record_handled(twice).await.unwrap();
    assert_eq!(recorded(&store, id).await, known(&[("a", "2")]));
    states(&store).record_handled(vec![answer(&claimed, "a", "3")]).await.unwrap();
    assert_eq!(recorded(&store, id).await, known(&[("a", "3")]));
}

pub(super) async fn a_stale_holder_records_nothing(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let zombie = claim_one(&store).await;
    scene.advance(60);
    let holder = claim_one(&store).await;
    for order in [[&zombie, &holder], [&holder, &zombie]] {
        let items = order.map(|held| answer(held, &format!("h{}", held.token.0), "x")).to_vec();
        let answers = states(&store).record_handled(items).await.unwrap();
        let expected = order.map(|held| (held.token != holder.token).then_some(Fenced));
        assert_eq!(kinds(&answers), expected);
    }
    assert_eq!(recorded(&store, id).await.len(), 1);
    requeue(&store, release(&holder)).await.unwrap();
    let given_back = states(&store).record_handled(vec![answer(&holder, "late", "x")]).await.unwrap();
    assert_eq!(kinds(&given_back), [Some(Fenced)]);
    assert_eq!(recorded(&store, id).await.len(), 1);
}

pub(super) async fn answers_outlive_a_retry_and_are_forgotten_after_the_end(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, events(3)).await;
    let claimed = claim(&store, 3).await;
    let items = claimed.iter().map(|held| answer(held, "a", "1")).collect();
    states(&store).record_handled(items).await.unwrap();
    requeue(&store, retry(&claimed[0], RequeueAt::Now)).await.unwrap();
    complete(&store, &claimed[1]).await;
    complete(&store, &claimed[2]).await;
    assert_eq!(states(&store).forget_handled(1).await.unwrap(), 1, "no more than the limit");
    assert_eq!(states(&store).forget_handled(100).await.unwrap(), 1);
    assert_eq!(states(&store).forget_handled(100).await.unwrap(), 0);
    assert_eq!(recorded(&store, ids[0]).await, known(&[("a", "1")]), "it is still live");
    assert_eq!(recorded(&store, ids[1]).await, []);
}

pub(super) async fn a_redriven_entry_knows_its_last_results(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let claimed = claim_one(&store).await;
    let results = r#"{"a":{"result":"SUCCESS"}}"#;
    let item = Finalize { results: Some(results.into()), ..end(&claimed, End::CompletedWithErrors) };
    finalize(&store, item).await.unwrap();
    redrive(&store, id).await.unwrap();
    let history = states(&store).handled(vec![id]).await.unwrap();
    assert_eq!(history, [HandlerHistory { states: Vec::new(), previous: Some(results.into()) }]);
}

pub(super) async fn a_run_that_ends_alike_keeps_its_results(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, events(40)).await;
    let claimed = claim(&store, 40).await;
    let results = |number: usize| if number < 20 { r#"{"a":{"result":"SUCCESS"}}"# } else { "{}" };
    let ends: Vec<Finalize> = claimed
        .iter()
        .enumerate()
        .map(|(number, held)| Finalize { results: Some(results(number).into()), ..end(held, End::Completed) })
        .collect();
    assert_eq!(kinds(&store.finalize(ends[..20].to_vec()).await.unwrap()), vec![None; 20]);
    assert_eq!(kinds(&store.finalize(ends[15..].to_vec()).await.unwrap()), vec![None; 25], "five of them are repeats");
    for (number, id) in ids.into_iter().enumerate() {
        assert_eq!(view(&store, id).await.results.as_deref(), Some(results(number)));
    }
}

/// Lets the lease of an entry's last attempt expire; the next claim ends the entry as exhausted.
async fn abandon(scene: &Scene, store: &AnyStore, id: EntryId) {
    scene.advance(60);
    assert!(claim(store, 1).await.is_empty());
    assert_eq!(ended(&view(store, id).await), Some(End::CompletedWithErrors));
}

pub(super) async fn what_handlers_answered_outlives_exhaustion(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t").max_attempts(1)).await;
    let other = publish_one(&store, event("t").max_attempts(1)).await;
    let claimed = claim(&store, 2).await;
    let success = r#"{"result":"SUCCESS"}"#;
    states(&store).record_handled(vec![answer(&claimed[0], "a", success)]).await.unwrap();
    abandon(&scene, &store, id).await;
    assert_eq!(view(&store, id).await.results.as_deref(), Some(r#"{"a":{"result":"SUCCESS"}}"#));
    assert_eq!(view(&store, other).await.results, None, "no handler answered about it");
    // The sweep removes the states of ended entries; what a redrive needs is in the log row.
    assert_eq!(states(&store).forget_handled(100).await.unwrap(), 1);
    redrive(&store, id).await.unwrap();
    let claimed = claim_one(&store).await;
    states(&store).record_handled(vec![answer(&claimed, "b", success)]).await.unwrap();
    abandon(&scene, &store, id).await;
    states(&store).forget_handled(100).await.unwrap();
    redrive(&store, id).await.unwrap();
    let both = r#"{"a":{"result":"SUCCESS"},"b":{"result":"SUCCESS"}}"#;
    let history = states(&store).handled(vec![id]).await.unwrap();
    assert_eq!(history, [HandlerHistory { states: Vec::new(), previous: Some(both.into()) }], "of all generations");
}
