//! Clocks that are set back and forward. On SQLite time goes on for the process. A Postgres server whose clock is set
//! back holds back what was due by then until its clock is there again, while leases move with it; nothing is lost either way.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tempfile::TempDir;
use tidegate_testing::{PgServer, PgSettings};

use crate::checker::Rules;
use crate::scenario::{Arena, Faults, Settings, Verdict, drive};
use crate::supervisor::Fleet;
use crate::workload::{Failure, Job};

const HOUR: i64 = 3_600;
const FILE: &str = "libfaketimeMT.so.1";

pub(crate) fn run(settings: Settings) -> Verdict {
    let clock = Clock::new()?;
    let arena = Arena::sqlite(settings)?;
    let verdict = on_sqlite(&arena, &clock, settings);
    let sqlite = arena.conclude(verdict)?;
    let clock = Clock::new()?;
    let environment = clock.environment();
    let server = PgServer::start(PgSettings { fsync: true, environment, ..PgSettings::default() })?;
    let arena = Arena::postgres(&server, settings)?;
    let verdict = on_postgres(&arena, &clock, settings);
    Ok(format!("SQLite: {sqlite}; Postgres: {}", arena.conclude(verdict)?))
}

/// A clock that processes share, and that is so many seconds ahead of the machine's. Monotonic time is left alone.
#[derive(Debug)]
struct Clock {
    folder: TempDir,
    library: PathBuf,
}

impl Clock {
    fn new() -> Result<Self, Failure> {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::Builder::new().prefix("tidegate-clock-").tempdir()?;
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
        let clock = Self { folder, library: library()? };
        clock.set(0)?;
        Ok(clock)
    }

    fn control(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    /// Exchanged as a whole: nobody reads half of it.
    fn set(&self, seconds: i64) -> Result<(), Failure> {
        let new = self.folder.path().join("next");
        std::fs::write(&new, format!("{seconds:+}\n"))?;
        Ok(std::fs::rename(new, self.control())?)
    }

    fn environment(&self) -> Vec<(String, String)> {
        vec![
            ("LD_PRELOAD".into(), self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE".into(), self.control().display().to_string()),
            ("FAKETIME_NO_CACHE".into(), "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC".into(), "1".into()),
            ("DONT_FAKE_MONOTONIC".into(), "1".into()),
        ]
    }
}

/// Where Debian and others put libfaketime.
fn library() -> Result<PathBuf, Failure> {
    let machine = format!("/usr/lib/{}-linux-gnu/faketime", std::env::consts::ARCH);
    let folders = [machine.as_str(), "/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime"];
    let found = folders.iter().map(|folder| Path::new(folder).join(FILE)).find(|path| path.is_file());
    found.ok_or_else(|| format!("no {FILE} in {folders:?}: run scripts/test, which installs it").into())
}

fn step(clock: &Clock, rng: &mut StdRng) -> Result<(), Failure> {
    let most = 2 * HOUR;
    clock.set(rng.random_range(-most..most))?;
    std::thread::sleep(Duration::from_millis(rng.random_range(200..1_500)));
    Ok(())
}

/// The process's own clock is the database's. It ends behind where it was, and all is worked off all the same.
fn on_sqlite(arena: &Arena, clock: &Clock, settings: Settings) -> Verdict {
    let events = settings.events.unwrap_or(10_000);
    let steps = settings.kills.unwrap_or(20);
    let job = Job { census_ms: Some(50), environment: clock.environment(), ..arena.job("w0", events) };
    let mut fleet = Fleet::start(vec![job])?;
    let mut faults = Faults::spread(steps + 1, settings.rng());
    let mut left = steps;
    drive(&mut fleet, events, &mut faults, settings.limit(), |_, rng| {
        if left == 0 {
            return clock.set(-3 * HOUR);
        }
        left -= 1;
        step(clock, rng)
    })?;
    let report = arena.judge(Rules { drained: true, timeless: true })?;
    Ok(format!("{steps} steps of the clock, the last one back: {}", report.counts))
}

/// The server's clock moves, the clients' does not. What was due by a clock that was ahead waits until the clock is there
/// again, so in the end it is.
fn on_postgres(arena: &Arena, clock: &Clock, settings: Settings) -> Verdict {
    let processes = settings.processes.unwrap_or(2).max(1);
    let events = settings.events.unwrap_or(5_000);
    let steps = settings.kills.unwrap_or(20);
    let mut jobs: Vec<_> = (0..processes).map(|number| arena.job(&format!("w{number}"), events)).collect();
    jobs.push(arena.sampler());
    let mut fleet = Fleet::start(jobs)?;
    let mut faults = Faults::spread(steps, settings.rng());
    let total = u64::from(processes) * events;
    let mut left = steps;
    drive(&mut fleet, total, &mut faults, settings.limit(), |_, rng| {
        step(clock, rng)?;
        left -= 1;
        clock.set(if left == 0 { 3 * HOUR } else { 0 })
    })?;
    let report = arena.judge(Rules { drained: true, timeless: true })?;
    Ok(format!("{steps} steps of the clock back and forward: {}", report.counts))
}
