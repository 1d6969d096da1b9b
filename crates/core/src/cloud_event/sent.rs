//! The source's own JSON: an event as `POST /api/events` takes it without CloudEvents.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::attributes::Draft;
use super::envelope::{as_json, members, part_of, text};
use super::invalid::{EVENT, InvalidCloudEvent};
use super::{AttributeValue, CloudEvent, DataKind};
use crate::id::Tsid;

/// An event in the source's own JSON. It has no id of its producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The event.
    pub event: CloudEvent,
    /// The client that it is for, which only callers may name that belong to none.
    pub client: Option<Tsid>,
}

/// The fields, and the attributes that they are.
const FIELDS: [(&str, &str); 14] = [
    ("specVersion", "specversion"),
    ("type", "type"),
    ("source", "source"),
    ("subject", "subject"),
    ("time", "time"),
    ("data", "data"),
    ("correlationId", "correlationid"),
    ("causationId", "causationid"),
    ("deduplicationId", "deduplicationid"),
    ("messageGroup", "messagegroup"),
    ("contextData", "contextdata"),
    ("schemaVersion", "schemaversion"),
    ("sequence", "sequence"),
    ("clientId", "clientid"),
];

impl Sent {
    /// Reads one event. A field that is null counts as absent. Data that is a string with a JSON object or array in it
    /// is that object or array.
    ///
    /// # Errors
    /// Names the first field that is unknown or invalid, and what would be accepted.
    pub fn from_json(body: &Bytes) -> Result<Self, InvalidCloudEvent> {
        let (mut draft, mut client, mut data) = (Draft::new(), None, None);
        for (name, value) in members(EVENT, text(EVENT, body)?)? {
            let Some((field, attribute)) = FIELDS.iter().find(|(field, _)| *field == name) else {
                return Err(unknown(&name));
            };
            if value.get() == "null" {
                continue;
            }
            match *field {
                "data" => data = Some(value),
                "clientId" => client = Some(client_id(value)?),
                _ => set(&mut draft, attribute, value).map_err(|error| error.renamed(attribute, field))?,
            }
        }
        if let Some(data) = data {
            draft.set_data(bytes_of(body, data)?, DataKind::Typed)?;
        }
        Ok(Self { event: draft.finish_without_id()?, client })
    }
}

fn set(draft: &mut Draft, attribute: &'static str, value: &RawValue) -> Result<(), InvalidCloudEvent> {
    let invalid = |reason| InvalidCloudEvent::new(attribute, reason);
    if attribute == "contextdata" {
        return draft.set_context_data(value.get());
    }
    if attribute == "sequence" {
        // JSON's whole numbers are those of Rust.
        let number = value.get().parse();
        let number = number.map_err(|_| invalid("must be a whole number between -2147483648 and 2147483647"))?;
        return draft.set(attribute, AttributeValue::Integer(number));
    }
    let Some(value) = AttributeValue::of_json(attribute, value)? else { return Ok(()) };
    draft.set(attribute, value)
}

fn client_id(value: &RawValue) -> Result<Tsid, InvalidCloudEvent> {
    let id = serde_json::from_str(value.get());
    id.map_err(|_| InvalidCloudEvent::new("clientId", "must be the id of a client: 13 Crockford base32 characters"))
}

/// The data as it stands, or what is in the string that it is.
pub(super) fn bytes_of(body: &Bytes, data: &RawValue) -> Result<Bytes, InvalidCloudEvent> {
    let whole = || part_of(body, data.get());
    let may_hold_json = data.get().strip_prefix('"').is_some_and(|inner| {
        let start = inner.trim_ascii_start();
        start.starts_with(['{', '[', '\\'])
    });
    if !may_hold_json {
        return Ok(whole());
    }
    let text: String = match serde_json::from_str(data.get()) {
        Ok(text) => text,
        // A text that is no Unicode is passed on as it is escaped.
        Err(_) => return Ok(whole()),
    };
    let holds_json = text.trim_ascii_start().starts_with(['{', '[']) && as_json(text.as_bytes()).is_some();
    Ok(if holds_json { text.into() } else { whole() })
}

/// The error for an unknown field: it names the one that differs only in case, dashes or underscores.
fn unknown(name: &str) -> InvalidCloudEvent {
    let plain = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    let meant = FIELDS.iter().find(|(field, _)| plain(field) == plain(name)).map(|(field, _)| *field);
    let known = FIELDS.map(|(field, _)| field).join(", ");
    let reason = match meant {
        Some(meant) => format!("is not a known field; did you mean {meant:?}? Known: {known}"),
        None => format!("is not a known field. Known: {known}"),
    };
    InvalidCloudEvent::of(name, reason)
}
