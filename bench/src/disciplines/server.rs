//! The HTTP server under load on SQLite: one event per request compared with the floor, many per request with raw SQL.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::{Bench, known};
use crate::http::Connection;
use crate::report::Measured;
use crate::runner::{at_once, interleave, rate};
use crate::scale::{CONNECTIONS, PAYLOAD, REQUEST, payload};
use crate::served::{FLOOR, Served};
use crate::{Result, raw};

/// The tag of all events, by which workers claim.
const TAG: &str = "bench";

/// What each connection does in a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    Publish,
    Cycle,
    Batches,
}

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    for (name, load) in [("server_publish", Load::Publish), ("server_cycle", Load::Cycle)] {
        if !bench.wanted.has(name) {
            continue;
        }
        let floor = Served::start(FLOOR).await?;
        let ours = async || ours(bench, load).await;
        let baseline = async || under(floor.address, load, bench.scale.serve).await;
        let pair = interleave(name, bench.scale.runs, ours, baseline).await?;
        outcomes.push(Measured::beside(known(name)?, pair));
        floor.stop().await?;
    }
    let name = "server_cycle_batches";
    if bench.wanted.has(name) {
        let time = bench.scale.serve;
        let ours = async || ours(bench, Load::Batches).await;
        let baseline = async || {
            let folder = bench.sqlite_folder()?;
            let work = move || raw::sqlite_work::cycle(&folder.path().join("raw.db"), time);
            tokio::task::spawn_blocking(work).await?
        };
        let pair = interleave(name, bench.scale.runs, ours, baseline).await?;
        outcomes.push(Measured::beside(known(name)?, pair));
    }
    Ok(outcomes)
}

/// Tidegate's side: a fresh database and a fresh server for each run.
async fn ours(bench: &Bench, load: Load) -> Result<f64> {
    let folder = bench.sqlite_folder()?;
    let served = Served::start(&folder.path().join("tidegate.db").to_string_lossy()).await?;
    let rate = under(served.address, load, bench.scale.serve).await?;
    served.stop().await?;
    Ok(rate)
}

/// Puts a server under load; returns requests per second, or events per second where a request carries several.
async fn under(address: SocketAddr, load: Load, time: Duration) -> Result<f64> {
    let mut connections = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        connections.push(Connection::open(address).await?);
    }
    let done = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let work = connections.into_iter().enumerate().map(|(number, connection)| {
        let worker = Worker { connection, name: format!("host:{number}"), done: Arc::clone(&done) };
        worker.run(load, start + time)
    });
    at_once(work).await?;
    Ok(rate(done.load(Ordering::Relaxed), start.elapsed()))
}

/// One connection, and the count that all workers share.
struct Worker {
    connection: Connection,
    name: String,
    done: Arc<AtomicUsize>,
}

#[derive(Debug, Deserialize)]
struct Id {
    id: i64,
}

#[derive(Debug, Deserialize)]
struct Claimed {
    events: Vec<Id>,
}

impl Worker {
    async fn run(mut self, load: Load, until: Instant) -> Result<()> {
        let event = event()?;
        let batch = json_bytes(&json!({ "events": vec![&event; REQUEST] }))?;
        let event = json_bytes(&event)?;
        while Instant::now() < until {
            let done = match load {
                Load::Publish => self.publish(&event).await?,
                Load::Cycle => self.cycle(&event).await?,
                Load::Batches => self.batches(&batch).await?,
            };
            self.done.fetch_add(done, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn publish(&mut self, event: &[u8]) -> Result<usize> {
        self.connection.expect(201, "POST", "/events", event).await?;
        Ok(1)
    }

    async fn cycle(&mut self, event: &[u8]) -> Result<usize> {
        self.publish(event).await?;
        let path = format!("/events/subscribe?tags={TAG}&worker_id={}", self.name);
        let taken: Id = serde_json::from_slice(self.connection.expect(200, "GET", &path, b"").await?)?;
        let report = format!(r#"{{"worker_id":"{}","execution_time_ms":1250,"status_code":200}}"#, self.name);
        let path = format!("/events/{}/complete", taken.id);
        self.connection.expect(200, "POST", &path, report.as_bytes()).await?;
        Ok(3)
    }

    async fn batches(&mut self, batch: &[u8]) -> Result<usize> {
        self.connection.expect(200, "POST", "/events/batch", batch).await?;
        let ask = json_bytes(&json!({ "tags": TAG, "worker_id": self.name, "max": REQUEST }))?;
        let taken = self.connection.expect(200, "POST", "/events/claim", &ask).await?;
        let taken: Claimed = serde_json::from_slice(taken)?;
        if taken.events.is_empty() {
            return Err("a worker claimed nothing right after it had published".into());
        }
        let items: Vec<_> = taken.events.iter().map(|one| json!({ "id": one.id, "status_code": 200 })).collect();
        let report = json_bytes(&json!({ "worker_id": self.name, "events": items }))?;
        let answer = self.connection.expect(200, "POST", "/events/complete", &report).await?;
        let completed = answer.windows(11).filter(|part| *part == b"\"COMPLETED\"").count();
        if completed != taken.events.len() {
            return Err(format!("{completed} of {} events were completed", taken.events.len()).into());
        }
        Ok(completed)
    }
}

/// The event that publishers send.
pub(super) fn event() -> Result<serde_json::Value> {
    let payload: Box<RawValue> = RawValue::from_string(payload(PAYLOAD))?;
    Ok(json!({ "title": "a title", "description": "what it is about", "tags": TAG, "payload": payload }))
}

fn json_bytes(value: &serde_json::Value) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec(value)?)
}
