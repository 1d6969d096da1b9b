//! Spans for publish, claim, handler and report, as parts of the publisher's trace. An event without trace context gets
//! no span and costs nothing.
//!
//! Each span has the fields `trace_id`, `parent_id` and its own `span_id`, so that an exporter can join spans of
//! several processes.

use tidegate_core::{EntryId, NewEvent, TraceContext};
use tidegate_store::{Claimed, Reported};
use tracing::Span;

fn fresh_id() -> u64 {
    rand::random::<u64>().max(1)
}

/// A span that covers the publish of an event.
pub(crate) fn publish(event: &NewEvent) -> Span {
    let Some(trace) = TraceContext::of_attributes(event.attributes.as_deref()) else { return Span::none() };
    tracing::info_span!("publish", trace_id = trace.trace_id, parent_id = trace.parent_id,
        span_id = format!("{:016x}", fresh_id()), queue = %event.queue, event_type = event.event_type)
}

/// Emits the span of a claim.
pub(crate) fn claimed(entry: &Claimed, worker: &str) {
    let Some(trace) = TraceContext::of_attributes(entry.fact.attributes.as_deref()) else { return };
    tracing::info_span!("claim", trace_id = trace.trace_id, parent_id = trace.parent_id,
        span_id = format!("{:016x}", fresh_id()), entry = %entry.id, event_type = entry.fact.event_type,
        attempt = entry.attempts, worker)
    .in_scope(|| tracing::debug!("claimed"));
}

/// A span that covers one call of a handler.
pub(crate) fn handler(entry: &Claimed, handler: &str) -> Span {
    let Some(trace) = TraceContext::of_attributes(entry.fact.attributes.as_deref()) else { return Span::none() };
    tracing::info_span!("handler", trace_id = trace.trace_id, parent_id = trace.parent_id,
        span_id = format!("{:016x}", fresh_id()), entry = %entry.id, event_type = entry.fact.event_type,
        attempt = entry.attempts, handler)
}

/// Emits the span of a pull worker's report.
pub(crate) fn reported(id: EntryId, reported: &Reported) {
    let Some(trace) = TraceContext::of_attributes(reported.attributes.as_deref()) else { return };
    tracing::info_span!("report", trace_id = trace.trace_id, parent_id = trace.parent_id,
        span_id = format!("{:016x}", fresh_id()), entry = %id, attempt = reported.row.attempt,
        action = reported.row.action.as_str(), worker = reported.row.worker.as_deref().unwrap_or_default())
    .in_scope(|| tracing::debug!("reported"));
}
