//! Numbers as they are written, compared exactly.
//!
//! `serde_json` keeps 64 bits of a number, so that 2^64+1 equals 2^64 and 1e400 is an error. Here a number is its
//! digits. Bounds and multiples are judged here ([`super::keywords`]). For `const` and `enum` the `jsonschema` crate asks
//! for `u64`, `i64` and `f64`: what it is told is equal to a number of the schema only if the digits are. That holds for
//! schemas whose numbers [`is_exact`].

use std::borrow::Cow;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use jsonschema::json::JsonNumber;

/// A number in a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number<'t> {
    pub(super) text: &'t str,
}

/// `0.DIGITS` times ten to the power of the exponent, without zeros on either end; zero has no digits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decimal<'t> {
    negative: bool,
    /// The digits before and after the point of the text.
    digits: (&'t [u8], &'t [u8]),
    exponent: i64,
}

impl<'t> Decimal<'t> {
    /// Reads a number of JSON.
    pub(super) fn read(text: &'t str) -> Self {
        let negative = text.starts_with('-');
        let unsigned = &text.as_bytes()[usize::from(negative)..];
        let end = unsigned.iter().position(|byte| matches!(byte, b'e' | b'E'));
        let mantissa = &unsigned[..end.unwrap_or(unsigned.len())];
        let power = end.map_or(0, |end| power(&text[usize::from(negative) + end + 1..]));
        let point = mantissa.iter().position(|byte| *byte == b'.');
        let (mut whole, mut fraction) = match point {
            Some(point) => (&mantissa[..point], &mantissa[point + 1..]),
            None => (mantissa, &[][..]),
        };
        let places = i64::try_from(whole.len()).unwrap_or(i64::MAX);
        let leading = |digits: &[u8]| digits.iter().take_while(|digit| **digit == b'0').count();
        let trailing = |digits: &[u8]| digits.iter().rev().take_while(|digit| **digit == b'0').count();
        fraction = &fraction[..fraction.len() - trailing(fraction)];
        if fraction.is_empty() {
            whole = &whole[..whole.len() - trailing(whole)];
        }
        let mut zeros = leading(whole);
        whole = &whole[zeros..];
        if whole.is_empty() {
            let more = leading(fraction);
            fraction = &fraction[more..];
            zeros += more;
        }
        if whole.is_empty() && fraction.is_empty() {
            return Self { negative: false, digits: (&[], &[]), exponent: 0 };
        }
        let zeros = i64::try_from(zeros).unwrap_or(i64::MAX);
        Self { negative, digits: (whole, fraction), exponent: (places - zeros).saturating_add(power) }
    }

    fn digits(&self) -> impl Iterator<Item = u8> {
        self.digits.0.iter().chain(self.digits.1).map(|digit| digit - b'0')
    }

    fn len(&self) -> i64 {
        i64::try_from(self.digits.0.len() + self.digits.1.len()).unwrap_or(i64::MAX)
    }

    fn is_zero(&self) -> bool {
        self.len() == 0
    }

    /// A text that equal numbers share.
    pub(super) fn canonical(&self) -> String {
        let digits: String = self.digits().map(|digit| char::from(digit + b'0')).collect();
        format!("{}0.{digits}e{}", if self.negative { "-" } else { "" }, self.exponent)
    }

    /// Whether it has no fraction.
    pub(super) fn is_integer(&self) -> bool {
        self.exponent >= self.len()
    }

    /// Its value without the sign, if it is an integer that fits.
    fn magnitude(&self) -> Option<u64> {
        if !self.is_integer() || self.exponent > 20 {
            return None;
        }
        let zeros = (0..self.exponent - self.len()).map(|_| 0);
        self.digits().chain(zeros).try_fold(0_u64, |value, digit| value.checked_mul(10)?.checked_add(u64::from(digit)))
    }

    /// What its digits leave when they are divided by a number of at most 20 digits.
    fn remainder(&self, divisor: u128) -> u128 {
        // So many digits at once that 20 more of the remainder before them fit.
        const AT_ONCE: u32 = 18;
        let (mut remainder, mut chunk, mut count) = (0, 0_u64, 0);
        for digit in self.digits() {
            (chunk, count) = (chunk * 10 + u64::from(digit), count + 1);
            if count == AT_ONCE {
                remainder = (remainder * 10_u128.pow(AT_ONCE) + u128::from(chunk)) % divisor;
                (chunk, count) = (0, 0);
            }
        }
        (remainder * 10_u128.pow(count) + u128::from(chunk)) % divisor
    }

