//! Bounds on schemas and documents. Validators run in this process and cannot be interrupted, so time and memory are
//! bounded by what is let in.

/// The longest schema, in bytes.
pub const SCHEMA_BYTES: usize = 512 << 10;
/// The longest document, in bytes.
pub const DOCUMENT_BYTES: usize = 1 << 20;
/// The deepest nesting of a schema or a document.
pub const DEPTH: usize = 128;
/// The violations that a report shows.
pub const MAX_VIOLATIONS: usize = 100;
/// The most messages, fields, enum values, options, ranges and other parts of a Protocol Buffers schema.
pub const PROTO_ITEMS: usize = 5_000;
/// The deepest nesting of brackets in a Protocol Buffers schema: its parser recurses, on the stack of its caller.
pub const PROTO_BRACKETS: usize = 64;
/// The longest full name in a Protocol Buffers schema, in bytes.
pub const PROTO_NAME_BYTES: usize = 512;
/// The most files of a Protocol Buffers descriptor set.
pub const PROTO_FILES: usize = 64;
/// The deepest nesting of messages in a Protocol Buffers document, as in most implementations.
pub const PROTO_DEPTH: usize = 100;
