//! The binary mode: attributes in headers, the data as the body.

use std::borrow::Cow;
use std::collections::BTreeSet;

use bytes::Bytes;

use super::attributes::Draft;
use super::invalid::InvalidCloudEvent;
use super::{AttributeValue, CloudEvent, Data, DataKind, header};
use crate::id::Tsid;

/// A body with its headers. Names are lower-case, values printable ASCII.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `content-type`, if there is one, and the attributes.
    pub headers: Vec<(Cow<'static, str>, String)>,
    /// The data as it was sent.
    pub body: Bytes,
}

impl CloudEvent {
    /// Reads one event from headers, of which those count that begin with `ce-`, and `content-type`. An empty body is no
    /// data.
    ///
    /// # Errors
    /// Names the first attribute that is invalid, and what would be accepted.
    pub fn from_binary<'a>(
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        body: Bytes,
    ) -> Result<Self, InvalidCloudEvent> {
        let (mut draft, mut seen) = (Draft::new(), BTreeSet::new());
        for (header, value) in headers {
            let header = header.to_ascii_lowercase();
            let name = match header.strip_prefix("ce-") {
                Some("datacontenttype") => {
                    let reason = "must be sent as the header Content-Type, not as ce-datacontenttype";
                    return Err(InvalidCloudEvent::new("datacontenttype", reason));
                }
                Some(name) => name,
                None if header == "content-type" => "datacontenttype",
                None => continue,
            };
            // A media type may have quoted parameters: it is taken as it stands.
            let text = match name {
                "datacontenttype" => String::from_utf8(value.trim_ascii().to_vec()).map_err(|_| "must be ASCII"),
                _ => header::decode(value),
            };
            let text = text.map_err(|reason| InvalidCloudEvent::of(name, reason))?;
            draft.set(name, AttributeValue::Text(text))?;
            if !seen.insert(name.to_owned()) {
                return Err(InvalidCloudEvent::of(name, "is given twice"));
            }
        }
        if !body.is_empty() {
            let kind = Data::kind_of_bytes(draft.media_type());
            draft.set_data(body, kind)?;
        }
        draft.finish()
    }

    /// The event in binary mode. `own` is its id if its producer gave it none. JSON without a media type gets its own.
    #[must_use]
    pub fn to_binary(&self, own: Tsid) -> Message {
        let attributes = self.attributes(own);
        let mut headers = Vec::with_capacity(attributes.len() + 1);
        let is_printable = |text: &&str| text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
        let implied = self.data.as_ref().filter(|data| data.kind == DataKind::Typed).map(|_| "application/json");
        if let Some(media_type) = self.datacontenttype.as_deref().or(implied).filter(is_printable) {
            headers.push(("content-type".into(), media_type.to_owned()));
        }
        for (name, value) in attributes {
            headers.push((header_of(name), header::encode(&value.canonical())));
        }
        let body = self.data.as_ref().map_or_else(Bytes::new, |data| data.bytes.clone());
        Message { headers, body }
    }
}

/// The header of an attribute.
fn header_of(name: &str) -> Cow<'static, str> {
    let known = match name {
        "specversion" => "ce-specversion",
        "id" => "ce-id",
        "source" => "ce-source",
        "type" => "ce-type",
        "subject" => "ce-subject",
        "time" => "ce-time",
        "dataschema" => "ce-dataschema",
        "deduplicationid" => "ce-deduplicationid",
        "correlationid" => "ce-correlationid",
        "causationid" => "ce-causationid",
        "messagegroup" => "ce-messagegroup",
        "traceparent" => "ce-traceparent",
        "tracestate" => "ce-tracestate",
        "contextdata" => "ce-contextdata",
        "schemaversion" => "ce-schemaversion",
        "sequence" => "ce-sequence",
        other => return Cow::Owned(format!("ce-{other}")),
    };
    Cow::Borrowed(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_has_its_own_header() {
        for name in [
            "specversion",
            "id",
            "source",
            "type",
            "subject",
            "time",
            "dataschema",
            "deduplicationid",
            "correlationid",
            "causationid",
            "messagegroup",
            "traceparent",
            "tracestate",
            "contextdata",
            "schemaversion",
            "sequence",
            "other",
        ] {
            assert_eq!(header_of(name), format!("ce-{name}"));
        }
    }
}