    /// About how many steps of a meter it takes to tell whether it is a multiple of another number, besides its digits.
    pub(super) fn steps_of_multiple(&self, divisor: &Decimal<'_>) -> i64 {
        let shift = self.exponent.saturating_sub(divisor.exponent).unsigned_abs().max(1);
        4 * i64::from(shift.ilog2())
    }

    /// Whether it is a multiple of a number that is not zero and has at most 20 digits.
    pub(super) fn is_multiple_of(&self, divisor: &Decimal<'_>) -> bool {
        if self.is_zero() {
            return true;
        }
        let shift = (self.exponent - self.len()).saturating_sub(divisor.exponent - divisor.len());
        let divisor = divisor.digits().fold(0_u128, |value, digit| value.saturating_mul(10) + u128::from(digit));
        // Neither ends with a zero, so that ten times anything is not `self`.
        if shift < 0 || divisor == 0 {
            return false;
        }
        if divisor == 1 {
            return true;
        }
        let remainder = self.remainder(divisor);
        // The remainder times ten to the power of the shift, with less than 128 bits in each step.
        let (mut power, mut left, mut scale) = (10 % divisor, shift.unsigned_abs(), 1 % divisor);
        while left > 0 {
            if left & 1 == 1 {
                scale = scale * power % divisor;
            }
            power = power * power % divisor;
            left >>= 1;
        }
        (remainder * scale).is_multiple_of(divisor)
    }
}

impl PartialEq for Decimal<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Decimal<'_> {}

impl Hash for Decimal<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.exponent.hash(state);
        self.negative.hash(state);
        for digit in self.digits() {
            state.write_u8(digit);
        }
    }
}

impl PartialOrd for Decimal<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let sign = |number: &Self| match (number.is_zero(), number.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        sign(self).cmp(&sign(other)).then_with(|| {
            let magnitude = self.exponent.cmp(&other.exponent).then_with(|| self.digits().cmp(other.digits()));
            if self.negative { magnitude.reverse() } else { magnitude }
        })
    }
}

/// The exponent behind an `e`.
fn power(text: &str) -> i64 {
    let negative = text.starts_with('-');
    let value = text.trim_start_matches(['+', '-']).parse().unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
    if negative { -value } else { value }
}

/// Whether `serde_json` keeps a number as it is: an integer of 64 bits, or what a double prints as.
pub(super) fn is_exact(text: &str) -> bool {
    let decimal = Decimal::read(text);
    let fits = |value| !decimal.negative || 0_i64.checked_sub_unsigned(value).is_some();
    if decimal.magnitude().is_some_and(fits) {
        return true;
    }
    text.parse().is_ok_and(|double: f64| double.is_finite() && Decimal::read(&format!("{double:e}")) == decimal)
}

impl Number<'_> {
    /// Its magnitude and whether it is negative, if it is an integer of 64 bits.
    fn integer(&self) -> Option<(bool, u64)> {
        let bytes = self.text.as_bytes();
        let negative = bytes.first() == Some(&b'-');
        let digits = &bytes[usize::from(negative)..];
        if digits.len() <= 19 && digits.iter().all(u8::is_ascii_digit) {
            // Nineteen digits always fit.
            return Some((negative, digits.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0'))));
        }
        if digits.len() > 40 && !digits.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
            return None;
        }
        Decimal::read(self.text).magnitude().map(|value| (negative, value))
    }
}

impl JsonNumber for Number<'_> {
    fn as_u64(&self) -> Option<u64> {
        match self.integer()? {
            (true, 0) => Some(0),
            (negative, value) => (!negative).then_some(value),
        }
    }

    fn as_i64(&self) -> Option<i64> {
        match self.integer()? {
            (true, value) => 0_i64.checked_sub_unsigned(value),
            (false, value) => i64::try_from(value).ok(),
        }
    }

    /// The nearest double; where that prints as another number, the next one, which is no number of a schema that this
    /// one could be taken for. `None` for what is beyond all doubles.
    fn as_f64(&self) -> Option<f64> {
        let double = self.text.parse().ok().filter(|double: &f64| double.is_finite())?;
        if self.text.len() <= 15 {
            return Some(double);
        }
        Some(match Decimal::read(self.text).cmp(&Decimal::read(&format!("{double:e}"))) {
            Ordering::Equal => double,
            Ordering::Less => double.next_down(),
            Ordering::Greater => double.next_up(),
        })
    }

    fn as_str(&self) -> Cow<'_, str> {
        Cow::Borrowed(self.text)
    }

    fn to_number(&self) -> Cow<'_, serde_json::Number> {
        let number = match (self.as_u64(), self.as_i64()) {
            (Some(value), _) => serde_json::Number::from(value),
            (None, Some(value)) => serde_json::Number::from(value),
            (None, None) => {
                let double = self.as_f64().unwrap_or(f64::MAX);
                serde_json::Number::from_f64(double).unwrap_or_else(|| serde_json::Number::from(0))
            }
        };
        Cow::Owned(number)
    }

    fn is_integer(&self) -> bool {
        let digits = self.text.as_bytes();
        digits[1..].iter().all(u8::is_ascii_digit) || Decimal::read(self.text).is_integer()
    }

    fn is_written_as_integer(&self) -> bool {
        !self.text.contains(['.', 'e', 'E'])
    }
}

