//! The data of an event: bytes, and whether the JSON format shows them as JSON, as a string or in Base64.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::envelope::as_json;
use super::media_type::MediaType;

/// The data of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data {
    /// The bytes, exactly as they were sent.
    pub bytes: Bytes,
    /// What is known of them beyond their media type.
    pub kind: DataKind,
}

/// What is known of data beyond its media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataKind {
    /// Nothing: it is JSON, text or binary as the media type says.
    Typed,
    /// It was sent as a string in the JSON format, with a media type that is neither JSON nor text.
    Text,
    /// It was sent as bytes without a media type, so nothing is assumed about them, not even that they are JSON.
    Untyped,
}

impl Data {
    /// Data that came as bytes: with the media type if there is one.
    pub(super) fn kind_of_bytes(media_type: Option<&str>) -> DataKind {
        if media_type.is_some() { DataKind::Typed } else { DataKind::Untyped }
    }

    /// The data as JSON, if that is what the media type declares and what they are.
    pub(super) fn as_json(&self, media_type: Option<&str>) -> Option<&RawValue> {
        let is_json = match media_type {
            Some(media_type) => MediaType::parse(media_type)?.is_json(),
            None => true,
        };
        (is_json && self.kind == DataKind::Typed).then(|| as_json(&self.bytes))?
    }

    /// The data as text, if the media type says so or they were sent as a string.
    pub(super) fn as_text(&self, media_type: Option<&str>) -> Option<&str> {
        match self.kind {
            DataKind::Typed => MediaType::parse(media_type?)?.text_of(&self.bytes),
            DataKind::Text => std::str::from_utf8(&self.bytes).ok(),
            DataKind::Untyped => None,
        }
    }
}
