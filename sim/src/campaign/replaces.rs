//! Publishers replace waiting entries under the same keys while consumers claim them: every acknowledged content is
//! handed out or was replaced by a later one, a key has at most one waiting entry, and no entry lacks its fact.

mod plain_sql;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidegate::{EventQueue, NewEvent, PublishOutcome};
use tidegate_core::End;

use self::plain_sql::PlainSql;
use crate::checker::replaces::{self, Offered, Taken};
use crate::denied::{complete, retried};
use crate::scenario::{Arena, ScenarioResult, Settings, server};
use crate::state::State;
use crate::workload::{BACK_OFF, Failure};

const KEYS: u32 = 100;
const PUBLISHERS: u64 = 8;
const CONSUMERS: u64 = 2;
/// Longer than a run, so that no lease expires and nothing is handed out twice.
const LEASE: Duration = Duration::from_secs(600);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let server = server()?;
    let mut summaries = Vec::new();
    for (name, arena) in [("SQLite", Arena::sqlite(settings)?), ("Postgres", Arena::postgres(&server, settings)?)] {
        let result = work(&arena, settings);
        summaries.push(format!("{name}: {}", arena.conclude(result)?));
    }
    Ok(summaries.join("; "))
}

/// What the tasks of one run share. All are in this process, so times are readings of one counter.
#[derive(Debug, Default)]
struct Notes {
    counter: AtomicU64,
    /// Whether all publishers are done.
    published: AtomicBool,
    /// Whether all consumers are done, too.
    over: AtomicBool,
    replaced: AtomicU64,
    offered: Mutex<Vec<Offered>>,
    taken: Mutex<Vec<Taken>>,
}

impl Notes {
    fn now(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::SeqCst)
    }
}

fn list<T>(list: &Mutex<Vec<T>>) -> std::sync::MutexGuard<'_, Vec<T>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(arena: &Arena, settings: Settings) -> ScenarioResult {
    let events = settings.events.unwrap_or(40_000);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let notes = Arc::new(Notes::default());
    let mut samples = 0_u64;
    runtime.block_on(async {
        // Two handles look like two processes to Postgres; on SQLite both are the same.
        let first = open(arena).await?;
        let second = if arena.address.starts_with("sqlite:") { first.clone() } else { open(arena).await? };
        let watcher = watch(arena, &notes, &mut samples);
        let load = load([first.clone(), second.clone()], arena, &notes, events, settings);
        let (watched, loaded) = tokio::join!(watcher, load);
        second.close().await;
        first.close().await;
        loaded.and(watched)
    })?;
    conclude(&arena.state()?, &notes, samples)
}

async fn open(arena: &Arena) -> Result<EventQueue, Failure> {
    let builder = EventQueue::builder().lease(LEASE).poll_interval(Duration::from_millis(50));
    Ok(retried(|| builder.clone().open(&arena.address)).await?)
}

async fn load(
    queues: [EventQueue; 2],
    arena: &Arena,
    notes: &Arc<Notes>,
    events: u64,
    settings: Settings,
) -> Result<(), Failure> {
    let deadline = Instant::now() + settings.limit();
    let mut publishers = tokio::task::JoinSet::new();
    let mut consumers = tokio::task::JoinSet::new();
    for number in 0..PUBLISHERS {
        let (queue, rng) = (queues[number as usize % 2].clone(), task_rng(settings, number));
        let plain = PlainSql::new(&arena.address);
        publishers.spawn(publish(queue, plain, Arc::clone(notes), number, events / PUBLISHERS, rng));
    }
    for number in 0..CONSUMERS {
        let (queue, rng) = (queues[number as usize % 2].clone(), task_rng(settings, 100 + number));
        consumers.spawn(consume(queue, Arc::clone(notes), deadline, rng));
    }
    let mut answer = Ok(());
    while let Some(ended) = publishers.join_next().await {
        answer = answer.and(ended.map_err(Failure::from).and_then(|ended| ended));
    }
    notes.published.store(true, Ordering::SeqCst);
    while let Some(ended) = consumers.join_next().await {
        answer = answer.and(ended.map_err(Failure::from).and_then(|ended| ended));
    }
    notes.over.store(true, Ordering::SeqCst);
    answer
}

fn task_rng(settings: Settings, number: u64) -> StdRng {
    StdRng::seed_from_u64(settings.seed().wrapping_mul(1_000).wrapping_add(number))
}

