//! The load of a soak: a publisher at a steady rate, workers that retry or fail some events, a task that redrives dead
//! letters, and retention.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate::{DeadLetterFilter, EventQueue, NewEvent, QueuedEvent, Retention};

use crate::Result;

const WORKERS: usize = 4;
const BATCH: usize = 50;
/// The interval between publishes: a few events at a time, as applications do.
const TICK: Duration = Duration::from_millis(50);
/// The load starts with this multiple of the rate for this long, so that connections, caches and the allocator have the
/// size of a busy minute from the start.
const BURST: (u32, Duration) = (5, Duration::from_secs(30));
const REDRIVE_EVERY: Duration = Duration::from_secs(5);
const RETAIN_EVERY: Duration = Duration::from_secs(5);
/// One in this many events is retried.
const RETRIED: u64 = 50;
/// One in this many events ends with an error and is redriven.
const FAILED: u64 = 20;

/// The tasks of the load, and what they count.
#[derive(Debug)]
pub(super) struct Load {
    queue: EventQueue,
    rate: u32,
    retention: Duration,
    begun: Instant,
    pub(super) stop: AtomicBool,
    pub(super) published: AtomicU64,
    pub(super) handled: AtomicU64,
    pub(super) redriven: AtomicU64,
    /// Entries that retention removed.
    pub(super) forgotten: AtomicU64,
    /// Milliseconds from publish to handled, of first attempts since the last sample.
    latencies: Mutex<Vec<f32>>,
    /// Milliseconds of each plain commit beside the load, since the last sample.
    commits: Mutex<Vec<f32>>,
    /// The error that stopped the load.
    failure: Mutex<Option<String>>,
}

impl Load {
    pub(super) fn new(queue: EventQueue, rate: u32, retention: Duration) -> Self {
        Self {
            queue,
            rate,
            retention,
            begun: Instant::now(),
            stop: AtomicBool::new(false),
            published: AtomicU64::new(0),
            handled: AtomicU64::new(0),
            redriven: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            latencies: Mutex::default(),
            commits: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs all tasks, and one beside them, until `stop` is set or one of them fails.
    pub(super) async fn run(self: Arc<Self>, beside: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(Arc::clone(&self).publish());
        for _ in 0..WORKERS {
            tasks.spawn(Arc::clone(&self).work());
        }
        tasks.spawn(Arc::clone(&self).redrive());
        tasks.spawn(Arc::clone(&self).retain());
        tasks.spawn(beside);
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended.map_err(Into::into).and_then(|ended| ended) {
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                self.stop.store(true, Ordering::Relaxed);
            }
        }
        self.check()
    }

    /// Fails with the error that stopped the load, if there was one.
    pub(super) fn check(&self) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.as_ref().map_or(Ok(()), |error| Err(format!("the load failed: {error}").into()))
    }

    /// Takes the latencies since the last call.
    pub(super) fn latencies(&self) -> Vec<f32> {
        std::mem::take(&mut *self.latencies.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records how long a plain commit took.
    pub(super) fn committed(&self, took: Duration) {
        self.commits.lock().unwrap_or_else(PoisonError::into_inner).push(took.as_secs_f32() * 1_000.0);
    }

    /// Takes the latencies of plain commits since the last call.
    pub(super) fn commits(&self) -> Vec<f32> {
        std::mem::take(&mut *self.commits.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn publish(self: Arc<Self>) -> Result<()> {
        let mut ticks = tokio::time::interval(TICK);
        let mut due = 0.0;
        let mut number = 0_u64;
        while !self.stopped() {
            ticks.tick().await;
            let times = if self.begun.elapsed() < BURST.1 { BURST.0 } else { 1 };
            due += f64::from(self.rate * times) * TICK.as_secs_f64();
            let now = self.begun.elapsed().as_micros();
            let count = due as usize;
            due -= count as f64;
            let events = (0..count).map(|_| {
                number += 1;
                NewEvent::new(
                    "soak",
                    format!("{{\"at\":{now},\"number\":{number},\"filler\":\"{}\"}}", "x".repeat(200)),
                )
            });
            for answer in self.queue.publish_many(events.collect()).await {
                answer?;
                self.published.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    async fn work(self: Arc<Self>) -> Result<()> {
        while !self.stopped() {
            let events = self.queue.wait_many(BATCH, Duration::from_millis(500)).await?;
            let mut completed = Vec::new();
            for event in events {
                let Payload { at, number } = event.json()?;
                if event.generation == 1 && event.attempts == 1 {
                    let took = self.begun.elapsed().as_micros().saturating_sub(u128::from(at)) as f32 / 1_000.0;
                    self.latencies.lock().unwrap_or_else(PoisonError::into_inner).push(took);
                }
                match self.decide(&event, number) {
                    Decision::Complete => completed.push(event),
                    Decision::Retry => event.retry_after(Duration::from_millis(200), "not yet").await?,
                    Decision::Fail => drop(event.finalize(["on purpose"]).await?),
                }
                self.handled.fetch_add(1, Ordering::Relaxed);
            }
            for answer in self.queue.finalize_many(completed).await {
                answer?;
            }
        }
        Ok(())
    }

    /// Only first attempts of the first generation are retried or fail.
    fn decide(&self, event: &QueuedEvent, number: u64) -> Decision {
        if event.generation > 1 || event.attempts > 1 {
            Decision::Complete
        } else if number.is_multiple_of(FAILED) {
            Decision::Fail
        } else if number % RETRIED == 1 {
            Decision::Retry
        } else {
            Decision::Complete
        }
    }

    async fn redrive(self: Arc<Self>) -> Result<()> {
        while self.pause(REDRIVE_EVERY).await {
            let redriven = self.queue.redrive_all(DeadLetterFilter::new()).await?;
            self.redriven.fetch_add(redriven, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn retain(self: Arc<Self>) -> Result<()> {
        let retention = Retention {
            audit: Some(self.retention),
            log: Some(self.retention),
            dead_letters: Some(self.retention),
            batch: 500,
            ..Retention::default()
        };
        while self.pause(RETAIN_EVERY).await {
            let done = self.queue.retain_all(retention, Duration::from_millis(5)).await?;
            self.forgotten.fetch_add(done.entries, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sleeps, but returns soon after `stop` is set; true if the load goes on.
    async fn pause(&self, length: Duration) -> bool {
        let until = Instant::now() + length;
        while Instant::now() < until && !self.stopped() {
            tokio::time::sleep(TICK).await;
        }
        !self.stopped()
    }
}

enum Decision {
    Complete,
    Retry,
    Fail,
}

#[derive(serde::Deserialize)]
struct Payload {
    /// When the event was published, in microseconds since the load began.
    at: u64,
    number: u64,
}
