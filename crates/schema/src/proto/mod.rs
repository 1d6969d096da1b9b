//! Protocol Buffers, proto2 and proto3: a `.proto` text or a descriptor set, and the message in it that events are.
//!
//! A definition is bounded before it is parsed (`prescan`, `set`) and before it is linked (`checks`); then tables are made
//! (`build`, `table`) and the descriptors dropped. Documents in the binary encoding are walked over (`wire`, `required`),
//! those in the JSON mapping as well (`mapping`); neither builds a message. The crates `protox-parse` and `prost-reflect`
//! parse and link; they open no files.
//!
//! What a schema decides about a document:
//!
//! - Strict schemas refuse unknown fields, and unknown values of closed (proto2) enums and enum names in JSON, which are
//!   unknown fields as well. Other schemas ignore them.
//! - A field with another wire type than its own is an unknown field: it does not count where it is required. Packed and
//!   unpacked repeated fields are read either way.
//! - Strings are UTF-8, in proto2 too.
//! - Required fields have to be there, in the JSON mapping too, after occurrences of a message are merged.
//! - An empty binary document is an empty message.

mod build;
mod checks;
mod compare;
mod mapping;
mod path;
mod prescan;
mod reader;
mod required;
mod scalars;
mod set;
mod source;
mod table;
mod tape;
mod wire;

use crate::compare::Comparison;
use crate::definition::{Definition, Document, Format};
use crate::error::SchemaError;
use crate::language::{Language, Validator};
use crate::limits::DOCUMENT_BYTES;
use crate::report::{Report, Violation};

/// The language.
#[derive(Debug, Clone, Copy)]
pub struct Proto;

impl Language for Proto {
    fn compile(&self, definition: &Definition) -> Result<Box<dyn Validator>, SchemaError> {
        let (pool, root) = source::load(definition)?;
        Ok(Box::new(ProtoValidator { table: build::build(&pool, &root, definition.strict)? }))
    }

    fn check(&self, definition: &Definition) -> Result<(), SchemaError> {
        if definition.message.is_some() {
            return self.compile(definition).map(drop);
        }
        build::check(&source::messages(definition)?)
    }

    fn compare(&self, old: &Definition, new: &Definition) -> Result<Comparison, SchemaError> {
        let (old_pool, old_root) = source::load(old)?;
        let (new_pool, new_root) = source::load(new)?;
        // Checks what linking leaves open.
        build::build(&old_pool, &old_root, old.strict)?;
        build::build(&new_pool, &new_root, new.strict)?;
        Ok(compare::compare((&old_root, old.strict), (&new_root, new.strict)))
    }
}

#[derive(Debug)]
struct ProtoValidator {
    table: table::Table,
}

impl Validator for ProtoValidator {
    fn validate(&self, document: Document<'_>) -> Report {
        let bytes = document.bytes;
        let mut report = Report::default();
        if bytes.len() > DOCUMENT_BYTES {
            let message = format!("the document has {} bytes, more than {DOCUMENT_BYTES}", bytes.len());
            return Report::of(Violation::new("", message));
        }
        match document.format {
            Format::Protobuf => {
                wire::validate(&self.table, bytes, &mut report);
                required::validate(&self.table, bytes, &mut report);
            }
            Format::Json => mapping::validate(&self.table, bytes, &mut report),
            Format::Xml => {
                let message = "Protocol Buffers are sent in binary or as JSON, not as XML";
                report.add(|| Violation::new("", message));
            }
        }
        report
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.table.size()
    }
}

#[cfg(test)]
mod tests;