async fn publish(
    queue: EventQueue,
    mut plain: PlainSql,
    notes: Arc<Notes>,
    number: u64,
    count: u64,
    mut rng: StdRng,
) -> Result<(), Failure> {
    for round in 0..count {
        let key = format!("k{}", rng.random_range(0..KEYS));
        let content = format!("{key}/{number}/{round}");
        let begun = notes.now();
        let event = NewEvent::new("sim.replaced", format!("{content}\n")).replace_waiting(key.as_str());
        let entry = if rng.random_ratio(1, 4) {
            plain.publish(&key, &content).await?
        } else {
            let published = retried(|| queue.publish(event.clone())).await?;
            notes.replaced.fetch_add(u64::from(published.outcome == PublishOutcome::Replaced), Ordering::Relaxed);
            Some(published.id.get())
        };
        let answered = entry.map(|_| notes.now());
        list(&notes.offered).push(Offered { key, content, begun, answered, entry });
        if entry.is_none() {
            tokio::time::sleep(BACK_OFF).await;
        }
    }
    Ok(())
}

/// Claims and completes until everything is published and the queue is empty.
async fn consume(queue: EventQueue, notes: Arc<Notes>, deadline: Instant, mut rng: StdRng) -> Result<(), Failure> {
    while Instant::now() < deadline {
        let last = notes.published.load(Ordering::SeqCst);
        let count = rng.random_range(1..6);
        let events = retried(|| queue.wait_many(count, Duration::from_millis(100))).await?;
        if events.is_empty() && last && retried(|| queue.depth()).await?.total() == 0 {
            return Ok(());
        }
        for event in events {
            let (entry, content) = (event.id.get(), crate::state::key_of(event.payload()));
            let held = event.hand_over();
            let at = notes.now();
            list(&notes.taken).push(Taken { entry, content, at });
            complete(&queue, &held).await?;
        }
        // A pause, so that entries wait and can be replaced.
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..15))).await;
    }
    Err(format!("not drained in time: {:?}", queue.depth().await?).into())
}

/// Reads the tables repeatedly during the run and returns the first violation.
async fn watch(arena: &Arena, notes: &Notes, samples: &mut u64) -> Result<(), Failure> {
    let mut answer = Ok(());
    while !notes.over.load(Ordering::SeqCst) {
        let state = match crate::workload::sqlite_path(&arena.address) {
            Some(path) => tokio::task::block_in_place(|| crate::state::read_sqlite(path)),
            None => crate::state::read_postgres(&arena.address).await,
        };
        answer = answer.and(state.and_then(|state| one_waiting_each(&state)));
        *samples += 1;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    answer
}

fn one_waiting_each(state: &State) -> Result<(), Failure> {
    let mut waiting: HashMap<&str, i64> = HashMap::new();
    for row in &state.live {
        let Some((key, _)) = row.key.split_once('/') else {
            return Err(format!("entry {} has no fact: {row:?}", row.id).into());
        };
        if !row.leased
            && let Some(other) = waiting.insert(key, row.id)
        {
            return Err(format!("{key} has two waiting entries: {other} and {}", row.id).into());
        }
    }
    Ok(())
}

fn conclude(state: &State, notes: &Notes, samples: u64) -> ScenarioResult {
    if let Some(row) = state.live.first() {
        return Err(format!("still live: {row:?}").into());
    }
    if let Some(row) = state.log.iter().find(|row| row.status != End::Completed.code()) {
        return Err(format!("not completed: {row:?}").into());
    }
    let (offered, taken) = (list(&notes.offered), list(&notes.taken));
    let wrong = replaces::check(&offered, &taken);
    if !wrong.is_empty() {
        return Err(wrong.iter().take(10).cloned().collect::<Vec<_>>().join("\n").into());
    }
    let replaced = notes.replaced.load(Ordering::Relaxed);
    if replaced == 0 || taken.is_empty() || samples == 0 {
        return Err(format!("nothing was tested: {replaced} replaced, {} taken, {samples} samples", taken.len()).into());
    }
    Ok(format!("{} contents, {replaced} replaced, {} taken, {samples} samples", offered.len(), taken.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::LiveRow;

    fn live(rows: &[(i64, &str, bool)]) -> State {
        let row = |(id, key, leased): &(i64, &str, bool)| LiveRow {
            id: *id,
            key: (*key).into(),
            token: 0,
            attempts: 0,
            leased: *leased,
        };
        State { live: rows.iter().map(row).collect(), ..State::default() }
    }

    #[test]
    fn a_second_waiting_entry_and_a_missing_fact_are_seen() {
        assert!(one_waiting_each(&live(&[(1, "k1/0/0", true), (2, "k1/0/1", false), (3, "k2/0/2", false)])).is_ok());
        assert!(one_waiting_each(&live(&[(1, "k1/0/0", false), (2, "k1/0/1", false)])).is_err());
        assert!(one_waiting_each(&live(&[(1, "(no fact)", true)])).is_err());
    }
}
