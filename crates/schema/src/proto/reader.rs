//! Reads the binary encoding: varints, keys, lengths. Knows no schema.

use std::fmt;

/// How a value is framed: the lower three bits of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Varint,
    Fixed64,
    Length,
    StartGroup,
    EndGroup,
    Fixed32,
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Varint => "a varint",
            Self::Fixed64 => "8 bytes",
            Self::Length => "a length and bytes",
            Self::StartGroup => "a group",
            Self::EndGroup => "the end of a group",
            Self::Fixed32 => "4 bytes",
        })
    }
}

/// Why bytes cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Truncated,
    Varint,
    Key,
    Number(u64),
    WireType(u64),
    UnexpectedEnd(u32),
    OpenGroup(u32),
    TooDeep,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the data ends within a value"),
            Self::Varint => f.write_str("a varint is longer than 10 bytes or 64 bits"),
            Self::Key => f.write_str("a key is longer than 5 bytes"),
            Self::Number(number) => write!(f, "{number} is no field number"),
            Self::WireType(wire) => write!(f, "{wire} is no wire type"),
            Self::UnexpectedEnd(number) => write!(f, "the end of group {number} has no start"),
            Self::OpenGroup(number) => write!(f, "group {number} is not ended"),
            Self::TooDeep => f.write_str("groups are nested too deep"),
        }
    }
}

/// A stretch of bytes that is read from front to back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'d> {
    bytes: &'d [u8],
    /// The offset of the next byte, from the start of the document.
    pub(super) at: usize,
}

impl<'d> Reader<'d> {
    /// Reads from `start` to `end`, which has to lie within the bytes.
    pub(super) fn new(bytes: &'d [u8], start: usize, end: usize) -> Self {
        Self { bytes: &bytes[..end], at: start }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[inline]
    pub(super) fn varint(&mut self) -> Result<u64, Fault> {
        match self.bytes.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Fault> {
        let mut value = 0;
        for index in 0..10 {
            let byte = *self.bytes.get(self.at + index).ok_or(Fault::Truncated)?;
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                if index == 9 && byte > 1 {
                    return Err(Fault::Varint);
                }
                self.at += index + 1;
                return Ok(value);
            }
        }
        Err(Fault::Varint)
    }

    /// Reads a field number and how the field is framed. Most implementations take no longer keys than are needed.
    #[inline]
    pub(super) fn key(&mut self) -> Result<(u32, Wire), Fault> {
        let start = self.at;
        let key = self.varint()?;
        if self.at - start > 5 {
            return Err(Fault::Key);
        }
        let wire = match key & 7 {
            0 => Wire::Varint,
            1 => Wire::Fixed64,
            2 => Wire::Length,
            3 => Wire::StartGroup,
            4 => Wire::EndGroup,
            5 => Wire::Fixed32,
            other => return Err(Fault::WireType(other)),
        };
        match u32::try_from(key) {
            Ok(key) if key >> 3 != 0 => Ok((key >> 3, wire)),
            _ => Err(Fault::Number(key >> 3)),
        }
    }

    #[inline]
    pub(super) fn skip_bytes(&mut self, count: usize) -> Result<(), Fault> {
        if count > self.bytes.len() - self.at {
            return Err(Fault::Truncated);
        }
        self.at += count;
        Ok(())
    }

    /// Reads a length, and returns what lies within it.
    #[inline]
    pub(super) fn block(&mut self) -> Result<Reader<'d>, Fault> {
        let length = self.varint()?;
        let start = self.at;
        self.skip_bytes(usize::try_from(length).map_err(|_| Fault::Truncated)?)?;
        Ok(Reader::new(self.bytes, start, self.at))
    }

