//! A long run at a steady rate: publish, complete, fail, redrive and remove by retention, while memory, sizes and
//! latency are sampled. Since retention is on, none of them may keep rising.

mod database;
mod figures;
mod load;
mod plain;
mod plot;
mod verdict;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tidegate::EventQueue;
use tidegate_testing::{PgServer, PgSettings};

use self::database::Database;
use self::figures::Sample;
use self::load::Load;
use crate::Result;
use crate::machine::Machine;
use crate::runner::progress;

/// The arguments of `soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Length of the run in minutes.
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// The database to run on.
    #[arg(long, value_enum, default_value_t = Kind::Postgres)]
    database: Kind,
    /// Events published per second.
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// How long ended events are kept, in seconds.
    #[arg(long, default_value_t = 120)]
    retention: u64,
    /// Seconds between two samples.
    #[arg(long, default_value_t = 60.0)]
    every: f64,
    /// Where to write `PATH.csv` and `PATH.svg`.
    #[arg(long, value_name = "PATH", default_value = "soak")]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    Sqlite,
    Postgres,
}

/// Runs the soak and prints the result; true when no series kept rising.
///
/// # Errors
/// When the load itself fails, or the results cannot be written.
pub(crate) async fn run(arguments: &Arguments) -> Result<bool> {
    without_huge_pages()?;
    let folder = tempfile::Builder::new().prefix("tidegate-soak-").tempdir()?;
    let (database, _server) = match arguments.database {
        Kind::Sqlite => (Database::Sqlite(folder.path().join("events.db")), None),
        Kind::Postgres => {
            // With these settings the write-ahead log reaches its full size within a few minutes.
            let extra = [("max_wal_size", "128MB"), ("min_wal_size", "128MB"), ("checkpoint_timeout", "30s")];
            let extra = extra.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            let server = PgServer::start(PgSettings { extra, ..PgSettings::default() })?;
            (Database::Postgres(server.create_database()), Some(server))
        }
    };
    let machine = Machine::detect(folder.path());
    println!("{}", machine.header());
    let queue = EventQueue::builder().open(database.address()).await?;
    let load = Arc::new(Load::new(queue.clone(), arguments.rate, Duration::from_secs(arguments.retention)));
    let database = Arc::new(database);
    let commits = plain::run(Arc::clone(&load), Arc::clone(&database));
    let working = tokio::spawn(Arc::clone(&load).run(commits));
    let samples = watch(arguments, &load, &database).await;
    load.stop.store(true, Ordering::Relaxed);
    working.await??;
    queue.close().await;
    let samples = samples?;
    let title = format!("{:?}, {} events/s, retention {} s", arguments.database, arguments.rate, arguments.retention);
    write(&arguments.out, &samples, &title, &machine.short())?;
    let judged = verdict::judge(&samples);
    print!("{}", verdict::table(&judged));
    let holds = judged.iter().all(|series| series.holds);
    println!("{}", if holds { "nothing keeps rising" } else { "at least one series keeps rising" });
    Ok(holds)
}

/// Executes this program again with an allocator that asks for no huge pages. About every eleven minutes the kernel
/// merges small pages of a heap into huge ones, used or not: resident memory then rises by some MiB at once, though
/// nothing was allocated.
fn without_huge_pages() -> Result<()> {
    const VARIABLE: &str = "MIMALLOC_ALLOW_THP";
    if std::env::var_os(VARIABLE).is_some() {
        return Ok(());
    }
    let mut again = std::process::Command::new(std::env::current_exe()?);
    Err(again.args(std::env::args_os().skip(1)).env(VARIABLE, "0").exec().into())
}

/// Takes a sample at every interval until the run is over, or the load fails.
async fn watch(arguments: &Arguments, load: &Load, database: &Database) -> Result<Vec<Sample>> {
    let begun = Instant::now();
    let length = Duration::from_secs_f64(arguments.minutes * 60.0);
    let every = Duration::from_secs_f64(arguments.every.max(0.1));
    let mut samples: Vec<Sample> = Vec::new();
    while begun.elapsed() < length {
        tokio::time::sleep(every.min(length.saturating_sub(begun.elapsed()))).await;
        load.check()?;
        let sample = figures::sample(begun, load, database).await?;
        progress(&sample.to_string());
        samples.push(sample);
    }
    Ok(samples)
}

fn write(out: &Path, samples: &[Sample], title: &str, machine: &str) -> Result<()> {
    let with_ending = |ending: &str| {
        let mut name = out.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    std::fs::write(with_ending(".csv"), figures::csv(samples))?;
    Ok(std::fs::write(with_ending(".svg"), plot::svg(samples, title, machine))?)
}
