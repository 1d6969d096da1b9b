//! Properties: what is written is read as the same, in every mode and as a fact.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::event::PayloadLimit;

/// A text that an attribute may have.
fn plain() -> impl Strategy<Value = String> {
    any::<String>().prop_map(|text| text.chars().filter(|c| super::super::text::is_allowed(*c)).collect())
}

/// A text that is stored as a key.
fn key() -> impl Strategy<Value = String> {
    (plain(), "[a-z]").prop_map(|(text, letter)| format!("{letter}{}", text.chars().take(40).collect::<String>()))
}

fn source() -> impl Strategy<Value = String> {
    prop_oneof![
        plain()
            .prop_map(|text| uri::to_reference(&text.chars().take(20).collect::<String>()).into_owned())
            .prop_filter("not empty", |text| !text.is_empty()),
        "[a-z][a-z0-9+.-]{0,5}://[a-z.]{1,9}/[a-z/:@%20]{0,9}"
            .prop_filter("a reference", |text| uri::is_reference(text)),
    ]
}

fn time() -> impl Strategy<Value = EventTime> {
    let offset = prop_oneof![Just("Z".to_owned()), Just("z".to_owned()), "[+-](0[0-9]|1[0-4]):[0-5][0-9]"];
    let parts = (1971..9990, 1..13, 1..29, 0..24, 0..60, 0..61, "(\\.[0-9]{1,12})?", offset);
    parts.prop_map(|(year, month, day, hour, minute, second, fraction, offset)| {
        let text = format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}{offset}");
        EventTime::parse(&text).unwrap()
    })
}

fn value() -> impl Strategy<Value = AttributeValue> {
    prop_oneof![
        any::<bool>().prop_map(AttributeValue::Boolean),
        any::<i32>().prop_map(AttributeValue::Integer),
        plain().prop_map(AttributeValue::Text),
    ]
}

fn extensions() -> impl Strategy<Value = BTreeMap<String, AttributeValue>> {
    let ours = |name: &String| name != "data" && !["id", "type", "time"].contains(&name.as_str());
    btree_map("[a-z0-9]{1,25}".prop_filter("no name of ours", ours), value(), 0..5)
}

/// A JSON document, odd but valid, without white space around it.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?",
        "\"([a-zé😀 ]|\\\\u[0-9a-f]{4}|\\\\[/nt\"\\\\]){0,8}\"",
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(" ,\t"))),
            vec(("[ab]", inner), 0..4).prop_map(|members| {
                let members: Vec<_> = members.iter().map(|(name, value)| format!("\"{name}\" : {value}")).collect();
                format!("{{\n{} }}", members.join(","))
            }),
        ]
    })
}

/// Data with their media type, in the one form in which they are read.
fn data() -> impl Strategy<Value = (Option<String>, Option<Data>)> {
    let of = |kind| move |bytes: Bytes| Data { bytes, kind };
    let some = |text: &'static str| Just(Some(text.to_owned()));
    let any_type = prop_oneof![
        some("application/json"),
        some("application/x+JSON; a=\";\""),
        some("text/plain"),
        some("application/xml"),
        some("text/csv; charset=iso-8859-1"),
        some("image/png"),
    ];
    let bytes = || vec(any::<u8>(), 0..40).prop_map(Bytes::from);
    prop_oneof![
        (option::of(Just("application/json".to_owned())), json().prop_map(Bytes::from).prop_map(of(DataKind::Typed)))
            .prop_map(|(media_type, data)| (media_type, Some(data))),
        (any_type.clone(), prop_oneof![bytes(), json().prop_map(Bytes::from)].prop_map(of(DataKind::Typed)))
            .prop_map(|(media_type, data)| (media_type, Some(data))),
        (
            prop_oneof![some("application/xml"), some("a/b")],
            any::<String>().prop_map(Bytes::from).prop_map(of(DataKind::Text))
        )
            .prop_map(|(media_type, data)| (media_type, Some(data))),
        bytes().prop_map(of(DataKind::Untyped)).prop_map(|data| (None, Some(data))),
        option::of(Just("text/plain".to_owned())).prop_map(|media_type| (media_type, None)),
    ]
}

