//! Validates the binary encoding by walking over the bytes along the schema. No message is built: time is linear in the
//! bytes, and memory does not depend on them.
//!
//! What is checked: framing, UTF-8, depth and, where the schema is strict, unknown fields (also those that arrive with
//! another wire type than declared) and unknown values of closed enums. Required fields are another pass's business ([`super::required`]). A message whose framing is broken
//! is left at that place; the length of a nested one says where its surroundings go on.

use std::borrow::Cow;
use std::collections::HashMap;

use super::path::{Step, render};
use super::reader::{Fault, Reader, Wire};
use super::table::{Field, Kind, Message, NONE, Table};
use crate::limits::PROTO_DEPTH;
use crate::report::{Report, Violation};

/// Validates a document, and reports what is wrong but for required fields.
pub(super) fn validate(table: &Table, bytes: &[u8], report: &mut Report) {
    let mut walker = Walker { table, bytes, report, frames: Vec::new(), depth: 0 };
    walker.frames.push(Frame::new(table.root, 0, bytes.len()));
    let mut reader = Reader::new(bytes, 0, bytes.len());
    // What is broken has been reported.
    let _ = walker.message(table.root, &mut reader, 0);
}

/// The framing is broken, and that is reported.
struct Broken;

/// A message that the walk is within.
struct Frame {
    message: u32,
    /// The index of the field that is being read, or none.
    field: u32,
    /// Where the field starts.
    at: usize,
    start: usize,
    /// Where the message ends, if it is not a group.
    end: usize,
    /// How many elements repeated fields had up to some offset. Only made for paths.
    elements: Option<Box<Elements>>,
}

struct Elements {
    upto: usize,
    counts: HashMap<u32, u64>,
}

impl Frame {
    fn new(message: u32, start: usize, end: usize) -> Self {
        Self { message, field: NONE, at: start, start, end, elements: None }
    }

    /// How many elements of the present field come before it.
    fn index(&mut self, message: &Message, bytes: &[u8]) -> u64 {
        let fresh = || Box::new(Elements { upto: self.start, counts: HashMap::new() });
        let elements = self.elements.get_or_insert_with(fresh);
        let mut reader = Reader::new(bytes, elements.upto, self.at);
        while !reader.is_empty() {
            // All of this was read before.
            let Ok((number, wire)) = reader.key() else { break };
            let before = reader;
            if reader.skip(number, wire, PROTO_DEPTH).is_err() {
                break;
            }
            let Some(index) = message.by_number(number) else { continue };
            let field = &message.fields[index as usize];
            let count = match wire {
                Wire::Length if field.packable() => packed_count(field.kind, before),
                _ => u64::from(wire == field.kind.wire()),
            };
            *elements.counts.entry(index).or_default() += count;
        }
        elements.upto = self.at;
        elements.counts.get(&self.field).copied().unwrap_or_default()
    }
}

/// The number of values in a packed field.
fn packed_count(kind: Kind, mut reader: Reader<'_>) -> u64 {
    let Ok(block) = reader.block() else { return 0 };
    let length = block.rest().len();
    let count = match kind.wire() {
        Wire::Fixed64 => length / 8,
        Wire::Fixed32 => length / 4,
        _ => block.rest().iter().filter(|&&byte| byte < 0x80).count(),
    };
    count as u64
}

struct Walker<'w> {
    table: &'w Table,
    bytes: &'w [u8],
    report: &'w mut Report,
    frames: Vec<Frame>,
    /// How many messages are open within the root; entries of maps are none.
    depth: usize,
}

