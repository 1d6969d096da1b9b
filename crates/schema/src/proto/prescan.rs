//! A look at a `.proto` text before it is parsed, so that the parser only sees what is bounded: how deep brackets are
//! nested, how many statements there are, how long names are, and whether comments and strings end. Grammar is the parser's business.

use crate::error::{Position, SchemaError};
use crate::limits::{PROTO_BRACKETS, PROTO_ITEMS};

/// The longest word: a part of a name, or a number.
const WORD_BYTES: usize = 255;
/// The most statements: parts may be followed by empty ones.
const STATEMENTS: usize = 2 * PROTO_ITEMS;

struct Scan<'t> {
    text: &'t str,
    bytes: &'t [u8],
    at: usize,
    depth: usize,
    /// Whether a statement starts here.
    at_statement: bool,
    packages: usize,
    statements: usize,
}

/// Checks that a text is bounded.
pub(super) fn check(text: &str) -> Result<(), SchemaError> {
    let mut scan =
        Scan { text, bytes: text.as_bytes(), at: 0, depth: 0, at_statement: true, packages: 0, statements: 0 };
    while scan.at < scan.bytes.len() {
        scan.token()?;
    }
    Ok(())
}

impl Scan<'_> {
    fn token(&mut self) -> Result<(), SchemaError> {
        match (self.bytes[self.at], self.bytes.get(self.at + 1)) {
            (b'/', Some(b'/')) => self.line(),
            (b'/', Some(b'*')) => return self.block_comment(),
            // A comment within aggregate values; a syntax error anywhere else.
            (b'#', _) => self.line(),
            (quote @ (b'"' | b'\''), _) => return self.string(quote),
            (byte, _) if byte.is_ascii_alphanumeric() || byte == b'_' => return self.word(),
            (byte, _) => return self.punctuation(byte),
        }
        Ok(())
    }

    fn punctuation(&mut self, byte: u8) -> Result<(), SchemaError> {
        match byte {
            b'{' | b'[' | b'(' | b'<' => {
                self.depth += 1;
                if self.depth > PROTO_BRACKETS {
                    return Err(self.error(self.at, format!("brackets are nested deeper than {PROTO_BRACKETS}")));
                }
            }
            b'}' | b']' | b')' | b'>' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        if !byte.is_ascii_whitespace() {
            self.at_statement = matches!(byte, b';' | b'{' | b'}');
        }
        self.statements += usize::from(matches!(byte, b';' | b'{'));
        if self.statements > STATEMENTS {
            return Err(self.error(self.at, format!("the schema has more than {STATEMENTS} statements")));
        }
        self.at += 1;
        Ok(())
    }

    fn line(&mut self) {
        let rest = &self.bytes[self.at..];
        self.at += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
    }

    fn block_comment(&mut self) -> Result<(), SchemaError> {
        let end = self.text[self.at + 2..].find("*/");
        let end = end.ok_or_else(|| self.error(self.at, "the comment is not closed: add */"))?;
        self.at += 2 + end + 2;
        Ok(())
    }

    fn string(&mut self, quote: u8) -> Result<(), SchemaError> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.bytes.get(self.at) {
                None | Some(b'\n') => return Err(self.error(start, "the string is not closed on its line")),
                // A line break after a backslash ends the string as well.
                Some(b'\\') if self.bytes.get(self.at + 1) != Some(&b'\n') => self.at += 2,
                Some(&byte) => {
                    self.at += 1;
                    if byte == quote {
                        break;
                    }
                }
            }
        }
        self.at_statement = false;
        Ok(())
    }

    fn word(&mut self) -> Result<(), SchemaError> {
        let start = self.at;
        let rest = &self.bytes[start..];
        let length = rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_').unwrap_or(rest.len());
        if length > WORD_BYTES {
            return Err(self.error(start, format!("a name is longer than {WORD_BYTES} bytes")));
        }
        self.at += length;
        let begins_file = self.at_statement && self.depth == 0;
        self.at_statement = false;
        match &self.text[start..self.at] {
            "edition" if begins_file => {
                Err(self.error(start, "editions are not supported: use syntax = \"proto3\" or \"proto2\""))
            }
            "package" if begins_file => {
                self.packages += 1;
                if self.packages > 1 {
                    return Err(self.error(start, "the package is given twice"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn error(&self, at: usize, message: impl Into<String>) -> SchemaError {
        SchemaError::at(message, Position::of(self.text, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unbounded_is_refused() {
        let deep = "message a {".repeat(100_000);
        let cases: &[(&str, Result<(), &str>)] = &[
            ("", Ok(())),
            ("syntax = \"proto3\"; /* { */ // {\n message A { string b = 1; }", Ok(())),
            (r#"message A { optional string b = 1 [default = "\"{\\"]; }"#, Ok(())),
            (&deep, Err("brackets are nested deeper than 64 (line 1, column 715)")),
            (&"[".repeat(200), Err("brackets are nested deeper than 64 (line 1, column 65)")),
            ("\n /* x", Err("the comment is not closed: add */ (line 2, column 2)")),
            ("\"abc\ndef\"", Err("the string is not closed on its line (line 1, column 1)")),
            ("\"abc\\\ndef\"", Err("the string is not closed on its line (line 1, column 1)")),
            ("'abc", Err("the string is not closed on its line (line 1, column 1)")),
            ("'abc\\", Err("the string is not closed on its line (line 1, column 1)")),
            ("package a; package b;", Err("the package is given twice (line 1, column 12)")),
            ("message package { optional int32 package = 1; }", Ok(())),
            (
                "edition = \"2023\";",
                Err("editions are not supported: use syntax = \"proto3\" or \"proto2\" (line 1, column 1)"),
            ),
            (&";".repeat(10_001), Err("the schema has more than 10000 statements (line 1, column 10001)")),
            (&"a".repeat(256), Err("a name is longer than 255 bytes (line 1, column 1)")),
        ];
        for (text, expected) in cases {
            let found = check(text).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{}", &text[..text.len().min(60)]);
        }
    }
}
