//! Leases of the manager and the bus on both databases: extended by heartbeats, and given up in time when these fail.
//! The handlers record whether two of them ever hold one event at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tidegate::{
    Delivered, End, EntryId, EntryPhase, EntryView, Event, EventBus, EventManager, EventQueue, Handled, ManagerBuilder,
    RetryPolicy, Router, Timestamp,
};
use tokio::sync::Semaphore;

use crate::databases::on_each_database;
use crate::hindered::Hindered;
use crate::support::{eventually, soon};

/// Long enough that a busy machine does not miss its last tenth, in which handlers are stopped.
const LEASE: Duration = Duration::from_secs(4);
/// For a lease that the test lets run out.
const SHORT: Duration = Duration::from_millis(600);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    number: u32,
}

impl Event for Job {
    const TYPE: &'static str = "job";
}

/// The runs of handlers for one event, counted by the handlers themselves.
#[derive(Debug, Clone, Default)]
struct Runs(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    now: AtomicUsize,
    most: AtomicUsize,
    started: AtomicUsize,
    /// When each run stopped, whether it returned or was cut off.
    stopped: Mutex<Vec<Timestamp>>,
}

impl Runs {
    fn enter(&self) -> Inside {
        let Counts { now, most, started, .. } = &*self.0;
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        started.fetch_add(1, Ordering::SeqCst);
        Inside(self.clone())
    }

    fn started(&self) -> usize {
        self.0.started.load(Ordering::SeqCst)
    }

    fn most(&self) -> usize {
        self.0.most.load(Ordering::SeqCst)
    }

    fn stopped(&self) -> Vec<Timestamp> {
        self.0.stopped.lock().unwrap().clone()
    }
}

struct Inside(Runs);

impl Drop for Inside {
    fn drop(&mut self) {
        let counts = &*self.0.0;
        counts.now.fetch_sub(1, Ordering::SeqCst);
        counts.stopped.lock().unwrap().push(Timestamp::now());
    }
}

fn builder(queue: &EventQueue) -> ManagerBuilder {
    EventManager::builder(queue).retry(RetryPolicy::fixed(Duration::ZERO)).concurrency(10)
}

/// A manager whose handler never returns, or succeeds at once.
fn manager(queue: &EventQueue, runs: &Runs, lease: Duration, hangs: bool) -> EventManager {
    let runs = runs.clone();
    let handle = move |_: Delivered<Job>| {
        let inside = runs.enter();
        async move {
            let _inside = inside;
            if hangs {
                std::future::pending::<()>().await;
            }
            Handled::Success
        }
    };
    builder(queue).lease(lease).poll_interval(Duration::from_millis(20)).on("h", handle).build().unwrap()
}

fn run(manager: &EventManager) -> tokio::task::JoinHandle<tidegate::Result<()>> {
    let manager = manager.clone();
    tokio::spawn(async move { manager.run_process_loop().await })
}

async fn publish(queue: &EventQueue, number: u32) -> EntryId {
    queue.publish(Job { number }.to_new().unwrap()).await.unwrap().id
}

async fn view(queue: &EventQueue, id: EntryId) -> EntryView {
    queue.entry(id).await.unwrap().unwrap()
}

async fn end_of(queue: &EventQueue, id: EntryId) -> Option<End> {
    match view(queue, id).await.phase {
        EntryPhase::Ended { end, .. } => Some(end),
        _ => None,
    }
}

async fn leased_until(queue: &EventQueue, id: EntryId) -> Option<Timestamp> {
    match view(queue, id).await.phase {
        EntryPhase::Leased { until, .. } => Some(until),
        _ => None,
    }
}

async fn passed(time: Duration) {
    let started = Instant::now();
    eventually("time passes", || async { started.elapsed() >= time }).await;
}

/// Waits until the lease was extended by this much; no other worker gets the entry meanwhile.
async fn is_kept(queue: &EventQueue, id: EntryId, by: Duration) {
    let first = leased_until(queue, id).await.expect("it is leased");
    eventually("its lease is extended", || async {
        let until = leased_until(queue, id).await.expect("its lease is kept");
        assert!(queue.poll().await.unwrap().is_none(), "no other worker gets it");
        until.duration_since(first) >= by.try_into().unwrap()
    })
    .await;
}

