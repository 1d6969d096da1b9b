//! Values of simple types: how the primitive types are written, which values are equal, and which is larger.

mod binary;
mod decimal;
mod duration;
mod moment;
mod text;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::Write as _;

pub(super) use decimal::Decimal;
use duration::Duration;
use moment::Moment;

/// What a value is written as. Beside the primitive types these are the derived types that need more than facets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    String,
    Language,
    Nmtoken,
    Name,
    NcName,
    Id,
    Idref,
    Entity,
    Boolean,
    Decimal,
    Integer,
    Float,
    Double,
    Duration,
    DateTime,
    Time,
    Date,
    GYearMonth,
    GYear,
    GMonthDay,
    GDay,
    GMonth,
    HexBinary,
    Base64Binary,
    AnyUri,
    QName,
}

/// Which facets a kind may have, beside `pattern` and `whiteSpace`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// The length ones and `enumeration`.
    Sized,
    /// Those of a name with a prefix, whose length is never looked at.
    Named,
    /// The bounds and `enumeration`.
    Ordered,
    /// The bounds, `enumeration`, and numbers of digits.
    Numeric,
    /// None.
    Plain,
}

/// Resolves the prefixes of values: to the URI of a namespace.
pub(super) trait Prefixes {
    /// The namespace of a prefix, empty for none; `None` if it is not declared.
    fn uri(&self, prefix: &str) -> Option<&str>;
}

/// A value of a primitive type.
#[derive(Debug, Clone)]
pub(super) enum Value<'v> {
    Text(Cow<'v, str>),
    Boolean(bool),
    Decimal(Decimal<'v>),
    Float(f32),
    Double(f64),
    Duration(Duration),
    Moment(Moment),
    Binary(Vec<u8>),
    QName(Box<str>, Box<str>),
}

impl Kind {
    /// The primitive type that it is derived from.
    pub(super) fn primitive(self) -> Self {
        match self {
            Self::Language | Self::Nmtoken | Self::Name | Self::NcName | Self::Id | Self::Idref | Self::Entity => {
                Self::String
            }
            Self::Integer => Self::Decimal,
            other => other,
        }
    }

    /// Which facets it may have.
    pub(super) fn family(self) -> Family {
        match self.primitive() {
            Self::String | Self::HexBinary | Self::Base64Binary | Self::AnyUri => Family::Sized,
            Self::QName => Family::Named,
            Self::Decimal => Family::Numeric,
            Self::Boolean => Family::Plain,
            _ => Family::Ordered,
        }
    }

    /// Whether all texts are values, so that there is nothing to check.
    pub(super) fn is_any_text(self) -> bool {
        self == Self::String
    }

    /// Reads a text whose white space is normalised.
    ///
    /// # Errors
    /// Why the text is no value, for people.
    pub(super) fn read<'v>(self, text: &'v str, prefixes: &dyn Prefixes) -> Result<Value<'v>, &'static str> {
        let checked = |good: bool, why| if good { Ok(Value::Text(Cow::Borrowed(text))) } else { Err(why) };
        match self {
            Self::String => checked(true, ""),
            Self::Language => checked(text::is_language(text), "it is no language tag"),
            Self::Nmtoken => checked(text::is_nmtoken(text), "it is no name token"),
            Self::Name => checked(super::xml::is_name(text), "it is no name"),
            Self::NcName => checked(super::xml::is_ncname(text), "it is no name without a colon"),
            Self::Id | Self::Idref | Self::Entity => {
                checked(super::xml::is_ncname(text), "it is no identifier: a name without a colon")
            }
            Self::AnyUri => checked(text::is_uri(text), "it is no URI reference"),
            Self::Boolean => match text {
                "true" | "1" => Ok(Value::Boolean(true)),
                "false" | "0" => Ok(Value::Boolean(false)),
                _ => Err("it is neither true, false, 1 nor 0"),
            },
            Self::Decimal => Decimal::read(text).map(Value::Decimal).ok_or("it is no decimal number"),
            Self::Integer => {
                Decimal::read(text).filter(|_| !text.contains('.')).map(Value::Decimal).ok_or("it is no whole number")
            }
            Self::Float => text::float(text).map(Value::Float).ok_or("it is no floating-point number"),
            Self::Double => text::float(text).map(Value::Double).ok_or("it is no floating-point number"),
            Self::Duration => Duration::read(text).map(Value::Duration),
            Self::HexBinary => binary::hex(text).map(Value::Binary).ok_or("it is no sequence of pairs of hex digits"),
            Self::Base64Binary => binary::base64(text).map(Value::Binary).ok_or("it is not in base64"),
            Self::QName => {
                let (prefix, local) = text.split_once(':').unwrap_or(("", text));
                if !super::xml::is_ncname(local) || !(prefix.is_empty() || super::xml::is_ncname(prefix)) {
                    return Err("it is no qualified name");
                }
                if text.starts_with(':') {
                    return Err("it is no qualified name");
                }
                let uri = prefixes.uri(prefix).ok_or("its prefix is not declared")?;
                Ok(Value::QName(uri.into(), local.into()))
            }
            moment => Moment::read(moment, text).map(Value::Moment),
        }
    }
}

