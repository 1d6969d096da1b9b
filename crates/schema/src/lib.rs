//! Schemas of events, pure: JSON Schema, Protocol Buffers and XSD are compiled, documents are validated against them, and
//! two versions of a schema are compared.
//!
//! One trait serves all three: [`Language`]. Nothing here performs IO: a schema that refers to a file or to the network is
//! refused. In-process validators cannot be interrupted, so everything is bounded before it is looked at ([`limits`]).
//! This crate knows nothing of event types, their versions and their life cycle.

mod compare;
mod definition;
mod error;
pub mod json;
mod language;
pub mod limits;
pub mod proto;
mod report;
pub mod xsd;

pub use compare::{Change, Comparison, Verdict};
pub use definition::{Definition, Document, Format};
pub use error::{Position, SchemaError};
pub use language::{Language, SchemaType, UnknownSchemaType, Validator};
pub use report::{Report, Violation};
