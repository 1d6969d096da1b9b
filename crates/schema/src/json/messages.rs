//! What is wrong with a document, for people: the value that was found, what is expected, and where it is.

use std::collections::HashMap;
use std::fmt::Write;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::json::JsonNumber;
use jsonschema::{JsonType, JsonTypeSet, ValidationError};
use serde_json::Value;

use super::number::Number;
use super::tree::{Cursor, Kind, Tree, clip};
use crate::error::Position;
use crate::report::Violation;

/// The longest message, in characters.
const MAX_MESSAGE: usize = 500;
/// The longest value or name in a message, in characters.
const MAX_VALUE: usize = 100;
/// The most names, values or alternatives in a message.
const MAX_LISTED: usize = 5;
/// How many alternatives within alternatives are explained.
const MAX_NESTED: usize = 2;

/// Finds the values that errors are about.
pub(super) struct Finder<'t> {
    tree: &'t Tree<'t>,
    /// The item that was found last, by array.
    last: HashMap<u32, (usize, u32)>,
}

impl<'t> Finder<'t> {
    pub(super) fn new(tree: &'t Tree<'t>) -> Self {
        Self { tree, last: HashMap::new() }
    }

    /// The violations for some errors, with their positions.
    pub(super) fn violations(&mut self, errors: &[ValidationError<'_>]) -> Vec<Violation> {
        let mut places = Vec::with_capacity(errors.len());
        let mut violations = Vec::with_capacity(errors.len());
        for error in errors {
            let path = error.instance_path().as_str();
            let found = self.find(path);
            places.push(found.entry().start as usize);
            violations.push(Violation::new(path, shorten(self.message(error, found, 0))));
        }
        for (violation, position) in violations.iter_mut().zip(positions(self.tree.text, &places)) {
            violation.position = Some(position);
        }
        violations
    }

    /// The value at a JSON pointer, or the innermost one on the way that exists.
    fn find(&mut self, pointer: &str) -> Cursor<'t> {
        let mut cursor = self.tree.root();
        for segment in pointer.split('/').skip(1) {
            let next = match cursor.entry().kind {
                Kind::Object => cursor.get_member(&segment.replace("~1", "/").replace("~0", "~")),
                Kind::Array => segment.parse().ok().and_then(|index| self.item(cursor, index)),
                _ => None,
            };
            match next {
                Some(next) => cursor = next,
                None => break,
            }
        }
        cursor
    }

