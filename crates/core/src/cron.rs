//! Cron expressions in a time zone: parsing them and finding the next tick.
//!
//! Not an existing crate, for two features: seconds, and fixed hours that a clock change neither skips nor repeats. The
//! time zone database is compiled in, so that all nodes of one version agree.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};

/// The longest expression, in bytes.
const MAX_LENGTH: usize = 255;
/// How many years are searched for a match: every combination of leap day and weekday occurs within them.
const YEARS: i16 = 60;
/// More clock changes than any zone has in [`YEARS`] years.
const MAX_TRANSITIONS: usize = 1_000;

/// A cron expression in a time zone.
///
/// Fields are `[second] minute hour day-of-month month day-of-week`, or one of `@yearly`, `@monthly`, `@weekly`,
/// `@daily`, `@hourly`. A field is `*`, a value, a range `a-b`, a step `*/n`, `a-b/n` or `a/n`, or a list of these.
/// Months and days of the week have names (`JAN`, `MON`); 0 and 7 are Sunday. `L` is the last day of the month, `5L`
/// the last Friday and `5#2` the second. When both day fields are restricted (neither starts with `*` or `?`), matching
/// one is enough.
///
/// **Clock changes.** Where the hour starts with `*`, ticks follow elapsed time: an hour that the clock repeats ticks
/// twice, an hour that it skips does not tick. With fixed hours every matching time ticks once per day: a time that the
/// clock skips ticks at the moment of the jump, and a time that it shows twice ticks the first time.
///
/// ```
/// use tidegate_core::Cron;
/// let cron = Cron::parse("30 9 * * MON-FRI", "Europe/Berlin").unwrap();
/// let next = cron.next("2026-01-09T12:00:00Z".parse().unwrap()).unwrap();
/// assert_eq!(next.to_string(), "2026-01-12T08:30:00Z");
/// ```
#[derive(Debug, Clone)]
pub struct Cron {
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: Days,
    months: u64,
    weekdays: Weekdays,
    /// Whether the hour field starts with `*`, so that ticks follow elapsed time.
    every_hour: bool,
    zone: TimeZone,
}

/// A cron expression or a time zone that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a {what}: {why}")]
pub struct InvalidCron {
    /// What it should have been: a cron expression or a time zone.
    pub what: &'static str,
    /// The first 60 characters of what was given.
    pub given: String,
    /// What is wrong with it.
    pub why: String,
}

#[derive(Debug, Clone, Default)]
struct Days {
    values: u64,
    last: bool,
    any: bool,
}

#[derive(Debug, Clone, Default)]
struct Weekdays {
    values: u64,
    last: u64,
    /// Which weeks of the month match, as bits 1 to 5, per weekday from Sunday.
    nth: [u8; 7],
    any: bool,
}

struct Field {
    name: &'static str,
    min: u8,
    max: u8,
    names: &'static [&'static str],
}

