//! Reads JSON into a flat list of what it contains, with offsets: strict, without recursion, and without copying texts.

use std::borrow::Cow;

use crate::limits::DEPTH;

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Null,
    True,
    False,
    Number,
    /// A string without escapes.
    Plain,
    /// A string with escapes.
    Escaped,
    Array,
    Object,
}

/// A value, or the key of a member.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    pub(super) token: Token,
    pub(super) start: u32,
    pub(super) end: u32,
    /// The index of the node behind this one and all that is within it.
    pub(super) next: u32,
}

/// A JSON document: a value is followed by what is within it, members as a key and a value.
#[derive(Debug)]
pub(super) struct Tape<'d> {
    text: &'d str,
    nodes: Vec<Node>,
}

/// Why a text is no JSON, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) message: String,
    pub(super) at: usize,
}

impl<'d> Tape<'d> {
    pub(super) fn parse(text: &'d str) -> Result<Self, Problem> {
        let tape = Self { text, nodes: Vec::with_capacity(text.len() / 16) };
        let mut parser = Parser { tape, bytes: text.as_bytes(), at: 0, open: Vec::new() };
        parser.document()?;
        Ok(parser.tape)
    }

    pub(super) fn node(&self, index: u32) -> Node {
        self.nodes[index as usize]
    }

    /// The text of a node, as it stands there.
    pub(super) fn raw(&self, index: u32) -> &'d str {
        let node = self.node(index);
        &self.text[node.start as usize..node.end as usize]
    }

    /// What a string says; the text as it is for anything else.
    pub(super) fn string(&self, index: u32) -> Cow<'d, str> {
        let raw = self.raw(index);
        match self.node(index).token {
            Token::Plain => Cow::Borrowed(raw.trim_matches('"')),
            Token::Escaped => serde_json::from_str::<String>(raw).map_or(Cow::Borrowed(raw), Cow::Owned),
            _ => Cow::Borrowed(raw),
        }
    }

    /// The elements of an array, or the keys and values of an object one after the other.
    pub(super) fn inner(&self, index: u32) -> impl Iterator<Item = u32> + '_ {
        let end = self.node(index).next;
        let mut next = index + 1;
        std::iter::from_fn(move || {
            let one = next;
            (one < end).then(|| {
                next = self.node(one).next;
                one
            })
        })
    }

    /// The keys and values of an object.
    pub(super) fn members(&self, index: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut inner = self.inner(index);
        std::iter::from_fn(move || Some((inner.next()?, inner.next()?)))
    }
}

struct Parser<'d> {
    tape: Tape<'d>,
    bytes: &'d [u8],
    at: usize,
    /// The arrays and objects that are not closed yet.
    open: Vec<u32>,
}

