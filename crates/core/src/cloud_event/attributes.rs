//! Attributes one by one: each is checked and put where it belongs, whatever form the event came in.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::envelope::{check_depth, too_large};
use super::invalid::{CONTEXT, InvalidCloudEvent};
use super::media_type::MediaType;
use super::text::{check_key, check_name, check_text};
use super::{AttributeValue, CloudEvent, Data, DataKind, EventTime, MAX_CONTEXT, SPEC_VERSION, context_data, uri};
use crate::event::MAX_ATTRIBUTES;

/// Attributes with fields of their own: no extension has their names.
pub(super) const OWN: [&str; 17] = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "dataschema",
    "deduplicationid",
    "correlationid",
    "causationid",
    "messagegroup",
    "contextdata",
    "sequence",
    "schemaversion",
    "traceparent",
    "tracestate",
];

/// An event of which not all attributes are known yet.
pub(super) struct Draft {
    spec_version: bool,
    source: Option<String>,
    event_type: Option<String>,
    rest: CloudEvent,
    length: usize,
}

/// Up to this length the attributes fit into a fact, however much longer JSON makes them.
const SURELY_FITS: usize = MAX_ATTRIBUTES / 8;

impl Draft {
    pub(super) fn new() -> Self {
        let rest = CloudEvent {
            id: None,
            source: String::new(),
            event_type: String::new(),
            subject: None,
            time: None,
            datacontenttype: None,
            dataschema: None,
            data: None,
            deduplication_id: None,
            correlation_id: None,
            causation_id: None,
            message_group: None,
            context_data: Vec::new(),
            sequence: None,
            schema_version: None,
            is_unvalidated: false,
            traceparent: None,
            tracestate: None,
            extensions: BTreeMap::new(),
        };
        Self { spec_version: false, source: None, event_type: None, rest, length: 0 }
    }

    /// Sets an attribute of CloudEvents, one of ours, or an extension.
    pub(super) fn set(&mut self, name: &str, value: AttributeValue) -> Result<(), InvalidCloudEvent> {
        check_name(name)?;
        self.count(name, &value)?;
        let rest = &mut self.rest;
        match name {
            "specversion" => {
                if string("specversion", value)? != SPEC_VERSION {
                    let reason = format!("must be {SPEC_VERSION:?}: no other version of CloudEvents is accepted");
                    return Err(InvalidCloudEvent::new("specversion", reason));
                }
                self.spec_version = true;
            }
            "id" => rest.id = Some(key("id", value)?),
            "type" => self.event_type = Some(key("type", value)?),
            "source" => self.source = Some(source(value)?),
            "subject" => rest.subject = Some(key("subject", value)?),
            "time" => rest.time = Some(time(value)?),
            "datacontenttype" => rest.datacontenttype = Some(media_type(value)?),
            "dataschema" => rest.dataschema = Some(data_schema(value)?),
            "deduplicationid" => rest.deduplication_id = Some(key("deduplicationid", value)?),
            "correlationid" => rest.correlation_id = Some(key("correlationid", value)?),
            "causationid" => rest.causation_id = Some(key("causationid", value)?),
            "messagegroup" => rest.message_group = Some(key("messagegroup", value)?),
            "contextdata" => rest.context_data = context_data::read("contextdata", &text("contextdata", value)?)?,
            "sequence" => rest.sequence = Some(sequence(value)?),
            "schemaversion" => {
                let version = text("schemaversion", value)?.parse();
                rest.schema_version = Some(version.map_err(|_| {
                    InvalidCloudEvent::new("schemaversion", "must be MAJOR.MINOR, such as 1.0, without leading zeros")
                })?);
            }
            "traceparent" => rest.traceparent = Some(text("traceparent", value)?),
            "tracestate" => rest.tracestate = Some(text("tracestate", value)?),
            _ => {
                if let AttributeValue::Text(text) = &value {
                    check_text(name, text)?;
                }
                rest.extensions.insert(name.to_owned(), value);
            }
        }
        Ok(())
    }

    /// Counts an attribute towards what all have together.
    fn count(&mut self, name: &str, value: &AttributeValue) -> Result<(), InvalidCloudEvent> {
        self.length += name.len() + value.canonical().len();
        if self.length > MAX_CONTEXT { Err(too_large()) } else { Ok(()) }
    }

    /// Sets pairs that did not come as an attribute.
    pub(super) fn set_context_data(&mut self, json: &str) -> Result<(), InvalidCloudEvent> {
        self.length += json.len();
        if self.length > MAX_CONTEXT {
            return Err(too_large());
        }
        self.rest.context_data = context_data::read("contextdata", json)?;
        Ok(())
    }

    /// The media type of the data.
    pub(super) fn media_type(&self) -> Option<&str> {
        self.rest.datacontenttype.as_deref()
    }

    /// Sets the data.
    pub(super) fn set_data(&mut self, bytes: Bytes, kind: DataKind) -> Result<(), InvalidCloudEvent> {
        let is_json = match self.media_type() {
            Some(media_type) => MediaType::parse(media_type).is_some_and(|media_type| media_type.is_json()),
            None => kind == DataKind::Typed,
        };
        if is_json {
            check_depth(&bytes)?;
        }
        self.rest.data = Some(Data { bytes, kind });
        Ok(())
    }

