//! The cost of a snapshot that another connection holds open: vacuum cannot remove rows that died since it was taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate::EventQueue;

use super::{Bench, known};
use crate::report::Measured;
use crate::runner::{Pair, at_once, progress, rate, short};
use crate::scale::{BATCH, CALLERS, PAYLOAD};
use crate::{Result, tide};

const NAME: &str = "postgres_held_snapshot";
/// Slices of a run with a rate each, which show a gradual slowdown.
const SLICES: u32 = 10;

/// Runs once without and once with a held snapshot. The sides cannot take turns, since dead rows accumulate.
///
/// # Errors
/// When a database call fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    if !bench.wanted.has(NAME) {
        return Ok(Vec::new());
    }
    let (without, calm) = throughput(bench, false).await?;
    progress(&format!("{NAME} without: {}", short(without)));
    let (with, held) = throughput(bench, true).await?;
    progress(&format!("{NAME} with: {}", short(with)));
    let outcome = Measured::beside(known(NAME)?, Pair { ours: vec![with], baseline: vec![without] });
    let (calm, held) = (slice_rates(&calm), slice_rates(&held));
    Ok(vec![outcome.note(format!("events/s by tenths of the run, without: {calm}; with: {held}"))])
}

fn slice_rates(slices: &[f64]) -> String {
    slices.iter().map(|slice| short(*slice)).collect::<Vec<_>>().join(" ")
}

/// Publishes, claims and finalises for the length of a run; returns events per second of the whole and of each slice.
async fn throughput(bench: &Bench, held: bool) -> Result<(f64, Vec<f64>)> {
    let database = bench.server()?.database().await?;
    let queue = EventQueue::open(&database.url).await?;
    tide::publish(&queue, &tide::event(PAYLOAD), BATCH).await?;
    tide::work_off(&queue, BATCH).await?;
    let holder = database.connect().await?;
    if held {
        holder.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class LIMIT 1").await?;
    }
    let ended = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let until = start + bench.scale.held;
    let workers = (0..CALLERS).map(|_| cycle(queue.clone(), Arc::clone(&ended), until));
    let (worked, slices) = tokio::join!(at_once(workers), watch(&ended, start, bench.scale.held / SLICES));
    worked?;
    let total = rate(ended.load(Ordering::Relaxed), start.elapsed());
    if held {
        // Fails if the snapshot was lost during the run, which makes the result invalid.
        holder.batch_execute("SELECT 1; ROLLBACK").await?;
    }
    queue.close().await;
    Ok((total, slices))
}

async fn cycle(queue: EventQueue, ended: Arc<AtomicUsize>, until: Instant) -> Result<()> {
    let event = tide::event(PAYLOAD);
    while Instant::now() < until {
        tide::publish(&queue, &event, BATCH).await?;
        ended.fetch_add(tide::cycle_once(&queue).await?, Ordering::Relaxed);
    }
    Ok(())
}

/// Events per second of each slice.
async fn watch(ended: &AtomicUsize, start: Instant, slice: Duration) -> Vec<f64> {
    let mut slices = Vec::new();
    let (mut before, mut since) = (0, start);
    for index in 1..=SLICES {
        tokio::time::sleep_until((start + slice * index).into()).await;
        let (now, count) = (Instant::now(), ended.load(Ordering::Relaxed));
        slices.push(rate(count - before, now - since));
        (before, since) = (count, now);
    }
    slices
}
