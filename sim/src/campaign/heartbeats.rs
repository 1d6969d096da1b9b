//! Heartbeats that do not get through for a while: whoever cannot keep a lease stops before somebody else starts. That
//! no two run at once is measured inside the handlers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use tidegate::{Delivered, Event, EventManager, EventQueue, Handled, NewEvent, RetryPolicy};
use tidegate_core::End;
use tidegate_testing::Proxy;

use crate::scenario::{Arena, Settings, Verdict, server};
use crate::workload::{Failure, sqlite_path};

const LEASE: Duration = Duration::from_millis(1_500);
const NODES: usize = 3;
const CONCURRENCY: usize = 30;
const LOOK: Duration = Duration::from_millis(20);

/// An event that says how long it takes.
#[derive(Debug, Deserialize)]
struct Slow(u64);

impl Event for Slow {
    const TYPE: &'static str = "sim.slow";
}

pub(crate) fn run(settings: Settings) -> Verdict {
    let server = server()?;
    let mut said = Vec::new();
    for arena in [Arena::sqlite(settings)?, Arena::postgres(&server, settings)?] {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let verdict = match sqlite_path(&arena.address) {
            Some(_) => runtime.block_on(on_sqlite(&arena, settings)),
            None => runtime.block_on(on_postgres(&arena, server.port(), settings)),
        };
        said.push(arena.conclude(verdict)?);
    }
    Ok(format!("SQLite: {}; Postgres: {}", said[0], said[1]))
}

/// Who is inside a handler right now, by entry.
#[derive(Debug, Default)]
struct Inside {
    holders: Mutex<HashMap<i64, Vec<i64>>>,
    wrong: Mutex<Vec<String>>,
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Inside {
    fn enter(self: &Arc<Self>, entry: i64, token: i64) -> Stay {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let mut all = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        let holders = all.entry(entry).or_default();
        if !holders.is_empty() {
            let detail = format!("entry {entry} is handled under token {token} while {holders:?} still run");
            self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(detail);
        }
        holders.push(token);
        Stay { inside: Arc::clone(self), entry, token }
    }
}

/// One run of the handler; over when it is dropped, also by being stopped.
struct Stay {
    inside: Arc<Inside>,
    entry: i64,
    token: i64,
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut all = self.inside.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holders) = all.get_mut(&self.entry) {
            holders.retain(|token| *token != self.token);
        }
    }
}

async fn handle(inside: Arc<Inside>, task: Delivered<Slow>) -> Handled {
    let stay = inside.enter(task.id().get(), task.entry().token.0);
    tokio::time::sleep(Duration::from_millis(task.0)).await;
    inside.ended.fetch_add(1, Ordering::Relaxed);
    drop(stay);
    Handled::Success
}

async fn open(address: &str) -> Result<EventQueue, Failure> {
    Ok(EventQueue::builder().lease(LEASE).poll_interval(Duration::from_millis(100)).open(address).await?)
}

async fn publish(queue: &EventQueue, events: u64, rng: &mut StdRng) -> Result<(), Failure> {
    // From far below a lease to twice its length: those need heartbeats that come through.
    let most = LEASE.as_millis() as u64 * 2;
    let events = (0..events).map(|_| {
        let mut event = NewEvent::new(Slow::TYPE, rng.random_range(10..most).to_string());
        event.max_attempts = 1_000;
        event
    });
    for answer in queue.publish_many(events.collect()).await {
        answer?;
    }
    Ok(())
}

