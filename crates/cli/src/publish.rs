//! `tidegate publish`: publishes one event.

use std::io::Read;

use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::client::{Client, ServerArgs};
use crate::failure::Failure;
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    /// Title, for people.
    title: String,
    /// Tags that workers select events by.
    #[arg(long, value_name = "TAG,…")]
    tags: String,
    /// Payload as JSON; `-` reads it from stdin.
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// Description, for people.
    #[arg(long)]
    description: Option<String>,
    /// Queue to publish to.
    #[arg(long)]
    queue: Option<String>,
    /// Event type.
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Retries after the first attempt.
    #[arg(long)]
    max_retries: Option<u32>,
    /// Seconds until it can be claimed.
    #[arg(long, value_name = "SECONDS")]
    delay: Option<f64>,
    /// Priority from -100 to 100; lower goes first.
    #[arg(long, allow_hyphen_values = true)]
    priority: Option<i16>,
    /// Deduplication key: a repeat within 24 hours is answered with the first event.
    #[arg(long, value_name = "ID")]
    deduplication_id: Option<String>,
    /// Group: its events run one after the other, in order.
    #[arg(long, value_name = "GROUP")]
    message_group: Option<String>,
    /// Idempotency key: a repeat of this request within 24 hours gets the first answer.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Serialize)]
struct Body<'a> {
    title: &'a str,
    tags: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: &'a Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    event_type: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_retries: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deduplication_id: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_group: &'a Option<String>,
}

pub(crate) async fn run(args: PublishArgs) -> Result<(), Failure> {
    let payload = match args.payload.as_deref() {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            Some(text)
        }
        Some(text) => Some(text.to_owned()),
        None => None,
    };
    let payload = payload.map(RawValue::from_string).transpose();
    let body = Body {
        title: &args.title,
        tags: &args.tags,
        payload: payload.map_err(|error| format!("the payload is not JSON: {error}"))?,
        description: &args.description,
        queue: &args.queue,
        event_type: &args.event_type,
        max_retries: args.max_retries,
        delay_seconds: args.delay,
        priority: args.priority,
        deduplication_id: &args.deduplication_id,
        message_group: &args.message_group,
    };
    let headers: Vec<(&str, &str)> = args.idempotency_key.iter().map(|key| ("Idempotency-Key", key.as_str())).collect();
    let event = Client::new(&args.server)?.post_with("/events", &body, &headers).await?;
    if args.server.json {
        return output::json(&event);
    }
    output::line(&output::cell(&event, "id"));
    Ok(())
}
