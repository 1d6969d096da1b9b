//! Events as facts: which attribute is in which column, and the JSON of those that have none.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::attributes::OWN;
use super::text::is_extension_name;
use super::{AttributeValue, CloudEvent, ContextData, Data, DataKind, EventTime};
use crate::event::NewEvent;

/// The source of a stored event that has none, because it was published without CloudEvents.
pub(super) const NO_SOURCE: &str = "/tidegate";
/// The media type under which bytes without one are stored, because a fact without one is JSON.
const NO_MEDIA_TYPE: &str = "application/octet-stream";
/// The columns of a stored fact that make up its event.
#[derive(Debug, Clone, Copy)]
pub struct StoredEvent<'a> {
    /// Its type.
    pub event_type: &'a str,
    /// The payload as it was sent.
    pub payload: &'a Bytes,
    /// The payload's media type; JSON when `None`.
    pub content_type: Option<&'a str>,
    /// The system it came from.
    pub source: Option<&'a str>,
    /// What it is about.
    pub subject: Option<&'a str>,
    /// When it happened, if the publisher said so.
    pub time: Option<Timestamp>,
    /// The publisher's own id.
    pub external_id: Option<&'a str>,
    /// Links the events of one request.
    pub correlation_id: Option<&'a str>,
    /// The event that caused it.
    pub causation_id: Option<&'a str>,
    /// Further attributes, JSON text.
    pub attributes: Option<&'a str>,
}

impl<'a> From<&'a NewEvent> for StoredEvent<'a> {
    fn from(fact: &'a NewEvent) -> Self {
        Self {
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
        }
    }
}

/// The attributes that have no column, as they are stored. All are optional, and none is trusted when it is read.
#[derive(Default, PartialEq, Serialize)]
struct Stored<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tracestate: Option<&'a str>,
    /// As it was sent, if the column does not give that back.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<StoredData>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dataschema: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schemaversion: Option<String>,
    /// Nobody validated it by that version.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unvalidated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    deduplicationid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messagegroup: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<&'a AttributeValue>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    contextdata: Vec<(&'a str, &'a str)>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extensions: BTreeMap<&'a str, &'a AttributeValue>,
}

/// What the payload and its media type do not say about the data.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StoredData {
    /// There is none.
    None,
    /// [`DataKind::Text`].
    Text,
    /// [`DataKind::Untyped`].
    Untyped,
}

impl CloudEvent {
    /// The fact that keeps the event. It has neither client nor keys: those are the caller's.
    #[must_use]
    pub fn to_fact(&self) -> NewEvent {
        let untyped = self.data.as_ref().is_some_and(|data| data.kind == DataKind::Untyped);
        let data = self.data.as_ref().map(|data| data.bytes.clone());
        let mut fact = NewEvent::new(self.event_type.clone(), data.unwrap_or_default());
        fact.content_type = if untyped { Some(NO_MEDIA_TYPE.into()) } else { self.datacontenttype.clone() };
        fact.source = Some(self.source.clone());
        fact.subject = self.subject.clone();
        fact.time = self.time.as_ref().map(EventTime::at);
        fact.external_id = self.id.clone();
        fact.correlation_id = self.correlation_id.clone();
        fact.causation_id = self.causation_id.clone();
        fact.attributes = self.stored_attributes();
        fact
    }

    /// The event that a fact keeps. Any fact is one: what is no valid attribute is left out.
    #[must_use]
    pub fn from_stored(stored: &StoredEvent<'_>) -> Self {
        let members: BTreeMap<Cow<'_, str>, &RawValue> =
            stored.attributes.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
        let members = Members(members);
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let text = members.get::<String>("time").and_then(|text| EventTime::parse(&text).ok());
        let time = text.filter(|time| same_moment(stored.time, time.at())).or(stored.time.map(EventTime::from));
        let data = |kind| Some(Data { bytes: stored.payload.clone(), kind });
        let pairs = members.get::<Vec<(String, String)>>("contextdata").unwrap_or_default();
        let mut extensions = members.get::<BTreeMap<String, Box<RawValue>>>("extensions").unwrap_or_default();
        extensions.retain(|name, _| is_extension_name(name) && !OWN.contains(&name.as_str()));
        let untyped = matches!(members.get("data"), Some(StoredData::Untyped));
        let value = |(name, raw): (String, Box<RawValue>)| Some((AttributeValue::of_json(&name, &raw).ok()??, name));
        Self {
            id: owned(stored.external_id),
            source: stored.source.unwrap_or(NO_SOURCE).to_owned(),
            event_type: stored.event_type.to_owned(),
            subject: owned(stored.subject),
            time,
            datacontenttype: owned(stored.content_type).filter(|_| !untyped),
            dataschema: members.get("dataschema"),
            data: match members.get("data") {
                Some(StoredData::None) if stored.payload.is_empty() => None,
                Some(StoredData::Text) if stored.content_type.is_some() => data(DataKind::Text),
                Some(StoredData::Untyped) => data(DataKind::Untyped),
                _ => data(DataKind::Typed),
            },
            deduplication_id: members.get("deduplicationid"),
            correlation_id: owned(stored.correlation_id),
            causation_id: owned(stored.causation_id),
            message_group: members.get("messagegroup"),
            context_data: pairs.into_iter().map(|(key, value)| ContextData { key, value }).collect(),
            sequence: members.raw("sequence").and_then(|raw| AttributeValue::of_json("sequence", raw).ok()?),
            schema_version: members.get("schemaversion"),
            is_unvalidated: members.get("unvalidated").unwrap_or(false),
            traceparent: members.get("traceparent"),
            tracestate: members.get("tracestate"),
            extensions: extensions.into_iter().filter_map(value).map(|(value, name)| (name, value)).collect(),
        }
    }

    /// The attributes that have no column, as JSON; `None` when there are none.
    pub(super) fn stored_attributes(&self) -> Option<String> {
        let stored = Stored {
            traceparent: self.traceparent.as_deref(),
            tracestate: self.tracestate.as_deref(),
            time: self.time.as_ref().filter(|time| !time.is_plain()).map(EventTime::as_str),
            data: match self.data.as_ref().map(|data| data.kind) {
                None => Some(StoredData::None),
                Some(DataKind::Typed) => None,
                Some(DataKind::Text) => Some(StoredData::Text),
                Some(DataKind::Untyped) => Some(StoredData::Untyped),
            },
            dataschema: self.dataschema.as_deref(),
            schemaversion: self.schema_version.map(Into::into),
            unvalidated: self.is_unvalidated,
            deduplicationid: self.deduplication_id.as_deref(),
            messagegroup: self.message_group.as_deref(),
            sequence: self.sequence.as_ref(),
            contextdata: self.context_data.iter().map(|pair| (&*pair.key, &*pair.value)).collect(),
            extensions: self.extensions.iter().map(|(name, value)| (name.as_str(), value)).collect(),
        };
        if stored == Stored::default() { None } else { serde_json::to_string(&stored).ok() }
    }
}

/// Whether a database that keeps microseconds can have stored this moment.
fn same_moment(stored: Option<Timestamp>, sent: Timestamp) -> bool {
    stored.is_some_and(|stored| stored.as_microsecond().abs_diff(sent.as_microsecond()) <= 1)
}

/// The members of the stored attributes.
struct Members<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

impl Members<'_> {
    fn raw(&self, name: &str) -> Option<&RawValue> {
        self.0.get(name).copied()
    }

    fn get<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_str(self.raw(name)?.get()).ok()
    }
}
