//! Reads YAML, of which JSON is a part.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

use crate::exact;

/// The largest file, in bytes.
const MAX_BYTES: usize = 16 << 20;
/// The deepest nesting.
const MAX_DEPTH: usize = 100;
/// The most nodes of a file, with those that aliases stand for.
const MAX_NODES: usize = 500_000;

/// A node and where it begins.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) content: Content,
}

/// What a node is.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// A text; a plain one (without quotes) may stand for a number, a truth value or nothing.
    Scalar { text: String, is_plain: bool },
    /// A list.
    List(Vec<Node>),
    /// Fields in their order, each with its line.
    Fields(Vec<(String, usize, Node)>),
}

/// What is being read: an open list, or open fields with the key whose value is awaited.
enum Open {
    List { line: usize, anchor: usize, items: Vec<Node> },
    Fields { line: usize, anchor: usize, fields: Vec<(String, usize, Node)>, key: Option<(String, usize)> },
}

/// A file that cannot be read: the line, and why.
type Refusal = (usize, String);

/// The documents of a text; empty ones are left out.
///
/// # Errors
/// The line, and what is wrong with it.
pub(crate) fn documents(text: &str) -> Result<Vec<Node>, Refusal> {
    if text.len() > MAX_BYTES {
        return Err((1, format!("it has more than {} MiB: use several files", MAX_BYTES >> 20)));
    }
    let mut reader = Reader { left: MAX_NODES, ..Reader::default() };
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| (error.marker().line(), error.info().to_owned()))?;
        reader.take(event, span.start.line())?;
    }
    let is_something =
        |node: &Node| !matches!(&node.content, Content::Scalar { text, is_plain: true } if is_null(text));
    Ok(reader.documents.into_iter().filter(is_something).collect())
}

#[derive(Default)]
struct Reader {
    documents: Vec<Node>,
    open: Vec<Open>,
    anchors: HashMap<usize, (Node, usize)>,
    /// Nodes that may still come.
    left: usize,
}

impl Reader {
    fn take(&mut self, event: Event<'_>, line: usize) -> Result<(), Refusal> {
        match event {
            Event::DocumentStart(_) => {
                self.anchors.clear();
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let is_text = |tag: &saphyr_parser::Tag| tag.is_yaml_core_schema() && tag.suffix == "str";
                if let Some(tag) = tag.as_ref().filter(|tag| !is_text(tag)) {
                    return Err((line, format!("the tag {}{} is not supported: leave it out", tag.handle, tag.suffix)));
                }
                let is_plain = style == ScalarStyle::Plain && tag.is_none();
                let node = Node { line, content: Content::Scalar { text: text.into_owned(), is_plain } };
                self.close(node, anchor)
            }
            Event::SequenceStart(anchor, _) => self.push(Open::List { line, anchor, items: Vec::new() }),
            Event::MappingStart(anchor, _) => self.push(Open::Fields { line, anchor, fields: Vec::new(), key: None }),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List { line, anchor, items }) => {
                    self.close(Node { line, content: Content::List(items) }, anchor)
                }
                Some(Open::Fields { line, anchor, fields, .. }) => {
                    self.close(Node { line, content: Content::Fields(fields) }, anchor)
                }
                None => Err((line, "a list or a map ends that did not begin".into())),
            },
            Event::Alias(anchor) => {
                let unknown = || (line, "an alias names an anchor that is not there, or that is still open".to_owned());
                let (node, size) = self.anchors.get(&anchor).cloned().ok_or_else(unknown)?;
                // One is counted when the node is put into its place.
                self.count(size.saturating_sub(1), line)?;
                self.close(node, 0)
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn push(&mut self, open: Open) -> Result<(), Refusal> {
        let (Open::List { line, .. } | Open::Fields { line, .. }) = open;
        if self.open.len() >= MAX_DEPTH {
            return Err((line, format!("it is nested more than {MAX_DEPTH} deep")));
        }
        self.open.push(open);
        Ok(())
    }

    fn count(&mut self, nodes: usize, line: usize) -> Result<(), Refusal> {
        let too_many = || (line, format!("it has more than {MAX_NODES} values, with those that aliases stand for"));
        self.left = self.left.checked_sub(nodes).ok_or_else(too_many)?;
        Ok(())
    }

    /// Puts a node that is complete into its place.
    fn close(&mut self, node: Node, anchor: usize) -> Result<(), Refusal> {
        self.count(1, node.line)?;
        if anchor > 0 {
            let size = node.size();
            self.count(size, node.line)?;
            self.anchors.insert(anchor, (node.clone(), size));
        }
        match self.open.last_mut() {
            None => self.documents.push(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Fields { fields, key, .. }) => match key.take() {
                Some((name, line)) => fields.push((name, line, node)),
                None => {
                    let Content::Scalar { text, .. } = node.content else {
                        return Err((node.line, "a key must be a text".into()));
                    };
                    if let Some((_, first, _)) = fields.iter().find(|(name, ..)| *name == text) {
                        return Err((node.line, format!("{text:?} is there twice: first in line {first}")));
                    }
                    *key = Some((text, node.line));
                }
            },
        }
        Ok(())
    }
}

impl Node {
    fn size(&self) -> usize {
        match &self.content {
            Content::Scalar { .. } => 1,
            Content::List(items) => items.iter().fold(1, |sum, item| sum.saturating_add(item.size())),
            Content::Fields(fields) => fields.iter().fold(1, |sum, field| sum.saturating_add(field.2.size())),
        }
    }

