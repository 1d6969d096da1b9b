//! The tokens of JSON (RFC 8259): strings, numbers and words. What they mean is not decided here.

use super::tree::Fault;

/// Reads tokens of a text. `at` is where it is.
pub(super) struct Reader<'t> {
    bytes: &'t [u8],
    text: &'t str,
    pub(super) at: usize,
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// The highest bit of every byte that is zero; bytes after the first one may be wrong.
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGH
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { bytes: text.as_bytes(), text, at: 0 }
    }

    /// The next byte that is not white space; `at` is on it.
    pub(super) fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    /// What was expected instead of the byte at `at`.
    pub(super) fn unexpected(&self, expected: &str) -> Fault {
        self.fault(expected, self.at)
    }

    fn fault(&self, expected: &str, at: usize) -> Fault {
        let mut at = at.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let message = match self.text[at..].chars().next() {
            Some('\u{feff}') => format!("expected {expected}, found a byte order mark: leave it out"),
            Some(found) => format!("expected {expected}, found {found:?}"),
            None => format!("expected {expected}, found the end"),
        };
        Fault { message, at }
    }

    /// Nothing but white space is left.
    pub(super) fn end(&mut self) -> Result<(), Fault> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.fault("the end", self.at)),
        }
    }

    /// Reads `true`, `false` or `null`.
    pub(super) fn word(&mut self, word: &str) -> Result<(), Fault> {
        if self.bytes[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            return Ok(());
        }
        Err(self.fault(&format!("`{word}`"), self.at))
    }

    /// Reads a number.
    pub(super) fn number(&mut self) -> Result<(), Fault> {
        self.at += usize::from(self.bytes[self.at] == b'-');
        if self.bytes.get(self.at) == Some(&b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.bytes.get(self.at), Some(b'+' | b'-')));
            self.digits()?;
        }
        match self.bytes.get(self.at) {
            Some(b'0'..=b'9') => Err(self.fault("no digit after a leading zero", self.at)),
            _ => Ok(()),
        }
    }

    fn digits(&mut self) -> Result<(), Fault> {
        let from = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if self.at == from { Err(self.fault("a digit", self.at)) } else { Ok(()) }
    }

    /// Reads a string, from its quote on. If it has escapes, its contents are added to `contents`.
    pub(super) fn string(&mut self, contents: &mut String) -> Result<bool, Fault> {
        self.at += 1;
        let mut from = self.at;
        let mut escaped = false;
        loop {
            self.skip_plain();
            match self.bytes.get(self.at) {
                Some(b'"') => {
                    if escaped {
                        contents.push_str(&self.text[from..self.at]);
                    }
                    self.at += 1;
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    contents.push_str(&self.text[from..self.at]);
                    escaped = true;
                    let character = self.escape()?;
                    contents.push(character);
                    from = self.at;
                }
                Some(_) => {
                    let message = "a control character in a string has to be escaped".to_string();
                    return Err(Fault { message, at: self.at });
                }
                None => return Err(self.fault("`\"`", self.at)),
            }
        }
    }

    /// Goes to the next quote, backslash or control character.
    fn skip_plain(&mut self) {
        while let Some(chunk) = self.bytes[self.at..].first_chunk::<8>() {
            let word = u64::from_le_bytes(*chunk);
            let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
            let special = zeros(word ^ (ONES * u64::from(b'"'))) | zeros(word ^ (ONES * u64::from(b'\\'))) | control;
            if special != 0 {
                self.at += special.trailing_zeros() as usize / 8;
                return;
            }
            self.at += 8;
        }
        while self.bytes.get(self.at).is_some_and(|byte| !matches!(byte, b'"' | b'\\' | 0..0x20)) {
            self.at += 1;
        }
    }

    /// Reads an escape, from its backslash on.
    fn escape(&mut self) -> Result<char, Fault> {
        let start = self.at;
        self.at += 2;
        Ok(match self.bytes.get(start + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(start),
            _ => return Err(self.fault("an escape", start + 1)),
        })
    }

    /// Reads the digits of `\u`, and those of the second half of a pair.
    fn unicode(&mut self, start: usize) -> Result<char, Fault> {
        let lone = || Fault { message: "half of a surrogate pair in a string".to_string(), at: start };
        let first = self.hex()?;
        if !(0xD800..0xE000).contains(&first) {
            return char::from_u32(first).ok_or_else(lone);
        }
        if first >= 0xDC00 || !self.bytes[self.at..].starts_with(b"\\u") {
            return Err(lone());
        }
        self.at += 2;
        let second = self.hex()?;
        if !(0xDC00..0xE000).contains(&second) {
            return Err(lone());
        }
        char::from_u32(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)).ok_or_else(lone)
    }

    fn hex(&mut self) -> Result<u32, Fault> {
        let mut value = 0;
        for _ in 0..4 {
            let digit = self.bytes.get(self.at).and_then(|byte| char::from(*byte).to_digit(16));
            let Some(digit) = digit else { return Err(self.fault("four hexadecimal digits", self.at)) };
            value = value * 16 + digit;
            self.at += 1;
        }
        Ok(value)
    }
}
