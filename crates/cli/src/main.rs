//! The binary `tidegate`. This file only wires: each subcommand has its own file.

mod accounts;
mod apply;
mod client;
mod clients;
mod config;
mod doctor;
mod events;
mod exact;
mod export;
mod failure;
mod files;
mod groups;
mod jobs;
mod keys;
mod listen;
mod masking;
mod output;
mod pools;
mod projections;
mod publish;
mod queues;
mod replay;
mod secrets;
mod serve;
mod setting_table;
mod settings;
mod sink;
mod subscriptions;
mod tail;
mod telemetry;
mod types;
mod work;
mod yaml;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::Failure;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A durable event queue: run it, publish to it, work on its events, and operate it.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server.
    Serve(settings::SettingsArgs),
    /// Show the effective settings and where each came from.
    Config(settings::ConfigArgs),
    /// Create the database, or bring its schema up to date.
    Migrate(settings::SettingsArgs),
    /// Check the database, versions, clock and durability, and say what to change.
    Doctor(doctor::DoctorArgs),
    /// Make, list and revoke API keys.
    Keys(keys::KeysArgs),
    /// Publish an event.
    Publish(publish::PublishArgs),
    /// Run a command for each event.
    Work(work::WorkArgs),
    /// List, show, reset and redrive events; publish CloudEvents.
    Events(events::EventsArgs),
    /// List, configure, pause, resume and drain queues.
    Queues(queues::QueuesArgs),
    /// List, show, create and archive event types; add, compare and validate against their versions.
    Types(types::TypesArgs),
    /// List, create, change, pause, resume, try, test and delete subscriptions.
    Subscriptions(subscriptions::SubscriptionsArgs),
    /// List and show dispatch jobs; retry, cancel and ignore them.
    Jobs(jobs::JobsArgs),
    /// List message groups that a failed job blocks.
    Groups(groups::GroupsArgs),
    /// List and show dispatch pools with what each holds, suspend and resume them, change their limits.
    Pools(pools::PoolsArgs),
    /// Deliver stored events to a subscription once more.
    Replay(replay::ReplayArgs),
    /// Receive webhooks, verify and print them.
    Sink(sink::SinkArgs),
    /// Forward events to a local address as signed webhooks.
    Listen(listen::ListenArgs),
    /// List, create and delete clients.
    Clients(clients::ClientsArgs),
    /// List, create, change and delete service accounts, and replace their signing secrets.
    Accounts(accounts::AccountsArgs),
    /// Make keys that encrypt secrets, and change all secrets to a new one.
    Secrets(secrets::SecretsArgs),
    /// Make a server have what documents say: event types, subscriptions, queues and so on.
    Apply(apply::ApplyArgs),
    /// Write what a server has as documents for `apply`.
    Export(export::ExportArgs),
    /// List and remove projections.
    Projections(projections::ProjectionsArgs),
    /// Show events as they are published.
    Tail(tail::TailArgs),
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| refuse(&error));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("tidegate: the runtime cannot be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli.command)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tidegate: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Shows help or what is wrong with the command line, and ends. `apply` keeps the code 2 for a plan that has changes.
fn refuse(error: &clap::Error) -> ! {
    let is_apply = std::env::args_os().nth(1).is_some_and(|word| word == "apply");
    match (error.use_stderr() && is_apply, error.print()) {
        (true, _) => std::process::exit(1),
        (false, _) => std::process::exit(error.exit_code()),
    }
}

async fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Serve(args) => serve::run(args).await?,
        Command::Config(args) => settings::show(args)?,
        Command::Migrate(args) => settings::migrate(args).await?,
        Command::Doctor(args) => return doctor::run(args).await,
        Command::Keys(args) => keys::run(args).await?,
        Command::Publish(args) => publish::run(args).await?,
        Command::Work(args) => return work::run(args).await,
        Command::Events(args) => events::run(args).await?,
        Command::Queues(args) => queues::run(args).await?,
        Command::Types(args) => {
            let is_valid = types::run(args).await?;
            return Ok(if is_valid { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Subscriptions(args) => subscriptions::run(args).await?,
        Command::Jobs(args) => jobs::run(args).await?,
        Command::Groups(args) => groups::run(args).await?,
        Command::Pools(args) => pools::run(args).await?,
        Command::Replay(args) => replay::run(args).await?,
        Command::Sink(args) => sink::run(args).await?,
        Command::Listen(args) => listen::run(args).await?,
        Command::Clients(args) => clients::run(args).await?,
        Command::Accounts(args) => accounts::run(args).await?,
        Command::Secrets(args) => secrets::run(args).await?,
        Command::Apply(args) => return apply::run(args).await,
        Command::Export(args) => export::run(args).await?,
        Command::Projections(args) => projections::run(args).await?,
        Command::Tail(args) => tail::run(args).await?,
    }
    Ok(ExitCode::SUCCESS)
}
