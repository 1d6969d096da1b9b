//! One event that very many subscriptions ask for: how long its publish takes, and how long it holds up other publishes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use tidegate::Backend;
use tokio::task::JoinSet;

use super::subscriptions::{Made, expect_stored, subscribe};
use super::{BACKENDS, Bench, ingest, known};
use crate::Result;
use crate::http::Connection;
use crate::report::Measured;
use crate::runner::{median, p99, progress, short};
use crate::served::Served;

/// Connections that publish events which nobody subscribes to, and how long each pauses after an answer.
const OTHERS: usize = 8;
const PAUSE: Duration = Duration::from_millis(5);
/// The time between two events with many subscriptions.
const BETWEEN: Duration = Duration::from_millis(200);

/// When a request was sent and answered.
type Span = (Instant, Instant);

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database or a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    for (prefix, backend) in BACKENDS {
        for (suffix, made) in [("entries", Made::Entries), ("jobs", Made::Jobs)] {
            let name = format!("{prefix}_fan_out_{suffix}_p99");
            if bench.wanted.has(&name) {
                outcomes.push(measure(bench, &name, backend, made).await?);
            }
        }
    }
    Ok(outcomes)
}

/// The 99th percentile of the other publishes that took place beside an event with many subscriptions, at least in part.
async fn measure(bench: &Bench, name: &str, backend: Backend, made: Made) -> Result<Measured> {
    let (mut beside, mut alone, mut wide) = (Vec::new(), Vec::new(), Vec::new());
    let mut first = 0.0_f64;
    for run in 1..=bench.scale.runs {
        let database = bench.fresh(backend).await?;
        let address = database.address();
        subscribe(&address, bench.scale.fan_out, made).await?;
        let served = Served::start(&address).await?;
        let run_of = under(served.address, bench.scale.wide).await?;
        served.stop().await?;
        let events = bench.scale.wide + 1 + run_of.others.len();
        expect_stored(&address, events, made, bench.scale.fan_out * (bench.scale.wide + 1)).await?;
        let overlaps = |other: &Span| run_of.wide.iter().any(|wide| other.0 < wide.1 && wide.0 < other.1);
        let (held, free): (Vec<Span>, Vec<Span>) = run_of.others.iter().partition(|other| overlaps(other));
        let p99_of = |spans: &[Span]| p99(spans.iter().map(millis)).ok_or("no publish took place");
        beside.push(p99_of(&held)?);
        alone.push(p99_of(&free)?);
        wide.push(median(&run_of.wide.iter().map(millis).collect::<Vec<_>>()));
        first = first.max(run_of.first);
        let figures = format!(
            "{} ms, {} ms alone, the event {} ms",
            short(beside[run - 1]),
            short(alone[run - 1]),
            short(wide[run - 1])
        );
        progress(&format!("{name} {run}/{}: {figures}", bench.scale.runs));
    }
    let subscriptions = bench.scale.fan_out;
    Ok(Measured::absolute(known(name)?, beside)
        .note(format!("without such an event beside it: {} ms", short(median(&alone))))
        .note(format!("the event with {subscriptions} subscriptions itself, median: {} ms", short(median(&wide))))
        .note(format!("the very first one after the server's start, the worst: {} ms", short(first))))
}

fn millis(span: &Span) -> f64 {
    (span.1 - span.0).as_secs_f64() * 1e3
}

/// What a run saw.
struct Run {
    /// How long the first event took, which reads the subscriptions and makes lanes. Not beside others.
    first: f64,
    wide: Vec<Span>,
    others: Vec<Span>,
}

async fn under(address: SocketAddr, count: usize) -> Result<Run> {
    let body = serde_json::to_vec(&ingest::event()?)?;
    let mut connection = Connection::open(address).await?;
    let first = millis(&publish(&mut connection, &body).await?);
    let stop = Arc::new(AtomicBool::new(false));
    let others = Arc::new(Mutex::new(Vec::new()));
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for _ in 0..OTHERS {
        let (stop, others) = (Arc::clone(&stop), Arc::clone(&others));
        let mut connection = Connection::open(address).await?;
        let body = serde_json::to_vec(&json!({ "type": "shop:stock:item:counted", "source": "/shop", "data": 7 }))?;
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let span = publish(&mut connection, &body).await?;
                others.lock().unwrap_or_else(PoisonError::into_inner).push(span);
                tokio::time::sleep(PAUSE).await;
            }
            Ok(())
        });
    }
    let mut wide = Vec::with_capacity(count);
    for _ in 0..count {
        tokio::time::sleep(BETWEEN).await;
        wide.push(publish(&mut connection, &body).await?);
    }
    tokio::time::sleep(BETWEEN).await;
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let others = std::mem::take(&mut *others.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Run { first, wide, others })
}

async fn publish(connection: &mut Connection, body: &[u8]) -> Result<Span> {
    let start = Instant::now();
    connection.expect(201, "POST", "/api/events", body).await?;
    Ok((start, Instant::now()))
}
