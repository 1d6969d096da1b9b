//! Decimal numbers of any size, as the digits that they are written with.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::{self, Write as _};

/// A decimal number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::xsd) struct Decimal<'v> {
    is_negative: bool,
    /// The digits before the point, without leading zeros.
    whole: Cow<'v, str>,
    /// The digits after the point, without trailing zeros.
    fraction: Cow<'v, str>,
}

impl<'v> Decimal<'v> {
    /// Reads a number; `None` if it is none.
    pub(in crate::xsd) fn read(text: &'v str) -> Option<Self> {
        let (is_negative, digits) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let are_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if (whole.is_empty() && fraction.is_empty()) || !are_digits(whole) || !are_digits(fraction) {
            return None;
        }
        let whole = whole.trim_start_matches('0');
        let fraction = fraction.trim_end_matches('0');
        let is_zero = whole.is_empty() && fraction.is_empty();
        Some(Self { is_negative: is_negative && !is_zero, whole: whole.into(), fraction: fraction.into() })
    }

    /// The same number, independent of the text that it was read from.
    pub(in crate::xsd) fn into_owned(self) -> Decimal<'static> {
        Decimal {
            is_negative: self.is_negative,
            whole: Cow::Owned(self.whole.into_owned()),
            fraction: Cow::Owned(self.fraction.into_owned()),
        }
    }

    /// The digits that `totalDigits` counts.
    pub(in crate::xsd) fn total_digits(&self) -> usize {
        self.whole.len() + self.fraction.len()
    }

    /// The digits that `fractionDigits` counts.
    pub(in crate::xsd) fn fraction_digits(&self) -> usize {
        self.fraction.len()
    }

    pub(super) fn key(&self, out: &mut String) -> fmt::Result {
        write!(out, "{}{}.{}", if self.is_negative { "-" } else { "" }, self.whole, self.fraction)
    }

    /// Compares two numbers.
    pub(in crate::xsd) fn cmp(&self, other: &Decimal<'_>) -> Ordering {
        match (self.is_negative, other.is_negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.cmp_digits(other),
            (true, true) => other.cmp_digits(self),
        }
    }

    fn cmp_digits(&self, other: &Decimal<'_>) -> Ordering {
        let length = self.whole.len().cmp(&other.whole.len());
        length.then_with(|| self.whole.cmp(&other.whole)).then_with(|| self.fraction.cmp(&other.fraction))
    }
}
