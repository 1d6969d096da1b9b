//! The three languages behind one trait.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::compare::Comparison;
use crate::definition::{Definition, Document, Format};
use crate::error::SchemaError;
use crate::json::JsonSchema;
use crate::proto::Proto;
use crate::report::Report;
use crate::xsd::Xsd;

/// A language that schemas are written in.
pub trait Language: Send + Sync + fmt::Debug {
    /// Compiles a schema.
    ///
    /// # Errors
    /// When the schema is not valid, is beyond the [limits](crate::limits), refers to anything outside itself, or uses a
    /// construct that would not be enforced.
    fn compile(&self, definition: &Definition) -> Result<Box<dyn Validator>, SchemaError>;

    /// Checks a schema that no data is validated against yet: as [`compile`](Self::compile), but nobody has to have chosen
    /// among its messages.
    ///
    /// # Errors
    /// As those of [`compile`](Self::compile).
    fn check(&self, definition: &Definition) -> Result<(), SchemaError> {
        self.compile(definition).map(drop)
    }

    /// Compares two versions of a schema. What is not on the language's list of known changes is told as
    /// [`Verdict::CannotTell`](crate::Verdict::CannotTell).
    ///
    /// # Errors
    /// When one of them does not compile.
    fn compare(&self, old: &Definition, new: &Definition) -> Result<Comparison, SchemaError>;
}

/// A compiled schema.
pub trait Validator: Send + Sync + fmt::Debug {
    /// Validates a document and reports all violations. A document that does not parse, is beyond the
    /// [limits](crate::limits), or has a syntax that this schema cannot judge is not valid: the report says why.
    fn validate(&self, document: Document<'_>) -> Report;

    /// About how many bytes of memory it occupies, for caches that are bounded.
    fn size(&self) -> usize;
}

/// The languages by their names in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum SchemaType {
    /// JSON Schema, drafts 7, 2019-09 and 2020-12.
    JsonSchema,
    /// Protocol Buffers, proto2 and proto3.
    Proto,
    /// XML Schema 1.0.
    Xsd,
}

impl SchemaType {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::JsonSchema, Self::Proto, Self::Xsd];

    /// The name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::JsonSchema => "JSON_SCHEMA",
            Self::Proto => "PROTO",
            Self::Xsd => "XSD",
        }
    }

    /// What compiles and compares schemas of this type.
    #[must_use]
    pub fn language(self) -> &'static dyn Language {
        match self {
            Self::JsonSchema => &JsonSchema,
            Self::Proto => &Proto,
            Self::Xsd => &Xsd,
        }
    }

    /// The syntax of documents of a media type, or `None` when schemas of this type cannot judge it.
    #[must_use]
    pub fn format(self, media_type: &str) -> Option<Format> {
        let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is_json = essence == "application/json" || essence == "text/json" || essence.ends_with("+json");
        let is_xml = essence == "application/xml" || essence == "text/xml" || essence.ends_with("+xml");
        match self {
            Self::JsonSchema => is_json.then_some(Format::Json),
            Self::Proto if matches!(essence.as_str(), "application/protobuf" | "application/x-protobuf") => {
                Some(Format::Protobuf)
            }
            Self::Proto => is_json.then_some(Format::Json),
            Self::Xsd => is_xml.then_some(Format::Xml),
        }
    }
}

impl fmt::Display for SchemaType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is no schema type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no schema type: use JSON_SCHEMA, PROTO or XSD")]
pub struct UnknownSchemaType(String);

impl FromStr for SchemaType {
    type Err = UnknownSchemaType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|one| one.as_str() == text).ok_or_else(|| UnknownSchemaType(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for one in SchemaType::ALL {
            assert_eq!(one.as_str().parse(), Ok(one));
        }
        let error = "json".parse::<SchemaType>().unwrap_err();
        assert_eq!(error.to_string(), "\"json\" is no schema type: use JSON_SCHEMA, PROTO or XSD");
    }

    #[test]
    fn media_types_fit_their_languages() {
        let cases = [
            ("application/json", [Some(Format::Json), Some(Format::Json), None]),
            ("Application/CloudEvents+JSON; charset=utf-8", [Some(Format::Json), Some(Format::Json), None]),
            ("application/x-protobuf", [None, Some(Format::Protobuf), None]),
            ("application/protobuf", [None, Some(Format::Protobuf), None]),
            ("text/xml", [None, None, Some(Format::Xml)]),
            ("application/soap+xml", [None, None, Some(Format::Xml)]),
            ("text/plain", [None, None, None]),
            ("", [None, None, None]),
        ];
        for (media_type, formats) in cases {
            assert_eq!(SchemaType::ALL.map(|one| one.format(media_type)), formats, "{media_type}");
        }
    }
}
