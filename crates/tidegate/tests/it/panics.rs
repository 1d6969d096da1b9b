//! Panics in an application's own code around its handlers: reading a payload, and middleware. Each counts as an attempt
//! of its own event and touches no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Deserializer, Serialize};
use tidegate::{
    Delivered, End, EntryId, EntryPhase, Event, EventManager, EventQueue, Handled, Invocation, ManagerBuilder,
    Middleware, RetryPolicy,
};

use crate::databases::on_each_database;
use crate::support::soon;

const POISON: u32 = 3;

/// An event that cannot be deserialized without a panic when it has the number `POISON`.
#[derive(Debug, Serialize)]
struct Brittle {
    number: u32,
}

impl<'de> Deserialize<'de> for Brittle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Plain {
            number: u32,
        }
        let Plain { number } = Plain::deserialize(deserializer)?;
        assert_ne!(number, POISON, "unreadable");
        Ok(Self { number })
    }
}

impl Event for Brittle {
    const TYPE: &'static str = "brittle";
}

#[derive(Debug, Serialize, Deserialize)]
struct Sound {
    number: u32,
}

impl Event for Sound {
    const TYPE: &'static str = "sound";
}

/// Middleware that panics before there is a future.
struct Trips;

impl Middleware for Trips {
    fn around<'a>(&'a self, call: &'a Invocation, next: BoxFuture<'a, Handled>) -> BoxFuture<'a, Handled> {
        assert!(!call.entry.fact.payload.ends_with(b":3}"), "tripped");
        next
    }
}

/// Ten events, one of which makes the application panic at each of its two attempts.
async fn only_the_poison_fails<E: Event + Serialize>(
    queue: &EventQueue,
    event: impl Fn(u32) -> E,
    build: impl FnOnce(ManagerBuilder) -> ManagerBuilder,
    message: &str,
) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let builder =
        EventManager::builder(queue).retry(RetryPolicy::fixed(Duration::ZERO)).on("h", move |_: Delivered<E>| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Handled::Success }
        });
    let manager = build(builder).build().unwrap();
    let events = (0..10).map(|number| event(number).to_new().unwrap().max_attempts(2)).collect();
    let ids: Vec<EntryId> =
        queue.publish_many(events).await.into_iter().map(|published| published.unwrap().id).collect();
    soon("the queue is empty", async {
        while queue.depth().await.unwrap().total() > 0 {
            manager.drain().await.unwrap();
        }
    })
    .await;
    for (number, id) in (0..).zip(ids) {
        let view = queue.entry(id).await.unwrap().unwrap();
        let EntryPhase::Ended { end, .. } = view.phase else { panic!("{number} has not ended") };
        if number == POISON {
            assert_eq!((end, view.attempts), (End::CompletedWithErrors, 2), "each panic is an attempt");
            assert!(view.error.unwrap().contains(message));
        } else {
            assert_eq!((end, view.attempts), (End::Completed, 1), "{number} is not affected");
        }
    }
    assert_eq!(calls.load(Ordering::SeqCst), 9, "no neighbour ran twice");
}

on_each_database! {
    async fn a_panic_while_a_payload_is_read_counts_for_its_event_only(place) {
        let queue = place.open().await;
        only_the_poison_fails(&queue, |number| Brittle { number }, |builder| builder, "unreadable").await;
    }

    async fn a_panic_of_middleware_before_its_future_counts_for_its_event_only(place) {
        let queue = place.open().await;
        only_the_poison_fails(&queue, |number| Sound { number }, |builder| builder.middleware(Trips), "tripped").await;
    }

    async fn the_bus_fails_an_event_whose_reader_panics(place) {
        let queue = place.open().await;
        let bus = tidegate::EventBus::new(queue).unwrap();
        let router = tidegate::Router::new().on("brittle", |_: Brittle| async { Ok::<_, String>(()) });
        let worker = bus.worker(router).unwrap();
        let mut ids = Vec::new();
        for number in [1, POISON, 5] {
            ids.push(bus.publish(Brittle { number }.to_new().unwrap()).await.unwrap().id);
        }
        assert_eq!(soon("all are handled", worker.drain()).await.unwrap(), 3);
        for (id, expected) in ids.into_iter().zip([End::Completed, End::Failed, End::Completed]) {
            let EntryPhase::Ended { end, .. } = bus.queue().entry(id).await.unwrap().unwrap().phase else { panic!("live") };
            assert_eq!(end, expected);
        }
    }
}
