//! What is compiled and what is validated, as callers hand it in.

/// A schema as it was registered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Definition {
    /// The text of the schema. For Protocol Buffers also a descriptor set in base64.
    pub content: String,
    /// For Protocol Buffers: the full name of the message that events are. May be left out when the file has only one.
    pub message: Option<String>,
    /// Asserts more than the language does by itself: JSON Schema asserts `format`, Protocol Buffers refuse unknown
    /// fields. Nothing changes for XSD.
    pub strict: bool,
}

/// The syntax of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON. Also the JSON mapping of Protocol Buffers.
    Json,
    /// Protocol Buffers' binary encoding.
    Protobuf,
    /// XML.
    Xml,
}

/// A document that is validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Document<'d> {
    /// Its bytes, as they were sent.
    pub bytes: &'d [u8],
    /// Its syntax.
    pub format: Format,
}
