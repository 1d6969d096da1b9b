//! JSON text as a flat tree: one pass, no allocation per value, and every value knows where it is.
//!
//! Not `serde_json::Value`, for four features: positions, names that occur twice, numbers as they were written, and a
//! meter ([`super::meter`]) that bounds what a validator reads. It is also faster: strings are not copied, and objects
//! are not sorted. Depth and the length of paths are bounded while reading, without recursion.

use super::meter::Meter;
use super::reader::Reader;
use crate::limits::DEPTH;

/// The longest JSON pointer of a value, in bytes: every violation carries one.
pub(super) const MAX_POINTER: usize = 4 << 10;
/// Objects with more members than this have their names sorted.
const SORTED_FROM: u32 = 32;
/// No entry of a side table.
pub(super) const NONE: u32 = u32::MAX;

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    True,
    False,
    Number,
    /// A string, or the name of a member.
    String,
    Array,
    Object,
}

/// A value or the name of a member. Values follow their parents; a name is followed by its value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Where it starts and ends in the text, quotes included.
    pub(super) start: u32,
    pub(super) end: u32,
    /// The entry after the last one that is in it.
    pub(super) next: u32,
    /// How many items or members it has; of a name its hash.
    pub(super) count: u32,
    /// In [`Tree::unescaped`] for strings with escapes, in [`Tree::sorted`] for large objects.
    pub(super) side: u32,
    /// The length of its JSON pointer, at least.
    pub(super) pointer: u16,
    /// How many arrays and objects it is in.
    pub(super) depth: u8,
    pub(super) kind: Kind,
}

impl Entry {
    /// How many items or members it has.
    pub(super) fn size(&self) -> u32 {
        if matches!(self.kind, Kind::Array | Kind::Object) { self.count } else { 0 }
    }
}

/// A JSON text that was read.
#[derive(Debug, Default)]
pub(super) struct Tree<'t> {
    pub(super) text: &'t str,
    pub(super) entries: Vec<Entry>,
    /// The contents of strings with escapes, and where each of them is.
    pub(super) contents: String,
    pub(super) unescaped: Vec<(u32, u32)>,
    /// The names of large objects in order, as entries.
    pub(super) sorted: Vec<u32>,
    /// The deepest nesting that occurs.
    pub(super) depth: usize,
    /// What may still be read.
    pub(super) meter: Meter,
}

/// Why a text is no JSON that is accepted, and the byte where that shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) message: String,
    pub(super) at: usize,
}

/// A value of a tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'t> {
    pub(super) tree: &'t Tree<'t>,
    pub(super) at: u32,
}

/// A hash to tell names apart quickly; those that are equal are compared.
pub(super) fn hash(name: &str) -> u32 {
    let bytes = name.as_bytes();
    let word = |bytes: &[u8]| bytes.iter().fold(0_u32, |word, byte| (word << 8) | u32::from(*byte));
    let head = word(&bytes[..bytes.len().min(4)]);
    let tail = word(&bytes[bytes.len() - bytes.len().min(4)..]);
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    (head ^ tail.rotate_left(13) ^ length.rotate_left(27)).wrapping_mul(0x9E37_79B1)
}

impl<'t> Tree<'t> {
    /// Reads a text that is at most 4 GiB long.
    pub(super) fn read(text: &'t str) -> Result<Self, Fault> {
        Builder::new(text).read()
    }

    pub(super) fn root(&'t self) -> Cursor<'t> {
        Cursor { tree: self, at: 0 }
    }

    /// A tree of one string, for names that are judged like values. The meter does not bound it.
    pub(super) fn set_string(&mut self, string: &str) {
        self.contents.clear();
        self.contents.push_str(string);
        self.unescaped.clear();
        self.unescaped.push((0, offset(string.len())));
        self.entries.clear();
        self.entries.push(Entry {
            start: 0,
            end: 0,
            next: 1,
            count: hash(string),
            side: 0,
            pointer: 0,
            depth: 0,
            kind: Kind::String,
        });
    }

    /// The text of a string or name.
    pub(super) fn string(&self, at: u32) -> &str {
        let entry = &self.entries[at as usize];
        if entry.side == NONE {
            return &self.text[entry.start as usize + 1..entry.end as usize - 1];
        }
        let (start, end) = self.unescaped[entry.side as usize];
        &self.contents[start as usize..end as usize]
    }

    /// The member of an object by its name.
    pub(super) fn member(&self, object: u32, name: &str, hash: u32) -> Option<u32> {
        let entry = &self.entries[object as usize];
        if entry.side != NONE {
            let names = &self.sorted[entry.side as usize..(entry.side + entry.count) as usize];
            let found = names.binary_search_by(|at| self.string(*at).cmp(name)).ok()?;
            return Some(names[found] + 1);
        }
        let mut at = object + 1;
        while at < entry.next {
            if self.entries[at as usize].count == hash && self.string(at) == name {
                return Some(at + 1);
            }
            at = self.entries[at as usize + 1].next;
        }
        None
    }
}

impl<'t> Cursor<'t> {
    pub(super) fn entry(self) -> &'t Entry {
        &self.tree.entries[self.at as usize]
    }

