//! Moments as RFC 3339 writes them.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;

/// The moments that can be stored: 1970 to 9998, in seconds.
const STORABLE: std::ops::Range<i64> = 0..253_370_764_800;

/// When an event happened: the moment, and the text that said so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTime {
    text: Box<str>,
    at: Timestamp,
}

impl EventTime {
    /// Reads a date and time of RFC 3339.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let at = moment(text).ok_or("must be a date and time of RFC 3339, such as 2018-04-05T17:31:00Z")?;
        if !STORABLE.contains(&at.as_second()) {
            return Err("must be between 1970 and 9998");
        }
        Ok(Self { text: text.into(), at })
    }

    /// The text as it was sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The moment.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Whether the moment alone, to the microsecond, gives the text back.
    pub(super) fn is_plain(&self) -> bool {
        self.at.subsec_nanosecond() % 1_000 == 0 && self.at.to_string() == *self.text
    }
}

impl From<Timestamp> for EventTime {
    fn from(at: Timestamp) -> Self {
        Self { text: at.to_string().into(), at }
    }
}

/// `YYYY-MM-DDTHH:MM:SS[.f…](Z|±HH:MM)`. Digits beyond nanoseconds do not count; a leap second is the one before it.
fn moment(text: &str) -> Option<Timestamp> {
    let (date, rest) = text.split_at_checked(10)?;
    let (clock, rest) = rest.strip_prefix(['T', 't'])?.split_at_checked(8)?;
    let (year, month, day) = three(date, '-', 4)?;
    let (hour, minute, second) = three(clock, ':', 2)?;
    let (nanosecond, zone) = fraction(rest)?;
    let second = if second == 60 { 59 } else { second };
    let [month, day, hour, minute, second] =
        [month, day, hour, minute, second].map(|part| i8::try_from(part).unwrap_or(-1));
    let civil = DateTime::new(year, month, day, hour, minute, second, nanosecond).ok()?;
    offset(zone)?.to_timestamp(civil).ok()
}

/// Three numbers, the first of `width` digits and the others of two.
fn three(text: &str, separator: char, width: usize) -> Option<(i16, i16, i16)> {
    let mut parts = text.split(separator);
    let mut next = |width: usize| digits(parts.next()?, width);
    let numbers = (next(width)?, next(2)?, next(2)?);
    parts.next().is_none().then_some(numbers)
}

fn digits(text: &str, width: usize) -> Option<i16> {
    (text.len() == width && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// The fraction of a second in nanoseconds, and what follows it.
fn fraction(text: &str) -> Option<(i32, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Some((0, text)) };
    let length = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, zone) = rest.split_at_checked(length)?;
    if digits.is_empty() {
        return None;
    }
    let padded = digits.bytes().map(|byte| i32::from(byte - b'0')).chain(std::iter::repeat(0));
    Some((padded.take(9).fold(0, |number, digit| number * 10 + digit), zone))
}

fn offset(zone: &str) -> Option<Offset> {
    if zone == "Z" || zone == "z" {
        return Some(Offset::UTC);
    }
    let sign = match zone.bytes().next()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes) = (i32::from(digits(hours, 2)?), i32::from(digits(minutes, 2)?));
    (hours < 24 && minutes < 60).then(|| Offset::from_seconds(sign * (hours * 3600 + minutes * 60)).ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc_3339_is_read() {
        let cases = [
            ("2018-04-05T17:31:00Z", "2018-04-05T17:31:00Z"),
            ("2018-04-05t17:31:00z", "2018-04-05T17:31:00Z"),
            ("2018-04-05T17:31:00+02:00", "2018-04-05T15:31:00Z"),
            ("2018-04-05T17:31:00-23:59", "2018-04-06T17:30:00Z"),
            ("2018-04-05T17:31:00-00:00", "2018-04-05T17:31:00Z"),
            ("2018-04-05T17:31:00.5Z", "2018-04-05T17:31:00.5Z"),
            ("2018-04-05T17:31:00.123456789Z", "2018-04-05T17:31:00.123456789Z"),
            ("2018-04-05T17:31:00.1234567899999999999999Z", "2018-04-05T17:31:00.123456789Z"),
            ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59Z"),
            ("2020-02-29T00:00:00Z", "2020-02-29T00:00:00Z"),
            ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
            ("9998-12-31T23:59:59Z", "9998-12-31T23:59:59Z"),
        ];
        for (text, moment) in cases {
            let time = EventTime::parse(text).unwrap();
            assert_eq!((time.as_str(), time.at()), (text, moment.parse().unwrap()));
        }
    }

    #[test]
    fn what_is_not_rfc_3339_is_refused() {
        let bad = [
            "",
            "now",
            "2018",
            "2018-04-05",
            "2018-04-05T17:31:00",
            "2018-04-05T17:31Z",
            "2018-04-05 17:31:00Z",
            "2018-4-5T17:31:00Z",
            "2018-04-05T17:31:00.Z",
            "2018-04-05T17:31:00+0200",
            "2018-04-05T17:31:00+02",
            "2018-04-05T17:31:00+24:00",
            "2018-04-05T17:31:00+02:60",
            "2018-02-29T00:00:00Z",
            "2018-13-01T00:00:00Z",
            "2018-00-01T00:00:00Z",
            "2018-04-31T00:00:00Z",
            "2018-04-05T24:00:00Z",
            "2018-04-05T17:60:00Z",
            "2018-04-05T17:31:61Z",
            " 2018-04-05T17:31:00Z",
            "2018-04-05T17:31:00Z ",
            "+002018-04-05T17:31:00Z",
            "20180405T173100Z",
            "2018-04-05T17:31:00Z[UTC]",
            "2018-04-05T17:31:00,5Z",
            "２018-04-05T17:31:00Z",
            "1522949460",
            "2018-095T17:31:00Z",
            "2018-04-05T+7:31:00Z",
            "2018-04-05T17:31:00é",
        ];
        for text in bad {
            assert!(EventTime::parse(text).unwrap_err().contains("RFC 3339"), "{text}");
        }
        for text in
            ["1969-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "9999-01-01T00:00:00Z", "1970-01-01T00:00:00+01:00"]
        {
            assert!(EventTime::parse(text).unwrap_err().contains("1970"), "{text}");
        }
    }

    #[test]
    fn plain_times_need_no_text() {
        for (text, plain) in [
            ("2018-04-05T17:31:00Z", true),
            ("2018-04-05T17:31:00.123456Z", true),
            ("2018-04-05T17:31:00.1234567Z", false),
            ("2018-04-05T17:31:00.10Z", false),
            ("2018-04-05T17:31:00+00:00", false),
            ("2018-04-05T19:31:00+02:00", false),
        ] {
            assert_eq!(EventTime::parse(text).unwrap().is_plain(), plain, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_jiff_prints_is_read(second in STORABLE, nanosecond in 0_i32..1_000_000_000) {
            let at = Timestamp::new(second, nanosecond).unwrap();
            prop_assert_eq!(EventTime::parse(&at.to_string()).unwrap(), EventTime::from(at));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9TZ:.+-]{0,40}|.{0,40}") {
            if let Ok(time) = EventTime::parse(&text) {
                prop_assert_eq!(time.as_str(), text.as_str());
            }
        }
    }
}
