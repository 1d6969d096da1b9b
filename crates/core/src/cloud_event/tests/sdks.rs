//! Events as the official SDKs send them; `tests/fixtures/cloudevents` has them and how they were made.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

use super::*;

#[derive(Deserialize)]
struct Fixture {
    sdk: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    mode: String,
    headers: BTreeMap<String, String>,
    body: String,
    events: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    attributes: BTreeMap<String, String>,
    data: Option<ExpectedData>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ExpectedData {
    Json(Value),
    Text(String),
    Base64(String),
}

#[test]
fn python() {
    check(include_str!("../../../tests/fixtures/cloudevents/python.json"), 46);
}

#[test]
fn javascript() {
    check(include_str!("../../../tests/fixtures/cloudevents/javascript.json"), 24);
}

fn check(fixture: &str, count: usize) {
    let Fixture { sdk, cases } = serde_json::from_str(fixture).unwrap();
    assert_eq!(cases.len(), count, "{sdk}");
    for case in cases {
        let what = format!("{sdk}: {}, {}", case.name, case.mode);
        let events = read(&case);
        assert_eq!(events.len(), case.events.len(), "{what}");
        for (event, expected) in events.iter().zip(&case.events) {
            check_event(event, expected, &what);
            assert_eq!(CloudEvent::from_structured(&event.to_structured(OWN)).as_ref(), Ok(event), "{what}");
            let fact = event.to_fact();
            assert_eq!(&CloudEvent::from_stored(&StoredEvent::from(&fact)), event, "{what}");
        }
    }
}

fn read(case: &Case) -> Vec<CloudEvent> {
    let headers = || case.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let body = Bytes::from(STANDARD.decode(&case.body).unwrap());
    let form = Form::of(headers()).unwrap();
    assert_eq!(format!("{form:?}").to_lowercase(), case.mode);
    match form {
        Form::Binary => vec![CloudEvent::from_binary(headers(), body).unwrap()],
        Form::Structured => vec![CloudEvent::from_structured(&body).unwrap()],
        Form::Batched => {
            let parts = split_batch(&body, 1_000).unwrap();
            parts.iter().map(|part| CloudEvent::from_structured(part).unwrap()).collect()
        }
        Form::Json => panic!("the SDKs send CloudEvents"),
    }
}

fn check_event(event: &CloudEvent, expected: &Expected, what: &str) {
    let mut attributes: BTreeMap<_, _> = event
        .attributes(OWN)
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.canonical().into_owned()))
        .collect();
    attributes.extend(event.datacontenttype.iter().map(|value| ("datacontenttype".to_owned(), value.clone())));
    let (mut sent, at) = (expected.attributes.clone(), event.time.as_ref().unwrap().at());
    let times =
        [attributes.remove("time"), sent.remove("time")].map(|time| EventTime::parse(&time.unwrap()).unwrap().at());
    assert_eq!((attributes, times), (sent, [at; 2]), "{what}");
    let bytes = event.data.as_ref().map(|data| &data.bytes[..]);
    match &expected.data {
        None => assert_eq!(bytes, None, "{what}"),
        Some(ExpectedData::Text(text)) => assert_eq!(bytes, Some(text.as_bytes()), "{what}"),
        Some(ExpectedData::Base64(text)) => assert_eq!(bytes, Some(&*STANDARD.decode(text).unwrap()), "{what}"),
        Some(ExpectedData::Json(value)) => {
            assert_eq!(&serde_json::from_slice::<Value>(bytes.unwrap()).unwrap(), value, "{what}");
        }
    }
}
