//! `tidegate tail`: events as they are published.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::Failure;
use crate::client::{Client, ServerArgs};
use crate::output::{self, cell};

/// The server is asked this often.
const EVERY: Duration = Duration::from_secs(1);
const PAGE: usize = 1_000;

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// With any of these tags.
    #[arg(long, value_name = "TAG,…")]
    tags: Option<String>,
    /// Of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// How many of those that are there already to begin with.
    #[arg(long, short = 'n', default_value_t = 10)]
    lines: usize,
    /// Stop after this many.
    #[arg(long)]
    count: Option<u64>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: TailArgs) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let mut shown = 0;
    let mut last = 0;
    let mut limit = args.lines.clamp(1, PAGE);
    let mut tick = tokio::time::interval(EVERY);
    loop {
        tick.tick().await;
        let mut fresh = page(&client, &args, limit, last).await?;
        if limit != PAGE {
            last = fresh.last().map_or(0, number);
            fresh.drain(..fresh.len().saturating_sub(args.lines));
            limit = PAGE;
        }
        for event in fresh {
            last = last.max(number(&event));
            show(&event, args.server.json);
            shown += 1;
            if args.count.is_some_and(|count| shown >= count) {
                return Ok(());
            }
        }
    }
}

/// Events after `last`, the oldest first.
async fn page(client: &Client, args: &TailArgs, limit: usize, last: u64) -> Result<Vec<Value>, Failure> {
    let mut query = vec![("limit", limit.to_string())];
    let optional = [("tags", &args.tags), ("queue", &args.queue)];
    query.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
    let mut answer = client.get("/events", &query).await?;
    let events = answer["events"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let mut fresh: Vec<Value> = events.into_iter().filter(|event| number(event) > last).collect();
    fresh.sort_unstable_by_key(number);
    Ok(fresh)
}

fn number(event: &Value) -> u64 {
    event["id"].as_u64().unwrap_or_default()
}

fn show(event: &Value, json: bool) {
    if json {
        return output::line(&event.to_string());
    }
    let columns = ["created_at", "id", "status", "queue", "tags", "title"].map(|column| cell(event, column));
    output::line(&columns.join("  ").replace(char::is_control, " "));
}
