//! What filters ask of an event, and an event of which the data are read at most once.

use std::fmt;
use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;

use serde_json::value::RawValue;

use super::attribute::Attribute;
use super::condition::Value;
use super::document::Document;
use crate::cloud_event::{AttributeValue, CloudEvent, SPEC_VERSION};

/// What filters ask of an event. Values are shown to a test, so that those which are no texts need no memory of their
/// own.
pub trait Facts: Send + Sync {
    /// Whether there is such a context attribute or extension and its value, as canonical text, passes the test.
    fn attribute(&self, name: &str, test: &mut dyn FnMut(&str) -> bool) -> bool;

    /// Whether one of the values that context data have for a key passes the test.
    fn context(&self, key: &str, test: &mut dyn FnMut(&str) -> bool) -> bool;

    /// The data, if they are JSON.
    fn json(&self) -> Option<&RawValue>;
}

/// An event that filters are asked about. However many look into its data, they are read once, and not at all if none
/// does.
pub struct Candidate<'e> {
    facts: &'e dyn Facts,
    data: OnceLock<Option<Document<'e>>>,
}

impl<'e> Candidate<'e> {
    /// An event that nobody was asked about yet.
    #[must_use]
    pub fn new(facts: &'e dyn Facts) -> Self {
        Self { facts, data: OnceLock::new() }
    }

    /// Whether a value of the attribute passes the test.
    pub(super) fn has(&self, attribute: &Attribute, test: impl Fn(&Value<'_>) -> bool) -> bool {
        match attribute {
            Attribute::Context(name) => self.facts.attribute(name, &mut |text| test(&Value::Plain(text))),
            Attribute::Pair(key) => self.facts.context(key, &mut |text| test(&Value::Plain(text))),
            Attribute::Data(tokens) => {
                let data = self.data.get_or_init(|| Document::index(self.facts.json()?));
                let found = data.as_ref().and_then(|data| Some(data.value(data.find(tokens)?)));
                found.is_some_and(|value| test(&Value::Json(value)))
            }
        }
    }
}

impl fmt::Debug for Candidate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate").field("is_read", &self.data.get().is_some()).finish_non_exhaustive()
    }
}

impl Facts for CloudEvent {
    fn attribute(&self, name: &str, test: &mut dyn FnMut(&str) -> bool) -> bool {
        let text = match name {
            "id" => self.id.as_deref(),
            "source" => Some(&*self.source),
            "specversion" => Some(SPEC_VERSION),
            "type" => Some(&*self.event_type),
            "subject" => self.subject.as_deref(),
            "time" => self.time.as_ref().map(|time| time.as_str()),
            "datacontenttype" => self.datacontenttype.as_deref(),
            "dataschema" => self.dataschema.as_deref(),
            "deduplicationid" => self.deduplication_id.as_deref(),
            "correlationid" => self.correlation_id.as_deref(),
            "causationid" => self.causation_id.as_deref(),
            "messagegroup" => self.message_group.as_deref(),
            "traceparent" => self.traceparent.as_deref(),
            "tracestate" => self.tracestate.as_deref(),
            "schemaversion" => return self.schema_version.is_some_and(|version| shown(version, test)),
            "sequence" => return self.sequence.as_ref().is_some_and(|value| value_passes(value, test)),
            _ => return self.extensions.get(name).is_some_and(|value| value_passes(value, test)),
        };
        text.is_some_and(test)
    }

    fn context(&self, key: &str, test: &mut dyn FnMut(&str) -> bool) -> bool {
        self.context_data.iter().any(|pair| pair.key == key && test(&pair.value))
    }

    fn json(&self) -> Option<&RawValue> {
        self.json()
    }
}

fn value_passes(value: &AttributeValue, test: &mut dyn FnMut(&str) -> bool) -> bool {
    match value {
        AttributeValue::Boolean(true) => test("true"),
        AttributeValue::Boolean(false) => test("false"),
        AttributeValue::Integer(number) => shown(number, test),
        AttributeValue::Text(text) => test(text),
    }
}

/// Whether the text of a number or version passes the test. It is written to the stack: neither is longer than that.
fn shown(value: impl Display, test: &mut dyn FnMut(&str) -> bool) -> bool {
    let mut buffer = [0; 32];
    let mut free = &mut buffer[..];
    let written = write!(free, "{value}").map(|()| free.len()).ok();
    let length = written.and_then(|free| buffer.len().checked_sub(free));
    let text = length.and_then(|length| std::str::from_utf8(buffer.get(..length)?).ok());
    text.is_some_and(test)
}
