//! The queue over a store in memory whose verbs are held back: batchers, gone callers, drops, upkeep, closing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::{ErrorKind, EventQueue, NewEvent};

use crate::memory::MemoryStore;
use crate::support::{eventually, soon, yields};

const HOUR: Duration = Duration::from_secs(3600);

async fn open(store: &Arc<MemoryStore>) -> EventQueue {
    EventQueue::builder().poll_interval(HOUR).with_store(Arc::clone(store) as Arc<dyn tidegate::Store>).await.unwrap()
}

fn event(number: usize) -> NewEvent {
    NewEvent::new("t", number.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_publishes_does_not_hold_up_completions() {
    let store = MemoryStore::new();
    let queue = open(&store).await;
    queue.publish(event(1)).await.unwrap();
    let gate = MemoryStore::shut(&store.publish_gate);
    let flood: Vec<_> = (0..5_000)
        .map(|number| {
            tokio::spawn({
                let queue = queue.clone();
                async move { queue.publish(event(number)).await }
            })
        })
        .collect();
    eventually("the flood waits", || async { store.publishes.load(Ordering::SeqCst) == 2 }).await;
    let held = soon("claim", queue.poll()).await.unwrap().unwrap();
    soon("complete", held.complete()).await.unwrap();
    gate.add_permits(1_000);
    for publish in flood {
        publish.await.unwrap().unwrap();
    }
    assert!(store.publishes.load(Ordering::SeqCst) <= 12, "single calls were batched");
    assert_eq!(queue.depth().await.unwrap().ready, 5_000);
}

#[tokio::test]
async fn grouped_and_keyed_publishes_do_not_wait_for_plain_ones() {
    let store = MemoryStore::new();
    let queue = open(&store).await;
    let gate = MemoryStore::shut(&store.publish_gate);
    let plain = tokio::spawn({
        let queue = queue.clone();
        async move { queue.publish(event(1)).await }
    });
    eventually("plain is held", || async { store.publishes.load(Ordering::SeqCst) == 1 }).await;
    *store.publish_gate.lock().unwrap() = None;
    soon("grouped", queue.publish(event(2).group("g"))).await.unwrap();
    soon("keyed", queue.publish(event(3).deduplicate("k"))).await.unwrap();
    soon("both", queue.publish(event(4).group("h").deduplicate("l"))).await.unwrap();
    assert!(!plain.is_finished());
    gate.add_permits(1);
    plain.await.unwrap().unwrap();
}

#[tokio::test]
async fn polls_at_once_become_one_claim_and_share_it_in_order() {
    let store = MemoryStore::new();
    let queue = open(&store).await;
    let gate = MemoryStore::shut(&store.claim_gate);
    let first = tokio::spawn({
        let queue = queue.clone();
        async move { queue.poll_many(2).await }
    });
    eventually("a claim is held", || async { store.claims.load(Ordering::SeqCst) == 1 }).await;
    let polls: Vec<_> = (0..10)
        .map(|_| {
            tokio::spawn({
                let queue = queue.clone();
                async move { queue.poll().await }
            })
        })
        .collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    queue.publish_many((0..20).map(event).collect()).await;
    gate.add_permits(100);
    let mut got = first.await.unwrap().unwrap();
    assert_eq!(got.len(), 2);
    for poll in polls {
        got.push(poll.await.unwrap().unwrap().expect("there was enough for all"));
    }
    assert_eq!(store.claims.load(Ordering::SeqCst), 2, "ten polls were one claim");
    let mut ids: Vec<i64> = got.iter().map(|event| event.id.get()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..=12).collect::<Vec<i64>>());
}

#[tokio::test]
async fn a_claim_whose_caller_is_gone_is_released_and_does_not_count() {
    let store = MemoryStore::new();
    let queue = open(&store).await;
    let id = queue.publish(event(1)).await.unwrap().id;
    let gate = MemoryStore::shut(&store.claim_gate);
    let poll = tokio::spawn({
        let queue = queue.clone();
        async move { queue.poll().await }
    });
    eventually("the claim is held", || async { store.claims_waiting.load(Ordering::SeqCst) == 1 }).await;
    poll.abort();
    let _ = poll.await;
    gate.add_permits(100);
    eventually("it is ready again", || async {
        store.claims.load(Ordering::SeqCst) == 1
            && store.claims_waiting.load(Ordering::SeqCst) == 0
            && queue.depth().await.unwrap().ready == 1
    })
    .await;
    assert_eq!(store.attempts(id), 0);
    let again = queue.poll().await.unwrap().unwrap();
    assert_eq!((again.attempts, again.token.0), (1, 2));
    again.complete().await.unwrap();
}

#[tokio::test]
async fn a_publish_whose_caller_is_gone_still_commits() {
    let store = MemoryStore::new();
    let queue = open(&store).await;
    let gate = MemoryStore::shut(&store.publish_gate);
    let publish = tokio::spawn({
        let queue = queue.clone();
        async move { queue.publish(event(1)).await }
    });
    eventually("it is held", || async { store.publishes.load(Ordering::SeqCst) == 1 }).await;
    publish.abort();
    let _ = publish.await;
    gate.add_permits(1);
    eventually("it is there", || async { queue.depth().await.unwrap().ready == 1 }).await;
}

/// A call waits behind a flush that is held back, and its caller goes away before its own flush begins.
#[tokio::test]
async fn a_publish_whose_caller_left_before_its_flush_still_commits() {
    type Kind = fn(NewEvent, &'static str) -> NewEvent;
    let kinds: [Kind; 4] = [
        |event, _| event,
        |event, name| event.group(name),
        |event, name| event.deduplicate(name),
        |event, name| event.group(name).deduplicate(name),
    ];
    for kind in kinds {
        let store = MemoryStore::new();
        let queue = open(&store).await;
        let gate = MemoryStore::shut(&store.publish_gate);
        let publish = |event: NewEvent| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.publish(event).await })
        };
        let held = publish(kind(event(1), "a"));
        eventually("its flush is held", || async { store.publishes.load(Ordering::SeqCst) == 1 }).await;
        let gone = publish(kind(event(2), "b"));
        yields(100).await;
        assert_eq!(store.publishes.load(Ordering::SeqCst), 1, "it waits for the flush before it");
        gone.abort();
        let _ = gone.await;
        gate.add_permits(1_000);
        held.await.unwrap().unwrap();
        eventually("both are there", || async { queue.depth().await.unwrap().total() == 2 }).await;
    }
}