impl<'w> Walker<'w> {
    /// Walks over the fields of a message, up to the end of the bytes or of its group.
    fn message(&mut self, index: u32, reader: &mut Reader<'w>, group: u32) -> Result<(), Broken> {
        let message = self.table.message(index);
        loop {
            self.enter_field(NONE, reader.at);
            if reader.is_empty() {
                return if group == 0 { Ok(()) } else { Err(self.broken(reader.at, Fault::OpenGroup(group))) };
            }
            let at = reader.at;
            let (number, wire) = reader.key().map_err(|fault| self.broken(at, fault))?;
            if wire == Wire::EndGroup {
                return if number == group { Ok(()) } else { Err(self.broken(at, Fault::UnexpectedEnd(number))) };
            }
            match message.by_number(number) {
                Some(index) => {
                    self.enter_field(index, at);
                    self.field(&message.fields[index as usize], wire, reader)?;
                }
                None => {
                    self.skip(number, wire, reader)?;
                    if self.table.strict {
                        let name = &message.name;
                        self.violation(None, || format!("{name} has no field {number}, at byte {at}"));
                    }
                }
            }
        }
    }

    #[inline]
    fn enter_field(&mut self, field: u32, at: usize) {
        if let Some(frame) = self.frames.last_mut() {
            (frame.field, frame.at) = (field, at);
        }
    }

    fn field(&mut self, field: &Field, wire: Wire, reader: &mut Reader<'w>) -> Result<(), Broken> {
        let at = reader.at;
        if wire == Wire::Length && field.packable() {
            return self.packed(field, reader);
        }
        if wire != field.kind.wire() {
            // Another schema's field of this number: an unknown field.
            self.skip(field.number, wire, reader)?;
            if self.table.strict {
                let (kind, expected) = (field.kind.as_str(), field.kind.wire());
                self.violation(None, || format!("{kind} is framed as {expected}, found {wire}, at byte {at}"));
            }
            return Ok(());
        }
        match field.kind {
            Kind::Enum => {
                let number = reader.varint().map_err(|fault| self.broken(at, fault))?;
                self.enum_value(field, number, field.repeated.then_some(0));
                Ok(())
            }
            Kind::String => {
                let block = reader.block().map_err(|fault| self.broken(at, fault))?;
                if let Err(error) = std::str::from_utf8(block.rest()) {
                    let bad = block.at + error.valid_up_to();
                    self.violation(None, || format!("the string is not UTF-8, at byte {bad}"));
                }
                Ok(())
            }
            Kind::Message => {
                let mut block = reader.block().map_err(|fault| self.broken(at, fault))?;
                // The surroundings go on behind a nested message, whatever is wrong within.
                let _ = self.nested(field, &mut block, 0);
                Ok(())
            }
            Kind::Group => self.nested(field, reader, field.number),
            _ => self.skip(field.number, wire, reader),
        }
    }

    fn nested(&mut self, field: &Field, reader: &mut Reader<'w>, group: u32) -> Result<(), Broken> {
        if self.depth == PROTO_DEPTH && !field.map {
            let at = reader.at;
            self.violation(None, || format!("messages are nested deeper than {PROTO_DEPTH}, at byte {at}"));
            return if group == 0 { Ok(()) } else { Err(Broken) };
        }
        self.frames.push(Frame::new(field.target, reader.at, reader.end()));
        self.depth += usize::from(!field.map);
        let result = self.message(field.target, reader, group);
        self.depth -= usize::from(!field.map);
        self.frames.pop();
        result
    }

    fn packed(&mut self, field: &Field, reader: &mut Reader<'w>) -> Result<(), Broken> {
        let at = reader.at;
        let mut block = reader.block().map_err(|fault| self.broken(at, fault))?;
        let size = match field.kind.wire() {
            Wire::Fixed64 => 8,
            Wire::Fixed32 => 4,
            _ => {
                let mut element = 0;
                while !block.is_empty() {
                    let at = block.at;
                    match block.varint() {
                        Ok(number) => self.enum_value(field, number, Some(element)),
                        Err(fault) => {
                            self.violation(Some(element), || format!("{fault}, at byte {at}"));
                            break;
                        }
                    }
                    element += 1;
                }
                return Ok(());
            }
        };
        let length = block.rest().len();
        if length % size != 0 {
            let kind = field.kind.as_str();
            self.violation(None, || {
                format!("{length} bytes are no whole number of {kind} of {size} bytes, at byte {}", block.at)
            });
        }
        Ok(())
    }

