//! Measures Tidegate beside the raw limit of the same database, in one run on one machine. This file only wires.

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
mod soak;
mod tide;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::filter::LevelFilter;

use catalogue::Wanted;
use disciplines::Bench;
use machine::Machine;
use scale::Scale;

// As in the `tidegate` binary: the server that is measured must stand on the same ground.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Measures Tidegate beside the raw limit of the same database: ratios of one run on one machine.
#[derive(Debug, Parser)]
#[command(name = "tidegate-bench")]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Measure only this discipline, or all whose names begin so.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Take a quick look: smaller counts, three runs of each side, at most two minutes in all.
    #[arg(long)]
    quick: bool,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the results as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// The child process that measures memory is started with this.
    #[arg(long, hide = true)]
    memory_child: Option<String>,
    /// How many events pass through it.
    #[arg(long, hide = true, default_value_t = 0)]
    memory_events: usize,
    /// The child process that is a server is started with this: a database, or `floor`.
    #[arg(long, hide = true)]
    serve_child: Option<String>,
    /// It lets in only those who have a key.
    #[arg(long, hide = true)]
    serve_keys: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// A long run at a steady rate: memory, sizes and latency must not keep rising.
    Soak(soak::Arguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    // A warning of the library explains an odd number. Where clients list too much, each refusal would be one.
    let level = if args.serve_keys { LevelFilter::ERROR } else { LevelFilter::WARN };
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level).init();
    match run(args).await {
        Ok(true) => ExitCode::SUCCESS,
        // What was measured has been printed.
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
        return served::child(what, args.serve_keys).await;
    }
    let wanted = Wanted::new(args.only)?;
    let bench = Bench::new(if args.quick { Scale::QUICK } else { Scale::FULL }, wanted)?;
    let machine = Machine::look(bench.folder());
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
