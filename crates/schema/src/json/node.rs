//! The tree as the `jsonschema` crate sees it: values that are paid for when they are read.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use jsonschema::JsonType;
use jsonschema::json::{Array, Json, Node, NodeIdentity, Object};
use serde_json::Value;

use super::number::{self, Decimal, Number};
use super::tree::{Cursor, Kind, NONE, Tree, hash};

/// The representation of documents that validators are compiled for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metered;

/// The name of a property, prepared for being looked up.
#[derive(Debug)]
pub(super) struct Key {
    name: Box<str>,
    hash: u32,
}

impl Json for Metered {
    type Node<'a> = Cursor<'a>;
    type PreparedKey = Key;
    type StringBuffer = Tree<'static>;

    const KEYS_PER_LOOKUP: usize = 1;

    fn prepare_key(key: &str) -> Key {
        Key { name: key.into(), hash: hash(key) }
    }

    fn with_string_node<T>(buffer: &mut Tree<'static>, string: &str, f: impl FnOnce(Cursor<'_>) -> T) -> T {
        buffer.set_string(string);
        f(buffer.root())
    }
}

impl<'t> Node<'t, Metered> for Cursor<'t> {
    type Object = Cursor<'t>;
    type Array = Cursor<'t>;
    type Number = Number<'t>;

    // A validator may allocate or clear something for each item or member, hence the price of the count.
    fn as_object(&self) -> Option<Cursor<'t>> {
        let entry = self.entry();
        (self.tree.meter.pay(1 + i64::from(entry.size() / 16)) && entry.kind == Kind::Object).then_some(*self)
    }

    fn as_array(&self) -> Option<Cursor<'t>> {
        let entry = self.entry();
        (self.tree.meter.pay(1 + i64::from(entry.size() / 16)) && entry.kind == Kind::Array).then_some(*self)
    }

    fn as_string(&self) -> Option<Cow<'t, str>> {
        if self.entry().kind != Kind::String {
            self.tree.meter.pay(1);
            return None;
        }
        let text = self.tree.string(self.at);
        self.tree.meter.pay_text(text.len()).then_some(Cow::Borrowed(text))
    }

    fn as_number(&self) -> Option<Number<'t>> {
        if self.entry().kind != Kind::Number {
            self.tree.meter.pay(1);
            return None;
        }
        let text = self.source();
        let steps = i64::try_from(text.len() / 4).unwrap_or(i64::MAX);
        self.tree.meter.pay(1 + steps).then_some(Number { text })
    }

    fn as_boolean(&self) -> Option<bool> {
        self.tree.meter.pay(1);
        match self.entry().kind {
            Kind::True => Some(true),
            Kind::False => Some(false),
            _ => None,
        }
    }

    fn is_null(&self) -> bool {
        self.tree.meter.pay(1);
        self.entry().kind == Kind::Null
    }

    fn is_number(&self) -> bool {
        self.tree.meter.pay(1);
        self.entry().kind == Kind::Number
    }

    fn json_type(&self) -> JsonType {
        self.tree.meter.pay(1);
        match self.entry().kind {
            Kind::Null => JsonType::Null,
            Kind::True | Kind::False => JsonType::Boolean,
            Kind::Number => JsonType::Number,
            Kind::String => JsonType::String,
            Kind::Array => JsonType::Array,
            Kind::Object => JsonType::Object,
        }
    }

    fn string_length(&self) -> Option<u64> {
        if self.entry().kind != Kind::String {
            self.tree.meter.pay(1);
            return None;
        }
        let text = self.tree.string(self.at);
        let steps = i64::try_from(text.len() / 64).unwrap_or(i64::MAX);
        self.tree.meter.pay(1 + steps).then(|| text.chars().count() as u64)
    }

    fn equals_value(&self, expected: &Value) -> bool {
        // Once the budget is spent nothing is judged any more, and most keywords hold.
        equals_value(*self, expected).unwrap_or(true)
    }

    /// What errors carry as their instance. It is not read: they say where it is. So it is not made either, and only
    /// tells whether the error was made after the budget was spent.
    fn to_value(&self) -> Cow<'t, Value> {
        let entry = self.entry();
        if self.tree.text.is_empty() {
            // The name of a property has no place, so the error carries it.
            return Cow::Owned(Value::String(self.tree.string(self.at).chars().take(200).collect()));
        }
        Cow::Owned(Value::Bool(self.tree.meter.pay_error(entry.pointer, entry.depth)))
    }

    fn identity(&self) -> Option<NodeIdentity> {
        let entry = self.entry();
        self.tree.meter.pay(1 + i64::from(entry.size() / 16));
        Some(NodeIdentity::tagged(std::ptr::from_ref(self.tree).addr(), self.at))
    }
}

/// The names and values of an object.
#[derive(Debug)]
pub(super) struct Members<'t> {
    tree: &'t Tree<'t>,
    at: u32,
    end: u32,
}

impl<'t> Iterator for Members<'t> {
    type Item = (&'t str, Cursor<'t>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let name = self.tree.string(self.at);
        if !self.tree.meter.pay_member(name.len()) {
            return None;
        }
        let value = Cursor { tree: self.tree, at: self.at + 1 };
        self.at = value.entry().next;
        Some((name, value))
    }
}

impl<'t> Object<'t, Metered> for Cursor<'t> {
    type Node = Self;
    type MemberName = &'t str;
    type MembersIter = Members<'t>;

    fn len(&self) -> usize {
        self.entry().count as usize
    }

    fn get(&self, key: &Key) -> Option<Self> {
        let entry = self.entry();
        let steps = if entry.side == NONE { 1 + entry.count / 16 } else { 4 };
        if !self.tree.meter.pay(i64::from(steps)) {
            return None;
        }
        self.tree.member(self.at, &key.name, key.hash).map(|at| Self { tree: self.tree, at })
    }

    fn members(&self) -> Members<'t> {
        Members { tree: self.tree, at: self.at + 1, end: self.entry().next }
    }
}