/// Whether a number equals one of a schema.
pub(super) fn equals(text: &str, expected: &serde_json::Number) -> bool {
    let number = Number { text };
    if let Some(expected) = expected.as_u64() {
        return number.as_u64() == Some(expected);
    }
    if let Some(expected) = expected.as_i64() {
        return number.as_i64() == Some(expected);
    }
    number.as_f64().is_some_and(|value| Some(value) == expected.as_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number<'_> {
        Number { text }
    }

    #[test]
    fn numbers_are_read_exactly() {
        let cases = [
            ("0", Some(0), Some(0), true),
            ("-0", Some(0), Some(0), true),
            ("-0.0", Some(0), Some(0), true),
            ("12", Some(12), Some(12), true),
            ("1.0", Some(1), Some(1), true),
            ("1.5e1", Some(15), Some(15), true),
            ("1e19", Some(10_000_000_000_000_000_000), None, true),
            ("18446744073709551615", Some(u64::MAX), None, true),
            ("18446744073709551616", None, None, true),
            ("-9223372036854775808", None, Some(i64::MIN), true),
            ("-9223372036854775809", None, None, true),
            ("9007199254740993.0", Some(9_007_199_254_740_993), Some(9_007_199_254_740_993), true),
            ("0.5", None, None, false),
            ("1e400", None, None, true),
            ("1e-400", None, None, false),
            ("1e99999999999999999999", None, None, true),
        ];
        for (text, unsigned, signed, integer) in cases {
            let number = number(text);
            assert_eq!((number.as_u64(), number.as_i64(), number.is_integer()), (unsigned, signed, integer), "{text}");
        }
        assert_eq!(number("1e400").as_f64(), None);
        assert!(number("0.1000000000000000000001").as_f64() > Some(0.1));
        assert!(number("0.0999999999999999999999").as_f64() < Some(0.1));
        assert_eq!(number("0.10000000000000000000").as_f64(), Some(0.1));
        assert_ne!(number("18446744073709551617").as_f64(), Some(18_446_744_073_709_551_616.0));
    }

    #[test]
    fn multiples_are_exact() {
        let cases = [
            ("0.07", "0.01", true),
            ("19.99", "0.01", true),
            ("19.995", "0.01", false),
            ("1e400", "3", false),
            ("3e400", "3", true),
            ("12345678901234567.01", "0.01", true),
            ("12345678901234567.015", "0.01", false),
            ("18446744073709551618", "2", true),
            ("18446744073709551617", "2", false),
            ("0", "0.3", true),
            ("-9", "3", true),
            ("7", "100", false),
            ("1e-400", "1", false),
            ("0.75", "0.0000000125", true),
            ("18446744073709551615e30", "18446744073709551615", true),
            ("18446744073709551616e30", "18446744073709551615", false),
            ("340282366920938463444927863358058659841", "18446744073709551615", false),
            ("340282366920938463426481119284349108225", "18446744073709551615", true),
            ("99999999999999999999999999999999999999999", "99999999999999999000", false),
            ("1e999999999999", "7", false),
            ("7e999999999999", "7", true),
        ];
        for (value, divisor, expected) in cases {
            assert_eq!(Decimal::read(value).is_multiple_of(&Decimal::read(divisor)), expected, "{value} / {divisor}");
        }
    }

    #[test]
    fn only_numbers_that_doubles_keep_are_exact() {
        let cases = [
            ("0.1", true),
            ("1e300", true),
            ("18446744073709551615", true),
            ("18446744073709551616", false),
            ("1e30", true),
            ("0.1000000000000000000001", false),
            ("1e400", false),
            ("1e-400", false),
            ("-9223372036854775808", true),
        ];
        for (text, exact) in cases {
            assert_eq!(is_exact(text), exact, "{text}");
        }
    }

    #[test]
    fn decimals_are_ordered() {
        let order = ["-1e5", "-2", "-0.1", "0", "1e-9", "0.09", "0.1", "9", "10", "1e400"];
        for pair in order.windows(2) {
            assert!(Decimal::read(pair[0]) < Decimal::read(pair[1]), "{pair:?}");
        }
    }
}
