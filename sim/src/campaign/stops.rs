//! A process, or all of Postgres, is stopped for longer than a lease and then continues. By then its entries may have
//! been claimed by others; its late answers must be fenced, and no effect may be stored twice.

use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tidegate_testing::PgServer;

use crate::checker::Rules;
use crate::scenario::{Arena, Faults, ScenarioResult, Settings, drive, handlers, server};
use crate::supervisor::Fleet;
use crate::workload::{Failure, Job};

/// The longest lease that the workloads use.
const LEASE: Duration = Duration::from_millis(2_000);

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let arena = Arena::sqlite(settings)?;
    let result = consumers(&arena, None, settings);
    let on_sqlite = arena.conclude(result)?;
    let server = server()?;
    let arena = Arena::postgres(&server, settings)?;
    let result = consumers(&arena, Some(&server), settings);
    let on_postgres = arena.conclude(result)?;
    let arena = Arena::postgres(&server, settings)?;
    let numbers = Settings { events: settings.events.or(Some(4_000)), kills: settings.kills.or(Some(12)), ..settings };
    let choices = handlers::processes(settings);
    let result = handlers::work(&arena, numbers, |fleet, rng| strike(fleet, choices, Some(&server), rng));
    let handled = arena.conclude(result)?;
    Ok(format!("SQLite: {on_sqlite}; Postgres: {on_postgres}; handlers: {handled}"))
}

fn consumers(arena: &Arena, server: Option<&PgServer>, settings: Settings) -> ScenarioResult {
    let events = settings.events.unwrap_or(5_000);
    let stops = settings.kills.unwrap_or(12);
    let processes = if server.is_some() { settings.processes.unwrap_or(3).max(1) } else { 1 };
    let mut jobs: Vec<Job> = (0..processes).map(|number| arena.job(&format!("w{number}"), events)).collect();
    match server {
        Some(_) => jobs.push(arena.sampler()),
        None => jobs[0].census_ms = Some(50),
    }
    let mut fleet = Fleet::start(jobs)?;
    let mut faults = Faults::spread(stops, settings.rng());
    let total = u64::from(processes) * events;
    drive(&mut fleet, total, &mut faults, settings.limit(), |fleet, rng| {
        strike(fleet, processes as usize, server, rng)
    })?;
    let report = arena.check(Rules { drained: true, ..Rules::default() })?;
    Ok(format!("{stops} stops: {}", report.counts))
}

/// Stops one process, or the server, for longer than any lease.
fn strike(fleet: &mut Fleet, choices: usize, server: Option<&PgServer>, rng: &mut StdRng) -> Result<(), Failure> {
    let length = LEASE * rng.random_range(11..18) / 10;
    match server {
        Some(server) if rng.random_ratio(1, 3) => {
            server.pause()?;
            std::thread::sleep(length);
            Ok(server.resume()?)
        }
        _ => {
            let victim = rng.random_range(0..choices);
            fleet.signal(victim, libc::SIGSTOP)?;
            std::thread::sleep(length);
            fleet.signal(victim, libc::SIGCONT)
        }
    }
}
