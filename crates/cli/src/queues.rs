//! `tidegate queues`: lists, configures, pauses, resumes and drains queues.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::client::{Client, ServerArgs, path_part};
use crate::failure::Failure;
use crate::output::{self, cell};

#[derive(Debug, Args)]
pub(crate) struct QueuesArgs {
    #[command(subcommand)]
    command: QueuesCommand,
}

#[derive(Debug, Subcommand)]
enum QueuesCommand {
    /// List queues with their depths.
    List {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Create a queue, or change the given settings of one.
    Set {
        /// Name of the queue.
        name: String,
        /// Maximum number of live events.
        #[arg(long)]
        depth_limit: Option<u64>,
        /// Length of a lease, in seconds, when the claim names none.
        #[arg(long)]
        lease_seconds: Option<u32>,
        /// Retries of an event that sets no number.
        #[arg(long)]
        max_retries: Option<u32>,
        /// Whether workers must name their lease when they report.
        #[arg(long)]
        require_lease: Option<bool>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Stop delivery; publishes are still accepted.
    Pause(NamedQueue),
    /// Accept and deliver again.
    Resume(NamedQueue),
    /// Refuse new events and deliver the rest.
    Drain(NamedQueue),
}

#[derive(Debug, Args)]
struct NamedQueue {
    /// Name of the queue.
    name: String,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: QueuesArgs) -> Result<(), Failure> {
    match args.command {
        QueuesCommand::List { server } => list(&server).await,
        QueuesCommand::Set { name, depth_limit, lease_seconds, max_retries, require_lease, server } => {
            let settings = [
                ("depth_limit", depth_limit.map(Value::from)),
                ("lease_seconds", lease_seconds.map(Value::from)),
                ("max_retries", max_retries.map(Value::from)),
                ("require_lease", require_lease.map(Value::from)),
            ];
            let body: Map<String, Value> =
                settings.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
            let queue = Client::new(&server)?.put(&format!("/queues/{}", path_part(&name)), &body).await?;
            show(&queue, &server)
        }
        QueuesCommand::Pause(queue) => change(queue, "pause").await,
        QueuesCommand::Resume(queue) => change(queue, "resume").await,
        QueuesCommand::Drain(queue) => change(queue, "drain").await,
    }
}

async fn change(queue: NamedQueue, verb: &str) -> Result<(), Failure> {
    let path = format!("/queues/{}/{verb}", path_part(&queue.name));
    let answer = Client::new(&queue.server)?.post(&path, &json!({})).await?;
    show(&answer, &queue.server)
}

fn show(queue: &Value, server: &ServerArgs) -> Result<(), Failure> {
    if server.json {
        return output::json(queue);
    }
    output::line(&format!("{} is {}", cell(queue, "name"), cell(queue, "state")));
    Ok(())
}

async fn list(server: &ServerArgs) -> Result<(), Failure> {
    let client = Client::new(server)?;
    let answer = client.get("/queues", &[]).await?;
    let mut queues = Vec::new();
    for queue in answer["queues"].as_array().into_iter().flatten() {
        let mut queue = queue.clone();
        queue["metrics"] = client.get(&format!("/queues/{}/metrics", path_part(&cell(&queue, "name"))), &[]).await?;
        queues.push(queue);
    }
    if server.json {
        return output::json(&queues);
    }
    let counts = ["ready", "delayed", "parked", "leased"];
    let row = |queue: &Value| {
        let own = ["name", "state"].into_iter().map(|column| cell(queue, column));
        let held = counts.into_iter().map(|column| cell(&queue["metrics"], column));
        own.chain(held).chain([cell(queue, "depth_limit")]).collect()
    };
    let rows = queues.iter().map(row).collect();
    output::table(&["QUEUE", "STATE", "READY", "DELAYED", "PARKED", "LEASED", "LIMIT"], rows);
    Ok(())
}
