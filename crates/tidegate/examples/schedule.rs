//! A schedule that ticks every second, run by two schedulers at once: each tick is published, and handled, once.
//!
//! `cargo run --example schedule` keeps its events in a temporary folder; an address as argument
//! (`sqlite:PATH`, `postgres://…`) uses that database. It ends by itself after three ticks.

use tidegate::{EventBus, EventQueue, MissedTicks, NewEvent, Router, Schedule, Scheduler, Timestamp};
use tokio::sync::{mpsc, watch};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let folder = tempfile::tempdir()?;
    let address = std::env::args().nth(1).unwrap_or_else(|| format!("sqlite:{}", folder.path().join("q.db").display()));
    run(&address).await.map(drop)
}

/// Waits for three ticks and returns their times.
pub(crate) async fn run(address: &str) -> Result<Vec<Timestamp>, AnyError> {
    let queue = EventQueue::builder().queue("example-schedule")?.open(address).await?;

    // Every process may do this at each start: an unchanged schedule keeps its next tick.
    let every_second = Schedule::new("example-heartbeat", "* * * * * *", NewEvent::new("heartbeat.due", "{}"))
        .timezone("Europe/Berlin")
        .missed(MissedTicks::Once);
    let schedule = queue.schedules().put(every_second).await?;
    println!("next tick at {}", schedule.next_at);

    let (stop, stopped) = watch::channel(false);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let (scheduler, mut stopped) = (Scheduler::new(queue.clone()), stopped.clone());
        tasks.spawn(async move { scheduler.run(async move { drop(stopped.wait_for(|stop| *stop).await) }).await });
    }

    let (handled, mut ticks) = mpsc::unbounded_channel();
    let router = Router::new().on_event("heartbeat.due", move |event: tidegate::Claimed| {
        let handled = handled.clone();
        async move { handled.send(event.fact.time) }
    });
    let worker = EventBus::new(queue.clone())?.worker(router)?;
    tasks.spawn({
        let mut stopped = stopped.clone();
        async move { worker.run(async move { drop(stopped.wait_for(|stop| *stop).await) }).await }
    });

    let mut seen = Vec::new();
    for _ in 0..3 {
        if let Some(Some(tick)) = ticks.recv().await {
            println!("tick of {tick}");
            seen.push(tick);
        }
    }
    stop.send(true)?;
    while tasks.join_next().await.is_some() {}
    queue.schedules().delete("example-heartbeat").await?;
    queue.close().await;
    Ok(seen)
}
