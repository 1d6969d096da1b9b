//! The load of a soak: publishers at a steady rate, workers who now and then fail, somebody who redrives what ended badly,
//! and retention.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate::{DeadLetterFilter, EventQueue, NewEvent, QueuedEvent, Retention};

use super::figures::Database;
use super::plain;
use crate::Result;

const WORKERS: usize = 4;
const BATCH: usize = 50;
/// How often events are published: a few at a time, as applications do.
const TICK: Duration = Duration::from_millis(50);
/// It begins with a rush, so that connections, caches and the allocator have the size of a bad minute from the start.
const RUSH: (u32, Duration) = (5, Duration::from_secs(30));
const REDRIVE_EVERY: Duration = Duration::from_secs(5);
const RETAIN_EVERY: Duration = Duration::from_secs(5);
/// One of so many is tried again; one of so many ends badly, and is redriven.
const RETRIED: u64 = 50;
const FAILED: u64 = 20;

/// What runs, and what it counts.
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
    pub(super) forgotten: AtomicU64,
    /// Milliseconds from publish to handled since the last sample, of first attempts.
    latencies: Mutex<Vec<f32>>,
    /// Milliseconds of each plain commit beside it since then.
    commits: Mutex<Vec<f32>>,
    broken: Mutex<Option<String>>,
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
            broken: Mutex::default(),
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs everything until told to stop.
    pub(super) async fn run(self: Arc<Self>, database: Arc<Database>) -> Result<()> {
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(Arc::clone(&self).publish());
        for _ in 0..WORKERS {
            tasks.spawn(Arc::clone(&self).work());
        }
        tasks.spawn(Arc::clone(&self).redrive());
        tasks.spawn(Arc::clone(&self).retain());
        tasks.spawn(plain::run(Arc::clone(&self), database));
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended.map_err(Into::into).and_then(|ended| ended) {
                *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                self.stop.store(true, Ordering::Relaxed);
            }
        }
        self.check()
    }

    /// Whether everything still runs.
    pub(super) fn check(&self) -> Result<()> {
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        broken.as_ref().map_or(Ok(()), |error| Err(format!("the load broke: {error}").into()))
    }

    /// Takes the latencies since the last call.
    pub(super) fn latencies(&self) -> Vec<f32> {
        std::mem::take(&mut *self.latencies.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes how long a plain commit took.
    pub(super) fn committed(&self, took: Duration) {
        self.commits.lock().unwrap_or_else(PoisonError::into_inner).push(took.as_secs_f32() * 1_000.0);
    }

    /// Takes what plain commits took since the last call.
    pub(super) fn commits(&self) -> Vec<f32> {
        std::mem::take(&mut *self.commits.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn publish(self: Arc<Self>) -> Result<()> {
        let mut ticks = tokio::time::interval(TICK);
        let mut due = 0.0;
        let mut number = 0_u64;
        while !self.stopped() {
            ticks.tick().await;
            let times = if self.begun.elapsed() < RUSH.1 { RUSH.0 } else { 1 };
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
            let mut good = Vec::new();
            for event in events {
                let Task { at, number } = event.json()?;
                if event.generation == 1 && event.attempts == 1 {
                    let took = self.begun.elapsed().as_micros().saturating_sub(u128::from(at)) as f32 / 1_000.0;
                    self.latencies.lock().unwrap_or_else(PoisonError::into_inner).push(took);
                }
                match self.verdict(&event, number) {
                    Verdict::Good => good.push(event),
                    Verdict::Again => event.retry_after(Duration::from_millis(200), "not yet").await?,
                    Verdict::Bad => drop(event.finalize(["on purpose"]).await?),
                }
                self.handled.fetch_add(1, Ordering::Relaxed);
            }
            for answer in self.queue.finalize_many(good).await {
                answer?;
            }
        }
        Ok(())
    }

    /// What comes again goes well.
    fn verdict(&self, event: &QueuedEvent, number: u64) -> Verdict {
        if event.generation > 1 || event.attempts > 1 {
            Verdict::Good
        } else if number.is_multiple_of(FAILED) {
            Verdict::Bad
        } else if number % RETRIED == 1 {
            Verdict::Again
        } else {
            Verdict::Good
        }
    }

    async fn redrive(self: Arc<Self>) -> Result<()> {
        while self.rest(REDRIVE_EVERY).await {
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
            from: None,
        };
        while self.rest(RETAIN_EVERY).await {
            let done = self.queue.retain_all(retention, Duration::from_millis(5)).await?;
            self.forgotten.fetch_add(done.entries, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sleeps, in pieces so that it hears when to stop. Whether to go on.
    async fn rest(&self, length: Duration) -> bool {
        let until = Instant::now() + length;
        while Instant::now() < until && !self.stopped() {
            tokio::time::sleep(TICK).await;
        }
        !self.stopped()
    }
}

enum Verdict {
    Good,
    Again,
    Bad,
}

/// The payload.
#[derive(serde::Deserialize)]
struct Task {
    at: u64,
    number: u64,
}
