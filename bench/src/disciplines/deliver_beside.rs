//! A bad target among healthy ones in the same pool: how much later the healthy ones get their webhooks.
//!
//! The router runs in this process, unlike in the other disciplines of deliveries, since a name whose look-up hangs needs a
//! resolver of its own. The baseline is the same load without events for the bad target.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use serde_json::value::RawValue;
use tidegate::{Backend, EventQueue, Family};
use tidegate_core::cloud_event::Sent;
use tidegate_dispatch::webhook::address::Allowed;
use tidegate_dispatch::webhook::client::{Client, ClientOptions};
use tidegate_dispatch::webhook::connect::system_roots;
use tidegate_dispatch::{Gateway, GatewayOptions, NewFact, PoolBody, Router, SubscriptionBody, TypeBinding};
use tokio::task::JoinSet;

use super::deliver::number_in;
use super::subscriptions::TYPE;
use super::{BACKENDS, Bench, known};
use crate::Result;
use crate::bad_target::{Bad, BadTarget, NeverFound, allowed};
use crate::report::Measured;
use crate::runner::{Pair, at_once, median, p99, progress, short};
use crate::scale::{PAYLOAD, payload};
use crate::served::secrets;
use crate::sink::{Sink, until_taken};

/// Subscriptions with a healthy receiver.
const HEALTHY: usize = 1_000;
/// Deliveries that the pool of all of them has under way at most.
const SLOTS: u32 = 64;
/// How long the healthy receiver takes for an answer.
const ANSWERS_AFTER: Duration = Duration::from_millis(50);
/// The time between two events for healthy receivers: 640 a second, whose answers take half of the slots.
const EVERY: Duration = Duration::from_nanos(1_562_500);
/// The same for the bad one: 20 a second, 30 times what a healthy one gets.
const BAD_EVERY: Duration = Duration::from_millis(50);
/// For how long there are only healthy receivers, and nothing is measured.
const WARM: Duration = Duration::from_secs(2);
/// Where the 99th percentile is smaller than so many milliseconds it may grow by as much as this one may: by 20 %, or by 5 ms.
const LEAST: f64 = 25.0;
/// Subscriptions that are created at once.
const CREATORS: usize = 16;

/// The kinds of bad targets, by what the names of their disciplines have of them.
const KINDS: [(&str, Bad); 4] = [("dead", Bad::Dead), ("dns", Bad::Dns), ("silent", Bad::Silent), ("slow", Bad::Slow)];

/// Runs the selected disciplines of this family. All kinds of bad targets of a round are compared with one run without any.
///
/// # Errors
/// When a database or the router fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    for (prefix, backend) in BACKENDS {
        let name = |kind| format!("{prefix}_deliver_beside_{kind}_p99");
        let kinds: Vec<_> = KINDS.iter().filter(|(kind, _)| bench.wanted.has(&name(kind))).collect();
        let mut alone = Vec::new();
        let mut beside = vec![Vec::new(); kinds.len()];
        for round in 1..=bench.scale.runs {
            if kinds.is_empty() {
                break;
            }
            let (without, middle) = side(bench, backend, None).await?;
            let figures = format!("p50 {} ms, p99 {} ms", short(middle), short(without));
            progress(&format!("{prefix}_deliver_beside alone {round}/{}: {figures}", bench.scale.runs));
            alone.push(without);
            for ((kind, bad), all) in kinds.iter().zip(&mut beside) {
                let (with, middle) = side(bench, backend, Some(*bad)).await?;
                let figures = format!("p50 {} ms, p99 {} ms", short(middle), short(with));
                progress(&format!("{} {round}/{}: {figures}", name(kind), bench.scale.runs));
                all.push(with);
            }
        }
        for ((kind, _), ours) in kinds.into_iter().zip(beside) {
            let by = median(&ours) - median(&alone);
            let pair = Pair { ours, baseline: alone.clone() };
            let grown = Measured::grown(known(&name(kind))?, pair, LEAST);
            outcomes.push(grown.note(format!("grew by {} ms", short(by))));
        }
    }
    Ok(outcomes)
}

/// A database, a router on it, and who receives.
struct Scene {
    queue: EventQueue,
    gateway: Arc<Gateway>,
    router: Router,
    sinks: [Sink; 1],
    /// When events arrived, by their numbers.
    arrived: Arc<Mutex<HashMap<usize, Instant>>>,
    bad: Option<BadTarget>,
}

/// The 99th percentile of the milliseconds from the acceptance of an event to its arrival at a healthy receiver, and their
/// median. What arrives before it is accepted took no time.
async fn side(bench: &Bench, backend: Backend, bad: Option<Bad>) -> Result<(f64, f64)> {
    let database = bench.fresh(backend).await?;
    let scene = Scene::new(&database.address(), bad).await?;
    database.vacuum().await?;
    let warm = events_in(WARM, EVERY);
    let count = warm + events_in(bench.scale.beside, EVERY);
    let bad_count = if bad.is_some() { events_in(bench.scale.beside, BAD_EVERY) } else { 0 };
    let start = Instant::now();
    let (accepted, bad_accepted) = tokio::join!(
        publish(&scene.gateway, start, EVERY, count, |number| format!("{TYPE}-{}", number % HEALTHY)),
        publish(&scene.gateway, start + WARM, BAD_EVERY, bad_count, |_| format!("{TYPE}-bad")),
    );
    let accepted = accepted?;
    bad_accepted?;
    until_taken(&scene.sinks, count).await?;
    let took: Vec<f64> = {
        let arrived = scene.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let measured = accepted.iter().filter(|(number, _)| *number >= warm);
        let took = measured.map(|(number, accepted)| {
            let at = arrived.get(number).ok_or("an event did not arrive")?;
            Ok(at.saturating_duration_since(*accepted).as_secs_f64() * 1e3)
        });
        took.collect::<Result<_>>()?
    };
    scene.end(count, bad_count).await?;
    let middle = median(&took);
    Ok((p99(took).ok_or("no event was measured")?, middle))
}

