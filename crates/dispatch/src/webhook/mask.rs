//! Takes what is secret out of texts that came back: receivers that show what they were sent exist, and what they answer is kept.
//! Pure.

use std::fmt;

use zeroize::Zeroizing;

use super::outcome::CUT;

/// Shorter values are not hidden: they are found in texts that have nothing to do with them.
const SHORTEST: usize = 4;
/// Stands for what is not shown.
const HIDDEN: &str = "***";
/// What credentials in a header can begin with. Receivers also show them without it.
const SCHEMES: [&str; 3] = ["bearer ", "basic ", "token "];

/// What must not be seen. Of nothing by default, which costs nothing.
#[derive(Default)]
pub struct Mask(Vec<Zeroizing<String>>);

impl Mask {
    /// Hides a value, also as it is written within JSON.
    pub fn add(&mut self, value: &str) {
        if value.len() < SHORTEST {
            return;
        }
        self.0.push(Zeroizing::new(value.to_owned()));
        if value.contains(['"', '\\']) {
            self.0.push(Zeroizing::new(value.replace('\\', "\\\\").replace('"', "\\\"")));
        }
    }

    /// Hides the value of a header, with the scheme that it may begin with and without it.
    pub fn add_header(&mut self, value: &str) {
        let value = value.trim();
        self.add(value);
        let scheme = SCHEMES
            .iter()
            .find(|scheme| value.get(..scheme.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(scheme)));
        if let Some(scheme) = scheme {
            self.add(value[scheme.len()..].trim_start());
        }
    }

    /// A text without what is hidden. Where a text was cut, its end may be the beginning of something that is: that is hidden
    /// too.
    #[must_use]
    pub fn masked(&self, text: String, is_cut: bool) -> String {
        let mut found: Vec<_> = self.0.iter().flat_map(|secret| all(&text, secret)).collect();
        if is_cut {
            found.extend(self.0.iter().filter_map(|secret| begun(&text, secret)));
        }
        if found.is_empty() {
            return text;
        }
        // They can overlap, as a password is part of what it is sent in.
        found.sort_unstable();
        let mut shown = String::with_capacity(text.len());
        let mut at = 0;
        for (start, end) in found {
            if start >= at {
                shown.push_str(&text[at..start]);
                shown.push_str(HIDDEN);
            }
            at = at.max(end);
        }
        shown.push_str(&text[at..]);
        shown
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mask(…)")
    }
}

/// Where a text has a secret, also where one begins within another.
fn all(text: &str, secret: &str) -> Vec<(usize, usize)> {
    let (text, secret) = (text.as_bytes(), secret.as_bytes());
    let windows = text.windows(secret.len()).enumerate();
    windows.filter(|(_, window)| *window == secret).map(|(at, _)| (at, at + secret.len())).collect()
}

/// Where a secret begins that the end of a text cuts. A character that is cut was replaced, and something may stand for the rest.
fn begun(text: &str, secret: &str) -> Option<(usize, usize)> {
    let text = text.trim_end_matches([char::REPLACEMENT_CHARACTER, CUT]);
    let most = text.len().min(secret.len() - 1);
    let length = (1..=most).rev().find(|length| text.as_bytes().ends_with(&secret.as_bytes()[..*length]))?;
    Some((text.len() - length, text.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn masked(secrets: &[&str], text: &str, is_cut: bool) -> String {
        let mut mask = Mask::default();
        secrets.iter().for_each(|secret| mask.add(secret));
        mask.masked(text.to_owned(), is_cut)
    }

    #[test]
    fn what_comes_back_is_masked() {
        for (secrets, text, expected) in [
            (&["s3cret"][..], "x-api-key: s3cret, s3crets", "x-api-key: ***, ***s"),
            (&["s3cret"], "fine, s3cre", "fine, s3cre"),
            (&["tide:gate", "gate"], "tide:gate, gate", "***, ***"),
            (&["abcd", "cdef"], "abcdef.", "***."),
            (&["abab"], "ababab", "***"),
            (&["abcd"], "abcdabcd", "******"),
            (&["g\u{e4}te"], "(g\u{e4}te)", "(***)"),
            (&[r#"a"b\c"#], r#"a"b\c {"p":"a\"b\\c"}"#, r#"*** {"p":"***"}"#),
            (&["abc", ""], "abc", "abc"),
            (&[], "abcd", "abcd"),
        ] {
            assert_eq!(masked(secrets, text, false), expected, "{secrets:?}");
        }
    }

    #[test]
    fn what_is_cut_is_masked() {
        for (text, expected) in [
            ("x: s3cre", "x: ***"),
            ("x: s", "x: ***"),
            ("x: s3cret", "x: ***"),
            ("x: ", "x: "),
            ("x: s3cre\u{2026}", "x: ***\u{2026}"),
            ("x: g\u{fffd}", "x: ***\u{fffd}"),
            ("s3cre s3cret", "s3cre ***"),
            ("", ""),
        ] {
            assert_eq!(masked(&["s3cret", "g\u{e4}te"], text, true), expected, "{text}");
        }
    }

    #[test]
    fn headers_are_masked_with_their_scheme_and_without() {
        let mut mask = Mask::default();
        mask.add_header("bearer  s3cret");
        mask.add_header(" k3y/abc ");
        assert_eq!(mask.masked("bearer  s3cret s3cret k3y/abc".into(), false), "*** *** ***");
    }

    #[test]
    fn nothing_to_mask_costs_nothing() {
        let text = "abcd".to_owned();
        let at = text.as_ptr();
        let shown = Mask::default().masked(text, true);
        assert_eq!(shown.as_ptr(), at);
        assert_eq!(Mask::default().0.capacity(), 0);
    }

    proptest! {
        /// Wherever a text is cut, nothing of a secret is left that has more than nothing in common with it.
        #[test]
        fn no_secret_is_left(parts in prop::collection::vec("[ab\u{e4}]{0,6}", 0..8), secret in "[ab\u{e4}]{4,6}", cut in 0usize..60) {
            prop_assume!(secret.len() >= SHORTEST);
            let whole = parts.join(&secret);
            let text = String::from_utf8_lossy(&whole.as_bytes()[..cut.min(whole.len())]).into_owned();
            let shown = masked(&[&secret], &text, true);
            prop_assert!(!shown.contains(&*secret));
            let end = shown.trim_end_matches(char::REPLACEMENT_CHARACTER);
            let first = secret.chars().next().unwrap();
            prop_assert!(!end.ends_with(first), "{shown}");
        }
    }
}
