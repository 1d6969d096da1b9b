//! Fencing: only the current lease token may change an entry.

use tidegate_core::{End, EntryId, LeaseToken};

use super::scene::*;
use crate::ErrorKind::{Fenced, NotFound};
use crate::values::*;

/// Makes every call that names a lease; each must be refused. Returns the error classes.
async fn try_everything(store: &AnyStore, claimed: &Claimed) -> Vec<crate::ErrorKind> {
    vec![
        kind(finalize(store, end(claimed, End::Completed)).await),
        kind(extend(store, claimed, LEASE).await),
        kind(requeue(store, release(claimed)).await),
        kind(requeue(store, retry(claimed, RequeueAt::After(LEASE))).await),
    ]
}

pub(super) async fn an_old_token_changes_nothing(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let zombie = claim_one(&store).await;
    scene.advance(60);
    let holder = claim_one(&store).await;
    let before = view(&store, id).await;
    assert_eq!(try_everything(&store, &zombie).await, [Fenced; 4]);
    assert_eq!(view(&store, id).await, before, "nothing changed");
    complete(&store, &holder).await;
}

pub(super) async fn two_tokens_in_one_batch_are_each_judged(scene: Scene) {
    let store = scene.open().await;
    for zombie_first in [true, false] {
        let id = publish_one(&store, event("t")).await;
        let zombie = claim_one(&store).await;
        scene.advance(60);
        let holder = claim_one(&store).await;
        let expected = if zombie_first { [Some(Fenced), None] } else { [None, Some(Fenced)] };
        let both = if zombie_first { [&zombie, &holder] } else { [&holder, &zombie] };

        let extends = both.map(|held| Extend { id, token: held.token, lease: LEASE * 2 });
        let extended = store.extend(extends.to_vec()).await.unwrap();
        assert_eq!(kinds(&extended), expected, "extend, zombie first: {zombie_first}");

        let requeued = store.requeue(both.map(release).to_vec()).await.unwrap();
        assert_eq!(kinds(&requeued), expected, "requeue, zombie first: {zombie_first}");

        let again = claim_one(&store).await;
        let ends = [&zombie, &holder, &again].map(|held| end(held, End::Completed));
        let ended = store.finalize(ends.to_vec()).await.unwrap();
        assert_eq!(kinds(&ended), [Some(Fenced), Some(Fenced), None], "finalize, zombie first: {zombie_first}");
    }
}

pub(super) async fn a_zombie_in_the_same_process_is_fenced(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let zombie = claim_one(&store).await;
    requeue(&store, release(&zombie)).await.unwrap();
    let holder = claim_one(&store).await;
    assert_eq!(
        (zombie.attempts, zombie.lease_until, zombie.id),
        (holder.attempts, holder.lease_until, holder.id),
        "the two leases differ only in their token"
    );
    assert_eq!(try_everything(&store, &zombie).await, [Fenced; 4]);
    assert!(matches!(view(&store, id).await.phase, EntryPhase::Leased { .. }));
    complete(&store, &holder).await;
}

pub(super) async fn an_expired_lease_that_nobody_took_still_finishes(scene: Scene) {
    let store = scene.open().await;
    publish(&store, events(3)).await;
    let claimed = claim(&store, 3).await;
    scene.advance(3600);
    complete(&store, &claimed[0]).await;
    assert_eq!(extend(&store, &claimed[1], LEASE).await.unwrap(), scene.moment(60));
    requeue(&store, release(&claimed[2])).await.unwrap();
    assert_eq!(claim_ids(&store, 3).await, [claimed[2].id]);
}

pub(super) async fn a_released_lease_cannot_finish(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let claimed = claim_one(&store).await;
    requeue(&store, release(&claimed)).await.unwrap();
    assert_eq!(try_everything(&store, &claimed).await, [Fenced; 4]);
    assert_eq!(view(&store, id).await.phase, EntryPhase::Waiting { due: None });
}

pub(super) async fn tokens_rise_and_survive_a_redrive(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let mut last = LeaseToken(0);
    let mut old = Vec::new();
    for round in 0..6 {
        let claimed = claim_one(&store).await;
        assert!(claimed.token > last, "round {round}");
        last = claimed.token;
        match round % 3 {
            0 => requeue(&store, release(&claimed)).await.unwrap(),
            1 => scene.advance(60),
            _ => {
                finalize(&store, end(&claimed, End::Failed)).await.unwrap();
                redrive(&store, id).await.unwrap();
            }
        }
        old.push(claimed);
    }
    for zombie in &old {
        assert_eq!(try_everything(&store, zombie).await, [Fenced; 4], "{zombie:?}");
    }
}

