//! JSON data with an index, so that any number of pointers are looked up without reading the data again.
//!
//! One pass writes a node of 12 bytes per value. The children of an array or object stand side by side, those of a large
//! object in the order of their names, so that a step of a pointer is one access or a binary search: thousands of
//! subscriptions that look into data of a megabyte cost thousands of such steps. Values stay in the text. (Walking
//! `RawValue`s along each pointer reads the data once per filter and level; `serde_json::Value` loses digits of numbers
//! and takes several times the memory.)

#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use serde_json::value::RawValue;

use super::number::Number;

/// Members of an object from which on they are in the order of their names.
const SORTED: usize = 9;
/// Bytes of a number from which on it is read once for all look-ups.
const LONG_NUMBER: usize = 64;

/// Data and their index.
#[derive(Debug)]
pub(super) struct Document<'t> {
    text: &'t str,
    whole: Node,
    nodes: Vec<Node>,
    /// Strings whose text has escapes.
    decoded: Vec<Box<str>>,
    numbers: Vec<Number<'t>>,
}

/// A value, or the name of a member: its kind and two numbers that depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node {
    kind: Kind,
    a: u32,
    b: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Null,
    False,
    True,
    /// From byte `a` to `b` of the text.
    Number,
    /// The number `a` of the long ones.
    LongNumber,
    /// From byte `a` to `b` of the text.
    Text,
    /// The string `a` of the decoded ones.
    Decoded,
    /// Half a surrogate pair: a string of JSON, and no text.
    Unreadable,
    /// `b` values from node `a` on.
    Array,
    /// `b` names, each with its value behind it, from node `a` on.
    Object,
}

/// A value as far as filters look into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Json<'v> {
    Null,
    Boolean(bool),
    Number(Number<'v>),
    Text(&'v str),
    Unreadable,
    Array,
    Object,
}

/// What is read while the index is written.
struct Scan<'t> {
    document: Document<'t>,
    /// The values that are complete and whose array or object is not.
    waiting: Vec<Node>,
    /// The open arrays and objects: where their children begin among those that wait.
    open: Vec<(Kind, usize)>,
}

impl<'t> Document<'t> {
    /// Indexes data. `None` when there are more than the 4 GiB that the index can address.
    pub(super) fn index(json: &'t RawValue) -> Option<Self> {
        let text = json.get();
        u32::try_from(text.len()).ok()?;
        let whole = Node { kind: Kind::Null, a: 0, b: 0 };
        let document = Self { text, whole, nodes: Vec::new(), decoded: Vec::new(), numbers: Vec::new() };
        let mut scan = Scan { document, waiting: Vec::new(), open: Vec::new() };
        let mut at = 0;
        while let Some(byte) = text.as_bytes().get(at) {
            at = scan.step(*byte, at)?;
        }
        Some(Self { whole: scan.waiting.pop()?, ..scan.document })
    }

    pub(super) fn whole(&self) -> Node {
        self.whole
    }

    /// The value that a pointer's tokens lead to. Of members with one name the last one counts.
    pub(super) fn find(&self, tokens: &[Box<str>]) -> Option<Node> {
        tokens.iter().try_fold(self.whole, |node, token| self.child(node, token))
    }

    pub(super) fn value(&self, node: Node) -> Json<'_> {
        match node.kind {
            Kind::Null => Json::Null,
            Kind::False => Json::Boolean(false),
            Kind::True => Json::Boolean(true),
            Kind::Number => self.span(node).and_then(Number::parse).map_or(Json::Unreadable, Json::Number),
            Kind::LongNumber => self.numbers.get(node.a as usize).cloned().map_or(Json::Unreadable, Json::Number),
            Kind::Text | Kind::Decoded | Kind::Unreadable => self.text(node).map_or(Json::Unreadable, Json::Text),
            Kind::Array => Json::Array,
            Kind::Object => Json::Object,
        }
    }

    /// The values of an array; none of anything else.
    pub(super) fn items(&self, node: Node) -> &[Node] {
        if node.kind == Kind::Array { self.children(node, node.b) } else { &[] }
    }

    /// The members of an object, those with unreadable names included; none of anything else.
    pub(super) fn members(&self, node: Node) -> impl Iterator<Item = (Option<&str>, Node)> {
        self.pairs(node).iter().map(|[name, value]| (self.text(*name), *value))
    }

    fn pairs(&self, node: Node) -> &[[Node; 2]] {
        let nodes = if node.kind == Kind::Object { self.children(node, node.b.saturating_mul(2)) } else { &[] };
        nodes.as_chunks().0
    }

    fn children(&self, node: Node, count: u32) -> &[Node] {
        let first = node.a as usize;
        self.nodes.get(first..first.saturating_add(count as usize)).unwrap_or_default()
    }

    fn child(&self, node: Node, token: &str) -> Option<Node> {
        if node.kind == Kind::Array {
            let is_index = token == "0" || !token.starts_with(['0', '+']);
            return self.items(node).get(token.parse::<usize>().ok().filter(|_| is_index)?).copied();
        }
        let pairs = self.pairs(node);
        let found = if pairs.len() < SORTED {
            pairs.iter().rfind(|[name, _]| self.text(*name) == Some(token))
        } else {
            let behind = pairs.partition_point(|[name, _]| self.text(*name) <= Some(token));
            pairs.get(behind.checked_sub(1)?).filter(|[name, _]| self.text(*name) == Some(token))
        };
        found.map(|[_, value]| *value)
    }

    fn span(&self, node: Node) -> Option<&'t str> {
        self.text.get(node.a as usize..node.b as usize)
    }

    fn text(&self, node: Node) -> Option<&str> {
        match node.kind {
            Kind::Text => self.span(node),
            Kind::Decoded => self.decoded.get(node.a as usize).map(AsRef::as_ref),
            _ => None,
        }
    }
}

