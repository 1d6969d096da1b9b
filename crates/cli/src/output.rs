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

/// A field of a JSON object as text.
pub(crate) fn cell(value: &serde_json::Value, key: &str) -> String {
    match &value[key] {
        serde_json::Value::Null => "-".into(),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