/// Handles until told to stop.
fn node(
    queue: &EventQueue,
    inside: &Arc<Inside>,
    stop: tokio::sync::watch::Receiver<bool>,
) -> Result<impl Future<Output = Result<(), Failure>> + use<>, Failure> {
    let seen = Arc::clone(inside);
    let manager = EventManager::builder(queue)
        .on("slow", move |task: Delivered<Slow>| handle(Arc::clone(&seen), task))
        .concurrency(CONCURRENCY)
        .retry(RetryPolicy::fixed(Duration::from_millis(50)))
        .build()?;
    Ok(async move {
        let mut stop = stop;
        let stopped = async move {
            // Whoever would say so being gone means the same.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        Ok(manager.run_until(stopped).await?)
    })
}

fn outage(rng: &mut StdRng) -> Duration {
    LEASE * rng.random_range(13..25) / 10
}

async fn on_postgres(arena: &Arena, port: u16, settings: Settings) -> Verdict {
    let mut rng = StdRng::seed_from_u64(settings.seed());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let inside = Arc::new(Inside::default());
    let direct = open(&arena.address).await?;
    publish(&direct, settings.events.unwrap_or(2_000), &mut rng).await?;
    let mut proxies = Vec::new();
    let mut nodes = tokio::task::JoinSet::new();
    for _ in 0..NODES {
        let proxy = Proxy::start(port)?;
        let queue = open(&proxy.url(&arena.address)).await?;
        nodes.spawn(node(&queue, &inside, stopped.clone())?);
        proxies.push(proxy);
    }
    let faults = settings.kills.unwrap_or(20);
    for _ in 0..faults {
        tokio::time::sleep(LEASE * rng.random_range(3..10) / 10).await;
        let proxy = &proxies[rng.random_range(0..NODES)];
        if rng.random() {
            proxy.go_silent()
        } else {
            proxy.cut()
        }
        tokio::time::sleep(outage(&mut rng)).await;
        proxy.pass();
    }
    drained(&direct, settings).await?;
    stop.send_replace(true);
    while let Some(ended) = nodes.join_next().await {
        ended??;
    }
    direct.close().await;
    // The last of them let go of their connections when they stopped; nothing is sent through them any more.
    drop(proxies);
    conclude(arena, &inside, faults).await
}

/// One process has the file; somebody else locks it, so that no heartbeat is written.
async fn on_sqlite(arena: &Arena, settings: Settings) -> Verdict {
    let mut rng = StdRng::seed_from_u64(settings.seed());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let inside = Arc::new(Inside::default());
    let queue = open(&arena.address).await?;
    publish(&queue, settings.events.unwrap_or(2_000), &mut rng).await?;
    let node = tokio::spawn(node(&queue, &inside, stopped)?);
    let path = sqlite_path(&arena.address).ok_or("not a file")?.to_path_buf();
    let faults = settings.kills.unwrap_or(20);
    for _ in 0..faults {
        tokio::time::sleep(LEASE * rng.random_range(3..10) / 10).await;
        let (path, length) = (path.clone(), outage(&mut rng));
        tokio::task::spawn_blocking(move || lock(&path, length)).await??;
    }
    drained(&queue, settings).await?;
    stop.send_replace(true);
    node.await??;
    queue.close().await;
    conclude(arena, &inside, faults).await
}

fn lock(path: &std::path::Path, length: Duration) -> Result<(), Failure> {
    let connection = rusqlite::Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(30))?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    std::thread::sleep(length);
    Ok(connection.execute_batch("ROLLBACK")?)
}

async fn drained(queue: &EventQueue, settings: Settings) -> Result<(), Failure> {
    let deadline = Instant::now() + settings.limit();
    loop {
        let depth = queue.depth().await?;
        if depth.total() == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("not worked off in time: {depth:?}").into());
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn conclude(arena: &Arena, inside: &Inside, faults: u32) -> Verdict {
    let state = match sqlite_path(&arena.address) {
        Some(path) => crate::state::read_sqlite(path)?,
        None => crate::state::read_postgres(&arena.address).await?,
    };
    if let Some(row) = state.log.iter().find(|row| row.status != End::Completed.code()) {
        return Err(format!("not completed: {row:?}").into());
    }
    let wrong = inside.wrong.lock().unwrap_or_else(PoisonError::into_inner);
    if !wrong.is_empty() {
        return Err(format!("{} times two at once:\n{}", wrong.len(), wrong[..wrong.len().min(5)].join("\n")).into());
    }
    let (begun, ended) = (inside.begun.load(Ordering::Relaxed), inside.ended.load(Ordering::Relaxed));
    let stopped = begun - ended;
    if stopped == 0 && sqlite_path(&arena.address).is_none() {
        return Err(format!("none of {begun} runs was stopped, so nothing was shown").into());
    }
    Ok(format!("{faults} outages, {} events, {begun} runs, {stopped} stopped, never two at once", state.log.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_at_once_are_seen_and_one_after_the_other_are_not() {
        let inside = Arc::new(Inside::default());
        drop(inside.enter(7, 1));
        let second = inside.enter(7, 2);
        let _other = inside.enter(8, 1);
        assert!(inside.wrong.lock().unwrap().is_empty());
        let _third = inside.enter(7, 3);
        drop(second);
        assert_eq!(inside.wrong.lock().unwrap().len(), 1);
    }
}
