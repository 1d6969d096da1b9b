//! The text of a schema: read, checked and compiled step by step, with the position of what is wrong.

use jsonschema::PatternOptions;
use serde_json::Value;

use super::bounds;
use super::dialect::Dialect;
use super::graph::{Graph, Problem, push_segment};
use super::keywords;
use super::node::Metered;
use super::number::is_exact;
use super::tree::{Cursor, Fault, Kind, Tree, clip};
use super::validator::{Compiled, guarded};
use crate::definition::Definition;
use crate::error::{Position, SchemaError};
use crate::limits::SCHEMA_BYTES;

/// The most memory of a compiled pattern, and of the states that matching with it caches.
const PATTERN_BYTES: usize = 32 << 20;
pub(super) const CACHE_BYTES: usize = 1 << 20;
/// The longest `$id` once it is resolved, in bytes, and how long all of them are together.
const MAX_IDENTIFIER: usize = 4 << 10;
const MAX_IDENTIFIERS: usize = 256 << 10;
/// Keywords whose numbers are compared.
const COMPARED: [&str; 7] =
    ["const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// A schema that was read.
#[derive(Debug)]
pub(super) struct Source<'t> {
    tree: Tree<'t>,
    pub(super) value: Value,
    pub(super) dialect: Dialect,
}

impl<'t> Source<'t> {
    /// Reads a schema. Whether it is a valid one is not checked here.
    pub(super) fn read(content: &'t str) -> Result<Self, SchemaError> {
        if content.len() > SCHEMA_BYTES {
            let message = format!("the schema has {} bytes, at most {SCHEMA_BYTES} are allowed", content.len());
            return Err(SchemaError::new(message));
        }
        let tree = Tree::read(content).map_err(|Fault { message, at }| {
            SchemaError::at(format!("the schema is not valid JSON: {message}"), Position::of(content, at))
        })?;
        let value: Value = serde_json::from_str(content).map_err(|error| {
            let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            let position = Position { line: number(error.line()), column: number(error.column()) };
            SchemaError::at(format!("the schema is not valid JSON: {error}"), position)
        })?;
        if !value.is_object() && !value.is_boolean() {
            let message = "the schema is neither an object nor `true` or `false`";
            return Err(SchemaError::at(message, Position::of(content, tree.root().entry().start as usize)));
        }
        let mut source = Self { tree, value, dialect: Dialect::Draft7 };
        source.dialect =
            Dialect::of(&source.value).map_err(|message| source.error(&Problem::new("/$schema", message)))?;
        Ok(source)
    }

    /// A problem with the position of what it points to.
    pub(super) fn error(&self, problem: &Problem) -> SchemaError {
        let start = self.find(&problem.pointer).map_or(0, |found| found.entry().start as usize);
        let position = Position::of(self.tree.text, start);
        match problem.pointer.as_str() {
            "" => SchemaError::at(problem.message.clone(), position),
            pointer => SchemaError::at(format!("{pointer}: {}", problem.message), position),
        }
    }