impl Value<'_> {
    /// The same value, independent of the text that it was read from.
    pub(super) fn into_owned(self) -> Value<'static> {
        match self {
            Self::Text(text) => Value::Text(Cow::Owned(text.into_owned())),
            Self::Decimal(number) => Value::Decimal(number.into_owned()),
            Self::Boolean(value) => Value::Boolean(value),
            Self::Float(value) => Value::Float(value),
            Self::Double(value) => Value::Double(value),
            Self::Duration(value) => Value::Duration(value),
            Self::Moment(value) => Value::Moment(value),
            Self::Binary(value) => Value::Binary(value),
            Self::QName(uri, local) => Value::QName(uri, local),
        }
    }

    /// Compares two values of one primitive type. `None` where neither is larger and they are not equal.
    pub(super) fn compare(&self, other: &Value<'_>) -> Option<Ordering> {
        match (self, other) {
            (Self::Decimal(one), Value::Decimal(other)) => Some(one.cmp(other)),
            (Self::Float(one), Value::Float(other)) => compare_floats(f64::from(*one), f64::from(*other)),
            (Self::Double(one), Value::Double(other)) => compare_floats(*one, *other),
            (Self::Duration(one), Value::Duration(other)) => one.compare(other),
            (Self::Moment(one), Value::Moment(other)) => one.compare(other),
            _ => None,
        }
    }

    /// Adds a text that equal values of one primitive type have in common, and no others.
    pub(super) fn key(&self, out: &mut String) {
        let _ = match self {
            Self::Text(text) => {
                out.push_str(text);
                Ok(())
            }
            Self::Boolean(value) => write!(out, "{value}"),
            Self::Decimal(value) => value.key(out),
            Self::Float(value) => write!(out, "{value:?}"),
            Self::Double(value) => write!(out, "{value:?}"),
            Self::Duration(value) => value.key(out),
            Self::Moment(value) => value.key(out),
            Self::Binary(value) => value.iter().try_for_each(|byte| write!(out, "{byte:02x}")),
            Self::QName(uri, local) => write!(out, "{{{uri}}}{local}"),
        };
    }

    /// The length that the length facets look at.
    pub(super) fn length(&self) -> usize {
        match self {
            Self::Text(text) => text.chars().count(),
            Self::Binary(value) => value.len(),
            _ => 0,
        }
    }
}

/// Not a number equals itself and nothing else; negative zero is less than positive zero.
fn compare_floats(one: f64, other: f64) -> Option<Ordering> {
    if one.is_nan() || other.is_nan() {
        return (one.is_nan() && other.is_nan()).then_some(Ordering::Equal);
    }
    Some(one.total_cmp(&other))
}

/// Makes white space what a type says: each character a space, or one space between words.
pub(super) fn normalize(text: &str, white: White) -> Cow<'_, str> {
    let is_space = super::xml::is_space;
    match white {
        White::Preserve => Cow::Borrowed(text),
        White::Replace if !text.contains(['\t', '\n', '\r']) => Cow::Borrowed(text),
        White::Replace => Cow::Owned(text.replace(['\t', '\n', '\r'], " ")),
        White::Collapse => {
            let trimmed = text.trim_matches(is_space);
            let mut previous = b'x';
            let is_collapsed = trimmed.bytes().all(|byte| {
                let good = !(matches!(byte, b'\t' | b'\n' | b'\r') || byte == b' ' && previous == b' ');
                previous = byte;
                good
            });
            if is_collapsed {
                return Cow::Borrowed(trimmed);
            }
            let mut words = String::with_capacity(trimmed.len());
            for word in trimmed.split(is_space).filter(|word| !word.is_empty()) {
                if !words.is_empty() {
                    words.push(' ');
                }
                words.push_str(word);
            }
            Cow::Owned(words)
        }
    }
}

/// What a type does with white space, in the order of the restrictions that are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum White {
    Preserve,
    Replace,
    Collapse,
}

