//! Batches of ingest over HTTP, with one matching subscription, compared with raw SQL that writes the same rows.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tidegate::Backend;

use super::subscriptions::{Made, expect_stored, subscribe};
use super::{BACKENDS, Bench, Fresh, ingest, known};
use crate::http::Connection;
use crate::report::Measured;
use crate::runner::{at_once, interleave, rate};
use crate::scale::{CONNECTIONS, REQUEST};
use crate::served::Served;
use crate::{Result, raw};

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database or a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    for (prefix, backend) in BACKENDS {
        let name = format!("{prefix}_ingest_batch");
        if bench.wanted.has(&name) {
            let (ours, baseline) = (async || ours(bench, backend).await, async || baseline(bench, backend).await);
            outcomes.push(Measured::beside(known(&name)?, interleave(&name, bench.scale.runs, ours, baseline).await?));
        }
    }
    Ok(outcomes)
}

async fn baseline(bench: &Bench, backend: Backend) -> Result<f64> {
    let time = bench.scale.serve;
    match bench.fresh(backend).await? {
        Fresh::Postgres(database) => raw::postgres_ingest::batches(&database, time).await,
        Fresh::Sqlite(folder) => {
            let work = move || raw::sqlite_ingest::batches(&folder.path().join("raw.db"), time);
            tokio::task::spawn_blocking(work).await?
        }
    }
}

async fn ours(bench: &Bench, backend: Backend) -> Result<f64> {
    let database = bench.fresh(backend).await?;
    let address = database.address();
    subscribe(&address, 1, Made::Entries).await?;
    let served = Served::start(&address).await?;
    let (done, took) = under(served.address, bench.scale.serve).await?;
    served.stop().await?;
    expect_stored(&address, done, Made::Entries, done).await?;
    Ok(rate(done, took))
}

/// Sends batches on all connections; returns how many events were stored, and in what time.
async fn under(address: SocketAddr, time: Duration) -> Result<(usize, Duration)> {
    let mut connections = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        connections.push(Connection::open(address).await?);
    }
    let next = Arc::new(AtomicUsize::new(1));
    let start = Instant::now();
    at_once(connections.into_iter().map(|mut connection| {
        let next = Arc::clone(&next);
        async move {
            while start.elapsed() < time {
                let body = batch(next.fetch_add(REQUEST, Ordering::Relaxed))?;
                let answer = connection.expect(200, "POST", "/api/events/batch", &body).await?;
                let stored = answer.windows(13).filter(|part| *part == b"\"status\":201,").count();
                if stored != REQUEST {
                    return Err(format!("{stored} of {REQUEST} events were stored").into());
                }
            }
            Ok(())
        }
    }))
    .await?;
    Ok((next.load(Ordering::Relaxed) - 1, start.elapsed()))
}

/// Events as a careful publisher sends them, each with a deduplication id, a correlation id and a pair of context data.
fn batch(first: usize) -> Result<Vec<u8>> {
    let mut event = ingest::event()?;
    let mut events = Vec::with_capacity(REQUEST);
    for number in (first..).take(REQUEST) {
        event["subject"] = format!("order:{number}").into();
        event["deduplicationId"] = format!("order-{number}").into();
        event["correlationId"] = format!("request-{}", number / 10).into();
        event["contextData"] = json!([{ "key": "customer", "value": format!("customer-{}", number % 10_000) }]);
        events.push(serde_json::to_vec(&event)?);
    }
    Ok([b"{\"events\":[", &events.join(&b","[..])[..], b"]}"].concat())
}