fn events_in(time: Duration, every: Duration) -> usize {
    (time.as_secs_f64() / every.as_secs_f64()) as usize
}

/// Publishes events at a steady rate, however long each takes. Returns when each was accepted, by its number.
async fn publish(
    gateway: &Arc<Gateway>,
    start: Instant,
    every: Duration,
    count: usize,
    type_of: impl Fn(usize) -> String,
) -> Result<Vec<(usize, Instant)>> {
    let mut tasks: JoinSet<Result<(usize, Instant)>> = JoinSet::new();
    for number in 0..count {
        tokio::time::sleep_until((start + every * u32::try_from(number)?).into()).await;
        let data = format!("{{\"number\":{number},{}", &payload(PAYLOAD)[1..]);
        let body = json!({ "type": type_of(number), "source": "/shop", "data": RawValue::from_string(data)? });
        let sent = Sent::from_json(&serde_json::to_vec(&body)?.into()).map_err(|error| error.to_string())?;
        let gateway = Arc::clone(gateway);
        tasks.spawn(async move {
            gateway.ingest(NewFact { event: sent.event, client: None }).await?;
            Ok((number, Instant::now()))
        });
    }
    let mut accepted = Vec::with_capacity(count);
    while let Some(task) = tasks.join_next().await {
        accepted.push(task??);
    }
    Ok(accepted)
}

impl Scene {
    /// With a subscription for each of the healthy receivers, and one for a bad target.
    async fn new(address: &str, bad: Option<Bad>) -> Result<Self> {
        let arrived: Arc<Mutex<HashMap<usize, Instant>>> = Arc::default();
        let known = Arc::clone(&arrived);
        let sink = Sink::calling(Arc::new(move |body| {
            let now = Instant::now();
            if let Some(number) = number_in(body) {
                known.lock().unwrap_or_else(PoisonError::into_inner).insert(number, now);
            }
        }))
        .await?;
        sink.hold(ANSWERS_AFTER);
        let bad = match bad {
            Some(bad) => Some(BadTarget::start(bad).await?),
            None => None,
        };
        let queue = EventQueue::open(address).await?;
        let options = GatewayOptions { allowed_targets: allowed()?, secrets: secrets(), ..GatewayOptions::default() };
        let gateway = Arc::new(Gateway::new(queue.clone(), options));
        subscribe(&gateway, &sink, bad.as_ref()).await?;
        let client = ClientOptions::new(Allowed::new(&allowed()?), Arc::new(NeverFound), system_roots());
        let router = Router::start(Arc::clone(&gateway), Client::new(client)?);
        Ok(Self { queue, gateway, router, sinks: [sink], arrived, bad })
    }

    /// Stops, and checks that each event for a healthy receiver was delivered once, and that those for the bad one wait.
    async fn end(self, healthy: usize, bad: usize) -> Result<()> {
        // The attempts at it end with it; the router would wait for them.
        drop(self.bad);
        self.router.stop().await;
        let census = self.queue.store().family(Family::Jobs).census().await?;
        self.queue.close().await;
        let (waiting, ended, taken) = (census.waiting + census.leased, census.ended, self.sinks[0].taken());
        // A few of the bad ones may have been tried as often as they are to be.
        let is_right = waiting + ended == (healthy + bad) as u64 && ended >= healthy as u64 && taken == healthy;
        if is_right && (waiting > 0) == (bad > 0) {
            return Ok(());
        }
        Err(format!("expected {healthy} webhooks and {bad} that wait; found {taken} and {census:?}").into())
    }
}

/// Creates a pool and the subscriptions that share it.
async fn subscribe(gateway: &Arc<Gateway>, sink: &Sink, bad: Option<&BadTarget>) -> Result<()> {
    let body = PoolBody { concurrency: SLOTS, ..PoolBody::new("Bench".into()) };
    let pool = gateway.create_pool(None, "bench", &body).await?.id;
    let healthy = (0..HEALTHY).map(|number| (number.to_string(), format!("http://{}/hook/{number}", sink.address())));
    let all: Vec<_> = healthy.chain(bad.map(|bad| ("bad".to_owned(), bad.url()))).collect();
    at_once(all.chunks(all.len().div_ceil(CREATORS)).map(|part| {
        let (gateway, part) = (Arc::clone(gateway), part.to_vec());
        async move {
            for (name, target) in part {
                let code = format!("{TYPE}-{name}").parse()?;
                let binding = TypeBinding { event_type: None, code, version: None };
                let title = format!("Subscription {name}");
                let body = SubscriptionBody::new(title, vec![binding], target.parse()?);
                let body = SubscriptionBody { dispatch_pool: Some(pool), ..body };
                gateway.create_subscription(None, &format!("bench-{name}"), &body).await?;
            }
            Ok(())
        }
    }))
    .await
}
