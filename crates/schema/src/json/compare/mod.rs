//! What a new version of a schema does to documents that the last one accepts.
//!
//! The list, for schemas of the same draft. References within the documents are followed on both sides; what is compared
//! is what they lead to. `breaking`, each with its JSON pointer:
//! - a property is newly required, or forbidden; a property of a closed object is removed;
//! - a type is removed or narrowed (`number` to `integer`); a value is removed from `enum`, `const` changes, or one of
//!   them is added;
//! - an object or array that was open is closed or restricted (`additionalProperties`, `items`, `additionalItems`);
//! - a bound is added or tightened: of numbers, lengths, items, properties, `uniqueItems`, `multipleOf`;
//! - `pattern` is added; `format` or `contentEncoding` is added where it is asserted (`format`: in strict mode), or strict
//!   mode begins.
//!
//! `compatible`: the reverse of all these, annotations (`title`, `description`, `default`, `examples`, `$comment`,
//! `deprecated`, `readOnly`, `writeOnly`, unknown keywords), and an **optional property that is added to an open
//! object**. That last one is a decision: documents may have had the property already, with another value. Nobody who
//! reads by the last version knew of it.
//!
//! `cannot tell`: everything else that differs. A changed `pattern` or `format`; whatever is in `not`, `if`, `then`, `else`,
//! `oneOf`, `anyOf`, `dependentSchemas`, `dependentRequired`, `dependencies`, `contains`, `propertyNames` and
//! `unevaluated*`, unless both sides are equal but for annotations; `patternProperties` with other patterns, `allOf` or
//! tuples of another length; a reference on one side where the other has keywords; another draft.
//!
//! The walk is bounded by [`MAX_STEPS`]: pairs of schemas are compared once, and what is left is told as `cannot tell`.

mod bounds;
mod objects;
mod rules;
mod same;

use std::collections::HashSet;

use serde_json::Value;

use self::same::Equality;
use super::bounds as limits;
use super::dialect::Role;
use super::graph::{Graph, push_segment};
use super::source::Source;
use crate::compare::{Comparison, Verdict};
use crate::definition::Definition;
use crate::error::SchemaError;

/// The most steps of comparing: one for each schema and value in what is compared, as often as it is compared. References
/// that go round in circles of different lengths lead to many pairs of the same schemas.
const MAX_STEPS: usize = 75_000;
/// The most changes that are told one by one.
const MAX_CHANGES: usize = 1_000;

/// Compares two versions.
pub(super) fn compare(old: &Definition, new: &Definition) -> Result<Comparison, SchemaError> {
    let (old_source, new_source) = (Source::read(&old.content)?, Source::read(&new.content)?);
    let old_side = Side::new(checked(&old_source, old.strict)?, old.strict);
    let new_side = Side::new(checked(&new_source, new.strict)?, new.strict);
    let mut comparison = Comparison::default();
    // However large they are.
    if old_source.value == new_source.value && old.strict == new.strict {
        return Ok(comparison);
    }
    if old_side.graph.dialect != new_side.graph.dialect {
        let message = "the draft changes: its keywords may mean something else";
        comparison.add(Verdict::CannotTell, "/$schema", message);
        return Ok(comparison);
    }
    if (has_dynamic(&old_side.graph) || has_dynamic(&new_side.graph)) && old_source.value != new_source.value {
        let message = "there are dynamic references: what they lead to depends on all of the schema";
        comparison.add(Verdict::CannotTell, "", message);
    }
    let mut walk = Walk::new(&old_side, &new_side);
    walk.run();
    walk.finish(&mut comparison);
    Ok(comparison)
}

fn checked<'s>(source: &'s Source<'_>, strict: bool) -> Result<Graph<'s>, SchemaError> {
    let graph = source.check()?;
    limits::check(&graph, strict).map_err(|problem| source.error(&problem))?;
    Ok(graph)
}

fn has_dynamic(graph: &Graph<'_>) -> bool {
    graph.schemas.iter().any(|schema| schema.references.iter().any(|(keyword, _)| *keyword != "$ref"))
}

/// One of the two versions.
struct Side<'s> {
    graph: Graph<'s>,
    strict: bool,
    /// The steps that comparing each schema takes, without those in it.
    weights: Vec<usize>,
}

