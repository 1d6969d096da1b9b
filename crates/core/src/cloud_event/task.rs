//! Tasks in the terms of CloudEvents: what `POST /api/dispatch-jobs` says of what is to be delivered.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::attributes::Draft;
use super::invalid::InvalidCloudEvent;
use super::media_type::MediaType;
use super::sent::bytes_of;
use super::stored::NO_SOURCE;
use super::{AttributeValue, CloudEvent, DataKind};

/// What a task says of what is to be delivered.
#[derive(Debug, Clone, Copy)]
pub struct SentTask<'a> {
    /// What it is: a type of its own, or of an event.
    pub code: &'a str,
    /// What it is about.
    pub subject: Option<&'a str>,
    /// Where it comes from, a URI-reference; `/tidegate` if absent.
    pub source: Option<&'a str>,
    /// The id that it has there.
    pub external_id: Option<&'a str>,
    /// Shared by what belongs to one request.
    pub correlation_id: Option<&'a str>,
    /// The group in which it is delivered in order.
    pub message_group: Option<&'a str>,
    /// The media type of its payload; JSON if absent.
    pub content_type: Option<&'a str>,
    /// The payload: JSON, or a string with what is something else.
    pub payload: &'a RawValue,
}

impl CloudEvent {
    /// The event that is delivered for a task.
    ///
    /// # Errors
    /// Names the first field that is invalid, and what would be accepted.
    pub fn of_task(task: &SentTask<'_>) -> Result<Self, InvalidCloudEvent> {
        let mut draft = Draft::new();
        for (attribute, field, text) in [
            ("type", "code", Some(task.code)),
            ("source", "source", task.source.or(Some(NO_SOURCE))),
            ("subject", "subject", task.subject),
            ("id", "externalId", task.external_id),
            ("correlationid", "correlationId", task.correlation_id),
            ("messagegroup", "messageGroup", task.message_group),
            ("datacontenttype", "payloadContentType", task.content_type),
        ] {
            let Some(text) = text else { continue };
            let value = AttributeValue::Text(text.to_owned());
            draft.set(attribute, value).map_err(|error| error.renamed(attribute, field))?;
        }
        draft.set_data(payload(task)?, DataKind::Typed).map_err(|error| error.renamed("data", "payload"))?;
        draft.finish_without_id()
    }
}

/// JSON as it stands, or what is in the string that it is.
fn payload(task: &SentTask<'_>) -> Result<Bytes, InvalidCloudEvent> {
    let is_json = |media_type| MediaType::parse(media_type).is_some_and(|media_type| media_type.is_json());
    if task.content_type.is_none_or(is_json) {
        return bytes_of(&Bytes::new(), task.payload);
    }
    let reason = "must be a string of Unicode text, since payloadContentType is not JSON";
    let text: Result<String, _> = serde_json::from_str(task.payload.get());
    text.map(Bytes::from).map_err(|_| InvalidCloudEvent::new("payload", reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task<'a>(payload: &'a RawValue, content_type: Option<&'a str>) -> SentTask<'a> {
        let (subject, source, external_id, correlation_id, message_group) = (None, None, None, None, None);
        SentTask { code: "c", subject, source, external_id, correlation_id, message_group, content_type, payload }
    }

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    #[test]
    fn payloads_are_json_as_it_stands_or_the_text_of_a_string() {
        let bytes = |json: &str, content_type| {
            let event = CloudEvent::of_task(&task(&raw(json), content_type));
            event.map(|event| String::from_utf8(event.data.unwrap().bytes.into()).unwrap())
        };
        assert_eq!(bytes(r#"{"a":  1.50}"#, None).unwrap(), r#"{"a":  1.50}"#);
        assert_eq!(bytes(r#""{\"a\": 1}""#, None).unwrap(), r#"{"a": 1}"#);
        assert_eq!(bytes(r#""text""#, Some("application/json")).unwrap(), r#""text""#);
        assert_eq!(bytes(r#""a=1&b=\u00fc""#, Some("application/x-www-form-urlencoded")).unwrap(), "a=1&b=\u{fc}");
        for (json, content_type, field) in [
            ("{}", Some("text/plain"), "payload"),
            (r#""\ud800""#, Some("text/plain"), "payload"),
            ("{}", Some("json"), "payloadContentType"),
            (&"[".repeat(200), None, "payload"),
        ] {
            let json = if json.starts_with("[[") { format!("{json}{}", "]".repeat(200)) } else { json.to_owned() };
            assert_eq!(
                bytes(&json, content_type).unwrap_err().to_string().split_once(' ').unwrap().0,
                field,
                "{json:.9}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named_as_it_was_sent() {
        let payload = raw("1");
        let whole = task(&payload, None);
        for (bad, field) in [
            (SentTask { code: "", ..whole }, "code"),
            (SentTask { source: Some("a b"), ..whole }, "source"),
            (SentTask { subject: Some(""), ..whole }, "subject"),
            (SentTask { external_id: Some("\n"), ..whole }, "externalId"),
            (SentTask { message_group: Some(""), ..whole }, "messageGroup"),
            (SentTask { correlation_id: Some(&"x".repeat(256)), ..whole }, "correlationId"),
        ] {
            let error = CloudEvent::of_task(&bad).unwrap_err();
            assert_eq!(error.field(), field, "{error}");
        }
    }
}
