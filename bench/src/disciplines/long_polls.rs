//! Two thousand subscribers that wait, each for its own tag: how soon one gets its event, and what waiting costs.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::sleep;

use super::server_memory::stable_resident;
use super::{Bench, known};
use crate::Result;
use crate::http::Connection;
use crate::machine::cpu_time;
use crate::report::Measured;
use crate::runner::{median, p99, progress, short};
use crate::scale::{LONG_POLLS, PAYLOAD, payload};
use crate::served::Served;

const MEMORY: &str = "server_rss_long_polls";
const CPU: &str = "sqlite_long_polls_cpu";
const SAME_NODE: [&str; 2] = ["sqlite_long_poll_p99", "postgres_long_poll_p99"];
const OTHER_NODE: &str = "postgres_long_poll_other_node_p99";
/// The pause between two publishes, so that the server is idle again.
const PAUSE: Duration = Duration::from_millis(30);
/// How long nothing happens between the last subscription and the first measurement.
const QUIET: Duration = Duration::from_secs(1);

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    if bench.wanted.has_any(&[MEMORY, CPU, SAME_NODE[0]]) {
        let folder = bench.sqlite_folder()?;
        let served = Served::start(&folder.path().join("tidegate.db").to_string_lossy()).await?;
        let mut subscribers = Subscribers::connect(served.address).await?;
        if bench.wanted.has(MEMORY) {
            let resident = stable_resident(&served).await?;
            progress(&format!("{MEMORY}: {} MiB", short(resident)));
            outcomes.push(Measured::absolute(known(MEMORY)?, vec![resident]));
        }
        if bench.wanted.has(CPU) {
            let (before, start) = (cpu_time(served.pid()?)?, Instant::now());
            sleep(bench.scale.idle).await;
            let percent = (cpu_time(served.pid()?)? - before).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
            progress(&format!("{CPU}: {} %", short(percent)));
            outcomes.push(Measured::absolute(known(CPU)?, vec![percent]));
        }
        outcomes.push(latency(bench, SAME_NODE[0], &mut subscribers, served.address).await?);
        drop(subscribers);
        served.stop().await?;
    }
    if bench.wanted.has_any(&[SAME_NODE[1], OTHER_NODE]) {
        let database = bench.server()?.database().await?;
        let (here, there) = (Served::start(&database.url).await?, Served::start(&database.url).await?);
        let mut subscribers = Subscribers::connect(here.address).await?;
        outcomes.push(latency(bench, SAME_NODE[1], &mut subscribers, here.address).await?);
        outcomes.push(latency(bench, OTHER_NODE, &mut subscribers, there.address).await?);
        drop(subscribers);
        here.stop().await?;
        there.stop().await?;
    }
    Ok(outcomes)
}

/// Publishes for one subscriber after the other. The result is the 99th percentile, in milliseconds, of the time from
/// the answer to the publisher to the answer to the subscriber.
async fn latency(
    bench: &Bench,
    name: &'static str,
    subscribers: &mut Subscribers,
    publish_at: SocketAddr,
) -> Result<Measured> {
    let mut publisher = Connection::open(publish_at).await?;
    let mut took = Vec::new();
    for number in 0..bench.scale.latency {
        sleep(PAUSE).await;
        // 977 and the number of subscribers have no common factor, so no subscriber comes twice before all others.
        took.push(subscribers.deliver(number * 977 % LONG_POLLS, &mut publisher).await?.as_secs_f64() * 1e3);
    }
    let p50 = median(&took);
    let p99 = p99(took).ok_or("nothing was delivered")?;
    progress(&format!("{name}: p50 {} ms, p99 {} ms", short(p50), short(p99)));
    Ok(Measured::absolute(known(name)?, vec![p99]))
}

/// All subscribers, each with its own connection and an open request.
struct Subscribers {
    waiting: Vec<Connection>,
}

impl Subscribers {
    async fn connect(address: SocketAddr) -> Result<Self> {
        let mut waiting = Vec::with_capacity(LONG_POLLS);
        for number in 0..LONG_POLLS {
            let mut connection = Connection::open(address).await?;
            subscribe(&mut connection, number).await?;
            waiting.push(connection);
        }
        sleep(QUIET).await;
        Ok(Self { waiting })
    }

    /// Publishes an event for one subscriber, which then waits again; returns the time between both answers.
    async fn deliver(&mut self, number: usize, publisher: &mut Connection) -> Result<Duration> {
        let waiting = &mut self.waiting[number];
        let event = json!({ "title": "a title", "tags": tag(number), "payload": payload(PAYLOAD) });
        let event = serde_json::to_vec(&event)?;
        let publish = async {
            publisher.expect(201, "POST", "/events", &event).await?;
            Ok::<Instant, Box<dyn std::error::Error + Send + Sync>>(Instant::now())
        };
        let answer = async {
            let answer = waiting.answer().await?;
            Ok::<(u16, Instant), Box<dyn std::error::Error + Send + Sync>>((answer.status, Instant::now()))
        };
        let (published, answered) = tokio::join!(publish, answer);
        let (status, at) = answered?;
        if status != 200 {
            return Err(format!("a subscriber got status {status} instead of 200").into());
        }
        let took = at.saturating_duration_since(published?);
        subscribe(&mut self.waiting[number], number).await?;
        Ok(took)
    }
}

fn tag(number: usize) -> String {
    format!("tag-{number}")
}

/// Sends the request of a subscriber without waiting for the answer.
async fn subscribe(connection: &mut Connection, number: usize) -> Result<()> {
    let path = format!("/events/subscribe?tags={}&worker_id=host:{number}&wait=60", tag(number));
    connection.send("GET", &path, b"").await
}