const SECOND: Field = Field { name: "second", min: 0, max: 59, names: &[] };
const MINUTE: Field = Field { name: "minute", min: 0, max: 59, names: &[] };
const HOUR: Field = Field { name: "hour", min: 0, max: 23, names: &[] };
const DAY: Field = Field { name: "day of the month", min: 1, max: 31, names: &[] };
const MONTH: Field = Field {
    name: "month",
    min: 1,
    max: 12,
    names: &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
};
const WEEKDAY: Field =
    Field { name: "day of the week", min: 0, max: 7, names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"] };

impl Cron {
    /// Parses an expression and a zone, such as `UTC` or `Europe/Berlin`.
    ///
    /// # Errors
    /// When the expression or the zone cannot be parsed, or no day ever matches; `why` says which part is wrong.
    pub fn parse(expression: &str, zone: &str) -> Result<Self, InvalidCron> {
        let refused = |why: String| InvalidCron { what: "cron expression", given: clip(expression), why };
        if expression.len() > MAX_LENGTH {
            return Err(refused(format!("it is longer than {MAX_LENGTH} bytes")));
        }
        let zone = find_zone(zone)?;
        let cron = Self::read(expression.trim(), zone).map_err(refused)?;
        let some_day = DateTime::constant(2000, 1, 1, 0, 0, 0, 0);
        if cron.next_on_clock(some_day, true).is_none() {
            return Err(refused("there is no such day".into()));
        }
        Ok(cron)
    }

    fn read(expression: &str, zone: TimeZone) -> Result<Self, String> {
        let expanded = match expression {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other if other.starts_with('@') => return Err("this shorthand is not known".into()),
            other => other,
        };
        let fields: Vec<&str> = expanded.split_ascii_whitespace().collect();
        let (second, rest) = match fields.as_slice() {
            [second, rest @ ..] if rest.len() == 5 => (*second, rest),
            rest => ("0", rest),
        };
        let [minute, hour, day, month, weekday] = rest else {
            return Err(format!("it has {} fields, not 5 (or 6 with seconds in front)", fields.len()));
        };
        Ok(Self {
            seconds: SECOND.read(second)?,
            minutes: MINUTE.read(minute)?,
            hours: HOUR.read(hour)?,
            days: Days::read(day)?,
            months: MONTH.read(month)?,
            weekdays: Weekdays::read(weekday)?,
            every_hour: hour.starts_with('*'),
            zone,
        })
    }

    /// The first tick after a moment; `None` when it would be later than the last moment that can be represented.
    #[must_use]
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        if self.every_hour { self.next_as_time_passes(after) } else { self.next_by_the_day(after) }
    }

    /// The next moment at which the zone's clock shows a matching time.
    fn next_as_time_passes(&self, after: Timestamp) -> Option<Timestamp> {
        let (mut at, mut inclusive) = (after, false);
        for _ in 0..MAX_TRANSITIONS {
            let offset = self.zone.to_offset(at);
            let change = self.zone.following(at).next().map(|transition| transition.timestamp());
            // Computed with the current offset, so valid only before the next clock change.
            let shown = self.next_on_clock(offset.to_datetime(at), inclusive)?;
            let next = offset.to_timestamp(shown).ok()?;
            match change {
                Some(change) if next >= change => (at, inclusive) = (change, true),
                _ => return Some(next),
            }
        }
        None
    }

    /// The next matching time of the calendar, each of which ticks once.
    fn next_by_the_day(&self, after: Timestamp) -> Option<Timestamp> {
        let mut shown = self.zone.to_datetime(after);
        // While the clock repeats itself, the first moment of a matching time lies before `after`, and the time is
        // passed over: at most a few hours of them, one per second.
        for _ in 0..100_000 {
            shown = self.next_on_clock(shown, false)?;
            let at = self.first_moment(shown)?;
            if at > after {
                return Some(at);
            }
        }
        None
    }

    /// When the clock first shows this time or, for a time that it skips, the moment of the jump.
    fn first_moment(&self, shown: DateTime) -> Option<Timestamp> {
        match self.zone.to_ambiguous_timestamp(shown).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(shown).ok(),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(shown).ok(),
            AmbiguousOffset::Gap { after, .. } => {
                // With the offset after the jump, the time lies before the jump, which is then the next transition.
                let earlier = after.to_timestamp(shown).ok()?;
                self.zone.following(earlier).next().map(|transition| transition.timestamp())
            }
        }
    }

    /// The next matching time, ignoring clock changes.
    fn next_on_clock(&self, from: DateTime, inclusive: bool) -> Option<DateTime> {
        let whole = from.subsec_nanosecond() == 0;
        let mut earliest = if inclusive && whole {
            Some(from.time())
        } else {
            from.checked_add(1.second()).ok().filter(|next| next.date() == from.date()).map(|next| next.time())
        };
        let mut date = from.date();
        if earliest.is_none() {
            date = date.tomorrow().ok()?;
            earliest = Some(Time::midnight());
        }
        let last_year = from.year().saturating_add(YEARS);
        while date.year() <= last_year {
            if !has(self.months, date.month()) {
                date = date.last_of_month().tomorrow().ok()?;
                earliest = None;
                continue;
            }
            if self.is_day(date)
                && let Some(time) = self.time_from(earliest.unwrap_or(Time::midnight()))
            {
                return Some(date.to_datetime(time));
            }
            date = date.tomorrow().ok()?;
            earliest = None;
        }
        None
    }

    fn is_day(&self, date: Date) -> bool {
        let (day, weekday) = (self.days.has(date), self.weekdays.has(date));
        if self.days.any || self.weekdays.any { day && weekday } else { day || weekday }
    }

    /// The first matching time of a day, from this second on.
    fn time_from(&self, earliest: Time) -> Option<Time> {
        for hour in earliest.hour()..24 {
            if !has(self.hours, hour) {
                continue;
            }
            let same_hour = hour == earliest.hour();
            for minute in if same_hour { earliest.minute() } else { 0 }..60 {
                if !has(self.minutes, minute) {
                    continue;
                }
                let same_minute = same_hour && minute == earliest.minute();
                let first = if same_minute { earliest.second() } else { 0 };
                if let Some(second) = (first..60).find(|second| has(self.seconds, *second)) {
                    return Time::new(hour, minute, second, 0).ok();
                }
            }
        }
        None
    }
}

