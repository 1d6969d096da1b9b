//! Many processes on one Postgres, killed at random: every event ends exactly once, none is lost or stuck.

use super::{Arena, Faults, ScenarioResult, Settings, drive, kill_one, server};
use crate::checker::Rules;
use crate::supervisor::Fleet;

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let server = server()?;
    let arena = Arena::postgres(&server, settings)?;
    let result = work(&arena, settings);
    arena.conclude(result)
}

fn work(arena: &Arena, settings: Settings) -> ScenarioResult {
    let processes = settings.processes.unwrap_or(8);
    let events = settings.events.unwrap_or(20_000);
    let kills = settings.kills.unwrap_or(60);
    let mut jobs: Vec<_> = (0..processes).map(|number| arena.job(&format!("w{number}"), events)).collect();
    jobs.push(arena.sampler());
    let mut fleet = Fleet::start(jobs)?;
    let mut faults = Faults::spread(kills, settings.rng());
    let total = u64::from(processes) * events;
    drive(&mut fleet, total, &mut faults, settings.limit(), |fleet, rng| kill_one(fleet, processes as usize, rng))?;
    let report = arena.check(Rules { drained: true, ..Rules::default() })?;
    Ok(format!("{processes} processes, {} starts: {}", fleet.starts, report.counts))
}
