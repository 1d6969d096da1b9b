//! An event that kills its worker each time ends in the log once its attempts are used up; its neighbours do not.

use std::time::Instant;

use tidegate_core::End;

use super::{Arena, STOP_WITHIN, Settings, Verdict, server};
use crate::checker::Rules;
use crate::supervisor::{Fleet, GLANCE, was_killed};
use crate::workload::{Failure, Job};

const ATTEMPTS: u32 = 3;

pub(crate) fn run(settings: Settings) -> Verdict {
    let server = server()?;
    let mut said = Vec::new();
    for arena in [Arena::sqlite(settings)?, Arena::postgres(&server, settings)?] {
        let verdict = work(&arena, settings);
        said.push(arena.conclude(verdict)?);
    }
    Ok(format!("SQLite: {}; Postgres: {}", said[0], said[1]))
}

fn work(arena: &Arena, settings: Settings) -> Verdict {
    let events = settings.events.unwrap_or(200);
    // One at a time, so that no neighbour is taken down with the poison and loses attempts of its own.
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
    let report = arena.judge(Rules { drained: true, ..Rules::default() })?;
    let state = arena.state()?;
    let poison = state.log.iter().find(|row| row.key.ends_with("/poison")).ok_or("the poison is not in the log")?;
    if poison.status != End::CompletedWithErrors.code() || poison.attempts != ATTEMPTS || deaths != ATTEMPTS {
        return Err(format!("the poison killed {deaths} times and ended as {poison:?}").into());
    }
    if let Some(other) = state.log.iter().find(|row| row.key != poison.key && row.status != End::Completed.code()) {
        return Err(format!("a neighbour of the poison ended as {other:?}").into());
    }
    Ok(format!("{deaths} deaths, {}", report.counts))
}

/// Starts the process again whenever the poison has killed it, and counts.
fn until_drained(fleet: &mut Fleet, settings: Settings) -> Result<u32, Failure> {
    let deadline = Instant::now() + settings.limit();
    let mut deaths = 0;
    while Instant::now() < deadline {
        match fleet.ended(0)? {
            Some(status) if was_killed(status) => {
                deaths += 1;
                fleet.launch(0, None)?;
            }
            Some(status) => return Err(format!("the worker ended otherwise: {status}").into()),
            None => {
                fleet.read_all()?;
                if fleet.drained() {
                    return Ok(deaths);
                }
                std::thread::sleep(GLANCE);
            }
        }
    }
    Err(format!("not worked off after {deaths} deaths: {}", fleet.situation()).into())
}
