//! What is sent of an event: its data with the attributes in headers, or the whole event.

use bytes::Bytes;
use tidegate::{Fact, Tsid};
use tidegate_core::cloud_event::{CloudEvent, Message, STRUCTURED, StoredEvent};

/// The message for a webhook. `event_id` is the event's id where its producer gave it none.
pub(super) fn message(fact: &Fact, event_id: Tsid, data_only: bool) -> Message {
    let event = CloudEvent::from_stored(&StoredEvent {
        event_type: &fact.event_type,
        payload: &fact.payload,
        content_type: fact.content_type.as_deref(),
        source: fact.source.as_deref(),
        subject: fact.subject.as_deref(),
        time: fact.time,
        external_id: fact.external_id.as_deref(),
        correlation_id: fact.correlation_id.as_deref(),
        causation_id: fact.causation_id.as_deref(),
        attributes: fact.attributes.as_deref(),
    });
    let mut message = match data_only {
        true => event.to_binary(event_id),
        false => {
            let body: Bytes = event.to_structured(event_id);
            Message { headers: vec![("content-type".to_owned(), STRUCTURED.to_owned())], body }
        }
    };
    let traces = [("traceparent", &event.traceparent), ("tracestate", &event.tracestate)];
    let traces = traces.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?)));
    message.headers.extend(traces);
    message
}
