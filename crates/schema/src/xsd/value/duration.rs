//! Durations: months and seconds, which cannot always be compared.

use std::cmp::Ordering;
use std::fmt::{self, Write as _};

use super::moment::{days_from_civil, digits_of_second};

/// The longest number in a duration, in digits.
const DIGITS: usize = 12;

/// A duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::xsd) struct Duration {
    months: i64,
    seconds: i64,
    /// The rest of a second, in units of 10⁻¹⁸, of the same sign as the seconds.
    rest: i64,
}

impl Duration {
    /// Reads a duration.
    pub(super) fn read(text: &str) -> Result<Self, &'static str> {
        const WRONG: &str = "it is no duration, such as P1Y2M3DT4H5M6.7S";
        let (sign, body) = text.strip_prefix('-').map_or((1, text), |body| (-1, body));
        let body = body.strip_prefix('P').ok_or(WRONG)?;
        let (date, time) = match body.split_once('T') {
            Some((date, time)) if !time.is_empty() => (date, time),
            Some(_) => return Err(WRONG),
            None if body.is_empty() => return Err(WRONG),
            None => (body, ""),
        };
        let mut date = Parts(date);
        let (years, months, days) = (date.take('Y')?, date.take('M')?, date.take('D')?);
        let mut time = Parts(time);
        let (hours, minutes) = (time.take('H')?, time.take('M')?);
        let (seconds, rest) = time.seconds()?;
        if !date.0.is_empty() || !time.0.is_empty() {
            return Err(WRONG);
        }
        let seconds = days * 86_400 + hours * 3_600 + minutes * 60 + seconds;
        Ok(Self { months: sign * (years * 12 + months), seconds: sign * seconds, rest: sign * rest })
    }

    /// Compares two durations by what they make of four days, as the specification has it.
    pub(super) fn compare(&self, other: &Self) -> Option<Ordering> {
        let reference = [(1696, 9), (1697, 2), (1903, 3), (1903, 7)];
        let mut orders = reference.iter().map(|(year, month)| {
            let added = |duration: &Self| {
                let months = year * 12 + (month - 1) + duration.months;
                let days = days_from_civil(months.div_euclid(12), months.rem_euclid(12) + 1, 1);
                (i128::from(days) * 86_400 + i128::from(duration.seconds)) * 1_000_000_000_000_000_000
                    + i128::from(duration.rest)
            };
            added(self).cmp(&added(other))
        });
        let first = orders.next()?;
        orders.all(|order| order == first).then_some(first)
    }

    pub(super) fn key(&self, out: &mut String) -> fmt::Result {
        write!(out, "{}M{}.{}", self.months, self.seconds, self.rest)
    }
}

/// What is left of one half of a duration.
struct Parts<'t>(&'t str);

impl Parts<'_> {
    /// Takes the number before a letter, if that letter is next.
    fn take(&mut self, letter: char) -> Result<i64, &'static str> {
        let digits = self.0.bytes().take_while(u8::is_ascii_digit).count();
        match self.0[digits..].strip_prefix(letter) {
            Some(rest) if digits > 0 => {
                let number = whole(&self.0[..digits])?;
                self.0 = rest;
                Ok(number)
            }
            _ => Ok(0),
        }
    }

    fn seconds(&mut self) -> Result<(i64, i64), &'static str> {
        let Some(number) = self.0.strip_suffix('S') else { return Ok((0, 0)) };
        let (seconds, rest) = match number.split_once('.') {
            Some((seconds, rest)) => (seconds, digits_of_second(rest)?),
            None => (number, 0),
        };
        if seconds.is_empty() || !seconds.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err("it is no duration, such as P1Y2M3DT4H5M6.7S");
        }
        self.0 = "";
        Ok((whole(seconds)?, rest))
    }
}

fn whole(digits: &str) -> Result<i64, &'static str> {
    let digits = digits.trim_start_matches('0');
    if digits.len() > DIGITS {
        return Err("a number in this duration has more than 12 digits, which is not supported");
    }
    Ok(digits.bytes().fold(0, |number, digit| number * 10 + i64::from(digit - b'0')))
}
