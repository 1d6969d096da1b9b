//! Paths of fields as people read them: `order.lines[2].sku`, `labels["a"]`.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The longest part of a path that is shown, in characters.
const PART: usize = 80;

/// One step from a message to something within it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step<'s> {
    /// A field of a message, as the document or the schema calls it.
    Field(Cow<'s, str>),
    /// An element of a repeated field, counted from 0.
    Element(u64),
    /// The entry of a map, by its key.
    Key(Cow<'s, str>),
}

/// Writes a path.
pub(super) fn render(steps: &[Step<'_>]) -> String {
    let mut path = String::new();
    for step in steps {
        match step {
            Step::Field(name) if is_plain(name) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(&clip(name, PART));
            }
            Step::Field(name) | Step::Key(name) => {
                let _ = write!(path, "[{:?}]", clip(name, PART));
            }
            Step::Element(index) => {
                let _ = write!(path, "[{index}]");
            }
        }
    }
    path
}

/// Whether a name needs no quotes: a plain name, or that of an extension in brackets.
fn is_plain(name: &str) -> bool {
    let inner = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || (inner.is_some() && c == '.');
    !name.is_empty() && inner.unwrap_or(name).chars().all(allowed)
}

/// The first characters of a text, with an ellipsis if there are more.
pub(super) fn clip(text: &str, characters: usize) -> Cow<'_, str> {
    match text.char_indices().nth(characters) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_readable() {
        let field = |name: &'static str| Step::Field(name.into());
        let long = "x".repeat(200);
        let cases: [(&[Step<'_>], &str); 6] = [
            (&[], ""),
            (&[field("order"), field("lines"), Step::Element(2), field("sku")], "order.lines[2].sku"),
            (&[field("labels"), Step::Key("a\"b".into()), field("x")], "labels[\"a\\\"b\"].x"),
            (&[field("a"), field("[shop.ext]"), field("b")], "a.[shop.ext].b"),
            (&[field("a"), field("not a name")], "a[\"not a name\"]"),
            (&[field(""), Step::Key("".into())], "[\"\"][\"\"]"),
        ];
        for (steps, expected) in cases {
            assert_eq!(render(steps), expected);
        }
        assert_eq!(render(&[Step::Field(long.as_str().into())]).chars().count(), PART + 1);
    }
}
