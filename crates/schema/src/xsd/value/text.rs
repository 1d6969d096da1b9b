//! Texts of a form: languages, name tokens, URI references and floating-point numbers.

use std::str::FromStr;

use crate::xsd::xml::is_name_char;

/// Whether a text is a language tag of RFC 1766 as XML Schema has it.
pub(super) fn is_language(text: &str) -> bool {
    text.split('-').enumerate().all(|(at, part)| {
        let good = |byte: u8| byte.is_ascii_alphabetic() || (at > 0 && byte.is_ascii_digit());
        (1..=8).contains(&part.len()) && part.bytes().all(good)
    })
}

/// Whether a text is a name token.
pub(super) fn is_nmtoken(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_name_char)
}

/// Whether a text is a URI reference once the characters are escaped that a URI cannot have. What remains to be checked
/// is the scheme, that `%` escapes something, and that there is at most one fragment.
pub(super) fn is_uri(text: &str) -> bool {
    let mut rest = text.as_bytes();
    while let Some(at) = memchr::memchr(b'%', rest) {
        match rest.get(at + 1..at + 3) {
            Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => rest = &rest[at + 3..],
            _ => return false,
        }
    }
    let (before, fragment) = text.split_once('#').unwrap_or((text, ""));
    if fragment.contains('#') {
        return false;
    }
    let first = before.split(['/', '?']).next().unwrap_or_default();
    match first.split_once(':') {
        Some((scheme, after)) => {
            let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
            let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(good);
            is_scheme && !(after.is_empty() && before.len() == first.len())
        }
        None => true,
    }
}

/// Reads a floating-point number.
pub(super) fn float<F: FromStr>(text: &str) -> Option<F> {
    match text {
        "INF" => return "inf".parse().ok(),
        "-INF" => return "-inf".parse().ok(),
        "NaN" => return "NaN".parse().ok(),
        _ => {}
    }
    let has_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = |part: &'_ str| part.strip_prefix(['+', '-']).unwrap_or(part).to_owned();
    let (mantissa, exponent) = text.split_once(['e', 'E']).map_or((text, None), |(one, other)| (one, Some(other)));
    let mantissa = unsigned(mantissa);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((&mantissa, "0"));
    let good_mantissa = match (whole, fraction) {
        ("", fraction) => has_digits(fraction),
        (whole, "") => has_digits(whole),
        (whole, fraction) => has_digits(whole) && has_digits(fraction),
    };
    if !good_mantissa || !exponent.is_none_or(|exponent| has_digits(&unsigned(exponent))) {
        return None;
    }
    text.parse().ok()
}
