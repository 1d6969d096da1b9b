//! Callers that drop futures and leases, release, and shut down: no attempt is counted, and no entry stays leased.

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use tidegate::{EventQueue, NewEvent, QueuedEvent};

use super::{Arena, ScenarioResult, Settings, runtime, server};
use crate::denied::{is_denied, retried};
use crate::supervisor::POLL_INTERVAL;
use crate::workload::{BACK_OFF, Failure};

/// Far longer than the scenario, so that only a release frees an entry.
const LEASE: Duration = Duration::from_secs(3600);

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let server = server()?;
    for arena in [Arena::sqlite(settings)?, Arena::postgres(&server, settings)?] {
        let result = work(&arena, settings);
        arena.conclude(result)?;
    }
    Ok(format!("{} rounds on each database", rounds(settings)))
}

fn rounds(settings: Settings) -> u32 {
    settings.kills.unwrap_or(1_000)
}

fn work(arena: &Arena, settings: Settings) -> ScenarioResult {
    let events = settings.events.unwrap_or(300);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(hang_up(arena, events, rounds(settings), settings.rng()))?;
    all_free(arena, events, settings.limit())?;
    Ok(String::new())
}

async fn open(arena: &Arena) -> Result<EventQueue, Failure> {
    Ok(retried(|| EventQueue::builder().lease(LEASE).open(&arena.address)).await?)
}

async fn hang_up(arena: &Arena, events: u64, rounds: u32, mut rng: StdRng) -> Result<(), Failure> {
    let mut queue = open(arena).await?;
    for number in 0..events {
        retried(|| queue.publish(NewEvent::new("sim.call", format!("h#{number}\n")))).await?;
    }
    for round in 0..rounds {
        let timeout = Duration::from_micros(rng.random_range(0..3_000));
        // The future is dropped at any stage: before, during or after its transaction.
        let polled = tokio::time::timeout(timeout, queue.poll_many(rng.random_range(1..20))).await;
        match polled {
            Ok(Ok(claimed)) => give_back(claimed, timeout, &mut rng).await?,
            Ok(Err(error)) if is_denied(&error) => tokio::time::sleep(BACK_OFF).await,
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => {}
        }
        if round % 100 == 99 {
            // The shutdown interrupts a caller that waits for something to claim.
            let waiting = tokio::spawn({
                let queue = queue.clone();
                async move { queue.poll_many(10).await.map(drop) }
            });
            queue.close().await;
            // It may get events or an error; neither may count an attempt.
            let _ = waiting.await?;
            queue = open(arena).await?;
        }
    }
    queue.close().await;
    Ok(())
}

/// Releases or drops events, or goes away while a release is being written.
async fn give_back(claimed: Vec<QueuedEvent>, timeout: Duration, rng: &mut StdRng) -> Result<(), Failure> {
    for event in claimed {
        match rng.random_range(0..3) {
            0 => match event.release().await {
                // The event is dropped, and released in the background.
                Err(error) if is_denied(&error) => {}
                released => released?,
            },
            1 => drop(event),
            _ => drop(tokio::time::timeout(timeout, event.release()).await),
        }
    }
    Ok(())
}

/// Waits until all entries are live, not leased, and without counted attempts. A lease is an hour long, so only a
/// release can free an entry within the limit, however slow the machine is.
fn all_free(arena: &Arena, events: u64, limit: Duration) -> Result<(), Failure> {
    let deadline = Instant::now() + limit;
    loop {
        let state = arena.state()?;
        let touched: Vec<_> = state.live.iter().filter(|row| row.leased || row.attempts != 0).collect();
        if touched.is_empty() && state.live.len() as u64 == events {
            return Ok(());
        }
        if Instant::now() > deadline {
            let first = touched.iter().take(5).collect::<Vec<_>>();
            return Err(format!("{} of {events} live, {} not free: {first:?}", state.live.len(), touched.len()).into());
        }
        let queue = runtime()?;
        // Upkeep runs only while a queue is open.
        queue.block_on(async {
            open(arena).await?.close().await;
            Ok::<(), Failure>(())
        })?;
        std::thread::sleep(POLL_INTERVAL);
    }
}
