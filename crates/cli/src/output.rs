//! Output of commands: tables for people, JSON for programs.

use std::io::Write;

use serde::Serialize;

use crate::exact;
use crate::failure::Failure;

/// Prints a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = exact::to_string_pretty(value)?;
    line(&text);
    Ok(())
}

/// Prints rows in columns under a header. Control characters in cells become spaces.
pub(crate) fn table(head: &[&str], rows: Vec<Vec<String>>) {
    let mut widths: Vec<usize> = head.iter().map(|text| text.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    line(&columns(head.iter().map(|text| (*text).to_owned()), &widths));
    for row in rows {
        line(&columns(row.into_iter().map(|cell| cell.replace(char::is_control, " ")), &widths));
    }
}

/// One row, padded to the widths.
fn columns(cells: impl Iterator<Item = String>, widths: &[usize]) -> String {
    let mut text = String::new();
    for (cell, width) in cells.zip(widths) {
        let fill = width.saturating_sub(cell.chars().count());
        text.push_str(&cell);
        text.push_str(&" ".repeat(fill + 2));
    }
    text.trim_end().to_owned()
}

/// Prints a line. Exits when stdout is closed, for instance by `head`.
pub(crate) fn line(text: &str) {
    if writeln!(std::io::stdout().lock(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// A text that is safe to print to a terminal: control characters and those that change the direction of writing are
/// escaped.
pub(crate) fn shown(text: &str) -> String {
    let is_unsafe = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let escaped = |c: char| if is_unsafe(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

/// An error with its root cause, unless its text names that already.
pub(crate) fn with_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let text = error.to_string();
    let Some(root) = std::iter::successors(error.source(), |cause| cause.source()).last() else { return text };
    let root = root.to_string();
    let said = root.rsplit(": ").next().unwrap_or(&root);
    if text.contains(said) { text } else { format!("{text}: {root}") }
}

/// A field of a JSON object as text; `-` when it is null or absent.
pub(crate) fn cell(value: &serde_json::Value, key: &str) -> String {
    match &value[key] {
        serde_json::Value::Null => "-".into(),
        serde_json::Value::String(text) => text.clone(),
        other => exact::to_string(other).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(shown("plain grün 🌊"), "plain grün 🌊");
        assert_eq!(shown("a\u{1b}[2Jb\r\nc\u{9b}d\u{202e}e"), "a\\u{1b}[2Jb\\r\\nc\\u{9b}d\\u{202e}e");
    }

    #[test]
    fn a_cause_is_said_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Outer(&'static str, #[source] std::io::Error);
        let cause = || std::io::Error::other("permission denied");
        assert_eq!(with_cause(&Outer("db error", cause())), "db error: permission denied");
        assert_eq!(with_cause(&Outer("no: permission denied", cause())), "no: permission denied");
    }
}