prop_compose! {
    fn event()(
        (id, source, event_type) in (key(), source(), key()),
        (subject, time, dataschema) in (option::of(key()), option::of(time()), option::of(Just("urn:x:y#z".to_owned()))),
        (datacontenttype, data) in data(),
        [deduplication_id, correlation_id, causation_id, message_group] in
            [option::of(key()), option::of(key()), option::of(key()), option::of(key())],
        context_data in vec((key(), plain()).prop_map(|(key, value)| ContextData { key, value }), 0..4),
        sequence in option::of(prop_oneof![
            any::<i32>().prop_map(AttributeValue::Integer), key().prop_map(AttributeValue::Text),
        ]),
        schema_version in option::of((0..1_000_000_u32, 0..1_000_000_u32)),
        (traceparent, tracestate) in (option::of(plain()), option::of(plain())),
        extensions in extensions(),
    ) -> CloudEvent {
        CloudEvent {
            id: Some(id), source, event_type, subject, time, datacontenttype, dataschema, data, deduplication_id,
            correlation_id, causation_id, message_group, context_data, sequence,
            schema_version: schema_version.map(|(major, minor)| VersionNumber { major, minor }),
            is_unvalidated: false, traceparent, tracestate, extensions,
        }
    }
}

fn read(message: &Message) -> Result<CloudEvent, InvalidCloudEvent> {
    let headers = message.headers.iter().map(|(name, value)| (&**name, value.as_bytes()));
    assert_eq!(Form::of(headers.clone()), Ok(Form::Binary));
    CloudEvent::from_binary(headers, message.body.clone())
}

/// What the binary mode cannot say: types of extensions, that data are a string, that they are empty, and that JSON has
/// no media type.
fn in_binary(mut event: CloudEvent) -> CloudEvent {
    let texts = event.extensions.values_mut().chain(&mut event.sequence);
    texts.for_each(|value| *value = AttributeValue::Text(value.canonical().into_owned()));
    match &mut event.data {
        Some(data) if data.kind != DataKind::Untyped => {
            data.kind = DataKind::Typed;
            event.datacontenttype.get_or_insert("application/json".into());
        }
        _ => {}
    }
    event.data = event.data.filter(|data| !data.bytes.is_empty());
    event
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn structured_events_come_back(event in event()) {
        let body = event.to_structured(OWN);
        prop_assert!(serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok());
        prop_assert_eq!(CloudEvent::from_structured(&body), Ok(event));
    }

    #[test]
    fn binary_events_come_back(event in event()) {
        let message = event.to_binary(OWN);
        let printable = |text: &str| text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
        prop_assert!(message.headers.iter().all(|(name, value)| printable(name) && printable(value)));
        let event = in_binary(event);
        prop_assert_eq!(read(&message), Ok(event.clone()));
        prop_assert_eq!(read(&event.to_binary(OWN)), Ok(event), "what came in binary mode comes back without a change");
    }

    #[test]
    fn facts_keep_their_events(event in event()) {
        let fact = event.to_fact();
        prop_assert!(fact.check(PayloadLimit::default()).is_ok());
        prop_assert_eq!(fact.payload.as_ref(), event.data.as_ref().map_or(&[][..], |data| &data.bytes[..]));
        prop_assert_eq!(CloudEvent::from_stored(&StoredEvent::from(&fact)), event);
    }

    #[test]
    fn batches_are_their_events(events in vec(event(), 0..4)) {
        let parts: Vec<_> = events.iter().map(|event| String::from_utf8(event.to_structured(OWN).to_vec()).unwrap()).collect();
        let body = Bytes::from(format!("[{}]", parts.join(", ")));
        let read: Result<Vec<_>, _> = split_batch(&body, 4).unwrap().iter().map(CloudEvent::from_structured).collect();
        prop_assert_eq!(read, Ok(events));
    }

    /// JSON data survive in every mode, byte for byte, however they are written.
    #[test]
    fn json_is_never_reformatted(json in json()) {
        let sent = with(&[("data", &json)]);
        let event = structured(&sent).unwrap();
        let bytes = |event: &CloudEvent| event.data.as_ref().unwrap().bytes.clone();
        prop_assert_eq!(bytes(&event), json.as_bytes());
        let back = CloudEvent::from_structured(&event.to_structured(OWN)).unwrap();
        prop_assert_eq!(bytes(&back), json.as_bytes());
        prop_assert_eq!(bytes(&read(&event.to_binary(OWN)).unwrap()), json.as_bytes());
        let source = format!(r#"{{"type":"t","source":"s","data":{json}}}"#);
        let sent = Sent::from_json(&Bytes::from(source)).unwrap().event;
        prop_assert!(json.starts_with('"') || json == "null" || bytes(&sent) == json.as_bytes());
    }
}
