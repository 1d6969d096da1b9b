//! What is sent of an event: its data with the attributes in headers, or the whole event.

use bytes::Bytes;
use tidegate::{Fact, Tsid};
use tidegate_core::cloud_event::{Message, STRUCTURED};

use crate::gateway::ingest::event_of;

/// The message for a webhook, of an event or a task. `event_id` is the event's id where its producer gave it none.
pub(super) fn message(fact: &Fact, event_id: Tsid, data_only: bool) -> Message {
    let event = event_of(fact);
    let mut message = match data_only {
        true => event.to_binary(event_id),
        false => {
            let body: Bytes = event.to_structured(event_id);
            Message { headers: vec![("content-type".into(), STRUCTURED.to_owned())], body }
        }
    };
    let traces = [("traceparent", &event.traceparent), ("tracestate", &event.tracestate)];
    let traces = traces.into_iter().filter_map(|(name, value)| Some((name.into(), value.clone()?)));
    message.headers.extend(traces);
    message
}
