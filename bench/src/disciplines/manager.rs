//! The manager: how fast it works off events with one or two no-op handlers, and how soon a handler starts.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate::{Delivered, Event, EventManager, EventQueue, Handled};
use tokio::sync::{Notify, mpsc};

use super::{Bench, known};
use crate::pg::Database;
use crate::report::Measured;
use crate::runner::{interleave, median, p99, progress, rate, short};
use crate::scale::{BATCH, PAYLOAD};
use crate::{Result, raw, tide};

const POSTGRES: &str = "postgres_manager_drain";
const TWO: &str = "postgres_manager_two_handlers";
const SQLITE: &str = "sqlite_manager_cycle";
const POSTGRES_LATENCY: [&str; 2] = ["postgres_manager_latency_p50", "postgres_manager_latency_p99"];
const SQLITE_LATENCY: [&str; 2] = ["sqlite_manager_latency_p50", "sqlite_manager_latency_p99"];
/// Concurrency of the manager: enough for a few batches at once.
const CONCURRENCY: usize = 4 * BATCH;
/// The interval between publishes where latency is measured.
const INTERVAL: Duration = Duration::from_millis(50);

/// The part of every benchmark payload that handlers read.
#[derive(Debug, serde::Deserialize)]
struct Order {
    order: u64,
}

impl Event for Order {
    const TYPE: &'static str = tide::TYPE;
}

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database call fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    let (runs, scale) = (bench.scale.runs, bench.scale);
    if bench.wanted.has(POSTGRES) {
        let server = bench.server()?;
        let ours = async || drain(&server.database().await?, scale.drain, 1).await;
        let baseline = async || raw::postgres::drain(&server.database().await?, scale.drain).await;
        outcomes.push(Measured::beside(known(POSTGRES)?, interleave(POSTGRES, runs, ours, baseline).await?));
    }
    if bench.wanted.has(TWO) {
        let server = bench.server()?;
        let two = async || drain(&server.database().await?, scale.drain, 2).await;
        let one = async || drain(&server.database().await?, scale.drain, 1).await;
        outcomes.push(Measured::beside(known(TWO)?, interleave(TWO, runs, two, one).await?));
    }
    if bench.wanted.has(SQLITE) {
        let ours = async || cycle(bench.sqlite_folder()?.path(), scale.cycle).await;
        let baseline = async || {
            let (folder, events) = (bench.sqlite_folder()?, scale.cycle);
            tokio::task::spawn_blocking(move || raw::sqlite::cycle(&folder.path().join("raw.db"), events)).await?
        };
        outcomes.push(Measured::beside(known(SQLITE)?, interleave(SQLITE, runs, ours, baseline).await?));
    }
    if bench.wanted.has_any(&POSTGRES_LATENCY) {
        let open = async || {
            let database = bench.server()?.database().await?;
            Ok((EventQueue::open(&database.url).await?, database))
        };
        outcomes.extend(latencies(bench, POSTGRES_LATENCY, open).await?);
    }
    if bench.wanted.has_any(&SQLITE_LATENCY) {
        let open = async || {
            let folder = bench.sqlite_folder()?;
            Ok((open_sqlite(folder.path()).await?, folder))
        };
        outcomes.extend(latencies(bench, SQLITE_LATENCY, open).await?);
    }
    Ok(outcomes)
}

async fn open_sqlite(folder: &Path) -> Result<EventQueue> {
    Ok(EventQueue::open(folder.join("tidegate.db").to_string_lossy()).await?)
}

/// A manager whose handlers only read their event. The `Notify` is notified when the last event was handled.
fn no_op(queue: &EventQueue, handlers: usize, events: usize) -> Result<(EventManager, Arc<Notify>)> {
    let (done, finished) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let mut builder = EventManager::builder(queue).concurrency(CONCURRENCY);
    for number in 0..handlers {
        let (done, finished) = (Arc::clone(&done), Arc::clone(&finished));
        builder = builder.on(format!("no-op-{number}"), move |order: Delivered<Order>| {
            let last = done.fetch_add(1, Ordering::Relaxed) + 1 == events * handlers;
            if last && order.order > 0 {
                finished.notify_one();
            }
            std::future::ready(Handled::Success)
        });
    }
    Ok((builder.build()?, finished))
}