#[tokio::test]
async fn one_poison_publish_fails_alone() {
    let store = MemoryStore::new();
    let queue = open(&store).await;
    let gate = MemoryStore::shut(&store.publish_gate);
    let spawn = |event: NewEvent| {
        tokio::spawn({
            let queue = queue.clone();
            async move { queue.publish(event).await }
        })
    };
    let mut publishes = vec![spawn(event(0))];
    eventually("the first is held", || async { store.publishes.load(Ordering::SeqCst) == 1 }).await;
    publishes.extend((1..10).map(|number| spawn(event(number))));
    let poison = spawn(NewEvent::new("poison", "x"));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    gate.add_permits(1_000);
    for publish in publishes {
        publish.await.unwrap().unwrap();
    }
    assert_eq!(poison.await.unwrap().unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_verdict_outlasts_a_short_outage_and_a_drop_does_too() {
    let store = MemoryStore::new();
    let queue = open(&store).await;
    queue.publish_many((0..3).map(event).collect()).await;
    let mut events = queue.poll_many(3).await.unwrap();
    store.broken.store(3, Ordering::SeqCst);
    events.pop().unwrap().complete().await.unwrap();
    assert_eq!(store.broken.load(Ordering::SeqCst), 0, "it was tried until it succeeded");
    store.broken.store(2, Ordering::SeqCst);
    drop(events.pop());
    eventually("released", || async { queue.depth().await.unwrap().ready == 1 }).await;
    store.broken.store(1, Ordering::SeqCst);
    events.pop().unwrap().snooze(HOUR).await.unwrap();
    assert_eq!(queue.depth().await.unwrap().delayed, 1);
    queue.publish_many((0..50).map(event).collect()).await;
    let batch = queue.poll_many(100).await.unwrap();
    store.broken.store(2, Ordering::SeqCst);
    let ends = queue.finalize_many(batch).await;
    assert_eq!(ends.into_iter().filter(Result::is_ok).count(), 51);
}

#[tokio::test]
async fn each_entry_of_a_batch_is_ended_while_its_own_lease_lasts() {
    let store = MemoryStore::new();
    let queue = open(&store).await;
    queue.publish_many((0..2).map(event).collect()).await;
    let long = queue.poll().await.unwrap().unwrap();
    // Shorter than the first pause.
    let short = queue.consumer().lease(Duration::from_millis(20)).unwrap().poll().await.unwrap().unwrap();
    store.broken.store(2, Ordering::SeqCst);
    let ends = soon("the outage is over", queue.finalize_many(vec![short, long])).await;
    assert_eq!(ends[0].as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(ends[1].is_ok(), "the other's lease still lasts: {:?}", ends[1]);
}

#[tokio::test]
async fn what_could_not_be_ended_is_released() {
    let store = MemoryStore::new();
    let limits = {
        let mut limits = tidegate::Limits::default();
        limits.deadline = Duration::from_millis(200);
        limits
    };
    let queue =
        EventQueue::builder().limits(limits).with_store(Arc::clone(&store) as Arc<dyn tidegate::Store>).await.unwrap();
    queue.publish_many((0..3).map(event).collect()).await;
    let mut held = queue.poll_many(3).await.unwrap();
    store.broken.store(usize::MAX, Ordering::SeqCst);
    assert_eq!(held.pop().unwrap().complete().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(queue.finalize_many(held).await.iter().all(Result::is_err));
    assert_eq!(queue.depth().await.unwrap().leased, 3);
    store.broken.store(0, Ordering::SeqCst);
    eventually("all are released", || async { queue.depth().await.unwrap().ready == 3 }).await;
    assert_eq!(queue.poll().await.unwrap().unwrap().attempts, 1, "the outage did not count");
}

#[tokio::test]
async fn waiters_are_woken_by_publishes_and_by_returns() {
    let store = MemoryStore::new();
    let queue = open(&store).await;
    let waiter = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next(HOUR).await }
    });
    eventually("it has tried to claim", || async { store.claims.load(Ordering::SeqCst) >= 1 }).await;
    queue.publish(event(1)).await.unwrap();
    let held = soon("woken by a publish", waiter).await.unwrap().unwrap().unwrap();
    let waiter = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next(HOUR).await }
    });
    held.retry_after(Duration::from_millis(20), "later").await.unwrap();
    let held = soon("woken when due", waiter).await.unwrap().unwrap().unwrap();
    assert_eq!(held.attempts, 2);
    assert_eq!(held.last_error.as_deref(), Some("later"));
    let waiter = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next(HOUR).await }
    });
    drop(held);
    let held = soon("woken by a drop", waiter).await.unwrap().unwrap().unwrap();
    assert_eq!(held.attempts, 2);
    held.complete().await.unwrap();
    assert!(queue.next(Duration::from_millis(5)).await.unwrap().is_none());
}

