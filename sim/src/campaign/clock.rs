//! Clocks that are set back and forward. On SQLite, time never goes back for the process. When the clock of a Postgres
//! server is set back, entries that are due later than the new time wait until it gets there, while leases move with
//! it. Nothing is lost on either database.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tempfile::TempDir;
use tidegate_testing::{PgServer, PgSettings};

use crate::checker::Rules;
use crate::scenario::{Arena, Faults, ScenarioResult, Settings, drive};
use crate::supervisor::Fleet;
use crate::workload::{Failure, Job};

const HOUR: i64 = 3_600;
const FILE: &str = "libfaketimeMT.so.1";

pub(crate) fn run(settings: Settings) -> ScenarioResult {
    let clock = Clock::new()?;
    let arena = Arena::sqlite(settings)?;
    let result = on_sqlite(&arena, &clock, settings);
    let sqlite = arena.conclude(result)?;
    let clock = Clock::new()?;
    let environment = clock.environment();
    let server = PgServer::start(PgSettings { fsync: true, environment, ..PgSettings::default() })?;
    let arena = Arena::postgres(&server, settings)?;
    let result = on_postgres(&arena, &clock, settings);
    Ok(format!("SQLite: {sqlite}; Postgres: {}", arena.conclude(result)?))
}

/// A wall clock for processes under test, with an offset to the machine's (libfaketime). Monotonic time is not changed.
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

    /// Sets the offset in seconds. The file is replaced by a rename, so that it is never read half-written.
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

/// Finds libfaketime where Debian and other distributions install it.
fn library() -> Result<PathBuf, Failure> {
    let machine = format!("/usr/lib/{}-linux-gnu/faketime", std::env::consts::ARCH);
    let folders = [machine.as_str(), "/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime"];
    let found = folders.iter().map(|folder| Path::new(folder).join(FILE)).find(|path| path.is_file());
    found.ok_or_else(|| format!("no {FILE} in {folders:?}: run scripts/test, which installs it").into())
}

/// Sets the clock by up to two hours back or forward, and lets that last for a moment.
fn step(clock: &Clock, rng: &mut StdRng) -> Result<(), Failure> {
    let most = 2 * HOUR;
    clock.set(rng.random_range(-most..most))?;
    std::thread::sleep(Duration::from_millis(rng.random_range(200..1_500)));
    Ok(())
}

/// The process's clock is that of the database. The last step sets it back by three hours; everything must be drained.
fn on_sqlite(arena: &Arena, clock: &Clock, settings: Settings) -> ScenarioResult {
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
    let report = arena.check(Rules { drained: true, timeless: true })?;
    Ok(format!("{steps} steps of the clock, the last one back: {}", report.counts))
}

/// The clock of the server is set, that of the clients is not. Entries that became due by a clock that was ahead wait
/// until it gets there again, so the last step sets it forward by three hours.
fn on_postgres(arena: &Arena, clock: &Clock, settings: Settings) -> ScenarioResult {
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
    let report = arena.check(Rules { drained: true, timeless: true })?;
    Ok(format!("{steps} steps of the clock back and forward: {}", report.counts))
}