/// Fills a queue and has one manager work it off; returns events per second.
async fn drain(database: &Database, events: usize, handlers: usize) -> Result<f64> {
    let queue = EventQueue::open(&database.url).await?;
    tide::fill(&queue, &tide::event(PAYLOAD), events).await?;
    database.vacuum().await?;
    work_off(queue, handlers, events, async |_| Ok(())).await
}

/// Publishes batch by batch while one manager works them off; returns events per second of the whole.
async fn cycle(folder: &Path, events: usize) -> Result<f64> {
    let event = tide::event(PAYLOAD);
    let publish = async |queue: &EventQueue| {
        for _ in 0..events / BATCH {
            tide::publish(queue, &event, BATCH).await?;
        }
        Ok(())
    };
    work_off(open_sqlite(folder).await?, 1, events, publish).await
}

/// Runs one manager, publishes beside it, and waits until all events have ended; returns events per second.
async fn work_off(
    queue: EventQueue,
    handlers: usize,
    events: usize,
    publish: impl AsyncFnOnce(&EventQueue) -> Result<()>,
) -> Result<f64> {
    let (manager, finished) = no_op(&queue, handlers, events)?;
    let start = Instant::now();
    let running = tokio::spawn({
        let manager = manager.clone();
        async move { manager.run_process_loop().await }
    });
    publish(&queue).await?;
    finished.notified().await;
    // A shutdown waits until the handled entries have ended.
    manager.shutdown();
    running.await??;
    let took = start.elapsed();
    tide::expect_ended(&queue, events).await?;
    queue.close().await;
    Ok(rate(events, took))
}

/// Median and 99th percentile of the time from the call of publish to the start of the handler, in milliseconds.
async fn latencies<K>(
    bench: &Bench,
    names: [&'static str; 2],
    open: impl AsyncFn() -> Result<(EventQueue, K)>,
) -> Result<Vec<Measured>> {
    let (mut middles, mut tails) = (Vec::new(), Vec::new());
    for run in 1..=bench.scale.runs {
        let (queue, kept) = open().await?;
        let took = latency(&queue, bench.scale.latency).await?;
        queue.close().await;
        drop(kept);
        middles.push(median(&took));
        tails.push(p99(took).ok_or("no event was measured")?);
        progress(&format!(
            "{} {run}/{}: p50 {} ms, p99 {} ms",
            names[0],
            bench.scale.runs,
            short(median(&middles)),
            short(median(&tails))
        ));
    }
    Ok(vec![Measured::absolute(known(names[0])?, middles), Measured::absolute(known(names[1])?, tails)])
}

/// The latency of each event, in milliseconds.
async fn latency(queue: &EventQueue, events: usize) -> Result<Vec<f64>> {
    let (sender, mut started) = mpsc::unbounded_channel();
    let manager = EventManager::builder(queue)
        .on("stamp", move |_: Delivered<Order>| {
            // Fails only after the receiver was dropped, when all events were handled.
            let _ = sender.send(Instant::now());
            std::future::ready(Handled::Success)
        })
        .build()?;
    let running = tokio::spawn({
        let manager = manager.clone();
        async move { manager.run_process_loop().await }
    });
    let event = tide::event(PAYLOAD);
    // The first ten pay for plans, lanes and connections, and are not counted.
    let mut took = Vec::with_capacity(events);
    let mut ticks = tokio::time::interval(INTERVAL);
    for number in 0..events + 10 {
        ticks.tick().await;
        let published = Instant::now();
        queue.publish(event.clone()).await?;
        let at = tokio::time::timeout(Duration::from_secs(30), started.recv()).await?.ok_or("the manager stopped")?;
        if number >= 10 {
            took.push(at.duration_since(published).as_secs_f64() * 1e3);
        }
    }
    manager.shutdown();
    running.await??;
    Ok(took)
}
