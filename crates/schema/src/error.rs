//! Why a schema is refused.

use std::fmt;

/// A place in a text. Lines and columns are counted from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl Position {
    /// The position of a byte in a text; beyond its end the position of the end.
    #[must_use]
    pub fn of(text: &str, byte: usize) -> Self {
        let mut end = byte.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &text[..end];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Self { line: number(line), column: number(column) }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A schema that cannot be registered: what is wrong, where, and what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", self.position.map(|position| format!(" ({position})")).unwrap_or_default())]
pub struct SchemaError {
    /// For people: what is wrong and what to change, without the position.
    pub message: String,
    /// Where in the schema, where the schema is text and the place is known.
    pub position: Option<Position>,
}

impl SchemaError {
    /// An error without a position.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), position: None }
    }

    /// An error at a position.
    #[must_use]
    pub fn at(message: impl Into<String>, position: Position) -> Self {
        Self { message: message.into(), position: Some(position) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters_and_lines_from_one() {
        let text = "ä{\n  \"b\": 1\n}";
        assert_eq!(Position::of(text, 0), Position { line: 1, column: 1 });
        assert_eq!(Position::of(text, 1), Position { line: 1, column: 1 }, "within a character");
        assert_eq!(Position::of(text, 2), Position { line: 1, column: 2 });
        assert_eq!(Position::of(text, 6), Position { line: 2, column: 3 });
        assert_eq!(Position::of(text, 999), Position { line: 3, column: 2 });
    }

    #[test]
    fn errors_say_where() {
        assert_eq!(SchemaError::new("no").to_string(), "no");
        let at = SchemaError::at("no", Position { line: 3, column: 7 });
        assert_eq!(at.to_string(), "no (line 3, column 7)");
    }
}
