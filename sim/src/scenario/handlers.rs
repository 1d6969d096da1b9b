//! Managers with handlers on one Postgres, killed at random: every event ends once, a handler that had succeeded durably
//! does not run again, and effects written in the transaction that ends an event are there exactly once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::rngs::StdRng;
use tokio_postgres::error::SqlState;

use super::{Arena, Faults, Settings, Verdict, drive, kill_one, runtime, server};
use crate::checker::handlers::{self, Evidence, Handlers};
use crate::history;
use crate::supervisor::Fleet;
use crate::workload::{EFFECTS, Failure, IN_TX, Job, PLAIN};

/// How often records of handlers are looked at; they go when their event has ended and somebody cleans up.
const LOOK: Duration = Duration::from_millis(20);

type Durable = HashMap<(i64, String), i64>;

pub(crate) fn run(settings: Settings) -> Verdict {
    let server = server()?;
    let arena = Arena::postgres(&server, settings)?;
    let processes = processes(settings);
    let verdict = work(&arena, settings, |fleet, rng| kill_one(fleet, processes, rng));
    arena.conclude(verdict)
}

/// How many processes handle events.
pub(crate) fn processes(settings: Settings) -> usize {
    settings.processes.unwrap_or(4).max(1) as usize
}

/// Has processes handle events while `strike` befalls them, and checks what came of it.
pub(crate) fn work(
    arena: &Arena,
    settings: Settings,
    strike: impl FnMut(&mut Fleet, &mut StdRng) -> Result<(), Failure>,
) -> Verdict {
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
        return Err(format!("{events} events were to be published and to end: {tally}").into());
    }
    if tally.tempted == 0 {
        return Err(format!("no event came again after a durable success, so nothing was shown: {tally}").into());
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
    // It ends with the client; what goes wrong on it, the client's calls say.
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

/// Looks on while the processes work, and notes which successes it finds recorded.
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
        let thread = self.thread.take().ok_or("the witness was stopped before")?;
        thread.join().map_err(|_| "the witness panicked")?
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The run has failed already; what the witness says does not matter any more.
            let _ = thread.join();
        }
    }
}

async fn watch(address: &str, stop: &AtomicBool) -> Result<Durable, Failure> {
    let client = connect(address).await?;
    let mut durable = Durable::new();
    // A record may become visible later than one that was begun after it, hence the look back.
    let sql = "SELECT entry_id, handler, result, (extract(epoch FROM recorded_at) * 1000000)::bigint
               FROM tidegate.event_handler_states
               WHERE recorded_at > to_timestamp($1::bigint / 1000000) - interval '10 seconds'";
    let mut latest = 0_i64;
    loop {
        let last = stop.load(Ordering::Relaxed);
        let rows = match client.query(sql, &[&latest]).await {
            Ok(rows) => rows,
            // The first of the processes creates the table.
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
        tokio::time::sleep(LOOK).await;
    }
}
