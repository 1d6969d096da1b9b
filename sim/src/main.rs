//! Tidegate's crash harness: parses the command line, runs scenarios and prints one line for each.
//! One file per scenario; README.md says what each checks.

mod campaign;
mod checker;
mod denied;
mod history;
mod http;
mod scenario;
mod state;
mod supervisor;
mod workload;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};

use scenario::{
    ScenarioResult, Settings, deliver, failpoints, handlers, hang_ups, http_server, ingest, poison, postgres_processes,
    postgres_restarts, power_loss, sqlite_restarts,
};

/// Starts real processes, kills them or cuts their power, and checks their histories against the invariants.
#[derive(Debug, Parser)]
#[command(name = "tidegate-sim", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Many processes on one Postgres, killed at random.
    PostgresProcesses(Settings),
    /// One process on one SQLite file, killed and restarted.
    SqliteRestarts(Settings),
    /// Postgres itself killed and restarted under load.
    PostgresRestarts(Settings),
    /// Managers with handlers on one Postgres, killed at random.
    Handlers(Settings),
    /// The server over HTTP under load, killed and restarted, on both databases.
    Server(Settings),
    /// Two nodes that get the same events at once, killed within an ingest, on both databases.
    Ingest(Settings),
    /// Nodes that deliver webhooks to a receiver that fails, killed at random and between an attempt and its record, on both
    /// databases.
    Deliver(Settings),
    /// Every named failpoint on both databases.
    Failpoints(Settings),
    /// An event that kills its worker each time.
    Poison(Settings),
    /// Callers that drop futures and leases, release, and shut down.
    HangUps(Settings),
    /// SQLite loses all writes that were not synced.
    PowerLoss(Settings),
    /// Faults around the queue: clocks, disks, failover, stopped processes and more.
    Campaign(campaign::Arguments),
    /// All scenarios, in the short form.
    Ci(Settings),
    /// All scenarios, with full numbers.
    Long(Settings),
    /// A process under test.
    #[command(hide = true)]
    Child { job: String },
    /// A server under test.
    #[command(hide = true)]
    ServerChild {
        database: String,
        address: String,
        /// Deliver jobs, under leases of so many milliseconds.
        #[arg(long)]
        job_lease_ms: Option<u64>,
    },
    /// A process under test that loses its unsynced writes.
    #[command(hide = true)]
    PowerChild { file: String, mode: String, life: u32 },
}

type Scenario = (&'static str, fn(Settings) -> ScenarioResult);
/// A scenario with its number of events and faults in the short form.
type Numbered = (Scenario, u64, u32);

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Child { job } => exit_code(workload::run(&job).map_err(|error| error.to_string())),
        Command::PowerChild { file, mode, life } => {
            exit_code(power_loss::child(&file, &mode, life).map_err(|error| error.to_string()))
        }
        Command::ServerChild { database, address, job_lease_ms } => {
            let job_lease = job_lease_ms.map(Duration::from_millis);
            exit_code(http_server::child(&database, &address, job_lease).map_err(|error| error.to_string()))
        }
        Command::PostgresProcesses(settings) => one(("postgres-processes", postgres_processes::run), settings),
        Command::SqliteRestarts(settings) => one(("sqlite-restarts", sqlite_restarts::run), settings),
        Command::PostgresRestarts(settings) => one(("postgres-restarts", postgres_restarts::run), settings),
        Command::Handlers(settings) => one(("handlers", handlers::run), settings),
        Command::Server(settings) => one(("server", http_server::run), settings),
        Command::Ingest(settings) => one(("ingest", ingest::run), settings),
        Command::Deliver(settings) => one(("deliver", deliver::run), settings),
        Command::Failpoints(settings) => one(("failpoints", failpoints::run), settings),
        Command::Poison(settings) => one(("poison", poison::run), settings),
        Command::HangUps(settings) => one(("hang-ups", hang_ups::run), settings),
        Command::PowerLoss(settings) => one(("power-loss", power_loss::run), settings),
        Command::Campaign(arguments) => several(arguments.wanted(), arguments.settings, arguments.short),
        Command::Ci(settings) => several(all(), settings, true),
        Command::Long(settings) => several(all(), settings, false),
    }
}

fn exit_code(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

fn one(scenario: Scenario, settings: Settings) -> ExitCode {
    summary(u32::from(passes(scenario, settings)), 1)
}

/// All scenarios, including the fault campaign.
fn all() -> Vec<Numbered> {
    let scenarios: [Numbered; 11] = [
        (("power-loss", power_loss::run), 0, 8),
        (("hang-ups", hang_ups::run), 200, 300),
        (("poison", poison::run), 50, 0),
        (("sqlite-restarts", sqlite_restarts::run), 5_000, 12),
        (("failpoints", failpoints::run), 500, 3),
        (("postgres-processes", postgres_processes::run), 1_500, 12),
        (("postgres-restarts", postgres_restarts::run), 2_000, 4),
        (("handlers", handlers::run), 1_200, 6),
        (("server", http_server::run), 500, 3),
        (("ingest", ingest::run), 60, 2),
        (("deliver", deliver::run), 25, 2),
    ];
    scenarios.into_iter().chain(campaign::SCENARIOS).collect()
}

/// Runs the scenarios one after another. The short form has fewer events and faults, unless the settings say how many,
/// and at most 240 seconds per run.
fn several(scenarios: Vec<Numbered>, settings: Settings, short: bool) -> ExitCode {
    let total = scenarios.len() as u32;
    let passed = scenarios.into_iter().filter(|(scenario, events, kills)| {
        let few = Settings {
            events: settings.events.or(Some(*events)),
            kills: settings.kills.or(Some(*kills)),
            limit: settings.limit.min(240),
            short: true,
            ..settings
        };
        passes(*scenario, if short { few } else { settings })
    });
    summary(passed.count() as u32, total)
}

/// Runs a scenario, with a random seed unless one is given, prints one line, and returns whether it passed.
fn passes((name, run): Scenario, settings: Settings) -> bool {
    let settings = Settings { seed: Some(settings.seed.unwrap_or_else(rand::random)), ..settings };
    let begun = Instant::now();
    let result = run(settings);
    let took = begun.elapsed().as_secs_f32();
    match &result {
        Ok(summary) => println!("ok    {name} (seed {}, {took:.1} s): {summary}", settings.seed()),
        Err(error) => println!("FAIL  {name} (seed {}, {took:.1} s): {error}", settings.seed()),
    }
    result.is_ok()
}

fn summary(passed: u32, total: u32) -> ExitCode {
    println!("{passed} passed, {} failed", total - passed);
    if passed == total { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
