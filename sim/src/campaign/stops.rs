//! A process, or all of Postgres, is stopped for longer than a lease and then goes on as if nothing had happened: what
//! it held is with somebody else by then, its late answers are refused, and no effect is there twice.

use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tidegate_testing::PgServer;

use crate::checker::Rules;
use crate::scenario::{Arena, Faults, Settings, Verdict, drive, handlers, server};
use crate::supervisor::Fleet;
use crate::workload::{Failure, Job};

/// What the workloads use at most.
const LEASE: Duration = Duration::from_millis(2_000);

pub(crate) fn run(settings: Settings) -> Verdict {
    let arena = Arena::sqlite(settings)?;
    let verdict = consumers(&arena, None, settings);
    let on_sqlite = arena.conclude(verdict)?;
    let server = server()?;
    let arena = Arena::postgres(&server, settings)?;
    let verdict = consumers(&arena, Some(&server), settings);
    let on_postgres = arena.conclude(verdict)?;
    let arena = Arena::postgres(&server, settings)?;
    let numbers = Settings { events: settings.events.or(Some(4_000)), kills: settings.kills.or(Some(12)), ..settings };
    let choices = handlers::processes(settings);
    let verdict = handlers::work(&arena, numbers, |fleet, rng| strike(fleet, choices, Some(&server), rng));
    let handled = arena.conclude(verdict)?;
    Ok(format!("SQLite: {on_sqlite}; Postgres: {on_postgres}; handlers: {handled}"))
}

fn consumers(arena: &Arena, server: Option<&PgServer>, settings: Settings) -> Verdict {
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
    let report = arena.judge(Rules { drained: true, ..Rules::default() })?;
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
