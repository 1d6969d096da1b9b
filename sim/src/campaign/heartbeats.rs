//! Heartbeats that do not reach the store for a while: a handler whose lease cannot be extended is stopped before
//! another worker starts on the entry. The handlers themselves record whether two run at once.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use tidegate::{Delivered, Event, EventManager, EventQueue, Handled, NewEvent, RetryPolicy};
use tidegate_core::End;
use tidegate_testing::Proxy;

use crate::scenario::{Arena, ScenarioResult, Settings, server};
use crate::workload::{Failure, sqlite_path};

const LEASE: Duration = Duration::from_millis(1_500);
const NODES: usize = 3;
const CONCURRENCY: usize = 30;
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How many more outages are tried when none of the planned ones stopped a handler.
const MORE_OUTAGES: u32 = 5;

/// An event that says how long its handler takes, in milliseconds.
#[derive(Debug, Deserialize)]
struct Slow(u64);

impl Event for Slow {
    const TYPE: &'static str = "sim.slow";
}

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let server = server()?;
    let mut summaries = Vec::new();
    for arena in [Arena::sqlite(settings)?, Arena::postgres(&server, settings)?] {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let result = match sqlite_path(&arena.address) {
            Some(_) => runtime.block_on(on_sqlite(&arena, settings)),
            None => runtime.block_on(on_postgres(&arena, server.port(), settings)),
        };
        summaries.push(arena.conclude(result)?);
    }
    Ok(format!("SQLite: {}; Postgres: {}", summaries[0], summaries[1]))
}

/// The lease under which a handler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holder {
    node: usize,
    token: i64,
}

/// The handlers that run right now.
#[derive(Debug, Default)]
struct Running {
    /// By entry.
    holders: Mutex<HashMap<i64, Vec<Holder>>>,
    /// Descriptions of entries with two handlers at once.
    overlaps: Mutex<Vec<String>>,
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Running {
    fn begin(self: &Arc<Self>, entry: i64, holder: Holder) -> Run {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let mut all = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        let holders = all.entry(entry).or_default();
        if !holders.is_empty() {
            let detail = format!("entry {entry} is handled by {holder:?} while {holders:?} still run");
            self.overlaps.lock().unwrap_or_else(PoisonError::into_inner).push(detail);
        }
        holders.push(holder);
        Run { running: Arc::clone(self), entry, holder }
    }

    /// The nodes that run a handler.
    fn busy(&self) -> BTreeSet<usize> {
        let all = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().flatten().map(|holder| holder.node).collect()
    }

    /// How many runs were stopped; valid once no handler runs.
    fn stopped(&self) -> u64 {
        self.begun.load(Ordering::Relaxed) - self.ended.load(Ordering::Relaxed)
    }
}

/// One run of the handler. It ends when this is dropped, also when the handler is stopped.
struct Run {
    running: Arc<Running>,
    entry: i64,
    holder: Holder,
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut all = self.running.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holders) = all.get_mut(&self.entry) {
            holders.retain(|holder| *holder != self.holder);
        }
    }
}

async fn handle(running: Arc<Running>, node: usize, task: Delivered<Slow>) -> Handled {
    let run = running.begin(task.id().get(), Holder { node, token: task.entry().token.0 });
    tokio::time::sleep(Duration::from_millis(task.0)).await;
    running.ended.fetch_add(1, Ordering::Relaxed);
    drop(run);
    Handled::Success
}

async fn open(address: &str) -> Result<EventQueue, Failure> {
    Ok(EventQueue::builder().lease(LEASE).poll_interval(Duration::from_millis(100)).open(address).await?)
}

