//! Media types: what they say about data.

/// The type, the subtype and the charset of a media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MediaType<'a> {
    top: &'a str,
    sub: &'a str,
    charset: Option<&'a str>,
}

impl<'a> MediaType<'a> {
    /// Reads `type/subtype; name=value`. `None` when it is not of this form (RFC 2046, RFC 9110).
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let (essence, mut rest) = split_parameter(text);
        let (top, sub) = essence.trim_matches([' ', '\t']).split_once('/')?;
        if !is_token(top) || !is_token(sub) {
            return None;
        }
        let mut charset = None;
        while let Some(parameters) = rest {
            let (parameter, after) = split_parameter(parameters);
            rest = after;
            let parameter = parameter.trim_matches([' ', '\t']);
            if parameter.is_empty() {
                continue;
            }
            let (name, value) = parameter.split_once('=')?;
            let value = parameter_value(value)?;
            if !is_token(name) {
                return None;
            }
            if name.eq_ignore_ascii_case("charset") && charset.is_none() {
                charset = Some(value);
            }
        }
        Some(Self { top, sub, charset })
    }

    /// Whether it is this type and subtype, whatever its parameters.
    pub(super) fn is(&self, essence: &str) -> bool {
        essence
            .split_once('/')
            .is_some_and(|(top, sub)| self.top.eq_ignore_ascii_case(top) && self.sub.eq_ignore_ascii_case(sub))
    }

    /// Whether it belongs to the media types of CloudEvents.
    pub(super) fn is_cloud_event(&self) -> bool {
        let prefix = self.sub.get(.."cloudevents".len());
        self.top.eq_ignore_ascii_case("application")
            && prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case("cloudevents"))
    }

    /// Whether it declares JSON: `*/json` or `*/*+json`.
    pub(super) fn is_json(&self) -> bool {
        let suffix = self.sub.rsplit('+').next().unwrap_or_default();
        suffix.eq_ignore_ascii_case("json")
    }

    /// Whether it is `application/json` or an application's own kind of it.
    pub(super) fn is_application_json(&self) -> bool {
        self.top.eq_ignore_ascii_case("application") && self.is_json()
    }

    /// Whether text in UTF-8 is what it declares.
    pub(super) fn is_utf_8(&self) -> bool {
        self.charset.is_none_or(|charset| charset.eq_ignore_ascii_case("utf-8") || charset.eq_ignore_ascii_case("utf8"))
    }

    /// Whether this text has the same bytes in its charset as in UTF-8.
    pub(super) fn can_say(&self, text: &str) -> bool {
        let extends_ascii = |charset: &str| {
            let lower = charset.to_ascii_lowercase();
            lower == "us-ascii" || lower.starts_with("iso-8859-") || lower.starts_with("windows-125")
        };
        self.is_utf_8() || (text.is_ascii() && self.charset.is_some_and(extends_ascii))
    }

    /// The bytes as text, if it declares plain text that UTF-8 can express.
    pub(super) fn text_of<'b>(&self, bytes: &'b [u8]) -> Option<&'b str> {
        let text = std::str::from_utf8(bytes).ok()?;
        (self.top.eq_ignore_ascii_case("text") && !self.is_json() && self.can_say(text)).then_some(text)
    }
}

/// What is before the first semicolon that is not quoted, and what is after it.
fn split_parameter(text: &str) -> (&str, Option<&str>) {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b';' if !quoted => return (text.get(..at).unwrap_or_default(), text.get(at + 1..)),
            _ => {}
        }
    }
    (text, None)
}

/// A token, or the inside of a quoted string.
fn parameter_value(value: &str) -> Option<&str> {
    if is_token(value) {
        return Some(value);
    }
    let inner = value.strip_prefix('"')?.strip_suffix('"')?;
    let mut escaped = false;
    for byte in inner.bytes() {
        match byte {
            b' '..=b'~' if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return None,
            b' '..=b'~' => {}
            _ => return None,
        }
    }
    (!escaped).then_some(inner)
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_the_form_of_a_media_type() {
        let good = [
            "application/json",
            "Application/JSON; charset=utf-8",
            "text/plain;charset=\"utf-8\"",
            "text/plain ; a=b;c=\"d;e\\\"f\"",
            "text/plain;",
            "application/vnd.apache.thrift.binary",
            "image/svg+xml",
            "x/y; a=\"\"",
        ];
        for text in good {
            assert!(MediaType::parse(text).is_some(), "{text}");
        }
        let bad = [
            "",
            "json",
            "/",
            "a/",
            "/b",
            "a/b/c",
            "a b/c",
            "a/b;c",
            "a/b; c=",
            "a/b; c=d e",
            "a/b; c=\"d",
            "a/ü",
            "a/b; c=\"ü\"",
            "a/b; c=\"\\\"",
            "a/b; c=\"d\"e\"",
            "a/b c",
            "text/html, text/plain",
        ];
        for text in bad {
            assert!(MediaType::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn json_is_a_subtype_or_a_suffix() {
        let json = |text| MediaType::parse(text).unwrap().is_json();
        for yes in ["application/json", "text/JSON", "application/geo+json;a=b", "a/b+c+json", "application/+JSON"] {
            assert!(json(yes), "{yes}");
        }
        for no in ["application/jsonl", "application/x-json", "application/json-seq", "text/plain;a=json", "json/xml"] {
            assert!(!json(no), "{no}");
        }
    }

    #[test]
    fn text_is_what_utf_8_can_express() {
        let text = |media_type, bytes: &'static [u8]| MediaType::parse(media_type).unwrap().text_of(bytes);
        let cases = [
            ("text/plain", "é", true),
            ("TEXT/csv; charset=UTF-8", "é", true),
            ("text/plain; charset=\"utf-8\"", "é", true),
            ("text/plain; charset=us-ascii", "e", true),
            ("text/plain; charset=us-ascii", "é", false),
            ("text/plain; charset=ISO-8859-1", "e", true),
            ("text/plain; charset=ISO-8859-1", "é", false),
            ("text/plain; charset=windows-1252", "e", true),
            ("text/plain; charset=utf-16", "e", false),
            ("application/xml", "e", false),
            ("text/json", "1", false),
        ];
        for (media_type, bytes, is_text) in cases {
            assert_eq!(text(media_type, bytes.as_bytes()).is_some(), is_text, "{media_type} {bytes}");
        }
        assert_eq!(text("text/plain", b"\xe9"), None);
    }
}
