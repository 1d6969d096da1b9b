//! URI-references of RFC 3986.

use std::borrow::Cow;
use std::fmt::Write;
use std::net::Ipv6Addr;

/// Whether a text is a URI-reference: a URI or a relative reference.
pub(super) fn is_reference(text: &str) -> bool {
    match scheme(text) {
        Some((scheme, rest)) => is_scheme(scheme) && is_after_scheme(rest),
        None => is_after_scheme(text),
    }
}

/// Whether a text is a URI: a reference with a scheme. Fragments are allowed, since schemas are often named by one.
pub(super) fn is_uri(text: &str) -> bool {
    scheme(text).is_some() && is_reference(text)
}

/// The text if it is a URI-reference; else one of it, with everything but letters, digits and `-._~` encoded.
pub(super) fn to_reference(text: &str) -> Cow<'_, str> {
    if is_reference(text) {
        return text.into();
    }
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if is_unreserved(byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded.into()
}

/// What is before the first colon, if that is before any slash, question mark or hash: no relative path begins so.
fn scheme(text: &str) -> Option<(&str, &str)> {
    let at = text.find([':', '/', '?', '#'])?;
    let (before, rest) = text.split_at_checked(at)?;
    Some((before, rest.strip_prefix(':')?))
}

fn is_scheme(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

/// `["//" authority] path ["?" query] ["#" fragment]`.
fn is_after_scheme(text: &str) -> bool {
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    let (text, query) = text.split_once('?').unwrap_or((text, ""));
    let is_tail = |text: &str| is_made_of(text, |byte| is_path(byte) || byte == b'?');
    let (authority, path) = match text.strip_prefix("//") {
        Some(rest) => rest.split_at_checked(rest.find('/').unwrap_or(rest.len())).unwrap_or((rest, "")),
        None => ("", text),
    };
    is_authority(authority) && is_made_of(path, is_path) && is_tail(query) && is_tail(fragment)
}

/// `[userinfo "@"] host [":" port]`.
fn is_authority(text: &str) -> bool {
    let (user, place) = text.rsplit_once('@').unwrap_or(("", text));
    let is_user = is_made_of(user, |byte| is_name(byte) || byte == b':');
    let (host_fits, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let Some((address, port)) = rest.split_once(']') else { return false };
            (is_address(address), port)
        }
        None => {
            let (host, port) = place.split_at_checked(place.find(':').unwrap_or(place.len())).unwrap_or((place, ""));
            (is_made_of(host, is_name), port)
        }
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    is_user && host_fits && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

/// What is between brackets: an IPv6 address, or an address of a later version.
fn is_address(text: &str) -> bool {
    let Some(later) = text.strip_prefix(['v', 'V']) else { return text.parse::<Ipv6Addr>().is_ok() };
    later.split_once('.').is_some_and(|(version, rest)| {
        let is_version = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_rest = |byte: u8| is_unreserved(byte) || is_delimiter(byte) || byte == b':';
        is_version && !rest.is_empty() && rest.bytes().all(is_rest)
    })
}

/// Whether each byte is allowed, or part of `%XY`.
fn is_made_of(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    let mut bytes = text.bytes();
    let is_hex = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_hexdigit());
    while let Some(byte) = bytes.next() {
        let fits = if byte == b'%' { is_hex(bytes.next()) && is_hex(bytes.next()) } else { allowed(byte) };
        if !fits {
            return false;
        }
    }
    true
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn is_delimiter(byte: u8) -> bool {
    b"!$&'()*+,;=".contains(&byte)
}

fn is_name(byte: u8) -> bool {
    is_unreserved(byte) || is_delimiter(byte)
}

fn is_path(byte: u8) -> bool {
    is_name(byte) || matches!(byte, b':' | b'@' | b'/')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn references_of_the_specifications() {
        let good = [
            "https://github.com/cloudevents",
            "mailto:cncf-wg-serverless@lists.cncf.io",
            "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66",
            "/cloudevents/spec/pull/123",
            "/sensors/tn-1234567/alerts",
            "1-555-123-4567",
            "ftp://ftp.is.co.za/rfc/rfc1808.txt",
            "ldap://[2001:db8::7]/c=GB?objectClass?one",
            "tel:+1-816-555-1212",
            "telnet://192.0.2.16:80/",
            "foo://user:pass@example.com:8042/over/there?name=ferret#nose",
            "http://[v1.fe:x]:80/",
            "ecommerce-api",
            "//host/path",
            "file:///etc/hosts",
            "http://",
            "http://a:/",
            "?query",
            "#fragment",
            "./a:b",
            "a/b:c",
            "x:",
            "%41/%e2%82%ac",
            "",
        ];
        for text in good {
            assert!(is_reference(text), "{text}");
            assert_eq!(to_reference(text), text);
        }
    }

    #[test]
    fn what_is_no_reference() {
        let bad = [
            "my system",
            "a\\b",
            "über",
            "<a>",
            "a\"b",
            "{a}",
            "a|b",
            "a^b",
            "`",
            "1a:b",
            ":a",
            "a%",
            "a%2",
            "a%zz",
            "a#b#c",
            "http://[::1",
            "http://[zz]/",
            "http://a:b/",
            "http://a]b/",
            "/a[b]",
            "?a[0]=b",
            "#[",
            "a b:c",
            "http://u@v@h/",
            "http://[::1]80/",
            "http://[v.x]/",
            "http://[v1.]/",
            "\n",
            "ü:a",
            "%41:b",
        ];
        for text in bad {
            assert!(!is_reference(text), "{text}");
            assert!(is_reference(&to_reference(text)), "{text}");
        }
        assert_eq!(to_reference("my system"), "my%20system");
    }

    #[test]
    fn uris_have_a_scheme() {
        for good in ["https://example.com/schema/1.0", "urn:x:y", "http://json-schema.org/draft-07/schema#"] {
            assert!(is_uri(good), "{good}");
        }
        for bad in ["", "/schemas/1", "schema", "//host/a", "1:b", "#a"] {
            assert!(!is_uri(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_can_be_made_a_reference(text in "[a-z:/?#@%0-9 \\[\\]]{0,20}|.{0,20}") {
            prop_assert!(is_reference(&to_reference(&text)));
        }
    }
}