    /// Finds the schemas in a schema, and checks it against the metaschema.
    pub(super) fn check(&self) -> Result<Graph<'_>, SchemaError> {
        check_identifiers(&self.value, 0, &mut 0).map_err(|message| self.error(&Problem::new("", message)))?;
        let graph = guarded(|| Graph::build(&self.value, self.dialect));
        let graph =
            graph.ok_or_else(|| SchemaError::new("the schema cannot be checked: its references cannot be read"))?;
        let graph = graph.map_err(|problem| self.error(&problem))?;
        let fault = guarded(|| self.dialect.fault(&self.value));
        let fault = fault.ok_or_else(|| SchemaError::new("the schema cannot be checked: the compiler failed"))?;
        if let Some(problem) = fault {
            return Err(self.error(&problem));
        }
        self.check_numbers(&graph).map_err(|problem| self.error(&problem))?;
        Ok(graph)
    }

    /// Compiles a schema.
    pub(super) fn compile(&self, strict: bool) -> Result<Compiled, SchemaError> {
        let graph = self.check()?;
        let costs = bounds::check(&graph, strict).map_err(|problem| self.error(&problem))?;
        let built = guarded(|| {
            let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(CACHE_BYTES);
            let options = jsonschema::options_for::<Metered>().offline();
            let options = options.with_draft(self.dialect.draft()).should_validate_formats(strict);
            keywords::register(options.with_pattern_options(patterns)).build(&self.value)
        });
        let built = built.ok_or_else(|| SchemaError::new("the schema cannot be compiled: the compiler failed"))?;
        let validator = built.map_err(|error| {
            let (instance, schema) = (error.instance_path().as_str(), error.schema_path().as_str());
            let pointer = if instance.is_empty() { schema } else { instance };
            self.error(&Problem::new(pointer, clip_message(&error.to_string())))
        })?;
        Ok(Compiled { validator, costs, size: graph.totals.size(self.tree.text.len()) })
    }

    /// Refuses numbers that would not be compared as they are written.
    fn check_numbers(&self, graph: &Graph<'_>) -> Result<(), Problem> {
        let inexact = |from: u32, to: u32| {
            let entries = &self.tree.entries[from as usize..to as usize];
            let found = entries.iter().zip(from..).find(|(entry, at)| {
                entry.kind == Kind::Number && !is_exact(Cursor { tree: &self.tree, at: *at }.source())
            });
            found.map(|(_, at)| Cursor { tree: &self.tree, at })
        };
        if inexact(0, self.tree.root().entry().next).is_none() {
            return Ok(());
        }
        for (at, schema) in graph.schemas.iter().enumerate() {
            for keyword in COMPARED {
                if schema.value.get(keyword).is_none() {
                    continue;
                }
                let mut pointer = graph.pointer(at);
                push_segment(&mut pointer, keyword);
                let Some(value) = self.find(&pointer) else { continue };
                if let Some(number) = inexact(value.at, value.entry().next) {
                    let number = clip(number.source(), 60);
                    let message =
                        format!("the number {number} has too many digits to be compared exactly: use at most 15");
                    return Err(Problem::new(pointer, message));
                }
            }
        }
        Ok(())
    }

    /// The value at a JSON pointer.
    fn find(&self, pointer: &str) -> Option<Cursor<'_>> {
        pointer.split('/').skip(1).try_fold(self.tree.root(), |cursor, segment| match cursor.entry().kind {
            Kind::Object => cursor.get_member(&segment.replace("~1", "/").replace("~0", "~")),
            Kind::Array => segment.parse().ok().and_then(|index| cursor.items().nth(index)),
            _ => None,
        })
    }
}

/// Bounds the `$id`s of a schema. Each one within another is resolved against it, and so is each reference: that makes
/// copies. A value is at most [`DEPTH`](crate::limits::DEPTH) deep.
fn check_identifiers(value: &Value, base: usize, total: &mut usize) -> Result<(), String> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| check_identifiers(item, base, total)),
        Value::Object(members) => {
            let id = members.get("$id").and_then(Value::as_str).map_or(0, str::len);
            let base = base + id;
            if id > 0 {
                *total += base + 64;
            }
            if base > MAX_IDENTIFIER || *total > MAX_IDENTIFIERS {
                return Err(format!(
                    "the `$id`s are too long: one resolved against those around it may have {MAX_IDENTIFIER} bytes, and \
                     all of them {MAX_IDENTIFIERS}"
                ));
            }
            members.values().try_for_each(|member| check_identifiers(member, base, total))
        }
        _ => Ok(()),
    }
}

/// Reads and compiles a schema.
pub(super) fn compile(definition: &Definition) -> Result<Compiled, SchemaError> {
    Source::read(&definition.content)?.compile(definition.strict)
}

/// The message of an error, shortened.
pub(super) fn clip_message(message: &str) -> String {
    match message.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.into(),
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
