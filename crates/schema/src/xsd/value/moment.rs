//! Dates and times, with and without a time zone.

use std::cmp::Ordering;
use std::fmt::{self, Write as _};

use super::Kind;

/// The longest year, in digits.
const YEAR_DIGITS: usize = 9;
/// Fourteen hours: how far a time without a zone may be from one with.
const ZONE_SPAN: i64 = 14 * 3_600;

/// A point on the time line, or of a recurring day, month or year.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::xsd) struct Moment {
    /// Seconds since 1970, in UTC where there is a zone.
    seconds: i64,
    /// The rest of the second, in units of 10⁻¹⁸.
    rest: i64,
    has_zone: bool,
}

/// The days from 1970-01-01 to a day of the Gregorian calendar, which may be before its beginning.
pub(super) fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Reads the digits after the point of a second.
pub(super) fn digits_of_second(digits: &str) -> Result<i64, &'static str> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("the fraction of its seconds is not made of digits");
    }
    let digits = digits.trim_end_matches('0');
    if digits.len() > 18 {
        return Err("it has more than 18 digits after the point of its seconds, which is not supported");
    }
    let number = digits.bytes().fold(0_i64, |number, digit| number * 10 + i64::from(digit - b'0'));
    Ok(number * 10_i64.pow(18 - u32::try_from(digits.len()).unwrap_or(18)))
}

impl Moment {
    /// Reads a value of one of the nine kinds of dates and times.
    pub(super) fn read(kind: Kind, text: &str) -> Result<Self, &'static str> {
        let wrong = match kind {
            Kind::DateTime => "it is no date and time, such as 2026-01-31T23:59:59.5Z",
            Kind::Date => "it is no date, such as 2026-01-31",
            Kind::Time => "it is no time, such as 23:59:59.5Z",
            Kind::GYearMonth => "it is no year and month, such as 2026-01",
            Kind::GYear => "it is no year, such as 2026",
            Kind::GMonthDay => "it is no month and day, such as --12-31",
            Kind::GDay => "it is no day, such as ---31",
            _ => "it is no month, such as --12",
        };
        let mut parts = Parts { text, wrong };
        let (mut year, mut month, mut day) = (1972, 1, 1);
        match kind {
            Kind::DateTime | Kind::Date | Kind::GYearMonth | Kind::GYear => year = parts.year()?,
            Kind::GMonthDay | Kind::GMonth => parts.skip("-")?,
            Kind::GDay => parts.skip("--")?,
            _ => {}
        }
        if matches!(kind, Kind::DateTime | Kind::Date | Kind::GYearMonth | Kind::GMonthDay | Kind::GMonth) {
            parts.skip("-")?;
            month = parts.two(1, 12)?;
        }
        if matches!(kind, Kind::DateTime | Kind::Date | Kind::GMonthDay | Kind::GDay) {
            parts.skip("-")?;
            day = parts.two(1, 31)?;
        }
        let (mut seconds, mut rest) = (0, 0);
        if kind == Kind::DateTime {
            parts.skip("T")?;
        }
        if matches!(kind, Kind::DateTime | Kind::Time) {
            (seconds, rest) = parts.time()?;
        }
        let zone = parts.zone()?;
        let (next_year, next_month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
        let length = days_from_civil(next_year, next_month, 1) - days_from_civil(year, month, 1);
        if day > length {
            return Err(wrong);
        }
        let mut seconds = days_from_civil(year, month, day) * 86_400 + seconds - zone.unwrap_or(0);
        if kind == Kind::Time {
            seconds = seconds.rem_euclid(86_400);
        }
        Ok(Self { seconds, rest, has_zone: zone.is_some() })
    }

    /// Compares two moments. With a zone in only one of them, both the earliest and the latest reading must agree.
    pub(super) fn compare(&self, other: &Self) -> Option<Ordering> {
        let shifted = |moment: &Self, by: i64| (moment.seconds + by, moment.rest);
        let order = |by: i64, and: i64| shifted(self, by).cmp(&shifted(other, and));
        let (early, late) = match (self.has_zone, other.has_zone) {
            (true, false) => (order(0, ZONE_SPAN), order(0, -ZONE_SPAN)),
            (false, true) => (order(-ZONE_SPAN, 0), order(ZONE_SPAN, 0)),
            _ => return Some(order(0, 0)),
        };
        (early == late && early != Ordering::Equal).then_some(early)
    }

    pub(super) fn key(&self, out: &mut String) -> fmt::Result {
        write!(out, "{}.{}{}", self.seconds, self.rest, if self.has_zone { "Z" } else { "" })
    }
}

/// What is left of a text.
struct Parts<'t> {
    text: &'t str,
    wrong: &'static str,
}

impl Parts<'_> {
    fn skip(&mut self, expected: &str) -> Result<(), &'static str> {
        self.text = self.text.strip_prefix(expected).ok_or(self.wrong)?;
        Ok(())
    }

    /// Reads a year; the year before 1 is -1.
    fn year(&mut self) -> Result<i64, &'static str> {
        let (is_negative, digits) = self.text.strip_prefix('-').map_or((false, self.text), |rest| (true, rest));
        let length = digits.bytes().take_while(u8::is_ascii_digit).count();
        if length < 4 || (length > 4 && digits.starts_with('0')) {
            return Err(self.wrong);
        }
        if length > YEAR_DIGITS {
            return Err("its year has more than 9 digits, which is not supported");
        }
        let year = digits[..length].bytes().fold(0, |year, digit| year * 10 + i64::from(digit - b'0'));
        if year == 0 {
            return Err("there is no year 0000");
        }
        self.text = &digits[length..];
        Ok(if is_negative { 1 - year } else { year })
    }

    fn two(&mut self, min: i64, max: i64) -> Result<i64, &'static str> {
        match self.text.as_bytes() {
            [tens @ b'0'..=b'9', ones @ b'0'..=b'9', ..] => {
                let number = i64::from(tens - b'0') * 10 + i64::from(ones - b'0');
                self.text = &self.text[2..];
                if (min..=max).contains(&number) { Ok(number) } else { Err(self.wrong) }
            }
            _ => Err(self.wrong),
        }
    }

    /// Reads a time of day: seconds since midnight, and the rest.
    fn time(&mut self) -> Result<(i64, i64), &'static str> {
        let hours = self.two(0, 24)?;
        self.skip(":")?;
        let minutes = self.two(0, 59)?;
        self.skip(":")?;
        let seconds = self.two(0, 59)?;
        let mut rest = 0;
        if let Some(fraction) = self.text.strip_prefix('.') {
            let length = fraction.bytes().take_while(u8::is_ascii_digit).count();
            rest = digits_of_second(&fraction[..length])?;
            self.text = &fraction[length..];
        }
        if hours == 24 && (minutes, seconds, rest) != (0, 0, 0) {
            return Err(self.wrong);
        }
        Ok((hours * 3_600 + minutes * 60 + seconds, rest))
    }

    /// Reads what is left as a time zone: its seconds east of UTC.
    fn zone(&mut self) -> Result<Option<i64>, &'static str> {
        let sign = match self.text.as_bytes() {
            [] => return Ok(None),
            [b'Z'] => return Ok(Some(0)),
            [b'+', ..] => 1,
            [b'-', ..] => -1,
            _ => return Err(self.wrong),
        };
        self.text = &self.text[1..];
        let hours = self.two(0, 14)?;
        self.skip(":")?;
        let minutes = self.two(0, 59)?;
        if !self.text.is_empty() || (hours == 14 && minutes > 0) {
            return Err(self.wrong);
        }
        Ok(Some(sign * (hours * 3_600 + minutes * 60)))
    }
}
