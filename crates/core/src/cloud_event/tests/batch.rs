//! The JSON batch format, and the source's own batches.

use super::*;

fn batch(text: &str) -> Result<Vec<Bytes>, InvalidCloudEvent> {
    split_batch(&Bytes::copy_from_slice(text.as_bytes()), 3)
}

fn events(text: &str) -> Result<Vec<Bytes>, InvalidCloudEvent> {
    split_events(&Bytes::copy_from_slice(text.as_bytes()), 3)
}

#[test]
fn the_examples_of_the_format() {
    let text = r#"[
      {
          "specversion" : "1.0",
          "type" : "com.example.someevent",
          "source" : "/mycontext/4",
          "id" : "B234-1234-1234",
          "time" : "2018-04-05T17:31:00Z",
          "comexampleextension1" : "value",
          "comexampleothervalue" : 5,
          "datacontenttype" : "application/vnd.apache.thrift.binary",
          "data_base64" : "AAECAwQ="
      },
      {
          "specversion" : "1.0",
          "type" : "com.example.someotherevent",
          "source" : "/mycontext/9",
          "id" : "C234-1234-1234",
          "time" : "2018-04-05T17:31:05Z",
          "comexampleextension1" : "value",
          "comexampleothervalue" : 5,
          "datacontenttype" : "application/json",
          "data" : {
              "appinfoA" : "abc",
              "appinfoB" : 123,
              "appinfoC" : true
          }
      }
    ]"#;
    let events: Vec<_> = batch(text).unwrap().iter().map(|part| CloudEvent::from_structured(part).unwrap()).collect();
    assert_eq!(events.iter().map(|event| &*event.source).collect::<Vec<_>>(), ["/mycontext/4", "/mycontext/9"]);
    assert_eq!(events[0].data.as_ref().unwrap().bytes, &[0, 1, 2, 3, 4][..]);
    let shown: Vec<_> = events.iter().map(shown).collect();
    assert_eq!(serde_json::Value::from(shown), serde_json::from_str::<serde_json::Value>(text).unwrap());
    assert_eq!(batch("[]"), Ok(vec![]));
}

#[test]
fn batches_are_split_without_reading_their_events() {
    let cases: [(&str, &[&str]); 4] = [
        (" [ ] ", &[]),
        ("[{\"a\":1}, {\"a\":1,\"a\":2.0}]", &["{\"a\":1}", "{\"a\":1,\"a\":2.0}"]),
        ("[1, \"[{]\",\nnull]", &["1", "\"[{]\"", "null"]),
        ("[[[]],{}]", &["[[]]", "{}"]),
    ];
    for (text, parts) in cases {
        assert_eq!(batch(text).unwrap(), parts, "{text}");
        assert_eq!(events(&format!(" {{ \"events\" :{text}}} ")).unwrap(), parts, "{text}");
    }
    let body = Bytes::from_static(b"[{\"a\": 1}]");
    let part = &split_batch(&body, 1).unwrap()[0];
    assert_eq!(part.as_ptr(), body[1..].as_ptr(), "parts are not copied");
}

#[test]
fn what_is_no_batch_is_refused() {
    let cases = [
        ("", "the batch is not JSON"),
        ("[", "the batch is not JSON"),
        ("[1,]", "the batch is not JSON"),
        ("[] []", "the batch is not JSON"),
        ("{}", "the batch must be a JSON array"),
        ("null", "the batch must be a JSON array"),
        ("[1,2,3,4]", "the batch has more than 3 events"),
        ("[1,2,3,4,5,6]", "the batch has more than 3 events"),
        ("[1,2,3,4,5,6", "the batch is not JSON"),
    ];
    for (text, expected) in cases {
        let error = batch(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let error = split_batch(&Bytes::from_static(b"[\"\xff\"]"), 3).unwrap_err().to_string();
    assert!(error.contains("the batch is not UTF-8 from byte 2 on"), "{error}");
    let cases = [
        ("[]", "the batch must be a JSON object"),
        ("{}", "events is missing"),
        (r#"{"events": null}"#, "events must be an array"),
        (r#"{"events": {}}"#, "events must be an array"),
        (r#"{"events": [], "events": []}"#, "events is given twice"),
        (r#"{"event": []}"#, "event is not a known field: the only one is \"events\""),
        (r#"{"events": [], "clientId": "x"}"#, "clientId is not a known field"),
        (r#"{"events": [1,2,3,4]}"#, "events has more than 3 events"),
        (r#"{"events": [1"#, "the batch is not JSON"),
    ];
    for (text, expected) in cases {
        let error = events(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// A bad event refuses itself, not its neighbours.
#[test]
fn events_of_a_batch_are_refused_one_by_one() {
    let text = format!("[{}, {}, {}]", with(&[]), with(&[("specversion", "\"0.3\"")]), with(&[("id", "\"2\"")]));
    let read: Vec<_> = batch(&text).unwrap().iter().map(CloudEvent::from_structured).collect();
    assert!(read[0].is_ok() && read[2].is_ok());
    assert_eq!(read[1].as_ref().unwrap_err().field(), "specversion");
}
