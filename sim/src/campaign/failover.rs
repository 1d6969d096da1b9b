//! The primary dies under load and its standby takes over. Where commits waited for the standby, nothing acknowledged is
//! lost. Where they did not, the last of them are; but every process goes on, and nobody ends what was given to another
//! since.

use std::time::Duration;

use rand::Rng;
use tidegate_testing::{PgServer, Proxy};

use crate::checker::{Rules, failover};
use crate::history;
use crate::scenario::{Arena, Faults, Settings, Verdict, drive, server};
use crate::supervisor::Fleet;

pub(crate) fn run(settings: Settings) -> Verdict {
    let mut said = Vec::new();
    for round in 0..settings.kills.unwrap_or(3) {
        let settings = Settings { seed: Some(settings.seed().wrapping_add(u64::from(round))), ..settings };
        said.push(format!("synchronous: {}", once(settings, true)?));
        said.push(format!("asynchronous: {}", once(settings, false)?));
    }
    Ok(said.join("; "))
}

fn once(settings: Settings, synchronous: bool) -> Verdict {
    let mut primary = server()?;
    let mut arena = Arena::postgres(&primary, settings)?;
    // What the standby is sent goes through a proxy of its own, so that it can be made to lag.
    let line = Proxy::start(primary.port())?;
    let standby = primary.standby(line.port())?;
    if synchronous {
        primary.replicate_synchronously()?;
    }
    let door = Proxy::start(primary.port())?;
    arena.address = door.url(&arena.address);
    let verdict = work(&arena, &mut primary, &standby, (&line, &door), settings, synchronous);
    arena.conclude(verdict)
}

fn work(
    arena: &Arena,
    primary: &mut PgServer,
    standby: &PgServer,
    (line, door): (&Proxy, &Proxy),
    settings: Settings,
    synchronous: bool,
) -> Verdict {
    let processes = settings.processes.unwrap_or(3).max(1);
    let events = settings.events.unwrap_or(8_000);
    let mut jobs: Vec<_> = (0..processes).map(|number| arena.job(&format!("w{number}"), events)).collect();
    jobs.push(arena.sampler());
    let mut fleet = Fleet::start(jobs)?;
    let mut faults = Faults::spread(1, settings.rng());
    let mut over = 0;
    drive(&mut fleet, u64::from(processes) * events, &mut faults, settings.limit(), |_, rng| {
        if !synchronous {
            line.go_silent();
            std::thread::sleep(Duration::from_millis(rng.random_range(200..1_000)));
        }
        // What was held back on the way is lost with the line.
        line.cut();
        primary.kill()?;
        door.cut();
        std::thread::sleep(Duration::from_millis(rng.random_range(0..500)));
        standby.promote()?;
        over = history::now();
        door.lead_to(standby.port());
        door.pass();
        Ok(())
    })?;
    if synchronous {
        let report = arena.judge(Rules { drained: true, ..Rules::default() })?;
        return Ok(report.counts.to_string());
    }
    let history = history::read(&arena.histories(), None)?;
    let (report, tally) = failover::check(&history, &arena.state()?, over);
    if !report.violations.is_empty() {
        return Err(report.explain().into());
    }
    Ok(tally.to_string())
}
