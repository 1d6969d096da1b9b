//! What the scenarios share: settings, databases and folders to run in, and driving processes through faults.

pub(crate) mod deliver;
pub(crate) mod failpoints;
pub(crate) mod handlers;
pub(crate) mod hang_ups;
pub(crate) mod http_server;
pub(crate) mod ingest;
pub(crate) mod poison;
pub(crate) mod postgres_processes;
pub(crate) mod postgres_restarts;
pub(crate) mod power_loss;
mod server_process;
pub(crate) mod sqlite_restarts;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;
use tidegate_testing::{PgServer, PgSettings};

use crate::checker::{self, Report, Rules};
use crate::supervisor::{Fleet, POLL_INTERVAL};
use crate::workload::{Failure, Job, sqlite_path};
use crate::{history, state};

/// How long a process may take to stop when asked to.
pub(crate) const STOP_WITHIN: Duration = Duration::from_secs(60);

/// The settings of a scenario. All its random choices come from the seed.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Settings {
    /// Seed of all random choices of the harness.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Events that each process publishes; with `handlers`, of all processes together; with `server`, by how many
    /// events publishers may be ahead of workers; with `ingest` and
    /// `deliver`, per fault.
    #[arg(long)]
    pub(crate) events: Option<u64>,
    /// Kills, restarts or power losses.
    #[arg(long)]
    pub(crate) kills: Option<u32>,
    /// Number of processes, in scenarios that have several.
    #[arg(long)]
    pub(crate) processes: Option<u32>,
    /// Seconds after which a run fails as stuck.
    #[arg(long, default_value_t = 900)]
    pub(crate) limit: u64,
    /// Keep histories and databases when the run passes, too.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Faults last only as long as they must to have an effect.
    #[arg(skip)]
    pub(crate) short: bool,
}

impl Settings {
    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    pub(crate) fn rng(&self) -> StdRng {
        StdRng::seed_from_u64(self.seed())
    }

    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.limit)
    }
}

/// The summary of a run in which every check passed, or why it failed.
pub(crate) type ScenarioResult = Result<String, Failure>;

/// A Postgres server with fsync, so that what it acknowledged is durable.
pub(crate) fn server() -> Result<PgServer, Failure> {
    Ok(PgServer::start(PgSettings { fsync: true, max_connections: 200, ..PgSettings::default() })?)
}

/// A database and a folder of histories. The folder is kept when the scenario fails.
#[derive(Debug)]
pub(crate) struct Arena {
    folder: Option<TempDir>,
    path: PathBuf,
    pub(crate) address: String,
    settings: Settings,
}

impl Arena {
    pub(crate) fn sqlite(settings: Settings) -> Result<Self, Failure> {
        let mut arena = Self::at(String::new(), settings)?;
        arena.address = format!("sqlite:{}", arena.path.join("events.db").display());
        Ok(arena)
    }

    pub(crate) fn postgres(server: &PgServer, settings: Settings) -> Result<Self, Failure> {
        Self::at(server.create_database(), settings)
    }

    fn at(address: String, settings: Settings) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("tidegate-sim-").tempdir()?;
        let path = folder.path().to_path_buf();
        std::fs::create_dir(path.join("histories"))?;
        Ok(Self { folder: Some(folder), path, address, settings })
    }

    pub(crate) fn histories(&self) -> PathBuf {
        self.path.join("histories")
    }

    /// The job of a process that publishes and consumes in all ways there are.
    pub(crate) fn job(&self, process: &str, events: u64) -> Job {
        Job {
            process: process.into(),
            folder: self.histories(),
            address: self.address.clone(),
            seed: self.settings.seed(),
            events,
            publishers: 4,
            consumers: 2,
            batch: 20,
            lease_ms: 2_000,
            groups: 24,
            census_ms: None,
            mischief: true,
            poison: false,
            max_attempts: 20,
            handlers: None,
            grouped: false,
            environment: Vec::new(),
        }
    }

    /// The job of a process that only takes snapshots.
    pub(crate) fn sampler(&self) -> Job {
        Job { publishers: 0, consumers: 0, census_ms: Some(200), ..self.job("sampler", 0) }
    }

    pub(crate) fn state(&self) -> Result<state::State, Failure> {
        match sqlite_path(&self.address) {
            Some(path) => state::read_sqlite(path),
            None => runtime()?.block_on(state::read_postgres(&self.address)),
        }
    }

    /// Checks all histories against the present contents of the database. A violation is an error.
    pub(crate) fn check(&self, rules: Rules) -> Result<Report, Failure> {
        let history = history::read(&self.histories(), None)?;
        let report = checker::check(&history, &self.state()?, rules);
        if report.violations.is_empty() { Ok(report) } else { Err(report.explain().into()) }
    }

    /// Passes the result on; removes the folder if the scenario passed and `--keep` was not given.
    pub(crate) fn conclude(mut self, result: ScenarioResult) -> ScenarioResult {
        if result.is_err() || self.settings.keep {
            let kept = self.folder.take().map(TempDir::keep).unwrap_or_default();
            eprintln!("histories are kept in {}", kept.display());
        }
        result
    }
}

