//! Webhooks to a receiver on the same machine: a backlog that is worked off, events that are delivered as they come, and
//! what a delivery costs. The baseline is a bare loop of the same HTTP library to the same receiver, with as many requests in
//! flight: it signs nothing and stores nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use serde_json::value::RawValue;
use tidegate::{Backend, EventQueue, Family};
use tidegate_core::cloud_event::Sent;
use tidegate_dispatch::{DispatchMode, Gateway, GatewayOptions, NewFact, PoolBody, SubscriptionBody, TypeBinding};
use tokio::net::TcpStream;

use super::ingest::event;
use super::subscriptions::TYPE;
use super::{BACKENDS, Bench, known, wal};
use crate::Result;
use crate::http::Connection;
use crate::report::Measured;
use crate::runner::{at_once, interleave, median, p99, progress, rate, short};
use crate::scale::{BATCH, PAYLOAD, payload};
use crate::served::{Served, secrets};
use crate::sink::{Sink, until_taken};

/// Deliveries in flight, and requests of the loop.
const IN_FLIGHT: usize = 256;
/// Connections on which events are published while they are delivered.
const PUBLISHERS: usize = 32;
/// Groups of events where their order is kept.
const GROUPS: usize = 1_000;
/// Jobs per subscription where there are many.
const EACH: usize = 100;
/// The pause between two events whose latency is measured.
const PAUSE: Duration = Duration::from_millis(10);
/// Latencies are measured after so many events.
const WARM: usize = 20;

/// What waits when the server starts.
#[derive(Debug, Clone, Copy)]
struct Backlog {
    jobs: usize,
    subscriptions: usize,
    mode: DispatchMode,
    groups: usize,
}

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database or a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    let jobs = bench.scale.jobs;
    let plain = Backlog { jobs, subscriptions: 1, mode: DispatchMode::Immediate, groups: 0 };
    let ordered = Backlog { mode: DispatchMode::NextOnError, groups: GROUPS.min(jobs / 10), ..plain };
    let lanes = Backlog { subscriptions: jobs / EACH, ..plain };
    for (prefix, backend) in BACKENDS {
        let name = format!("{prefix}_deliver_backlog");
        if bench.wanted.has(&name) {
            let ours = async || worked_off(bench, backend, plain).await;
            let pair = interleave(&name, bench.scale.runs, ours, async || looped(jobs, IN_FLIGHT).await).await?;
            outcomes.push(Measured::beside(known(&name)?, pair));
        }
        for (suffix, other) in [("ordered", ordered), ("lanes", lanes)] {
            let name = format!("{prefix}_deliver_{suffix}");
            if bench.wanted.has(&name) {
                let ours = async || worked_off(bench, backend, other).await;
                let baseline = async || worked_off(bench, backend, plain).await;
                let pair = interleave(&name, bench.scale.runs, ours, baseline).await?;
                outcomes.push(Measured::beside(known(&name)?, pair));
            }
        }
        let name = format!("{prefix}_deliver_end_to_end");
        if bench.wanted.has(&name) {
            let ours = async || as_they_come(bench, backend, 1).await;
            let pair = interleave(&name, bench.scale.runs, ours, async || looped(jobs, PUBLISHERS).await).await?;
            outcomes.push(Measured::beside(known(&name)?, pair));
        }
        let name = format!("{prefix}_deliver_ten");
        if bench.wanted.has(&name) {
            let ours = async || as_they_come(bench, backend, 10).await;
            let baseline = async || as_they_come(bench, backend, 1).await;
            outcomes.push(Measured::beside(known(&name)?, interleave(&name, bench.scale.runs, ours, baseline).await?));
        }
        outcomes.extend(latency(bench, prefix, backend).await?);
    }
    let name = "postgres_deliver_wal";
    if bench.wanted.has(name) {
        outcomes.push(wal_bytes(bench, name).await?);
    }
    Ok(outcomes)
}

/// Requests per second of a bare loop to a receiver.
async fn looped(count: usize, in_flight: usize) -> Result<f64> {
    let sink = Sink::start().await?;
    let body = Bytes::from(serde_json::to_vec(&event()?)?);
    let host = sink.address().to_string();
    let mut senders = Vec::with_capacity(in_flight);
    for _ in 0..in_flight {
        let stream = TcpStream::connect(sink.address()).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends with its sender; an error is the sender's too.
        tokio::spawn(connection);
        senders.push(sender);
    }
    let sent = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    at_once(senders.into_iter().map(|mut sender| {
        let (sent, body, host) = (Arc::clone(&sent), body.clone(), host.clone());
        async move {
            while sent.fetch_add(1, Ordering::Relaxed) < count {
                let request = Request::post("/hook").header("host", &host).header("content-type", "application/json");
                let answer = sender.send_request(request.body(Full::new(body.clone()))?).await?;
                if answer.status() != StatusCode::OK {
                    return Err(format!("the receiver answered {}", answer.status()).into());
                }
                answer.into_body().collect().await?;
                sender.ready().await?;
            }
            Ok(())
        }
    }))
    .await?;
    Ok(rate(count, start.elapsed()))
}

