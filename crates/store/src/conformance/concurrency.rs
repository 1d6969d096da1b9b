//! Concurrent calls: each entry is claimed once, nothing deadlocks, and dropped calls leave nothing half done.

use std::collections::HashSet;
use std::pin::Pin;
use std::task::{Context, Poll};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidegate_core::{End, NewEvent};

use super::scene::*;
use crate::ErrorKind::Fenced;

/// Sixteen tasks claim and complete until nothing is left; every entry must be claimed exactly once.
async fn work_off(stores: &[AnyStore], total: usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16 {
        let store = stores[number % stores.len()].clone();
        tasks.spawn(async move {
            let mut mine = Vec::new();
            let mut empty = 0;
            // Row locks of other claims may hide entries, so one empty answer does not mean that nothing is left.
            while empty < 3 {
                let claimed = claim(&store, 1 + number % 7).await;
                empty = if claimed.is_empty() { empty + 1 } else { 0 };
                let items: Vec<_> = claimed.iter().map(|claimed| end(claimed, End::Completed)).collect();
                let answers = store.finalize(items).await.unwrap();
                assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| !answer.repeated)));
                mine.extend(ids(&claimed));
            }
            mine
        });
    }
    let claimed: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    let rest = claim(&stores[0], total).await;
    assert_eq!(claimed.iter().collect::<HashSet<_>>().len(), claimed.len(), "an entry was claimed twice");
    assert_eq!(claimed.len() + rest.len(), total);
    assert_eq!(census(&stores[0]).await.ended, claimed.len() as u64);
}

pub(super) async fn many_claimers_get_each_entry_once(scene: Scene) {
    let store = scene.open().await;
    publish(&store, events(1000)).await;
    work_off(&[store], 1000).await;
}

pub(super) async fn many_processes_get_each_entry_once(scene: Scene) {
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(scene.open().await);
    }
    let batch = (0..800).map(|number| event(["a", "b", "c"][number % 3]).priority((number % 4) as i16)).collect();
    publish(&stores[0], batch).await;
    work_off(&stores, 800).await;
}

pub(super) async fn concurrent_finalizers_end_it_once(scene: Scene) {
    let stores = [scene.open().await, scene.open().await];
    for _ in 0..10 {
        publish_one(&stores[0], event("t")).await;
        let claimed = claim_one(&stores[0]).await;
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..8 {
            let (store, claimed) = (stores[number % 2].clone(), claimed.clone());
            let how = End::ALL[number % 4];
            tasks.spawn(async move { finalize(&store, end(&claimed, how)).await.unwrap() });
        }
        let answers = tasks.join_all().await;
        assert_eq!(answers.iter().filter(|answer| !answer.repeated).count(), 1, "{answers:?}");
        assert!(answers.iter().all(|answer| answer.end == answers[0].end), "{answers:?}");
    }
    assert_eq!(census(&stores[0]).await.ended, 10);
}

pub(super) async fn finalize_races_with_takeover(scene: Scene) {
    let stores = [scene.open().await, scene.open().await];
    for _ in 0..20 {
        let id = publish_one(&stores[0], event("t")).await;
        let held = claim_one(&stores[0]).await;
        scene.advance(60);
        let taking = tokio::spawn({
            let store = stores[1].clone();
            async move { claim(&store, 1).await }
        });
        let finalized = finalize(&stores[0], end(&held, End::Completed)).await;
        let taken = taking.await.unwrap();
        match (&finalized, taken.as_slice()) {
            (Ok(_), []) => assert_eq!(ended(&view(&stores[0], id).await), Some(End::Completed)),
            (Err(error), [taken]) => {
                assert_eq!((error.kind(), taken.id, taken.attempts), (Fenced, id, 2));
                complete(&stores[1], taken).await;
            }
            _ => panic!("both or neither won: {finalized:?} {taken:?}"),
        }
    }
    assert_eq!(census(&stores[0]).await.ended, 20);
}

/// Polls a future at most `polls` times, then gives up, so that it is dropped wherever it is.
struct DropAfter<F> {
    inner: Pin<Box<F>>,
    polls: u32,
}

impl<F: Future> Future for DropAfter<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls == 0 {
            return Poll::Ready(None);
        }
        self.polls -= 1;
        match self.inner.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

async fn drop_after<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    DropAfter { inner: Box::pin(future), polls }.await
}

pub(super) async fn cancelled_futures_leave_nothing_half_done(scene: Scene) {
    let store = scene.open_on_database_time().await;
    publish(&store, events(50)).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8_u64 {
        let store = store.clone();
        tasks.spawn(async move {
            let mut random = StdRng::seed_from_u64(task);
            for _ in 0..250 {
                let polls = random.random_range(0..8);
                match random.random_range(0..6) {
                    0 => drop(drop_after(polls, store.publish(vec![event("t"), event("t").group("g")])).await),
                    1 => drop(drop_after(polls, store.claim(want(3))).await),
                    2 => {
                        let claimed = claim(&store, 2).await;
                        let items = claimed.iter().map(|claimed| end(claimed, End::Completed)).collect();
                        drop(drop_after(polls, store.finalize(items)).await);
                    }
                    3 => {
                        let claimed = claim(&store, 2).await;
                        drop(drop_after(polls, store.requeue(claimed.iter().map(release).collect())).await);
                    }
                    4 => drop(drop_after(polls, store.maintain()).await),
                    _ => drop(drop_after(polls, store.census()).await),
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    eventually("no transaction stays open", async || scene.fixture.forgotten_transactions().await == 0).await;
    let before = census(&store).await;
    let id = publish_one(&store, event("after.all").priority(-100)).await;
    let claimed = store.claim(want_types(1, &["after.all"])).await.unwrap().remove(0);
    assert_eq!(claimed.id, id);
    complete(&store, &claimed).await;
    let after = census(&store).await;
    assert_eq!((after.events, after.ended), (before.events + 1, before.ended + 1));
}

/// Batches that name the same entries and keys in opposite orders.
pub(super) async fn crossing_batches_do_not_deadlock(scene: Scene) {
    let stores = [scene.open_on_database_time().await, scene.open_on_database_time().await];
    for round in 0..8 {
        let published = publish(&stores[0], events(60)).await;
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..4 {
            let store = stores[number % 2].clone();
            let mut order = published.clone();
            if number % 2 == 1 {
                order.reverse();
            }
            tasks.spawn(async move {
                let keyed = |id: &tidegate_core::EntryId| {
                    NewEvent::new("k", "same").deduplicate(format!("{round}-{id}")).group(format!("g{}", id.get() % 5))
                };
                let answers = store.publish(order.iter().map(keyed).collect()).await.unwrap();
                assert!(answers.iter().all(Result::is_ok), "{answers:?}");
                let ends = order.iter().map(|id| end_by_id(*id, End::Completed)).collect();
                let answers = store.finalize(ends).await.unwrap();
                assert!(answers.iter().all(Result::is_ok), "{answers:?}");
                order.reverse();
                let answers = store.cancel(order).await.unwrap();
                assert!(answers.iter().all(Result::is_err), "{answers:?}");
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    }
    let census = census(&stores[0]).await;
    assert_eq!((census.events, census.ended), (8 * 120, 8 * 60));
}
