//! Throughput on SQLite: the whole cycle in batches, and publishing one by one.

use std::path::Path;
use std::time::{Duration, Instant};

use tidegate::EventQueue;

use super::postgres::publish_one_by_one;
use super::{Bench, known};
use crate::report::Measured;
use crate::runner::{interleave, rate};
use crate::scale::{BATCH, PAYLOAD};
use crate::{Result, raw, tide};

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database call fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    let name = "sqlite_cycle";
    if bench.wanted.has(name) {
        let events = bench.scale.cycle;
        let ours = async || cycle(bench.sqlite_folder()?.path(), events).await;
        let baseline = async || blocking(bench, move |file| raw::sqlite::cycle(file, events)).await;
        let pair = interleave(name, bench.scale.runs, ours, baseline).await?;
        outcomes.push(Measured::beside(known(name)?, pair));
    }
    let name = "sqlite_single_publish";
    if bench.wanted.has(name) {
        let time = bench.scale.publish_single;
        let ours = async || publish_single(bench.sqlite_folder()?.path(), time).await;
        let baseline = async || blocking(bench, move |file| raw::sqlite::publish_single(file, time)).await;
        let pair = interleave(name, bench.scale.runs, ours, baseline).await?;
        outcomes.push(Measured::beside(known(name)?, pair));
    }
    Ok(outcomes)
}

/// Runs a baseline on a blocking thread with a fresh database file.
async fn blocking(bench: &Bench, work: impl FnOnce(&Path) -> Result<f64> + Send + 'static) -> Result<f64> {
    let folder = bench.sqlite_folder()?;
    tokio::task::spawn_blocking(move || work(&folder.path().join("raw.db"))).await?
}

async fn open(folder: &Path) -> Result<EventQueue> {
    Ok(EventQueue::open(folder.join("tidegate.db").to_string_lossy()).await?)
}

async fn cycle(folder: &Path, events: usize) -> Result<f64> {
    let queue = open(folder).await?;
    let event = tide::event(PAYLOAD);
    let batches = events / BATCH;
    let start = Instant::now();
    for _ in 0..batches {
        tide::publish(&queue, &event, BATCH).await?;
        let ended = tide::cycle_once(&queue).await?;
        if ended != BATCH {
            return Err(format!("a claim of {BATCH} returned {ended} entries").into());
        }
    }
    let took = start.elapsed();
    tide::expect_ended(&queue, batches * BATCH).await?;
    queue.close().await;
    Ok(rate(batches * BATCH, took))
}

async fn publish_single(folder: &Path, time: Duration) -> Result<f64> {
    let queue = open(folder).await?;
    let rate = publish_one_by_one(&queue, time).await?;
    queue.close().await;
    Ok(rate)
}
