//! JSON objects as they were sent: their members with values that are still raw text, so that nothing is reformatted.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::invalid::{CONTEXT, InvalidCloudEvent};
use super::{MAX_CONTEXT, MAX_DEPTH};

/// A member of an object.
pub(super) type Member<'a> = (Cow<'a, str>, &'a RawValue);

/// The body as text.
pub(super) fn text<'a>(field: &'static str, body: &'a [u8]) -> Result<&'a str, InvalidCloudEvent> {
    std::str::from_utf8(body)
        .map_err(|error| InvalidCloudEvent::new(field, format!("is not UTF-8 from byte {} on", error.valid_up_to())))
}

/// The members of the object that a text is. `field` names the object in errors.
///
/// # Errors
/// When it is no JSON object, has a member twice, or has so many that they cannot be attributes.
pub(super) fn members<'a>(field: &'static str, text: &'a str) -> Result<Vec<Member<'a>>, InvalidCloudEvent> {
    if !text.trim_ascii_start().starts_with('{') {
        return Err(match serde_json::from_str::<&RawValue>(text) {
            Ok(_) => InvalidCloudEvent::new(field, "must be a JSON object"),
            Err(error) => not_json(field, &error),
        });
    }
    let mut refused = None;
    let mut json = serde_json::Deserializer::from_str(text);
    let members = Members { refused: &mut refused }.deserialize(&mut json).and_then(|members| {
        json.end()?;
        Ok(members)
    });
    let members = members.map_err(|error| refused.unwrap_or_else(|| not_json(field, &error)))?;
    check_once(&members)?;
    Ok(members)
}

/// Refuses a member that is given twice.
fn check_once(members: &[Member<'_>]) -> Result<(), InvalidCloudEvent> {
    let mut names: Vec<&str> = members.iter().map(|(name, _)| &**name).collect();
    names.sort_unstable();
    let twice = names.windows(2).find_map(|pair| pair.first().filter(|name| pair.last() == Some(name)));
    twice.map_or(Ok(()), |name| Err(InvalidCloudEvent::of(name, "is given twice")))
}

/// The error for a text that is no JSON.
pub(super) fn not_json(field: &'static str, error: &serde_json::Error) -> InvalidCloudEvent {
    InvalidCloudEvent::new(field, format!("is not JSON: {error}"))
}

/// The bytes of a part of the body, without copying them.
pub(super) fn part_of(body: &Bytes, part: &str) -> Bytes {
    let start = (part.as_ptr() as usize).checked_sub(body.as_ptr() as usize);
    match start.and_then(|start| Some((start, start.checked_add(part.len())?))) {
        Some((start, end)) if end <= body.len() => body.slice(start..end),
        _ => Bytes::copy_from_slice(part.as_bytes()),
    }
}

/// Whether bytes are one JSON document in UTF-8.
pub(super) fn as_json(bytes: &[u8]) -> Option<&RawValue> {
    serde_json::from_str(std::str::from_utf8(bytes).ok()?).ok()
}

/// Refuses JSON that is nested too deeply for the programs that will read it: raw values are skipped without recursion,
/// so no parser has met a limit.
pub(super) fn check_depth(json: &[u8]) -> Result<(), InvalidCloudEvent> {
    let is_opening = |byte: &u8| matches!(byte, b'[' | b'{');
    // Most data have too few brackets to be deep.
    if json.iter().filter(|byte| is_opening(byte)).count() <= MAX_DEPTH {
        return Ok(());
    }
    let (mut depth, mut bytes) = (0_usize, json.iter());
    while let Some(byte) = bytes.find(|byte| matches!(byte, b'"' | b'[' | b'{' | b']' | b'}')) {
        match byte {
            b'"' => {
                while bytes.find(|byte| matches!(byte, b'"' | b'\\')) == Some(&b'\\') {
                    bytes.next();
                }
            }
            byte if is_opening(byte) => depth += 1,
            _ => depth = depth.saturating_sub(1),
        }
        if depth > MAX_DEPTH {
            return Err(InvalidCloudEvent::new("data", format!("is nested deeper than {MAX_DEPTH} levels")));
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads the members of an object. That there are too many is left in `refused`.
struct Members<'r> {
    refused: &'r mut Option<InvalidCloudEvent>,
}

impl<'de> DeserializeSeed<'de> for Members<'_> {
    type Value = Vec<Member<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = Vec<Member<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut members, mut length) = (Vec::new(), 0_usize);
        while let Some(Name(name)) = map.next_key()? {
            length += name.len();
            if length > MAX_CONTEXT {
                *self.refused = Some(too_large());
                return Err(A::Error::custom(CONTEXT));
            }
            members.push((name, map.next_value()?));
        }
        Ok(members)
    }
}

/// The error for context attributes that are too large together.
pub(super) fn too_large() -> InvalidCloudEvent {
    InvalidCloudEvent::new(CONTEXT, format!("have more than {MAX_CONTEXT} bytes together: put what is large into data"))
}

#[cfg(test)]
mod tests {
    use super::super::invalid::EVENT;
    use super::*;

    #[test]
    fn members_are_raw() {
        let text = r#" { "a" : 1.50 , "\u0062":  {"x": [1,  2]} } "#;
        let members = members(EVENT, text).unwrap();
        let members: Vec<_> = members.iter().map(|(name, value)| (&**name, value.get())).collect();
        assert_eq!(members, [("a", "1.50"), ("b", r#"{"x": [1,  2]}"#)]);
    }

    #[test]
    fn what_is_no_object_or_says_something_twice() {
        let cases = [
            ("", "is not JSON"),
            ("{", "is not JSON"),
            ("{} x", "is not JSON"),
            ("{'a': 1}", "is not JSON"),
            ("\u{feff}{}", "is not JSON"),
            ("[]", "must be a JSON object"),
            ("null", "must be a JSON object"),
            ("\"{}\"", "must be a JSON object"),
            (r#"{"a": 1, "a": 1}"#, "a is given twice"),
            (r#"{"a": null, "\u0061": null}"#, "a is given twice"),
        ];
        for (text, expected) in cases {
            let error = members(EVENT, text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn depth_counts_brackets_outside_strings() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(check_depth(nested(128).as_bytes()).is_ok());
        assert!(check_depth(nested(129).as_bytes()).is_err());
        assert!(check_depth(format!("\"{}\\\"[\"", nested(500)).as_bytes()).is_ok());
        assert!(check_depth("{},".repeat(500).as_bytes()).is_ok());
        assert!(check_depth(format!("\"\\\\\"{}", nested(129)).as_bytes()).is_err(), "the string has ended");
        assert!(check_depth("\"[\\".repeat(500).as_bytes()).is_ok(), "a string without an end");
    }

    #[test]
    fn parts_are_not_copied() {
        let body = Bytes::from_static(b"{\"a\": [1]}");
        let text = std::str::from_utf8(&body).unwrap();
        let part = part_of(&body, &text[6..9]);
        assert_eq!((&part[..], part.as_ptr()), (&b"[1]"[..], body[6..].as_ptr()));
        assert_eq!(part_of(&body, "elsewhere"), "elsewhere");
    }
}
