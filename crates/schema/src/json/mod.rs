//! JSON Schema, drafts 7, 2019-09 and 2020-12. Without `$schema` a schema is of draft 7; other drafts and metaschemas of
//! one's own are refused.
//!
//! The `jsonschema` crate compiles and judges. Around it:
//! - [`tree`] and [`reader`] read JSON with positions, [`number`] compares numbers by all their digits, and [`keywords`]
//!   judges bounds by that;
//! - [`node`] shows the tree to the crate, and [`meter`] bounds what it reads;
//! - [`source`], [`graph`], [`pattern`] and [`bounds`] refuse a schema that is not valid, leaves the document, or could
//!   cost too much, before it is compiled. The rule for costs is in [`bounds`];
//! - [`validator`] and [`messages`] report violations;
//! - [`compare`] tells what a new version breaks; the list is there.
//!
//! Formats are asserted in strict mode only, in all drafts; those that are not known are ignored, as the standard says.
//! Names that occur twice in an object are refused in schemas and documents: which one counts would be a guess, and the
//! reader of the event may guess differently.

mod bounds;
mod compare;
mod dialect;
mod graph;
mod keywords;
mod messages;
mod meter;
mod node;
mod number;
mod pattern;
mod reader;
mod source;
mod tree;
mod validator;

use crate::compare::Comparison;
use crate::definition::Definition;
use crate::error::SchemaError;
use crate::language::{Language, Validator};

/// The language.
#[derive(Debug, Clone, Copy)]
pub struct JsonSchema;

impl Language for JsonSchema {
    fn compile(&self, definition: &Definition) -> Result<Box<dyn Validator>, SchemaError> {
        Ok(Box::new(source::compile(definition)?))
    }

    fn compare(&self, old: &Definition, new: &Definition) -> Result<Comparison, SchemaError> {
        compare::compare(old, new)
    }
}