    /// The value as it is written.
    pub(super) fn source(self) -> &'t str {
        &self.tree.text[self.entry().start as usize..self.entry().end as usize]
    }
}

pub(super) fn offset(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// An array or object that is not closed yet.
struct Open {
    at: u32,
    object: bool,
    /// Which hashes its names have, roughly.
    hashes: u64,
}

/// Reads a text into a tree.
struct Builder<'t> {
    reader: Reader<'t>,
    tree: Tree<'t>,
    open: Vec<Open>,
    /// The length of the JSON pointer of the value that comes.
    pointer: usize,
}

impl<'t> Builder<'t> {
    fn new(text: &'t str) -> Self {
        let tree = Tree { text, entries: Vec::with_capacity(text.len() / 12 + 8), ..Tree::default() };
        Self { reader: Reader::new(text), tree, open: Vec::with_capacity(16), pointer: 0 }
    }

    fn read(mut self) -> Result<Tree<'t>, Fault> {
        loop {
            if self.value()? {
                continue;
            }
            while let Some(open) = self.open.last() {
                let (at, object) = (open.at as usize, open.object);
                self.tree.entries[at].count += 1;
                match self.reader.peek() {
                    Some(b',') if object => {
                        self.reader.at += 1;
                        self.name()?;
                        break;
                    }
                    Some(b',') => {
                        self.reader.at += 1;
                        self.pointer = usize::from(self.tree.entries[at].pointer) + 8;
                        break;
                    }
                    Some(b'}') if object => self.close()?,
                    Some(b']') if !object => self.close()?,
                    _ if object => return Err(self.reader.unexpected("`,` or `}`")),
                    _ => return Err(self.reader.unexpected("`,` or `]`")),
                }
            }
            if self.open.is_empty() {
                return self.reader.end().map(|()| self.tree);
            }
        }
    }

    /// Reads a value; whether it is the beginning of an array or object, so that a value has to follow.
    fn value(&mut self) -> Result<bool, Fault> {
        let byte = self.reader.peek();
        let start = self.reader.at;
        match byte {
            Some(b'{') => return self.start(Kind::Object),
            Some(b'[') => return self.start(Kind::Array),
            Some(b'"') => {
                let side = self.string()?;
                self.push(Kind::String, start, side)?;
            }
            Some(b'-' | b'0'..=b'9') => {
                self.reader.number()?;
                self.push(Kind::Number, start, NONE)?;
            }
            Some(b't') => {
                self.reader.word("true")?;
                self.push(Kind::True, start, NONE)?;
            }
            Some(b'f') => {
                self.reader.word("false")?;
                self.push(Kind::False, start, NONE)?;
            }
            Some(b'n') => {
                self.reader.word("null")?;
                self.push(Kind::Null, start, NONE)?;
            }
            _ => return Err(self.reader.unexpected("a value")),
        }
        Ok(false)
    }

    fn start(&mut self, kind: Kind) -> Result<bool, Fault> {
        let start = self.reader.at;
        if self.open.len() >= DEPTH {
            let message = format!("arrays and objects are nested more than {DEPTH} deep");
            return Err(Fault { message, at: start });
        }
        self.reader.at += 1;
        self.push(kind, start, NONE)?;
        let at = offset(self.tree.entries.len() - 1);
        let object = kind == Kind::Object;
        self.open.push(Open { at, object, hashes: 0 });
        self.tree.depth = self.tree.depth.max(self.open.len());
        match self.reader.peek() {
            Some(b'}') if object => self.close().map(|()| false),
            Some(b']') if !object => self.close().map(|()| false),
            _ if object => self.name().map(|()| true),
            _ => {
                self.pointer += 8;
                Ok(true)
            }
        }
    }

    /// Ends the innermost array or object; the reader is on its bracket.
    fn close(&mut self) -> Result<(), Fault> {
        self.reader.at += 1;
        let Some(open) = self.open.pop() else { return Ok(()) };
        let next = offset(self.tree.entries.len());
        let entry = &mut self.tree.entries[open.at as usize];
        entry.next = next;
        entry.end = offset(self.reader.at);
        if open.object && entry.count > SORTED_FROM {
            return self.sort(open.at);
        }
        Ok(())
    }

    /// Sorts the names of a large object, so that they are found, and those that occur twice as well.
    fn sort(&mut self, object: u32) -> Result<(), Fault> {
        let from = self.tree.sorted.len();
        let entry = self.tree.entries[object as usize];
        let mut at = object + 1;
        while at < entry.next {
            self.tree.sorted.push(at);
            at = self.tree.entries[at as usize + 1].next;
        }
        let mut names = self.tree.sorted.split_off(from);
        names.sort_by(|a, b| self.tree.string(*a).cmp(self.tree.string(*b)));
        if let Some(pair) = names.windows(2).find(|pair| self.tree.string(pair[0]) == self.tree.string(pair[1])) {
            return Err(self.twice(pair[1]));
        }
        self.tree.sorted.append(&mut names);
        self.tree.entries[object as usize].side = offset(from);
        Ok(())
    }

    /// Reads the name of a member and the colon behind it.
    fn name(&mut self) -> Result<(), Fault> {
        if self.reader.peek() != Some(b'"') {
            return Err(self.reader.unexpected("a name in quotes"));
        }
        let start = self.reader.at;
        let side = self.string()?;
        self.push(Kind::String, start, side)?;
        let at = offset(self.tree.entries.len() - 1);
        let name = self.tree.string(at);
        let (hash, length) = (hash(name), name.len());
        self.tree.entries[at as usize].count = hash;
        let Some(open) = self.open.last_mut() else { return Ok(()) };
        let object = open.at;
        let bit = 1 << (hash >> 26);
        let seen = open.hashes & bit != 0;
        open.hashes |= bit;
        let parent = self.tree.entries[object as usize];
        if seen && parent.count < SORTED_FROM && self.has_before(object, at, hash) {
            return Err(self.twice(at));
        }
        self.pointer = usize::from(parent.pointer) + 1 + length;
        if self.reader.peek() != Some(b':') {
            return Err(self.reader.unexpected("`:`"));
        }
        self.reader.at += 1;
        Ok(())
    }

    /// Whether an object has the name at `name` before it.
    fn has_before(&self, object: u32, name: u32, hash: u32) -> bool {
        let mut at = object + 1;
        while at < name {
            if self.tree.entries[at as usize].count == hash && self.tree.string(at) == self.tree.string(name) {
                return true;
            }
            at = self.tree.entries[at as usize + 1].next;
        }
        false
    }

    fn twice(&self, name: u32) -> Fault {
        let message = format!("the name {} occurs twice in an object", clip(self.tree.string(name), 100));
        Fault { message, at: self.tree.entries[name as usize].start as usize }
    }

    /// Reads a string; its entry in the side table if it has escapes.
    fn string(&mut self) -> Result<u32, Fault> {
        let from = self.tree.contents.len();
        if !self.reader.string(&mut self.tree.contents)? {
            return Ok(NONE);
        }
        self.tree.unescaped.push((offset(from), offset(self.tree.contents.len())));
        Ok(offset(self.tree.unescaped.len() - 1))
    }

    /// Adds a value that the reader is behind.
    fn push(&mut self, kind: Kind, start: usize, side: u32) -> Result<(), Fault> {
        if self.pointer > MAX_POINTER {
            let message = format!("the names that lead to a value have more than {MAX_POINTER} bytes in total");
            return Err(Fault { message, at: start });
        }
        let next = offset(self.tree.entries.len() + 1);
        self.tree.entries.push(Entry {
            start: offset(start),
            end: offset(self.reader.at),
            next,
            count: 0,
            side,
            pointer: u16::try_from(self.pointer).unwrap_or(u16::MAX),
            depth: u8::try_from(self.open.len()).unwrap_or(u8::MAX),
            kind,
        });
        Ok(())
    }
}

/// A text in quotes, shortened to some characters.
pub(super) fn clip(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