async fn publish(queue: &EventQueue, events: u64, rng: &mut StdRng) -> Result<(), Failure> {
    // From 10 ms to two leases: the long ones depend on heartbeats.
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

/// How many of the events are published before outage `number`.
fn share(events: u64, faults: u32, number: u32) -> u64 {
    let (faults, number) = (u64::from(faults.max(1)), u64::from(number));
    events / faults + u64::from(number < events % faults)
}

/// Publishes events and waits until a handler has begun: an outage while none runs would test nothing.
async fn make_busy(queue: &EventQueue, running: &Running, events: u64, rng: &mut StdRng) -> Result<(), Failure> {
    tokio::time::sleep(LEASE * rng.random_range(2..6) / 10).await;
    let before = running.begun.load(Ordering::Relaxed);
    publish(queue, events, rng).await?;
    let deadline = Instant::now() + LEASE;
    while running.begun.load(Ordering::Relaxed) == before && Instant::now() < deadline {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    tokio::time::sleep(LEASE * rng.random_range(1..4) / 10).await;
    Ok(())
}

/// A manager that runs until told to stop.
fn node(
    number: usize,
    queue: &EventQueue,
    running: &Arc<Running>,
    stop: tokio::sync::watch::Receiver<bool>,
) -> Result<impl Future<Output = Result<(), Failure>> + use<>, Failure> {
    let seen = Arc::clone(running);
    let manager = EventManager::builder(queue)
        .on("slow", move |task: Delivered<Slow>| handle(Arc::clone(&seen), number, task))
        .concurrency(CONCURRENCY)
        .retry(RetryPolicy::fixed(Duration::from_millis(50)))
        .build()?;
    Ok(async move {
        let mut stop = stop;
        let stopped = async move {
            // A dropped sender also means stop.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        Ok(manager.run_until(stopped).await?)
    })
}

/// The length of an outage: longer than a lease.
fn outage(rng: &mut StdRng) -> Duration {
    LEASE * rng.random_range(13..25) / 10
}

async fn on_postgres(arena: &Arena, port: u16, settings: Settings) -> ScenarioResult {
    let mut rng = StdRng::seed_from_u64(settings.seed());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let running = Arc::new(Running::default());
    let direct = open(&arena.address).await?;
    let mut proxies = Vec::new();
    let mut nodes = tokio::task::JoinSet::new();
    for number in 0..NODES {
        let proxy = Proxy::start(port)?;
        let queue = open(&proxy.url(&arena.address)).await?;
        nodes.spawn(node(number, &queue, &running, stopped.clone())?);
        proxies.push(proxy);
    }
    let (events, faults) = (settings.events.unwrap_or(2_000), settings.kills.unwrap_or(20));
    for number in 0..faults {
        make_busy(&direct, &running, share(events, faults, number), &mut rng).await?;
        strike(&proxies, &running, &mut rng).await;
    }
    drained(&direct, settings).await?;
    let mut more = 0;
    // All handlers that ran during an outage may have ended before their leases did.
    while running.stopped() == 0 && more < MORE_OUTAGES {
        more += 1;
        make_busy(&direct, &running, share(events, faults, 0), &mut rng).await?;
        strike(&proxies, &running, &mut rng).await;
        drained(&direct, settings).await?;
    }
    stop.send_replace(true);
    while let Some(ended) = nodes.join_next().await {
        ended??;
    }
    direct.close().await;
    // Kept until the nodes have stopped, since they close their connections through them.
    drop(proxies);
    conclude(arena, &running, faults + more).await
}

/// Interrupts the connection of a node that runs a handler, if there is one: on others nothing can be stopped.
async fn strike(proxies: &[Proxy], running: &Running, rng: &mut StdRng) {
    let busy: Vec<usize> = running.busy().into_iter().collect();
    let node = if busy.is_empty() { rng.random_range(0..NODES) } else { busy[rng.random_range(0..busy.len())] };
    let proxy = &proxies[node];
    if rng.random() {
        proxy.go_silent()
    } else {
        proxy.cut()
    }
    tokio::time::sleep(outage(rng)).await;
    proxy.pass();
}

/// One process uses the file; another connection locks it, so that no heartbeat is written.
async fn on_sqlite(arena: &Arena, settings: Settings) -> ScenarioResult {
    let mut rng = StdRng::seed_from_u64(settings.seed());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let running = Arc::new(Running::default());
    let queue = open(&arena.address).await?;
    let node = tokio::spawn(node(0, &queue, &running, stopped)?);
    let path = sqlite_path(&arena.address).ok_or("not a file")?.to_path_buf();
    let (events, faults) = (settings.events.unwrap_or(2_000), settings.kills.unwrap_or(20));
    for number in 0..faults {
        make_busy(&queue, &running, share(events, faults, number), &mut rng).await?;
        let (path, length) = (path.clone(), outage(&mut rng));
        tokio::task::spawn_blocking(move || lock(&path, length)).await??;
    }
    drained(&queue, settings).await?;
    stop.send_replace(true);
    node.await??;
    queue.close().await;
    conclude(arena, &running, faults).await
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
            return Err(format!("not drained in time: {depth:?}").into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn conclude(arena: &Arena, running: &Running, faults: u32) -> ScenarioResult {
    let state = match sqlite_path(&arena.address) {
        Some(path) => crate::state::read_sqlite(path)?,
        None => crate::state::read_postgres(&arena.address).await?,
    };
    if let Some(row) = state.log.iter().find(|row| row.status != End::Completed.code()) {
        return Err(format!("not completed: {row:?}").into());
    }
    let overlaps = running.overlaps.lock().unwrap_or_else(PoisonError::into_inner);
    if !overlaps.is_empty() {
        return Err(format!("{} overlaps:\n{}", overlaps.len(), overlaps[..overlaps.len().min(5)].join("\n")).into());
    }
    let (begun, stopped) = (running.begun.load(Ordering::Relaxed), running.stopped());
    if stopped == 0 && sqlite_path(&arena.address).is_none() {
        return Err(format!("none of {begun} runs was stopped, so nothing was tested").into());
    }
    Ok(format!("{faults} outages, {} events, {begun} runs, {stopped} stopped, never two at once", state.log.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_at_once_are_seen_and_one_after_the_other_are_not() {
        let running = Arc::new(Running::default());
        let under = |token| Holder { node: 0, token };
        drop(running.begin(7, under(1)));
        let second = running.begin(7, under(2));
        let _other = running.begin(8, under(1));
        assert!(running.overlaps.lock().unwrap().is_empty());
        let _third = running.begin(7, under(3));
        drop(second);
        assert_eq!(running.overlaps.lock().unwrap().len(), 1);
    }

    #[test]
    fn those_who_run_something_are_known() {
        let running = Arc::new(Running::default());
        let first = running.begin(7, Holder { node: 0, token: 1 });
        let _second = running.begin(8, Holder { node: 2, token: 1 });
        assert_eq!(running.busy(), BTreeSet::from([0, 2]));
        drop(first);
        assert_eq!(running.busy(), BTreeSet::from([2]));
    }

    #[test]
    fn all_events_are_shared_out() {
        for (events, faults) in [(100, 2), (2_000, 20), (7, 3), (2, 5)] {
            assert_eq!((0..faults).map(|number| share(events, faults, number)).sum::<u64>(), events);
        }
    }
}
