//! Kills the process at every named failpoint of its database, several times at random passes, and checks the rest.

use std::time::Duration;

use rand::Rng;

use super::{Arena, Faults, ScenarioResult, Settings, drive, server};
use crate::checker::Rules;
use crate::supervisor::{Fleet, was_killed};
use crate::workload::{Failure, Job};

/// All failpoints of the stores; a test compares the list with the sources.
const SQLITE: [&str; 2] = ["sqlite.before_commit", "sqlite.after_commit"];
const POSTGRES: [&str; 2] = ["postgres.before_commit", "postgres.after_commit"];

const HIT_WITHIN: Duration = Duration::from_secs(60);

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let server = server()?;
    let mut rng = settings.rng();
    let mut hits = 0;
    let mut failed = Vec::new();
    for (names, on_postgres) in [(SQLITE, false), (POSTGRES, true)] {
        for name in names {
            let arena = if on_postgres { Arena::postgres(&server, settings)? } else { Arena::sqlite(settings)? };
            let passes: Vec<u32> = (0..settings.kills.unwrap_or(8)).map(|_| rng.random_range(1..60)).collect();
            let result = hit(&arena, name, &passes, settings);
            hits += passes.len();
            failed.extend(arena.conclude(result).err().map(|error| error.to_string()));
        }
    }
    if !failed.is_empty() {
        return Err(failed.join("\n").into());
    }
    Ok(format!("{} failpoints hit {hits} times", SQLITE.len() + POSTGRES.len()))
}

fn hit(arena: &Arena, name: &str, passes: &[u32], settings: Settings) -> ScenarioResult {
    let events = settings.events.unwrap_or(2_000);
    let mut fleet = Fleet::start(vec![Job { census_ms: Some(50), ..arena.job("w0", events) }])?;
    for pass in passes {
        fleet.kill(0)?;
        fleet.launch(0, Some(&format!("{name}:{pass}")))?;
        match fleet.wait_for_end(0, HIT_WITHIN)? {
            Some(status) if was_killed(status) => {}
            other => return Err(format!("failpoint {name} was not hit at pass {pass}: {other:?}").into()),
        }
    }
    fleet.launch(0, None)?;
    let mut none = Faults::spread(0, settings.rng());
    let no_strike = |_: &mut Fleet, _: &mut _| -> Result<(), Failure> { Ok(()) };
    drive(&mut fleet, events, &mut none, settings.limit(), no_strike)?;
    let report =
        arena.check(Rules { drained: true, ..Rules::default() }).map_err(|error| format!("{name}: {error}"))?;
    Ok(report.counts.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failpoint that is added to a store must be added here too. Those within an ingest are hit by the scenario of that
    /// name, and one by one by the store's own tests of crashes; that of an attempt by the scenario `deliver`.
    #[test]
    fn every_failpoint_of_the_stores_is_listed() {
        let mut found = Vec::new();
        let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let mut folders = vec![sources];
        while let Some(folder) = folders.pop() {
            for item in std::fs::read_dir(folder).unwrap() {
                let path = item.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = std::fs::read_to_string(path).unwrap();
                    let parts: Vec<&str> = text.split("failpoint(\"").collect();
                    let named = parts.windows(2).filter_map(|pair| {
                        let of_ingest = pair[0].ends_with("ingest_");
                        Some((of_ingest, pair[1].split('"').next()?.to_owned()))
                    });
                    found.extend(named);
                }
            }
        }
        assert!(!found.is_empty());
        let crashes = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/store/tests/conformance/crashes.rs");
        let crashes = std::fs::read_to_string(crashes).unwrap();
        for (of_ingest, name) in found {
            let is_hit = match of_ingest {
                true => {
                    let name = format!("ingest.{name}");
                    crashes.contains(&format!("\"{name}\"")) && super::super::ingest::POINTS.contains(&name.as_str())
                }
                false => {
                    name == super::super::deliver::ATTEMPT_MADE
                        || SQLITE.contains(&name.as_str())
                        || POSTGRES.contains(&name.as_str())
                }
            };
            assert!(is_hit, "{name} is never hit");
        }
    }
}
