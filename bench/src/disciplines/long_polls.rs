//! Two thousand subscribers that wait, each for a tag of its own: how soon one is told, and what waiting costs.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::sleep;

use super::server_memory::settled;
use super::{Bench, known};
use crate::Result;
use crate::http::Connection;
use crate::machine::cpu_time;
use crate::report::Outcome;
use crate::runner::{progress, short};
use crate::scale::{LONG_POLLS, PAYLOAD, payload};
use crate::served::Served;

const MEMORY: &str = "server_rss_long_polls";
const CPU: &str = "sqlite_long_polls_cpu";
const SAME_NODE: [&str; 2] = ["sqlite_long_poll_p99", "postgres_long_poll_p99"];
const OTHER_NODE: &str = "postgres_long_poll_other_node_p99";
/// Between two publishes, so that everybody sleeps.
const APART: Duration = Duration::from_millis(30);
/// How long those who came are left alone before anything is measured.
const SETTLE: Duration = Duration::from_secs(1);

/// Runs what is wanted of this family.
///
/// # Errors
/// When a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    if bench.wanted.has_any(&[MEMORY, CPU, SAME_NODE[0]]) {
        let folder = bench.sqlite_folder()?;
        let served = Served::start(&folder.path().join("tidegate.db").to_string_lossy()).await?;
        let mut crowd = Crowd::gather(served.address).await?;
        if bench.wanted.has(MEMORY) {
            let resident = settled(&served).await?;
            progress(&format!("{MEMORY}: {} MiB", short(resident)));
            outcomes.push(Outcome::absolute(known(MEMORY)?, vec![resident]));
        }
        if bench.wanted.has(CPU) {
            let (before, start) = (cpu_time(served.pid()?)?, Instant::now());
            sleep(bench.scale.idle).await;
            let percent = (cpu_time(served.pid()?)? - before).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
            progress(&format!("{CPU}: {} %", short(percent)));
            outcomes.push(Outcome::absolute(known(CPU)?, vec![percent]));
        }
        outcomes.push(told(bench, SAME_NODE[0], &mut crowd, served.address).await?);
        served.stop().await?;
    }
    if bench.wanted.has_any(&[SAME_NODE[1], OTHER_NODE]) {
        let database = bench.server()?.database().await?;
        let (here, there) = (Served::start(&database.url).await?, Served::start(&database.url).await?);
        let mut crowd = Crowd::gather(here.address).await?;
        outcomes.push(told(bench, SAME_NODE[1], &mut crowd, here.address).await?);
        outcomes.push(told(bench, OTHER_NODE, &mut crowd, there.address).await?);
        drop(crowd);
        here.stop().await?;
        there.stop().await?;
    }
    Ok(outcomes)
}

/// Publishes for one after the other of those who wait: from the answer to the publisher to the answer to the subscriber,
/// in milliseconds, the 99th of a hundred.
async fn told(bench: &Bench, name: &'static str, crowd: &mut Crowd, publish_at: SocketAddr) -> Result<Outcome> {
    let mut publisher = Connection::open(publish_at).await?;
    let mut took = Vec::new();
    for number in 0..bench.scale.latency {
        sleep(APART).await;
        // Spread over all of them, so that none comes twice before all others did.
        took.push(crowd.tell(number * 977 % LONG_POLLS, &mut publisher).await?.as_secs_f64() * 1e3);
    }
    took.sort_by(f64::total_cmp);
    let p99 = took[took.len() * 99 / 100];
    progress(&format!("{name}: p50 {} ms, p99 {} ms", short(took[took.len() / 2]), short(p99)));
    Ok(Outcome::absolute(known(name)?, vec![p99]))
}

/// All who wait, on a connection each.
struct Crowd {
    waiting: Vec<Connection>,
}

impl Crowd {
    async fn gather(address: SocketAddr) -> Result<Self> {
        let mut waiting = Vec::with_capacity(LONG_POLLS);
        for number in 0..LONG_POLLS {
            let mut connection = Connection::open(address).await?;
            wait(&mut connection, number).await?;
            waiting.push(connection);
        }
        sleep(SETTLE).await;
        Ok(Self { waiting })
    }

    /// Publishes for one, and has it wait again.
    async fn tell(&mut self, number: usize, publisher: &mut Connection) -> Result<Duration> {
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
            return Err(format!("a subscriber was answered {status}").into());
        }
        let took = at.saturating_duration_since(published?);
        wait(&mut self.waiting[number], number).await?;
        Ok(took)
    }
}

fn tag(number: usize) -> String {
    format!("tag-{number}")
}

async fn wait(connection: &mut Connection, number: usize) -> Result<()> {
    let path = format!("/events/subscribe?tags={}&worker_id=host:{number}&wait=60", tag(number));
    connection.send("GET", &path, b"").await
}