    /// The event, when nothing is missing that every CloudEvent has.
    pub(super) fn finish(self) -> Result<CloudEvent, InvalidCloudEvent> {
        let missing = |field| InvalidCloudEvent::new(field, "is missing: every CloudEvent has it");
        if !self.spec_version {
            return Err(missing("specversion"));
        }
        if self.rest.id.is_none() {
            return Err(missing("id"));
        }
        self.finish_without_id()
    }

    /// The event, when its source and type are known.
    pub(super) fn finish_without_id(self) -> Result<CloudEvent, InvalidCloudEvent> {
        let missing = |field| InvalidCloudEvent::new(field, "is missing: every event has it");
        let source = self.source.ok_or_else(|| missing("source"))?;
        let event_type = self.event_type.ok_or_else(|| missing("type"))?;
        let event = CloudEvent { source, event_type, ..self.rest };
        if self.length > SURELY_FITS && event.stored_attributes().is_some_and(|json| json.len() > MAX_ATTRIBUTES) {
            let reason = format!("have more than {MAX_ATTRIBUTES} bytes as JSON: put what is large into data");
            return Err(InvalidCloudEvent::new(CONTEXT, reason));
        }
        Ok(event)
    }
}

impl AttributeValue {
    /// The value of an attribute in JSON; `None` for null, which is the same as no attribute.
    pub(super) fn of_json(name: &str, raw: &RawValue) -> Result<Option<Self>, InvalidCloudEvent> {
        let invalid = |reason: &'static str| InvalidCloudEvent::of(name, reason);
        let other_type = |reason| match name {
            "contextdata" => invalid("must be a string: the pairs as JSON text"),
            "sequence" => invalid("must be a string or a whole number between -2147483648 and 2147483647"),
            name if OWN.contains(&name) => invalid("must be a string"),
            _ => invalid(reason),
        };
        let json = raw.get();
        Ok(Some(match json.bytes().next() {
            Some(b'n') => return Ok(None),
            Some(b't') => Self::Boolean(true),
            Some(b'f') => Self::Boolean(false),
            // No text is more than six times as long in JSON.
            Some(b'"') if json.len() > 6 * MAX_CONTEXT + 2 => return Err(too_large()),
            Some(b'"') => Self::Text(serde_json::from_str(json).map_err(|_| invalid("must be valid Unicode"))?),
            Some(b'{' | b'[') => {
                let reason = "must be a string, a whole number or a boolean: objects and arrays belong into data";
                return Err(other_type(reason));
            }
            _ => {
                let reason = "must be a whole number between -2147483648 and 2147483647, or a string";
                Self::Integer(json.parse().map_err(|_| other_type(reason))?)
            }
        }))
    }

    /// The value as text, in the one form that each type has.
    #[must_use]
    pub fn canonical(&self) -> Cow<'_, str> {
        match self {
            Self::Boolean(value) => if *value { "true" } else { "false" }.into(),
            Self::Integer(value) => value.to_string().into(),
            Self::Text(text) => text.into(),
        }
    }
}

fn string(field: &'static str, value: AttributeValue) -> Result<String, InvalidCloudEvent> {
    match value {
        AttributeValue::Text(text) => Ok(text),
        _ => Err(InvalidCloudEvent::new(field, "must be a string")),
    }
}

fn text(field: &'static str, value: AttributeValue) -> Result<String, InvalidCloudEvent> {
    let text = string(field, value)?;
    check_text(field, &text)?;
    Ok(text)
}

fn key(field: &'static str, value: AttributeValue) -> Result<String, InvalidCloudEvent> {
    let text = string(field, value)?;
    check_key(field, &text)?;
    Ok(text)
}

fn source(value: AttributeValue) -> Result<String, InvalidCloudEvent> {
    let source = key("source", value)?;
    if uri::is_reference(&source) {
        return Ok(source);
    }
    let reason = "must be a URI-reference (RFC 3986), such as /orders or https://example.com/orders: percent-encode \
                  spaces and what is not ASCII";
    Err(InvalidCloudEvent::new("source", reason))
}

fn time(value: AttributeValue) -> Result<EventTime, InvalidCloudEvent> {
    EventTime::parse(&text("time", value)?).map_err(|reason| InvalidCloudEvent::new("time", reason))
}

fn media_type(value: AttributeValue) -> Result<String, InvalidCloudEvent> {
    let media_type = key("datacontenttype", value)?;
    if MediaType::parse(&media_type).is_some() {
        return Ok(media_type);
    }
    Err(InvalidCloudEvent::new("datacontenttype", "must be a media type, such as application/json"))
}

fn data_schema(value: AttributeValue) -> Result<String, InvalidCloudEvent> {
    let schema = text("dataschema", value)?;
    if uri::is_uri(&schema) {
        return Ok(schema);
    }
    let reason = "must be an absolute URI (RFC 3986), such as https://example.com/schemas/order/1.0";
    Err(InvalidCloudEvent::new("dataschema", reason))
}

fn sequence(value: AttributeValue) -> Result<AttributeValue, InvalidCloudEvent> {
    match &value {
        AttributeValue::Boolean(_) => Err(InvalidCloudEvent::new("sequence", "must be a string or a whole number")),
        AttributeValue::Integer(_) => Ok(value),
        AttributeValue::Text(text) => check_key("sequence", text).map(|()| value),
    }
}