#[cfg(test)]
mod tests {
    use super::*;

    struct None;

    impl Prefixes for None {
        fn uri(&self, prefix: &str) -> Option<&str> {
            match prefix {
                "" => Some(""),
                "a" | "b" => Some("urn:a"),
                _ => Option::None,
            }
        }
    }

    fn key(kind: Kind, text: &str) -> Option<String> {
        let mut key = String::new();
        kind.read(text, &None).ok()?.key(&mut key);
        Some(key)
    }

    #[test]
    fn equal_values_have_equal_keys() {
        let equal = [
            (Kind::Decimal, "1.0", "+01."),
            (Kind::Decimal, "-0", "0.00"),
            (Kind::Integer, "-007", "-7"),
            (Kind::Boolean, "1", "true"),
            (Kind::Float, "1E2", "100"),
            (Kind::Double, "NaN", "NaN"),
            (Kind::Duration, "P1Y", "P12M"),
            (Kind::Duration, "P1DT1M", "PT24H60.0S"),
            (Kind::Duration, "-P0D", "PT0S"),
            (Kind::DateTime, "2026-01-01T00:00:00+01:00", "2025-12-31T23:00:00.0Z"),
            (Kind::DateTime, "2025-12-31T24:00:00", "2026-01-01T00:00:00"),
            (Kind::Time, "00:30:00+01:00", "23:30:00Z"),
            (Kind::HexBinary, "0aFF", "0Aff"),
            (Kind::Base64Binary, "AQ I=", "AQI="),
            (Kind::QName, "a:x", "b:x"),
        ];
        for (kind, one, other) in equal {
            assert!(key(kind, one).is_some(), "{one}");
            assert_eq!(key(kind, one), key(kind, other), "{kind:?} {one} {other}");
        }
        let different = [
            (Kind::Decimal, "1", "-1"),
            (Kind::Decimal, "10", "1"),
            (Kind::Duration, "P1M", "P30D"),
            (Kind::DateTime, "2026-01-01T00:00:00", "2026-01-01T00:00:00Z"),
            (Kind::QName, "a:x", "x"),
            (Kind::Double, "0", "-0"),
        ];
        for (kind, one, other) in different {
            assert_ne!(key(kind, one), key(kind, other), "{kind:?} {one} {other}");
        }
    }

    #[test]
    fn texts_that_are_no_values_are_refused() {
        let bad: &[(Kind, &[&str])] = &[
            (Kind::Decimal, &["", "+", ".", "1e3", "1,0", "--1", "1.2.3", " 1"]),
            (Kind::Integer, &["1.", "1.0", "", "a"]),
            (Kind::Float, &["", "+INF", "inf", "nan", "1e", "e1", ".", "1e1.0", "Infinity"]),
            (Kind::Boolean, &["TRUE", "", "yes", "2"]),
            (
                Kind::Duration,
                &["", "P", "PT", "P1", "1Y", "P1YT", "P1S", "P-1Y", "P1.5Y", "P1M1Y", "PT1.S", "P1Y ", "PT.5S"],
            ),
            (
                Kind::DateTime,
                &[
                    "2026-01-01",
                    "2026-13-01T00:00:00",
                    "2026-02-29T00:00:00",
                    "2026-01-01T24:00:01",
                    "2026-01-01T00:60:00",
                    "0000-01-01T00:00:00",
                    "02026-01-01T00:00:00",
                    "26-01-01T00:00:00",
                    "2026-01-01T00:00:00.",
                    "2026-01-01T00:00:00+14:01",
                    "2026-01-01t00:00:00z",
                    "+2026-01-01T00:00:00",
                    "2026-01-01T00:00",
                    "2026-1-1T00:00:00",
                    "2026-01-01T0a:00:00",
                ],
            ),
            (Kind::Date, &["2026-01-32", "2026-01-01T00:00:00", "2100-02-29", "2026-00-01"]),
            (Kind::Time, &["25:00:00", "00:00", "24:00:01", "1:00:00"]),
            (Kind::GYearMonth, &["2026", "2026-1", "2026-01-01"]),
            (Kind::GYear, &["26", "02026", "2026-01"]),
            (Kind::GMonthDay, &["--02-30", "--2-3", "-02-03", "--13-01"]),
            (Kind::GDay, &["---32", "--01", "---1"]),
            (Kind::GMonth, &["--13", "---01", "--1", "--01-"]),
            (Kind::HexBinary, &["a", "0g"]),
            (Kind::Base64Binary, &["A", "AQ", "AQI", "AR==", "A===", "AQ=I", "====", "AB C  D="]),
            (Kind::AnyUri, &["%zz", "a#b#c", ":a", "1a:b"]),
            (Kind::QName, &["", ":", "a:", ":a", "c:x", "a:b:c", "1"]),
            (Kind::Language, &["", "abcdefghi", "de_DE", "de-"]),
            (Kind::Nmtoken, &["", "a b"]),
            (Kind::Id, &["a:b", "1", ""]),
        ];
        for (kind, texts) in bad {
            for text in *texts {
                assert_eq!(key(*kind, text), Option::None, "{kind:?} {text:?}");
            }
        }
        let good: &[(Kind, &[&str])] = &[
            (Kind::Float, &["INF", "-INF", "NaN", "1.", ".5", "1e5", "-1.5E-3"]),
            (
                Kind::DateTime,
                &["-0001-01-01T00:00:00", "12026-02-28T23:59:59.999999999999Z", "2024-02-29T00:00:00-14:00"],
            ),
            (Kind::Date, &["2026-01-01", "2026-01-01Z", "2000-02-29+05:30"]),
            (Kind::GMonthDay, &["--02-29", "--12-31Z"]),
            (Kind::GMonth, &["--12", "--01+01:00"]),
            (Kind::GDay, &["---31", "---01Z"]),
            (Kind::GYear, &["2026", "-2026Z", "12026"]),
            (Kind::GYearMonth, &["2026-02", "-0001-12Z"]),
            (Kind::Duration, &["P1Y2M3DT4H5M6.7S", "-PT1S", "PT36H", "P0Y"]),
            (Kind::AnyUri, &["", "http://a/b?c#d", "a b", "ä", "#x", "a%20b", "urn:x:y", "../x", "http://[::1]/"]),
            (Kind::Language, &["de", "en-GB", "x-klingon1"]),
            (Kind::Base64Binary, &["", "AQ==", "AQID", "A Q I D"]),
        ];
        for (kind, texts) in good {
            for text in *texts {
                assert!(key(*kind, text).is_some(), "{kind:?} {text:?}");
            }
        }
    }