#[tokio::test]
async fn upkeep_runs_announces_and_ends_with_the_last_handle() {
    let store = MemoryStore::new();
    let queue = open(&store).await;
    assert!(queue.poll().await.unwrap().is_none());
    eventually("upkeep and announcement", || async {
        store.maintained.load(Ordering::SeqCst) >= 2 && store.seen.load(Ordering::SeqCst) == 1
    })
    .await;
    assert!(queue.health().await.is_good());
    drop(queue);
    eventually("tasks drop the store", || async { Arc::strong_count(&store) == 1 }).await;
    assert_eq!(store.closed.load(Ordering::SeqCst), 0, "the test still holds the store");
}

#[tokio::test]
async fn closing_flushes_and_refuses_and_can_be_repeated() {
    let store = MemoryStore::new();
    let queue = open(&store).await;
    queue.publish_many((0..2).map(event).collect()).await;
    let held = queue.poll().await.unwrap().unwrap();
    drop(queue.poll().await.unwrap().unwrap());
    let waiter = tokio::spawn({
        let queue = queue.clone();
        async move { queue.consumer().types(["other"])?.next(HOUR).await }
    });
    eventually("it has tried to claim", || async { store.claims.load(Ordering::SeqCst) >= 3 }).await;
    let gate = MemoryStore::shut(&store.publish_gate);
    let publish = tokio::spawn({
        let queue = queue.clone();
        async move { queue.publish(event(9)).await }
    });
    eventually("it is held", || async { store.publishes.load(Ordering::SeqCst) == 2 }).await;
    let closing = tokio::spawn({
        let queue = queue.clone();
        async move { queue.close().await }
    });
    gate.add_permits(1);
    soon("close", closing).await.unwrap();
    soon("close again", queue.close()).await;
    publish.await.unwrap().unwrap();
    assert_eq!(store.closed.load(Ordering::SeqCst), 1);
    let depth = queue.depth().await.unwrap();
    assert_eq!((depth.leased, depth.ready), (1, 2), "what a caller holds stays held, what was dropped is released");
    for refused in [queue.publish(event(1)).await.err(), queue.poll().await.err(), held.complete().await.err()] {
        assert_eq!(refused.unwrap().kind(), ErrorKind::Unavailable);
    }
    assert_eq!(soon("waiter", waiter).await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(!queue.health().await.is_good());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_cancelled_calls_lose_nothing() {
    let store = MemoryStore::new();
    let queue = open(&store).await;
    let mut acknowledged = 0_u64;
    for number in 0..5_000 {
        tokio::select! {
            biased;
            answer = queue.publish(event(number)) => { answer.unwrap(); acknowledged += 1; }
            () = yields(number % 5) => {}
        }
        tokio::select! {
            biased;
            held = queue.poll() => drop(held.unwrap()),
            () = yields(number % 7) => {}
        }
    }
    eventually("nothing stays leased", || async { queue.depth().await.unwrap().leased == 0 }).await;
    assert!(queue.depth().await.unwrap().total() >= acknowledged);
    let held = soon("work goes on", queue.poll_many(10_000)).await.unwrap();
    assert!(held.iter().all(|event| event.attempts == 1), "a hang-up does not count");
    let worked = queue.finalize_many(held).await.into_iter().filter(Result::is_ok).count() as u64;
    assert!(worked >= acknowledged);
}

#[tokio::test]
async fn releases_that_outlive_all_handles_are_tried_with_pauses() {
    let store = MemoryStore::new();
    let queue = EventQueue::builder()
        .lease(Duration::from_secs(2))
        .with_store(Arc::clone(&store) as Arc<dyn tidegate::Store>)
        .await
        .unwrap();
    queue.publish(event(1)).await.unwrap();
    let held = queue.poll().await.unwrap().unwrap();
    store.broken.store(usize::MAX, Ordering::SeqCst);
    drop(held);
    drop(queue);
    eventually("it is given up when the lease ends", || async { Arc::strong_count(&store) == 1 }).await;
    let tries = store.requeues.load(Ordering::SeqCst);
    assert!((2..20).contains(&tries), "{tries}");
}

/// Starts a waiter at a queue, and returns once it has found nothing to claim.
async fn waiting_at(store: &MemoryStore, other: &EventQueue) -> tokio::task::JoinHandle<tidegate::EntryId> {
    let before = store.claims.load(Ordering::SeqCst);
    let waiter = tokio::spawn({
        let other = other.clone();
        async move { other.next(HOUR).await.unwrap().unwrap().hand_over().id }
    });
    eventually("it waits", || async { store.claims.load(Ordering::SeqCst) > before }).await;
    yields(100).await;
    waiter
}

/// The databases announce manual actions themselves; this store does not, so only the library can wake the waiter.
#[tokio::test]
async fn a_manual_action_wakes_the_queue_of_its_entry() {
    let store = MemoryStore::new();
    let queue = open(&store).await;
    let other = queue.of(tidegate::QueueName::new("other").unwrap()).await.unwrap();
    let first = other.publish(event(1).group("g")).await.unwrap().id;
    let second = other.publish(event(2).group("g")).await.unwrap().id;
    other.poll().await.unwrap().unwrap().forget();
    let waiter = waiting_at(&store, &other).await;
    queue.cancel(first).await.unwrap();
    assert_eq!(soon("the cancel frees the group", waiter).await.unwrap(), second);
    let dead = other.publish(event(3)).await.unwrap().id;
    other.poll().await.unwrap().unwrap().finalize(["no"]).await.unwrap();
    let waiter = waiting_at(&store, &other).await;
    queue.redrive(dead).await.unwrap();
    assert_eq!(soon("the redrive wakes", waiter).await.unwrap(), dead);
}

/// A queue that outlives its runtime, such as a static one over several tests.
#[test]
fn a_queue_whose_runtime_is_gone_answers_errors() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let place = crate::databases::Place::sqlite();
    let first = runtime();
    let (queue, held) = first.block_on(async {
        let queue = place.open().await;
        queue.publish_many((0..3).map(event).collect()).await;
        let held = queue.poll_many(2).await.unwrap();
        (queue, held)
    });
    drop(first);
    runtime().block_on(soon("every call is answered", async {
        assert_eq!(queue.publish(event(4)).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(queue.poll().await.unwrap_err().kind(), ErrorKind::Unavailable);
        for held in held {
            assert_eq!(held.complete().await.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        queue.close().await;
    }));
}

/// The longest duration works wherever a duration is asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_time_there_is_fits_everywhere() {
    const EVER: Duration = Duration::MAX;
    let place = crate::databases::Place::sqlite();
    let queue =
        place.open_with(|builder| builder.poll_interval(EVER).with(|options| options.limits.deadline = EVER)).await;
    let waiter = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next(EVER).await }
    });
    queue.publish(event(1)).await.unwrap();
    let held = soon("it wakes", waiter).await.unwrap().unwrap().unwrap();
    held.complete().await.unwrap();
    let (handled, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let manager = tidegate::EventManager::builder(&queue)
        .grace(EVER)
        .timeout(EVER)
        .poll_interval(EVER)
        .options(|options| options.cleanup_interval = EVER)
        .on_raw("h", "t", move |entry| {
            let _ = handled.send(entry.id);
            async { tidegate::Handled::Success }
        })
        .build()
        .unwrap();
    let running = tokio::spawn({
        let manager = manager.clone();
        async move { manager.run_process_loop().await }
    });
    let id = queue.publish(event(2)).await.unwrap().id;
    assert_eq!(soon("it is handled", heard.recv()).await, Some(id));
    manager.shutdown();
    soon("the loop ends", running).await.unwrap().unwrap();
    let bus = tidegate::EventBus::new(queue.clone()).unwrap();
    let router = tidegate::Router::new().on_event("t", |_| async { Ok::<_, String>(()) });
    let worker = bus.worker(router).unwrap().idle_wait(EVER).grace(EVER);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(async move { worker.run(async { drop(stopped.await) }).await });
    queue.publish(event(3)).await.unwrap();
    eventually("it ends", || async { queue.depth().await.unwrap().total() == 0 }).await;
    stop.send(()).unwrap();
    soon("the loop ends", running).await.unwrap();
    assert!(soon("it is drained", queue.drained(EVER)).await.unwrap());
}
