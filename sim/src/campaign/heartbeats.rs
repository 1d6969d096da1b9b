//! Heartbeats that do not get through for a while: whoever cannot keep a lease stops before somebody else starts. That
//! no two run at once is measured inside the handlers.

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

use crate::scenario::{Arena, Settings, Verdict, server};
use crate::workload::{Failure, sqlite_path};

const LEASE: Duration = Duration::from_millis(1_500);
const NODES: usize = 3;
const CONCURRENCY: usize = 30;
const LOOK: Duration = Duration::from_millis(20);
/// Further outages where none of them came at a moment at which somebody was stopped.
const MORE_OUTAGES: u32 = 5;

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

/// One who is inside a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holder {
    node: usize,
    token: i64,
}

/// Who is inside a handler right now, by entry.
#[derive(Debug, Default)]
struct Inside {
    holders: Mutex<HashMap<i64, Vec<Holder>>>,
    wrong: Mutex<Vec<String>>,
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Inside {
    fn enter(self: &Arc<Self>, entry: i64, holder: Holder) -> Stay {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let mut all = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        let holders = all.entry(entry).or_default();
        if !holders.is_empty() {
            let detail = format!("entry {entry} is handled by {holder:?} while {holders:?} still run");
            self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(detail);
        }
        holders.push(holder);
        Stay { inside: Arc::clone(self), entry, holder }
    }

    /// The nodes that run something.
    fn busy(&self) -> BTreeSet<usize> {
        let all = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().flatten().map(|holder| holder.node).collect()
    }

    /// How many runs were stopped, once nothing runs any more.
    fn stopped(&self) -> u64 {
        self.begun.load(Ordering::Relaxed) - self.ended.load(Ordering::Relaxed)
    }
}

/// One run of the handler; over when it is dropped, also by being stopped.
struct Stay {
    inside: Arc<Inside>,
    entry: i64,
    holder: Holder,
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut all = self.inside.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holders) = all.get_mut(&self.entry) {
            holders.retain(|holder| *holder != self.holder);
        }
    }
}

async fn handle(inside: Arc<Inside>, node: usize, task: Delivered<Slow>) -> Handled {
    let stay = inside.enter(task.id().get(), Holder { node, token: task.entry().token.0 });
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

/// How many of the events are published before an outage.
fn share(events: u64, faults: u32, number: u32) -> u64 {
    let (faults, number) = (u64::from(faults.max(1)), u64::from(number));
    events / faults + u64::from(number < events % faults)
}

/// Publishes fresh work and lets some of it begin: an outage while nobody runs anything would show nothing.
async fn employ(queue: &EventQueue, inside: &Inside, events: u64, rng: &mut StdRng) -> Result<(), Failure> {
    tokio::time::sleep(LEASE * rng.random_range(2..6) / 10).await;
    let before = inside.begun.load(Ordering::Relaxed);
    publish(queue, events, rng).await?;
    let deadline = Instant::now() + LEASE;
    while inside.begun.load(Ordering::Relaxed) == before && Instant::now() < deadline {
        tokio::time::sleep(LOOK).await;
    }
    tokio::time::sleep(LEASE * rng.random_range(1..4) / 10).await;
    Ok(())
}

/// Handles until told to stop.
fn node(
    number: usize,
    queue: &EventQueue,
    inside: &Arc<Inside>,
    stop: tokio::sync::watch::Receiver<bool>,
) -> Result<impl Future<Output = Result<(), Failure>> + use<>, Failure> {
    let seen = Arc::clone(inside);
    let manager = EventManager::builder(queue)
        .on("slow", move |task: Delivered<Slow>| handle(Arc::clone(&seen), number, task))
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
    let mut proxies = Vec::new();
    let mut nodes = tokio::task::JoinSet::new();
    for number in 0..NODES {
        let proxy = Proxy::start(port)?;
        let queue = open(&proxy.url(&arena.address)).await?;
        nodes.spawn(node(number, &queue, &inside, stopped.clone())?);
        proxies.push(proxy);
    }
    let (events, faults) = (settings.events.unwrap_or(2_000), settings.kills.unwrap_or(20));
    for number in 0..faults {
        employ(&direct, &inside, share(events, faults, number), &mut rng).await?;
        strike(&proxies, &inside, &mut rng).await;
    }
    drained(&direct, settings).await?;
    let mut more = 0;
    // What was running may all have ended before its lease did.
    while inside.stopped() == 0 && more < MORE_OUTAGES {
        more += 1;
        employ(&direct, &inside, share(events, faults, 0), &mut rng).await?;
        strike(&proxies, &inside, &mut rng).await;
        drained(&direct, settings).await?;
    }
    stop.send_replace(true);
    while let Some(ended) = nodes.join_next().await {
        ended??;
    }
    direct.close().await;
    // The last of them let go of their connections when they stopped; nothing is sent through them any more.
    drop(proxies);
    conclude(arena, &inside, faults + more).await
}

/// Takes the line away for a while from a node that runs something: nobody else can be stopped.
async fn strike(proxies: &[Proxy], inside: &Inside, rng: &mut StdRng) {
    let busy: Vec<usize> = inside.busy().into_iter().collect();
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

/// One process has the file; somebody else locks it, so that no heartbeat is written.
async fn on_sqlite(arena: &Arena, settings: Settings) -> Verdict {
    let mut rng = StdRng::seed_from_u64(settings.seed());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let inside = Arc::new(Inside::default());
    let queue = open(&arena.address).await?;
    let node = tokio::spawn(node(0, &queue, &inside, stopped)?);
    let path = sqlite_path(&arena.address).ok_or("not a file")?.to_path_buf();
    let (events, faults) = (settings.events.unwrap_or(2_000), settings.kills.unwrap_or(20));
    for number in 0..faults {
        employ(&queue, &inside, share(events, faults, number), &mut rng).await?;
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
    let (begun, stopped) = (inside.begun.load(Ordering::Relaxed), inside.stopped());
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
        let under = |token| Holder { node: 0, token };
        drop(inside.enter(7, under(1)));
        let second = inside.enter(7, under(2));
        let _other = inside.enter(8, under(1));
        assert!(inside.wrong.lock().unwrap().is_empty());
        let _third = inside.enter(7, under(3));
        drop(second);
        assert_eq!(inside.wrong.lock().unwrap().len(), 1);
    }

    #[test]
    fn those_who_run_something_are_known() {
        let inside = Arc::new(Inside::default());
        let first = inside.enter(7, Holder { node: 0, token: 1 });
        let _second = inside.enter(8, Holder { node: 2, token: 1 });
        assert_eq!(inside.busy(), BTreeSet::from([0, 2]));
        drop(first);
        assert_eq!(inside.busy(), BTreeSet::from([2]));
    }

    #[test]
    fn all_events_are_shared_out() {
        for (events, faults) in [(100, 2), (2_000, 20), (7, 3), (2, 5)] {
            assert_eq!((0..faults).map(|number| share(events, faults, number)).sum::<u64>(), events);
        }
    }
}
