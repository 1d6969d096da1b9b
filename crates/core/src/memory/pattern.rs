//! Patterns of events in memory queues: segments between dots, `*` for any one segment, `>` at the end for one or more.
//! An event's own pattern has no wildcards. Knows nothing of queues.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::name::MAX_NAME;

/// A pattern by which events are chosen.
///
/// ```
/// use tidegate_core::memory::Pattern;
/// let one: Pattern = "invoice.*".parse().unwrap();
/// assert!(one.matches("invoice.created") && !one.matches("invoice.line.added") && !one.matches("invoice"));
/// let tail: Pattern = "invoice.>".parse().unwrap();
/// assert!(tail.matches("invoice.created") && tail.matches("invoice.line.added") && !tail.matches("invoice"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern {
    text: Box<str>,
    has_wildcards: bool,
}

impl Pattern {
    /// The pattern as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether an event with this pattern of its own is chosen.
    #[must_use]
    pub fn matches(&self, event: &str) -> bool {
        if !self.has_wildcards {
            return *self.text == *event;
        }
        let mut segments = event.split('.');
        for wanted in self.text.split('.') {
            match (wanted, segments.next()) {
                (_, None) => return false,
                (">", Some(_)) => return true,
                ("*", Some(_)) => {}
                (wanted, Some(segment)) if wanted == segment => {}
                _ => return false,
            }
        }
        segments.next().is_none()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Pattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        check_segments(text)?;
        let mut has_wildcards = false;
        let mut ended = false;
        for segment in text.split('.') {
            if ended {
                return Err(InvalidPattern::TailInside);
            }
            match segment {
                "*" => has_wildcards = true,
                ">" => (has_wildcards, ended) = (true, true),
                segment if segment.contains(['*', '>']) => return Err(InvalidPattern::PartialWildcard),
                _ => {}
            }
        }
        Ok(Self { text: text.into(), has_wildcards })
    }
}

impl TryFrom<String> for Pattern {
    type Error = InvalidPattern;

    fn try_from(text: String) -> Result<Self, InvalidPattern> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.text.into()
    }
}

/// Checks an event's own pattern, which has no wildcards.
///
/// # Errors
/// When it has wildcards or breaks another rule of patterns.
pub fn check_event_pattern(text: &str) -> Result<(), InvalidPattern> {
    check_segments(text)?;
    if text.contains(['*', '>']) { Err(InvalidPattern::WildcardInEvent) } else { Ok(()) }
}

fn check_segments(text: &str) -> Result<(), InvalidPattern> {
    if text.is_empty() || text.len() > MAX_NAME || text.chars().any(char::is_control) {
        return Err(InvalidPattern::NotText);
    }
    if text.split('.').any(str::is_empty) { Err(InvalidPattern::EmptySegment) } else { Ok(()) }
}

/// Why a text is not a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// Empty, too long or with control characters.
    #[error("a pattern must have 1 to {MAX_NAME} bytes and no control characters")]
    NotText,
    /// Nothing before, between or after dots.
    #[error("a pattern must have something on both sides of each '.', such as invoice.created")]
    EmptySegment,
    /// A wildcard beside other characters.
    #[error("a * or > must be a whole segment, as in invoice.* or invoice.>")]
    PartialWildcard,
    /// A `>` that is not the last segment.
    #[error("a > must be the last segment, as in invoice.>")]
    TailInside,
    /// A wildcard in the pattern of an event.
    #[error("the pattern of an event must not have * or >: those choose events")]
    WildcardInEvent,
}

/// Patterns with a `T` kept for each, found by the patterns of events: a tree by segments, so that a look-up visits only
/// what begins like the event, however many patterns there are.
///
/// ```
/// use tidegate_core::memory::PatternIndex;
/// let mut index = PatternIndex::default();
/// index.insert(&"invoice.*".parse().unwrap(), "one");
/// index.insert(&">".parse().unwrap(), "all");
/// assert_eq!(index.matching("invoice.created"), [&"all", &"one"]);
/// assert_eq!(index.matching("payment.received"), [&"all"]);
/// ```
#[derive(Debug, Clone)]
pub struct PatternIndex<T> {
    root: Node<T>,
    len: usize,
}

#[derive(Debug, Clone)]
struct Node<T> {
    named: HashMap<Box<str>, Node<T>>,
    any: Option<Box<Node<T>>>,
    /// Of patterns that end here.
    here: Vec<T>,
    /// Of patterns that end here with `>`.
    tails: Vec<T>,
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Self { named: HashMap::new(), any: None, here: Vec::new(), tails: Vec::new() }
    }
}