impl Parser<'_> {
    fn document(&mut self) -> Result<(), Problem> {
        self.space();
        loop {
            if self.value()? {
                continue;
            }
            loop {
                self.space();
                let Some(&container) = self.open.last() else {
                    return if self.at == self.bytes.len() { Ok(()) } else { self.fail("nothing after the document") };
                };
                let is_object = self.tape.node(container).token == Token::Object;
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        self.space();
                        if is_object {
                            self.key()?;
                        }
                        break;
                    }
                    Some(b'}') if is_object => self.close(),
                    Some(b']') if !is_object => self.close(),
                    _ => return self.fail(if is_object { "',' or '}'" } else { "',' or ']'" }),
                }
            }
        }
    }

    /// Reads a value, and says whether it is an array or an object that is open.
    fn value(&mut self) -> Result<bool, Problem> {
        match self.peek() {
            Some(b'{') => return self.open(Token::Object, b'}'),
            Some(b'[') => return self.open(Token::Array, b']'),
            Some(b'"') => self.string()?,
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.word("true", Token::True)?,
            Some(b'f') => self.word("false", Token::False)?,
            Some(b'n') => self.word("null", Token::Null)?,
            _ => return self.fail("a value"),
        }
        Ok(false)
    }

    fn open(&mut self, token: Token, end: u8) -> Result<bool, Problem> {
        let index = self.tape.nodes.len() as u32;
        self.push(token, self.at, self.at + 1);
        self.open.push(index);
        if self.open.len() > DEPTH {
            return Err(Problem { message: format!("the document is nested deeper than {DEPTH}"), at: self.at });
        }
        self.at += 1;
        self.space();
        if self.peek() == Some(end) {
            self.close();
            return Ok(false);
        }
        if token == Token::Object {
            self.key()?;
        }
        Ok(true)
    }

    fn close(&mut self) {
        self.at += 1;
        let next = self.tape.nodes.len() as u32;
        if let Some(node) = self.open.pop().and_then(|index| self.tape.nodes.get_mut(index as usize)) {
            (node.end, node.next) = (self.at as u32, next);
        }
    }

    fn key(&mut self) -> Result<(), Problem> {
        if self.peek() != Some(b'"') {
            return self.fail("the name of a member in double quotes");
        }
        self.string()?;
        self.space();
        if self.peek() != Some(b':') {
            return self.fail("':'");
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    fn push(&mut self, token: Token, start: usize, end: usize) {
        // Documents are bounded far below 4 GiB.
        let next = self.tape.nodes.len() as u32 + 1;
        self.tape.nodes.push(Node { token, start: start as u32, end: end as u32, next });
    }

    fn string(&mut self) -> Result<(), Problem> {
        let start = self.at;
        let mut token = Token::Plain;
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    token = Token::Escaped;
                    self.escape()?;
                }
                Some(0..0x20) => {
                    return Err(Problem { message: "a control character has to be escaped".into(), at: self.at });
                }
                Some(_) => self.at += 1,
                None => return Err(Problem { message: "the string is not closed".into(), at: start }),
            }
        }
        self.at += 1;
        self.push(token, start, self.at);
        Ok(())
    }

    fn escape(&mut self) -> Result<(), Problem> {
        let at = self.at;
        let invalid = |message: &str| Err(Problem { message: message.into(), at });
        match self.bytes.get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') => {
                let unit = |at: usize| {
                    let digits = self.bytes.get(at + 2..at + 6).filter(|_| self.bytes[at..].starts_with(b"\\u"))?;
                    digits.iter().try_fold(0, |sum, &digit| Some(sum * 16 + char::from(digit).to_digit(16)?))
                };
                match unit(at) {
                    Some(0xd800..0xdc00) => match unit(at + 6) {
                        Some(0xdc00..0xe000) => self.at += 12,
                        _ => return invalid("the first half of a surrogate pair has no second half"),
                    },
                    Some(0xdc00..0xe000) => return invalid("the second half of a surrogate pair has no first half"),
                    Some(_) => self.at += 6,
                    None => return invalid("\\u takes four hexadecimal digits"),
                }
            }
            _ => return invalid("there is no such escape"),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Problem> {
        let start = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits()?;
        }
        self.push(Token::Number, start, self.at);
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Problem> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == start { self.fail("a digit") } else { Ok(()) }
    }

    fn word(&mut self, word: &str, token: Token) -> Result<(), Problem> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return self.fail("a value");
        }
        self.push(token, self.at, self.at + word.len());
        self.at += word.len();
        Ok(())
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn fail<T>(&self, expected: &str) -> Result<T, Problem> {
        let found = match self.tape.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(found) => format!("{found:?}"),
            None => "the end".into(),
        };
        Err(Problem { message: format!("no JSON: expected {expected}, found {found}"), at: self.at })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn problems_say_where() {
        let cases = [
            ("", "no JSON: expected a value, found the end", 0),
            ("{\"a\":1,}", "no JSON: expected the name of a member in double quotes, found '}'", 7),
            ("[1 2]", "no JSON: expected ',' or ']', found '2'", 3),
            ("{\"a\" 1}", "no JSON: expected ':', found '1'", 5),
            ("{} x", "no JSON: expected nothing after the document, found 'x'", 3),
            ("[01]", "no JSON: expected ',' or ']', found '1'", 2),
            ("-", "no JSON: expected a digit, found the end", 1),
            ("[\"\\ud800\"]", "the first half of a surrogate pair has no second half", 2),
            ("\"\\x\"", "there is no such escape", 1),
            ("\"a\nb\"", "a control character has to be escaped", 2),
            ("[\"abc", "the string is not closed", 1),
            ("nul", "no JSON: expected a value, found 'n'", 0),
        ];
        for (text, message, at) in cases {
            assert_eq!(Tape::parse(text).unwrap_err(), Problem { message: message.into(), at }, "{text}");
        }
        assert!(Tape::parse(&"[".repeat(100_000)).unwrap_err().message.contains("deeper than 128"));
        assert!(Tape::parse(&format!("{}{}", "[".repeat(128), "]".repeat(128))).is_ok());
    }

    #[test]
    fn members_and_elements_are_walked() {
        let tape = Tape::parse(r#" {"a": [1, {"x": null}, true], "\u0062": "c\n"} "#).unwrap();
        let members = tape.members(0).collect::<Vec<_>>();
        let names = members.iter().map(|&(key, _)| tape.string(key)).collect::<Vec<_>>();
        assert_eq!(names, ["a", "b"]);
        let elements = tape.inner(members[0].1).map(|index| tape.raw(index)).collect::<Vec<_>>();
        assert_eq!(elements, ["1", "{\"x\": null}", "true"]);
        assert_eq!(tape.string(members[1].1), "c\n");
    }

    proptest! {
        #[test]
        fn what_serde_json_reads_is_read(text in "[\\[\\]{}:,\"\\\\u0-9a-f.eE+ tn-]{0,24}") {
            // Numbers out of range are this side's caller's business.
            let theirs = serde_json::from_str::<serde_json::Value>(&text);
            let is_out_of_range = theirs.as_ref().is_err_and(|error| error.to_string().contains("out of range"));
            prop_assert!(is_out_of_range || Tape::parse(&text).is_ok() == theirs.is_ok(), "{}", text);
        }
    }
}