/// A single-threaded runtime for the harness's own queries.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Faults spread over a run by its progress: the same seed injects them at the same stages.
#[derive(Debug)]
pub(crate) struct Faults {
    /// The progress, from 0 to 1, at which each fault is due; the next one is last.
    stages: Vec<f64>,
    /// Whether faults that are still to come are dropped once everything is drained.
    optional: bool,
    pub(crate) rng: StdRng,
}

impl Faults {
    pub(crate) fn spread(count: u32, rng: StdRng) -> Self {
        // No faults in the last tenth of a run, so that all stages are reached even if some events are never published.
        let mut faults = Self { stages: Vec::new(), optional: false, rng };
        for number in (0..count).rev() {
            let jitter: f64 = faults.rng.random();
            faults.stages.push(0.9 * (f64::from(number) + jitter) / f64::from(count));
        }
        faults
    }

    /// For faults that have publishes denied, most of which are not repeated, so that full progress is never reached:
    /// all are due in the first half of a run, and those that are left when it is drained are dropped.
    pub(crate) fn early(count: u32, rng: StdRng) -> Self {
        let mut faults = Self::spread(count, rng);
        faults.stages.iter_mut().for_each(|stage| *stage /= 2.0);
        Self { optional: true, ..faults }
    }

    fn due(&mut self, progress: f64) -> bool {
        self.stages.pop_if(|stage| *stage <= progress).is_some()
    }
}

/// Calls `strike` for each fault that is due, waits until everything is drained, and stops the processes. Fails when
/// that takes longer than `limit`.
pub(crate) fn drive(
    fleet: &mut Fleet,
    total: u64,
    faults: &mut Faults,
    limit: Duration,
    mut strike: impl FnMut(&mut Fleet, &mut StdRng) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let deadline = Instant::now() + limit;
    loop {
        fleet.update()?;
        // Denied events were never published: the last stages may lie beyond what progress can reach.
        let progress = if fleet.drained() { 1.0 } else { fleet.progress(total) };
        if faults.due(progress) {
            strike(fleet, &mut faults.rng)?;
        } else if (faults.stages.is_empty() || faults.optional) && fleet.drained() {
            return fleet.stop(STOP_WITHIN);
        } else if Instant::now() > deadline {
            let (left, situation) = (faults.stages.len(), fleet.situation());
            return Err(format!("not drained within {limit:?}: {left} faults left, {situation}").into());
        } else {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Kills a random process of the first `choices` and restarts it. Every fourth time kills it again while it starts.
pub(crate) fn kill_one(fleet: &mut Fleet, choices: usize, rng: &mut StdRng) -> Result<(), Failure> {
    let victim = rng.random_range(0..choices);
    std::thread::sleep(Duration::from_micros(rng.random_range(0..20_000)));
    fleet.kill(victim)?;
    fleet.launch(victim, None)?;
    if rng.random_ratio(1, 4) {
        std::thread::sleep(Duration::from_micros(rng.random_range(0..60_000)));
        fleet.kill(victim)?;
        fleet.launch(victim, None)?;
    }
    Ok(())
}
