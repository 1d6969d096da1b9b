//! The specification as tables of cases, the fact that keeps an event, and events of other implementations.

mod batch;
mod core;
mod hostile;
mod http;
mod json;
mod round_trips;
mod sdks;
mod sent;
mod stored;

use bytes::Bytes;

use super::*;
use crate::id::Tsid;

/// Our own id of an event.
const OWN: Tsid = Tsid::from_i64(7);

/// What every event in the JSON format has.
const LEAST: [(&str, &str); 4] =
    [("specversion", "\"1.0\""), ("id", "\"A1\""), ("source", "\"/s\""), ("type", "\"t\"")];

/// The least event in the JSON format with members changed or added; an empty value leaves the member out.
fn with(changes: &[(&str, &str)]) -> String {
    let changed = |name: &str| changes.iter().any(|(other, _)| *other == name);
    let kept = LEAST.iter().filter(|(name, _)| !changed(name));
    let members = kept.chain(changes.iter().filter(|(_, value)| !value.is_empty()));
    let members: Vec<_> = members.map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}", members.join(", "))
}

fn structured(json: &str) -> Result<CloudEvent, InvalidCloudEvent> {
    CloudEvent::from_structured(&Bytes::copy_from_slice(json.as_bytes()))
}

/// Reads an event in binary mode with these headers beside those that every event has; an empty value leaves one out.
fn binary(changes: &[(&str, &str)], body: impl Into<Bytes>) -> Result<CloudEvent, InvalidCloudEvent> {
    let least = [("ce-specversion", "1.0"), ("ce-id", "A1"), ("ce-source", "/s"), ("ce-type", "t")];
    let changed = |name: &str| changes.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
    let kept = least.iter().filter(|(name, _)| !changed(name));
    let headers = kept.chain(changes.iter().filter(|(_, value)| !value.is_empty()));
    CloudEvent::from_binary(headers.map(|(name, value)| (*name, value.as_bytes())), body.into())
}

/// The structured form of an event, parsed.
fn shown(event: &CloudEvent) -> serde_json::Value {
    serde_json::from_slice(&event.to_structured(OWN)).unwrap()
}

/// A header of an event in binary mode.
fn header(event: &CloudEvent, name: &str) -> Option<String> {
    event.to_binary(OWN).headers.into_iter().find(|(other, _)| other == name).map(|(_, value)| value)
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::Text(value.to_owned())
}
