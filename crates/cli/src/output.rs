//! Tables for people, JSON for machines.

use std::io::Write;

use serde::Serialize;

use crate::Failure;

/// Prints JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)?;
    line(&text);
    Ok(())
}

/// Prints columns under a head.
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

/// One row.
fn columns(cells: impl Iterator<Item = String>, widths: &[usize]) -> String {
    let mut text = String::new();
    for (cell, width) in cells.zip(widths) {
        let fill = width.saturating_sub(cell.chars().count());
        text.push_str(&cell);
        text.push_str(&" ".repeat(fill + 2));
    }
    text.trim_end().to_owned()
}

/// A line on stdout. Whoever reads it may be gone, for instance `head`.
pub(crate) fn line(text: &str) {
    if writeln!(std::io::stdout().lock(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// A text that a terminal shows and does not obey: control characters, and those that turn the direction of writing, are
/// escaped.
pub(crate) fn shown(text: &str) -> String {
    let is_heeded = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let escaped = |c: char| if is_heeded(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

/// An error with what caused it in the first place, unless its text says that already.
pub(crate) fn with_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let text = error.to_string();
    let Some(root) = std::iter::successors(error.source(), |cause| cause.source()).last() else { return text };
    let root = root.to_string();
    let said = root.rsplit(": ").next().unwrap_or(&root);
    if text.contains(said) { text } else { format!("{text}: {root}") }
}

/// A field of a JSON object as text.
pub(crate) fn cell(value: &serde_json::Value, key: &str) -> String {
    match &value[key] {
        serde_json::Value::Null => "-".into(),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
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
