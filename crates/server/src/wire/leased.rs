//! A claimed event, as its worker gets it.

use serde::Serialize;
use tidegate::{Claimed, QueueName, Status, Timestamp, TraceContext};
use utoipa::ToSchema;

use super::basics::{EventBasics, client, traceparent};
use super::payload::{Payload, PayloadSchema};

/// A claimed event: the caller holds its lease.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Leased {
    #[serde(flatten)]
    basics: EventBasics,
    /// A description for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// The payload, as it was published.
    #[serde(flatten)]
    #[schema(value_type = PayloadSchema)]
    payload: Payload,
    /// Retries allowed after the first attempt.
    max_retries: u32,
    /// The number of this attempt, from 1.
    attempts: u32,
    /// The lease token: pass it as `lease` in every report.
    lease: i64,
    /// When the lease expires unless a heartbeat extends it; then another worker may claim the event.
    #[schema(value_type = String, format = DateTime)]
    lease_until: Timestamp,
    /// The message group: its events run one at a time, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_group: Option<String>,
    /// The error of the previous attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// The W3C trace context of the publisher.
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    /// The `tracestate` of the W3C trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    tracestate: Option<String>,
}

impl Leased {
    pub(crate) fn of(claimed: &Claimed, queue: &QueueName) -> Self {
        let fact = &claimed.fact;
        Self {
            basics: EventBasics {
                id: claimed.id.get(),
                event_id: claimed.event_id.to_string(),
                title: fact.title.clone().unwrap_or_else(|| fact.event_type.clone()),
                tags: fact.tags.join(","),
                status: Status::Processing,
                retry_count: tidegate_core::attempt::retry_count(claimed.attempts, false),
                client: client(queue),
                queue: queue.name().to_owned(),
                event_type: fact.event_type.clone(),
                created_at: fact.created_at,
            },
            description: fact.description.clone(),
            payload: (&fact.payload).into(),
            max_retries: claimed.max_attempts.saturating_sub(1),
            attempts: claimed.attempts,
            lease: claimed.token.0,
            lease_until: claimed.lease_until,
            message_group: claimed.group.clone(),
            last_error: claimed.last_error.clone(),
            traceparent: traceparent(fact.attributes.as_deref()),
            tracestate: TraceContext::of_attributes(fact.attributes.as_deref()).and_then(|trace| trace.tracestate),
        }
    }
}
