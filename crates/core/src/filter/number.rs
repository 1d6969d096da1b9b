//! Numbers as they are written, compared by value and exactly: `1e2` is `100`, 2^53+1 is not 2^53, and 1e400 is more
//! than 1e300.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::attribute::MAX_TEXT;

/// The largest exponent that is told apart from larger ones.
const MAX_POWER: i64 = i64::MAX / 4;

/// `D.DDD` times ten to the power of the exponent, with the sign. Zero has no digits.
#[derive(Debug, Clone)]
pub(super) struct Number<'t> {
    negative: bool,
    /// From the first digit that is not 0 to the last one, perhaps with a point among them.
    digits: Cow<'t, [u8]>,
    /// Of the first of the digits.
    exponent: i64,
}

impl<'t> Number<'t> {
    /// Reads a number of JSON; `None` when the text is none.
    pub(super) fn parse(text: &'t str) -> Option<Self> {
        let unsigned = text.strip_prefix('-').unwrap_or(text);
        let (whole, rest) = leading_digits(unsigned);
        let (fraction, rest) = rest.strip_prefix('.').map_or((None, rest), |rest| {
            let (fraction, rest) = leading_digits(rest);
            (Some(fraction), rest)
        });
        let is_plain = !whole.is_empty() && (whole == "0" || !whole.starts_with('0')) && fraction != Some("");
        let power = if rest.is_empty() { 0 } else { power(rest)? };
        let mantissa = unsigned.get(..unsigned.len().checked_sub(rest.len())?)?.as_bytes();
        if !is_plain {
            return None;
        }
        let counts = |digit: &u8| matches!(digit, b'1'..=b'9');
        let (Some(first), Some(last)) = (mantissa.iter().position(counts), mantissa.iter().rposition(counts)) else {
            return Some(Self { negative: false, digits: Cow::Borrowed(&[]), exponent: 0 });
        };
        // The place of the first digit, counted from the point.
        let place = |at: usize| i64::try_from(at).unwrap_or(MAX_POWER);
        let before = place(whole.len()) - place(first);
        Some(Self {
            negative: unsigned.len() < text.len(),
            digits: Cow::Borrowed(mantissa.get(first..=last)?),
            exponent: if first < whole.len() { before - 1 } else { before }.saturating_add(power),
        })
    }

    /// The number without its text.
    pub(super) fn into_owned(self) -> Number<'static> {
        Number { negative: self.negative, digits: Cow::Owned(self.digits.into_owned()), exponent: self.exponent }
    }

    /// Whether a filter may have it: few enough digits, and compared exactly with any other.
    pub(super) fn is_moderate(&self) -> bool {
        self.digits.len() <= MAX_TEXT && self.exponent.abs() < MAX_POWER / 2
    }

    fn sign(&self) -> i8 {
        match (self.digits.is_empty(), self.negative) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => -1,
        }
    }
}

impl Ord for Number<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        fn digits<'n>(number: &'n Number<'_>) -> impl Iterator<Item = &'n u8> {
            number.digits.iter().filter(|byte| **byte != b'.')
        }
        self.sign().cmp(&other.sign()).then_with(|| {
            let magnitude = self.exponent.cmp(&other.exponent).then_with(|| digits(self).cmp(digits(other)));
            if self.negative { magnitude.reverse() } else { magnitude }
        })
    }
}

impl PartialOrd for Number<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Number<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Number<'_> {}

fn leading_digits(text: &str) -> (&str, &str) {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// Reads `e`, a sign and digits.
fn power(text: &str) -> Option<i64> {
    let signed = text.strip_prefix(['e', 'E'])?;
    let digits = signed.strip_prefix(['+', '-']).unwrap_or(signed);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value = digits.parse().unwrap_or(MAX_POWER).min(MAX_POWER);
    Some(if signed.starts_with('-') { -value } else { value })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(text: &str) -> Number<'_> {
        Number::parse(text).unwrap()
    }

    #[test]
    fn numbers_are_equal_by_value() {
        let cases: [&[&str]; 8] = [
            &["0", "-0", "0.0", "-0.000", "0e5", "0e-99999999999999999999"],
            &["100", "1e2", "1E+2", "100.0", "0.1e3", "10000e-2", "1.00e2"],
            &["-100", "-1e2"],
            &["0.05", "5e-2", "0.050", "0.005e1"],
            &["9007199254740993", "9007199254740993.0", "9.007199254740993e15"],
            &["9007199254740992"],
            &["123456789012345678901234567890", "1.2345678901234567890123456789e29"],
            &["1e400", "10e399"],
        ];
        for (at, equal) in cases.iter().enumerate() {
            for text in *equal {
                for (other_at, others) in cases.iter().enumerate() {
                    for other in *others {
                        assert_eq!(number(text) == number(other), at == other_at, "{text} {other}");
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_are_ordered() {
        let order = [
            "-1e99999999999999999999",
            "-1e400",
            "-1e5",
            "-10",
            "-9",
            "-2",
            "-1.5",
            "-0.1",
            "-0.09",
            "-1e-9",
            "0",
            "1e-99999999999999999999",
            "1e-400",
            "1e-9",
            "0.0999999999999999999999",
            "0.1",
            "0.1000000000000000000001",
            "9",
            "9.99",
            "10",
            "9007199254740992",
            "9007199254740993",
            "1e300",
            "1e400",
            "1e99999999999999999999",
        ];
        for (at, text) in order.iter().enumerate() {
            for (other_at, other) in order.iter().enumerate() {
                assert_eq!(number(text).cmp(&number(other)), at.cmp(&other_at), "{text} {other}");
            }
        }
    }

    #[test]
    fn what_is_no_number_of_json_is_none() {
        for text in [
            "", "-", "+1", "01", "-01", ".5", "5.", "1.e5", "1e", "1e+", "1e5.0", "0x10", "1_000", " 1", "1 ", "NaN",
            "1,5", "١",
        ] {
            assert!(Number::parse(text).is_none(), "{text}");
        }
        assert!(!number("1e99999999999999999999").is_moderate() && !number("-1e-9223372036854775807").is_moderate());
        assert!(number("1e1000000").is_moderate() && number("0e99999999999999999999").is_moderate());
    }

    proptest! {
        #[test]
        fn integers_compare_as_integers(a: i128, b: i128, zeros in 0_usize..5) {
            let (text, same, other) = (format!("{a}{:0<zeros$}e-{zeros}", ""), a.to_string(), b.to_string());
            prop_assert_eq!(number(&text).cmp(&number(&other)), a.cmp(&b));
            prop_assert_eq!(&number(&text), &number(&same));
        }

        #[test]
        fn doubles_compare_as_doubles(a in proptest::num::f64::NORMAL, b in proptest::num::f64::NORMAL) {
            let (text, other) = (format!("{a:e}"), format!("{b}"));
            prop_assert_eq!(Some(number(&text).cmp(&number(&other))), a.partial_cmp(&b));
        }

        #[test]
        fn the_grammar_is_that_of_json(text in "-?[0-9.eE+-]{0,8}") {
            let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
            prop_assert_eq!(Number::parse(&text).is_some(), is_json, "{}", text);
        }
    }
}
