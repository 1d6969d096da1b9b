//! In which form a request carries its events.

use super::media_type::MediaType;
use super::text::clip;

/// The media type of one event in the JSON format.
pub const STRUCTURED: &str = "application/cloudevents+json";
/// The media type of several events in the JSON format.
pub const BATCHED: &str = "application/cloudevents-batch+json";

/// The form in which a request carries one or more events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The source's own JSON: no CloudEvents headers, and JSON as the media type.
    Json,
    /// One event in the JSON format of CloudEvents.
    Structured,
    /// The attributes are headers, the body is the data.
    Binary,
    /// A list of events in the JSON format of CloudEvents.
    Batched,
}

/// A media type in which no events are accepted; the message names those that are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}: send {STRUCTURED}, {BATCHED}, application/json, or any data with the headers ce-id, ce-source, ce-type and \
     ce-specversion"
)]
pub struct UnsupportedMediaType(String);

impl Form {
    /// The form of a request with these headers, by `Content-Type` and the four headers that every event in binary mode
    /// has: with any of them it is one. A request without a media type is the source's JSON.
    ///
    /// ```
    /// use tidegate_core::cloud_event::Form;
    /// let headers = [("Content-Type", b"application/cloudevents+json; charset=utf-8".as_slice())];
    /// assert_eq!(Form::of(headers), Ok(Form::Structured));
    /// ```
    ///
    /// # Errors
    /// When the media type is a CloudEvents format other than JSON, or other than JSON without those headers.
    pub fn of<'a>(headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Self, UnsupportedMediaType> {
        let (mut content_type, mut has_attributes) = (None, false);
        for (name, value) in headers {
            if name.eq_ignore_ascii_case("content-type") {
                content_type = content_type.or(Some(value));
            }
            let required = ["ce-id", "ce-source", "ce-type", "ce-specversion"];
            has_attributes |= required.iter().any(|required| name.eq_ignore_ascii_case(required));
        }
        let Some(value) = content_type else {
            return Ok(if has_attributes { Self::Binary } else { Self::Json });
        };
        let text = String::from_utf8_lossy(value);
        let unsupported = |reason: &str| UnsupportedMediaType(format!("Content-Type {} {reason}", clip(&text)));
        match MediaType::parse(&text) {
            Some(media_type) if media_type.is_cloud_event() => match media_type {
                _ if !media_type.is_utf_8() => Err(unsupported("is not accepted: JSON is in UTF-8")),
                _ if media_type.is(STRUCTURED) => Ok(Self::Structured),
                _ if media_type.is(BATCHED) => Ok(Self::Batched),
                _ => Err(unsupported("is not an event format that is accepted")),
            },
            _ if has_attributes => Ok(Self::Binary),
            Some(media_type) if media_type.is_application_json() => Ok(Self::Json),
            _ => Err(unsupported("is not accepted")),
        }
    }
}
