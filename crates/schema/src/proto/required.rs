//! Finds required fields that a binary document lacks.
//!
//! A pass of its own, because a message may come in pieces: occurrences of a singular message are merged, the last entry
//! of a map with a key replaces the others, and a member of a oneof replaces the others. As concatenated bytes are a merged
//! message, a message is given as the stretches that its occurrences have. Only messages that have required fields
//! somewhere within are looked at.

use std::collections::HashMap;

use super::path::{Step, render};
use super::reader::{Fault, Reader, Wire};
use super::table::{Field, Kind, Message, NONE, Table, count};
use super::wire::entry_key;
use crate::limits::PROTO_DEPTH;
use crate::report::{Report, Violation};

/// Reports the required fields that a document lacks. Of a message with broken framing nothing is said.
pub(super) fn validate(table: &Table, bytes: &[u8], report: &mut Report) {
    if table.message(table.root).demands {
        let mut pass = Pass { table, bytes, report, path: Vec::new() };
        pass.message(table.root, &[Reader::new(bytes, 0, bytes.len())], 0);
    }
}

/// An occurrence of a field that holds a message which has to be looked at. Small: there can be half a million.
struct Part {
    field: u32,
    /// Where the message starts and ends.
    start: u32,
    end: u32,
    /// Its place among all values.
    turn: u32,
}

struct Pass<'p> {
    table: &'p Table,
    bytes: &'p [u8],
    report: &'p mut Report,
    path: Vec<Step<'p>>,
}

/// What the stretches of a message have.
#[derive(Default)]
struct Found {
    parts: Vec<Part>,
    seen: Seen,
    /// The member of each oneof that came last, and since when it is the only one.
    oneofs: HashMap<u32, (u32, u32)>,
    turn: u32,
}

/// Which of the required fields there are, by their places among them.
#[derive(Default)]
struct Seen {
    /// The first 64: most messages have no more.
    first: u64,
    others: Vec<u32>,
}

impl Seen {
    fn add(&mut self, place: u32) {
        match place {
            0..64 => self.first |= 1 << place,
            _ => self.others.push(place),
        }
    }

    fn count(&mut self) -> u64 {
        self.others.sort_unstable();
        self.others.dedup();
        u64::from(self.first.count_ones()) + self.others.len() as u64
    }

    /// Whether a place was added, once they were counted.
    fn has(&self, place: u32) -> bool {
        match place {
            0..64 => self.first & (1 << place) != 0,
            _ => self.others.binary_search(&place).is_ok(),
        }
    }
}

impl<'p> Pass<'p> {
    fn message(&mut self, index: u32, stretches: &[Reader<'p>], depth: usize) {
        let message = self.table.message(index);
        let mut found = Found::default();
        let scanned = stretches.iter().try_for_each(|stretch| self.scan(message, *stretch, &mut found));
        if scanned.is_ok() {
            self.report_missing(message, &mut found.seen);
        }
        let Found { mut parts, oneofs, .. } = found;
        if !oneofs.is_empty() {
            parts.retain(|part| {
                let oneof = message.fields[part.field as usize].oneof;
                oneofs.get(&oneof).is_none_or(|&(member, since)| member == part.field && part.turn >= since)
            });
        }
        parts.sort_by_key(|part| part.field);
        for group in parts.chunk_by(|one, other| one.field == other.field) {
            self.parts(message, group[0].field, group, depth);
        }
        if message.is_entry && !parts.iter().any(|part| message.fields[part.field as usize].number == 2) {
            // An entry without a value has an empty one.
            if let Some(value) = message.fields.iter().find(|field| field.number == 2 && self.is_looked_at(field)) {
                self.message(value.target, &[], depth + 1);
            }
        }
    }

    fn inner(&self, part: &Part) -> Reader<'p> {
        Reader::new(self.bytes, part.start as usize, part.end as usize)
    }

    fn is_looked_at(&self, field: &Field) -> bool {
        matches!(field.kind, Kind::Message | Kind::Group) && self.table.message(field.target).demands
    }

    fn scan(&self, message: &'p Message, mut reader: Reader<'p>, found: &mut Found) -> Result<(), Fault> {
        while !reader.is_empty() {
            let (number, wire) = reader.key()?;
            let mut value = reader;
            reader.skip(number, wire, PROTO_DEPTH)?;
            let Some(index) = message.by_number(number) else { continue };
            let field = &message.fields[index as usize];
            // With another wire type it is an unknown field. (Those that may be packed are never required.)
            if wire != field.kind.wire() {
                continue;
            }
            if field.required == NONE && field.oneof == NONE && !self.is_looked_at(field) {
                continue;
            }
            if field.kind == Kind::Enum {
                let kind = self.table.enumeration(field.target);
                if kind.closed && !kind.knows(value.varint()?) {
                    continue;
                }
            }
            if field.required != NONE {
                found.seen.add(field.required);
            }
            found.turn += 1;
            if field.oneof != NONE {
                let last = found.oneofs.entry(field.oneof).or_insert((index, found.turn));
                if last.0 != index {
                    *last = (index, found.turn);
                }
            }
            if self.is_looked_at(field) {
                let inner = if wire == Wire::Length { value.block()? } else { value.group(number, PROTO_DEPTH)? };
                let (start, end) = (count(inner.at), count(inner.end()));
                found.parts.push(Part { field: index, start, end, turn: found.turn });
            }
        }
        Ok(())
    }

    /// Looks at all occurrences of one field.
    fn parts(&mut self, message: &'p Message, field_index: u32, parts: &[Part], depth: usize) {
        // Deeper ones are refused as such.
        if depth == PROTO_DEPTH {
            return;
        }
        let field = &message.fields[field_index as usize];
        let steps = self.path.len();
        if !message.is_entry {
            self.path.push(Step::Field((&*message.names[field_index as usize]).into()));
        }
        if field.map {
            let key = &self.table.message(field.target).fields[0];
            let mut last = HashMap::new();
            let mut before = (entry_key(key, self.inner(&parts[0])), 0);
            for (at, part) in parts.iter().enumerate().skip(1) {
                let name = entry_key(key, self.inner(part));
                if name == before.0 {
                    before.1 = at;
                } else {
                    let (name, at) = std::mem::replace(&mut before, (name, at));
                    last.insert(name, at);
                }
            }
            last.insert(before.0, before.1);
            let mut last = last.into_iter().collect::<Vec<_>>();
            last.sort_unstable_by_key(|(_, at)| *at);
            for (key, at) in last {
                self.path.push(Step::Key(key));
                self.message(field.target, &[self.inner(&parts[at])], depth);
                self.path.pop();
            }
        } else if field.repeated {
            for (index, part) in (0..).zip(parts) {
                self.path.push(Step::Element(index));
                self.message(field.target, &[self.inner(part)], depth + 1);
                self.path.pop();
            }
        } else {
            let stretches = parts.iter().map(|part| self.inner(part)).collect::<Vec<_>>();
            self.message(field.target, &stretches, depth + 1);
        }
        self.path.truncate(steps);
    }

    fn report_missing(&mut self, message: &'p Message, seen: &mut Seen) {
        let mut missing = message.required.len() as u64 - seen.count();
        if missing == 0 {
            return;
        }
        for (_, &field) in (0..).zip(&message.required).filter(|(place, _)| !seen.has(*place)) {
            if !self.report.has_room() {
                break;
            }
            missing -= 1;
            self.path.push(Step::Field((&*message.names[field as usize]).into()));
            let path = render(&self.path);
            self.path.pop();
            self.report.add(|| Violation::new(path, format!("the required field is missing from {}", message.name)));
        }
        self.report.count(missing);
    }
}