/// The first holder hangs and cannot reach the store; a second one takes over once the lease has run out.
async fn taken_over_in_time(queue: &EventQueue, id: EntryId, runs: &Runs) {
    let until = leased_until(queue, id).await.expect("it is leased");
    let second = manager(queue, runs, LEASE, false);
    let running = run(&second);
    eventually("the second holder ends it", || async { end_of(queue, id).await == Some(End::Completed) }).await;
    assert_eq!((runs.started(), runs.most()), (2, 1), "no two hold it at once");
    let stopped = runs.stopped()[0];
    assert!(stopped < until, "the first was cut off at {stopped}, its lease ran out at {until}");
    second.shutdown();
    soon("the loop ends", running).await.unwrap().unwrap();
}

on_each_database! {
    async fn a_handler_is_cut_off_before_its_lease_ends_while_heartbeats_fail(place) {
        let queue = place.open().await;
        let (store, cut_off) = Hindered::open(&queue, |builder| builder).await;
        let runs = Runs::default();
        let first = manager(&cut_off, &runs, LEASE, true);
        let running = run(&first);
        // The claim shall fall between two heartbeats.
        passed(LEASE / 6).await;
        let id = publish(&queue, 1).await;
        eventually("it starts", || async { runs.started() == 1 }).await;
        store.extend.fail();
        store.requeue.fail();
        store.claim.fail();
        taken_over_in_time(&queue, id, &runs).await;
        running.abort();
    }

    async fn a_lease_counts_from_before_the_claim_was_sent(place) {
        let queue = place.open().await;
        let (store, cut_off) = Hindered::open(&queue, |builder| builder).await;
        let id = publish(&queue, 1).await;
        store.extend.fail();
        store.requeue.fail();
        let answer = store.claim.hold_answers();
        let runs = Runs::default();
        let first = manager(&cut_off, &runs, LEASE, true);
        let running = run(&first);
        eventually("it is claimed", || async { leased_until(&queue, id).await.is_some() }).await;
        passed(LEASE * 4 / 10).await;
        store.claim.fail();
        answer.add_permits(1);
        eventually("it starts", || async { runs.started() == 1 }).await;
        taken_over_in_time(&queue, id, &runs).await;
        running.abort();
    }

    async fn an_event_whose_claim_took_longer_than_its_lease_is_not_begun(place) {
        let queue = place.open().await;
        let (store, slow) = Hindered::open(&queue, |builder| builder).await;
        let id = publish(&queue, 1).await;
        let answer = store.claim.hold_answers();
        let runs = Runs::default();
        let manager = manager(&slow, &runs, SHORT, false);
        let running = run(&manager);
        eventually("it is claimed", || async { leased_until(&queue, id).await.is_some() }).await;
        passed(SHORT).await;
        let other = queue.poll().await.unwrap().expect("the lease has run out");
        answer.add_permits(1);
        eventually("it was given up", || async { store.claim.calls.load(Ordering::SeqCst) > 1 }).await;
        assert_eq!(runs.started(), 0, "another worker may have it");
        other.complete().await.unwrap();
        answer.add_permits(Semaphore::MAX_PERMITS / 2);
        manager.shutdown();
        soon("the loop ends", running).await.unwrap().unwrap();
        assert_eq!(runs.started(), 0);
    }

    async fn an_extension_counts_from_before_it_was_sent(place) {
        let queue = place.open().await;
        let (store, cut_off) = Hindered::open(&queue, |builder| builder).await;
        let runs = Runs::default();
        let first = manager(&cut_off, &runs, LEASE, true);
        let id = publish(&queue, 1).await;
        let running = run(&first);
        eventually("it starts", || async { runs.started() == 1 }).await;
        let claimed_until = leased_until(&queue, id).await.unwrap();
        let answer = store.extend.hold_answers();
        eventually("its lease is extended", || async { leased_until(&queue, id).await.unwrap() > claimed_until }).await;
        // The answer comes a quarter of a lease late, and later heartbeats fail.
        passed(LEASE / 4).await;
        store.extend.fail();
        store.requeue.fail();
        store.claim.fail();
        answer.add_permits(1);
        taken_over_in_time(&queue, id, &runs).await;
        running.abort();
    }

    async fn a_heartbeat_that_is_never_answered_ends_the_handler_in_time(place) {
        let queue = place.open().await;
        let (store, cut_off) = Hindered::open(&queue, |builder| builder).await;
        let runs = Runs::default();
        let first = manager(&cut_off, &runs, LEASE, true);
        let id = publish(&queue, 1).await;
        let running = run(&first);
        eventually("it starts", || async { runs.started() == 1 }).await;
        store.extend.hold();
        store.requeue.fail();
        store.claim.fail();
        taken_over_in_time(&queue, id, &runs).await;
        running.abort();
    }

    async fn failed_heartbeats_are_repeated_before_the_lease_ends(place) {
        let queue = place.open().await;
        let (store, shaky) = Hindered::open(&queue, |builder| builder).await;
        let runs = Runs::default();
        let manager = manager(&shaky, &runs, LEASE, true);
        let id = publish(&queue, 1).await;
        store.extend.fail();
        let running = run(&manager);
        eventually("it starts", || async { runs.started() == 1 }).await;
        eventually("three heartbeats fail", || async { store.extend.calls.load(Ordering::SeqCst) >= 3 }).await;
        store.extend.work();
        is_kept(&queue, id, LEASE / 2).await;
        assert_eq!((runs.started(), runs.stopped().len()), (1, 0), "it goes on");
        running.abort();
    }

    async fn a_handler_whose_lease_is_lost_is_cut_off_and_its_successor_is_not(place) {
        let queue = place.open().await;
        let go = Arc::new(Semaphore::new(0));
        let (first, second) = (Runs::default(), Runs::default());
        let manager = builder(&queue).lease(LEASE).on("h", {
            let (first, second, go) = (first.clone(), second.clone(), Arc::clone(&go));
            move |event: Delivered<Job>| {
                let lost = event.entry().token.0 == 1;
                let inside = if lost { first.enter() } else { second.enter() };
                let go = Arc::clone(&go);
                async move {
                    let _inside = inside;
                    if lost { std::future::pending::<()>().await; }
                    go.acquire().await.unwrap().forget();
                    Handled::Success
                }
            }
        }).build().unwrap();
        let id = publish(&queue, 1).await;
        let running = run(&manager);
        eventually("the first starts", || async { first.started() == 1 }).await;
        let until = leased_until(&queue, id).await.expect("it is leased");
        // The reset raises its token, and the same manager claims it again.
        queue.reset(id, None).await.unwrap();
        eventually("the second starts", || async { second.started() == 1 }).await;
        eventually("a fenced heartbeat cuts the first off", || async { first.stopped().len() == 1 }).await;
        let before = until.duration_since(first.stopped()[0]);
        assert!(before > (LEASE / 4).try_into().unwrap(), "not only because its time was up: {before:?} before that");
        is_kept(&queue, id, LEASE / 2).await;
        assert_eq!(second.stopped().len(), 0, "the lease of the second is its own");
        go.add_permits(1);
        eventually("it ends", || async { end_of(&queue, id).await == Some(End::Completed) }).await;
        manager.shutdown();
        soon("the loop ends", running).await.unwrap().unwrap();
    }

    async fn a_handler_that_blocks_its_thread_costs_its_neighbours_nothing(place) {
        let queue = place.open().await;
        let (runs, go) = (Runs::default(), Arc::new(Semaphore::new(0)));
        let (block, blocked) = std::sync::mpsc::channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        let manager = builder(&queue).lease(LEASE).on("h", {
            let (runs, go) = (runs.clone(), Arc::clone(&go));
            move |event: Delivered<Job>| {
                let (inside, go, blocked) = (runs.enter(), Arc::clone(&go), Arc::clone(&blocked));
                async move {
                    let _inside = inside;
                    match event.number {
                        3 => { let _ = blocked.lock().unwrap().recv_timeout(crate::support::PATIENCE); }
                        5 => go.acquire().await.unwrap().forget(),
                        _ => {}
                    }
                    Handled::Success
                }
            }
        }).build().unwrap();
        let ids: Vec<EntryId> = queue
            .publish_many((0..10).map(|number| Job { number }.to_new().unwrap()).collect()).await
            .into_iter().map(|published| published.unwrap().id).collect();
        let running = run(&manager);
        let others = |number: &usize| ![3, 5].contains(number);
        for number in (0..10).filter(others) {
            eventually("a neighbour ends", || async { end_of(&queue, ids[number]).await == Some(End::Completed) }).await;
        }
        tokio::join!(is_kept(&queue, ids[3], LEASE), is_kept(&queue, ids[5], LEASE));
        go.add_permits(1);
        eventually("one that waits goes on", || async { end_of(&queue, ids[5]).await == Some(End::Completed) }).await;
        block.send(()).unwrap();
        eventually("the blocked one ends", || async { end_of(&queue, ids[3]).await == Some(End::Completed) }).await;
        assert_eq!(runs.started(), 10, "each ran once");
        for id in ids {
            assert_eq!(view(&queue, id).await.attempts, 1);
        }
        manager.shutdown();
        soon("the loop ends", running).await.unwrap().unwrap();
    }

    async fn leases_are_kept_through_a_shutdown_until_the_end_is_written(place) {
        let queue = place.open().await;
        let (store, stalled) = Hindered::open(&queue, |builder| builder).await;
        let (runs, go) = (Runs::default(), Arc::new(Semaphore::new(0)));
        let manager = builder(&stalled).lease(LEASE).grace(Duration::MAX).on("h", {
            let (runs, go) = (runs.clone(), Arc::clone(&go));
            move |event: Delivered<Job>| {
                let (inside, go) = (runs.enter(), Arc::clone(&go));
                async move {
                    let _inside = inside;
                    if event.number == 1 { go.acquire().await.unwrap().forget(); }
                    Handled::Success
                }
            }
        }).build().unwrap();
        let finalize = store.finalize.hold();
        let (slow, quick) = (publish(&queue, 1).await, publish(&queue, 2).await);
        let running = run(&manager);
        eventually("both start", || async { runs.started() == 2 }).await;
        manager.shutdown();
        tokio::join!(is_kept(&queue, slow, LEASE / 2), is_kept(&queue, quick, LEASE / 2));
        go.add_permits(1);
        eventually("the handler returns", || async { runs.stopped().len() == 2 }).await;
        tokio::join!(is_kept(&queue, slow, LEASE), is_kept(&queue, quick, LEASE));
        finalize.add_permits(10);
        soon("the loop ends", running).await.unwrap().unwrap();
        for id in [slow, quick] {
            assert_eq!(end_of(&queue, id).await, Some(End::Completed));
            assert_eq!(view(&queue, id).await.attempts, 1);
        }
        assert_eq!(runs.started(), 2);
    }

    async fn no_more_than_the_allowed_number_runs_at_once(place) {
        const ALL: u32 = 40;
        let queue = place.open().await;
        let (store, two_claims) = Hindered::open(&queue, |builder| builder.with(|options| options.limits.in_flight = Some(2))).await;
        let (runs, go) = (Runs::default(), Arc::new(Semaphore::new(0)));
        let manager = builder(&two_claims).concurrency(5).on("h", {
            let (runs, go) = (runs.clone(), Arc::clone(&go));
            move |_: Delivered<Job>| {
                let (inside, go) = (runs.enter(), Arc::clone(&go));
                async move { let _inside = inside; go.acquire().await.unwrap().forget(); Handled::Success }
            }
        }).build().unwrap();
        let events = (0..ALL).map(|number| Job { number }.to_new().unwrap()).collect();
        assert!(queue.publish_many(events).await.iter().all(Result::is_ok));
        let running = run(&manager);
        eventually("as many run as are allowed", || async { runs.started() == 5 }).await;
        let answers = store.claim.hold_answers();
        let before = store.claim.done.load(Ordering::SeqCst);
        for claims in 1..=2 {
            go.add_permits(1);
            eventually("a slot is claimed", || async { store.claim.done.load(Ordering::SeqCst) == before + claims }).await;
        }
        store.claim.work();
        answers.add_permits(2);
        eventually("the free slots are used", || async { runs.started() == 7 }).await;
        go.add_permits(ALL as usize);
        eventually("all are done", || async { queue.depth().await.unwrap().total() == 0 }).await;
        assert_eq!(store.claim.most.load(Ordering::SeqCst), 2, "two claims ran at once");
        assert_eq!((runs.started(), runs.most()), (ALL as usize, 5));
        manager.shutdown();
        soon("the loop ends", running).await.unwrap().unwrap();
    }

    async fn the_bus_keeps_the_lease_of_a_long_handler(place) {
        let queue = place.open().await;
        let bus = EventBus::new(queue.clone()).unwrap().abandoned_after(LEASE).unwrap();
        let (runs, go) = (Runs::default(), Arc::new(Semaphore::new(0)));
        let worker = bus.worker(bus_router(&runs, &go)).unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(async move { worker.grace(Duration::MAX).run(async { let _ = stopped.await; }).await });
        let id = publish(&queue, 1).await;
        eventually("it starts", || async { runs.started() == 1 }).await;
        is_kept(&queue, id, LEASE).await;
        stop.send(()).unwrap();
        is_kept(&queue, id, LEASE / 2).await;
        go.add_permits(1);
        soon("the loop ends", running).await.unwrap();
        assert_eq!(end_of(&queue, id).await, Some(End::Completed));
        assert_eq!((runs.started(), view(&queue, id).await.attempts), (1, 1));
    }

    async fn the_bus_cuts_a_handler_off_before_its_lease_ends(place) {
        let queue = place.open().await;
        let (store, cut_off) = Hindered::open(&queue, |builder| builder).await;
        let bus = EventBus::new(cut_off).unwrap().abandoned_after(LEASE).unwrap();
        let (runs, never) = (Runs::default(), Arc::new(Semaphore::new(0)));
        let worker = bus.worker(bus_router(&runs, &never)).unwrap();
        let running = tokio::spawn(async move { worker.run(std::future::pending()).await });
        let id = publish(&queue, 1).await;
        eventually("it starts", || async { runs.started() == 1 }).await;
        store.extend.fail();
        store.requeue.fail();
        store.claim.fail();
        taken_over_in_time(&queue, id, &runs).await;
        running.abort();
    }

    async fn the_bus_gives_back_what_a_claim_gets_after_its_shutdown(place) {
        let queue = place.open().await;
        let (store, slow) = Hindered::open(&queue, |builder| builder).await;
        let bus = EventBus::new(slow).unwrap();
        let (runs, go) = (Runs::default(), Arc::new(Semaphore::new(0)));
        let worker = bus.worker(bus_router(&runs, &go)).unwrap();
        let id = publish(&queue, 1).await;
        let answer = store.claim.hold_answers();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(async move { worker.run(async { let _ = stopped.await; }).await });
        eventually("it is claimed", || async { leased_until(&queue, id).await.is_some() }).await;
        stop.send(()).unwrap();
        crate::support::yields(100).await;
        answer.add_permits(1);
        soon("the loop ends", running).await.unwrap();
        let back = view(&queue, id).await;
        assert_eq!((back.phase, back.attempts), (EntryPhase::Waiting { due: None }, 0), "nothing is left behind");
        assert_eq!(runs.started(), 0);
    }
}

fn bus_router(runs: &Runs, go: &Arc<Semaphore>) -> Router {
    let (runs, go) = (runs.clone(), Arc::clone(go));
    Router::new().on("job", move |_: Job| {
        let (inside, go) = (runs.enter(), Arc::clone(&go));
        async move {
            let _inside = inside;
            go.acquire().await.map_err(|closed| closed.to_string())?.forget();
            Ok::<_, String>(())
        }
    })
}
