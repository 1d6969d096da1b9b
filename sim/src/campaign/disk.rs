//! The disk is full for a while, or syncs fail: nothing acknowledged is missing, and operations that may have happened
//! are answered as indeterminate.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tempfile::TempDir;
use tidegate_testing::{PgServer, PgSettings};

use crate::checker::Rules;
use crate::history::{self, Answer, OpOutcome};
use crate::scenario::{Arena, Faults, ScenarioResult, Settings, drive};
use crate::supervisor::Fleet;
use crate::workload::{Failure, Job};

const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/faultydisk.so"));

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let disk = Disk::new("/events.db")?;
    let arena = Arena::sqlite(settings)?;
    let result = work(&arena, &disk, None, settings);
    let on_sqlite = arena.conclude(result)?;
    let disk = Disk::new("/data/")?;
    let environment = disk.environment();
    let mut server = PgServer::start(PgSettings { fsync: true, environment, ..PgSettings::default() })?;
    let arena = Arena::postgres(&server, settings)?;
    let result = work(&arena, &disk, Some(&mut server), settings);
    Ok(format!("SQLite: {on_sqlite}; Postgres: {}", arena.conclude(result)?))
}

/// The preload library and the file that tells it which fault to simulate, readable by a server of another user.
#[derive(Debug)]
struct Disk {
    folder: TempDir,
    /// Only files with this in their path are affected.
    part: &'static str,
}

impl Disk {
    fn new(part: &'static str) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("tidegate-disk-").tempdir()?;
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
        let disk = Self { folder, part };
        std::fs::write(disk.library(), LIBRARY)?;
        std::fs::set_permissions(disk.library(), std::fs::Permissions::from_mode(0o755))?;
        disk.set("-")?;
        Ok(disk)
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("faultydisk.so")
    }

    fn control(&self) -> PathBuf {
        self.folder.path().join("fault")
    }

    /// Sets the fault: `f` disk full, `s` syncs fail, `-` none. Written in place, so that processes see it at once.
    fn set(&self, fault: &str) -> Result<(), Failure> {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().create(true).write(true).truncate(false).open(self.control())?;
        Ok(file.write_all_at(fault.as_bytes(), 0)?)
    }

    fn environment(&self) -> Vec<(String, String)> {
        vec![
            ("LD_PRELOAD".into(), self.library().display().to_string()),
            ("TIDEGATE_DISK_FAULT".into(), self.control().display().to_string()),
            ("TIDEGATE_DISK_PART".into(), self.part.into()),
        ]
    }
}

fn work(arena: &Arena, disk: &Disk, mut server: Option<&mut PgServer>, settings: Settings) -> ScenarioResult {
    let events = settings.events.unwrap_or(6_000);
    let faults = settings.kills.unwrap_or(16);
    let processes = if server.is_some() { settings.processes.unwrap_or(2).max(1) } else { 1 };
    let mut jobs: Vec<Job> = (0..processes).map(|number| arena.job(&format!("w{number}"), events)).collect();
    match server {
        Some(_) => jobs.push(arena.sampler()),
        None => jobs[0] = Job { census_ms: Some(50), environment: disk.environment(), ..jobs[0].clone() },
    }
    let mut fleet = Fleet::start(jobs)?;
    let mut spread = Faults::early(faults, settings.rng());
    let total = u64::from(processes) * events;
    let mut number = 0;
    drive(&mut fleet, total, &mut spread, settings.limit(), |fleet, rng| {
        // Alternate, so that both kinds occur with every seed.
        let full = number % 2 == 0;
        number += 1;
        disk.set(if full { "f" } else { "s" })?;
        strike(fleet, disk, &mut server, full, rng)
    })?;
    let report = arena.check(Rules { drained: true, ..Rules::default() })?;
    let failed = check_answers(&history::read(&arena.histories(), None)?)?;
    if failed == 0 || number < 2 {
        return Err(format!("{failed} errors from {number} faults, so nothing was tested").into());
    }
    Ok(format!("{number} faults, {failed} errors: {}", report.counts))
}

/// Lets the fault last for a moment; every third time the process or server is killed during it. A SQLite store whose
/// sync failed has stopped for good, so its process is always restarted.
fn strike(
    fleet: &mut Fleet,
    disk: &Disk,
    server: &mut Option<&mut PgServer>,
    full: bool,
    rng: &mut StdRng,
) -> Result<(), Failure> {
    std::thread::sleep(Duration::from_millis(rng.random_range(200..900)));
    let dies = rng.random_ratio(1, 3) || (!full && server.is_none());
    match server {
        // Postgres exits by itself when a sync of its WAL fails.
        Some(server) => {
            if dies {
                server.kill()?;
            }
            disk.set("-")?;
            Ok(server.revive()?)
        }
        None if dies => {
            fleet.kill(0)?;
            disk.set("-")?;
            fleet.launch(0, None)
        }
        None => disk.set("-"),
    }
}

/// The error of a store that has stopped after a failed sync.
const STOPPED: &str = "Corrupt: the store has stopped";

/// How many answers were errors. Fails when one reports a damaged database: a full disk damages nothing.
fn check_answers(history: &[history::Op]) -> Result<usize, Failure> {
    let mut failed = 0;
    for op in history {
        let answers: Vec<&String> = match &op.outcome {
            Some(OpOutcome::Unknown { error } | OpOutcome::Denied { error }) => vec![error],
            Some(OpOutcome::Published { answers }) => answers
                .iter()
                .filter_map(|answer| match answer {
                    Answer::Unknown { error } | Answer::Denied { error } => Some(error),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        };
        for error in answers {
            if error.starts_with("Corrupt") && !error.starts_with(STOPPED) {
                return Err(format!("{} was told of a damaged file: {error} to {:?}", op.process, op.intent).into());
            }
            failed += usize::from(error != "hung up" && error != "dropped");
        }
    }
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Intent, Op};

    fn told(error: &str) -> Vec<Op> {
        let outcome = Some(OpOutcome::Unknown { error: error.into() });
        vec![Op { process: "w0".into(), begun: 0, answered: Some(1), intent: Intent::Census, outcome }]
    }

    #[test]
    fn damage_is_not_what_a_full_disk_is() {
        assert!(check_answers(&told("Corrupt: the file is damaged")).is_err());
        assert_eq!(check_answers(&told("Corrupt: the store has stopped: repair the disk")).unwrap(), 1);
        assert_eq!(check_answers(&told("Indeterminate: it may have happened")).unwrap(), 1);
        assert_eq!(check_answers(&told("hung up")).unwrap(), 0);
    }
}