    #[test]
    fn values_are_ordered() {
        let order = |kind: Kind, one: &str, other: &str| {
            kind.read(one, &None).unwrap().compare(&kind.read(other, &None).unwrap())
        };
        use Ordering::{Equal, Greater, Less};
        let cases = [
            (Kind::Decimal, "-2", "-1.9", Some(Less)),
            (Kind::Decimal, "10", "9.99", Some(Greater)),
            (Kind::Decimal, "0.10", ".1", Some(Equal)),
            (Kind::Decimal, "123456789012345678901234567890", "123456789012345678901234567891", Some(Less)),
            (Kind::Double, "NaN", "1", Option::None),
            (Kind::Double, "-INF", "INF", Some(Less)),
            (Kind::Duration, "P1M", "P30D", Option::None),
            (Kind::Duration, "P1M", "P32D", Some(Less)),
            (Kind::Duration, "P1Y", "P364D", Some(Greater)),
            (Kind::Duration, "-P1Y", "P0D", Some(Less)),
            (Kind::DateTime, "2026-01-01T12:00:00", "2026-01-01T12:00:00Z", Option::None),
            (Kind::DateTime, "2026-01-01T12:00:00", "2026-01-02T12:00:00Z", Some(Less)),
            (Kind::DateTime, "2026-01-03T12:00:00Z", "2026-01-02T12:00:00", Some(Greater)),
            (Kind::DateTime, "-0001-01-01T00:00:00", "0001-01-01T00:00:00", Some(Less)),
            (Kind::Date, "2026-01-01", "2026-01-02", Some(Less)),
            (Kind::Time, "10:00:00Z", "10:00:00.5Z", Some(Less)),
            (Kind::GMonthDay, "--02-29", "--03-01", Some(Less)),
        ];
        for (kind, one, other, expected) in cases {
            assert_eq!(order(kind, one, other), expected, "{kind:?} {one} {other}");
            assert_eq!(order(kind, other, one), expected.map(Ordering::reverse), "{kind:?} {other} {one}");
        }
    }

    #[test]
    fn white_space_is_normalised() {
        assert_eq!(normalize(" a\n b ", White::Preserve), " a\n b ");
        assert_eq!(normalize(" a\n b ", White::Replace), " a  b ");
        assert_eq!(normalize(" a\n b ", White::Collapse), "a b");
        assert!(matches!(normalize(" a b ", White::Collapse), Cow::Borrowed("a b")));
    }
}