/// The steps that comparing a schema takes, without those in it.
fn weigh(graph: &Graph<'_>, at: usize) -> usize {
    let keywords = graph.schemas[at].value.as_object().into_iter().flatten();
    // What is told of a change is the pointer to it.
    let pointer = graph.pointer(at).len() / 64;
    let values = keywords
        .filter(|(keyword, _)| matches!(graph.dialect.role(keyword), Role::Other | Role::SameMap))
        .map(|(_, value)| size(value));
    1 + pointer + graph.schemas[at].nested.len() * (1 + pointer) + values.sum::<usize>()
}

/// How many values there are in a value, long texts counted as several.
fn size(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Object(members) => 1 + members.iter().map(|(name, value)| name.len() / 64 + size(value)).sum::<usize>(),
        Value::String(text) => 1 + text.len() / 64,
        _ => 1,
    }
}

/// A schema of one side; `None` where none is written, so that everything is valid.
type At = Option<usize>;

impl<'s> Side<'s> {
    fn new(graph: Graph<'s>, strict: bool) -> Self {
        let weights = (0..graph.schemas.len()).map(|at| weigh(&graph, at)).collect();
        Self { graph, strict, weights }
    }

    fn value(&self, at: At) -> &'s Value {
        at.map_or(&Value::Bool(true), |at| self.graph.schemas[at].value)
    }

    /// A keyword of a schema.
    fn keyword(&self, at: usize, keyword: &str) -> Option<&'s Value> {
        self.graph.schemas[at].value.get(keyword)
    }
}

/// Two schemas that are to be compared, and where.
#[derive(Debug)]
struct Pair {
    old: At,
    new: At,
    /// Where, if the new schema does not say.
    path: String,
}

/// A change, before it is counted.
struct Found {
    verdict: Verdict,
    path: String,
    message: String,
}

/// A walk through both versions at once.
struct Walk<'w, 's> {
    old: &'w Side<'s>,
    new: &'w Side<'s>,
    open: Vec<Pair>,
    seen: HashSet<(At, At)>,
    equality: Equality<'w, 's>,
    steps: usize,
    found: Vec<Found>,
    /// The worst of the changes that are not told one by one, and how many there are.
    dropped: Option<(Verdict, usize)>,
}

impl<'w, 's> Walk<'w, 's> {
    fn new(old: &'w Side<'s>, new: &'w Side<'s>) -> Self {
        let equality = Equality::new(old, new);
        let open = vec![Pair { old: Some(0), new: Some(0), path: String::new() }];
        Self { old, new, open, seen: HashSet::new(), equality, steps: 0, found: Vec::new(), dropped: None }
    }

    fn run(&mut self) {
        while let Some(pair) = self.open.pop() {
            if !self.seen.insert((pair.old, pair.new)) {
                continue;
            }
            let weight = |side: &Side<'_>, at: At| at.map_or(1, |at| side.weights[at]);
            self.steps += weight(self.old, pair.old) + weight(self.new, pair.new);
            if self.steps > MAX_STEPS || self.equality.is_spent() {
                let message = "the schemas are combined in too many ways: the rest is not compared";
                self.tell(Verdict::CannotTell, pair.path, message);
                return;
            }
            let before = self.open.len();
            self.pair(&pair);
            // The last one in is the first one out; changes are told in the order of the schema.
            self.open[before..].reverse();
        }
    }

    /// Notes a change.
    fn tell(&mut self, verdict: Verdict, path: impl Into<String>, message: impl Into<String>) {
        if self.found.len() < MAX_CHANGES {
            self.found.push(Found { verdict, path: path.into(), message: message.into() });
            return;
        }
        let (worst, count) = self.dropped.unwrap_or((verdict, 0));
        self.dropped = Some((worst.max(verdict), count + 1));
    }

    /// Has two schemas compared later.
    fn later(&mut self, old: At, new: At, path: String) {
        self.open.push(Pair { old, new, path });
    }

    fn finish(self, comparison: &mut Comparison) {
        for Found { verdict, path, message } in self.found {
            comparison.add(verdict, path, message);
        }
        if let Some((verdict, count)) = self.dropped {
            comparison.add(verdict, "", format!("{count} more changes"));
        }
    }
}

/// A path with a keyword added.
fn below(path: &str, keyword: &str) -> String {
    let mut path = path.to_string();
    push_segment(&mut path, keyword);
    path
}

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