impl Scan<'_> {
    /// Reads what begins with this byte. Where it ends; `None` for what no JSON begins with.
    fn step(&mut self, byte: u8, at: usize) -> Option<usize> {
        let (kind, length) = match byte {
            b' ' | b'\n' | b'\r' | b'\t' | b',' | b':' => return Some(at + 1),
            b'[' | b'{' => {
                let kind = if byte == b'[' { Kind::Array } else { Kind::Object };
                self.open.push((kind, self.waiting.len()));
                return Some(at + 1);
            }
            b']' | b'}' => {
                self.close()?;
                return Some(at + 1);
            }
            b'"' => return self.string(at),
            b'-' | b'0'..=b'9' => return self.number(at),
            b'n' => (Kind::Null, 4),
            b't' => (Kind::True, 4),
            b'f' => (Kind::False, 5),
            _ => return None,
        };
        self.waiting.push(Node { kind, a: 0, b: 0 });
        Some(at + length)
    }

    /// Moves the children of the array or object that ends here to where they stay.
    fn close(&mut self) -> Option<()> {
        let (kind, from) = self.open.pop()?;
        let count = self.waiting.len().checked_sub(from)?;
        let first = u32::try_from(self.document.nodes.len()).ok()?;
        let count = if kind == Kind::Object { count / 2 } else { count };
        if kind == Kind::Object && count >= SORTED {
            let document = &self.document;
            let by_name = |[one, _]: &[Node; 2], [other, _]: &[Node; 2]| -> Ordering {
                document.text(*one).cmp(&document.text(*other))
            };
            self.waiting.get_mut(from..)?.as_chunks_mut().0.sort_by(by_name);
        }
        if self.open.is_empty() {
            // The last ones: no more room than they need.
            self.document.nodes.reserve_exact(self.waiting.len());
        }
        self.document.nodes.extend(self.waiting.drain(from..));
        self.waiting.push(Node { kind, a: first, b: u32::try_from(count).ok()? });
        Some(())
    }

    fn string(&mut self, at: usize) -> Option<usize> {
        let mut escaped = false;
        let mut end = at + 1;
        loop {
            match self.document.text.as_bytes().get(end)? {
                b'"' => break,
                b'\\' => {
                    escaped = true;
                    end += 2;
                }
                _ => end += 1,
            }
        }
        let node = if escaped {
            match serde_json::from_str::<Box<str>>(self.document.text.get(at..=end)?) {
                Ok(text) => {
                    self.document.decoded.push(text);
                    Node { kind: Kind::Decoded, a: last(self.document.decoded.len())?, b: 0 }
                }
                Err(_) => Node { kind: Kind::Unreadable, a: 0, b: 0 },
            }
        } else {
            Node { kind: Kind::Text, a: u32::try_from(at + 1).ok()?, b: u32::try_from(end).ok()? }
        };
        self.waiting.push(node);
        Some(end + 1)
    }

    fn number(&mut self, at: usize) -> Option<usize> {
        let text = self.document.text.get(at..)?;
        let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
        let length = text.bytes().take_while(|byte| is_part(byte)).count();
        let end = at + length;
        let node = if length < LONG_NUMBER {
            Node { kind: Kind::Number, a: u32::try_from(at).ok()?, b: u32::try_from(end).ok()? }
        } else {
            self.document.numbers.push(Number::parse(text.get(..length)?)?);
            Node { kind: Kind::LongNumber, a: last(self.document.numbers.len())?, b: 0 }
        };
        self.waiting.push(node);
        Some(end)
    }
}

/// The number of the last one of so many.
fn last(length: usize) -> Option<u32> {
    u32::try_from(length.checked_sub(1)?).ok()
}
