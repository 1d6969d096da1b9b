//! What the bus promises, point by point and on both databases; and its two scenarios, step by step.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Deserialize;
use tidegate::{
    BusWorker, Clock, End, EntryId, EntryPhase, ErrorKind, EventBus, EventQueue, ManualClock, NewEvent, RouteError,
    Router, Timestamp, Why,
};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::databases::{Place, on_each_database};
use crate::support::{eventually, soon};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Order {
    number: u64,
}

fn order(number: u64) -> NewEvent {
    NewEvent::new("order.created", format!("{{\"number\": {number}}}"))
}

async fn bus(place: &Place) -> EventBus {
    EventBus::new(place.open().await).unwrap()
}

async fn bus_at(place: &Place) -> (EventBus, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_second(1_800_000_000).unwrap());
    let queue = place.open_with(|builder| builder.clock(Clock::Manual(clock.clone()))).await;
    (EventBus::new(queue).unwrap(), clock)
}

async fn phase(queue: &EventQueue, id: EntryId) -> EntryPhase {
    queue.entry(id).await.unwrap().unwrap().phase
}

async fn ended(queue: &EventQueue, id: EntryId) -> Option<End> {
    match phase(queue, id).await {
        EntryPhase::Ended { end, .. } => Some(end),
        _ => None,
    }
}

async fn attempts(queue: &EventQueue, id: EntryId) -> u32 {
    queue.entry(id).await.unwrap().unwrap().attempts
}

async fn leased_since(queue: &EventQueue, id: EntryId) -> Timestamp {
    match phase(queue, id).await {
        EntryPhase::Leased { since, .. } => since,
        other => panic!("{id} is not being processed: {other:?}"),
    }
}

/// Runs a worker until the returned sender is used or dropped.
fn start(worker: BusWorker) -> (oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let (stop, stopped) = oneshot::channel();
    let running = tokio::spawn(async move {
        worker
            .run(async {
                let _ = stopped.await;
            })
            .await;
    });
    (stop, running)
}

/// A router whose handler reports that it started and never returns.
fn stuck() -> (Router, mpsc::UnboundedReceiver<u64>) {
    let (started, starts) = mpsc::unbounded_channel();
    let router = Router::new().on("order.created", move |order: Order| {
        let started = started.clone();
        async move {
            started.send(order.number).unwrap();
            std::future::pending::<Result<(), String>>().await
        }
    });
    (router, starts)
}

