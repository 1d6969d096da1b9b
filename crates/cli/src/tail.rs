//! `tidegate tail`: shows events as they are published.

use std::time::Duration;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::client::{Client, ServerArgs};
use crate::failure::Failure;
use crate::output::{self, cell};

/// Time between two polls.
const EVERY: Duration = Duration::from_secs(1);
const PAGE: usize = 1_000;
/// A poll reads events from this long before the last one on: those published at about the same time may be numbered in
/// another order.
const OVERLAP: SignedDuration = SignedDuration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// Only events with any of these tags.
    #[arg(long, value_name = "TAG,…")]
    tags: Option<String>,
    /// Only events of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// Number of existing events to show first.
    #[arg(long, short = 'n', default_value_t = 10)]
    lines: usize,
    /// Stop after this many events.
    #[arg(long)]
    count: Option<u64>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) async fn run(args: TailArgs) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let mut tick = tokio::time::interval(EVERY);
    tick.tick().await;
    let mut fresh = newest(&client, &args).await?;
    let mut last = fresh.last().cloned();
    fresh.drain(..fresh.len().saturating_sub(args.lines));
    let mut shown = 0;
    loop {
        for event in &fresh {
            show(event, args.server.json);
            shown += 1;
            if args.count.is_some_and(|count| shown >= count) {
                return Ok(());
            }
        }
        last = fresh.pop().or(last);
        tick.tick().await;
        fresh = since(&client, &args, last.as_ref()).await?;
    }
}

/// The newest events, at least one and as many as are to be shown first, oldest first.
async fn newest(client: &Client, args: &TailArgs) -> Result<Vec<Value>, Failure> {
    let wanted = args.lines.max(1);
    let limit = wanted.min(PAGE);
    let is_enough = |found: &[Value], page: usize| found.len() >= wanted || page < limit;
    pages(client, args, limit, None, is_enough).await
}

/// All events after `last`, oldest first: as many pages as were published since.
async fn since(client: &Client, args: &TailArgs, last: Option<&Value>) -> Result<Vec<Value>, Failure> {
    let after = last.map_or(0, number);
    let published = last.and_then(|last| last["created_at"].as_str()?.parse::<Timestamp>().ok());
    let from = published.and_then(|at| at.checked_sub(OVERLAP).ok());
    // A short page that is not the last one means that the server has looked at many others. Without a moment to end at,
    // it would look at all there are.
    let is_enough = |found: &[Value], page: usize| {
        found.last().is_some_and(|oldest| number(oldest) <= after) || (from.is_none() && page < PAGE)
    };
    let mut fresh = pages(client, args, PAGE, from, is_enough).await?;
    fresh.retain(|event| number(event) > after);
    Ok(fresh)
}

/// Reads pages, newest first, until there are no more or `is_enough` says so of what was found and of the length of the
/// last page. Returns the events oldest first.
async fn pages(
    client: &Client,
    args: &TailArgs,
    limit: usize,
    from: Option<Timestamp>,
    is_enough: impl Fn(&[Value], usize) -> bool,
) -> Result<Vec<Value>, Failure> {
    let from = from.map(|from| from.to_string());
    let mut found: Vec<Value> = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut query = vec![("limit", limit.to_string())];
        let optional = [("tags", &args.tags), ("queue", &args.queue), ("from", &from), ("cursor", &cursor)];
        query.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
        let mut answer = client.get("/events", &query).await?;
        let page = answer["events"].as_array_mut().map(std::mem::take).unwrap_or_default();
        let length = page.len();
        found.extend(page);
        cursor = answer["next_cursor"].as_str().map(Into::into);
        if cursor.is_none() || is_enough(&found, length) {
            found.sort_unstable_by_key(number);
            return Ok(found);
        }
    }
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
