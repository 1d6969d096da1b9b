//! Claims that stand until something becomes claimable.

use super::*;
use crate::standing::Standing;
use crate::store::{Clock, ManualClock};

async fn answer(standing: &mut Standing) -> Vec<Claimed> {
    tokio::time::timeout(Duration::from_secs(20), standing.answer()).await.unwrap().unwrap().unwrap()
}

async fn leased(store: &SqliteStore) -> u64 {
    store.census().await.unwrap().leased
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standing_claim_is_answered_by_the_commit_that_publishes() {
    let scene = Scene::new();
    let store = scene.open().await;
    let mut standing = store.stand(want(10)).unwrap();
    let before = commits(&store);
    let published = store.publish(vec![event(), event()]).await.unwrap();
    assert_eq!(commits(&store) - before, 1, "one commit for the events and their leases");
    let claimed = answer(&mut standing).await;
    let ids: Vec<EntryId> = published.into_iter().map(|answer| answer.unwrap().id).collect();
    assert_eq!(claimed.iter().map(|entry| entry.id).collect::<Vec<_>>(), ids);
    assert_eq!(leased(&store).await, 2);
    assert!(store.finalize(claimed.iter().map(done).collect()).await.unwrap().iter().all(Result::is_ok));
    assert!(!standing.withdraw(), "it is answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_takes_only_what_it_wants_and_the_first_who_stands_comes_first() {
    let scene = Scene::new();
    let store = scene.open().await;
    let other = Claim { types: Some(vec!["other".into()]), ..want(10) };
    let mut stands_for_other = store.stand(other).unwrap();
    let (mut first, mut second) = (store.stand(want(1)).unwrap(), store.stand(want(1)).unwrap());
    let first_id = store.publish(vec![event()]).await.unwrap().remove(0).unwrap().id;
    assert_eq!(answer(&mut first).await[0].id, first_id);
    let second_id = store.publish(vec![event()]).await.unwrap().remove(0).unwrap().id;
    assert_eq!(answer(&mut second).await[0].id, second_id);
    store.publish(vec![NewEvent::new("other", "{}")]).await.unwrap().remove(0).unwrap();
    assert_eq!(answer(&mut stands_for_other).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_taken_back_gets_nothing() {
    let scene = Scene::new();
    let store = scene.open().await;
    let mut standing = store.stand(want(1)).unwrap();
    assert!(standing.withdraw());
    assert!(standing.answer().await.is_none());
    store.publish(vec![event()]).await.unwrap().remove(0).unwrap();
    assert_eq!(leased(&store).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_taken_back_while_it_is_tried_says_what_it_got() {
    let scene = Scene::new();
    let store = scene.open().await;
    // Whether it is too late is a matter of luck: in either case nothing is leased that nobody knows of.
    for round in 0..200 {
        let mut standing = store.stand(want(1)).unwrap();
        let publisher = store.clone();
        let publishing = tokio::spawn(async move { publisher.publish(vec![event()]).await });
        for _ in 0..steps(round) {
            std::hint::spin_loop();
        }
        let withdrawn = standing.withdraw();
        publishing.await.unwrap().unwrap().remove(0).unwrap();
        let claimed = if withdrawn { store.claim(want(1)).await.unwrap() } else { answer(&mut standing).await };
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
    // Whether it is too late is a matter of luck here as well; whoever was too late waits for an answer.
    for round in 0..1000 {
        let other = Claim { types: Some(vec!["other".into()]), ..want(1) };
        let mut standing = store.stand(other).unwrap();
        let publisher = store.clone();
        let publishing = tokio::spawn(async move { publisher.publish(vec![event()]).await });
        for _ in 0..steps(round) {
            std::hint::spin_loop();
        }
        if !standing.withdraw() {
            assert!(answer(&mut standing).await.is_empty());
        }
        publishing.await.unwrap().unwrap().remove(0).unwrap();
    }
    assert_eq!(leased(&store).await, 0);
}

/// Some steps to spin, different each time.
fn steps(round: u64) -> u64 {
    (round.wrapping_mul(2_654_435_761) % 97) * 400
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_finds_what_others_wrote_and_what_became_due() {
    let scene = Scene::new();
    let clock = ManualClock::at(Timestamp::now());
    let store = scene.open_with(StoreOptions { clock: Clock::Manual(clock.clone()), ..StoreOptions::default() }).await;
    let mut standing = store.stand(want(1)).unwrap();
    standing.look();
    let elsewhere =
        scene.open_with(StoreOptions { clock: Clock::Manual(clock.clone()), ..StoreOptions::default() }).await;
    elsewhere.publish(vec![event()]).await.unwrap().remove(0).unwrap();
    standing.look();
    assert_eq!(answer(&mut standing).await.len(), 1);

    let mut standing = store.stand(want(1)).unwrap();
    store.publish(vec![event().delay(Duration::from_secs(50))]).await.unwrap().remove(0).unwrap();
    clock.advance(Duration::from_secs(50));
    standing.look();
    assert_eq!(answer(&mut standing).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_stand_and_a_closed_store_answers_none() {
    let scene = Scene::new();
    let store = scene.open().await;
    let mut all: Vec<Standing> = std::iter::from_fn(|| store.stand(want(1))).take(1000).collect();
    assert_eq!(all.len(), 16);
    assert!(all.pop().unwrap().withdraw());
    all.extend(store.stand(want(1)));
    assert_eq!(all.len(), 16);
    store.dismiss();
    assert!(all[0].answer().await.is_none(), "whoever waits asks again");
    let mut last = store.stand(want(1)).unwrap();
    store.close().await;
    assert!(last.answer().await.is_none());
    assert!(store.stand(want(1)).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standing_claim_that_fails_spares_the_publish() {
    let scene = Scene::new();
    let store = scene.open().await;
    let mut bad = store.stand(Claim { worker: String::new(), ..want(1) }).unwrap();
    let mut good = store.stand(want(1)).unwrap();
    store.publish(vec![event()]).await.unwrap().remove(0).unwrap();
    assert_eq!(bad.answer().await.unwrap().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(answer(&mut good).await.len(), 1);
}
