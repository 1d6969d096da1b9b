//! One process on one SQLite file, killed and restarted while it publishes and claims.

use super::{Arena, Faults, Settings, Verdict, drive, kill_one};
use crate::checker::Rules;
use crate::supervisor::Fleet;
use crate::workload::Job;

pub(crate) fn run(settings: Settings) -> Verdict {
    let arena = Arena::sqlite(settings)?;
    let verdict = work(&arena, settings);
    arena.conclude(verdict)
}

fn work(arena: &Arena, settings: Settings) -> Verdict {
    let events = settings.events.unwrap_or(20_000);
    let kills = settings.kills.unwrap_or(50);
    // It counts itself: a second process would hold the file open and spare the first one the recovery.
    let mut fleet = Fleet::start(vec![Job { census_ms: Some(50), ..arena.job("w0", events) }])?;
    let mut faults = Faults::spread(kills, settings.rng());
    drive(&mut fleet, events, &mut faults, settings.limit(), |fleet, rng| kill_one(fleet, 1, rng))?;
    let report = arena.judge(Rules { drained: true, ..Rules::default() })?;
    Ok(format!("{} starts: {}", fleet.starts, report.counts))
}
