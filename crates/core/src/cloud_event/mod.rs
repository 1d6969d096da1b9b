//! CloudEvents 1.0: read from and written to the source's own JSON and the structured, binary and batched modes of HTTP,
//! and kept as facts. Knows bytes and header values; not HTTP, databases, subscriptions, or which types are registered.
//!
//! Data is never reformatted: it is cut out of the request as it stands. Of the attributes, what can be searched has
//! columns of its own; the others are one JSON object in the fact's `attributes`.

mod attributes;
mod batch;
mod binary;
mod context_data;
mod data;
mod envelope;
mod form;
mod header;
mod invalid;
mod media_type;
mod sent;
mod stored;
mod structured;
mod task;
mod text;
mod time;
mod uri;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

pub use batch::{split_batch, split_events};
pub use binary::Message;
pub use context_data::{ContextData, MAX_CONTEXT_DATA, MAX_CONTEXT_VALUE};
pub use data::{Data, DataKind};
pub use form::{BATCHED, Form, STRUCTURED, UnsupportedMediaType};
pub use invalid::InvalidCloudEvent;
pub use sent::Sent;
pub use stored::StoredEvent;
pub use task::SentTask;
pub use time::EventTime;

use crate::event_type::VersionNumber;

/// The version of the specification, the value of `specversion`.
pub const SPEC_VERSION: &str = "1.0";
/// The most bytes of all context attributes together, names and values.
pub const MAX_CONTEXT: usize = 64 << 10;
/// How deep JSON data may be nested.
pub const MAX_DEPTH: usize = 128;

/// An event in the terms of CloudEvents 1.0. What the readers of this module return is valid; its `specversion` is
/// [`SPEC_VERSION`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudEvent {
    /// The producer's id. `None` if it gave none: then our own id takes its place where the event is written.
    pub id: Option<String>,
    /// The context it happened in, a URI-reference.
    pub source: String,
    /// Its type.
    pub event_type: String,
    /// What it is about, within its source.
    pub subject: Option<String>,
    /// When it happened.
    pub time: Option<EventTime>,
    /// The media type of the data; JSON when `None`, unless the data is [`DataKind::Untyped`].
    pub datacontenttype: Option<String>,
    /// The schema that the data adheres to, a URI.
    pub dataschema: Option<String>,
    /// The data; `None` is no data at all, which is not the same as JSON's `null`.
    pub data: Option<Data>,
    /// Suppresses repeats.
    pub deduplication_id: Option<String>,
    /// Shared by the events of one request.
    pub correlation_id: Option<String>,
    /// The id of the event that caused this one.
    pub causation_id: Option<String>,
    /// Events of one group are delivered in order.
    pub message_group: Option<String>,
    /// Searchable pairs, in the order in which they were sent.
    pub context_data: Vec<ContextData>,
    /// Order within the group, as it was sent; see [`CloudEvent::order`].
    pub sequence: Option<AttributeValue>,
    /// The version of its type that it is validated against.
    pub schema_version: Option<VersionNumber>,
    /// Whether it was stored without being validated although it names a version: of a type that has none.
    pub is_unvalidated: bool,
    /// The W3C trace that it belongs to.
    pub traceparent: Option<String>,
    /// What vendors add to that trace.
    pub tracestate: Option<String>,
    /// All other attributes.
    pub extensions: BTreeMap<String, AttributeValue>,
}

/// The value of an extension attribute. The binary mode has no types: there all values are texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum AttributeValue {
    /// A boolean.
    Boolean(bool),
    /// A whole number of 32 bits.
    Integer(i32),
    /// A text; also URIs, timestamps and Base64.
    Text(String),
}

impl CloudEvent {
    /// The number that `sequence` orders the event by within its group; `None` without one, or when it is a text that is
    /// no whole number of 32 bits, as the documented extension of CloudEvents allows.
    #[must_use]
    pub fn order(&self) -> Option<i32> {
        match self.sequence.as_ref()? {
            AttributeValue::Integer(number) => Some(*number),
            AttributeValue::Text(text) => text.parse().ok(),
            AttributeValue::Boolean(_) => None,
        }
    }

    /// The version of its type that it was validated against, once it is stored.
    #[must_use]
    pub fn validated_version(&self) -> Option<VersionNumber> {
        self.schema_version.filter(|_| !self.is_unvalidated)
    }

    /// The data as the JSON that they are; `None` when there are none, or they are declared to be something else, or are
    /// no JSON.
    #[must_use]
    pub fn json(&self) -> Option<&RawValue> {
        self.data.as_ref()?.as_json(self.datacontenttype.as_deref())
    }

    /// The data as text; `None` when there are none, or they are declared to be something else, or are no UTF-8.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.data.as_ref()?.as_text(self.datacontenttype.as_deref())
    }
}

#[cfg(test)]
mod tests;
