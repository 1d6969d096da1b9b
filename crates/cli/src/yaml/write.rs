//! Writes JSON values as YAML: fields and lists as blocks, texts of several lines as literal blocks.

use serde_json::{Map, Value};

use crate::exact;

/// A document with these fields, each followed by a line end.
pub(crate) fn document(fields: &Map<String, Value>) -> String {
    let mut text = String::new();
    put_fields(&mut text, fields, 0);
    text
}

fn put_fields(text: &mut String, fields: &Map<String, Value>, depth: usize) {
    let mut all: Vec<_> = fields.iter().collect();
    // What a document is about comes first.
    all.sort_by_key(|(name, _)| !(depth == 0 && *name == "kind"));
    for (at, (name, value)) in all.into_iter().enumerate() {
        if at > 0 || depth == 0 || text.ends_with('\n') {
            indent(text, depth);
        }
        text.push_str(&scalar(name));
        text.push(':');
        put(text, value, depth);
    }
}

/// Puts a value behind its key or its dash, and ends the line.
fn put(text: &mut String, value: &Value, depth: usize) {
    match value {
        long if exact::digits(long).is_some() => {
            text.push(' ');
            text.push_str(exact::digits(long).unwrap_or_default());
            text.push('\n');
        }
        Value::Object(fields) if !fields.is_empty() => {
            text.push('\n');
            put_fields(text, fields, depth + 1);
        }
        Value::Array(items) if !items.is_empty() => {
            text.push('\n');
            for item in items {
                indent(text, depth + 1);
                text.push('-');
                match item {
                    Value::Object(fields) if !fields.is_empty() && exact::digits(item).is_none() => {
                        text.push(' ');
                        put_fields(text, fields, depth + 2);
                    }
                    other => put(text, other, depth + 1),
                }
            }
        }
        Value::String(string) if is_block(string) => put_block(text, string, depth + 1),
        Value::String(string) => {
            text.push(' ');
            text.push_str(&scalar(string));
            text.push('\n');
        }
        other => {
            text.push(' ');
            text.push_str(&other.to_string());
            text.push('\n');
        }
    }
}

fn indent(text: &mut String, depth: usize) {
    text.extend(std::iter::repeat_n("  ", depth));
}

/// Whether a text can be a literal block: several lines, none of which needs an escape, and no blanks that a block could
/// not tell from its own.
fn is_block(text: &str) -> bool {
    let first = text.chars().next();
    text.contains('\n')
        && first.is_some_and(|first| !first.is_whitespace())
        && !text.ends_with("\n\n")
        && text.chars().all(|c| c == '\n' || is_printable(c))
        && text.lines().all(|line| line.is_empty() || !line.trim().is_empty())
}

fn put_block(text: &mut String, block: &str, depth: usize) {
    text.push_str(if block.ends_with('\n') { " |\n" } else { " |-\n" });
    for line in block.lines() {
        if !line.is_empty() {
            indent(text, depth);
            text.push_str(line);
        }
        text.push('\n');
    }
}

fn is_printable(c: char) -> bool {
    c == '\t' || !(c.is_control() || matches!(c, '\u{feff}' | '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}'))
}

/// A text on one line: without quotes where nobody could take it for something else.
fn scalar(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:*".contains(c);
    let is_safe = text.chars().next().is_some_and(|first| first.is_ascii_alphabetic())
        && text.chars().all(|c| is_plain(c) || c == ' ')
        && !text.ends_with([':', ' '])
        && !text.contains(": ");
    let words = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    if is_safe && !words.contains(&text.to_ascii_lowercase().as_str()) {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            c if is_printable(c) => quoted.push(c),
            c if u32::from(c) < 0x1_0000 => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::yaml::documents;

    fn read_back(value: &Value) -> Value {
        let text = document(value.as_object().unwrap());
        let read = documents(&text).unwrap_or_else(|error| panic!("{error:?}: {text}"));
        assert_eq!(read.len(), 1, "{text}");
        read[0].value().unwrap()
    }

    #[test]
    fn it_is_written_for_people() {
        let value = json!({
            "code": "order-mails", "list": [{ "a": 1, "b": ["x"] }, "y", []], "none": null, "version": "1.0",
            "schema": "{\n  \"type\": \"object\"\n}\n", "empty": {},
        });
        let text = document(value.as_object().unwrap());
        assert!(text.contains("code: order-mails\n") && text.contains("version: \"1.0\"\n"), "{text}");
        assert!(text.contains("schema: |\n  {\n    \"type\": \"object\"\n  }\n"), "{text}");
        assert_eq!(read_back(&value), value, "{text}");
    }

    fn texts() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<String>(),
            "[ -~\n\t]{0,40}",
            "(a|b| |\n|#|:|-|'|\"|\\{|\\[|&|\\*|!|\\||>|%|@|`|,|\\?|~){0,8}",
            Just("null".to_owned()),
            Just("1e5".to_owned()),
            Just("---".to_owned()),
        ]
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            prop::num::f64::NORMAL.prop_map(Value::from),
            "[1-9][0-9]{25}\\.[0-9]{0,9}[1-9]".prop_map(|digits| exact::from_str(&digits).unwrap()),
            texts().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(texts(), inner, 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn what_is_written_is_read_back(fields in prop::collection::btree_map(texts(), any_value(), 1..6)) {
            let value = Value::Object(fields.into_iter().collect());
            prop_assert_eq!(read_back(&value), value);
        }
    }
}
