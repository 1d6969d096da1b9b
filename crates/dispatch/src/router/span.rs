//! The span of an attempt, as a part of the publisher's trace. An event without trace context gets no span and costs nothing.

use tidegate::{QueuedEvent, Tsid};
use tidegate_core::TraceContext;
use tracing::Span;

/// A span that covers an attempt, and the context that the webhook carries on: below the span where somebody listens to it,
/// else as the publisher gave it.
pub(super) fn of_attempt(job: &QueuedEvent, id: Tsid, subscription: Option<Tsid>) -> (Span, Option<TraceContext>) {
    let Some(trace) = TraceContext::of_attributes(job.fact.attributes.as_deref()) else { return (Span::none(), None) };
    let span_id = rand::random::<u64>().max(1);
    let span = tracing::info_span!("webhook", trace_id = trace.trace_id, parent_id = trace.parent_id,
        span_id = format!("{span_id:016x}"), job = %id, subscription = subscription.map(tracing::field::display), event_type = job.fact.event_type,
        attempt = job.attempts, response_code = tracing::field::Empty);
    let below = if span.is_disabled() { trace } else { trace.below(span_id) };
    (span, Some(below))
}