    /// An item by its index. Errors come in order, so the search goes on where the last one ended.
    fn item(&mut self, array: Cursor<'t>, index: usize) -> Option<Cursor<'t>> {
        let end = array.entry().next;
        let (mut reached, mut at) = match self.last.get(&array.at) {
            Some((reached, at)) if *reached <= index => (*reached, *at),
            _ => (0, array.at + 1),
        };
        while reached < index && at < end {
            at = self.tree.entries[at as usize].next;
            reached += 1;
        }
        if at >= end {
            return None;
        }
        self.last.insert(array.at, (reached, at));
        Some(Cursor { tree: self.tree, at })
    }

    /// What is wrong with a value.
    fn message(&mut self, error: &ValidationError<'_>, cursor: Cursor<'t>, depth: usize) -> String {
        use ValidationErrorKind as Is;
        let found = found(cursor);
        let count = cursor.entry().count;
        match error.kind() {
            Is::Type { kind } => format!("expected {}, found {}", expected(kind), found_with_type(cursor)),
            Is::Required { property } => format!("the property {} is missing", short(property)),
            Is::AdditionalProperties { unexpected } | Is::UnevaluatedProperties { unexpected } => {
                let noun = if unexpected.len() == 1 { "property" } else { "properties" };
                let verb = if unexpected.len() == 1 { "is" } else { "are" };
                format!("the {noun} {} {verb} not allowed", list(unexpected.iter().map(|name| clip(name, MAX_VALUE))))
            }
            Is::AdditionalItems { limit } => format!("the array has {count} items, at most {limit} are allowed"),
            Is::UnevaluatedItems { .. } => "the array has items that are not allowed".into(),
            Is::MinItems { limit } => format!("the array has {count} items, expected at least {limit}"),
            Is::MaxItems { limit } => format!("the array has {count} items, expected at most {limit}"),
            Is::MinProperties { limit } => format!("the object has {count} properties, expected at least {limit}"),
            Is::MaxProperties { limit } => format!("the object has {count} properties, expected at most {limit}"),
            Is::MinLength { limit } => format!("{found} has {} characters, expected at least {limit}", length(cursor)),
            Is::MaxLength { limit } => format!("{found} has {} characters, expected at most {limit}", length(cursor)),
            Is::Pattern { pattern } => format!("{found} does not match the pattern {}", clip_plain(pattern)),
            Is::Format { format } => format!("{found} is no valid {}", clip_plain(format)),
            Is::Constant { expected_value } => format!("expected {}, found {found}", short(expected_value)),
            Is::Enum { options } => {
                let options = options.as_array().map(Vec::as_slice).unwrap_or_default();
                format!("expected one of {}, found {found}", list(options.iter().map(short)))
            }
            Is::Custom { message, .. } => format!("expected {message}, found {found}"),
            Is::FalseSchema => format!("no value is allowed here, found {found}"),
            Is::Not { .. } => format!("{found} matches the schema in `not`, which it must not"),
            Is::Contains => "the array does not contain as many of the items of `contains` as it has to".into(),
            Is::UniqueItems => "items of the array are equal, all have to differ".into(),
            Is::PropertyNames { error } => self.bad_name(error, depth),
            Is::OneOfMultipleValid { .. } => format!("{found} matches more than one of the alternatives of `oneOf`"),
            Is::OneOfNotValid { context } => self.no_alternative("oneOf", context, cursor, depth),
            Is::AnyOf { context } => self.no_alternative("anyOf", context, cursor, depth),
            Is::ContentEncoding { content_encoding } => {
                format!("{found} is not encoded as {}", clip_plain(content_encoding))
            }
            Is::ContentMediaType { content_media_type } => format!("{found} is no {}", clip_plain(content_media_type)),
            other => format!("{found} does not satisfy `{}`", other.keyword()),
        }
    }

    /// What is wrong with the name of a property.
    fn bad_name(&mut self, error: &ValidationError<'_>, depth: usize) -> String {
        let mut name = Tree::default();
        name.set_string(error.instance().as_str().unwrap_or_default());
        let message = Finder::new(&name).message(error, name.root(), depth + 1);
        format!("the name of a property is not allowed: {message}")
    }

    /// Why none of the alternatives matches.
    fn no_alternative(
        &mut self,
        keyword: &str,
        context: &[Vec<ValidationError<'static>>],
        cursor: Cursor<'t>,
        depth: usize,
    ) -> String {
        let mut message =
            format!("{} matches none of the {} alternatives of `{keyword}`", found(cursor), context.len());
        if depth >= MAX_NESTED {
            return message;
        }
        for (index, errors) in context.iter().enumerate().take(MAX_LISTED) {
            let Some(first) = errors.first() else { continue };
            let at = self.find(first.instance_path().as_str());
            let why = self.message(first, at, depth + 1);
            let place = if at.at == cursor.at { String::new() } else { format!("{}: ", first.instance_path()) };
            let separator = if index == 0 { ":" } else { ";" };
            let _ = write!(message, "{separator} {}. {place}{why}", index + 1);
        }
        message
    }
}

fn shorten(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE) {
        message.truncate(end);
        message.push('…');
    }
    message
}

/// A value in a message.
fn found(cursor: Cursor<'_>) -> String {
    let entry = cursor.entry();
    match entry.kind {
        Kind::Array if entry.count == 1 => "an array of 1 item".into(),
        Kind::Array => format!("an array of {} items", entry.count),
        Kind::Object if entry.count == 1 => "an object of 1 property".into(),
        Kind::Object => format!("an object of {} properties", entry.count),
        Kind::String => clip(cursor.tree.string(cursor.at), MAX_VALUE),
        _ => clip_plain(cursor.source()),
    }
}

fn found_with_type(cursor: Cursor<'_>) -> String {
    match cursor.entry().kind {
        Kind::String => format!("the string {}", found(cursor)),
        Kind::Number if (Number { text: cursor.source() }).is_integer() => format!("the integer {}", found(cursor)),
        Kind::Number => format!("the number {}", found(cursor)),
        _ => found(cursor),
    }
}

fn length(cursor: Cursor<'_>) -> usize {
    if cursor.entry().kind == Kind::String { cursor.tree.string(cursor.at).chars().count() } else { 0 }
}

fn expected(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Single(one) => with_article(*one).into(),
        TypeKind::Multiple(all) => all_of(*all),
    }
}

fn all_of(all: JsonTypeSet) -> String {
    let words: Vec<_> = all.iter().map(with_article).collect();
    words.join(" or ")
}

fn with_article(one: JsonType) -> &'static str {
    match one {
        JsonType::Null => "null",
        JsonType::Boolean => "true or false",
        JsonType::Integer => "an integer",
        JsonType::Number => "a number",
        JsonType::String => "a string",
        JsonType::Array => "an array",
        JsonType::Object => "an object",
    }
}

/// The first of some words, and how many there are besides.
fn list(words: impl ExactSizeIterator<Item = String>) -> String {
    let more = words.len().saturating_sub(MAX_LISTED);
    let mut text = words.take(MAX_LISTED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// A value of a schema.
fn short(value: &Value) -> String {
    match value {
        Value::String(text) => clip(text, MAX_VALUE),
        Value::Array(items) => format!("a certain array of {} items", items.len()),
        Value::Object(members) => format!("a certain object of {} properties", members.len()),
        other => other.to_string(),
    }
}

/// A text without quotes, shortened.
fn clip_plain(text: &str) -> String {
    match text.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}

/// The positions of some bytes, in one pass.
pub(super) fn positions(text: &str, places: &[usize]) -> Vec<Position> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_unstable_by_key(|index| places[*index]);
    let mut all = vec![Position { line: 1, column: 1 }; places.len()];
    let (mut line, mut column, mut at) = (1, 1, 0);
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    for index in order {
        let passed = text.get(at..places[index]).unwrap_or_default();
        match passed.rsplit_once('\n') {
            Some((before, last)) => {
                line += before.matches('\n').count() + 1;
                column = last.chars().count() + 1;
            }
            None => column += passed.chars().count(),
        }
        at = places[index];
        all[index] = Position { line: number(line), column: number(column) };
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_of_the_shared_count() {
        let text = "ä{\n  \"b\": 1,\n\n\"c\": \"ü\"}\n";
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).rev().collect();
        let expected: Vec<Position> = places.iter().map(|at| Position::of(text, *at)).collect();
        assert_eq!(positions(text, &places), expected);
    }
}
