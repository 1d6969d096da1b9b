//! Schedules through the library: several schedulers at once, clocks that jump, bad input.

use std::time::Duration;

use tidegate::testing::TestQueue;
use tidegate::{
    Clock, ErrorKind, EventQueue, ManualClock, MissedTicks, NewEvent, QueueName, Schedule, Scheduler, Timestamp,
};
use tokio::sync::watch;

use crate::databases::{Place, on_each_database};
use crate::support::{eventually, soon};

const START: i64 = 1_800_000_000;

fn every_ten(name: &str) -> Schedule {
    Schedule::new(name, "*/10 * * * * *", NewEvent::new("tick", format!("\"{name}\"")))
}

fn second(seconds: i64) -> Timestamp {
    Timestamp::from_second(START + seconds).unwrap()
}

async fn open(place: &Place, clock: &ManualClock) -> EventQueue {
    place.open_with(|builder| builder.clock(Clock::Manual(clock.clone()))).await
}

/// The moments of the ticks in the queue, in order of publication.
async fn moments(queue: &EventQueue) -> Vec<Timestamp> {
    let held = queue.poll_many(10_000).await.unwrap();
    let moments = held.iter().map(|event| event.fact.time.unwrap()).collect();
    queue.finalize_many(held).await;
    moments
}

/// Schedulers that run until they are told to stop.
struct Running {
    stop: watch::Sender<bool>,
    tasks: tokio::task::JoinSet<()>,
}

impl Running {
    fn start(queues: &[EventQueue], reread: Duration) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = tokio::task::JoinSet::new();
        for queue in queues {
            let scheduler = Scheduler::new(queue.clone()).reread_every(reread);
            let mut stopped = stopped.clone();
            tasks.spawn(async move {
                scheduler.run(async move { drop(stopped.wait_for(|stop| *stop).await) }).await;
            });
        }
        Self { stop, tasks }
    }

    async fn stop(mut self) {
        self.stop.send(true).unwrap();
        while let Some(done) = soon("a scheduler stops", self.tasks.join_next()).await {
            done.unwrap();
        }
    }
}

/// The variable that tells a copy of this test binary to run the schedules of a database, by its address.
const PROCESS_OF: &str = "TIDEGATE_TEST_SCHEDULER_OF";

/// Not a test by itself: what the processes run that [`start_process`] starts. It ends when its standard input does.
#[tokio::test]
async fn a_process_that_runs_schedules() {
    let Ok(address) = std::env::var(PROCESS_OF) else { return };
    let queue = EventQueue::open(address).await.unwrap();
    let told = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    Scheduler::new(queue.clone()).run(async { drop(told.await) }).await;
    queue.close().await;
}

fn start_process(place: &Place) -> std::process::Child {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "schedule::a_process_that_runs_schedules", "--nocapture"])
        .env(PROCESS_OF, place.address())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