    /// An unknown value of a closed enum is an unknown field.
    #[inline]
    fn enum_value(&mut self, field: &Field, number: u64, element: Option<u64>) {
        if field.kind != Kind::Enum || !self.table.strict {
            return;
        }
        let kind = self.table.enumeration(field.target);
        if kind.closed && !kind.knows(number) {
            let number = number as i32;
            self.violation(element, || format!("{number} is no value of the closed enum {}", kind.name));
        }
    }

    fn skip(&mut self, number: u32, wire: Wire, reader: &mut Reader<'w>) -> Result<(), Broken> {
        let at = reader.at;
        reader.skip(number, wire, PROTO_DEPTH - self.depth).map_err(|fault| self.broken(at, fault))
    }

    fn broken(&mut self, at: usize, fault: Fault) -> Broken {
        self.violation(None, || format!("{fault}, at byte {at}"));
        Broken
    }

    /// Reports what is wrong with the field that is being read, or with one element of it that lies in one block with
    /// others.
    fn violation(&mut self, element: Option<u64>, message: impl FnOnce() -> String) {
        let Self { table, bytes, report, frames, .. } = self;
        report.add(|| Violation::new(path(table, bytes, frames, element), message()));
    }
}

fn path(table: &Table, bytes: &[u8], frames: &mut [Frame], element: Option<u64>) -> String {
    let mut steps = Vec::new();
    let last = frames.len().saturating_sub(1);
    for at in 0..frames.len() {
        let frame = &mut frames[at];
        let message = table.message(frame.message);
        let Some(field) = message.fields.get(frame.field as usize) else { break };
        let name = Step::Field((&*message.names[frame.field as usize]).into());
        if message.is_entry {
            // The value is known by its key.
            if at == last && field.number == 1 {
                steps.push(name);
            }
            continue;
        }
        steps.push(name);
        if field.map {
            if let Some(entry) = frames.get(at + 1) {
                let key = &table.message(field.target).fields[0];
                steps.push(Step::Key(entry_key(key, Reader::new(bytes, entry.start, entry.end))));
            }
        } else if field.repeated && (at < last || element.is_some() || !field.packable()) {
            let index = frame.index(message, bytes) + element.unwrap_or_default();
            steps.push(Step::Element(index));
        }
    }
    render(&steps)
}

/// The key of a map's entry, as JSON writes it.
pub(super) fn entry_key<'d>(field: &Field, mut entry: Reader<'d>) -> Cow<'d, str> {
    let mut key = None;
    while let Ok((number, wire)) = entry.key() {
        let value = entry;
        if entry.skip(number, wire, PROTO_DEPTH).is_err() {
            break;
        }
        if number == 1 && wire == field.kind.wire() {
            key = Some(value);
        }
    }
    let mut value = key.unwrap_or(Reader::new(&[], 0, 0));
    if field.kind == Kind::String {
        let bytes = value.block().map_or(&[][..], |block| block.rest());
        return String::from_utf8_lossy(bytes);
    }
    let number = match field.kind.wire() {
        Wire::Fixed32 => value.rest().first_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes))),
        Wire::Fixed64 => value.rest().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)),
        _ => value.varint().unwrap_or_default(),
    };
    let zigzag = (number >> 1).cast_signed() ^ -(number & 1).cast_signed();
    Cow::Owned(match field.kind {
        Kind::Bool => (number != 0).to_string(),
        Kind::Int32 | Kind::Sfixed32 => (number as i32).to_string(),
        Kind::Int64 | Kind::Sfixed64 => number.cast_signed().to_string(),
        Kind::Sint32 => (zigzag as i32).to_string(),
        Kind::Sint64 => zigzag.to_string(),
        Kind::Uint32 => (number as u32).to_string(),
        _ => number.to_string(),
    })
}