    /// Whether it stands for nothing.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.content, Content::Scalar { text, is_plain: true } if is_null(text))
    }

    /// The value by the rules of YAML's core schema.
    ///
    /// # Errors
    /// The line of a name that is kept for other things.
    pub(crate) fn value(&self) -> Result<Value, Refusal> {
        match &self.content {
            Content::Scalar { text, is_plain: false } => Ok(Value::String(text.clone())),
            Content::Scalar { text, is_plain: true } => Ok(plain(text)),
            Content::List(items) => items.iter().map(Self::value).collect::<Result<Vec<_>, _>>().map(Value::Array),
            Content::Fields(fields) => {
                let read = |(name, line, node): &(String, usize, Self)| match name == exact::TOKEN {
                    true => Err((*line, format!("the name {name} is kept for other things"))),
                    false => Ok((name.clone(), node.value()?)),
                };
                fields.iter().map(read).collect::<Result<Map<_, _>, _>>().map(Value::Object)
            }
        }
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// A scalar without quotes.
fn plain(text: &str) -> Value {
    match text {
        _ if is_null(text) => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_number = digits.bytes().next().is_some_and(|first| first.is_ascii_digit() || first == b'.')
        && digits.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte))
        && digits.bytes().any(|byte| byte.is_ascii_digit());
    if !is_number {
        return Value::String(text.to_owned());
    }
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if let Ok(number) = unsigned.parse::<i64>() {
        return number.into();
    }
    if let Ok(number) = unsigned.parse::<u64>() {
        return number.into();
    }
    exact::number_of(text).unwrap_or_else(|| text.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn values(text: &str) -> Vec<Value> {
        documents(text).unwrap().iter().map(|node| node.value().unwrap()).collect()
    }

    #[test]
    fn documents_have_their_values_and_lines() {
        let text = "---\n# nothing\n---\na: 1\nb: [x, 'y', \"z\"]\nc:\n  d: null\n---\n{\"e\": 1.5, \"f\": true}\n";
        assert_eq!(
            values(text),
            [json!({ "a": 1, "b": ["x", "y", "z"], "c": { "d": null } }), json!({ "e": 1.5, "f": true })]
        );
        let read = documents(text).unwrap();
        let Content::Fields(fields) = &read[0].content else { panic!("{read:?}") };
        let lines: Vec<_> = fields.iter().map(|(name, line, _)| (name.as_str(), *line)).collect();
        assert_eq!(lines, [("a", 4), ("b", 5), ("c", 6)]);
        assert!(documents("").unwrap().is_empty());
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        for (text, value) in [
            ("12", json!(12)),
            ("-7", json!(-7)),
            ("1e3", json!(1000.0)),
            ("18446744073709551615", json!(u64::MAX)),
            ("yes", json!("yes")),
            ("'12'", json!("12")),
            ("!!str 12", json!("12")),
            ("2026-01-01", json!("2026-01-01")),
            ("1.2.3", json!("1.2.3")),
            ("0x", json!("0x")),
            ("~", json!(null)),
            ("\"a\\nb\"", json!("a\nb")),
        ] {
            assert_eq!(values(&format!("a: {text}")), [json!({ "a": value })], "{text}");
        }
        for long in ["99999999999999999999", "0.1234567890123456789", "1e400"] {
            let read = values(&format!("a: {long}"));
            assert_eq!(exact::digits(&read[0]["a"]), Some(long));
        }
        let (line, why) = documents(&format!("a: 1\n\"{}\": x", exact::TOKEN)).unwrap()[0].value().unwrap_err();
        assert!(line == 2 && why.contains("kept for other things"), "{why}");
    }

    #[test]
    fn aliases_are_bounded() {
        assert_eq!(values("a: &x [1]\nb: *x"), [json!({ "a": [1], "b": [1] })]);
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..30 {
            let before = format!("*a{}", level - 1);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", vec![before; 9].join(", ")));
        }
        assert!(documents(&bomb).unwrap_err().1.contains("aliases"));
        assert!(documents("a: &x [*x]").is_err(), "an anchor within itself");
    }

    #[test]
    fn what_is_wrong_says_where() {
        let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
        for (text, line, why) in [
            (deep.as_str(), 1, ""),
            ("a: 1\na: 2", 2, "twice"),
            ("a: 1\n? [b]\n: 2", 2, "key"),
            ("a: !!binary aGk=", 1, "tag"),
            ("a: [1\nb: 2", 2, ""),
        ] {
            let (at, said) = documents(text).unwrap_err();
            assert!(at.abs_diff(line) <= 1 && said.contains(why), "{at}: {said}");
        }
    }
}