on_each_database! {
    async fn four_processes_of_which_some_are_killed(place) {
        let queue = place.open().await;
        let schedules = queue.schedules();
        let mut firsts = Vec::new();
        for name in ["a", "b"] {
            let every_second = Schedule::new(name, "* * * * * *", NewEvent::new(name, "{}")).missed(MissedTicks::All);
            firsts.push((name, schedules.put(every_second).await.unwrap().next_at));
        }
        let mut processes: Vec<_> = (0..4).map(|_| start_process(place)).collect();
        for killed in 0..3_u64 {
            eventually("ticks pass", || async { schedules.get("a").await.unwrap().unwrap().ticks > killed }).await;
            let mut victim = std::mem::replace(&mut processes[killed as usize], start_process(place));
            victim.kill().unwrap();
            victim.wait().unwrap();
        }
        eventually("ticks pass", || async { schedules.get("b").await.unwrap().unwrap().ticks >= 4 }).await;
        for mut process in processes {
            drop(process.stdin.take());
            assert!(tokio::task::spawn_blocking(move || process.wait()).await.unwrap().unwrap().success());
        }
        for (name, first) in firsts {
            let held = queue.consumer().types([name]).unwrap().poll_many(1_000).await.unwrap();
            let seen: Vec<Timestamp> = held.iter().map(|event| event.fact.time.unwrap()).collect();
            let expected: Vec<_> = (0..).map(|tick| first + Duration::from_secs(tick)).take(seen.len()).collect();
            assert_eq!(seen, expected, "each tick once, in order");
            assert_eq!(schedules.get(name).await.unwrap().unwrap().ticks as usize, seen.len());
            queue.finalize_many(held).await;
        }
        queue.close().await;
    }

    async fn four_schedulers_publish_each_tick_once(place) {
        let clock = ManualClock::at(second(0));
        let mut queues = Vec::new();
        for _ in 0..4 {
            queues.push(open(place, &clock).await);
        }
        let schedules = queues[0].schedules();
        schedules.put(every_ten("all").missed(MissedTicks::All)).await.unwrap();
        let running = Running::start(&queues, Duration::from_millis(2));
        // Steps of all sizes; each is seen before the next, so that only the schedulers race.
        for step in [10, 10, 1, 9, 35, 5, 300, 10, 2, 8, 10, 10] {
            clock.advance(Duration::from_secs(step));
            let now = clock.now();
            eventually("they catch up", || async { schedules.get("all").await.unwrap().unwrap().next_at > now }).await;
        }
        running.stop().await;
        let last = clock.now().as_second() - START;
        let mut seen = moments(&queues[1]).await;
        seen.sort_unstable();
        assert_eq!(seen, (1..=last / 10).map(|tick| second(tick * 10)).collect::<Vec<_>>());
        for queue in queues {
            queue.close().await;
        }
    }

    async fn four_schedulers_on_database_time(place) {
        let mut queues = Vec::new();
        for _ in 0..4 {
            queues.push(place.open().await);
        }
        let every_second = Schedule::new("s", "* * * * * *", NewEvent::new("tick", "{}")).missed(MissedTicks::All);
        let schedules = queues[0].schedules();
        let running = Running::start(&queues, Duration::from_millis(200));
        // Put while they run: they find it when they read the schedules again.
        let first = schedules.put(every_second).await.unwrap().next_at;
        eventually("three ticks pass", || async { schedules.get("s").await.unwrap().unwrap().ticks >= 3 }).await;
        running.stop().await;
        let seen = moments(&queues[3]).await;
        let expected: Vec<_> = (0..).map(|tick| first + Duration::from_secs(tick)).take(seen.len()).collect();
        assert_eq!(seen, expected);
        assert_eq!(schedules.get("s").await.unwrap().unwrap().ticks as usize, seen.len());
        for queue in queues {
            queue.close().await;
        }
    }

    async fn a_tick_wakes_consumers(place) {
        let clock = ManualClock::at(second(0));
        let (queue, other) = (open(place, &clock).await, open(place, &clock).await);
        queue.schedules().put(every_ten("a")).await.unwrap();
        let waiters = [&queue, &other].map(|queue| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.next(Duration::from_secs(3600)).await.unwrap().unwrap().complete().await.unwrap() })
        });
        for _ in 0..2 {
            clock.advance(Duration::from_secs(10));
            assert_eq!(Scheduler::new(queue.clone()).run_due().await.unwrap(), 1);
        }
        for waiter in waiters {
            soon("a tick arrives", waiter).await.unwrap();
        }
        queue.close().await;
        other.close().await;
    }

    async fn one_that_fails_holds_up_no_other(place) {
        let clock = ManualClock::at(second(0));
        let queue = open(place, &clock).await;
        let full = queue.named("full").await.unwrap();
        full.set_depth_limit(Some(1)).await.unwrap();
        let (first, last) = (full.schedules(), queue.schedules());
        first.put(every_ten("a").missed(MissedTicks::All)).await.unwrap();
        last.put(every_ten("z").missed(MissedTicks::All)).await.unwrap();
        clock.advance(Duration::from_secs(20));
        let error = Scheduler::new(queue.clone()).run_due().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert_eq!(moments(&queue).await, [second(10), second(20)]);
        let running = Running::start(std::slice::from_ref(&queue), Duration::from_millis(2));
        clock.advance(Duration::from_secs(10));
        eventually("the other goes on", || async { last.get("z").await.unwrap().unwrap().ticks == 3 }).await;
        full.set_depth_limit(None).await.unwrap();
        eventually("nothing was lost", || async { first.get("a").await.unwrap().unwrap().ticks == 3 }).await;
        running.stop().await;
        assert_eq!(moments(&full).await, [second(10), second(20), second(30)]);
        queue.close().await;
    }

    async fn put_list_pause_delete(place) {
        let queue = place.open().await;
        let other = queue.named("other").await.unwrap();
        let schedules = other.schedules();
        let view = schedules.put(Schedule::new("daily", "@daily", NewEvent::new("t", "{}")).timezone("Asia/Tokyo")).await.unwrap();
        assert_eq!((view.spec.event.queue.name(), view.spec.timezone.as_str()), ("other", "Asia/Tokyo"));
        assert_eq!(view.next_at.as_second() % 86_400, 15 * 3_600, "midnight in Tokyo");
        assert_eq!(queue.schedules().list().await.unwrap(), std::slice::from_ref(&view));
        assert!(schedules.pause("daily").await.unwrap().paused);
        assert_eq!(schedules.resume("daily").await.unwrap().next_at, view.next_at);
        assert!(schedules.delete("daily").await.unwrap());
        assert!(!schedules.delete("daily").await.unwrap());
        assert_eq!(schedules.pause("daily").await.unwrap_err().kind(), ErrorKind::NotFound);
        queue.close().await;
    }

    async fn bad_input_is_refused_clearly(place) {
        let queue = place.open().await;
        let schedules = queue.schedules();
        let mut nowhere = NewEvent::new("t", "{}");
        nowhere.queue = QueueName::new("nowhere").unwrap();
        let good = || NewEvent::new("t", "{}");
        let cases = [
            (Schedule::new("a", "every day", good()), ErrorKind::Invalid, "2 fields"),
            (Schedule::new("a", "0 25 * * *", good()), ErrorKind::Invalid, "hour"),
            (Schedule::new("a", "0 0 31 2 *", good()), ErrorKind::Invalid, "no such day"),
            (Schedule::new("a", "@daily", good()).timezone("Berlin"), ErrorKind::Invalid, "IANA"),
            (Schedule::new("", "@daily", good()), ErrorKind::Invalid, "schedule name"),
            (Schedule::new("a", "@daily", NewEvent::new("", "{}")), ErrorKind::Invalid, "event type"),
            (Schedule::new("a", "@daily", nowhere), ErrorKind::NotFound, "nowhere"),
        ];
        for (bad, kind, expected) in cases {
            let error = schedules.put(bad).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert!(schedules.list().await.unwrap().is_empty());
        queue.close().await;
    }

    async fn closing_the_queue_ends_the_scheduler(place) {
        let queue = place.open().await;
        let running = tokio::spawn({
            let scheduler = Scheduler::new(queue.clone()).reread_every(Duration::from_millis(2));
            async move { scheduler.run(std::future::pending()).await }
        });
        queue.close().await;
        soon("it ends", running).await.unwrap();
    }
}

#[tokio::test]
async fn the_test_kit_runs_schedules() {
    let queue = TestQueue::new().await;
    let scheduler = Scheduler::new(queue.handle());
    queue.schedules().put(every_ten("all").missed(MissedTicks::All)).await.unwrap();
    queue.schedules().put(every_ten("once")).await.unwrap();
    queue.advance(Duration::from_secs(25_000));
    assert_eq!(scheduler.run_due().await.unwrap(), 2_501, "more than one round");
    assert_eq!(scheduler.run_due().await.unwrap(), 0);
    let names = queue.assert_published::<String>("tick").await;
    assert_eq!(names.iter().filter(|name| *name == "once").count(), 1);
    queue.close().await;
}
