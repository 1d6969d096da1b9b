//! Percent-encoding of queries.

use crate::error::{ApiError, Result};

/// Percent-decodes one name or value of a query.
pub(crate) fn decode(text: &str) -> Result<String> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |offset: usize| bytes.get(at + offset).and_then(|byte| (*byte as char).to_digit(16));
        match bytes[at] {
            b'+' => decoded.push(b' '),
            b'%' => {
                let (Some(high), Some(low)) = (hex(1), hex(2)) else {
                    return Err(ApiError::invalid("the query has a % that is not followed by two hexadecimal digits"));
                };
                decoded.push((high * 16 + low) as u8);
                at += 2;
            }
            byte => decoded.push(byte),
        }
        at += 1;
    }
    String::from_utf8(decoded).map_err(|_| ApiError::invalid("the query is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_strictly() {
        assert_eq!(decode("a%20b+c").unwrap(), "a b c");
        assert_eq!(decode("%C3%A4").unwrap(), "ä");
        for bad in ["%", "%2", "%zz", "%ff%fe", "%c3"] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }
}