/// Deliveries per second of what waited when the server started, from the first to the last.
async fn worked_off(bench: &Bench, backend: Backend, backlog: Backlog) -> Result<f64> {
    let database = bench.fresh(backend).await?;
    let address = database.address();
    let sinks = [Sink::start().await?];
    let (queue, gateway) = subscribe(&address, &sinks, backlog.subscriptions, backlog.mode).await?;
    fill(&gateway, backlog).await?;
    queue.close().await;
    database.vacuum().await?;
    let served = Served::start_with_router(&address).await?;
    let first = until_taken(&sinks, 1).await?;
    let before = sinks[0].taken();
    let last = until_taken(&sinks, backlog.jobs).await?;
    served.stop().await?;
    expect_ended(&address, backlog.jobs, sinks[0].taken()).await?;
    Ok(rate(backlog.jobs - before, last - first))
}

/// Deliveries per second of events that are published one by one meanwhile, each for all of these receivers.
async fn as_they_come(bench: &Bench, backend: Backend, receivers: usize) -> Result<f64> {
    let database = bench.fresh(backend).await?;
    let address = database.address();
    let mut sinks = Vec::with_capacity(receivers);
    for _ in 0..receivers {
        sinks.push(Sink::start().await?);
    }
    let (queue, _) = subscribe(&address, &sinks, receivers, DispatchMode::Immediate).await?;
    queue.close().await;
    let served = Served::start_with_router(&address).await?;
    let body = serde_json::to_vec(&event()?)?;
    let published = Arc::new(AtomicUsize::new(0));
    let mut connections = Vec::with_capacity(PUBLISHERS);
    for _ in 0..PUBLISHERS {
        connections.push(Connection::open(served.address).await?);
    }
    let (start, time) = (Instant::now(), bench.scale.serve);
    at_once(connections.into_iter().map(|mut connection| {
        let (published, body) = (Arc::clone(&published), body.clone());
        async move {
            while start.elapsed() < time {
                connection.expect(201, "POST", "/api/events", &body).await?;
                published.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }
    }))
    .await?;
    let jobs = published.load(Ordering::Relaxed) * receivers;
    let last = until_taken(&sinks, jobs).await?;
    served.stop().await?;
    expect_ended(&address, jobs, sinks.iter().map(Sink::taken).sum()).await?;
    Ok(rate(jobs, last - start))
}

/// Milliseconds from the answer to a publish to its arrival at the receiver, at 100 a second. What arrives before the answer
/// took no time.
async fn latency(bench: &Bench, prefix: &str, backend: Backend) -> Result<Vec<Measured>> {
    let names = [format!("{prefix}_deliver_latency_p50"), format!("{prefix}_deliver_latency_p99")];
    if !names.iter().any(|name| bench.wanted.has(name)) {
        return Ok(Vec::new());
    }
    let (mut middle, mut worst) = (Vec::new(), Vec::new());
    for run in 1..=bench.scale.runs {
        let took = latencies(bench, backend).await?;
        middle.push(median(&took));
        worst.push(p99(took).ok_or("no event was measured")?);
        let figures = format!("p50 {} ms, p99 {} ms", short(middle[run - 1]), short(worst[run - 1]));
        progress(&format!("{prefix}_deliver_latency {run}/{}: {figures}", bench.scale.runs));
    }
    Ok(vec![Measured::absolute(known(&names[0])?, middle), Measured::absolute(known(&names[1])?, worst)])
}

async fn latencies(bench: &Bench, backend: Backend) -> Result<Vec<f64>> {
    let database = bench.fresh(backend).await?;
    let address = database.address();
    let arrived: Arc<Mutex<HashMap<usize, Instant>>> = Arc::default();
    let known = Arc::clone(&arrived);
    let sink = Sink::calling(Arc::new(move |body| {
        let now = Instant::now();
        if let Some(number) = number_in(body) {
            known.lock().unwrap_or_else(PoisonError::into_inner).insert(number, now);
        }
    }))
    .await?;
    let sinks = [sink];
    let (queue, _) = subscribe(&address, &sinks, 1, DispatchMode::Immediate).await?;
    queue.close().await;
    let served = Served::start_with_router(&address).await?;
    let mut connection = Connection::open(served.address).await?;
    let count = WARM + bench.scale.latency * 5;
    let mut accepted = Vec::with_capacity(count);
    let start = Instant::now();
    for number in 0..count {
        tokio::time::sleep_until((start + PAUSE * u32::try_from(number)?).into()).await;
        let data = format!("{{\"number\":{number},{}", &payload(PAYLOAD)[1..]);
        let body = json!({ "type": TYPE, "source": "/shop", "data": RawValue::from_string(data)? });
        connection.expect(201, "POST", "/api/events", &serde_json::to_vec(&body)?).await?;
        accepted.push(Instant::now());
    }
    until_taken(&sinks, count).await?;
    served.stop().await?;
    let arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
    let took = accepted.iter().enumerate().skip(WARM).map(|(number, accepted)| {
        let at = arrived.get(&number).ok_or("an event did not arrive")?;
        Ok(at.saturating_duration_since(*accepted).as_secs_f64() * 1e3)
    });
    took.collect()
}

/// The number in the data of an event.
pub(super) fn number_in(body: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once("\"number\":")?;
    rest.split_once(',')?.0.parse().ok()
}

/// Bytes of write-ahead log per job, from its event to its end.
async fn wal_bytes(bench: &Bench, name: &str) -> Result<Measured> {
    let (mut made, mut delivered) = (Vec::new(), Vec::new());
    let jobs = bench.scale.wal;
    for run in 1..=bench.scale.runs {
        let database = bench.server()?.database().await?;
        let sinks = [Sink::start().await?];
        let (queue, gateway) = subscribe(&database.url, &sinks, 1, DispatchMode::Immediate).await?;
        bench.server()?.checkpoint().await?;
        let client = database.connect().await?;
        let mut at = wal::position(&client).await?;
        fill(&gateway, Backlog { jobs, subscriptions: 1, mode: DispatchMode::Immediate, groups: 0 }).await?;
        queue.close().await;
        made.push(wal::step(&client, &mut at).await? / jobs as f64);
        let served = Served::start_with_router(&database.url).await?;
        until_taken(&sinks, jobs).await?;
        // Stops when all is recorded.
        served.stop().await?;
        delivered.push(wal::step(&client, &mut at).await? / jobs as f64);
        expect_ended(&database.url, jobs, sinks[0].taken()).await?;
        let figures = format!("{} to make it, {} to deliver it", short(made[run - 1]), short(delivered[run - 1]));
        progress(&format!("{name} {run}/{}: {figures}", bench.scale.runs));
    }
    let note = format!("to make the event and its job before: {}", short(median(&made)));
    Ok(Measured::absolute(known(name)?, delivered).note(note))
}

/// Creates subscriptions, in turn for each of the receivers, with a pool that all share. With several receivers all of them
/// are for the same events, otherwise each is for a type of its own.
async fn subscribe(address: &str, sinks: &[Sink], count: usize, mode: DispatchMode) -> Result<(EventQueue, Gateway)> {
    let queue = EventQueue::open(address).await?;
    let allowed_targets = vec!["127.0.0.1".parse()?];
    let options = GatewayOptions { allowed_targets, secrets: secrets(), ..GatewayOptions::default() };
    let gateway = Gateway::new(queue.clone(), options);
    let concurrency = u32::try_from(IN_FLIGHT)?;
    let pool = gateway.create_pool(None, "bench", &PoolBody { concurrency, ..PoolBody::new("Bench".into()) }).await?;
    for number in 0..count {
        let code = if sinks.len() > 1 || count == 1 { TYPE.to_owned() } else { type_of(number) };
        let binding = TypeBinding { event_type: None, code: code.parse()?, version: None };
        let target = format!("http://{}/hook", sinks[number % sinks.len()].address());
        let body = SubscriptionBody {
            dispatch_pool: Some(pool.id),
            mode,
            ..SubscriptionBody::new(format!("Subscription {number}"), vec![binding], target.parse()?)
        };
        gateway.create_subscription(None, &format!("bench-{number}"), &body).await?;
    }
    Ok((queue, gateway))
}

fn type_of(number: usize) -> String {
    format!("{TYPE}-{number}")
}

/// Ingests events for these jobs.
async fn fill(gateway: &Gateway, backlog: Backlog) -> Result<()> {
    let mut number = 0;
    while number < backlog.jobs {
        let until = (number + BATCH).min(backlog.jobs);
        let facts: Vec<_> = (number..until).map(|number| fact(number, backlog)).collect::<Result<_>>()?;
        for accepted in gateway.ingest_many(facts).await {
            accepted?;
        }
        number = until;
    }
    Ok(())
}

fn fact(number: usize, backlog: Backlog) -> Result<NewFact> {
    let code = match backlog.subscriptions {
        1 => TYPE.to_owned(),
        several => type_of(number % several),
    };
    let mut body = json!({ "type": code, "source": "/shop", "subject": "order:12345", "data": data()? });
    if backlog.groups > 0 {
        body["messageGroup"] = json!(format!("group-{}", number % backlog.groups));
    }
    let sent = Sent::from_json(&serde_json::to_vec(&body)?.into()).map_err(|error| error.to_string())?;
    Ok(NewFact { event: sent.event, client: None })
}

fn data() -> Result<Box<RawValue>> {
    Ok(RawValue::from_string(payload(PAYLOAD))?)
}

/// Checks that each job was delivered once, and has ended.
async fn expect_ended(address: &str, jobs: usize, delivered: usize) -> Result<()> {
    let queue = EventQueue::open(address).await?;
    let census = queue.store().family(Family::Jobs).census().await?;
    queue.close().await;
    if census.waiting + census.leased == 0 && census.ended == jobs as u64 && delivered == jobs {
        return Ok(());
    }
    Err(format!("expected {jobs} webhooks and jobs that ended; found {delivered} and {census:?}").into())
}