/// The items of an array.
#[derive(Debug)]
pub(super) struct Items<'t> {
    tree: &'t Tree<'t>,
    at: u32,
    end: u32,
}

impl<'t> Iterator for Items<'t> {
    type Item = Cursor<'t>;

    fn next(&mut self) -> Option<Cursor<'t>> {
        if self.at >= self.end || !self.tree.meter.pay(1) {
            return None;
        }
        let item = Cursor { tree: self.tree, at: self.at };
        self.at = item.entry().next;
        Some(item)
    }
}

impl<'t> Array<'t, Metered> for Cursor<'t> {
    type Node = Self;
    type ElementsIter = Items<'t>;

    fn len(&self) -> usize {
        self.entry().count as usize
    }

    fn elements(&self) -> Items<'t> {
        Items { tree: self.tree, at: self.at + 1, end: self.entry().next }
    }

    /// Compares hashes; those that are equal belong to equal values in all but one case of 2^64.
    fn is_unique(&self) -> bool {
        let state = RandomState::new();
        let mut seen = HashMap::with_capacity_and_hasher((self.entry().count as usize).min(1 << 10), state.clone());
        for item in self.elements() {
            // Once the budget is spent nothing is judged any more.
            let Some(digest) = digest(item, &state) else { return true };
            if let Some(other) = seen.insert(digest, item)
                && equals(item, other).unwrap_or(false)
            {
                return false;
            }
        }
        true
    }
}

/// The parts of arrays and objects, without the prices of patterns.
impl<'t> Cursor<'t> {
    pub(super) fn items(self) -> Items<'t> {
        Items { tree: self.tree, at: self.at + 1, end: self.entry().next }
    }

    pub(super) fn get_member(self, name: &str) -> Option<Self> {
        let found = (self.entry().kind == Kind::Object).then(|| self.tree.member(self.at, name, hash(name)))?;
        found.map(|at| Self { tree: self.tree, at })
    }
}

/// A hash of a value that equal values share; `None` when the budget is spent.
fn digest(value: Cursor<'_>, state: &RandomState) -> Option<u64> {
    let entry = value.entry();
    let length = if matches!(entry.kind, Kind::Array | Kind::Object) { 0 } else { (entry.end - entry.start) / 8 };
    if !value.tree.meter.pay(4 + i64::from(length)) {
        return None;
    }
    let mut hasher = state.build_hasher();
    match entry.kind {
        Kind::Null | Kind::True | Kind::False => hasher.write_u8(entry.kind as u8),
        Kind::Number => return Some(state.hash_one(Decimal::read(value.source()))),
        Kind::String => hasher.write(value.tree.string(value.at).as_bytes()),
        Kind::Array => {
            hasher.write_u8(entry.kind as u8);
            for item in value.items() {
                hasher.write_u64(digest(item, state)?);
            }
        }
        Kind::Object => {
            let mut sum = 0_u64;
            for (name, member) in value.members() {
                sum = sum.wrapping_add(state.hash_one((name, digest(member, state)?)));
            }
            hasher.write_u64(sum);
        }
    }
    Some(hasher.finish())
}

/// Whether two values of a tree are equal; `None` when the budget is spent.
fn equals(one: Cursor<'_>, other: Cursor<'_>) -> Option<bool> {
    let (a, b) = (one.entry(), other.entry());
    let meter = &one.tree.meter;
    if !meter.pay(1 + i64::from(a.count / 16)) {
        return None;
    }
    if a.kind != b.kind {
        return Some(false);
    }
    Some(match a.kind {
        Kind::Null | Kind::True | Kind::False => true,
        Kind::Number => Decimal::read(one.source()) == Decimal::read(other.source()),
        Kind::String => one.tree.string(one.at) == other.tree.string(other.at),
        Kind::Array if a.count != b.count => false,
        Kind::Array => {
            for (one, other) in one.items().zip(other.items()) {
                if !equals(one, other)? {
                    return Some(false);
                }
            }
            !meter.is_spent()
        }
        Kind::Object if a.count != b.count => false,
        Kind::Object => {
            for (name, member) in one.members() {
                match other.get_member(name) {
                    Some(other) if equals(member, other)? => {}
                    _ => return Some(false),
                }
            }
            !meter.is_spent()
        }
    })
}

/// Whether a value equals one of a schema; `None` when the budget is spent.
fn equals_value(value: Cursor<'_>, expected: &Value) -> Option<bool> {
    let entry = value.entry();
    if !value.tree.meter.pay(1 + i64::from((entry.end - entry.start).min(1 << 12) / 64)) {
        return None;
    }
    Some(match (entry.kind, expected) {
        (Kind::Null, Value::Null) | (Kind::True, Value::Bool(true)) | (Kind::False, Value::Bool(false)) => true,
        (Kind::Number, Value::Number(expected)) => number::equals(value.source(), expected),
        (Kind::String, Value::String(expected)) => value.tree.string(value.at) == expected,
        (Kind::Array, Value::Array(expected)) => {
            if entry.count as usize != expected.len() {
                return Some(false);
            }
            for (item, expected) in value.items().zip(expected) {
                if !equals_value(item, expected)? {
                    return Some(false);
                }
            }
            true
        }
        (Kind::Object, Value::Object(expected)) => {
            if entry.count as usize != expected.len() {
                return Some(false);
            }
            for (name, expected) in expected {
                match value.get_member(name) {
                    Some(member) if equals_value(member, expected)? => {}
                    _ => return Some(false),
                }
            }
            true
        }
        _ => false,
    })
}
