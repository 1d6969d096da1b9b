//! How soon an idle manager handles a new event, and how much CPU time it uses while there is nothing to do.

use std::time::{Duration, Instant};

use tidegate::{Delivered, Event, EventManager, EventQueue, Handled};
use tokio::sync::mpsc;

use super::{Bench, known};
use crate::machine::cpu_time;
use crate::report::Measured;
use crate::runner::{p99, progress, short};
use crate::scale::PAYLOAD;
use crate::{Result, tide};

const WAKES: [&str; 5] = [
    "postgres_wake_same_process",
    "postgres_wake_publish",
    "postgres_wake_publish_in",
    "postgres_wake_sql",
    "postgres_wake_lost",
];
const IDLE: [&str; 2] = ["postgres_manager_idle_cpu", "sqlite_manager_idle_cpu"];
/// The pause before each publish, so that the manager is idle.
const PAUSE: Duration = Duration::from_millis(130);

#[derive(Debug, serde::Deserialize)]
struct Order {}

impl Event for Order {
    const TYPE: &'static str = tide::TYPE;
}

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When a database call fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    for name in WAKES.into_iter().filter(|name| bench.wanted.has(name)) {
        let mut runs = Vec::new();
        for run in 1..=bench.scale.wakes {
            let took = wake(bench, name).await?;
            progress(&format!("{name} {run}/{}: p99 {} ms", bench.scale.wakes, short(took)));
            runs.push(took);
        }
        outcomes.push(Measured::absolute(known(name)?, runs));
    }
    for name in IDLE.into_iter().filter(|name| bench.wanted.has(name)) {
        let mut runs = Vec::new();
        for _ in 0..bench.scale.wakes {
            runs.push(idle(bench, name).await?);
        }
        outcomes.push(Measured::absolute(known(name)?, runs));
    }
    Ok(outcomes)
}

/// A manager whose handler sends the moment of its start.
fn stamping(queue: &EventQueue) -> Result<(EventManager, mpsc::UnboundedReceiver<Instant>)> {
    let (sender, started) = mpsc::unbounded_channel();
    let manager = EventManager::builder(queue)
        .on("stamp", move |_: Delivered<Order>| {
            // Fails only after the receiver was dropped, when all events were handled.
            let _ = sender.send(Instant::now());
            std::future::ready(Handled::Success)
        })
        .build()?;
    Ok((manager, started))
}

/// The 99th percentile of the time from the commit of a publish to the start of the handler, in milliseconds.
async fn wake(bench: &Bench, name: &str) -> Result<f64> {
    let database = bench.server()?.database().await?;
    let queue = EventQueue::open(&database.url).await?;
    // Shares nothing with `queue` but the database, like a queue in another process.
    let other = EventQueue::open(&database.url).await?;
    let mut own = database.connect().await?;
    let (manager, mut started) = stamping(&queue)?;
    let running = tokio::spawn({
        let manager = manager.clone();
        async move { manager.run_process_loop().await }
    });
    let event = tide::event(PAYLOAD);
    let mut took = Vec::new();
    for number in 0..bench.scale.latency / 4 + 3 {
        tokio::time::sleep(PAUSE).await;
        match name {
            "postgres_wake_same_process" => drop(queue.publish(event.clone()).await?),
            "postgres_wake_publish" => drop(other.publish(event.clone()).await?),
            "postgres_wake_publish_in" => {
                let mut tx = own.transaction().await?;
                let receipt = other.publish_in(&mut tx, event.clone()).await?;
                tx.commit().await?;
                receipt.wake();
            }
            "postgres_wake_sql" => sql(&own, true).await?,
            _ => sql(&own, false).await?,
        }
        let committed = Instant::now();
        let at = tokio::time::timeout(Duration::from_secs(30), started.recv()).await?.ok_or("the manager stopped")?;
        if number >= 3 {
            took.push(at.saturating_duration_since(committed).as_secs_f64() * 1e3);
        }
    }
    manager.shutdown();
    running.await??;
    other.close().await;
    queue.close().await;
    Ok(p99(took).ok_or("no event was measured")?)
}

/// Publishes with plain SQL, with or without a notification.
async fn sql(own: &tokio_postgres::Client, wake: bool) -> Result<()> {
    let sql = "SELECT tidegate.publish($1, '{}', wake => $2)";
    own.execute(sql, &[&tide::TYPE, &wake]).await?;
    Ok(())
}

/// CPU time that this process uses while its manager has nothing to do, in percent of a core.
async fn idle(bench: &Bench, name: &str) -> Result<f64> {
    let (mut database, mut folder) = (None, None);
    let address = if name == IDLE[0] {
        database.insert(bench.server()?.database().await?).url.clone()
    } else {
        let folder = folder.insert(bench.sqlite_folder()?);
        folder.path().join("tidegate.db").to_string_lossy().into_owned()
    };
    let queue = EventQueue::open(&address).await?;
    let (manager, _started) = stamping(&queue)?;
    let running = tokio::spawn({
        let manager = manager.clone();
        async move { manager.run_process_loop().await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (before, start) = (cpu_time(std::process::id())?, Instant::now());
    tokio::time::sleep(bench.scale.idle).await;
    let percent = (cpu_time(std::process::id())? - before).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
    progress(&format!("{name}: {} %", short(percent)));
    manager.shutdown();
    running.await??;
    queue.close().await;
    drop((database, folder));
    Ok(percent)
}
