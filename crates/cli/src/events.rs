//! `tidegate events`: lists, shows, resets and redrives events.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::client::{Client, ServerArgs};
use crate::failure::Failure;
use crate::files::read;
use crate::output::{self, cell, shown};

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    #[command(subcommand)]
    command: EventsCommand,
}

#[derive(Debug, Subcommand)]
enum EventsCommand {
    /// List events, newest first.
    List {
        /// Only events that are PENDING, PROCESSING, COMPLETED, COMPLETED_WITH_ERRORS, FAILED or CANCELLED.
        #[arg(long)]
        status: Option<String>,
        /// Only events with any of these tags.
        #[arg(long, value_name = "TAG,…")]
        tags: Option<String>,
        /// Only events of this queue.
        #[arg(long)]
        queue: Option<String>,
        /// Only events of this type.
        #[arg(long = "type", value_name = "TYPE")]
        event_type: Option<String>,
        /// Maximum number of events.
        #[arg(long, default_value_t = 20)]
        limit: u32,
        /// Where to continue, as the previous page printed it.
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show an event with its audit.
    Show {
        /// Id of the event.
        id: u64,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Reset an event that is PROCESSING, FAILED or kept in its place, so that it can be claimed again.
    Reset {
        /// Id of the event.
        id: u64,
        /// Reason, for the audit.
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Publish CloudEvents to the gateway: an event, or an array of them, in the JSON format.
    Publish {
        /// The event or events; - for standard input.
        #[arg(long, value_name = "FILE")]
        cloudevent: PathBuf,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Redrive dead letters: one by its id, or all that match.
    Redrive {
        /// Id of the event, also of one kept in its place; without it, all dead letters that match are redriven.
        id: Option<u64>,
        /// Only dead letters of this queue.
        #[arg(long)]
        queue: Option<String>,
        /// Only dead letters of this type.
        #[arg(long = "type", value_name = "TYPE")]
        event_type: Option<String>,
        /// Maximum number of dead letters.
        #[arg(long, default_value_t = 1000)]
        limit: u32,
        #[command(flatten)]
        server: ServerArgs,
    },
}

pub(crate) async fn run(args: EventsArgs) -> Result<(), Failure> {
    match args.command {
        EventsCommand::List { status, tags, queue, event_type, limit, cursor, server } => {
            let optional =
                [("status", status), ("tags", tags), ("queue", queue), ("type", event_type), ("cursor", cursor)];
            let mut query = vec![("limit", limit.to_string())];
            query.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
            let page = Client::new(&server)?.get("/events", &query).await?;
            if server.json { output::json(&page) } else { show_page(&page) }
        }
        EventsCommand::Show { id, server } => {
            let query = [("include_logs", "true".to_owned())];
            let event = Client::new(&server)?.get(&format!("/events/{id}"), &query).await?;
            if server.json { output::json(&event) } else { show_event(&event) }
        }
        EventsCommand::Reset { id, reason, server } => {
            let reason = reason.map(|reason| format!("?reason={}", crate::client::path_part(&reason)));
            let path = format!("/events/{id}/reset{}", reason.unwrap_or_default());
            let event = Client::new(&server)?.post(&path, &json!({})).await?;
            if server.json { output::json(&event) } else { show_event(&event) }
        }
        EventsCommand::Publish { cloudevent, server } => publish(&cloudevent, &server).await,
        EventsCommand::Redrive { id: Some(id), server, .. } => {
            let event = Client::new(&server)?.post(&format!("/events/{id}/redrive"), &json!({})).await?;
            if server.json { output::json(&event) } else { show_event(&event) }
        }
        EventsCommand::Redrive { id: None, queue, event_type, limit, server } => {
            let body = json!({ "queue": queue, "type": event_type, "limit": limit });
            let answer = Client::new(&server)?.post("/events/redrive", &body).await?;
            if server.json {
                return output::json(&answer);
            }
            output::line(&format!("{} redriven", cell(&answer, "redriven")));
            Ok(())
        }
    }
}

/// Publishes one event, or many, of which each that is refused is told.
async fn publish(file: &Path, server: &ServerArgs) -> Result<(), Failure> {
    let bytes = read(file)?;
    let is_batch = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    let client = Client::new(server)?;
    let (path, content_type) = match is_batch {
        true => ("/api/events/batch", "application/cloudevents-batch+json"),
        false => ("/api/events", "application/cloudevents+json"),
    };
    let answer = client.post_bytes(path, &[], Some(content_type), bytes).await?;
    let results = match answer["results"].as_array() {
        Some(results) => results.clone(),
        None => vec![answer.clone()],
    };
    if server.json {
        output::json(&answer)?;
    }
    let mut refused = 0;
    for (at, result) in results.iter().enumerate() {
        if let Some(error) = result["error"].as_str() {
            refused += 1;
            eprintln!("event {at}: {}", shown(error));
        } else if !server.json {
            let known = if result["deduplicated"] == true { " (was there before)" } else { "" };
            output::line(&format!("{}{known}", cell(result, "id")));
        }
    }
    if refused > 0 { Err(format!("{refused} of {} events were refused", results.len()).into()) } else { Ok(()) }
}

fn show_page(page: &Value) -> Result<(), Failure> {
    let columns = ["id", "status", "title", "tags", "queue", "retry_count", "worker_id", "updated_at"];
    let rows = page["events"].as_array().into_iter().flatten();
    let rows = rows.map(|event| columns.iter().map(|column| cell(event, column)).collect()).collect();
    output::table(&["ID", "STATUS", "TITLE", "TAGS", "QUEUE", "RETRIES", "WORKER", "UPDATED"], rows);
    let capped = if page["total_capped"] == true { "at least " } else { "" };
    eprintln!("{capped}{} in total", cell(page, "total"));
    if let Some(cursor) = page["next_cursor"].as_str() {
        eprintln!("more: --cursor {cursor}");
    }
    Ok(())
}

fn show_event(event: &Value) -> Result<(), Failure> {
    let fields = event.as_object().into_iter().flatten();
    let rows = fields.filter(|(name, value)| *name != "logs" && !value.is_null());
    output::table(&["FIELD", "VALUE"], rows.map(|(name, _)| vec![name.clone(), cell(event, name)]).collect());
    if let Some(logs) = event["logs"].as_array() {
        let columns =
            ["created_at", "action", "worker_id", "attempt", "status_code", "execution_time_ms", "error_message"];
        let rows = logs.iter().map(|row| columns.iter().map(|column| cell(row, column)).collect()).collect();
        output::line("");
        output::table(&["WHEN", "ACTION", "WORKER", "ATTEMPT", "CODE", "MS", "ERROR"], rows);
    }
    Ok(())
}
