//! Claims that wait until something becomes claimable.

use super::*;
use crate::values::{Clock, ManualClock};
use crate::waiting_claim::WaitingClaim;

async fn answer(waiting: &mut WaitingClaim) -> Vec<Claimed> {
    tokio::time::timeout(Duration::from_secs(20), waiting.answer()).await.unwrap().unwrap().unwrap()
}

async fn leased(store: &SqliteStore) -> u64 {
    store.census().await.unwrap().leased
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standing_claim_is_answered_by_the_commit_that_publishes() {
    let scene = Scene::new();
    let store = scene.open().await;
    let mut waiting = store.claim_when_available(want(10)).unwrap();
    let before = commits(&store);
    let published = store.publish(vec![event(), event()]).await.unwrap();
    assert_eq!(commits(&store) - before, 1, "one commit for the events and their leases");
    let claimed = answer(&mut waiting).await;
    let ids: Vec<EntryId> = published.into_iter().map(|answer| answer.unwrap().id).collect();
    assert_eq!(claimed.iter().map(|entry| entry.id).collect::<Vec<_>>(), ids);
    assert_eq!(leased(&store).await, 2);
    assert!(store.finalize(claimed.iter().map(done).collect()).await.unwrap().iter().all(Result::is_ok));
    assert!(!waiting.withdraw(), "it is answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_takes_only_what_it_wants_and_the_first_who_stands_comes_first() {
    let scene = Scene::new();
    let store = scene.open().await;
    let other = Claim { types: Some(vec!["other".into()]), ..want(10) };
    let mut waits_for_other = store.claim_when_available(other).unwrap();
    let (mut first, mut second) =
        (store.claim_when_available(want(1)).unwrap(), store.claim_when_available(want(1)).unwrap());
    let first_id = store.publish(vec![event()]).await.unwrap().remove(0).unwrap().id;
    assert_eq!(answer(&mut first).await[0].id, first_id);
    let second_id = store.publish(vec![event()]).await.unwrap().remove(0).unwrap().id;
    assert_eq!(answer(&mut second).await[0].id, second_id);
    store.publish(vec![NewEvent::new("other", "{}")]).await.unwrap().remove(0).unwrap();
    assert_eq!(answer(&mut waits_for_other).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_taken_back_gets_nothing() {
    let scene = Scene::new();
    let store = scene.open().await;
    let mut waiting = store.claim_when_available(want(1)).unwrap();
    assert!(waiting.withdraw());
    assert!(waiting.answer().await.is_none());
    store.publish(vec![event()]).await.unwrap().remove(0).unwrap();
    assert_eq!(leased(&store).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_taken_back_while_it_is_tried_says_what_it_got() {
    let scene = Scene::new();
    let store = scene.open().await;
    // Whether the withdrawal is too late depends on timing; in either case every lease has a known holder.
    for round in 0..200 {
        let mut waiting = store.claim_when_available(want(1)).unwrap();
        let publisher = store.clone();
        let publishing = tokio::spawn(async move { publisher.publish(vec![event()]).await });
        for _ in 0..steps(round) {
            std::hint::spin_loop();
        }
        let withdrawn = waiting.withdraw();
        publishing.await.unwrap().unwrap().remove(0).unwrap();
        let claimed = if withdrawn { store.claim(want(1)).await.unwrap() } else { answer(&mut waiting).await };
        let claimed = if claimed.is_empty() { store.claim(want(1)).await.unwrap() } else { claimed };
        assert_eq!(claimed.len(), 1);
        store.finalize(claimed.iter().map(done).collect()).await.unwrap().remove(0).unwrap();
    }
    let census = store.census().await.unwrap();
    assert_eq!((census.leased, census.waiting, census.ended), (0, 0, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_taken_back_while_it_finds_nothing_is_answered() {
    let scene = Scene::new();
    let store = scene.open().await;
    // Whether the withdrawal is too late depends on timing here as well; if it is, the caller waits for an answer.
    for round in 0..1000 {
        let other = Claim { types: Some(vec!["other".into()]), ..want(1) };
        let mut waiting = store.claim_when_available(other).unwrap();
        let publisher = store.clone();
        let publishing = tokio::spawn(async move { publisher.publish(vec![event()]).await });
        for _ in 0..steps(round) {
            std::hint::spin_loop();
        }
        if !waiting.withdraw() {
            assert!(answer(&mut waiting).await.is_empty());
        }
        publishing.await.unwrap().unwrap().remove(0).unwrap();
    }
    assert_eq!(leased(&store).await, 0);
}

/// How long to spin, different in each round.
fn steps(round: u64) -> u64 {
    (round.wrapping_mul(2_654_435_761) % 97) * 400
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_finds_what_others_wrote_and_what_became_due() {
    let scene = Scene::new();
    let clock = ManualClock::at(Timestamp::now());
    let store = scene.open_with(StoreOptions { clock: Clock::Manual(clock.clone()), ..StoreOptions::default() }).await;
    let mut waiting = store.claim_when_available(want(1)).unwrap();
    waiting.look();
    let elsewhere =
        scene.open_with(StoreOptions { clock: Clock::Manual(clock.clone()), ..StoreOptions::default() }).await;
    elsewhere.publish(vec![event()]).await.unwrap().remove(0).unwrap();
    waiting.look();
    assert_eq!(answer(&mut waiting).await.len(), 1);

    let mut waiting = store.claim_when_available(want(1)).unwrap();
    store.publish(vec![event().delay(Duration::from_secs(50))]).await.unwrap().remove(0).unwrap();
    clock.advance(Duration::from_secs(50));
    waiting.look();
    assert_eq!(answer(&mut waiting).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_stand_and_a_closed_store_answers_none() {
    let scene = Scene::new();
    let store = scene.open().await;
    let mut all: Vec<WaitingClaim> = std::iter::from_fn(|| store.claim_when_available(want(1))).take(1000).collect();
    assert_eq!(all.len(), 16);
    assert!(all.pop().unwrap().withdraw());
    all.extend(store.claim_when_available(want(1)));
    assert_eq!(all.len(), 16);
    store.cancel_waiting_claims();
    assert!(all[0].answer().await.is_none(), "a caller that still waits claims again");
    let mut last = store.claim_when_available(want(1)).unwrap();
    store.close().await;
    assert!(last.answer().await.is_none());
    assert!(store.claim_when_available(want(1)).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standing_claim_that_fails_spares_the_publish() {
    let scene = Scene::new();
    let store = scene.open().await;
    let mut bad = store.claim_when_available(Claim { worker: String::new(), ..want(1) }).unwrap();
    let mut good = store.claim_when_available(want(1)).unwrap();
    store.publish(vec![event()]).await.unwrap().remove(0).unwrap();
    assert_eq!(bad.answer().await.unwrap().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(answer(&mut good).await.len(), 1);
}
