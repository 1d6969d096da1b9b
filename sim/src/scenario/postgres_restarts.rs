//! Postgres itself is killed and restarted under load: the library reconnects, nothing is lost or duplicated.

use std::time::Duration;

use rand::Rng;
use tidegate_testing::PgServer;

use super::{Arena, Faults, ScenarioResult, Settings, drive, server};
use crate::checker::Rules;
use crate::supervisor::Fleet;

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let mut server = server()?;
    let arena = Arena::postgres(&server, settings)?;
    let result = work(&arena, &mut server, settings);
    arena.conclude(result)
}

fn work(arena: &Arena, server: &mut PgServer, settings: Settings) -> ScenarioResult {
    let processes = settings.processes.unwrap_or(3);
    let events = settings.events.unwrap_or(10_000);
    let kills = settings.kills.unwrap_or(20);
    let mut jobs: Vec<_> = (0..processes).map(|number| arena.job(&format!("w{number}"), events)).collect();
    jobs.push(arena.sampler());
    let mut fleet = Fleet::start(jobs)?;
    let mut faults = Faults::spread(kills, settings.rng());
    drive(&mut fleet, u64::from(processes) * events, &mut faults, settings.limit(), |_, rng| {
        server.kill()?;
        std::thread::sleep(Duration::from_millis(rng.random_range(0..1_500)));
        Ok(server.restart()?)
    })?;
    let report = arena.check(Rules { drained: true, ..Rules::default() })?;
    Ok(format!("{kills} restarts of Postgres: {}", report.counts))
}
