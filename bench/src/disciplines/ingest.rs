//! Ingest over HTTP, one event per request on many connections: compared with `POST /events` on the same kind of database,
//! and with context data compared with none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use serde_json::value::RawValue;
use tidegate::Backend;

use super::subscriptions::{Made, TYPE, expect_stored, subscribe};
use super::{BACKENDS, Bench, known, server};
use crate::Result;
use crate::http::Connection;
use crate::report::Measured;
use crate::runner::{at_once, interleave, rate};
use crate::scale::{CONNECTIONS, PAYLOAD, payload};
use crate::served::Served;

/// How many subscriptions match, by the end of a discipline's name.
const SUBSCRIBED: [(&str, usize); 3] = [("ingest_none", 0), ("ingest_one", 1), ("ingest_ten", 10)];

/// What connections send in a loop.
#[derive(Clone)]
struct Load {
    path: &'static str,
    /// The body of the request with this number.
    body: Arc<dyn Fn(usize) -> Vec<u8> + Send + Sync>,
    /// How many subscriptions there are.
    subscriptions: usize,
    /// How many entries are made for each event.
    entries: usize,
}

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database or a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    for (prefix, backend) in BACKENDS {
        for (suffix, subscriptions) in SUBSCRIBED {
            let name = format!("{prefix}_{suffix}");
            if bench.wanted.has(&name) {
                outcomes.push(compare(bench, &name, backend, &Load::ingest(subscriptions)?, &Load::publish()?).await?);
            }
        }
        let name = format!("{prefix}_ingest_context");
        if bench.wanted.has(&name) {
            outcomes.push(compare(bench, &name, backend, &Load::context()?, &Load::ingest(0)?).await?);
        }
    }
    Ok(outcomes)
}

async fn compare(bench: &Bench, name: &str, backend: Backend, ours: &Load, baseline: &Load) -> Result<Measured> {
    let ours = async || measure(bench, backend, ours).await;
    let baseline = async || measure(bench, backend, baseline).await;
    Ok(Measured::beside(known(name)?, interleave(name, bench.scale.runs, ours, baseline).await?))
}

/// Requests per second, with a fresh database and a fresh server.
async fn measure(bench: &Bench, backend: Backend, load: &Load) -> Result<f64> {
    let database = bench.fresh(backend).await?;
    let address = database.address();
    subscribe(&address, load.subscriptions, Made::Entries).await?;
    let served = Served::start(&address).await?;
    let (done, took) = under(served.address, load, bench.scale.serve).await?;
    served.stop().await?;
    expect_stored(&address, done, Made::Entries, done * load.entries).await?;
    Ok(rate(done, took))
}

/// Puts a server under load; returns how many requests it answered, and in what time.
async fn under(address: SocketAddr, load: &Load, time: Duration) -> Result<(usize, Duration)> {
    let mut connections = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        connections.push(Connection::open(address).await?);
    }
    let sent = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    at_once(connections.into_iter().map(|mut connection| {
        let (load, sent) = (load.clone(), Arc::clone(&sent));
        async move {
            while start.elapsed() < time {
                let body = (load.body)(sent.fetch_add(1, Ordering::Relaxed));
                connection.expect(201, "POST", load.path, &body).await?;
            }
            Ok(())
        }
    }))
    .await?;
    // Every request that was sent has been answered.
    Ok((sent.load(Ordering::Relaxed), start.elapsed()))
}

impl Load {
    fn publish() -> Result<Self> {
        let body = serde_json::to_vec(&server::event()?)?;
        Ok(Self { path: "/events", body: Arc::new(move |_| body.clone()), subscriptions: 0, entries: 1 })
    }

    fn ingest(subscriptions: usize) -> Result<Self> {
        let body = serde_json::to_vec(&event()?)?;
        let entries = subscriptions;
        Ok(Self { path: "/api/events", body: Arc::new(move |_| body.clone()), subscriptions, entries })
    }

    /// Events with three pairs that are as rare as those of orders: few regions, many customers, and each order once.
    fn context() -> Result<Self> {
        let text = serde_json::to_string(&event()?)?;
        let head = text.strip_suffix('}').ok_or("the event is no JSON object")?.to_owned();
        let body = move |number: usize| format!("{head},\"contextData\":{}}}", context(number)).into_bytes();
        Ok(Self { path: "/api/events", body: Arc::new(body), subscriptions: 0, entries: 0 })
    }
}

/// The event that is ingested.
///
/// # Errors
/// When its data are not JSON.
pub(super) fn event() -> Result<serde_json::Value> {
    let data: Box<RawValue> = RawValue::from_string(payload(PAYLOAD))?;
    Ok(json!({ "type": TYPE, "source": "/shop", "subject": "order:12345", "data": data }))
}

/// The context data of an event, as JSON.
pub(super) fn context(number: usize) -> String {
    format!(
        r#"[{{"key":"region","value":"region-{}"}},{{"key":"customer","value":"customer-{}"}},{{"key":"order","value":"order-{number}"}}]"#,
        number % 10,
        number % 10_000
    )
}
