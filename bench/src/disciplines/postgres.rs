//! Throughput on PostgreSQL: draining, publishing in batches, publishing one by one.

use std::time::{Duration, Instant};

use tidegate::EventQueue;

use super::{Bench, known};
use crate::pg::Database;
use crate::report::Measured;
use crate::runner::{at_once, interleave, rate};
use crate::scale::{BATCH, CALLERS, PAYLOAD, PUBLISHERS};
use crate::{Result, raw, tide};

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database call fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    let (runs, scale) = (bench.scale.runs, bench.scale);
    for name in ["postgres_drain", "postgres_publish_many", "postgres_single_publish"] {
        if !bench.wanted.has(name) {
            continue;
        }
        let server = bench.server()?;
        let pair = match name {
            "postgres_drain" => {
                let ours = async || drain(&server.database().await?, scale.drain).await;
                let baseline = async || raw::postgres::drain(&server.database().await?, scale.drain).await;
                interleave(name, runs, ours, baseline).await?
            }
            "postgres_publish_many" => {
                let ours = async || publish_many(&server.database().await?, scale.publish_many).await;
                let baseline =
                    async || raw::postgres::publish_many(&server.database().await?, scale.publish_many).await;
                interleave(name, runs, ours, baseline).await?
            }
            _ => {
                let ours = async || publish_single(&server.database().await?, scale.publish_single).await;
                let baseline =
                    async || raw::postgres::publish_single(&server.database().await?, scale.publish_single).await;
                interleave(name, runs, ours, baseline).await?
            }
        };
        outcomes.push(Measured::beside(known(name)?, pair));
    }
    Ok(outcomes)
}

async fn drain(database: &Database, events: usize) -> Result<f64> {
    let queue = EventQueue::open(&database.url).await?;
    tide::fill(&queue, &tide::event(PAYLOAD), events).await?;
    database.vacuum().await?;
    let start = Instant::now();
    tide::work_off(&queue, events).await?;
    let took = start.elapsed();
    tide::expect_ended(&queue, events).await?;
    queue.close().await;
    Ok(rate(events, took))
}

async fn publish_many(database: &Database, events: usize) -> Result<f64> {
    let queue = EventQueue::open(&database.url).await?;
    // The first publish of a type creates its lane, which is not measured, like the creation of the baseline's tables.
    tide::publish(&queue, &tide::event(PAYLOAD), 1).await?;
    let events = events / (BATCH * CALLERS) * BATCH * CALLERS;
    let start = Instant::now();
    tide::fill(&queue, &tide::event(PAYLOAD), events).await?;
    let took = start.elapsed();
    queue.close().await;
    Ok(rate(events, took))
}

async fn publish_single(database: &Database, time: Duration) -> Result<f64> {
    let queue = EventQueue::open(&database.url).await?;
    tide::publish(&queue, &tide::event(PAYLOAD), 1).await?;
    let rate = publish_one_by_one(&queue, time).await?;
    queue.close().await;
    Ok(rate)
}

/// Many tasks publish one event after the other for this long; returns events per second.
///
/// # Errors
/// When a publish fails.
pub(super) async fn publish_one_by_one(queue: &EventQueue, time: Duration) -> Result<f64> {
    let before = queue.store().census().await?.events;
    let start = Instant::now();
    let tasks = (0..PUBLISHERS).map(|_| {
        let (queue, event) = (queue.clone(), tide::event(PAYLOAD));
        async move {
            while start.elapsed() < time {
                queue.publish(event.clone()).await?;
            }
            Ok(())
        }
    });
    at_once(tasks).await?;
    let took = start.elapsed();
    // Counted in the database, so that only committed events count.
    let published = queue.store().census().await?.events - before;
    Ok(rate(usize::try_from(published)?, took))
}
