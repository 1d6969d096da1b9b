//! How long searches take among very many events, over HTTP: by correlation id and by one pair of context data, from values
//! that one event has to values that one in ten has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use serde::Deserialize;
use tidegate::{Backend, EventQueue, Tsid};
use tidegate_core::cloud_event::Sent;
use tidegate_dispatch::{Gateway, GatewayOptions, NewFact};

use super::{BACKENDS, Bench, ingest, known};
use crate::Result;
use crate::http::Connection;
use crate::report::Measured;
use crate::runner::{at_once, p99, progress, short};
use crate::scale::{BATCH, CALLERS};
use crate::served::Served;

/// Events that share a correlation id.
const REQUEST: usize = 10;
/// Half of the events belong to one of so many clients, the others to none.
const CLIENTS: usize = 50;
/// An odd number by which the values of a search are picked, so that neighbours are not asked for one after the other.
const STEP: usize = 7_919;

/// What is searched for in the request with a number, among so many events.
type Search = fn(usize, usize) -> String;

const SEARCHES: [(&str, Search); 6] = [
    ("a correlation id of 10 events", |at, of| format!("correlationId=request-{}", request(at, of))),
    ("the same, by client", |at, of| {
        let request = request(at, of) | 1;
        format!("correlationId=request-{request}&clientId={}", client_of(request).unwrap_or_default())
    }),
    ("an order of one event", |at, of| format!("context.order=order-{}", at * STEP % of)),
    ("a customer of one event in 10,000", |at, _| format!("context.customer=customer-{}", at * STEP % 10_000)),
    ("a region of one event in 10", |at, _| format!("context.region=region-{}", at % 10)),
    ("the same, by client", |at, _| {
        format!("context.region=region-{}&clientId={}", at % 10, client_of(2 * at + 1).unwrap_or_default())
    }),
];

/// The request whose correlation id is searched for.
fn request(at: usize, events: usize) -> usize {
    at * STEP % (events / REQUEST)
}

/// The client whose request it was; every other request was of none.
fn client_of(request: usize) -> Option<String> {
    let number = i64::try_from(request / 2 % CLIENTS).ok()? + 1;
    (request % 2 == 1).then(|| Tsid::from_i64(number).to_string())
}

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database or a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    for (prefix, backend) in BACKENDS {
        let name = format!("{prefix}_search_p99");
        if bench.wanted.has(&name) {
            outcomes.push(measure(bench, &name, backend).await?);
        }
    }
    Ok(outcomes)
}

/// Stores events as their publishers send them.
async fn fill(address: &str, count: usize) -> Result<()> {
    let start = Instant::now();
    let queue = EventQueue::open(address).await?;
    let gateway = Arc::new(Gateway::new(queue.clone(), GatewayOptions::default()));
    let next = Arc::new(AtomicUsize::new(0));
    at_once((0..CALLERS).map(|_| {
        let (gateway, next) = (Arc::clone(&gateway), Arc::clone(&next));
        async move {
            loop {
                let first = next.fetch_add(BATCH, Ordering::Relaxed);
                if first >= count {
                    return Ok(());
                }
                let facts = (first..count.min(first + BATCH)).map(fact).collect::<Result<_>>()?;
                for answer in gateway.ingest_many(facts).await {
                    answer.map_err(|error| error.to_string())?;
                }
            }
        }
    }))
    .await?;
    queue.close().await;
    progress(&format!("{count} events stored in {} s", short(start.elapsed().as_secs_f64())));
    Ok(())
}

fn fact(number: usize) -> Result<NewFact> {
    let mut event = ingest::event()?;
    let context: serde_json::Value = serde_json::from_str(&ingest::context(number))?;
    let request = number / REQUEST;
    event["contextData"] = context;
    event["correlationId"] = format!("request-{request}").into();
    event["clientId"] = client_of(request).into();
    let Sent { event, client } = Sent::from_json(&Bytes::from(serde_json::to_vec(&event)?))?;
    Ok(NewFact { event, client })
}

#[derive(Debug, Deserialize)]
struct Page {
    items: Vec<serde::de::IgnoredAny>,
}

/// Sends every search many times, each time for another value; the result is the worst p99.
async fn measure(bench: &Bench, name: &str, backend: Backend) -> Result<Measured> {
    let events = bench.scale.searched;
    let database = bench.fresh(backend).await?;
    fill(&database.address(), events).await?;
    database.vacuum().await?;
    let served = Served::start(&database.address()).await?;
    let mut connection = Connection::open(served.address).await?;
    let (mut worst, mut notes) = (0.0_f64, Vec::new());
    for (what, search) in SEARCHES {
        let (mut times, mut items) = (Vec::with_capacity(bench.scale.lists), 0);
        for at in 0..bench.scale.lists {
            let path = format!("/api/events?limit=20&{}", search(at, events));
            let start = Instant::now();
            let body = connection.expect(200, "GET", &path, b"").await?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            items = serde_json::from_slice::<Page>(body)?.items.len();
            if items == 0 {
                return Err(format!("{path} found nothing").into());
            }
        }
        let longest = times.iter().copied().fold(0.0, f64::max);
        let median = crate::runner::median(&times);
        let p99 = p99(times).ok_or("nothing was searched")?;
        let [p99_text, median, longest] = [p99, median, longest].map(short);
        let note =
            format!("{what}: p99 {p99_text} ms, median {median} ms, longest {longest} ms, the last found {items}");
        progress(&format!("{name} {note}"));
        notes.push(note);
        worst = worst.max(p99);
    }
    drop(connection);
    served.stop().await?;
    Ok(notes.into_iter().fold(Measured::absolute(known(name)?, vec![worst]), Measured::note))
}
