//! The manager on both databases: what it promises, point by point, and its sequence diagram, step by step.

mod transactions;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tidegate::{
    Delivered, End, EntryId, EntryPhase, EntryView, ErrorKind, Event, EventHandler, EventManager, EventQueue, Handled,
    Invocation, ManagerBuilder, Middleware, NewEvent, RetryPolicy,
};
use tokio::sync::{Notify, Semaphore};

use crate::databases::{Place, on_each_database};
use crate::support::{eventually, soon};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Foo {
    number: u32,
}

impl Event for Foo {
    const TYPE: &'static str = "foo";
}

#[derive(Debug, Serialize, Deserialize)]
struct Bar {}

impl Event for Bar {
    const TYPE: &'static str = "bar";
}

/// Counts calls.
#[derive(Debug, Clone, Default)]
struct Calls(Arc<AtomicUsize>);

impl Calls {
    fn add(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn builder(queue: &EventQueue) -> ManagerBuilder {
    EventManager::builder(queue).retry(RetryPolicy::fixed(Duration::ZERO)).concurrency(10)
}

async fn publish(queue: &EventQueue, number: u32) -> EntryId {
    queue.publish(Foo { number }.to_new().unwrap()).await.unwrap().id
}

async fn view(queue: &EventQueue, id: EntryId) -> EntryView {
    queue.entries(vec![id]).await.unwrap().remove(0).unwrap()
}

async fn end_of(queue: &EventQueue, id: EntryId) -> Option<End> {
    match view(queue, id).await.phase {
        EntryPhase::Ended { end, .. } => Some(end),
        _ => None,
    }
}

fn results(view: &EntryView) -> serde_json::Value {
    serde_json::from_str(view.results.as_deref().unwrap()).unwrap()
}

on_each_database! {
    async fn all_handlers_succeed_and_the_event_is_finalised(place) {
        let queue = place.open().await;
        let (one, two) = (Calls::default(), Calls::default());
        let (first, second) = (one.clone(), two.clone());
        let manager = builder(&queue)
            .on("one", move |event: Delivered<Foo>| { first.add(); async move { assert_eq!(event.number, 7); Handled::Success } })
            .on("two", move |_: Delivered<Foo>| { second.add(); async { Handled::Success } })
            .build().unwrap();
        let id = publish(&queue, 7).await;
        assert_eq!(manager.drain().await.unwrap(), 1);
        assert_eq!((one.count(), two.count()), (1, 1), "events are routed to all applicable handlers");
        let view = view(&queue, id).await;
        assert!(matches!(view.phase, EntryPhase::Ended { end: End::Completed, .. }), "the log says COMPLETED");
        assert_eq!(results(&view)["one"]["result"], "SUCCESS");
        assert_eq!(results(&view)["two"]["result"], "SUCCESS");
        assert_eq!(queue.depth().await.unwrap().total(), 0, "finalisation removes it from the queue");
    }

    async fn an_unrecoverable_error_finalises_with_errors(place) {
        let queue = place.open().await;
        let manager = builder(&queue)
            .on("good", |_: Delivered<Foo>| async { Handled::Success })
            .on("bad", |_: Delivered<Foo>| async { Handled::unrecoverable("broken for good") })
            .build().unwrap();
        let id = publish(&queue, 1).await;
        manager.drain().await.unwrap();
        let view = view(&queue, id).await;
        assert!(matches!(view.phase, EntryPhase::Ended { end: End::CompletedWithErrors, .. }));
        assert!(view.error.as_deref().unwrap().contains("bad: broken for good"), "{view:?}");
        assert_eq!(results(&view)["good"]["result"], "SUCCESS");
        assert_eq!(results(&view)["bad"]["error"], "broken for good");
    }

    async fn a_transient_error_is_retried_and_only_unfinished_handlers_run_again(place) {
        let queue = place.open().await;
        let (good, shaky) = (Calls::default(), Calls::default());
        let (first, second) = (good.clone(), shaky.clone());
        let manager = builder(&queue)
            .on("good", move |_: Delivered<Foo>| { first.add(); async { Handled::Success } })
            .on("shaky", move |event: Delivered<Foo>| {
                let call = second.add() as u32;
                assert_eq!(event.attempts(), call, "every try is an attempt");
                async move { if call < 3 { Handled::transient("not yet") } else { Handled::Success } }
            })
            .build().unwrap();
        let id = publish(&queue, 1).await;
        eventually("the third attempt succeeds", || async {
            manager.drain().await.unwrap();
            end_of(&queue, id).await == Some(End::Completed)
        }).await;
        assert_eq!((good.count(), shaky.count()), (1, 3));
        let view = view(&queue, id).await;
        assert_eq!(results(&view)["good"]["result"], "SUCCESS", "the first attempt's success is in the log");
        assert_eq!(view.attempts, 3);
    }

    async fn a_retry_waits_as_long_as_the_handler_asked(place) {
        let queue = place.open().await;
        let manager = builder(&queue)
            .on("later", |_: Delivered<Foo>| async { Handled::retry_after(Duration::from_secs(3600), "in an hour") })
            .build().unwrap();
        let id = publish(&queue, 1).await;
        assert_eq!(manager.drain().await.unwrap(), 1);
        let EntryPhase::Waiting { due: Some(due) } = view(&queue, id).await.phase else { panic!("it does not wait") };
        let wait = due.duration_since(tidegate::Timestamp::now()).as_secs();
        assert!((3500..=3600).contains(&wait), "{wait}");
        assert_eq!(view(&queue, id).await.error.as_deref(), Some("later: in an hour"));
    }

    async fn a_poison_event_ends_in_the_log_with_its_last_error(place) {
        let queue = place.open().await;
        let calls = Calls::default();
        let counted = calls.clone();
        let manager = builder(&queue)
            .on("never", move |_: Delivered<Foo>| { counted.add(); async { Err::<(), _>("still broken") } })
            .build().unwrap();
        let event = Foo { number: 1 }.to_new().unwrap().max_attempts(3);
        let id = queue.publish(event).await.unwrap().id;
        eventually("all attempts are used", || async {
            manager.drain().await.unwrap();
            end_of(&queue, id).await == Some(End::CompletedWithErrors)
        }).await;
        assert_eq!(calls.count(), 3);
        assert!(view(&queue, id).await.error.unwrap().contains("still broken"));
    }

    async fn a_redriven_event_runs_only_what_had_failed(place) {
        let queue = place.open().await;
        let (good, bad) = (Calls::default(), Calls::default());
        let (first, second) = (good.clone(), bad.clone());
        let manager = builder(&queue)
            .on("good", move |_: Delivered<Foo>| { first.add(); async { Handled::Success } })
            .on("bad", move |_: Delivered<Foo>| {
                let call = second.add();
                async move { if call == 1 { Handled::unrecoverable("no") } else { Handled::Success } }
            })
            .build().unwrap();
        let id = publish(&queue, 1).await;
        manager.drain().await.unwrap();
        queue.redrive(id).await.unwrap();
        eventually("it is done again", || async {
            manager.drain().await.unwrap();
            end_of(&queue, id).await == Some(End::Completed)
        }).await;
        assert_eq!((good.count(), bad.count()), (1, 2));
    }

    async fn panics_and_timeouts_are_transient_errors_and_the_loop_survives(place) {
        let queue = place.open().await;
        let (panics, hangs) = (Calls::default(), Calls::default());
        let (first, second) = (panics.clone(), hangs.clone());
        let manager = builder(&queue)
            .on("panics", move |_: Delivered<Foo>| {
                let call = first.add();
                async move { assert!(call > 1, "the first call panics"); Handled::Success }
            })
            .on("hangs", move |_: Delivered<Bar>| {
                let call = second.add();
                async move { if call == 1 { std::future::pending::<()>().await; } Handled::Success }
            })
            .timeout_of_last(Duration::from_millis(50))
            .build().unwrap();
        let running = tokio::spawn({ let manager = manager.clone(); async move { manager.run_process_loop().await } });
        let first = publish(&queue, 1).await;
        let second = queue.publish(Bar {}.to_new().unwrap()).await.unwrap().id;
        eventually("both complete on their second attempt", || async {
            end_of(&queue, first).await == Some(End::Completed) && end_of(&queue, second).await == Some(End::Completed)
        }).await;
        assert_eq!((panics.count(), hangs.count()), (2, 2));
        manager.shutdown();
        soon("the loop ends", running).await.unwrap().unwrap();
    }

    async fn a_closure_that_panics_before_its_future_is_survived_too(place) {
        let queue = place.open().await;
        let calls = Calls::default();
        let counted = calls.clone();
        let manager = builder(&queue)
            .on("early", move |_: Delivered<Foo>| { assert!(counted.add() > 1, "early"); async { Handled::Success } })
            .build().unwrap();
        let id = publish(&queue, 1).await;
        eventually("it completes", || async {
            manager.drain().await.unwrap();
            end_of(&queue, id).await == Some(End::Completed)
        }).await;
        assert_eq!(calls.count(), 2);
    }

    async fn an_undecodable_payload_is_unrecoverable(place) {
        let queue = place.open().await;
        let manager = builder(&queue).on("typed", |_: Delivered<Foo>| async { Handled::Success }).build().unwrap();
        let id = queue.publish(NewEvent::new("foo", "not json")).await.unwrap().id;
        let next = publish(&queue, 2).await;
        manager.drain().await.unwrap();
        let view = view(&queue, id).await;
        assert!(matches!(view.phase, EntryPhase::Ended { end: End::CompletedWithErrors, .. }));
        assert!(view.error.as_deref().unwrap().contains("typed: the payload cannot be read as foo"), "{view:?}");
        assert_eq!(end_of(&queue, next).await, Some(End::Completed), "others go on");
    }

    async fn a_type_without_a_handler_is_left_to_others(place) {
        let queue = place.open().await;
        let manager = builder(&queue).on("foo", |_: Delivered<Foo>| async { Handled::Success }).build().unwrap();
        let foreign = queue.publish(NewEvent::new("foreign", "{}")).await.unwrap().id;
        let own = publish(&queue, 1).await;
        assert_eq!(manager.drain().await.unwrap(), 1);
        assert_eq!(end_of(&queue, own).await, Some(End::Completed));
        assert_eq!(view(&queue, foreign).await.attempts, 0);
        let greedy = builder(&queue).on("foo", |_: Delivered<Foo>| async { Handled::Success })
            .complete_unhandled(true).build().unwrap();
        assert_eq!(greedy.drain().await.unwrap(), 1);
        assert_eq!(end_of(&queue, foreign).await, Some(End::Completed));
    }

    async fn snooze_does_not_count_and_discard_cancels(place) {
        let queue = place.open().await;
        let calls = Calls::default();
        let counted = calls.clone();
        let manager = builder(&queue)
            .on("snoozes", move |event: Delivered<Foo>| {
                let call = counted.add();
                assert_eq!(event.attempts(), 1, "a snooze uses up no attempt");
                async move { if call < 4 { Handled::Snooze(Duration::ZERO) } else { Handled::Success } }
            })
            .on("discards", |_: Delivered<Bar>| async { Handled::discard("out of date") })
            .build().unwrap();
        let first = publish(&queue, 1).await;
        let second = queue.publish(Bar {}.to_new().unwrap()).await.unwrap().id;
        eventually("it completes in the end", || async {
            manager.drain().await.unwrap();
            end_of(&queue, first).await == Some(End::Completed)
        }).await;
        assert_eq!(calls.count(), 4);
        let discarded = view(&queue, second).await;
        assert!(matches!(discarded.phase, EntryPhase::Ended { end: End::Cancelled, .. }));
        assert!(discarded.error.unwrap().contains("out of date"));
    }

    async fn a_success_is_durable_while_a_sibling_still_runs(place) {
        let queue = place.open().await;
        let (calls, release) = (Calls::default(), Arc::new(Notify::new()));
        let (counted, held) = (calls.clone(), Arc::clone(&release));
        let manager = builder(&queue)
            .on("quick", move |_: Delivered<Foo>| { counted.add(); async { Handled::Success } })
            .on("slow", move |_: Delivered<Foo>| { let held = Arc::clone(&held); async move { held.notified().await; Handled::Success } })
            .build().unwrap();
        let id = publish(&queue, 1).await;
        let running = tokio::spawn({ let manager = manager.clone(); async move { manager.run_process_loop().await } });
        let states = queue.store();
        eventually("the success of the quick one is recorded", || async {
            states.handled(vec![id]).await.unwrap()[0].states.iter().any(|(handler, _)| handler == "quick")
        }).await;
        running.abort(); // like a crash of the process, except for the release
        let _ = running.await;
        eventually("the event is released", || async { queue.depth().await.unwrap().ready == 1 }).await;
        release.notify_one();
        // A claim that was under way may get it once more without a caller, and releases it too.
        eventually("it completes", || async {
            manager.drain().await.unwrap();
            end_of(&queue, id).await == Some(End::Completed)
        }).await;
        assert_eq!(calls.count(), 1, "what had succeeded durably does not run again");
        assert_eq!(manager.cleanup_finalized_events().await.unwrap(), 1, "states of finalised events are removed");
        assert_eq!(manager.cleanup_finalized_events().await.unwrap(), 0);
    }

    async fn handlers_that_end_together_leave_no_state_rows(place) {
        let queue = place.open().await;
        let manager = builder(&queue)
            .on("one", |_: Delivered<Foo>| async { Handled::Success })
            .on("two", |_: Delivered<Foo>| async { Handled::Success })
            .build().unwrap();
        for number in 0..50 {
            publish(&queue, number).await;
        }
        assert_eq!(manager.drain().await.unwrap(), 50);
        assert_eq!(manager.cleanup_finalized_events().await.unwrap(), 0, "their log row is enough");
    }

    async fn cancellation_mid_event_neither_finalises_nor_counts(place) {
        let queue = place.open().await;
        let started = Arc::new(Semaphore::new(0));
        let signal = Arc::clone(&started);
        let manager = builder(&queue)
            .on("hangs", move |_: Delivered<Foo>| { let signal = Arc::clone(&signal); async move { signal.add_permits(1); std::future::pending::<Handled>().await } })
            .build().unwrap();
        let id = publish(&queue, 1).await;
        for _ in 0..3 {
            let running = tokio::spawn({ let manager = manager.clone(); async move { manager.run_process_loop().await } });
            soon("the handler starts", started.acquire()).await.unwrap().forget();
            running.abort();
            let _ = running.await;
            // A claim that was under way may get it once more without a caller, and releases it too.
            eventually("it is released and did not count", || async {
                let entry = view(&queue, id).await;
                matches!(entry.phase, EntryPhase::Waiting { .. }) && entry.attempts == 0
            }).await;
        }
    }

    async fn shutdown_waits_for_handlers_then_releases_the_rest(place) {
        let queue = place.open().await;
        let (started, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (signal, wait) = (Arc::clone(&started), Arc::clone(&go));
        let manager = builder(&queue)
            .grace(Duration::from_millis(300))
            .on("waits", move |event: Delivered<Foo>| {
                let (signal, wait) = (Arc::clone(&signal), Arc::clone(&wait));
                async move {
                    signal.add_permits(1);
                    if event.number == 1 { wait.acquire().await.unwrap().forget(); } else { std::future::pending::<()>().await; }
                    Handled::Success
                }
            })
            .build().unwrap();
        let (good, stuck) = (publish(&queue, 1).await, publish(&queue, 2).await);
        let running = tokio::spawn({ let manager = manager.clone(); async move { manager.run_process_loop().await } });
        soon("both start", started.acquire_many(2)).await.unwrap().forget();
        manager.shutdown();
        go.add_permits(1);
        soon("the loop ends", running).await.unwrap().unwrap();
        assert_eq!(end_of(&queue, good).await, Some(End::Completed), "a running handler may end");
        let back = view(&queue, stuck).await;
        assert_eq!((back.phase, back.attempts), (EntryPhase::Waiting { due: None }, 0), "a stuck one is cut off");
        assert_eq!(queue.depth().await.unwrap().leased, 0, "no lease is left behind");
    }

    async fn shutdown_under_load_leaves_no_lease_behind(place) {
        let queue = place.open().await;
        let calls = Calls::default();
        let counted = calls.clone();
        let manager = builder(&queue).concurrency(64)
            .on("works", move |_: Delivered<Foo>| { counted.add(); async { tokio::task::yield_now().await; Handled::Success } })
            .build().unwrap();
        let events = (0..2000).map(|number| Foo { number }.to_new().unwrap()).collect();
        assert!(queue.publish_many(events).await.iter().all(Result::is_ok));
        let running = tokio::spawn({ let manager = manager.clone(); async move { manager.run_process_loop().await } });
        eventually("it is under way", || async { calls.count() > 100 }).await;
        manager.shutdown();
        soon("the loop ends", running).await.unwrap().unwrap();
        let depth = queue.depth().await.unwrap();
        assert_eq!(depth.leased, 0);
        assert!(depth.ready < 2000, "something was done: {depth:?}");
        let rest = builder(&queue).on("works", |_: Delivered<Foo>| async { Handled::Success }).build().unwrap();
        assert_eq!(rest.drain().await.unwrap(), depth.ready, "everything that was not done is claimable");
    }

    async fn a_long_handler_keeps_its_lease_by_heartbeat(place) {
        let queue = place.open().await;
        let (started, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (signal, wait) = (Arc::clone(&started), Arc::clone(&go));
        // Long enough that one late heartbeat does not lose it.
        let lease = Duration::from_secs(4);
        let manager = builder(&queue)
            .lease(lease)
            .on("long", move |_: Delivered<Foo>| {
                let (signal, wait) = (Arc::clone(&signal), Arc::clone(&wait));
                async move { signal.add_permits(1); wait.acquire().await.unwrap().forget(); Handled::Success }
            })
            .build().unwrap();
        let id = publish(&queue, 1).await;
        let running = tokio::spawn({ let manager = manager.clone(); async move { manager.run_process_loop().await } });
        soon("it starts", started.acquire()).await.unwrap().forget();
        let EntryPhase::Leased { until: first, .. } = view(&queue, id).await.phase else { panic!("it is not leased") };
        eventually("more than a lease's time has passed", || async {
            let EntryPhase::Leased { until, .. } = view(&queue, id).await.phase else { panic!("the lease was lost") };
            assert!(queue.poll().await.unwrap().is_none(), "no other worker gets it");
            until.duration_since(first) > jiff::SignedDuration::try_from(lease).unwrap()
        }).await;
        // Attempts alone do not show it: cut off and started again, it would be the same attempt.
        assert_eq!((started.available_permits(), view(&queue, id).await.attempts), (0, 1), "it was started once");
        go.add_permits(1);
        eventually("it completes", || async { end_of(&queue, id).await == Some(End::Completed) }).await;
        manager.shutdown();
        running.await.unwrap().unwrap();
    }

    async fn the_late_answer_of_a_cancelled_event_changes_nothing_and_the_loop_goes_on(place) {
        let queue = place.open().await;
        let (started, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (signal, wait) = (Arc::clone(&started), Arc::clone(&go));
        let manager = builder(&queue)
            .on("late", move |event: Delivered<Foo>| {
                let (signal, wait) = (Arc::clone(&signal), Arc::clone(&wait));
                async move {
                    if event.number == 1 { signal.add_permits(1); wait.acquire().await.unwrap().forget(); }
                    Handled::Success
                }
            })
            .build().unwrap();
        let id = publish(&queue, 1).await;
        let running = tokio::spawn({ let manager = manager.clone(); async move { manager.run_process_loop().await } });
        soon("it starts", started.acquire()).await.unwrap().forget();
        queue.cancel(id).await.unwrap();
        go.add_permits(1);
        let next = publish(&queue, 2).await;
        eventually("the next is handled", || async { end_of(&queue, next).await == Some(End::Completed) }).await;
        assert_eq!(end_of(&queue, id).await, Some(End::Cancelled), "the late answer changed nothing");
        manager.shutdown();
        running.await.unwrap().unwrap();
    }

    async fn middleware_runs_around_handlers_in_order(place) {
        let queue = place.open().await;
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let (outer, inner) = (Layer("outer", Arc::clone(&seen)), Layer("inner", Arc::clone(&seen)));
        let manager = builder(&queue).middleware(outer).middleware(inner)
            .on("h", |_: Delivered<Foo>| async { Handled::Success })
            .build().unwrap();
        publish(&queue, 1).await;
        manager.drain().await.unwrap();
        assert_eq!(*seen.lock().unwrap(), ["outer before h", "inner before h", "inner after h", "outer after h"]);
    }

    async fn groups_stay_in_order_through_retries(place) {
        let queue = place.open().await;
        let seen: Arc<Mutex<Vec<u32>>> = Arc::default();
        let noted = Arc::clone(&seen);
        let manager = builder(&queue)
            .on("ordered", move |event: Delivered<Foo>| {
                let noted = Arc::clone(&noted);
                async move {
                    if event.number.is_multiple_of(3) && event.attempts() == 1 { return Handled::transient("once more"); }
                    noted.lock().unwrap().push(event.number);
                    Handled::Success
                }
            })
            .build().unwrap();
        for number in 0..20 {
            queue.publish(Foo { number }.to_new().unwrap().group("g")).await.unwrap();
        }
        eventually("all are done", || async {
            manager.drain().await.unwrap();
            queue.depth().await.unwrap().total() == 0
        }).await;
        assert_eq!(*seen.lock().unwrap(), (0..20).collect::<Vec<_>>());
    }

    async fn the_sequence_diagram_step_by_step(place) {
        let queue = place.open().await;
        // P->>Q: publish(event); Note: {status: PENDING, attempts: 0}
        let id = publish(&queue, 1).await;
        let waiting = view(&queue, id).await;
        assert_eq!((waiting.phase, waiting.attempts), (EntryPhase::Waiting { due: None }, 0));
        // M->>Q: poll(): PROCESSING, attempts + 1. M dies: it reports no outcome, and its lease runs out.
        let dead = queue.consumer().lease(Duration::from_millis(200)).unwrap();
        dead.poll().await.unwrap().unwrap().forget();
        let held = view(&queue, id).await;
        assert!(matches!(held.phase, EntryPhase::Leased { .. }));
        assert_eq!(held.attempts, 1);
        // Note: time passes. M->>Q: poll(): re-acquired, attempts + 1; M->>H: handle(event); H-->>M: OK.
        let attempts = Arc::new(AtomicUsize::new(0));
        let noted = Arc::clone(&attempts);
        let manager = builder(&queue)
            .on("h", move |event: Delivered<Foo>| { noted.store(event.attempts() as usize, Ordering::SeqCst); async { Handled::Success } })
            .build().unwrap();
        eventually("it is re-acquired", || async { manager.drain().await.unwrap() == 1 }).await;
        assert_eq!(attempts.load(Ordering::SeqCst), 2);
        // M->>Q: finalize(id); Q->>LOG: log COMPLETED; Q: delete from events.
        assert_eq!(end_of(&queue, id).await, Some(End::Completed));
        assert_eq!(queue.depth().await.unwrap().total(), 0);
        // alt No event: null, delay.
        assert_eq!(manager.drain().await.unwrap(), 0);
    }

    async fn health_says_how_it_fares(place) {
        let queue = place.open().await;
        let manager = builder(&queue).on("h", |_: Delivered<Foo>| async { Handled::Success }).build().unwrap();
        assert!(!manager.health().await.is_good(), "nothing runs");
        let running = tokio::spawn({ let manager = manager.clone(); async move { manager.run_process_loop().await } });
        eventually("it is healthy", || async { manager.health().await.is_good() }).await;
        manager.shutdown();
        running.await.unwrap().unwrap();
        assert_eq!(manager.health().await.loops, 0);
    }

    async fn events_wake_an_idle_manager_at_once(place) {
        let queue = place.open().await;
        let handled = Arc::new(Semaphore::new(0));
        let signal = Arc::clone(&handled);
        let manager = builder(&queue).poll_interval(Duration::from_secs(3600))
            .on("h", move |_: Delivered<Foo>| { signal.add_permits(1); async { Handled::Success } })
            .build().unwrap();
        let running = tokio::spawn({ let manager = manager.clone(); async move { manager.run_process_loop().await } });
        for number in 0..3 {
            publish(&queue, number).await;
            soon("a wake-up reaches it", handled.acquire()).await.unwrap().forget();
        }
        manager.shutdown();
        running.await.unwrap().unwrap();
    }
}

/// Middleware that records when it runs.
struct Layer(&'static str, Arc<Mutex<Vec<String>>>);

impl Middleware for Layer {
    fn around<'a>(&'a self, call: &'a Invocation, next: BoxFuture<'a, Handled>) -> BoxFuture<'a, Handled> {
        Box::pin(async move {
            let Self(name, seen) = self;
            seen.lock().unwrap().push(format!("{name} before {}", call.handler));
            let answer = next.await;
            seen.lock().unwrap().push(format!("{name} after {}", call.handler));
            answer
        })
    }
}

/// A handler that is a type of its own.
struct FooHandler(Calls);

impl EventHandler for FooHandler {
    type Event = Foo;

    fn id(&self) -> &str {
        "foo-handler"
    }

    async fn handle(&self, event: Delivered<Foo>) -> Handled {
        self.0.add();
        assert_eq!((event.number, event.entry().fact.event_type.as_str()), (3, "foo"));
        Handled::Success
    }
}

#[tokio::test]
async fn a_handler_can_be_a_type() {
    let place = Place::sqlite();
    let queue = place.open().await;
    let calls = Calls::default();
    let manager = builder(&queue).register(FooHandler(calls.clone())).build().unwrap();
    publish(&queue, 3).await;
    manager.drain().await.unwrap();
    assert_eq!(calls.count(), 1);
}

#[tokio::test]
async fn what_does_not_fit_is_refused_at_build_time() {
    let place = Place::sqlite();
    let queue = place.open().await;
    let handler = |_: Delivered<Foo>| async { Handled::Success };
    let twice = builder(&queue).on("same", handler).on("same", handler).build().unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::Invalid);
    assert!(twice.to_string().contains("same"), "{twice}");
    for bad in [
        builder(&queue),
        builder(&queue).on("", handler),
        builder(&queue).on("x".repeat(300), handler),
        builder(&queue).on("h", handler).concurrency(0),
        builder(&queue).on("h", handler).poll_interval(Duration::ZERO),
        builder(&queue).on("h", handler).timeout(Duration::ZERO),
        builder(&queue).on("h", handler).lease(Duration::ZERO),
    ] {
        assert_eq!(bad.build().unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[tokio::test]
async fn handlers_of_every_type_run_beside_those_of_one() {
    let place = Place::sqlite();
    let queue = place.open().await;
    let (any, raw) = (Calls::default(), Calls::default());
    let (first, second) = (any.clone(), raw.clone());
    let manager = builder(&queue)
        .on_any("audit", move |_| {
            first.add();
            async { Handled::Success }
        })
        .on_raw("raw", "foo", move |entry| {
            second.add();
            async move { if entry.fact.payload.is_empty() { Handled::unrecoverable("empty") } else { Handled::Success } }
        })
        .build()
        .unwrap();
    publish(&queue, 1).await;
    queue.publish(NewEvent::new("other", "{}")).await.unwrap();
    assert_eq!(manager.drain().await.unwrap(), 2);
    assert_eq!((any.count(), raw.count()), (2, 1));
}
