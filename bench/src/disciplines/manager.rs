//! The manager: how fast it works off no-op events with one handler and with two, and how soon a handler starts.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate::{Delivered, Event, EventManager, EventQueue, Handled};
use tokio::sync::{Notify, mpsc};

use super::{Bench, known};
use crate::pg::Database;
use crate::report::Outcome;
use crate::runner::{interleave, median, progress, rate, short};
use crate::scale::{BATCH, PAYLOAD};
use crate::{Result, raw, tide};

const POSTGRES: &str = "postgres_manager_drain";
const TWO: &str = "postgres_manager_two_handlers";
const SQLITE: &str = "sqlite_manager_cycle";
const POSTGRES_LATENCY: [&str; 2] = ["postgres_manager_latency_p50", "postgres_manager_latency_p99"];
const SQLITE_LATENCY: [&str; 2] = ["sqlite_manager_latency_p50", "sqlite_manager_latency_p99"];
/// Events in hand at once: enough for a few batches on their way.
const IN_HAND: usize = 4 * BATCH;
/// How often an event is published where latency is measured.
const EVERY: Duration = Duration::from_millis(50);

/// What every payload of the benchmarks holds.
#[derive(Debug, serde::Deserialize)]
struct Order {
    order: u64,
}

impl Event for Order {
    const TYPE: &'static str = tide::TYPE;
}

/// Runs what is wanted of this family.
///
/// # Errors
/// When a database refuses.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    let (runs, scale) = (bench.scale.runs, bench.scale);
    if bench.wanted.has(POSTGRES) {
        let server = bench.server()?;
        let ours = async || drain(&server.database().await?, scale.drain, 1).await;
        let beside = async || raw::postgres::drain(&server.database().await?, scale.drain).await;
        outcomes.push(Outcome::beside(known(POSTGRES)?, interleave(POSTGRES, runs, ours, beside).await?));
    }
    if bench.wanted.has(TWO) {
        let server = bench.server()?;
        let two = async || drain(&server.database().await?, scale.drain, 2).await;
        let one = async || drain(&server.database().await?, scale.drain, 1).await;
        outcomes.push(Outcome::beside(known(TWO)?, interleave(TWO, runs, two, one).await?));
    }
    if bench.wanted.has(SQLITE) {
        let ours = async || cycle(bench.sqlite_folder()?.path(), scale.cycle).await;
        let beside = async || {
            let (folder, events) = (bench.sqlite_folder()?, scale.cycle);
            tokio::task::spawn_blocking(move || raw::sqlite::cycle(&folder.path().join("raw.db"), events)).await?
        };
        outcomes.push(Outcome::beside(known(SQLITE)?, interleave(SQLITE, runs, ours, beside).await?));
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

/// A manager whose handlers do nothing but read their event; it says when the last event was handled.
fn no_op(queue: &EventQueue, handlers: usize, events: usize) -> Result<(EventManager, Arc<Notify>)> {
    let (done, finished) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let mut builder = EventManager::builder(queue).concurrency(IN_HAND);
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

/// Fills a queue and has one manager work it off; answers events per second.
async fn drain(database: &Database, events: usize, handlers: usize) -> Result<f64> {
    let queue = EventQueue::open(&database.url).await?;
    tide::fill(&queue, &tide::event(PAYLOAD), events).await?;
    database.settle().await?;
    let (manager, finished) = no_op(&queue, handlers, events)?;
    let start = Instant::now();
    let running = tokio::spawn({
        let manager = manager.clone();
        async move { manager.run_process_loop().await }
    });
    finished.notified().await;
    // A shutdown waits until what was handled has also ended.
    manager.shutdown();
    running.await??;
    let took = start.elapsed();
    tide::expect_ended(&queue, events).await?;
    queue.close().await;
    Ok(rate(events, took))
}

/// Publishes batch by batch while one manager works them off; answers events per second of the whole.
async fn cycle(folder: &Path, events: usize) -> Result<f64> {
    let queue = open_sqlite(folder).await?;
    let (manager, finished) = no_op(&queue, 1, events)?;
    let event = tide::event(PAYLOAD);
    let start = Instant::now();
    let running = tokio::spawn({
        let manager = manager.clone();
        async move { manager.run_process_loop().await }
    });
    for _ in 0..events / BATCH {
        tide::publish(&queue, &event, BATCH).await?;
    }
    finished.notified().await;
    manager.shutdown();
    running.await??;
    let took = start.elapsed();
    tide::expect_ended(&queue, events).await?;
    queue.close().await;
    Ok(rate(events, took))
}

/// From the call of publish to the start of the handler, in milliseconds: the middle and the 99th of a hundred.
async fn latencies<K>(
    bench: &Bench,
    names: [&'static str; 2],
    open: impl AsyncFn() -> Result<(EventQueue, K)>,
) -> Result<Vec<Outcome>> {
    let (mut middles, mut tails) = (Vec::new(), Vec::new());
    for run in 1..=bench.scale.runs {
        let (queue, kept) = open().await?;
        let mut took = latency(&queue, bench.scale.latency).await?;
        queue.close().await;
        drop(kept);
        took.sort_by(f64::total_cmp);
        middles.push(median(&took));
        tails.push(took[took.len() * 99 / 100]);
        progress(&format!(
            "{} {run}/{}: p50 {} ms, p99 {} ms",
            names[0],
            bench.scale.runs,
            short(median(&middles)),
            short(median(&tails))
        ));
    }
    Ok(vec![Outcome::absolute(known(names[0])?, middles), Outcome::absolute(known(names[1])?, tails)])
}

async fn latency(queue: &EventQueue, events: usize) -> Result<Vec<f64>> {
    let (sender, mut started) = mpsc::unbounded_channel();
    let manager = EventManager::builder(queue)
        .on("stamp", move |_: Delivered<Order>| {
            // The other end lives until all have come.
            let _ = sender.send(Instant::now());
            std::future::ready(Handled::Success)
        })
        .build()?;
    let running = tokio::spawn({
        let manager = manager.clone();
        async move { manager.run_process_loop().await }
    });
    let event = tide::event(PAYLOAD);
    // The first pays for plans, lanes and connections.
    let mut took = Vec::with_capacity(events);
    let mut ticks = tokio::time::interval(EVERY);
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