impl<T> Default for PatternIndex<T> {
    fn default() -> Self {
        Self { root: Node::default(), len: 0 }
    }
}

impl<T> PatternIndex<T> {
    /// How many patterns there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a pattern with what is kept for it.
    pub fn insert(&mut self, pattern: &Pattern, kept: T) {
        self.len += 1;
        let mut node = &mut self.root;
        for segment in pattern.text.split('.') {
            node = match segment {
                ">" => return node.tails.push(kept),
                "*" => node.any.get_or_insert_default(),
                segment => node.named.entry(segment.into()).or_default(),
            };
        }
        node.here.push(kept);
    }

    /// What is kept for the patterns that choose an event with this pattern of its own.
    #[must_use]
    pub fn matching(&self, event: &str) -> Vec<&T> {
        let mut found = Vec::new();
        self.root.collect(Some(event), &mut found);
        found
    }
}

impl<T> Node<T> {
    /// Goes at most as deep as a pattern has segments.
    fn collect<'a>(&'a self, rest: Option<&str>, found: &mut Vec<&'a T>) {
        let Some(rest) = rest else { return found.extend(&self.here) };
        found.extend(&self.tails);
        let (segment, rest) = rest.split_once('.').map_or((rest, None), |(segment, rest)| (segment, Some(rest)));
        for node in [self.named.get(segment), self.any.as_deref()].into_iter().flatten() {
            node.collect(rest, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn wildcards_stand_for_segments() {
        let cases = [
            ("invoice.created", "invoice.created", true),
            ("invoice.created", "invoice.create", false),
            ("*", "invoice", true),
            ("*", "invoice.created", false),
            ("*.created", "invoice.created", true),
            ("a.*.c", "a.b.c", true),
            ("a.*.c", "a.b.d", false),
            ("a.*.>", "a.b", false),
            ("a.*.>", "a.b.c.d", true),
            (">", "a", true),
            (">", "a.b.c", true),
            ("a.>", "ab.c", false),
        ];
        for (pattern, event, expected) in cases {
            assert_eq!(pattern.parse::<Pattern>().unwrap().matches(event), expected, "{pattern} {event}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        let long = "a".repeat(256);
        let bad = [
            ("", InvalidPattern::NotText),
            (long.as_str(), InvalidPattern::NotText),
            ("a\n", InvalidPattern::NotText),
            ("a..b", InvalidPattern::EmptySegment),
            (".a", InvalidPattern::EmptySegment),
            ("a.", InvalidPattern::EmptySegment),
            ("inv*", InvalidPattern::PartialWildcard),
            ("a.**", InvalidPattern::PartialWildcard),
            ("a>", InvalidPattern::PartialWildcard),
            ("a.>.b", InvalidPattern::TailInside),
            (">.>", InvalidPattern::TailInside),
        ];
        for (text, error) in bad {
            assert_eq!(text.parse::<Pattern>(), Err(error), "{text:?}");
        }
        for (text, error) in &bad[..6] {
            assert_eq!(check_event_pattern(text), Err(*error));
        }
        for wild in ["*", "a.>", "a.b*"] {
            assert_eq!(check_event_pattern(wild), Err(InvalidPattern::WildcardInEvent));
        }
        assert_eq!(check_event_pattern(&long[1..]), Ok(()));
    }

    proptest! {
        /// The index finds what asking each pattern finds.
        #[test]
        fn the_index_agrees_with_each_pattern(
            patterns in proptest::collection::vec("(a|b|\\*)(\\.(a|b|\\*)){0,3}(\\.>)?|>", 0..40),
            events in proptest::collection::vec("(a|b|c)(\\.(a|b|c)){0,4}", 1..20),
        ) {
            let patterns: Vec<Pattern> = patterns.iter().map(|text| text.parse().unwrap()).collect();
            let mut index = PatternIndex::default();
            for (at, pattern) in patterns.iter().enumerate() {
                index.insert(pattern, at);
            }
            prop_assert_eq!(index.len(), patterns.len());
            for event in events {
                let mut found: Vec<usize> = index.matching(&event).into_iter().copied().collect();
                found.sort_unstable();
                let expected: Vec<usize> = (0..patterns.len()).filter(|at| patterns[*at].matches(&event)).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
