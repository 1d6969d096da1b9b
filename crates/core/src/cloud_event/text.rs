//! Names and texts of attributes.

use super::invalid::InvalidCloudEvent;
use crate::name::MAX_NAME;

/// The first 60 characters of a text of the sender, with those escaped that do not print.
pub(super) fn clip(text: &str) -> String {
    let shown: String = text.chars().take(60).collect();
    if shown.chars().all(is_allowed) && !shown.is_empty() { shown } else { format!("{shown:?}") }
}

/// Checks the name of an extension attribute.
pub(super) fn check_name(name: &str) -> Result<(), InvalidCloudEvent> {
    if is_extension_name(name) {
        return Ok(());
    }
    let reason = match name {
        "data" => "is not an attribute: send data as the body",
        "" => "is not a valid attribute name: it must have at least one character",
        _ => "is not a valid attribute name: it must be lower-case letters (a to z) and digits",
    };
    Err(InvalidCloudEvent::of(name, reason))
}

/// Whether an attribute may have this name. That names have at most 20 characters is only a recommendation.
pub(super) fn is_extension_name(name: &str) -> bool {
    !name.is_empty() && name != "data" && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// Checks that a text has only characters that attributes may have.
pub(super) fn check_text(field: &str, text: &str) -> Result<(), InvalidCloudEvent> {
    if !text.chars().all(is_allowed) {
        return Err(InvalidCloudEvent::of(field, "must not have control characters or Unicode noncharacters"));
    }
    Ok(())
}

/// Checks a text that is stored as a key: an id, a type, a group.
pub(super) fn check_key(field: &str, text: &str) -> Result<(), InvalidCloudEvent> {
    if text.is_empty() {
        return Err(InvalidCloudEvent::of(field, "must not be empty"));
    }
    if text.len() > MAX_NAME {
        let length = text.len();
        return Err(InvalidCloudEvent::of(field, format!("has {length} bytes: it must have at most {MAX_NAME}")));
    }
    check_text(field, text)
}

/// Whether texts of attributes may have this character.
pub(super) fn is_allowed(c: char) -> bool {
    !c.is_control() && !is_noncharacter(c)
}

/// Code points that Unicode keeps free for ever.
fn is_noncharacter(c: char) -> bool {
    let code = u32::from(c);
    (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noncharacters_are_those_of_unicode() {
        for c in ['\u{fdd0}', '\u{fdef}', '\u{fffe}', '\u{ffff}', '\u{1fffe}', '\u{10ffff}'] {
            assert!(is_noncharacter(c), "{c:?}");
        }
        for c in ['\u{fdcf}', '\u{fdf0}', '\u{fffd}', '\u{10000}', '\u{10fffd}', 'a'] {
            assert!(!is_noncharacter(c), "{c:?}");
        }
    }

    #[test]
    fn long_and_odd_names_are_shown_safely() {
        assert_eq!(clip("comexample"), "comexample");
        assert_eq!(clip(""), "\"\"");
        assert_eq!(clip("a\u{1b}[2J"), "\"a\\u{1b}[2J\"");
        assert_eq!(clip(&"x".repeat(1_000)).len(), 60);
    }

    #[test]
    fn keys_have_1_to_255_bytes() {
        assert!(check_key("id", &"x".repeat(255)).is_ok());
        for bad in ["", &"x".repeat(256), "a\nb", "\u{85}", "\u{ffff}"] {
            assert_eq!(check_key("id", bad).unwrap_err().field(), "id", "{bad:?}");
        }
    }
}
