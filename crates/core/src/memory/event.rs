//! An event of a memory queue, packed into one allocation: what a publisher gave, unchangeable. Knows nothing of what
//! happens to it in a queue.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::value::RawValue;

use super::pattern::{InvalidPattern, check_event_pattern};
use crate::name::{InvalidName, MAX_NAME, check_text};

/// What a publisher gives. Texts have 1 to 255 bytes and no control characters; the payload is kept byte for byte.
#[derive(Debug, Clone, Copy)]
pub struct EventFields<'a> {
    /// Identifies the event in its queue.
    pub event_id: &'a str,
    /// What happened, such as `invoice.created`.
    pub pattern: &'a str,
    /// The version of the payload's schema.
    pub version: Option<&'a str>,
    /// Where it comes from.
    pub source: Option<Source<'a>>,
    /// When it happened; the moment of the publish if it does not say. Kept in milliseconds.
    pub timestamp: Option<Timestamp>,
    /// The payload, any JSON.
    pub payload: &'a RawValue,
    /// Relates events to each other.
    pub correlation_id: Option<&'a str>,
    /// The event that caused this one.
    pub causation_id: Option<&'a str>,
    /// For distributed tracing.
    pub trace_id: Option<&'a str>,
}

impl<'a> EventFields<'a> {
    /// The fields that every event has; the others are not set.
    #[must_use]
    pub const fn new(event_id: &'a str, pattern: &'a str, payload: &'a RawValue) -> Self {
        Self {
            event_id,
            pattern,
            version: None,
            source: None,
            timestamp: None,
            payload,
            correlation_id: None,
            causation_id: None,
            trace_id: None,
        }
    }
}

/// Where an event comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Source<'a> {
    /// What kind of source: workflow, task, integration, external or another.
    pub kind: Option<&'a str>,
    /// Identifies the source.
    pub id: Option<&'a str>,
    /// Names it for people.
    pub name: Option<&'a str>,
}

