//! What the scenarios share: a place to run in, driving a fleet through faults to its end, and the verdict.

pub(crate) mod failpoints;
pub(crate) mod handlers;
pub(crate) mod hang_ups;
pub(crate) mod http_server;
pub(crate) mod poison;
pub(crate) mod postgres_processes;
pub(crate) mod postgres_restarts;
pub(crate) mod power_loss;
pub(crate) mod sqlite_restarts;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;
use tidegate_testing::{PgServer, PgSettings};

use crate::checker::{self, Report, Rules};
use crate::supervisor::{Fleet, GLANCE};
use crate::workload::{Failure, Job, sqlite_path};
use crate::{history, state};

/// How long a process may take to stop in good order.
pub(crate) const STOP_WITHIN: Duration = Duration::from_secs(60);

/// What a scenario is given. Everything it chooses comes from the seed.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Settings {
    /// Reproduces what the harness chooses.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Events that each process publishes; with `handlers`, all of them together; with `server`, how many publishers may
    /// be ahead of workers.
    #[arg(long)]
    pub(crate) events: Option<u64>,
    /// Kills, restarts or power losses.
    #[arg(long)]
    pub(crate) kills: Option<u32>,
    /// Processes at once, where a scenario has several.
    #[arg(long)]
    pub(crate) processes: Option<u32>,
    /// Seconds after which a run counts as stuck.
    #[arg(long, default_value_t = 900)]
    pub(crate) limit: u64,
    /// Keeps histories and databases.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Faults are as short as they can be and still show something.
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

/// What a scenario says when all held.
pub(crate) type Verdict = Result<String, Failure>;

/// A Postgres that tells the truth about durability: with fsync.
pub(crate) fn server() -> Result<PgServer, Failure> {
    Ok(PgServer::start(PgSettings { fsync: true, max_connections: 200, ..PgSettings::default() })?)
}

/// A database and a folder of histories. The folder stays when something failed.
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

    /// A process with everything switched on.
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

    /// A process that only counts.
    pub(crate) fn sampler(&self) -> Job {
        Job { publishers: 0, consumers: 0, census_ms: Some(200), ..self.job("sampler", 0) }
    }

    pub(crate) fn state(&self) -> Result<state::State, Failure> {
        match sqlite_path(&self.address) {
            Some(path) => state::read_sqlite(path),
            None => runtime()?.block_on(state::read_postgres(&self.address)),
        }
    }

    /// Checks all histories against the database as it stands.
    pub(crate) fn judge(&self, rules: Rules) -> Result<Report, Failure> {
        let history = history::read(&self.histories(), None)?;
        let report = checker::check(&history, &self.state()?, rules);
        if report.violations.is_empty() { Ok(report) } else { Err(report.explain().into()) }
    }

    /// Ends a scenario: the folder goes when all is well.
    pub(crate) fn conclude(mut self, verdict: Verdict) -> Verdict {
        if verdict.is_err() || self.settings.keep {
            let kept = self.folder.take().map(TempDir::keep).unwrap_or_default();
            eprintln!("histories are kept in {}", kept.display());
        }
        verdict
    }
}

/// For the few things that the harness itself awaits.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Faults spread over a run, by its progress: the same seed strikes at the same stages.
#[derive(Debug)]
pub(crate) struct Faults {
    stages: Vec<f64>,
    /// What is still to come when everything is worked off does not come any more.
    optional: bool,
    pub(crate) rng: StdRng,
}

impl Faults {
    pub(crate) fn spread(count: u32, rng: StdRng) -> Self {
        // The last tenth of a run is without faults, so that all stages are reached though some events were never there.
        let mut faults = Self { stages: Vec::new(), optional: false, rng };
        for number in (0..count).rev() {
            let jitter: f64 = faults.rng.random();
            faults.stages.push(0.9 * (f64::from(number) + jitter) / f64::from(count));
        }
        faults
    }

    /// For faults that have events refused, most of which nobody publishes again: they come in the first half of a run, and
    /// a run that is over sooner than that had as many as it had.
    pub(crate) fn early(count: u32, rng: StdRng) -> Self {
        let mut faults = Self::spread(count, rng);
        faults.stages.iter_mut().for_each(|stage| *stage /= 2.0);
        Self { optional: true, ..faults }
    }

    fn due(&mut self, progress: f64) -> bool {
        self.stages.pop_if(|stage| *stage <= progress).is_some()
    }
}

/// Lets a fleet work through all faults until everything is worked off, and stops it.
pub(crate) fn drive(
    fleet: &mut Fleet,
    total: u64,
    faults: &mut Faults,
    limit: Duration,
    mut strike: impl FnMut(&mut Fleet, &mut StdRng) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let deadline = Instant::now() + limit;
    loop {
        fleet.look()?;
        // What was refused was never there: the last stages may lie beyond all that was published.
        let progress = if fleet.drained() { 1.0 } else { fleet.progress(total) };
        if faults.due(progress) {
            strike(fleet, &mut faults.rng)?;
        } else if (faults.stages.is_empty() || faults.optional) && fleet.drained() {
            return fleet.stop(STOP_WITHIN);
        } else if Instant::now() > deadline {
            let (left, situation) = (faults.stages.len(), fleet.situation());
            return Err(format!("not worked off within {limit:?}: {left} faults to come, {situation}").into());
        } else {
            std::thread::sleep(GLANCE);
        }
    }
}

/// Kills one process at random and starts it again, now and then twice in a row: also while it starts.
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
