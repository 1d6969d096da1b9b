//! The batcher by itself, with flushes that the test holds back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::batcher::{Batcher, BatcherLimits};
use tidegate::{Error, ErrorKind};
use tokio::sync::Semaphore;

use crate::support::{eventually, soon};

/// A batcher that doubles numbers; each flush takes a permit of `gate` and is recorded in `flushes`.
#[derive(Clone)]
struct Doubler {
    batcher: Batcher<u64, u64>,
    flushes: Arc<Mutex<Vec<Vec<u64>>>>,
    started: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

fn doubler(limits: BatcherLimits, open: usize) -> Doubler {
    let flushes: Arc<Mutex<Vec<Vec<u64>>>> = Arc::default();
    let started = Arc::new(AtomicUsize::new(0));
    let gate = Arc::new(Semaphore::new(open));
    let batcher = {
        let (flushes, started, gate) = (Arc::clone(&flushes), Arc::clone(&started), Arc::clone(&gate));
        Batcher::new(
            "double",
            limits,
            |_| 10,
            move |items: Vec<u64>| {
                let (flushes, started, gate) = (Arc::clone(&flushes), Arc::clone(&started), Arc::clone(&gate));
                async move {
                    flushes.lock().unwrap().push(items.clone());
                    started.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await.unwrap().forget();
                    match items.iter().find(|item| **item >= 1_000) {
                        Some(13_000) => panic!("requested by the test"),
                        Some(bad) => Err(Error::invalid(format!("{bad} is too large"))),
                        None => Ok(items
                            .into_iter()
                            .map(|item| if item == 7 { Err(Error::fenced()) } else { Ok(2 * item) })
                            .collect()),
                    }
                }
            },
        )
    };
    Doubler { batcher, flushes, started, gate }
}

impl Doubler {
    async fn wait_started(&self, count: usize) {
        eventually("flushes started", || async { self.started.load(Ordering::SeqCst) >= count }).await;
    }

