//! A waiter that goes away at the worst moment: its waiting claim has got an entry, and it has not been told yet.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::{Duration, Instant};

use tidegate::NewEvent;

use crate::databases::Place;
use crate::support::{PATIENCE, eventually, yields};

#[tokio::test]
async fn what_a_standing_claim_got_for_a_waiter_that_is_gone_is_given_back() {
    let place = Place::sqlite();
    let queue = place.open().await;
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < PATIENCE, "the waiting claim never got an entry");
        let mut waiter = Box::pin(queue.next(Duration::from_secs(3600)));
        // It claims, finds nothing, and leaves a waiting claim with the store. From then on it is not polled any more.
        for _ in 0..50 {
            let polled = poll_fn(|context| Poll::Ready(waiter.as_mut().poll(context))).await;
            assert!(polled.is_pending(), "there is nothing to claim yet");
            yields(10).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        queue.publish(NewEvent::new("t", "{}")).await.unwrap();
        if queue.depth().await.unwrap().leased == 1 {
            drop(waiter);
            break;
        }
        waiter.await.unwrap().unwrap().complete().await.unwrap();
    }
    eventually("it is released long before its lease ends", || async { queue.depth().await.unwrap().ready == 1 }).await;
    let event = queue.poll().await.unwrap().unwrap();
    assert_eq!(event.attempts, 1, "the attempt did not count");
    event.complete().await.unwrap();
    queue.close().await;
}
