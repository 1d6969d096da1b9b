//! JSON whose numbers keep all their digits. A number that `f64` and 64-bit integers cannot hold is an object with one
//! field, [`TOKEN`], whose value is the number's text; it is read and written here and nowhere else.

use serde::Serialize;
use serde::de::{Error as _, IgnoredAny};
use serde_json::{Map, Number, Value};

/// The name of the field that holds the digits of a number.
pub(crate) const TOKEN: &str = "$tidegate::private::Number";

/// Reads JSON.
///
/// # Errors
/// When the text is no JSON.
pub(crate) fn from_str(text: &str) -> Result<Value, serde_json::Error> {
    if text.contains(TOKEN) {
        return Err(serde_json::Error::custom(format_args!("it has the text {TOKEN}, which is kept for other things")));
    }
    let (mut kept, mut done, mut at) = (String::new(), 0, 0);
    let bytes = text.as_bytes();
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = end_of_string(bytes, at),
            b'-' | b'0'..=b'9' => {
                let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
                let end = at + bytes[at..].iter().take_while(|byte| is_part(byte)).count();
                let number = &text[at..end];
                if is_json(number) && !is_held(number) {
                    kept.push_str(&text[done..at]);
                    kept.push_str(&token(number).to_string());
                    done = end;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    kept.push_str(&text[done..]);
    serde_json::from_str(&kept)
}

/// The position behind a string that begins here.
fn end_of_string(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// A number in decimal digits, such as `1.5`, `.5`, `+1` or `1e400`; `None` if the text is none.
pub(crate) fn number_of(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let plain = Decimal::of(unsigned)?;
    let json = if is_json(unsigned) { unsigned.to_owned() } else { plain.to_string() };
    match serde_json::from_str::<Number>(&json) {
        Ok(number) if is_held(&json) => Some(Value::Number(number)),
        _ => Some(token(&json)),
    }
}

/// The digits of a number that no `Number` can hold.
pub(crate) fn digits(value: &Value) -> Option<&str> {
    let fields = value.as_object().filter(|fields| fields.len() == 1)?;
    fields.get(TOKEN)?.as_str()
}

/// A number that no `Number` can hold, written in one way.
pub(crate) fn canonical(value: &Value) -> Option<String> {
    Some(Decimal::of(digits(value)?)?.to_string())
}

/// Writes JSON on one line.
///
/// # Errors
/// When the value cannot be written as JSON.
pub(crate) fn to_string(value: &impl Serialize) -> Result<String, serde_json::Error> {
    serde_json::to_string(value).map(bare)
}

/// Writes JSON with indentation.
///
/// # Errors
/// When the value cannot be written as JSON.
pub(crate) fn to_string_pretty(value: &impl Serialize) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(value).map(bare)
}

/// Puts numbers in place of their objects. Within a string, quotes are escaped: what looks like such an object is one.
fn bare(written: String) -> String {
    let field = format!("\"{TOKEN}\":");
    if !written.contains(&field) {
        return written;
    }
    let mut parts = written.split(&field);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.truncate(text.trim_end().len());
        text.pop();
        let mut quoted = part.splitn(3, '"').skip(1);
        text.push_str(quoted.next().unwrap_or_default());
        text.push_str(quoted.next().and_then(|rest| rest.trim_start().strip_prefix('}')).unwrap_or_default());
    }
    text
}

fn token(digits: &str) -> Value {
    Value::Object(Map::from_iter([(TOKEN.to_owned(), digits.into())]))
}

fn is_json(number: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(number).is_ok()
}

/// Whether a `Number` keeps the value.
fn is_held(number: &str) -> bool {
    let kept = serde_json::from_str::<Number>(number).ok();
    kept.is_some_and(|kept| {
        let (kept, said) = (Decimal::of(&kept.to_string()), Decimal::of(number));
        kept.is_some() && kept == said
    })
}

/// A decimal number: digits without zeros at either end, times a power of ten.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    is_negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// Reads digits with a sign, a point and an exponent, of which all but the digits may be missing.
    fn of(text: &str) -> Option<Self> {
        let (is_negative, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
        let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{part}");
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let places = i64::try_from(part.len()).ok()?;
        let significant = digits.trim_end_matches('0');
        let zeros = i64::try_from(digits.len() - significant.len()).ok()?;
        let exponent = exponent.parse::<i64>().ok()?.checked_sub(places)?.checked_add(zeros)?;
        let significant = significant.trim_start_matches('0');
        if significant.is_empty() {
            return Some(Self { is_negative: false, digits: "0".into(), exponent: 0 });
        }
        Some(Self { is_negative, digits: significant.to_owned(), exponent })
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.is_negative { "-" } else { "" };
        write!(f, "{sign}{}e{}", self.digits, self.exponent)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const LONG: &str = "12345678901234567890.12345678901234567890";

    #[test]
    fn numbers_keep_their_digits() {
        for number in [LONG, "99999999999999999999", "-0.10000000000000000000001", "1e400", "-1E-400", "1e99999999999"]
        {
            let text = format!(r#"{{"a":[{number},"x{number}\"{number}",1.5],"b":{{"c":{number}}}}}"#);
            let read = from_str(&text).unwrap();
            assert_eq!(to_string(&read).unwrap(), text);
            assert_eq!(digits(&read["b"]["c"]), Some(number));
            let pretty = to_string_pretty(&read).unwrap();
            assert!(pretty.contains(&format!("\"c\": {number}\n")), "{pretty}");
            assert_eq!(from_str(&pretty).unwrap(), read, "{pretty}");
        }
    }

    #[test]
    fn what_a_number_holds_is_a_number() {
        let text = r#"[0, -1, 18446744073709551615, 0.1, 1.50, 1e3, 1.0e2, 5e-324, -0]"#;
        let read = from_str(text).unwrap();
        assert!(read.as_array().unwrap().iter().all(Value::is_number), "{read}");
        assert_eq!(read, serde_json::from_str::<Value>(text).unwrap());
        for bad in ["[01]", "[1.]", "[--1]", "\"", "\"\\", "{", "[1 2]", "-", ""] {
            assert!(from_str(bad).is_err(), "{bad}");
        }
        let own = format!(r#"{{"{TOKEN}":"1"}}"#);
        assert!(from_str(&own).unwrap_err().to_string().contains("kept for other things"));
    }

    #[test]
    fn numbers_of_yaml_have_forms_of_their_own() {
        for (text, value) in [("+1.5", json!(1.5)), (".5", json!(0.5)), ("1.", json!(1.0)), ("1e3", json!(1000.0))] {
            assert_eq!(number_of(text).and_then(|number| number.as_f64()), value.as_f64(), "{text}");
        }
        for (text, written) in [(LONG, LONG), ("+99999999999999999999", "99999999999999999999"), (".1e999", "1e998")] {
            assert_eq!(to_string(&number_of(text)).unwrap(), written);
        }
        for text in ["1.2.3", "e5", "-", ".", "1-2", "1e", "2026-01-01"] {
            assert_eq!(number_of(text), None, "{text}");
        }
        let one = |text: &str| number_of(text).and_then(|number| canonical(&number));
        assert_eq!(one("100000000000000000000000.10"), one("1000000000000000000000001e-1"));
        assert_ne!(one("1e400"), one("1e401"));
    }

    proptest! {
        #[test]
        fn any_number_comes_back(whole in "0|-?[1-9][0-9]{0,30}", part in "(\\.[0-9]{1,30})?", exponent in "(e[+-]?[0-9]{1,3})?") {
            let number = format!("{whole}{part}{exponent}");
            let read = from_str(&number).unwrap();
            let written = to_string(&read).unwrap();
            prop_assert_eq!(Decimal::of(&written), Decimal::of(&number), "{} became {}", number, written);
        }
    }
}
