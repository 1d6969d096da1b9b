//! An event that kills its worker each time ends with errors once its attempts are exhausted; all others complete.

use std::time::Instant;

use tidegate_core::End;

use super::{Arena, STOP_WITHIN, ScenarioResult, Settings, server};
use crate::checker::Rules;
use crate::supervisor::{Fleet, POLL_INTERVAL, was_killed};
use crate::workload::{Failure, Job};

const ATTEMPTS: u32 = 3;

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let server = server()?;
    let mut summaries = Vec::new();
    for arena in [Arena::sqlite(settings)?, Arena::postgres(&server, settings)?] {
        let result = work(&arena, settings);
        summaries.push(arena.conclude(result)?);
    }
    Ok(format!("SQLite: {}; Postgres: {}", summaries[0], summaries[1]))
}

fn work(arena: &Arena, settings: Settings) -> ScenarioResult {
    let events = settings.events.unwrap_or(200);
    // One entry at a time, so that the kill does not cost attempts of other entries.
    let job = Job {
        poison: true,
        max_attempts: ATTEMPTS,
        mischief: false,
        batch: 1,
        consumers: 1,
        groups: 0,
        lease_ms: 1_000,
        census_ms: Some(50),
        ..arena.job("w0", events)
    };
    let mut fleet = Fleet::start(vec![job])?;
    let deaths = until_drained(&mut fleet, settings)?;
    fleet.stop(STOP_WITHIN)?;
    let report = arena.check(Rules { drained: true, ..Rules::default() })?;
    let state = arena.state()?;
    let poison = state.log.iter().find(|row| row.key.ends_with("/poison")).ok_or("no poison event in the log")?;
    if poison.status != End::CompletedWithErrors.code() || poison.attempts != ATTEMPTS || deaths != ATTEMPTS {
        return Err(format!("the poison event killed {deaths} times and ended as {poison:?}").into());
    }
    if let Some(other) = state.log.iter().find(|row| row.key != poison.key && row.status != End::Completed.code()) {
        return Err(format!("another event did not complete: {other:?}").into());
    }
    Ok(format!("{deaths} deaths, {}", report.counts))
}

/// Restarts the process whenever the poison event has killed it. Returns how often that was.
fn until_drained(fleet: &mut Fleet, settings: Settings) -> Result<u32, Failure> {
    let deadline = Instant::now() + settings.limit();
    let mut deaths = 0;
    while Instant::now() < deadline {
        match fleet.ended(0)? {
            Some(status) if was_killed(status) => {
                deaths += 1;
                fleet.launch(0, None)?;
            }
            Some(status) => return Err(format!("the worker exited unexpectedly: {status}").into()),
            None => {
                fleet.read_all()?;
                if fleet.drained() {
                    return Ok(deaths);
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }
    Err(format!("not drained after {deaths} deaths: {}", fleet.situation()).into())
}
