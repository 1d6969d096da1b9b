//! `tidegate types diff`: the lines that differ, and what the differences do to existing data.

use std::io::IsTerminal;

use serde_json::{Value, json};
use similar::{ChangeTag, TextDiff};
use tidegate_dispatch::{Comparison, Definition, SchemaType, Verdict};

use super::version_of;
use crate::failure::Failure;
use crate::output::{self, cell, shown};

/// Lines of context around a difference.
const CONTEXT: usize = 3;

pub(super) fn run(found: &Value, old: &str, new: &str, as_json: bool) -> Result<(), Failure> {
    let (before, after) = (version_of(found, old)?, version_of(found, new)?);
    let comparison = compare(before, after)?;
    if as_json {
        let change = |change: &tidegate_dispatch::Change| json!({ "verdict": change.verdict.as_str(), "path": change.path, "message": change.message });
        let changes: Vec<Value> = comparison.changes().iter().map(change).collect();
        return output::json(&json!({ "verdict": comparison.verdict().as_str(), "changes": changes }));
    }
    let paint = Paint { on: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() };
    lines(&cell(before, "schema"), &cell(after, "schema"), paint);
    let (color, text) = match comparison.verdict() {
        Verdict::Breaking => (Color::Red, "breaking"),
        Verdict::CannotTell => (Color::Yellow, "cannot tell whether it breaks something"),
        Verdict::Compatible => (Color::Green, "compatible"),
    };
    output::line(&paint.with(color, &format!("{old} to {new}: {text}")));
    for change in comparison.changes() {
        let color = match change.verdict {
            Verdict::Breaking => Color::Red,
            Verdict::CannotTell => Color::Yellow,
            Verdict::Compatible => Color::Green,
        };
        let text = format!("  {}: {}: {}", change.verdict.as_str(), change.path, change.message);
        output::line(&paint.with(color, &shown(&text)));
    }
    Ok(())
}

fn compare(before: &Value, after: &Value) -> Result<Comparison, Failure> {
    let of = |version: &Value| -> Result<(SchemaType, Definition), Failure> {
        let definition = Definition {
            content: cell(version, "schema"),
            message: version["message"].as_str().map(Into::into),
            strict: version["strict"] == true,
        };
        Ok((cell(version, "schemaType").parse()?, definition))
    };
    let ((old_type, old), (new_type, new)) = (of(before)?, of(after)?);
    if old_type != new_type {
        return Err(format!("one is {old_type}, the other {new_type}: they cannot be compared").into());
    }
    Ok(new_type.language().compare(&old, &new)?)
}

/// Prints the lines that differ, with some context.
fn lines(old: &str, new: &str, paint: Paint) {
    let diff = TextDiff::from_lines(old, new);
    for (at, group) in diff.grouped_ops(CONTEXT).iter().enumerate() {
        if at > 0 {
            output::line("...");
        }
        for change in group.iter().flat_map(|operation| diff.iter_changes(operation)) {
            let text = shown(change.value().trim_end_matches(['\n', '\r']));
            match change.tag() {
                ChangeTag::Delete => output::line(&paint.with(Color::Red, &format!("- {text}"))),
                ChangeTag::Insert => output::line(&paint.with(Color::Green, &format!("+ {text}"))),
                ChangeTag::Equal => output::line(&format!("  {text}")),
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Color {
    Red,
    Green,
    Yellow,
}

/// Colours on a terminal.
#[derive(Debug, Clone, Copy)]
struct Paint {
    on: bool,
}

impl Paint {
    fn with(self, color: Color, text: &str) -> String {
        let code = match color {
            Color::Red => 31,
            Color::Green => 32,
            Color::Yellow => 33,
        };
        if self.on { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}
