//! States, limits, dead letters and health on both databases.

use std::time::{Duration, Instant};

use tidegate::{DeadLetterFilter, ErrorKind, EventQueue, NewEvent, QueueState, Why};

use crate::databases::on_each_database;
use crate::support::soon;

fn event(kind: &str) -> NewEvent {
    NewEvent::new(kind, "{}")
}

async fn kill(queue: &EventQueue, count: usize) {
    for held in queue.poll_many(count).await.unwrap() {
        let error = format!("no good: {}", held.id);
        held.finalize([error]).await.unwrap();
    }
}

on_each_database! {
    async fn paused_delivers_nothing_and_resume_wakes(place) {
        let queue = place.open().await;
        assert_eq!(queue.pause().await.unwrap().state, QueueState::Paused);
        let id = queue.publish(event("t")).await.unwrap().id;
        assert!(queue.poll().await.unwrap().is_none());
        assert_eq!(queue.why(id).await.unwrap(), Why::QueuePaused);
        let waiter = tokio::spawn({ let queue = queue.clone(); async move { queue.next(Duration::from_secs(3600)).await } });
        queue.resume().await.unwrap();
        soon("woken by resume", waiter).await.unwrap().unwrap().unwrap().complete().await.unwrap();
        queue.close().await;
    }

    async fn draining_refuses_and_delivers_the_rest(place) {
        let queue = place.open().await;
        queue.publish_many((0..10).map(|_| event("t")).collect()).await;
        queue.drain().await.unwrap();
        assert_eq!(queue.publish(event("t")).await.unwrap_err().kind(), ErrorKind::Full);
        assert!(!queue.drained(Duration::from_millis(1)).await.unwrap());
        let drained = tokio::spawn({ let queue = queue.clone(); async move { queue.drained(Duration::from_secs(20)).await } });
        let held = queue.poll_many(100).await.unwrap();
        assert_eq!(held.len(), 10);
        queue.finalize_many(held).await;
        assert!(soon("drained", drained).await.unwrap().unwrap());
        queue.resume().await.unwrap();
        queue.publish(event("t")).await.unwrap();
        queue.close().await;
    }

    async fn a_full_queue_says_so_and_recovers(place) {
        let queue = place.open().await;
        assert_eq!(queue.set_depth_limit(Some(3)).await.unwrap().depth_limit, Some(3));
        let answers = queue.publish_many((0..5).map(|_| event("t")).collect()).await;
        let full = answers.iter().flat_map(|answer| answer.as_ref().err()).map(|error| error.kind()).collect::<Vec<_>>();
        assert_eq!(full, [ErrorKind::Full; 2]);
        queue.poll().await.unwrap().unwrap().complete().await.unwrap();
        queue.publish(event("t")).await.unwrap();
        queue.set_depth_limit(None).await.unwrap();
        assert_eq!(queue.config().await.unwrap().depth_limit, None);
        queue.publish(event("t")).await.unwrap();
        queue.close().await;
    }

    async fn redrive_by_filter_takes_its_share_at_its_pace(place) {
        let queue = place.open().await;
        let kinds = |count: usize| (0..count).map(|number| event(if number % 2 == 0 { "a" } else { "b" })).collect();
        queue.publish_many(kinds(300)).await;
        kill(&queue, 1_000).await;
        assert_eq!(queue.dead_letters(None, 1_000).await.unwrap().len(), 300);
        let started = Instant::now();
        let filter = DeadLetterFilter::new().event_type("a").limit(120).per_second(200);
        assert_eq!(queue.redrive_all(filter).await.unwrap(), 120);
        assert!(started.elapsed() >= Duration::from_millis(400), "100 at once, then 20 after half a second");
        assert_eq!(queue.depth().await.unwrap().ready, 120);
        let one = queue.dead_letters(None, 1).await.unwrap()[0].id;
        let exact = DeadLetterFilter::new().error_contains(format!("no good: {one}\""));
        assert_eq!(queue.redrive_all(exact).await.unwrap(), 1);
        assert_eq!(queue.redrive_all(DeadLetterFilter::new().per_second(0)).await.unwrap_err().kind(), ErrorKind::Invalid);
        let dead = queue.dead_letters(None, 1).await.unwrap()[0].id;
        queue.discard(dead).await.unwrap();
        assert_eq!(queue.discard_all(DeadLetterFilter::new().event_type("b")).await.unwrap(), 148, "one redriven, one discarded");
        queue.close().await;
    }

    async fn an_entry_without_a_consumer_says_so_and_health_is_good(place) {
        let queue = place.open().await;
        let id = queue.publish(event("t")).await.unwrap().id;
        assert!(matches!(queue.why(id).await.unwrap(), Why::NoLiveConsumer { .. }));
        queue.consumer().types(["t"]).unwrap().poll().await.unwrap().unwrap().release().await.unwrap();
        crate::support::eventually("the consumer is announced", || async {
            matches!(queue.why(id).await.unwrap(), Why::Ready { ahead: 0 })
        }).await;
        crate::support::eventually("upkeep ran", || async { queue.health().await.last_upkeep.is_some() }).await;
        crate::support::eventually("good health", || async { queue.health().await.is_good() }).await;
        queue.close().await;
        assert!(!queue.health().await.is_good());
    }

    async fn what_was_published_survives_closing(place) {
        let queue = place.open().await;
        queue.publish(event("t")).await.unwrap();
        let held = queue.poll().await.unwrap().unwrap();
        soon("close", queue.close()).await;
        soon("close again", queue.close()).await;
        assert_eq!(queue.publish(event("t")).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(held.complete().await.unwrap_err().kind(), ErrorKind::Unavailable);
        let again = place.open().await;
        assert_eq!(again.depth().await.unwrap().total(), 1);
        again.close().await;
    }
}
