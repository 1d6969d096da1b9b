//! What Tidegate does with events beyond queues. Owns event types, their versions and schemas ([`Gateway`]).
//!
//! It works on what the library offers, and must not know SQL or HTTP. What decides about the life of a version is in
//! `tidegate_core::event_type`; what compiles and validates is `tidegate_schema`.

mod gateway;

pub use gateway::{
    Changed, EventType, EventTypeBody, Forced, Gateway, GatewayError, GatewayOptions, Match, NewVersion, Schema,
    SchemaBody, SchemasQuery, SpecVersion, TypesQuery, Validated, Written,
};
pub use tidegate_core::event_type::{
    CodePattern, EventTypeCode, InvalidCode, InvalidVersionNumber, TypeStatus, VersionNumber, VersionStatus,
};
pub use tidegate_schema::limits::DOCUMENT_BYTES;
pub use tidegate_schema::{
    Change, Comparison, Definition, Document, Format, SchemaType, Validator, Verdict, Violation,
};
