//! The JSON forms of single values: numbers, strings, base64, moments, durations and field masks.

use super::table::{Kind, Special};
use super::tape::Token;

/// Ten thousand years, the longest duration, in seconds.
const MAX_DURATION: u64 = 315_576_000_000;

/// Checks a value of a plain type. The error says what was expected.
pub(super) fn check(kind: Kind, token: Token, text: &str) -> Result<(), &'static str> {
    let is_string = matches!(token, Token::Plain | Token::Escaped);
    let is_number = token == Token::Number;
    let fits = match kind {
        Kind::Bool => matches!(token, Token::True | Token::False),
        Kind::String => is_string,
        Kind::Bytes => is_string && is_base64(text),
        Kind::Double => (is_number || is_string) && is_float(text, is_string, f64::MAX),
        Kind::Float => (is_number || is_string) && is_float(text, is_string, f64::from(f32::MAX)),
        Kind::Enum | Kind::Message | Kind::Group => false,
        _ => (is_number || is_string) && is_integer(kind, text, is_number),
    };
    if fits { Ok(()) } else { Err(expected(kind)) }
}

/// Checks the key of a map, which is a string in JSON.
pub(super) fn check_key(kind: Kind, text: &str) -> Result<(), &'static str> {
    match kind {
        Kind::Bool if matches!(text, "true" | "false") => Ok(()),
        Kind::Bool => Err("\"true\" or \"false\""),
        kind => check(kind, Token::Plain, text),
    }
}

fn expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => "a whole number of 32 bits",
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => "a whole number of 64 bits, as a number or a string",
        Kind::Uint32 | Kind::Fixed32 => "a whole number from 0 to 4294967295",
        Kind::Uint64 | Kind::Fixed64 => "a whole number from 0 to 18446744073709551615, as a number or a string",
        Kind::Float => "a number in the range of float, \"NaN\", \"Infinity\" or \"-Infinity\"",
        Kind::Double => "a number in the range of double, \"NaN\", \"Infinity\" or \"-Infinity\"",
        Kind::Bool => "true or false",
        Kind::String => "a string",
        Kind::Bytes => "a string in base64",
        Kind::Enum => "a value of an enum",
        Kind::Message | Kind::Group => "an object",
    }
}

fn is_integer(kind: Kind, text: &str, may_have_fraction: bool) -> bool {
    let (low, high) = match kind {
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => (i128::from(i32::MIN), i128::from(i32::MAX)),
        Kind::Uint32 | Kind::Fixed32 => (0, i128::from(u32::MAX)),
        Kind::Uint64 | Kind::Fixed64 => (0, i128::from(u64::MAX)),
        _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
    };
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse::<i128>().is_ok_and(|number| (low..=high).contains(&number));
    }
    // 1.0 and 1e3 are whole numbers as well.
    let number = if may_have_fraction { text.parse::<f64>().ok() } else { None };
    let number = number.filter(|number| number.fract() == 0.0 && number.abs() < 1e30);
    number.is_some_and(|number| (low..=high).contains(&(number as i128)))
}

fn is_float(text: &str, is_string: bool, max: f64) -> bool {
    if is_string {
        if matches!(text, "NaN" | "Infinity" | "-Infinity") {
            return true;
        }
        // Names of infinity that the standard library knows are no JSON.
        if !text.ends_with(|c: char| c.is_ascii_digit()) || !text.starts_with(|c: char| c == '-' || c.is_ascii_digit())
        {
            return false;
        }
    }
    text.parse::<f64>().is_ok_and(|number| number.abs() <= max)
}

/// Base64 in the standard or the URL-safe alphabet, with or without padding.
fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    let most = match digits.len() % 4 {
        0 => 0,
        2 => 2,
        3 => 1,
        _ => return false,
    };
    let is_made_of = |extra: [u8; 2]| digits.bytes().all(|byte| byte.is_ascii_alphanumeric() || extra.contains(&byte));
    padding <= most && (is_made_of(*b"+/") || is_made_of(*b"-_"))
}

/// Checks a string that stands for a well-known type. The error says what was expected.
pub(super) fn check_special(special: Special, text: &str) -> Result<(), &'static str> {
    match special {
        Special::Timestamp if is_timestamp(text) => Ok(()),
        Special::Duration if is_duration(text) => Ok(()),
        Special::FieldMask if !text.contains('_') => Ok(()),
        Special::Timestamp => Err("a moment from year 1 to 9999 like \"2026-01-31T12:30:00.5Z\""),
        Special::Duration => Err("a duration in seconds of up to 10000 years like \"1.5s\""),
        Special::FieldMask => Err("paths in lowerCamelCase like \"name,address.city\""),
        _ => Err("a string"),
    }
}