/// Why an event cannot be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEvent {
    /// A text that breaks the rule of its field.
    #[error(transparent)]
    Text(#[from] InvalidName),
    /// The event's pattern breaks a rule.
    #[error(transparent)]
    Pattern(#[from] InvalidPattern),
    /// More bytes than a stored event may have.
    #[error("the event has {size} bytes, at most {MAX_EVENT} can be stored")]
    TooLarge {
        /// Its bytes.
        size: usize,
    },
}

/// The most bytes of a packed event. Interfaces have a smaller limit, which can be configured.
pub const MAX_EVENT: usize = 64 << 20;

/// The texts, in the order in which they are packed, as error messages name them.
const TEXTS: [&str; 9] = [
    "eventId",
    "pattern",
    "version",
    "source.type",
    "source.id",
    "source.name",
    "metadata.correlationId",
    "metadata.causationId",
    "metadata.traceId",
];
const PATTERN: usize = 1;
/// Bits after those of the texts.
const TIMESTAMP_GIVEN: u16 = 1 << 9;
const SOURCE_GIVEN: u16 = 1 << 10;
const KNOWN_FLAGS: u16 = (1 << 11) - 1;
const TIME_AT: usize = 2;
const LENGTHS_AT: usize = TIME_AT + 8;
const TEXTS_AT: usize = LENGTHS_AT + TEXTS.len();

/// An event, packed. A clone shares it.
///
/// | bytes | contents |
/// |---|---|
/// | 2 | which texts are there, whether the publisher gave a timestamp and a source |
/// | 8 | the timestamp, in milliseconds |
/// | 9 | the length of each text |
/// | … | the texts, then the payload |
#[derive(Clone, PartialEq, Eq)]
pub struct Event(Arc<[u8]>);

impl Event {
    /// Packs what a publisher gave at `now`.
    ///
    /// # Errors
    /// When a text or the pattern breaks its rule, or the event is larger than can be stored.
    pub fn new(fields: &EventFields<'_>, now: Timestamp) -> Result<Self, InvalidEvent> {
        let source = fields.source.unwrap_or_default();
        let texts = [
            Some(fields.event_id),
            Some(fields.pattern),
            fields.version,
            source.kind,
            source.id,
            source.name,
            fields.correlation_id,
            fields.causation_id,
            fields.trace_id,
        ];
        let payload = fields.payload.get();
        let mut flags = 0;
        let mut lengths = [0_u8; TEXTS.len()];
        let mut size = TEXTS_AT + payload.len();
        for (at, text) in texts.into_iter().enumerate() {
            let Some(text) = text else { continue };
            check_text(TEXTS[at], text)?;
            flags |= 1 << at;
            lengths[at] = text.len() as u8; // at most 255, as was just checked
            size += text.len();
        }
        check_event_pattern(fields.pattern)?;
        if size > MAX_EVENT {
            return Err(InvalidEvent::TooLarge { size });
        }
        flags |= if fields.timestamp.is_some() { TIMESTAMP_GIVEN } else { 0 };
        flags |= if fields.source.is_some() { SOURCE_GIVEN } else { 0 };
        let time = fields.timestamp.unwrap_or(now).as_millisecond();
        let mut packed = Vec::with_capacity(size);
        packed.extend_from_slice(&flags.to_le_bytes());
        packed.extend_from_slice(&time.to_le_bytes());
        packed.extend_from_slice(&lengths);
        texts.into_iter().flatten().for_each(|text| packed.extend_from_slice(text.as_bytes()));
        packed.extend_from_slice(payload.as_bytes());
        Ok(Self(packed.into()))
    }

    /// The event with these packed bytes; `None` when they are not those of an event.
    #[must_use]
    pub fn from_packed(packed: &[u8]) -> Option<Self> {
        let (fixed, rest) = packed.split_at_checked(TEXTS_AT)?;
        let flags = u16::from_le_bytes([fixed[0], fixed[1]]);
        let lengths = &fixed[LENGTHS_AT..];
        let fits = lengths.iter().enumerate().all(|(at, length)| (*length > 0) == (flags >> at & 1 == 1));
        if !fits || flags & !KNOWN_FLAGS != 0 || lengths[0] == 0 || lengths[PATTERN] == 0 || packed.len() > MAX_EVENT {
            return None;
        }
        let texts: usize = lengths.iter().map(|length| usize::from(*length)).sum();
        // Each text must be one by itself, so that it can be cut out.
        let whole = std::str::from_utf8(rest).ok()?;
        let mut end = 0;
        let cut = |length: &u8| {
            end += usize::from(*length);
            whole.is_char_boundary(end)
        };
        if texts >= rest.len() || !lengths.iter().all(cut) {
            return None;
        }
        let event = Self(packed.into());
        Timestamp::from_millisecond(event.millisecond()).ok()?;
        Some(event)
    }

    /// The packed bytes.
    #[must_use]
    pub fn packed(&self) -> &[u8] {
        &self.0
    }

    /// Identifies the event in its queue.
    #[must_use]
    pub fn event_id(&self) -> &str {
        self.text(0).unwrap_or_default()
    }

    pub(super) fn id_bytes(&self) -> &[u8] {
        self.0.get(TEXTS_AT..TEXTS_AT + usize::from(self.0[LENGTHS_AT])).unwrap_or_default()
    }

    /// What happened.
    #[must_use]
    pub fn pattern(&self) -> &str {
        self.text(PATTERN).unwrap_or_default()
    }

    pub(super) fn pattern_bytes(&self) -> &[u8] {
        let start = TEXTS_AT + usize::from(self.0[LENGTHS_AT]);
        self.0.get(start..start + usize::from(self.0[LENGTHS_AT + PATTERN])).unwrap_or_default()
    }

    /// The version of the payload's schema.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.text(2)
    }

    /// Where it comes from.
    #[must_use]
    pub fn source(&self) -> Option<Source<'_>> {
        let given = self.flags() & SOURCE_GIVEN != 0;
        given.then(|| Source { kind: self.text(3), id: self.text(4), name: self.text(5) })
    }

    /// When it happened.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        Timestamp::from_millisecond(self.millisecond()).unwrap_or_default()
    }

    /// Relates events to each other.
    #[must_use]
    pub fn correlation_id(&self) -> Option<&str> {
        self.text(6)
    }

    /// The event that caused this one.
    #[must_use]
    pub fn causation_id(&self) -> Option<&str> {
        self.text(7)
    }

    /// For distributed tracing.
    #[must_use]
    pub fn trace_id(&self) -> Option<&str> {
        self.text(8)
    }

    /// The payload, as it was sent.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.0.get(self.end_of(TEXTS.len())..).unwrap_or_default()
    }

    /// The payload, as it was sent, without a copy: it shares the event.
    #[must_use]
    pub fn payload_bytes(&self) -> Bytes {
        let start = self.end_of(TEXTS.len());
        Bytes::from_owner(Shared(self.clone())).slice(start..)
    }

    /// Whether a publisher gave the same. A timestamp counts only where it was given.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let given = self.flags() & TIMESTAMP_GIVEN != 0;
        self.0[..TIME_AT] == other.0[..TIME_AT]
            && self.0[LENGTHS_AT..] == other.0[LENGTHS_AT..]
            && (!given || self.millisecond() == other.millisecond())
    }

    fn flags(&self) -> u16 {
        u16::from_le_bytes([self.0[0], self.0[1]])
    }

    fn millisecond(&self) -> i64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[TIME_AT..LENGTHS_AT]);
        i64::from_le_bytes(bytes)
    }

    /// Where the text before this one ends.
    fn end_of(&self, texts: usize) -> usize {
        let lengths = &self.0[LENGTHS_AT..LENGTHS_AT + texts];
        TEXTS_AT + lengths.iter().map(|length| usize::from(*length)).sum::<usize>()
    }

    fn text(&self, at: usize) -> Option<&str> {
        let length = usize::from(self.0[LENGTHS_AT + at]);
        let start = self.end_of(at);
        let text = self.0.get(start..start + length).filter(|text| !text.is_empty())?;
        std::str::from_utf8(text).ok()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:?} {}, {} bytes)", self.event_id(), self.pattern(), self.0.len())
    }
}

struct Shared(Event);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0.0
    }
}

