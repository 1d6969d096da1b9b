//! The regular expressions of the facet `pattern`: compiled to automata that read each character once.
//!
//! Not the crate `regex`: it is linear too, but with a factor as large as the compiled pattern, which a hostile pattern
//! makes hundreds of nanoseconds per byte. Here the factor is one table look-up, and what would need too large a table is
//! refused. A compiled `\p{L}{1,100}` has 101 rows of two entries. Classes of Unicode's categories come from `regex-syntax`.

mod blocks;
mod class;
mod dfa;
mod nfa;
mod parse;

use std::collections::HashMap;
use std::sync::Arc;

use super::bounds::{ALL_PATTERN_TABLES, ALL_PATTERN_WORK, PATTERN_BYTES, PATTERN_WORK};

pub(super) use dfa::Pattern;

/// Compiles the patterns of one schema, each once.
#[derive(Debug)]
pub(super) struct Patterns {
    compiled: HashMap<Box<str>, Arc<Pattern>>,
    work: usize,
    table: usize,
}

impl Default for Patterns {
    fn default() -> Self {
        Self { compiled: HashMap::new(), work: ALL_PATTERN_WORK, table: ALL_PATTERN_TABLES }
    }
}

impl Patterns {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// What is wrong with the pattern, for people.
    pub(super) fn compile(&mut self, source: &str) -> Result<Arc<Pattern>, String> {
        if let Some(known) = self.compiled.get(source) {
            return Ok(Arc::clone(known));
        }
        if source.len() > PATTERN_BYTES {
            return Err(format!("the pattern is longer than {PATTERN_BYTES} bytes"));
        }
        let parsed =
            parse::parse(source).map_err(|why| format!("the pattern {} is not valid: {why}", shown(source)))?;
        let allowed = self.work.min(PATTERN_WORK);
        let mut work = allowed;
        let pattern = nfa::build(&parsed, &mut work).and_then(|nfa| dfa::build(source, &nfa, &mut work));
        self.work -= allowed - work;
        let pattern = pattern.map_err(|why| format!("the pattern {} {why}", shown(source)))?;
        self.table = self
            .table
            .checked_sub(pattern.entries())
            .ok_or_else(|| "the patterns of this schema need too much memory".to_owned())?;
        let pattern = Arc::new(pattern);
        self.compiled.insert(source.into(), Arc::clone(&pattern));
        Ok(pattern)
    }
}

/// A pattern in a message.
fn shown(source: &str) -> String {
    match source.char_indices().nth(100) {
        Some((end, _)) => format!("{:?}…", &source[..end]),
        None => format!("{source:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Patterns::default().compile(pattern).unwrap().matches(text)
    }

    #[test]
    fn patterns_match_whole_texts() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("", &[""], &["a"]),
            ("a|b", &["a", "b"], &["", "ab", "xb", "ax"]),
            ("^a$", &["^a$"], &["a"]),
            ("(a+)+b", &["ab", "aaab"], &["b", "aaa"]),
            ("a{2,4}", &["aa", "aaa", "aaaa"], &["a", "aaaaa"]),
            ("a{0}", &[""], &["a"]),
            ("a{2,}", &["aa", "aaaaaaa"], &["a"]),
            ("(a?){3}", &["", "a", "aaa"], &["aaaa"]),
            ("(ab?|c*){2}d", &["d", "aabd", "abad", "cccd", "ccad"], &["aaad", "cacad"]),
            ("(a{2}){2,3}", &["aaaa", "aaaaaa"], &["aaa", "aaaaa", "aaaaaaaa"]),
            ("[a-c-[b]]", &["a", "c"], &["b", "-"]),
            ("[^a-c]", &["d", "ä"], &["a", "b", "dd"]),
            ("[^a-z-[A]]", &["B"], &["A", "a"]),
            ("[-a]", &["-", "a"], &["b"]),
            ("[a-]", &["-", "a"], &["b"]),
            (r"[\-\]\^]", &["-", "]", "^"], &["\\"]),
            (r"\p{Lu}\P{Lu}", &["Aa", "Ä1"], &["aA", "AA"]),
            (r"\p{IsBasicLatin}+", &["abc~"], &["ä"]),
            (r"\i\c*", &["a-1", "_", ":x", "éa"], &["1a", "-"]),
            (r"\I\C", &["1 "], &["a ", "11"]),
            (r"\d\D\w\W\s\S", &["1ab! x", "٣xb- x"], &["aab! x"]),
            (r".", &["a", "\t", "𝄞"], &["\n", "\r", "", "ab"]),
            (r"\n\t\.\\\{\}", &["\n\t.\\{}"], &[""]),
            (r"[\s\S]{0,3}", &["", "a\nb"], &["abcd"]),
            (r"([A-Z]{2}\d{3})?(x|yz)*", &["", "AB123", "AB123xyzx", "yz"], &["AB12", "AB123y"]),
        ];
        for (pattern, good, bad) in cases {
            for text in *good {
                assert!(matches(pattern, text), "{pattern:?} on {text:?}");
            }
            for text in *bad {
                assert!(!matches(pattern, text), "{pattern:?} on {text:?}");
            }
        }
    }

    #[test]
    fn bad_patterns_are_refused() {
        let bad = [
            "(",
            ")",
            "a)",
            "(a",
            "[",
            "[]",
            "[a",
            "a{",
            "a{2",
            "a{3,2}",
            "*",
            "a**",
            "+",
            "?",
            "a{,2}",
            "{",
            "}",
            "]",
            r"\",
            r"\z",
            r"\p{Xx}",
            r"\p{IsNowhere}",
            r"\p",
            r"\p{",
            "[b-a]",
            "[a-c-d]",
            "[a-[b]",
            r"\1",
            "(?:a)",
            "a*?",
            r"\bx",
            "[[a]]",
            r"\p{Cs}",
            "[a--z]",
            r"[\d-z]",
        ];
        for pattern in bad {
            assert!(Patterns::default().compile(pattern).is_err(), "{pattern:?}");
        }
    }

    #[test]
    fn exploding_patterns_are_refused_or_small() {
        for pattern in [
            "(a{1,1000}){1,1000}",
            "(a|b)*a(a|b){500}",
            "((((a{99}){99}){99}){99}){99}",
            "(((){1000}){1000}){1000}a{20001}",
        ] {
            assert!(Patterns::default().compile(pattern).is_err(), "{pattern:?}");
        }
        assert!(Patterns::default().compile(&"(".repeat(4000)).is_err());
        assert!(Patterns::default().compile(&"a".repeat(5000)).is_err());
        for pattern in ["(a+)+b", "(a*)*b", "(a|aa)+$", r"\p{L}{1,100}", "[a-z]{1,4000}", r"(.*)*(.*)*(.*)*x"] {
            let compiled = Patterns::default().compile(pattern).unwrap();
            assert!(compiled.entries() < 20_000, "{pattern:?}: {}", compiled.entries());
        }
    }

    #[test]
    fn all_patterns_of_a_schema_share_a_bound() {
        let mut patterns = Patterns::default();
        let mut refused = false;
        for number in 0..200 {
            refused |= patterns.compile(&format!("(a|b)*a(a|b){{9}}{number}")).is_err();
        }
        assert!(refused);
    }
}