on_each_database! {
    async fn publish_inserts_as_pending_with_no_attempts(place) {
        let bus = bus(place).await;
        let id = bus.publish(order(1)).await.unwrap().id;
        assert!(matches!(phase(bus.queue(), id).await, EntryPhase::Waiting { due: None }));
        assert_eq!(attempts(bus.queue(), id).await, 0);
        bus.queue().close().await;
    }

    async fn poll_marks_processing_and_counts_an_attempt(place) {
        let (bus, clock) = bus_at(place).await;
        let id = bus.publish(order(1)).await.unwrap().id;
        clock.advance(MINUTE);
        let event = bus.poll().await.unwrap().unwrap();
        assert_eq!((event.id, event.attempts), (id, 1));
        assert_eq!(leased_since(bus.queue(), id).await, clock.now(), "processing_started_at = now");
        event.release().await.unwrap();
        bus.queue().close().await;
    }

    async fn poll_is_not_blocking_and_answers_none(place) {
        let bus = bus(place).await;
        assert!(soon("poll", bus.poll()).await.unwrap().is_none());
        bus.queue().close().await;
    }

    async fn only_one_worker_acquires_a_row(place) {
        let bus = bus(place).await;
        for number in 0..20 {
            bus.publish(order(number)).await.unwrap();
        }
        let other = EventBus::new(place.open().await).unwrap();
        let polls = (0..60).map(|number| {
            let bus = if number % 2 == 0 { bus.clone() } else { other.clone() };
            tokio::spawn(async move { bus.poll().await.unwrap() })
        });
        let mut held = Vec::new();
        for poll in polls.collect::<Vec<_>>() {
            held.extend(poll.await.unwrap());
        }
        let mut ids: Vec<_> = held.iter().map(|event| event.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!((held.len(), ids.len()), (20, 20));
        for event in held {
            event.complete().await.unwrap();
        }
        bus.queue().close().await;
        other.queue().close().await;
    }

    async fn finalize_moves_to_the_log_as_completed_or_failed(place) {
        let bus = bus(place).await;
        for (success, end) in [(true, End::Completed), (false, End::Failed)] {
            let id = bus.publish(order(1)).await.unwrap().id;
            let event = bus.poll().await.unwrap().unwrap();
            let finalized = bus.finalize(id, success).await.unwrap();
            assert_eq!((finalized.repeated, finalized.end), (false, end));
            assert_eq!(ended(bus.queue(), id).await, Some(end));
            drop(event);
        }
        let depth = bus.queue().depth().await.unwrap();
        assert_eq!(depth.total(), 0, "removed from the live table");
        bus.queue().close().await;
    }

    async fn finalize_of_what_has_ended_does_nothing(place) {
        let bus = bus(place).await;
        let id = bus.publish(order(1)).await.unwrap().id;
        bus.finalize(id, false).await.unwrap();
        let again = bus.finalize(id, true).await.unwrap();
        assert_eq!((again.repeated, again.end), (true, End::Failed));
        assert_eq!(ended(bus.queue(), id).await, Some(End::Failed));
        let unknown = bus.finalize(EntryId::new(4_242).unwrap(), true).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        bus.queue().close().await;
    }

    async fn abandoned_after_five_minutes_by_default(place) {
        let (bus, clock) = bus_at(place).await;
        let id = bus.publish(order(1)).await.unwrap().id;
        bus.poll().await.unwrap().unwrap().forget();
        clock.advance(5 * MINUTE - Duration::from_millis(1));
        assert!(bus.poll().await.unwrap().is_none(), "not older than the timeout");
        clock.advance(Duration::from_millis(1));
        let event = bus.poll().await.unwrap().unwrap();
        assert_eq!((event.id, event.attempts), (id, 2), "re-acquired, attempts incremented");
        assert_eq!(leased_since(bus.queue(), id).await, clock.now(), "processing_started_at refreshed");
        event.complete().await.unwrap();
        bus.queue().close().await;
    }

    async fn the_abandonment_timeout_can_be_set(place) {
        let (bus, clock) = bus_at(place).await;
        let bus = bus.abandoned_after(MINUTE).unwrap();
        bus.publish(order(1)).await.unwrap();
        bus.poll().await.unwrap().unwrap().forget();
        clock.advance(MINUTE);
        bus.poll().await.unwrap().unwrap().complete().await.unwrap();
        assert_eq!(bus.clone().abandoned_after(Duration::ZERO).unwrap_err().kind(), ErrorKind::Invalid);
        bus.queue().close().await;
    }

    async fn a_poison_event_ends_as_failed_in_the_log(place) {
        let (bus, clock) = bus_at(place).await;
        let id = bus.publish(order(1).max_attempts(2)).await.unwrap().id;
        for attempt in 1..=2 {
            let event = bus.poll().await.unwrap().unwrap();
            assert_eq!(event.attempts, attempt);
            event.forget(); // the worker dies
            clock.advance(5 * MINUTE);
        }
        assert!(bus.poll().await.unwrap().is_none());
        assert_eq!(ended(bus.queue(), id).await, Some(End::Failed));
        bus.queue().close().await;
    }

    // The first scenario: publish, poll, route, finalise; each step is checked in the database.
    async fn the_story_of_success_and_failure(place) {
        let (bus, clock) = bus_at(place).await;
        for (success, end) in [(true, End::Completed), (false, End::Failed)] {
            let id = bus.publish(order(7)).await.unwrap().id;
            assert!(matches!(phase(bus.queue(), id).await, EntryPhase::Waiting { .. }));
            assert_eq!(attempts(bus.queue(), id).await, 0);
            clock.advance(MINUTE);
            let event = bus.poll().await.unwrap().unwrap();
            assert_eq!(attempts(bus.queue(), id).await, 1);
            assert_eq!(leased_since(bus.queue(), id).await, clock.now());
            let router = Router::new().on("order.created", move |order: Order| async move {
                assert_eq!(order.number, 7);
                if success { Ok(()) } else { Err("out of stock") }
            });
            let routed = router.route(&event).await;
            assert_eq!(routed.is_ok(), success);
            bus.finalize(event.id, routed.is_ok()).await.unwrap();
            assert_eq!(ended(bus.queue(), id).await, Some(end));
            assert_eq!(bus.queue().depth().await.unwrap().total(), 0, "deleted from events");
        }
        bus.queue().close().await;
    }

    // The second scenario: a pod dies while it processes an event, time passes, another pod takes over.
    async fn the_story_of_a_pod_that_dies(place) {
        let (bus, clock) = bus_at(place).await;
        let id = bus.publish(order(1)).await.unwrap().id;
        let doomed = bus.poll().await.unwrap().unwrap();
        let (started, token) = (leased_since(bus.queue(), id).await, doomed.token);
        doomed.forget(); // a crash: neither an end nor a release
        clock.advance(4 * MINUTE);
        let queue = place.open_with(|builder| builder.clock(Clock::Manual(clock.clone())).worker("pod-2")).await;
        let second = EventBus::new(queue).unwrap();
        assert!(second.poll().await.unwrap().is_none());
        clock.advance(MINUTE);
        let event = second.poll().await.unwrap().unwrap();
        assert_eq!((event.id, event.attempts), (id, 2));
        assert!(event.token > token);
        assert!(leased_since(second.queue(), id).await > started);
        let router = Router::new().on("order.created", |_: Order| async { Ok::<_, String>(()) });
        let routed = router.route(&event).await;
        second.finalize(id, routed.is_ok()).await.unwrap();
        assert_eq!(ended(bus.queue(), id).await, Some(End::Completed));
        bus.queue().close().await;
        second.queue().close().await;
    }

    async fn the_loop_routes_and_finalizes(place) {
        let bus = bus(place).await;
        let router = Router::new()
            .on("order.created", |order: Order| async move {
                match order.number {
                    2 => Err("out of stock".to_owned()),
                    3 => panic!("number three"),
                    _ => Ok(()),
                }
            })
            .on_event("raw", |event: tidegate::Claimed| async move {
                if event.fact.payload.as_ref() == b"\xff" { Ok(()) } else { Err(RouteError::NoRoute("?".into())) }
            });
        let cases = [
            (order(1), End::Completed, None),
            (order(2), End::Failed, Some("out of stock")),
            (order(3), End::Failed, Some("the handler panicked: number three")),
            (NewEvent::new("order.created", "no json"), End::Failed, Some("the payload cannot be read")),
            (NewEvent::new("raw", vec![0xff]), End::Completed, None),
            (order(6), End::Completed, None),
        ];
        let (stop, running) = start(bus.worker(router).unwrap());
        for (event, end, error) in cases {
            let id = bus.publish(event).await.unwrap().id;
            eventually("it ends", || async { ended(bus.queue(), id).await.is_some() }).await;
            let view = bus.queue().entry(id).await.unwrap().unwrap();
            assert_eq!(ended(bus.queue(), id).await, Some(end));
            let text = view.error.unwrap_or_default();
            assert!(text.contains(error.unwrap_or("")), "{text}");
        }
        stop.send(()).unwrap();
        soon("the loop ends", running).await.unwrap();
        bus.queue().close().await;
    }

    async fn a_type_without_a_route_is_left_to_others(place) {
        let bus = bus(place).await;
        let foreign = bus.publish(NewEvent::new("foreign", "{}")).await.unwrap().id;
        bus.publish(order(1)).await.unwrap();
        let router = Router::new().on("order.created", |_: Order| async { Ok::<_, String>(()) });
        assert_eq!(bus.worker(router).unwrap().drain().await.unwrap(), 1);
        assert_eq!(attempts(bus.queue(), foreign).await, 0);
        let expected = Why::NoLiveConsumer { event_type: "foreign".into(), tags: vec![] };
        assert_eq!(bus.queue().why(foreign).await.unwrap(), expected);
        bus.queue().close().await;
    }

    async fn an_idle_loop_wakes_early(place) {
        let bus = bus(place).await;
        let (seen, mut sight) = mpsc::unbounded_channel();
        let router = Router::new().on("order.created", move |order: Order| {
            let seen = seen.clone();
            async move { seen.send(order.number).map_err(|_| "the receiver is gone") }
        });
        // With this idle wait only wake-ups reach it: from this handle, from another process, and when a delay is over.
        let (stop, running) = start(bus.worker(router).unwrap().idle_wait(Duration::from_secs(3600)));
        bus.publish(order(1)).await.unwrap();
        assert_eq!(soon("the first", sight.recv()).await, Some(1));
        let other = EventBus::new(place.open().await).unwrap();
        other.publish(order(2)).await.unwrap();
        assert_eq!(soon("from another process", sight.recv()).await, Some(2));
        bus.publish(order(3).delay(Duration::from_millis(30))).await.unwrap();
        assert_eq!(soon("the delayed", sight.recv()).await, Some(3));
        stop.send(()).unwrap();
        soon("the loop ends", running).await.unwrap();
        bus.queue().close().await;
        other.queue().close().await;
    }

    async fn cancelled_mid_event_it_neither_finalizes_nor_counts(place) {
        let bus = bus(place).await;
        let id = bus.publish(order(1).max_attempts(1)).await.unwrap().id;
        for _ in 0..3 {
            let (router, mut starts) = stuck();
            let (stop, running) = start(bus.worker(router).unwrap());
            assert_eq!(soon("the handler starts", starts.recv()).await, Some(1));
            stop.send(()).unwrap();
            soon("the loop ends", running).await.unwrap();
            assert!(matches!(phase(bus.queue(), id).await, EntryPhase::Waiting { .. }), "no lease is left behind");
            assert_eq!(attempts(bus.queue(), id).await, 0);
        }
        bus.queue().close().await;
    }

    async fn a_dropped_loop_releases_too(place) {
        let bus = bus(place).await;
        let id = bus.publish(order(1).max_attempts(1)).await.unwrap().id;
        let (router, mut starts) = stuck();
        let (stop, running) = start(bus.worker(router).unwrap());
        soon("the handler starts", starts.recv()).await;
        running.abort();
        eventually("it is released", || async {
            matches!(phase(bus.queue(), id).await, EntryPhase::Waiting { .. })
        }).await;
        assert_eq!(attempts(bus.queue(), id).await, 0);
        drop(stop);
        bus.queue().close().await;
    }

    async fn within_the_grace_a_running_handler_ends_its_event(place) {
        let bus = bus(place).await;
        let id = bus.publish(order(1)).await.unwrap().id;
        let (started, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let router = Router::new().on("order.created", {
            let (started, go) = (started.clone(), go.clone());
            move |_: Order| {
                let (started, go) = (started.clone(), go.clone());
                async move {
                    started.notify_one();
                    go.notified().await;
                    Ok::<_, String>(())
                }
            }
        });
        let (stop, running) = start(bus.worker(router).unwrap().grace(MINUTE));
        soon("the handler starts", started.notified()).await;
        stop.send(()).unwrap();
        go.notify_one();
        soon("the loop ends", running).await.unwrap();
        assert_eq!(ended(bus.queue(), id).await, Some(End::Completed));
        bus.queue().close().await;
    }

    async fn a_handler_whose_lease_was_lost_changes_nothing(place) {
        let (bus, clock) = bus_at(place).await;
        let id = bus.publish(order(1)).await.unwrap().id;
        let (started, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let calls = Arc::new(AtomicUsize::new(0));
        let router = Router::new().on("order.created", {
            let (started, go, calls) = (started.clone(), go.clone(), calls.clone());
            move |_: Order| {
                let (started, go, calls) = (started.clone(), go.clone(), calls.clone());
                async move {
                    calls.fetch_add(1, Ordering::SeqCst);
                    started.notify_one();
                    go.notified().await;
                    Ok::<_, String>(())
                }
            }
        });
        let (stop, running) = start(bus.worker(router).unwrap());
        soon("the handler starts", started.notified()).await;
        clock.advance(5 * MINUTE);
        let event = bus.poll().await.unwrap().unwrap();
        assert_eq!((event.id, event.attempts), (id, 2));
        go.notify_one();
        // The loop goes on to the next event only after the end of the first was refused.
        let next = bus.publish(order(2)).await.unwrap().id;
        soon("the next starts", started.notified()).await;
        assert!(matches!(phase(bus.queue(), id).await, EntryPhase::Leased { .. }), "still the second worker's");
        go.notify_one();
        eventually("the next ends", || async { ended(bus.queue(), next).await == Some(End::Completed) }).await;
        event.end_as(End::Failed, None, None).await.unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        stop.send(()).unwrap();
        soon("the loop ends", running).await.unwrap();
        bus.queue().close().await;
    }

    async fn several_at_once(place) {
        let bus = bus(place).await;
        for number in 0..30 {
            bus.publish(order(number)).await.unwrap();
        }
        // Each handler waits for two others: one at a time would never return.
        let barrier = Arc::new(tokio::sync::Barrier::new(3));
        let router = Router::new().on("order.created", {
            let barrier = barrier.clone();
            move |_: Order| {
                let barrier = barrier.clone();
                async move {
                    barrier.wait().await;
                    Ok::<_, String>(())
                }
            }
        });
        let worker = bus.worker(router).unwrap().concurrency(3);
        assert_eq!(soon("all are handled", worker.drain()).await.unwrap(), 30);
        assert_eq!(bus.queue().depth().await.unwrap().total(), 0);
        bus.queue().close().await;
    }

    async fn closing_the_queue_ends_the_loop(place) {
        let bus = bus(place).await;
        let router = Router::new().on("order.created", |_: Order| async { Ok::<_, String>(()) });
        let (stop, running) = start(bus.worker(router).unwrap());
        bus.queue().close().await;
        soon("the loop ends", running).await.unwrap();
        drop(stop);
    }
}

#[tokio::test]
async fn routers_that_make_no_sense_are_refused() {
    let place = Place::sqlite();
    let bus = bus(&place).await;
    let route = |router: Router, kind: &str| router.on(kind, |_: Order| async { Ok::<_, String>(()) });
    let cases = [
        (Router::new(), "without routes"),
        (route(route(Router::new(), "a"), "a"), "two routes"),
        (route(Router::new(), "a\0b"), "event type"),
    ];
    for (router, expected) in cases {
        let error = bus.worker(router).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(expected), "{error}");
    }
    bus.publish(order(1)).await.unwrap();
    let event = bus.poll().await.unwrap().unwrap();
    let error = Router::new().route(&event).await.unwrap_err();
    assert_eq!(error, RouteError::NoRoute("order.created".into()));
    event.release().await.unwrap();
    bus.queue().close().await;
}
