//! Values of HTTP headers: how attributes become printable ASCII and come back.

use std::fmt::Write;

/// Encodes a text: spaces, double quotes, percent signs and what is not printable ASCII become `%XY`, by byte of UTF-8.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' ' | b'"' | b'%' | 0..=0x20 | 0x7f.. => {
                // Writing to a string does not fail.
                let _ = write!(encoded, "%{byte:02X}");
            }
            _ => encoded.push(char::from(byte)),
        }
    }
    encoded
}

/// Decodes a value: first a quoted string, then one round of `%XY`. A percent sign that no two hexadecimal digits
/// follow stays, since some senders do not encode at all.
///
/// # Errors
/// Says what is wrong with it.
pub(super) fn decode(value: &[u8]) -> Result<String, &'static str> {
    let value = value.trim_ascii();
    if !value.iter().all(|byte| (0x20..=0x7e).contains(byte)) {
        return Err("must be percent-encoded in a header: it has bytes that are not printable ASCII");
    }
    let unquoted = unquote(value);
    let value = unquoted.as_deref().unwrap_or(value);
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((byte, after)) = rest.split_first() {
        match escaped(rest) {
            Some(octet) => {
                decoded.push(octet);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                decoded.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8(decoded).map_err(|_| "must be UTF-8 once it is percent-decoded")
}

/// The byte that is encoded as `%XY` at the start.
fn escaped(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else { return None };
    let (high, low) = (char::from(*high).to_digit(16)?, char::from(*low).to_digit(16)?);
    u8::try_from(high * 16 + low).ok()
}

/// What is within a value that is one quoted string; `None` for any other value.
fn unquote(value: &[u8]) -> Option<Vec<u8>> {
    let inner = value.strip_prefix(b"\"")?;
    let mut unquoted = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter().copied();
    loop {
        match bytes.next()? {
            b'"' => return bytes.next().is_none().then_some(unquoted),
            b'\\' => unquoted.push(bytes.next()?),
            byte => unquoted.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_encoded_as_the_binding_says() {
        let cases = [
            ("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
            ("100%", "100%25"),
            ("say \"hi\"", "say%20%22hi%22"),
            ("plain/!#$&'()*+,-.:;<=>?@[]^_`{|}~", "plain/!#$&'()*+,-.:;<=>?@[]^_`{|}~"),
            ("", ""),
            ("\u{7f}", "%7F"),
        ];
        for (text, encoded) in cases {
            assert_eq!(encode(text), encoded);
            assert_eq!(decode(encoded.as_bytes()).unwrap(), text);
        }
    }

    #[test]
    fn values_of_other_senders_are_decoded() {
        let cases = [
            ("%e2%82%ac", "€"),
            ("%41%2F", "A/"),
            (r#""with a \"quote\" and \\ in it""#, r#"with a "quote" and \ in it"#),
            (r#""a%20b""#, "a b"),
            (r#""""#, ""),
            ("Euro with spaces", "Euro with spaces"),
            ("  around \t", "around"),
            ("%2520", "%20"),
            ("100%", "100%"),
            ("50% off, %zz", "50% off, %zz"),
            (r#"[{"key":"a"}]"#, r#"[{"key":"a"}]"#),
            (r#"""#, r#"""#),
            (r#""a" and "b""#, r#""a" and "b""#),
            (r#""open"#, r#""open"#),
            (r#""open\""#, r#""open\""#),
        ];
        for (value, text) in cases {
            assert_eq!(decode(value.as_bytes()).as_deref(), Ok(text), "{value}");
        }
    }

    #[test]
    fn what_is_not_utf_8_is_refused() {
        for bad in ["%C0%A0", "%ff", "%e2%82", "%ED%A0%80"] {
            assert!(decode(bad.as_bytes()).unwrap_err().contains("UTF-8"), "{bad}");
        }
        for bad in ["é".as_bytes(), b"\xe9", b"a\x01b", b"a\tb"] {
            assert!(decode(bad).unwrap_err().contains("percent-encoded"), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_comes_back(text in any::<String>()) {
            let encoded = encode(&text);
            prop_assert!(encoded.bytes().all(|byte| (0x21..=0x7e).contains(&byte) && byte != b'"'));
            prop_assert_eq!(decode(encoded.as_bytes()).unwrap(), text);
        }

        #[test]
        fn any_value_is_decoded_or_refused(value in any::<Vec<u8>>()) {
            let _ = decode(&value);
        }
    }
}