    fn sizes(&self) -> Vec<usize> {
        self.flushes.lock().unwrap().iter().map(Vec::len).collect()
    }
}

#[tokio::test]
async fn an_idle_lane_flushes_at_once() {
    let doubler = doubler(BatcherLimits::default(), 100);
    for number in 20..30 {
        assert_eq!(doubler.batcher.call(number).await.unwrap(), 2 * number);
    }
    assert_eq!(doubler.sizes(), [1; 10]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_that_wait_share_the_next_flush() {
    let doubler = doubler(BatcherLimits { batch_items: 40, ..BatcherLimits::default() }, 0);
    let call = |number| {
        tokio::spawn({
            let batcher = doubler.batcher.clone();
            async move { batcher.call(number).await }
        })
    };
    let first = call(1);
    doubler.wait_started(1).await;
    let mut others = Vec::new();
    for number in 100..160 {
        others.push(
            tokio::spawn({
                let batcher = doubler.batcher.clone();
                async move { batcher.submit(number).await.unwrap() }
            })
            .await
            .unwrap(),
        );
    }
    doubler.gate.add_permits(100);
    assert_eq!(first.await.unwrap().unwrap(), 2);
    for (number, ticket) in (100..160).zip(others) {
        assert_eq!(ticket.answer().await.unwrap(), 2 * number);
    }
    assert_eq!(doubler.sizes(), [1, 40, 20], "bounded by count, in order");
    let flat: Vec<u64> = doubler.flushes.lock().unwrap().concat();
    assert_eq!(flat, std::iter::once(1).chain(100..160).collect::<Vec<u64>>());
}

#[tokio::test]
async fn a_flush_is_bounded_by_weight_and_large_calls_are_split_in_order() {
    let doubler = doubler(BatcherLimits { batch_weight: 45, ..BatcherLimits::default() }, 100);
    let answers = doubler.batcher.call_many((20..31).collect()).await;
    let numbers: Vec<u64> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(numbers, (20..31).map(|number| 2 * number).collect::<Vec<u64>>());
    assert_eq!(doubler.sizes(), [4, 4, 3]);
    assert!(doubler.batcher.call_many(Vec::new()).await.is_empty());
}

#[tokio::test]
async fn a_call_heavier_than_the_room_goes_alone() {
    let doubler = doubler(BatcherLimits { room_weight: 5, batch_weight: 3, ..BatcherLimits::default() }, 100);
    assert_eq!(doubler.batcher.call(4).await.unwrap(), 8);
    assert_eq!(doubler.batcher.call(5).await.unwrap(), 10);
}

#[tokio::test]
async fn each_item_has_its_own_answer() {
    let doubler = doubler(BatcherLimits::default(), 100);
    let answers = doubler.batcher.call_many(vec![6, 7, 8]).await;
    assert_eq!(answers[0].as_ref().unwrap(), &12);
    assert_eq!(answers[1].as_ref().unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(answers[2].as_ref().unwrap(), &16);
}

#[tokio::test]
async fn an_item_that_spoils_a_flush_fails_alone() {
    let doubler = doubler(BatcherLimits::default(), 0);
    let head = doubler.batcher.submit(1).await.unwrap();
    doubler.wait_started(1).await;
    let mut tickets = Vec::new();
    for number in [2, 3, 5_000, 4, 5, 6_000, 8] {
        tickets.push((number, doubler.batcher.submit(number).await.unwrap()));
    }
    doubler.gate.add_permits(1_000);
    head.answer().await.unwrap();
    for (number, ticket) in tickets {
        match ticket.answer().await {
            Ok(double) => assert_eq!(double, 2 * number),
            Err(error) => {
                assert!(number >= 1_000, "{number} failed because of its neighbours: {error}");
                assert!(error.to_string().contains(&number.to_string()), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_flush_that_panics_answers_and_the_lane_lives_on() {
    let doubler = doubler(BatcherLimits::default(), 100);
    let error = doubler.batcher.call(13_000).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    assert_eq!(doubler.batcher.call(3).await.unwrap(), 6);
}

#[tokio::test]
async fn no_room_is_busy_at_the_deadline_and_room_comes_back() {
    let limits = BatcherLimits { room_items: 2, deadline: Duration::from_millis(30), ..BatcherLimits::default() };
    let doubler = doubler(limits, 0);
    let held = [doubler.batcher.submit(1).await.unwrap(), doubler.batcher.submit(2).await.unwrap()];
    let error = doubler.batcher.call(3).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    doubler.gate.add_permits(100);
    for ticket in held {
        ticket.answer().await.unwrap();
    }
    assert_eq!(doubler.batcher.call(3).await.unwrap(), 6, "capacity came back");
}

#[tokio::test]
async fn at_most_so_many_flushes_at_once() {
    let doubler = doubler(BatcherLimits { in_flight: 2, batch_items: 1, ..BatcherLimits::default() }, 0);
    let mut tickets = Vec::new();
    for number in 100..110 {
        tickets.push(doubler.batcher.submit(number).await.unwrap());
    }
    doubler.wait_started(2).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(doubler.started.load(Ordering::SeqCst), 2);
    doubler.gate.add_permits(100);
    for ticket in tickets {
        ticket.answer().await.unwrap();
    }
}

#[tokio::test]
async fn gone_callers_are_flushed_or_skipped_as_the_lane_says() {
    for skip_gone in [false, true] {
        let doubler = doubler(BatcherLimits { skip_gone, ..BatcherLimits::default() }, 0);
        let head = doubler.batcher.submit(1).await.unwrap();
        doubler.wait_started(1).await;
        drop(doubler.batcher.submit(2).await.unwrap());
        let last = doubler.batcher.submit(3).await.unwrap();
        doubler.gate.add_permits(100);
        head.answer().await.unwrap();
        last.answer().await.unwrap();
        let expected: Vec<u64> = if skip_gone { vec![1, 3] } else { vec![1, 2, 3] };
        assert_eq!(doubler.flushes.lock().unwrap().concat(), expected);
    }
}

#[tokio::test]
async fn a_closed_lane_refuses_and_flushes_what_it_had() {
    let doubler = doubler(BatcherLimits::default(), 0);
    let ticket = doubler.batcher.submit(4).await.unwrap();
    doubler.batcher.close();
    assert_eq!(doubler.batcher.call(5).await.unwrap_err().kind(), ErrorKind::Unavailable);
    doubler.gate.add_permits(10);
    soon("idle", doubler.batcher.idle()).await;
    assert_eq!(ticket.answer().await.unwrap(), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_that_give_up_at_random_leave_the_lane_whole() {
    let doubler = doubler(BatcherLimits { room_items: 50, in_flight: 2, ..BatcherLimits::default() }, 1_000_000);
    let mut tasks = Vec::new();
    for number in 0..500_u64 {
        let batcher = doubler.batcher.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..20 {
                let patience = Duration::from_micros((number * 7 + round * 13) % 200);
                let _ = tokio::time::timeout(patience, batcher.call(number)).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    soon("idle", doubler.batcher.idle()).await;
    let answers = doubler.batcher.call_many((100..150).collect()).await;
    assert!(answers.iter().all(Result::is_ok), "all capacity came back");
}

/// Calls `make` on a runtime of another thread, which ends when the returned sender is dropped.
fn elsewhere<T: Send + 'static>(
    make: impl FnOnce() -> T + Send + 'static,
) -> (T, std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>) {
    let (made, ready) = std::sync::mpsc::channel();
    let (keep, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        made.send(runtime.block_on(async { make() })).unwrap();
        let _ = ended.recv();
        runtime.shutdown_background();
    });
    (ready.recv().unwrap(), keep, thread)
}

#[tokio::test]
async fn calls_of_a_lane_whose_runtime_is_gone_are_refused() {
    let (doubler, keep, thread) =
        elsewhere(|| doubler(BatcherLimits { batch_items: 1, ..BatcherLimits::default() }, 1));
    assert_eq!(soon("it works", doubler.batcher.call(4)).await.unwrap(), 8);
    let flushing = doubler.batcher.submit(5).await.unwrap();
    doubler.wait_started(2).await;
    let waiting = doubler.batcher.submit(6).await.unwrap();
    drop(keep);
    thread.join().unwrap();
    let lost = soon("the call in its flush", flushing.answer()).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Indeterminate, "it may have happened: {lost}");
    let refused = soon("the call that waits", waiting.answer()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    let refused = soon("a later call", doubler.batcher.call(7)).await.unwrap_err();
    assert!(refused.to_string().contains("runtime"), "{refused}");
    let many = soon("many", doubler.batcher.call_many(vec![1, 2, 3])).await;
    assert!(many.iter().all(|answer| answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable)));
    soon("idle", doubler.batcher.idle()).await;
}

#[tokio::test]
async fn the_first_call_after_the_runtimes_end_is_refused_too() {
    let (doubler, keep, thread) = elsewhere(|| doubler(BatcherLimits::default(), 100));
    drop(keep);
    thread.join().unwrap();
    for _ in 0..2 {
        let refused = soon("a call", doubler.batcher.call(7)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(refused.to_string().contains("runtime"), "{refused}");
    }
    soon("idle", doubler.batcher.idle()).await;
}
