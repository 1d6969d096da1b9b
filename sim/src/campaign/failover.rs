//! The primary is killed under load and its standby takes over. With synchronous replication nothing acknowledged is
//! lost. With asynchronous replication the last commits are, but every process continues, and no holder of a lease from
//! before ends an entry that the new primary gave to another.

use std::time::Duration;

use rand::Rng;
use tidegate_testing::{PgServer, Proxy};

use crate::checker::{Rules, failover};
use crate::history;
use crate::scenario::{Arena, Faults, ScenarioResult, Settings, drive, server};
use crate::supervisor::Fleet;

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let mut summaries = Vec::new();
    for round in 0..settings.kills.unwrap_or(3) {
        let settings = Settings { seed: Some(settings.seed().wrapping_add(u64::from(round))), ..settings };
        summaries.push(format!("synchronous: {}", once(settings, true)?));
        summaries.push(format!("asynchronous: {}", once(settings, false)?));
    }
    Ok(summaries.join("; "))
}

fn once(settings: Settings, synchronous: bool) -> ScenarioResult {
    let mut primary = server()?;
    let mut arena = Arena::postgres(&primary, settings)?;
    // Replication goes through its own proxy, so that the standby can be made to lag.
    let standby_proxy = Proxy::start(primary.port())?;
    let standby = primary.standby(standby_proxy.port())?;
    if synchronous {
        primary.replicate_synchronously()?;
    }
    let client_proxy = Proxy::start(primary.port())?;
    arena.address = client_proxy.url(&arena.address);
    let result = work(&arena, &mut primary, &standby, (&standby_proxy, &client_proxy), settings, synchronous);
    arena.conclude(result)
}

fn work(
    arena: &Arena,
    primary: &mut PgServer,
    standby: &PgServer,
    (standby_proxy, client_proxy): (&Proxy, &Proxy),
    settings: Settings,
    synchronous: bool,
) -> ScenarioResult {
    let processes = settings.processes.unwrap_or(3).max(1);
    let events = settings.events.unwrap_or(8_000);
    let mut jobs: Vec<_> = (0..processes).map(|number| arena.job(&format!("w{number}"), events)).collect();
    jobs.push(arena.sampler());
    let mut fleet = Fleet::start(jobs)?;
    let mut faults = Faults::spread(1, settings.rng());
    let mut over = 0;
    drive(&mut fleet, u64::from(processes) * events, &mut faults, settings.limit(), |_, rng| {
        if !synchronous {
            standby_proxy.go_silent();
            std::thread::sleep(Duration::from_millis(rng.random_range(200..1_000)));
        }
        // What the proxy held back never reaches the standby.
        standby_proxy.cut();
        primary.kill()?;
        client_proxy.cut();
        std::thread::sleep(Duration::from_millis(rng.random_range(0..500)));
        standby.promote()?;
        over = history::now();
        client_proxy.lead_to(standby.port());
        client_proxy.pass();
        Ok(())
    })?;
    if synchronous {
        let report = arena.check(Rules { drained: true, ..Rules::default() })?;
        return Ok(report.counts.to_string());
    }
    let history = history::read(&arena.histories(), None)?;
    let (report, tally) = failover::check(&history, &arena.state()?, over);
    if !report.violations.is_empty() {
        return Err(report.explain().into());
    }
    Ok(tally.to_string())
}
