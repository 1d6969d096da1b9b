//! Measures Tidegate beside the raw limit of the same database, in one run on one machine. This file only wires.

mod catalogue;
mod disciplines;
mod machine;
mod pg;
mod plot;
mod raw;
mod report;
mod runner;
mod scale;
mod tide;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use catalogue::Wanted;
use disciplines::Bench;
use machine::Machine;
use scale::Scale;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Measures Tidegate beside the raw limit of the same database: ratios of one run on one machine.
#[derive(Debug, Parser)]
#[command(name = "tidegate-bench")]
struct Args {
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
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<()> {
    if let Some(address) = &args.memory_child {
        return disciplines::memory::child(address, args.memory_events).await;
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
