//! Bytes in hexadecimal and in base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Reads pairs of hexadecimal digits.
pub(super) fn hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let bytes = text.as_bytes();
    if !bytes.len().is_multiple_of(2) {
        return None;
    }
    bytes.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// Reads base64, in which single spaces may stand between characters.
pub(super) fn base64(text: &str) -> Option<Vec<u8>> {
    if text.contains("  ") || text.starts_with(' ') || text.ends_with(' ') {
        return None;
    }
    if text.contains(' ') { STANDARD.decode(text.replace(' ', "")).ok() } else { STANDARD.decode(text).ok() }
}