// Lengths are one byte.
const _: () = assert!(MAX_NAME <= u8::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    fn at(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(millisecond).unwrap()
    }

    fn full(payload: &RawValue) -> EventFields<'_> {
        EventFields {
            version: Some("1.0.0"),
            source: Some(Source { kind: Some("integration"), id: Some("xero"), name: Some("Xéro") }),
            timestamp: Some(at(1_710_496_800_123)),
            correlation_id: Some("corr"),
            causation_id: Some("cause"),
            trace_id: Some("trace"),
            ..EventFields::new("evt_1", "invoice.created", payload)
        }
    }

    #[test]
    fn everything_is_read_back_as_it_was_given() {
        let payload = raw("{ \"amount\":1500.00, \"n\": 1e400, \"z\":\"\\u0000\" }");
        let event = Event::new(&full(&payload), at(5)).unwrap();
        let again = Event::from_packed(event.packed()).unwrap();
        assert_eq!(again, event);
        assert_eq!((again.event_id(), again.pattern(), again.version()), ("evt_1", "invoice.created", Some("1.0.0")));
        let source = Source { kind: Some("integration"), id: Some("xero"), name: Some("Xéro") };
        assert_eq!((again.source(), again.timestamp()), (Some(source), at(1_710_496_800_123)));
        assert_eq!(
            (again.correlation_id(), again.causation_id(), again.trace_id()),
            (Some("corr"), Some("cause"), Some("trace"))
        );
        assert_eq!(again.payload(), payload.get().as_bytes());
        assert_eq!(again.payload_bytes(), payload.get().as_bytes());
        assert_eq!((again.id_bytes(), again.pattern_bytes()), (&b"evt_1"[..], &b"invoice.created"[..]));
    }

    #[test]
    fn what_was_not_given_is_absent() {
        let payload = raw("null");
        let event = Event::new(&EventFields::new("e", "a", &payload), at(7)).unwrap();
        assert_eq!((event.version(), event.source(), event.correlation_id()), (None, None, None));
        assert_eq!((event.timestamp(), event.payload()), (at(7), &b"null"[..]));
        let with_empty_source = EventFields { source: Some(Source::default()), ..EventFields::new("e", "a", &payload) };
        assert_eq!(Event::new(&with_empty_source, at(7)).unwrap().source(), Some(Source::default()));
    }

    #[test]
    fn repeats_are_the_same_whenever_they_come() {
        let (payload, other) = (raw("[1]"), raw("[2]"));
        let plain = EventFields::new("e", "a", &payload);
        let event = Event::new(&plain, at(1)).unwrap();
        assert!(event.is_same(&Event::new(&plain, at(2)).unwrap()), "no timestamp was given");
        let others = [
            EventFields { pattern: "b", ..plain },
            EventFields { payload: &other, ..plain },
            EventFields { version: Some("1"), ..plain },
            EventFields { timestamp: Some(at(1)), ..plain },
            EventFields { trace_id: Some("e"), ..plain },
            EventFields { source: Some(Source::default()), ..plain },
        ];
        for fields in others {
            assert!(!event.is_same(&Event::new(&fields, at(1)).unwrap()), "{fields:?}");
        }
        let timed = |at| Event::new(&EventFields { timestamp: Some(at), ..plain }, at).unwrap();
        assert!(timed(at(1)).is_same(&timed(at(1))) && !timed(at(1)).is_same(&timed(at(2))));
    }

    #[test]
    fn bad_fields_are_named() {
        let payload = raw("1");
        let plain = EventFields::new("e", "a", &payload);
        let long = "x".repeat(256);
        let bad = [
            (EventFields { event_id: "", ..plain }, "eventId"),
            (EventFields { event_id: &long, ..plain }, "eventId"),
            (EventFields { pattern: "a.*", ..plain }, "pattern of an event"),
            (EventFields { version: Some("a\nb"), ..plain }, "version"),
            (EventFields { trace_id: Some(""), ..plain }, "metadata.traceId"),
            (EventFields { source: Some(Source { name: Some(&long), ..Source::default() }), ..plain }, "source.name"),
        ];
        for (fields, named) in bad {
            let error = Event::new(&fields, at(1)).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        assert!(Event::new(&EventFields { event_id: &long[1..], ..plain }, at(1)).is_ok());
    }

    #[test]
    fn other_bytes_are_no_event_or_one_that_can_be_read() {
        let payload = raw("{\"é\":1}");
        let event = Event::new(&full(&payload), at(5)).unwrap();
        for length in 0..event.packed().len() {
            if let Some(shorter) = Event::from_packed(&event.packed()[..length]) {
                assert!(length > event.packed().len() - payload.get().len(), "{shorter:?}");
            }
        }
        for at in 0..event.packed().len() {
            for flip in 1..=255_u8 {
                let mut bytes = event.packed().to_vec();
                bytes[at] ^= flip;
                if let Some(event) = Event::from_packed(&bytes) {
                    let _ = (event.event_id(), event.source(), event.trace_id(), event.timestamp(), event.payload());
                    assert!(!event.event_id().is_empty() && !event.pattern().is_empty());
                }
            }
        }
    }
}
