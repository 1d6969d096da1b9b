//! How long `GET /events` takes among very many ended events, over HTTP, with different filters.

use std::time::Instant;

use serde::Deserialize;
use tidegate::{End, EventQueue, Finalize, QueueName, Tsid};

use super::{Bench, known};
use crate::http::Connection;
use crate::report::Measured;
use crate::runner::{p99, progress, short};
use crate::scale::{BATCH, PAYLOAD};
use crate::served::Served;
use crate::{Result, tide};

/// One in this many events failed, one belongs to the client, and each of this many tags is on one.
const ONE_OF: usize = 1_000;
/// Unfiltered, by status, by one tag and by both, with a common and a rare value of each.
const PATHS: [&str; 9] = [
    "/events?limit=20",
    "/events?limit=20&status=COMPLETED",
    "/events?limit=20&status=FAILED",
    "/events?limit=20&tags=hot",
    "/events?limit=20&tags=some-7",
    "/events?limit=20&status=COMPLETED&tags=hot",
    "/events?limit=20&status=COMPLETED&tags=some-7",
    "/events?limit=20&status=FAILED&tags=hot",
    "/events?limit=20&status=FAILED&tags=some-7",
];

/// The lists of a client that owns one in [`ONE_OF`] events, unfiltered and with every other filter.
const CLIENT_PATHS: [&str; 9] = [
    "/events?limit=20&client=0000000000007",
    "/events?limit=20&client=0000000000007&status=COMPLETED",
    "/events?limit=20&client=0000000000007&status=FAILED",
    "/events?limit=20&client=0000000000007&tags=hot",
    "/events?limit=20&client=0000000000007&status=COMPLETED&tags=hot",
    "/events?limit=20&client=0000000000007&queue=own",
    "/events?limit=20&client=0000000000007&type=bench",
    "/events?limit=20&client=0000000000007&from=2020-01-01T00:00:00Z&to=2100-01-01T00:00:00Z",
    "/events?limit=20&client=0000000000007&offset=10",
];

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database or a server fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    let name = "postgres_list_p99";
    if bench.wanted.has(name) {
        let database = bench.server()?.database().await?;
        prepare(&database.url, bench.scale.listed).await?;
        database.vacuum().await?;
        outcomes.push(measure(bench, name, &database.url, &PATHS).await?);
    }
    let name = "postgres_list_client_p99";
    if bench.wanted.has(name) {
        let database = bench.server()?.database().await?;
        prepare(&database.url, bench.scale.listed).await?;
        database.vacuum().await?;
        outcomes.push(measure(bench, name, &database.url, &CLIENT_PATHS).await?);
    }
    let name = "sqlite_list_p99";
    if bench.wanted.has(name) {
        let folder = bench.sqlite_folder()?;
        let file = folder.path().join("tidegate.db").to_string_lossy().into_owned();
        prepare(&file, bench.scale.listed).await?;
        outcomes.push(measure(bench, name, &file, &PATHS).await?);
    }
    Ok(outcomes)
}

/// Publishes events and ends them all. One in [`ONE_OF`] belongs to a client.
async fn prepare(address: &str, count: usize) -> Result<()> {
    let queue = EventQueue::open(address).await?;
    let own = QueueName::of(Tsid::from_i64(7), "own")?;
    queue.of(own.clone()).await?;
    for start in (0..count).step_by(BATCH) {
        let event = |number: usize| {
            let event =
                tide::event(PAYLOAD).title("a title").tags(["hot".to_owned(), format!("some-{}", number % ONE_OF)]);
            if number % ONE_OF == ONE_OF / 2 { event.queue(own.clone()) } else { event }
        };
        let events = (start..count.min(start + BATCH)).map(event).collect();
        let mut ends = Vec::with_capacity(BATCH);
        for answer in queue.publish_many(events).await {
            let id = answer?.id;
            // Another event fails in every batch, so that tags and statuses mix. One in 40 of the client's events fails
            // too.
            let failed = ends.len() == (start / BATCH) % BATCH || (start + ends.len()) % (40 * ONE_OF) == ONE_OF / 2;
            let end = if failed { End::Failed } else { End::Completed };
            ends.push(Finalize { id, token: None, end, errors: None, results: None, attempt: None });
        }
        for answer in queue.store().finalize(ends).await? {
            answer?;
        }
    }
    queue.close().await;
    Ok(())
}

#[derive(Debug, Deserialize)]
struct Page {
    total: u64,
    events: Vec<serde::de::IgnoredAny>,
}

/// Lists every path many times; the result is the worst p99.
async fn measure(bench: &Bench, name: &str, address: &str, paths: &[&str]) -> Result<Measured> {
    let served = Served::start(address).await?;
    let mut connection = Connection::open(served.address).await?;
    let (mut worst, mut notes) = (0.0_f64, Vec::new());
    for path in paths {
        let first = Instant::now();
        let page: Page = serde_json::from_slice(connection.expect(200, "GET", path, b"").await?)?;
        let first = first.elapsed().as_secs_f64() * 1e3;
        if page.events.is_empty() || page.total == 0 {
            return Err(format!("{path} found nothing").into());
        }
        let mut times = Vec::with_capacity(bench.scale.lists);
        for _ in 0..bench.scale.lists {
            let start = Instant::now();
            connection.expect(200, "GET", path, b"").await?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        let p99 = p99(times).ok_or("nothing was listed")?;
        let note = format!("{path}: p99 {} ms, the very first {} ms, {} in all", short(p99), short(first), page.total);
        progress(&format!("{name} {note}"));
        notes.push(note);
        worst = worst.max(p99);
    }
    drop(connection);
    served.stop().await?;
    Ok(notes.into_iter().fold(Measured::absolute(known(name)?, vec![worst]), Measured::note))
}
