//! Managers with handlers on one Postgres, killed at random: every event ends once, a handler whose success was
//! recorded does not run again, and effects written in the transaction that ends an event are stored exactly once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::rngs::StdRng;
use tokio_postgres::error::SqlState;

use super::{Arena, Faults, ScenarioResult, Settings, drive, kill_one, runtime, server};
use crate::checker::handlers::{self, Evidence, Handlers};
use crate::history;
use crate::supervisor::Fleet;
use crate::workload::{EFFECTS, Failure, IN_TX, Job, PLAIN};

/// How often the witness reads the records of handlers; upkeep deletes them some time after their event has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// When the success of (entry, handler) was recorded, in microseconds of database time.
type Durable = HashMap<(i64, String), i64>;

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let server = server()?;
    let arena = Arena::postgres(&server, settings)?;
    let processes = processes(settings);
    let result = work(&arena, settings, |fleet, rng| kill_one(fleet, processes, rng));
    arena.conclude(result)
}

/// The number of processes that run handlers.
pub(crate) fn processes(settings: Settings) -> usize {
    settings.processes.unwrap_or(4).max(1) as usize
}

/// Runs processes with handlers, calls `strike` for each fault, and checks the histories.
pub(crate) fn work(
    arena: &Arena,
    settings: Settings,
    strike: impl FnMut(&mut Fleet, &mut StdRng) -> Result<(), Failure>,
) -> ScenarioResult {
    let processes = processes(settings) as u32;
    let events = settings.events.unwrap_or(20_000);
    let kills = settings.kills.unwrap_or(60);
    runtime()?.block_on(create_effects(&arena.address))?;
    let witness = Witness::start(arena.address.clone());
    let share = |number: u32| {
        let (number, processes) = (u64::from(number), u64::from(processes));
        events / processes + u64::from(number < events % processes)
    };
    let mut jobs: Vec<_> = (0..processes).map(|number| job(arena, number, share(number))).collect();
    jobs.push(arena.sampler());
    let mut fleet = Fleet::start(jobs)?;
    let mut faults = Faults::spread(kills, settings.rng());
    drive(&mut fleet, events, &mut faults, settings.limit(), strike)?;
    let durable = witness.stop()?;
    let evidence = runtime()?.block_on(gather(&arena.address, durable))?;
    let all = Handlers { plain: &PLAIN, in_tx: IN_TX };
    let history = history::read(&arena.histories(), None)?;
    let (report, tally) = handlers::check(&history, &arena.state()?, &evidence, all);
    if !report.violations.is_empty() {
        return Err(report.explain().into());
    }
    if tally.published as u64 != events || tally.ended as u64 != events {
        return Err(format!("expected {events} events to be published and to end: {tally}").into());
    }
    if tally.reclaimed == 0 {
        return Err(format!("no entry was claimed after a durable success, so nothing was tested: {tally}").into());
    }
    Ok(format!("{processes} processes, {} starts: {tally}", fleet.starts))
}

fn job(arena: &Arena, number: u32, events: u64) -> Job {
    Job {
        publishers: 2,
        consumers: 0,
        handlers: Some(50),
        lease_ms: 1_500,
        groups: 64,
        max_attempts: 100,
        ..arena.job(&format!("w{number}"), events)
    }
}

async fn connect(address: &str) -> Result<tokio_postgres::Client, Failure> {
    let (client, connection) = tokio_postgres::connect(address, tokio_postgres::NoTls).await?;
    // Ends with the client, whose calls return the errors of the connection.
    tokio::spawn(connection);
    Ok(client)
}

async fn create_effects(address: &str) -> Result<(), Failure> {
    Ok(connect(address).await?.batch_execute(EFFECTS).await?)
}

async fn gather(address: &str, durable: Durable) -> Result<Evidence, Failure> {
    let client = connect(address).await?;
    let results = client.query("SELECT id, results FROM tidegate.event_log WHERE superseded = 0", &[]).await?;
    let results = results.iter().map(|row| Ok((row.try_get(0)?, row.try_get::<_, Option<_>>(1)?.unwrap_or_default())));
    let effects = client.query("SELECT entry_id, token FROM sim_effects", &[]).await?;
    let effects = effects.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    Ok(Evidence {
        results: results.collect::<Result<_, tokio_postgres::Error>>()?,
        effects: effects.collect::<Result<_, tokio_postgres::Error>>()?,
        durable,
    })
}

/// Polls `event_handler_states` while the processes run, and collects the successes recorded there.
#[derive(Debug)]
struct Witness {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Durable, Failure>>>,
}

impl Witness {
    fn start(address: String) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let watch = move || runtime()?.block_on(watch(&address, &stopped));
        Self { stop, thread: Some(std::thread::spawn(watch)) }
    }

    fn stop(mut self) -> Result<Durable, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().ok_or("the witness was already stopped")?;
        thread.join().map_err(|_| "the witness panicked")?
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The run has already failed; the result of the witness does not matter.
            let _ = thread.join();
        }
    }
}

async fn watch(address: &str, stop: &AtomicBool) -> Result<Durable, Failure> {
    let client = connect(address).await?;
    let mut durable = Durable::new();
    // A record may become visible after one with a later timestamp, hence the overlap of 10 seconds.
    let sql = "SELECT entry_id, handler, result, (extract(epoch FROM recorded_at) * 1000000)::bigint
               FROM tidegate.event_handler_states
               WHERE recorded_at > to_timestamp($1::bigint / 1000000) - interval '10 seconds'";
    let mut latest = 0_i64;
    loop {
        let last = stop.load(Ordering::Relaxed);
        let rows = match client.query(sql, &[&latest]).await {
            Ok(rows) => rows,
            // The first process to start creates the table.
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) && !last => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        for row in rows {
            let result: serde_json::Value = serde_json::from_str(row.try_get(2)?)?;
            let since: i64 = row.try_get(3)?;
            latest = latest.max(since);
            if result["result"] == "SUCCESS" {
                let earliest = durable.entry((row.try_get(0)?, row.try_get(1)?)).or_insert(since);
                *earliest = since.min(*earliest);
            }
        }
        if last {
            return Ok(durable);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
