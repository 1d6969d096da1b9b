//! Compares Tidegate with the raw limit of the same database, in one run on one machine. This file parses the command
//! line and starts the rest.

mod bad_target;
mod catalogue;
mod disciplines;
mod http;
mod machine;
mod pg;
mod plot;
mod raw;
mod report;
mod runner;
mod scale;
mod served;
mod sink;
mod soak;
mod svg;
mod tide;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::filter::LevelFilter;

use catalogue::Wanted;
use disciplines::Bench;
use machine::Machine;
use scale::Scale;

// The same allocator as in the `tidegate` binary, since this binary also runs the servers that are measured.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Compares Tidegate with the raw limit of the same database: ratios of one run on one machine.
#[derive(Debug, Parser)]
#[command(name = "tidegate-bench")]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Measure only this discipline, or all whose names begin with NAME.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Smaller counts and three runs of each side: a few minutes in all, for an impression only.
    #[arg(long)]
    quick: bool,
    /// Write the results as a JSON file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the results as an SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Internal: run as the child process whose memory is measured, on the database at this address.
    #[arg(long, hide = true)]
    memory_child: Option<String>,
    /// Internal: how many events that child publishes and ends.
    #[arg(long, hide = true, default_value_t = 0)]
    memory_events: usize,
    /// Internal: run as a server child over the database at this address, or as the `floor`.
    #[arg(long, hide = true)]
    serve_child: Option<String>,
    /// Internal: the server child requires API keys.
    #[arg(long, hide = true)]
    serve_keys: bool,
    /// Internal: the server child delivers jobs.
    #[arg(long, hide = true)]
    serve_router: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// A long run at a steady rate: memory, sizes and latency must not keep rising.
    Soak(soak::Arguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    // Warnings of the library explain odd results. The server with keys gets many list requests that it refuses, and
    // would log a warning for each.
    let level = if args.serve_keys { LevelFilter::ERROR } else { LevelFilter::WARN };
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level).init();
    match run(args).await {
        Ok(true) => ExitCode::SUCCESS,
        // The results are printed already.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tidegate-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<bool> {
    if let Some(Command::Soak(arguments)) = &args.command {
        return soak::run(arguments).await;
    }
    measure(args).await.map(|()| true)
}

async fn measure(args: Args) -> Result<()> {
    if let Some(address) = &args.memory_child {
        return disciplines::memory::child(address, args.memory_events).await;
    }
    if let Some(what) = &args.serve_child {
        return served::child(what, args.serve_keys, args.serve_router).await;
    }
    let wanted = Wanted::new(args.only)?;
    let bench = Bench::new(if args.quick { Scale::QUICK } else { Scale::FULL }, wanted)?;
    let machine = Machine::detect(bench.folder());
    println!("{}", machine.header());
    if let Some(server) = bench.started_server() {
        println!("{}", server.describe().await?);
    }
    println!("{}\n", raw::sqlite::describe());
    let outcomes = disciplines::run(&bench).await?;
    println!("{}", report::table(&outcomes));
    if let Some(file) = &args.json {
        std::fs::write(file, report::json(&outcomes)?)?;
    }
    if let Some(file) = &args.plot {
        std::fs::write(file, plot::svg(&outcomes, &machine.short()))?;
    }
    Ok(())
}
