//! Bounds a descriptor set before it is decoded: two bytes of it can become hundreds in memory.

use super::reader::{Reader, Wire};
use crate::limits::PROTO_ITEMS;

/// The most parts of a set, each of which is decoded into an allocation of its own.
const PARTS: usize = 20 * PROTO_ITEMS;
/// The number that all options have for those that are not resolved.
const UNINTERPRETED: u32 = 999;
/// The deepest nesting of messages: protoc's.
pub(super) const NESTING: usize = 32;

/// What a length-delimited field of a descriptor holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Set,
    File,
    Message,
    Enum,
    Service,
    /// A field, an extension, an enum's value, a oneof, a method or a range of extensions, by the number of its options.
    Item(u32),
    Options,
    /// What has no parts.
    Leaf,
}

impl Part {
    fn of(self, number: u32) -> Self {
        match (self, number) {
            (Self::Set, 1) => Self::File,
            (Self::File, 4) | (Self::Message, 3) => Self::Message,
            (Self::File, 5) | (Self::Message, 4) => Self::Enum,
            (Self::File, 6) => Self::Service,
            (Self::File, 7) | (Self::Message, 2 | 6) => Self::Item(8),
            (Self::Message, 5) | (Self::Enum, 2) => Self::Item(3),
            (Self::Message, 8) => Self::Item(2),
            (Self::Service, 2) => Self::Item(4),
            (Self::File, 8) | (Self::Message, 7) | (Self::Enum | Self::Service, 3) => Self::Options,
            (Self::Item(options), number) if number == options => Self::Options,
            _ => Self::Leaf,
        }
    }
}

/// Counts the parts of a set, and how deep they are nested.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let mut parts = 0;
    let reader = Reader::new(bytes, 0, bytes.len());
    count(reader, Part::Set, 0, &mut parts)
}

fn count(mut reader: Reader<'_>, part: Part, depth: usize, parts: &mut usize) -> Result<(), String> {
    // A set, a file, the messages, and what is within the innermost of them.
    if depth > NESTING + 4 {
        return Err(format!("messages are nested deeper than {NESTING}"));
    }
    while !reader.is_empty() {
        let at = reader.at;
        let fault = |fault| format!("it cannot be decoded: {fault}, at byte {at}");
        let (number, wire) = reader.key().map_err(fault)?;
        // Where each element of a text lies: one location per element, which is dropped.
        let is_source_info = matches!(part, Part::File) && number == 9;
        if wire != Wire::Length || is_source_info {
            reader.skip(number, wire, 1).map_err(fault)?;
            continue;
        }
        *parts += 1;
        if *parts > PARTS {
            return Err(format!("it has more than {PARTS} parts"));
        }
        let inner = reader.block().map_err(fault)?;
        match part.of(number) {
            _ if part == Part::Options && number == UNINTERPRETED => {
                return Err("it has options that protoc did not resolve".into());
            }
            Part::Leaf => {}
            kind => count(inner, kind, depth + 1, parts)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_depth_are_bounded() {
        assert_eq!(check(&[]), Ok(()));
        // A hundred thousand empty files, and one more.
        let many = [0x0a, 0].repeat(PARTS);
        assert_eq!(check(&many), Ok(()));
        assert!(check(&[&many[..], &[0x0a, 0]].concat()).unwrap_err().contains("more than 100000 parts"));
        // Messages within messages.
        let mut deep = Vec::new();
        for _ in 0..100 {
            let length = u8::try_from(deep.len() & 0x7f).unwrap();
            let high = u8::try_from(deep.len() >> 7).unwrap();
            deep = [&[0x1a, length | 0x80, high][..], &deep].concat();
        }
        let nested = |bytes: &[u8], tag: u8| {
            let (low, high) = ((bytes.len() & 0x7f) as u8 | 0x80, (bytes.len() >> 7) as u8);
            [&[tag, low, high][..], bytes].concat()
        };
        let set = nested(&nested(&deep, 0x22), 0x0a);
        assert_eq!(check(&set), Err("messages are nested deeper than 32".into()));
        assert!(check(&[0x0a, 5]).unwrap_err().contains("the data ends within a value"));
    }
}