    /// The bytes that are left.
    #[inline]
    pub(super) fn rest(&self) -> &'d [u8] {
        &self.bytes[self.at..]
    }

    /// The offset behind the last byte.
    pub(super) fn end(&self) -> usize {
        self.bytes.len()
    }

    /// Goes over the value of a field whose key was read. Groups may be nested `room` deep.
    pub(super) fn skip(&mut self, number: u32, wire: Wire, room: usize) -> Result<(), Fault> {
        match wire {
            Wire::Varint => self.varint().map(drop),
            Wire::Fixed64 => self.skip_bytes(8),
            Wire::Length => self.block().map(drop),
            Wire::Fixed32 => self.skip_bytes(4),
            Wire::StartGroup => self.group(number, room).map(drop),
            Wire::EndGroup => Err(Fault::UnexpectedEnd(number)),
        }
    }

    /// Goes over a group whose start was read, and returns what lies within it.
    pub(super) fn group(&mut self, number: u32, room: usize) -> Result<Reader<'d>, Fault> {
        let start = self.at;
        let mut open = vec![number];
        loop {
            if open.len() > room {
                return Err(Fault::TooDeep);
            }
            let innermost = open.last().copied().unwrap_or(number);
            if self.is_empty() {
                return Err(Fault::OpenGroup(innermost));
            }
            let key_at = self.at;
            match self.key()? {
                (number, Wire::StartGroup) => open.push(number),
                (number, Wire::EndGroup) if number == innermost => {
                    open.pop();
                    if open.is_empty() {
                        return Ok(Reader::new(self.bytes, start, key_at));
                    }
                }
                (number, wire) => self.skip(number, wire, 0)?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_are_bounded() {
        let max = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        let over = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
        let cases: [(&[u8], Result<u64, Fault>); 7] = [
            (&[0], Ok(0)),
            (&[0x96, 1], Ok(150)),
            (&[0x80, 0], Ok(0)),
            (&max, Ok(u64::MAX)),
            (&over, Err(Fault::Varint)),
            (&[0x80; 12], Err(Fault::Varint)),
            (&[0x80], Err(Fault::Truncated)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Reader::new(bytes, 0, bytes.len()).varint(), expected, "{bytes:?}");
        }
    }

    #[test]
    fn keys_have_a_number_and_a_wire_type() {
        type Case<'a> = (&'a [u8], Result<(u32, Wire), Fault>);
        let cases: [Case<'_>; 7] = [
            (&[0x88, 0x80, 0x80, 0x80, 0x80, 0x00], Err(Fault::Key)),
            (&[0x08], Ok((1, Wire::Varint))),
            (&[0x1b], Ok((3, Wire::StartGroup))),
            (&[0x02], Err(Fault::Number(0))),
            (&[0x0e], Err(Fault::WireType(6))),
            (&[0xff, 0xff, 0xff, 0xff, 0x0d], Err(Fault::WireType(7))),
            (&[0xf8, 0xff, 0xff, 0xff, 0x1f], Err(Fault::Number(1_073_741_823))),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Reader::new(bytes, 0, bytes.len()).key(), expected, "{bytes:?}");
        }
    }

    #[test]
    fn groups_are_skipped_as_a_whole() {
        // Group 1 { 2: 5, group 3 {} }, then field 1.
        let bytes = [0x10, 5, 0x1b, 0x1c, 0x0c, 0x08];
        let mut reader = Reader::new(&bytes, 0, bytes.len());
        let inner = reader.group(1, 2).unwrap();
        assert_eq!((inner.at, inner.end(), reader.at), (0, 4, 5));
        let mut reader = Reader::new(&bytes, 0, bytes.len());
        assert_eq!(reader.group(1, 1).unwrap_err(), Fault::TooDeep);
        let mut reader = Reader::new(&bytes, 0, bytes.len());
        assert_eq!(reader.group(2, 9).unwrap_err(), Fault::UnexpectedEnd(1));
        let mut reader = Reader::new(&bytes, 0, 2);
        assert_eq!(reader.group(1, 9).unwrap_err(), Fault::OpenGroup(1));
    }
}
