//! Bodies and headers that are made to hurt: they are refused, in time that follows their size.

use proptest::prelude::*;

use super::*;

/// Refused at any depth, without recursion.
#[test]
fn deep_nesting_is_refused() {
    for depth in [129, 100_000] {
        let bomb = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let error = structured(&with(&[("data", &bomb)])).unwrap_err();
        assert_eq!((error.field(), error.reason()), ("data", "is nested deeper than 128 levels"));
        let body = format!(r#"{{"type":"t","source":"s","data":{bomb}}}"#);
        assert_eq!(Sent::from_json(&body.into()).unwrap_err().field(), "data");
        let text = format!(r#"{{"type":"t","source":"s","data":"{bomb}"}}"#);
        assert_eq!(Sent::from_json(&text.into()).unwrap_err().field(), "data");
        assert_eq!(binary(&[("content-type", "application/json")], bomb.clone()).unwrap_err().field(), "data");
        assert_eq!(structured(&with(&[("ext", &bomb)])).unwrap_err().field(), "ext");
        let escaped = format!("\"{bomb}\"");
        assert!(structured(&with(&[("contextdata", &escaped)])).is_err());
        let batch = Bytes::from(format!("[{bomb}]"));
        assert!(structured(std::str::from_utf8(&split_batch(&batch, 1).unwrap()[0]).unwrap()).is_err());
    }
    let objects = format!("{}1{}", "{\"a\":".repeat(129), "}".repeat(129));
    assert_eq!(structured(&with(&[("data", &objects)])).unwrap_err().field(), "data");
    let most = format!("{}{}", "[".repeat(128), "]".repeat(128));
    assert!(structured(&with(&[("data", &most)])).is_ok());
    assert!(binary(&[("content-type", "text/plain")], "[".repeat(1_000)).is_ok(), "text has no depth");
}

#[test]
fn unclosed_nesting_is_no_json() {
    for open in ["[", "{\"a\":"] {
        let body = with(&[("data", &open.repeat(100_000))]);
        assert_eq!(structured(&body).unwrap_err().field(), "the event");
        assert!(split_batch(&Bytes::from(open.repeat(100_000)), 5).is_err());
    }
}

#[test]
fn floods_of_members_are_refused() {
    let mut body = String::from("{");
    for number in 0..200_000 {
        body.push_str(&format!("\"{number}\":null,"));
    }
    body.push_str("\"a\":1}");
    let error = structured(&body).unwrap_err();
    assert_eq!(error.field(), "the context attributes");
}

#[test]
fn floods_of_items_are_refused() {
    let body = Bytes::from(format!("[{}1]", "1,".repeat(200_000)));
    let error = split_batch(&body, 1_000).unwrap_err();
    assert_eq!(error.reason(), "has more than 1000 events: send several batches");
    let pairs = format!("[{}1]", "1,".repeat(200_000));
    let body = format!(r#"{{"type":"t","source":"s","contextData":{pairs}}}"#);
    assert_eq!(Sent::from_json(&body.into()).unwrap_err().field(), "the context attributes");
}

#[test]
fn long_texts_are_refused_before_they_are_read() {
    let long = format!("\"{}\"", "x".repeat(8 << 20));
    assert_eq!(structured(&with(&[("subject", &long)])).unwrap_err().field(), "the context attributes");
    let name = "x".repeat(1 << 20);
    assert_eq!(structured(&with(&[(&name, "1")])).unwrap_err().field(), "the context attributes");
    let error = structured(&with(&[(&"X".repeat(60_000), "1")])).unwrap_err();
    assert_eq!(error.field(), "X".repeat(60), "a long name is clipped");
}

/// Nothing that a sender wrote reaches a terminal or a log as a control character.
#[test]
fn messages_have_no_control_characters() {
    let errors = [
        structured(&with(&[("\\u001b[2J", "1")])).unwrap_err().to_string(),
        structured(&with(&[("a\\u009b", "1"), ("a\\u009b", "1")])).unwrap_err().to_string(),
        Sent::from_json(&Bytes::from_static(b"{\"\\n\": 1}")).unwrap_err().to_string(),
        split_events(&Bytes::from_static(b"{\"\\r\": 1}"), 1).unwrap_err().to_string(),
        structured(&with(&[("contextdata", r#""[{\"\\n\":1}]""#)])).unwrap_err().to_string(),
        Form::of([("content-type", b"a\x7f/\x1b".as_slice())]).unwrap_err().to_string(),
    ];
    for error in errors {
        assert!(!error.chars().any(char::is_control), "{error:?}");
    }
}

proptest! {
    #[test]
    fn any_body_is_read_or_refused(body in prop_oneof![
        any::<Vec<u8>>(),
        "[\\[\\]{}\":,a-z0-9\\\\ ]{0,60}".prop_map(String::into_bytes),
        ("[a-z_0-9]{1,8}", ".{0,20}").prop_map(|(name, value)| with(&[(&name, &value)]).into_bytes()),
    ]) {
        let body = Bytes::from(body);
        let _ = Sent::from_json(&body);
        let _ = split_events(&body, 2);
        let _ = split_batch(&body, 2);
        if let Ok(event) = CloudEvent::from_structured(&body) {
            prop_assert_eq!(CloudEvent::from_structured(&event.to_structured(OWN)), Ok(event));
        }
    }

    #[test]
    fn any_headers_are_read_or_refused(
        headers in proptest::collection::vec(("(ce-|CE-|)[a-zA-Z-]{0,12}|content-type|ce-time", any::<Vec<u8>>()), 0..6),
        body in any::<Vec<u8>>(),
    ) {
        let headers = || headers.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        let _ = Form::of(headers());
        let least = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/"), ("ce-type", "t")];
        let least = least.map(|(name, value)| (name, value.as_bytes()));
        if let Ok(event) = CloudEvent::from_binary(least.into_iter().chain(headers()), body.into()) {
            prop_assert_eq!(CloudEvent::from_structured(&event.to_structured(OWN)).unwrap().id, event.id);
        }
    }
}
