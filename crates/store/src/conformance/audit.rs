//! The audit: every action on an entry, in order, each recorded once.

use tidegate_core::{Action, AttemptOutcome, EntryId};

use super::scene::*;
use super::work::*;
use crate::values::ManualAction;
use crate::values::*;

async fn actions(store: &AnyStore, id: EntryId) -> Vec<(Action, Option<String>)> {
    let trail = work(store).audit(id).await.expect("the audit is shown");
    assert!(trail.windows(2).all(|pair| pair[0].id < pair[1].id), "rows are in order");
    trail.into_iter().map(|row| (row.action, row.worker)).collect()
}

fn done_by(action: Action, worker: &str) -> (Action, Option<String>) {
    (action, Some(worker.to_owned()))
}

pub(super) async fn the_whole_story_is_kept(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job()).await;
    pick_one(&store, "w:1").await;
    let begun = only(work(&store).started(vec![by(id, "w:1")]).await).unwrap();
    assert_eq!(only(work(&store).started(vec![by(id, "w:1")]).await).unwrap(), begun, "a repeat returns the record");
    fail_by(&store, id, "w:1").await.unwrap();
    scene.advance(300);
    pick_one(&store, "w:2").await;
    complete_by(&store, id, "w:2").await.unwrap();
    let expected = [
        done_by(Action::Picked, "w:1"),
        done_by(Action::Started, "w:1"),
        done_by(Action::Failed, "w:1"),
        done_by(Action::Picked, "w:2"),
        done_by(Action::Completed, "w:2"),
    ];
    assert_eq!(actions(&store, id).await, expected);
    let trail = work(&store).audit(id).await.unwrap();
    assert_eq!(trail.iter().map(|row| row.attempt).collect::<Vec<_>>(), [1, 1, 1, 2, 2]);
    assert_eq!(trail[2].message.as_deref(), Some("it broke"));
    assert_eq!(trail[0].created_at, trail[2].created_at);
    assert!(trail[3].created_at > trail[2].created_at);
}

pub(super) async fn a_takeover_says_who_abandoned(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![job(), job().max_retries(0)]).await;
    store.claim(pick("w:1", 2)).await.unwrap();
    scene.advance(60);
    let taken = store.claim(Claim { audit: false, ..pick("w:2", 2) }).await.unwrap();
    assert_eq!(super::scene::ids(&taken), [ids[0]], "the other has no attempts left");
    let expected = [done_by(Action::Picked, "w:1"), done_by(Action::Abandoned, "w:1")];
    assert_eq!(actions(&store, ids[0]).await, expected, "even if the claim that takes over is not audited");
    assert_eq!(actions(&store, ids[1]).await, expected);
}

pub(super) async fn upkeep_says_who_abandoned_what_expired(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job().expires_after(seconds(30))).await;
    pick_one(&store, "w:1").await;
    scene.advance(60);
    assert_eq!(store.maintain().await.unwrap().expired, 1);
    assert_eq!(actions(&store, id).await, [done_by(Action::Picked, "w:1"), done_by(Action::Abandoned, "w:1")]);
}

pub(super) async fn a_release_is_not_an_abandonment(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job()).await;
    let claimed = pick_one(&store, "w:1").await;
    requeue(&store, release(&claimed)).await.unwrap();
    pick_one(&store, "w:2").await;
    let expected = [done_by(Action::Picked, "w:1"), done_by(Action::Released, "w:1"), done_by(Action::Picked, "w:2")];
    assert_eq!(actions(&store, id).await, expected);
}

pub(super) async fn a_reset_keeps_its_reason(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job()).await;
    pick_one(&store, "w:1").await;
    let reset = ManualAction { id, actor: Some("ops".into()), reason: Some("worker_timeout".into()) };
    only(work(&store).reset(vec![reset]).await).unwrap();
    pick_one(&store, "w:2").await;
    let trail = work(&store).audit(id).await.unwrap();
    assert_eq!(trail[1].message.as_deref(), Some("worker_timeout"));
    assert_eq!((&trail[1].worker, trail[1].actor.as_deref()), (&None, Some("ops")));
    let expected = [done_by(Action::Picked, "w:1"), (Action::Reset, None), done_by(Action::Picked, "w:2")];
    assert_eq!(actions(&store, id).await, expected, "a reset is not an abandonment");
}

pub(super) async fn what_is_done_by_hand_says_who(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![job().max_retries(0), job(), event("t").group("g"), event("t")]).await;
    let item = |id, actor: Option<&str>| ManualAction { id, actor: actor.map(Into::into), reason: Some("why".into()) };
    let trail = async |id| {
        let trail = work(&store).audit(id).await.unwrap();
        let manual = trail.into_iter().filter(|row| row.action.is_manual());
        manual.map(|row| (row.action, row.actor, row.generation, row.message)).collect::<Vec<_>>()
    };
    pick_one(&store, "w:1").await;
    fail_by(&store, ids[0], "w:1").await.unwrap();
    let unknown = EntryId::new(999_999).unwrap();
    let items = vec![item(ids[0], Some("ann")), item(ids[1], Some("bob")), item(unknown, None)];
    let answers = store.redrive_manually(items).await.unwrap();
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false]);
    let (ann, why) = (Some("ann".to_owned()), Some("why".to_owned()));
    let redriven = (Action::Redriven, ann.clone(), 2, why.clone());
    assert_eq!(trail(ids[0]).await, std::slice::from_ref(&redriven));
    let held = pick_one(&store, "w:1").await;
    let items = vec![item(ids[0], None), item(ids[2], Some("ann")), item(ids[2], Some("bob")), item(unknown, None)];
    let answers = store.cancel_manually(items).await.unwrap();
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, false]);
    assert_eq!(trail(ids[0]).await, [redriven, (Action::Cancelled, None, 2, why.clone())]);
    assert_eq!(trail(ids[2]).await, [(Action::Cancelled, ann, 1, why)]);
    let last = work(&store).audit(ids[0]).await.unwrap().pop().unwrap();
    assert_eq!((last.attempt, last.token, last.created_at), (held.attempts, held.token, scene.now()));
    assert_eq!((trail(ids[1]).await.len(), trail(ids[3]).await.len()), (0, 0), "nothing was done to these");
}

pub(super) async fn claims_without_audit_leave_no_trace(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job()).await;
    let claimed = claim_one(&store).await;
    requeue(&store, release(&claimed)).await.unwrap();
    let claimed = claim_one(&store).await;
    complete(&store, &claimed).await;
    assert_eq!(actions(&store, id).await, []);
    assert_eq!(work(&store).audit(EntryId::new(999_999).unwrap()).await.unwrap(), []);
}

pub(super) async fn untagged_claims_can_be_audited(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![event("t"), event("u"), event("t").priority(3)]).await;
    let claimed = store.claim(Claim { tags: None, ..pick("w:1", 9) }).await.unwrap();
    assert_eq!(claimed.len(), 3);
    for id in &ids {
        assert_eq!(actions(&store, *id).await, [done_by(Action::Picked, "w:1")]);
    }
    let items = ids.iter().map(|id| report_of(by(*id, "w:1"), AttemptOutcome::Completed)).collect();
    assert!(work(&store).report(items).await.unwrap().iter().all(Result::is_ok));
    let typed = publish(&store, vec![event("only")]).await;
    store.claim(Claim { tags: None, types: Some(vec!["only".into()]), ..pick("w:1", 9) }).await.unwrap();
    scene.advance(60);
    claim(&store, 9).await;
    assert_eq!(actions(&store, typed[0]).await, [done_by(Action::Picked, "w:1"), done_by(Action::Abandoned, "w:1")]);
}