pub(super) async fn a_repeat_under_the_ending_token_is_repeated(scene: Scene) {
    let store = scene.open().await;
    publish_one(&store, event("t")).await;
    let claimed = claim_one(&store).await;
    finalize(&store, end(&claimed, End::Failed)).await.unwrap();
    let repeat = finalize(&store, end(&claimed, End::Completed)).await.unwrap();
    assert_eq!(repeat, Finalized { repeated: true, end: End::Failed });
    assert_eq!(kind(extend(&store, &claimed, LEASE).await), Fenced);
    assert_eq!(kind(requeue(&store, release(&claimed)).await), Fenced);
}

pub(super) async fn a_late_finalize_after_the_end_is_fenced(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let zombie = claim_one(&store).await;
    scene.advance(60);
    let holder = claim_one(&store).await;
    complete(&store, &holder).await;
    let before = view(&store, id).await;
    assert_eq!(try_everything(&store, &zombie).await, [Fenced; 4]);
    assert_eq!(view(&store, id).await, before);
}

pub(super) async fn extend_moves_the_lease(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let claimed = claim_one(&store).await;
    for _ in 0..5 {
        scene.advance(50);
        assert_eq!(extend(&store, &claimed, LEASE).await.unwrap(), scene.moment(60));
        assert_eq!(claim(&store, 1).await, []);
    }
    assert_eq!(extend(&store, &claimed, seconds(5)).await.unwrap(), scene.moment(5), "a lease can also be shortened");
    assert_eq!(view(&store, id).await.attempts, 1);
    scene.advance(5);
    assert_eq!(claim_one(&store).await.attempts, 2);
}

pub(super) async fn extend_and_requeue_of_the_unknown(scene: Scene) {
    let store = scene.open().await;
    publish_one(&store, event("t")).await;
    let mut ghost = claim_one(&store).await;
    ghost.id = EntryId::new(999_999).unwrap();
    let refused = try_everything(&store, &ghost).await;
    assert!(refused.iter().all(|kind| matches!(kind, Fenced | NotFound)), "{refused:?}");
    assert_eq!(refused[0], NotFound, "finalize tells an unknown entry from a lost lease");
}

pub(super) async fn tokens_of_the_future_are_fenced(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let claimed = claim_one(&store).await;
    for token in [0, -1, claimed.token.0 + 1, i64::MAX, i64::MIN] {
        let forged = Claimed { token: LeaseToken(token), ..claimed.clone() };
        assert_eq!(try_everything(&store, &forged).await, [Fenced; 4], "{token}");
    }
    assert!(matches!(view(&store, id).await.phase, EntryPhase::Leased { .. }));
}

/// Neighbours that end alike are ended by one walk; each token is still checked.
pub(super) async fn zombies_that_end_a_whole_run_are_each_fenced(scene: Scene) {
    let store = scene.open().await;
    let published = publish(&store, events(12)).await;
    let zombies = claim(&store, 12).await;
    assert_eq!(ids(&zombies), published);
    scene.advance(60);
    let holders = claim(&store, 12).await;
    assert_eq!(ids(&holders), published);
    let late = zombies.iter().map(|held| end(held, End::Completed)).collect();
    assert_eq!(kinds(&store.finalize(late).await.unwrap()), [Some(Fenced); 12]);
    for id in published {
        assert!(matches!(view(&store, id).await.phase, EntryPhase::Leased { .. }), "nothing was written");
    }
    let ends = holders.iter().map(|held| end(held, End::Completed)).collect();
    assert_eq!(kinds(&store.finalize(ends).await.unwrap()), [None; 12]);
    census(&store).await;
}

pub(super) async fn a_zombie_inside_a_run_is_fenced_alone(scene: Scene) {
    let store = scene.open().await;
    publish(&store, events(12)).await;
    let held = claim(&store, 12).await;
    requeue(&store, release(&held[5])).await.unwrap();
    let other = claim_one(&store).await;
    assert_eq!(other.id, held[5].id);
    let ends = held.iter().map(|held| end(held, End::Completed)).collect();
    let mut expected = [None; 12];
    expected[5] = Some(Fenced);
    assert_eq!(kinds(&store.finalize(ends).await.unwrap()), expected);
    complete(&store, &other).await;
    assert_eq!(census(&store).await.ended, 12);
}
