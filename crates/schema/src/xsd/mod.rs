//! XML Schema 1.0, compiled and enforced by this crate itself (ADR 0013 says why).
//!
//! Refused at registration: `include`, `redefine`, `notation`, and `import` of any namespace but XML's own. All else is
//! enforced. Nothing is fetched: location hints in documents are passed over, and document types are refused.
//!
//! | module | what it owns |
//! |---|---|
//! | `xml` | reading XML, well-formedness, namespaces |
//! | `regex` | the facet `pattern` |
//! | `value` | the primitive types |
//! | `model` | the components of a compiled schema |
//! | `build` | from a schema's text to its components, with all that a schema must fulfil |
//! | `content` | content models and unique particle attribution |
//! | `validate` | documents |
//! | `compare` | two versions of a schema |

mod bounds;
mod build;
mod compare;
mod content;
mod model;
mod regex;
mod validate;
mod value;
mod xml;

use self::model::Model;
use self::validate::XsdValidator;
use crate::compare::Comparison;
use crate::definition::Definition;
use crate::error::SchemaError;
use crate::language::{Language, Validator};
use crate::limits::SCHEMA_BYTES;

/// XML Schema 1.0.
#[derive(Debug, Clone, Copy)]
pub struct Xsd;

impl Language for Xsd {
    fn compile(&self, definition: &Definition) -> Result<Box<dyn Validator>, SchemaError> {
        Ok(Box::new(XsdValidator::new(build(definition)?)))
    }

    fn compare(&self, old: &Definition, new: &Definition) -> Result<Comparison, SchemaError> {
        Ok(compare::compare(&build(old)?, &build(new)?))
    }
}

fn build(definition: &Definition) -> Result<Model, SchemaError> {
    if definition.message.is_some() {
        return Err(SchemaError::new("a message can be named only for Protocol Buffers"));
    }
    if definition.content.len() > SCHEMA_BYTES {
        return Err(SchemaError::new(format!("the schema is longer than {SCHEMA_BYTES} bytes")));
    }
    build::build(&definition.content)
}
