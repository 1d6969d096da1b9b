//! Tests of the language as its callers see it.

mod changes;
mod documents;
mod schemas;

use super::Proto;
use crate::definition::Definition;
use crate::error::SchemaError;
use crate::language::{Language as _, Validator};

fn definition(content: &str) -> Definition {
    Definition { content: content.into(), message: None, strict: false }
}

fn compile(content: &str) -> Result<Box<dyn Validator>, SchemaError> {
    Proto.compile(&definition(content))
}
