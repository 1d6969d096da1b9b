//! Reads what attempts start from, and writes what follows from them. Knows nothing of the loop.

use std::sync::Arc;

use tidegate_core::{End, HandlerDecision};
use tidegate_store::{Finalize, HandlerHistory};

use super::attempt::{Attempted, success_state};
use super::inner::Inner;
use crate::error::{Error, Result};
use crate::queue::delivery::{QueuedEvent, json_list};

/// What is still to be written about an attempt.
pub(super) enum ToWrite {
    /// The end of the entry.
    End(Finalize, QueuedEvent),
    /// A retry or a snooze.
    GiveBack(GiveBack),
    /// Nothing: the entry has ended, was released, or keeps its lease until that runs out.
    Nothing,
}

/// An entry to be requeued, with the ids of handlers whose success must be recorded.
pub(super) struct GiveBack {
    event: QueuedEvent,
    decision: HandlerDecision,
    successes: Vec<Arc<str>>,
}

/// What is to be written about an attempt. An event that needs nothing is released or forgotten here.
pub(super) fn to_write(inner: &Inner, event: QueuedEvent, outcome: Attempted) -> ToWrite {
    match outcome {
        Attempted::Ended => {
            let meters = &inner.context.queue.shared().meters;
            meters.claim_to_finish.record(event.claimed_since().elapsed().as_secs_f64());
            event.forget();
            ToWrite::Nothing
        }
        Attempted::Lost(error) => {
            // Not released, for it may have ended or another worker may have it.
            tracing::warn!(entry = %event.id, %error, "lease lost or commit unanswered: the lease runs out");
            event.forget();
            ToWrite::Nothing
        }
        Attempted::NotBegun => {
            tracing::warn!(entry = %event.id, "lease ran out before the attempt started: event is released");
            drop(event);
            ToWrite::Nothing
        }
        Attempted::Decided { decision: HandlerDecision::End { end, errors }, results, .. } => {
            ToWrite::End(ending(&event, end, errors, results), event)
        }
        Attempted::Decided { decision, successes, .. } => ToWrite::GiveBack(GiveBack { event, decision, successes }),
    }
}

fn ending(event: &QueuedEvent, end: End, errors: Vec<String>, results: String) -> Finalize {
    let errors = (!errors.is_empty()).then(|| json_list(errors));
    Finalize { id: event.id, token: Some(event.token), end, errors, results: Some(results), attempt: None }
}

/// Ends entries in as few flushes as possible.
pub(super) async fn write_ends(inner: &Inner, ends: Vec<(Finalize, QueuedEvent)>) {
    for answer in inner.context.queue.end_many(ends).await {
        if let Err(error) = answer {
            tracing::warn!(%error, "ending an event failed: it may be handled again");
        }
    }
}

/// Records the successes, then requeues the entry.
pub(super) async fn give_back(inner: &Inner, GiveBack { event, decision, successes }: GiveBack) {
    let states: Vec<_> = successes.iter().map(|handler| success_state(&event, handler)).collect();
    let recorded = inner.context.recorder.call_many(states).await;
    if let Some(error) = recorded.into_iter().find_map(Result::err) {
        tracing::warn!(entry = %event.id, %error, "recording a handler's success failed: it may run again");
    }
    let entry = event.id;
    let answer = match decision {
        HandlerDecision::Retry { after, error } => {
            let delay = after.unwrap_or_else(|| event.retry_delay(inner.options.retry.as_ref()));
            event.retry_after(delay, error).await
        }
        HandlerDecision::Snooze(delay) => event.snooze(delay).await,
        HandlerDecision::End { .. } => Err(Error::invalid("an end cannot be requeued")),
    };
    if let Err(error) = answer {
        tracing::warn!(%entry, %error, "requeueing an event failed: it is released, or its lease runs out");
    }
}

/// The results of handlers in earlier attempts at these events, in one query. `None` when they cannot be read: the
/// events are released then.
pub(super) async fn with_history(
    inner: &Inner,
    events: Vec<QueuedEvent>,
) -> Option<Vec<(QueuedEvent, HandlerHistory)>> {
    let ids = events.iter().map(|event| event.id).collect();
    match inner.context.queue.store().handled(ids).await {
        Ok(histories) => Some(events.into_iter().zip(histories).collect()),
        Err(error) => {
            tracing::warn!(%error, "reading handler states failed: their events are released");
            None
        }
    }
}

/// Removes the handler states of ended events.
pub(super) async fn clean_up(inner: &Inner) {
    if let Err(error) = inner.cleanup().await {
        tracing::warn!(%error, "removing handler states of ended events failed, retrying later");
    }
}