fn is_duration(text: &str) -> bool {
    let number = text.strip_suffix('s').map(|number| number.strip_prefix('-').unwrap_or(number));
    let Some((seconds, fraction)) = number.map(|number| number.split_once('.').unwrap_or((number, "0"))) else {
        return false;
    };
    if !is_digits(seconds) || !is_digits(fraction) || fraction.len() > 9 {
        return false;
    }
    let is_whole = fraction.bytes().all(|byte| byte == b'0');
    seconds.parse::<u64>().is_ok_and(|seconds| seconds < MAX_DURATION || (seconds == MAX_DURATION && is_whole))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// RFC 3339 with a capital T and Z, and up to 9 digits of a second.
fn is_timestamp(text: &str) -> bool {
    timestamp(text).is_some()
}

fn timestamp(text: &str) -> Option<()> {
    let number = |range: std::ops::Range<usize>, allowed: std::ops::RangeInclusive<i64>| {
        let digits = text.get(range).filter(|digits| is_digits(digits))?;
        digits.parse::<i64>().ok().filter(|number| allowed.contains(number))
    };
    let (year, month) = (number(0..4, 1..=9999)?, number(5..7, 1..=12)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let day = number(8..10, 1..=days)?;
    let (hour, minute, second) = (number(11..13, 0..=23)?, number(14..16, 0..=59)?, number(17..19, 0..=59)?);
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    let fits = separators.iter().all(|&(at, separator)| text.as_bytes().get(at) == Some(&separator));
    let mut rest = text.get(19..).filter(|_| fits)?;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        rest = fraction.get(digits..).filter(|_| (1..=9).contains(&digits))?;
    }
    let offset = if rest == "Z" {
        0
    } else {
        let at = text.len() - rest.len();
        let sign = match rest.as_bytes() {
            [b'+', ..] => 1,
            [b'-', ..] => -1,
            _ => return None,
        };
        let (hours, minutes) = (number(at + 1..at + 3, 0..=23)?, number(at + 4..at + 6, 0..=59)?);
        (rest.len() == 6 && rest.as_bytes()[3] == b':').then_some(sign * (hours * 60 + minutes))?
    };
    // An offset may lead out of the first or the last year.
    let of_day = hour * 3600 + minute * 60 + second - offset * 60;
    let before = (year, month, day) == (1, 1, 1) && of_day < 0;
    let after = (year, month, day) == (9999, 12, 31) && of_day >= 86_400;
    (!before && !after).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_all(kind: Kind, numbers: &[&str], strings: &[&str], refused_numbers: &[&str], refused_strings: &[&str]) {
        for (texts, token, fits) in [
            (numbers, Token::Number, true),
            (strings, Token::Plain, true),
            (refused_numbers, Token::Number, false),
            (refused_strings, Token::Plain, false),
        ] {
            for text in texts {
                assert_eq!(check(kind, token, text).is_ok(), fits, "{kind:?} {token:?} {text}");
            }
        }
    }

    #[test]
    fn numbers_have_ranges() {
        let int32 = ["0", "-2147483648", "1e3", "1.0", "2.147483647e9"];
        check_all(
            Kind::Int32,
            &int32,
            &["5", "-7"],
            &["2147483648", "1.5", "1e-1"],
            &["", "1.0", "x", "-", "+1", " 1"],
        );
        check_all(Kind::Uint32, &["4294967295", "-0"], &["0"], &["-1", "4294967296"], &["-1"]);
        let (max, over) = ("18446744073709551615", "18446744073709551616");
        check_all(Kind::Uint64, &[max, "1e19"], &[max], &[over, "1e20", "1e400"], &[over, "1e3"]);
        check_all(Kind::Int64, &["-9223372036854775808"], &["9223372036854775807"], &["9223372036854775808"], &["0x1"]);
        check_all(Kind::Float, &["1", "3.4e38"], &["NaN", "-Infinity", "1.5"], &["1e39"], &["nan", "inf", "1.", ".5"]);
        check_all(Kind::Double, &["1e308"], &["Infinity", "-1e5"], &["1e309"], &["1e309", "infinity", "", "+1"]);
    }

    #[test]
    fn bytes_are_base64() {
        let strings = ["", "AA==", "AA=", "AA", "ab-_", "ab+/", "AAA="];
        check_all(Kind::Bytes, &[], &strings, &["1"], &["A", "ab+_", "AAA==", "AA==A", "ä", "A A="]);
    }

    #[test]
    fn moments_and_durations() {
        let cases = [
            (Special::Timestamp, "2026-01-31T12:30:00Z", true),
            (Special::Timestamp, "2024-02-29T23:59:59.999999999+05:30", true),
            (Special::Timestamp, "2026-02-29T00:00:00Z", false),
            (Special::Timestamp, "2026-01-31T12:30:00z", false),
            (Special::Timestamp, "2026-01-31T12:30:00", false),
            (Special::Timestamp, "2026-01-31T12:30Z", false),
            (Special::Timestamp, "2026-01-31T24:00:00Z", false),
            (Special::Timestamp, "2026-01-31T12:30:60Z", false),
            (Special::Timestamp, "2026-01-31T12:30:00.Z", false),
            (Special::Timestamp, "2026-01-31T12:30:00.1234567890Z", false),
            (Special::Timestamp, "0001-01-01T00:00:00Z", true),
            (Special::Timestamp, "0001-01-01T00:00:00+01:00", false),
            (Special::Timestamp, "9999-12-31T23:59:59-00:01", false),
            (Special::Timestamp, "0000-12-31T00:00:00Z", false),
            (Special::Timestamp, "2026-01-31T12:30:00+5:30", false),
            (Special::Timestamp, "2026-01-31T12:30:00+05-30", false),
            (Special::Timestamp, "2026-01-31Tää:30:00Z", false),
            (Special::Timestamp, "", false),
            (Special::Duration, "1s", true),
            (Special::Duration, "-1.000000001s", true),
            (Special::Duration, "315576000000s", true),
            (Special::Duration, "315576000000.1s", false),
            (Special::Duration, "315576000001s", false),
            (Special::Duration, "1", false),
            (Special::Duration, "s", false),
            (Special::Duration, "1.s", false),
            (Special::Duration, ".5s", false),
            (Special::Duration, "1.0000000001s", false),
            (Special::Duration, "--1s", false),
            (Special::FieldMask, "a,b.cD", true),
            (Special::FieldMask, "", true),
            (Special::FieldMask, "a_b", false),
        ];
        for (special, text, fits) in cases {
            assert_eq!(check_special(special, text).is_ok(), fits, "{special:?} {text}");
        }
    }
}
