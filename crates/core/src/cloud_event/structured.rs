//! The structured mode: one event as one JSON object.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

use super::attributes::Draft;
use super::envelope::{members, part_of, text};
use super::invalid::{EVENT, InvalidCloudEvent};
use super::media_type::MediaType;
use super::text::check_name;
use super::{AttributeValue, CloudEvent, Data, DataKind, SPEC_VERSION, context_data, uri};
use crate::id::Tsid;

impl CloudEvent {
    /// Reads one event in the JSON format. Its data are a part of `body`, not a copy of it.
    ///
    /// # Errors
    /// Names the first field that is invalid, and what would be accepted.
    pub fn from_structured(body: &Bytes) -> Result<Self, InvalidCloudEvent> {
        let (mut draft, mut data, mut base64) = (Draft::new(), None, None);
        for (name, value) in members(EVENT, text(EVENT, body)?)? {
            match &*name {
                "data" => data = Some(value),
                "data_base64" => base64 = Some(value).filter(|value| value.get() != "null"),
                name => match AttributeValue::of_json(name, value)? {
                    Some(value) => draft.set(name, value)?,
                    None => check_name(name)?,
                },
            }
        }
        match (data, base64) {
            (Some(_), Some(_)) => {
                return Err(InvalidCloudEvent::new("data_base64", "must not be given together with data"));
            }
            (Some(raw), None) => set_data(&mut draft, body, raw)?,
            (None, Some(raw)) => {
                let kind = Data::kind_of_bytes(draft.media_type());
                draft.set_data(decode(raw)?, kind)?;
            }
            (None, None) => {}
        }
        draft.finish()
    }

    /// The event in the JSON format. `own` is its id if its producer gave it none.
    #[must_use]
    pub fn to_structured(&self, own: Tsid) -> Bytes {
        serde_json::to_vec(&Envelope { event: self, own }).unwrap_or_default().into()
    }

    /// All attributes but `datacontenttype`.
    pub(super) fn attributes(&self, own: Tsid) -> Vec<(&str, Written<'_>)> {
        let text = |text| Written::Text(Cow::Borrowed(text));
        let id = self.id.as_deref().map_or_else(|| own.to_string().into(), Cow::Borrowed);
        let mut attributes = vec![
            ("specversion", text(SPEC_VERSION)),
            ("id", Written::Text(id)),
            ("source", Written::Text(uri::to_reference(&self.source))),
            ("type", text(&self.event_type)),
        ];
        let texts = [
            ("subject", self.subject.as_deref()),
            ("time", self.time.as_ref().map(|time| time.as_str())),
            ("dataschema", self.dataschema.as_deref()),
            ("deduplicationid", self.deduplication_id.as_deref()),
            ("correlationid", self.correlation_id.as_deref()),
            ("causationid", self.causation_id.as_deref()),
            ("messagegroup", self.message_group.as_deref()),
            ("traceparent", self.traceparent.as_deref()),
            ("tracestate", self.tracestate.as_deref()),
        ];
        attributes.extend(texts.into_iter().filter_map(|(name, value)| Some((name, text(value?)))));
        if !self.context_data.is_empty() {
            attributes.push(("contextdata", Written::Text(context_data::write(&self.context_data).into())));
        }
        if let Some(version) = self.schema_version {
            attributes.push(("schemaversion", Written::Text(version.to_string().into())));
        }
        attributes.extend(self.sequence.iter().map(|value| ("sequence", Written::Value(value))));
        attributes.extend(self.extensions.iter().map(|(name, value)| (name.as_str(), Written::Value(value))));
        attributes
    }
}

/// The value of an attribute, to be written.
#[derive(serde::Serialize)]
#[serde(untagged)]
pub(super) enum Written<'a> {
    Text(Cow<'a, str>),
    Value(&'a AttributeValue),
}

impl Written<'_> {
    /// The value as text, in the one form that each type has.
    pub(super) fn canonical(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Value(value) => value.canonical(),
        }
    }
}

/// Takes the member `data` as what the media type says it is.
fn set_data(draft: &mut Draft, body: &Bytes, raw: &RawValue) -> Result<(), InvalidCloudEvent> {
    let json = raw.get();
    let media_type = draft.media_type().and_then(MediaType::parse);
    let Some(media_type) = media_type.filter(|media_type| !media_type.is_json()) else {
        return draft.set_data(part_of(body, json), DataKind::Typed);
    };
    if json == "null" {
        return Ok(());
    }
    let invalid = |reason| InvalidCloudEvent::new("data", reason);
    if !json.starts_with('"') {
        return Err(invalid("must be a string, because datacontenttype is not JSON"));
    }
    let text: String = serde_json::from_str(json).map_err(|_| invalid("must be valid Unicode"))?;
    if !media_type.can_say(&text) {
        return Err(invalid(
            "cannot be sent as a string in the charset that datacontenttype names: use UTF-8, or send data_base64",
        ));
    }
    let kind = if media_type.text_of(text.as_bytes()).is_some() { DataKind::Typed } else { DataKind::Text };
    draft.set_data(text.into(), kind)
}

fn decode(raw: &RawValue) -> Result<Bytes, InvalidCloudEvent> {
    let invalid = |reason| InvalidCloudEvent::new("data_base64", reason);
    let text: Cow<'_, str> = match serde_json::from_str(raw.get()) {
        Ok(text) => Cow::Borrowed(text),
        // With escapes in it, such as \/, it cannot be borrowed.
        Err(_) => Cow::Owned(serde_json::from_str(raw.get()).map_err(|_| invalid("must be a string"))?),
    };
    let bytes = STANDARD.decode(text.as_bytes());
    Ok(bytes.map_err(|_| invalid("must be Base64 with padding (RFC 4648, section 4)"))?.into())
}

struct Envelope<'a> {
    event: &'a CloudEvent,
    own: Tsid,
}

impl Serialize for Envelope<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let event = self.event;
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in event.attributes(self.own) {
            map.serialize_entry(name, &value)?;
        }
        let media_type = event.datacontenttype.as_deref();
        if let Some(media_type) = media_type {
            map.serialize_entry("datacontenttype", media_type)?;
        }
        if let Some(data) = &event.data {
            if let Some(json) = data.as_json(media_type) {
                map.serialize_entry("data", json)?;
            } else if let Some(text) = data.as_text(media_type) {
                map.serialize_entry("data", text)?;
            } else {
                map.serialize_entry("data_base64", &STANDARD.encode(&data.bytes))?;
            }
        }
        map.end()
    }
}
