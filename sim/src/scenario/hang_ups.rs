//! Callers that hang up, drop what they hold, release it or shut down use up no attempts, and hold nothing back.

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use tidegate::{EventQueue, NewEvent};

use super::{Arena, Settings, Verdict, runtime, server};
use crate::supervisor::GLANCE;
use crate::workload::Failure;

/// Far longer than the scenario: only a release can free an entry.
const LEASE: Duration = Duration::from_secs(3600);
const FREE_WITHIN: Duration = Duration::from_secs(30);

pub(crate) fn run(settings: Settings) -> Verdict {
    let server = server()?;
    for arena in [Arena::sqlite(settings)?, Arena::postgres(&server, settings)?] {
        let verdict = work(&arena, settings);
        arena.conclude(verdict)?;
    }
    Ok(format!("{} rounds on each database", rounds(settings)))
}

fn rounds(settings: Settings) -> u32 {
    settings.kills.unwrap_or(1_000)
}

fn work(arena: &Arena, settings: Settings) -> Verdict {
    let events = settings.events.unwrap_or(300);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(hang_up(arena, events, rounds(settings), settings.rng()))?;
    all_free(arena, events)?;
    Ok(String::new())
}

async fn open(arena: &Arena) -> Result<EventQueue, Failure> {
    Ok(EventQueue::builder().lease(LEASE).open(&arena.address).await?)
}

async fn hang_up(arena: &Arena, events: u64, rounds: u32, mut rng: StdRng) -> Result<(), Failure> {
    let mut queue = open(arena).await?;
    for published in
        queue.publish_many((0..events).map(|n| NewEvent::new("sim.call", format!("h#{n}\n"))).collect()).await
    {
        published?;
    }
    for round in 0..rounds {
        let patience = Duration::from_micros(rng.random_range(0..3_000));
        // The future is dropped wherever it stands: before, within or after its transaction.
        let polled = tokio::time::timeout(patience, queue.poll_many(rng.random_range(1..20))).await;
        if let Ok(claimed) = polled {
            for event in claimed? {
                match rng.random_range(0..3) {
                    0 => event.release().await?,
                    1 => drop(event),
                    // The verdict is on its way when its caller goes.
                    _ => drop(tokio::time::timeout(patience, event.release()).await),
                }
            }
        }
        if round % 100 == 99 {
            // Whoever waits for a claim is cut off by the shutdown.
            let waiting = tokio::spawn({
                let queue = queue.clone();
                async move { queue.poll_many(10).await.map(drop) }
            });
            queue.close().await;
            // It may have been served or refused; neither may cost an attempt.
            let _ = waiting.await?;
            queue = open(arena).await?;
        }
    }
    queue.close().await;
    Ok(())
}

/// Everything waits as if nobody had ever asked.
fn all_free(arena: &Arena, events: u64) -> Result<(), Failure> {
    let deadline = Instant::now() + FREE_WITHIN;
    loop {
        let state = arena.state()?;
        let touched: Vec<_> = state.live.iter().filter(|row| row.leased || row.attempts != 0).collect();
        if touched.is_empty() && state.live.len() as u64 == events {
            return Ok(());
        }
        if Instant::now() > deadline {
            let first = touched.iter().take(5).collect::<Vec<_>>();
            return Err(
                format!("{} of {events} are live, {} touched: {first:?}", state.live.len(), touched.len()).into()
            );
        }
        let queue = runtime()?;
        // Somebody must be there to do the upkeep.
        queue.block_on(async {
            open(arena).await?.close().await;
            Ok::<(), Failure>(())
        })?;
        std::thread::sleep(GLANCE);
    }
}