impl Days {
    fn read(text: &str) -> Result<Self, String> {
        let mut days = Self { any: text.starts_with(['*', '?']), ..Self::default() };
        for part in parts(text, &DAY)? {
            match part {
                "L" | "l" => days.last = true,
                part if part.ends_with(['W', 'w']) => return Err(format!("{part:?} (nearest weekday) is not known")),
                "?" => days.values |= DAY.read_part("*")?,
                part => days.values |= DAY.read_part(part)?,
            }
        }
        Ok(days)
    }

    fn has(&self, date: Date) -> bool {
        has(self.values, date.day()) || (self.last && date == date.last_of_month())
    }
}

impl Weekdays {
    fn read(text: &str) -> Result<Self, String> {
        let mut weekdays = Self { any: text.starts_with(['*', '?']), ..Self::default() };
        for part in parts(text, &WEEKDAY)? {
            if let Some((day, nth)) = part.split_once('#') {
                let nth: u8 = nth
                    .parse()
                    .ok()
                    .filter(|nth| (1..=5).contains(nth))
                    .ok_or_else(|| format!("{part:?} is not the nth day of a month: after # comes 1 to 5"))?;
                weekdays.nth[usize::from(WEEKDAY.value(day)? % 7)] |= 1 << nth;
            } else if let Some(day) = part.strip_suffix(['L', 'l']) {
                weekdays.last |= 1 << (WEEKDAY.value(day)? % 7);
            } else {
                let values = WEEKDAY.read_part(if part == "?" { "*" } else { part })?;
                weekdays.values |= (values | values >> 7) & 0x7f;
            }
        }
        Ok(weekdays)
    }

    fn has(&self, date: Date) -> bool {
        let weekday = date.weekday().to_sunday_zero_offset();
        let nth = (date.day() - 1) / 7 + 1;
        let is_last = date.day() + 7 > date.days_in_month();
        has(self.values, weekday)
            || (is_last && has(self.last, weekday))
            || usize::try_from(weekday).is_ok_and(|weekday| self.nth[weekday] & (1 << nth) != 0)
    }
}

impl Field {
    fn read(&self, text: &str) -> Result<u64, String> {
        parts(text, self)?.into_iter().try_fold(0, |values, part| Ok(values | self.read_part(part)?))
    }

    /// Parses `*`, `a` or `a-b`, each optionally with `/n`, into a set of bits.
    fn read_part(&self, part: &str) -> Result<u64, String> {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                let step: u8 = step
                    .parse()
                    .ok()
                    .filter(|step| (1..=self.max).contains(step))
                    .ok_or_else(|| format!("the step in {part:?} ({}) must be 1 to {}", self.name, self.max))?;
                (range, Some(step))
            }
            None => (part, None),
        };
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (self.min, self.max),
            Some((first, last)) => (self.value(first)?, self.value(last)?),
            None if step.is_some() => (self.value(range)?, self.max),
            None => (self.value(range)?, self.value(range)?),
        };
        // `FRI-SUN`: as the end of a range, Sunday is 7.
        let last = if self.max == 7 && last == 0 && first > 0 { 7 } else { last };
        if first > last {
            return Err(format!("the range {range:?} ({}) runs backwards", self.name));
        }
        Ok((first..=last).step_by(usize::from(step.unwrap_or(1))).fold(0, |values, value| values | 1 << value))
    }

    fn value(&self, text: &str) -> Result<u8, String> {
        if let Some(index) = self.names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
            return u8::try_from(index).map(|index| index + self.min).map_err(|error| error.to_string());
        }
        let digits = !text.is_empty() && text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        let value = if digits { text.parse().ok() } else { None };
        value
            .filter(|value| (self.min..=self.max).contains(value))
            .ok_or_else(|| format!("{:?} is not a {}: it must be {} to {}", clip(text), self.name, self.min, self.max))
    }
}

fn parts<'a>(text: &'a str, field: &Field) -> Result<Vec<&'a str>, String> {
    let parts: Vec<&str> = text.split(',').collect();
    if parts.contains(&"") { Err(format!("the {} has an empty part", field.name)) } else { Ok(parts) }
}

fn has(values: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| values >> value & 1 == 1)
}

fn find_zone(name: &str) -> Result<TimeZone, InvalidCron> {
    TimeZoneDatabase::bundled().get(name).map_err(|_| InvalidCron {
        what: "time zone",
        given: clip(name),
        why: "use a name of the IANA database, such as UTC or Europe/Berlin".into(),
    })
}

/// The first 60 characters, for error messages.
fn clip(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests;
