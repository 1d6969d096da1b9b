//! Bytes of write-ahead log per event, from publish to end.

use tidegate::EventQueue;
use tokio_postgres::Client;

use super::{Bench, known};
use crate::report::Measured;
use crate::runner::{median, progress, short};
use crate::scale::{BATCH, PAYLOAD};
use crate::{Result, tide};

const NAME: &str = "postgres_wal_bytes_per_event";

/// Bytes per event by step.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    publish: f64,
    claim: f64,
    end: f64,
}

/// Measures on a fresh database several times.
///
/// # Errors
/// When a database call fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    if !bench.wanted.has(NAME) {
        return Ok(Vec::new());
    }
    let mut runs = Vec::new();
    for run in 1..=bench.scale.runs {
        let parts = measure(bench).await?;
        progress(&format!("{NAME} {run}/{}: {}", bench.scale.runs, short(total(&parts))));
        runs.push(parts);
    }
    let middle = |part: fn(&Parts) -> f64| short(median(&runs.iter().map(part).collect::<Vec<_>>()));
    let note = format!(
        "of these publish {}, claim {}, end {}",
        middle(|parts| parts.publish),
        middle(|parts| parts.claim),
        middle(|parts| parts.end)
    );
    Ok(vec![Measured::absolute(known(NAME)?, runs.iter().map(total).collect()).note(note)])
}

fn total(parts: &Parts) -> f64 {
    parts.publish + parts.claim + parts.end
}

async fn measure(bench: &Bench) -> Result<Parts> {
    let database = bench.server()?.database().await?;
    let queue = EventQueue::open(&database.url).await?;
    let event = tide::event(PAYLOAD);
    // Create tables, lanes and plans before counting starts.
    tide::publish(&queue, &event, BATCH).await?;
    tide::work_off(&queue, BATCH).await?;
    bench.server()?.checkpoint().await?;
    let client = database.connect().await?;
    let events = bench.scale.wal / BATCH * BATCH;
    let mut parts = Parts::default();
    let mut at = position(&client).await?;
    tide::fill(&queue, &event, events).await?;
    parts.publish = step(&client, &mut at).await?;
    let mut ended = 0;
    while ended < events {
        let claimed = queue.poll_many(BATCH).await?;
        if claimed.is_empty() {
            return Err(format!("a claim returned nothing after {ended} of {events} events").into());
        }
        ended += claimed.len();
        parts.claim += step(&client, &mut at).await?;
        for answer in queue.finalize_many(claimed).await {
            answer?;
        }
        parts.end += step(&client, &mut at).await?;
    }
    queue.close().await;
    let each = events as f64;
    Ok(Parts { publish: parts.publish / each, claim: parts.claim / each, end: parts.end / each })
}

/// The end of the write-ahead log, in bytes.
///
/// # Errors
/// When the database cannot be asked.
pub(super) async fn position(client: &Client) -> Result<f64> {
    let end = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8";
    Ok(client.query_one(end, &[]).await?.get(0))
}

/// The bytes that were added to the log since `at`, which moves to its end.
///
/// # Errors
/// When the database cannot be asked.
pub(super) async fn step(client: &Client, at: &mut f64) -> Result<f64> {
    let now = position(client).await?;
    Ok(now - std::mem::replace(at, now))
}
