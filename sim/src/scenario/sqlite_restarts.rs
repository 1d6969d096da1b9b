//! One process on one SQLite file, killed and restarted while it publishes and claims.

use super::{Arena, Faults, ScenarioResult, Settings, drive, kill_one};
use crate::checker::Rules;
use crate::supervisor::Fleet;
use crate::workload::Job;

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let arena = Arena::sqlite(settings)?;
    let result = work(&arena, settings);
    arena.conclude(result)
}

fn work(arena: &Arena, settings: Settings) -> ScenarioResult {
    let events = settings.events.unwrap_or(20_000);
    let kills = settings.kills.unwrap_or(50);
    // The process takes the snapshots itself: a second one would hold the file open, and the restart would not have to
    // recover the write-ahead log.
    let mut fleet = Fleet::start(vec![Job { census_ms: Some(50), ..arena.job("w0", events) }])?;
    let mut faults = Faults::spread(kills, settings.rng());
    drive(&mut fleet, events, &mut faults, settings.limit(), |fleet, rng| kill_one(fleet, 1, rng))?;
    let report = arena.check(Rules { drained: true, ..Rules::default() })?;
    Ok(format!("{} starts: {}", fleet.starts, report.counts))
}
