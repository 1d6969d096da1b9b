//! Unique particle attribution: no child of a valid document may belong to either of two particles.
//!
//! Each part of a model has the symbols that it may start with, and those by which it may go on once it could have ended.
//! Two particles conflict where the latter meet what may come next, or where two alternatives start alike. A repetition of
//! a fixed number of times competes with what comes after it only where its iterations cannot be told apart, as in
//! `(a+ | b){2}, b`: then it depends on counters whether there is a conflict, and the model is refused as unclear. All of
//! this takes one pass over the symbols.

use std::collections::HashMap;

use super::Symbol;
use super::compile::Context;
use crate::xsd::xml::Ns;

/// What is said of a particle that is not the only one for a child.
pub(super) fn ambiguous(what: &str) -> String {
    format!(
        "the content model is ambiguous: a child may belong to this {what} or to another particle (unique particle \
         attribution)"
    )
}

/// A symbol, or what several symbols have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Symbol(Symbol),
    /// Some name in a namespace.
    NameIn(Ns),
    /// A listed namespace, or a name in one, that is not the target namespace.
    Foreign,
    /// Anything.
    Something,
}

/// Leaves by their symbols. Where there are several for one key, one of them and the fact.
type Set = HashMap<Key, (u32, bool)>;

/// What a part of a model may start with, and go on with.
#[derive(Debug, Default)]
pub(super) struct Sets {
    first: Set,
    follow: Set,
    /// What it may perhaps go on with: it is not known how many of its iterations there were.
    perhaps: Set,
    /// Whether it may be empty.
    pub(super) is_nullable: bool,
}

/// A leaf that overlaps with another one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Overlap {
    pub(super) leaf: u32,
    /// Whether some document has a child that may belong to both. Otherwise it is not known.
    pub(super) is_sure: bool,
}

fn add(set: &mut Set, key: Key, leaf: u32, is_many: bool) {
    let entry = set.entry(key).or_insert((leaf, is_many));
    entry.1 |= is_many || entry.0 != leaf;
}

fn merge(into: &mut Set, mut from: Set) {
    if into.len() < from.len() {
        std::mem::swap(into, &mut from);
    }
    for (key, (leaf, is_many)) in from {
        add(into, key, leaf, is_many);
    }
}

fn copy(into: &mut Set, from: &Set) {
    for (key, (leaf, is_many)) in from {
        add(into, *key, *leaf, *is_many);
    }
}

/// The leaf of a set that a symbol of another leaf overlaps with. With `is_many` any leaf is another one.
fn conflict(set: &Set, symbol: Symbol, leaf: u32, is_many: bool, context: Context<'_>) -> Option<u32> {
    let probe = |key: Key| {
        set.get(&key).filter(|(other, others)| *others || is_many || *other != leaf).map(|(other, _)| *other)
    };
    let open = |ns: Ns| {
        let other = if context.is_foreign(ns) { probe(Key::Symbol(Symbol::Other)) } else { None };
        other.or_else(|| probe(Key::Symbol(Symbol::Any)))
    };
    match symbol {
        Symbol::Name(name) => {
            let ns = context.ns(name);
            probe(Key::Symbol(symbol)).or_else(|| probe(Key::Symbol(Symbol::Space(ns)))).or_else(|| open(ns))
        }
        Symbol::Space(ns) => probe(Key::Symbol(symbol)).or_else(|| probe(Key::NameIn(ns))).or_else(|| open(ns)),
        Symbol::Any => probe(Key::Something),
        Symbol::Other => {
            [Key::Symbol(Symbol::Any), Key::Symbol(Symbol::Other), Key::Foreign].into_iter().find_map(probe)
        }
    }
}

/// Refuses a set in which a leaf overlaps with another leaf in the other one.
fn apart(one: &Set, other: &Set, is_sure: bool, context: Context<'_>) -> Result<(), Overlap> {
    let conflicts = one.iter().filter_map(|(key, (leaf, is_many))| match key {
        Key::Symbol(symbol) => conflict(other, *symbol, *leaf, *is_many, context),
        _ => None,
    });
    match conflicts.min() {
        Some(leaf) => Err(Overlap { leaf, is_sure }),
        None => Ok(()),
    }
}

impl Sets {
    /// The sets of one leaf.
    pub(super) fn of(symbols: &[Symbol], leaf: u32, context: Context<'_>) -> Self {
        let mut first = Set::new();
        for symbol in symbols {
            add(&mut first, Key::Symbol(*symbol), leaf, false);
            add(&mut first, Key::Something, leaf, false);
            let ns = match symbol {
                Symbol::Name(name) => {
                    add(&mut first, Key::NameIn(context.ns(*name)), leaf, false);
                    context.ns(*name)
                }
                Symbol::Space(ns) => *ns,
                _ => continue,
            };
            if context.is_foreign(ns) {
                add(&mut first, Key::Foreign, leaf, false);
            }
        }
        Self { first, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.first.len() + self.follow.len() + self.perhaps.len()
    }

    /// The symbols that it may start with.
    pub(super) fn first_symbols(&self) -> impl Iterator<Item = Symbol> {
        self.first.keys().filter_map(|key| match key {
            Key::Symbol(symbol) => Some(*symbol),
            _ => None,
        })
    }

    /// The sets of a choice; the error is the leaf that overlaps with another one.
    pub(super) fn choice(parts: Vec<Self>, context: Context<'_>) -> Result<Self, Overlap> {
        let mut whole = Self::default();
        for part in parts {
            apart(&part.first, &whole.first, true, context)?;
            merge(&mut whole.first, part.first);
            merge(&mut whole.follow, part.follow);
            merge(&mut whole.perhaps, part.perhaps);
            whole.is_nullable |= part.is_nullable;
        }
        Ok(whole)
    }

    /// The sets of a sequence; the error is the leaf that overlaps with another one.
    pub(super) fn sequence(parts: Vec<Self>, context: Context<'_>) -> Result<Self, Overlap> {
        let mut whole = Self { is_nullable: true, ..Self::default() };
        // What may come after a part, from the last part to the first.
        let mut next = Set::new();
        for part in parts.into_iter().rev() {
            apart(&part.follow, &next, true, context)?;
            apart(&part.perhaps, &next, false, context)?;
            if whole.is_nullable {
                merge(&mut whole.follow, part.follow);
                merge(&mut whole.perhaps, part.perhaps);
            }
            if part.is_nullable {
                apart(&part.first, &next, true, context)?;
                if whole.is_nullable {
                    copy(&mut whole.follow, &part.first);
                }
                merge(&mut next, part.first);
            } else {
                // What comes after the last part that cannot be empty is already among what the whole may go on with.
                whole.is_nullable = false;
                next = part.first;
            }
        }
        whole.first = next;
        Ok(whole)
    }

    /// Repeats the part. Tells whether an iteration may end where it may also go on by the same particle; the error is the
    /// leaf that overlaps with another one.
    pub(super) fn repeat(&mut self, is_flexible: bool, context: Context<'_>) -> Result<bool, Overlap> {
        apart(&self.follow, &self.first, true, context)?;
        apart(&self.perhaps, &self.first, false, context)?;
        let goes_on_alike = self.follow.keys().any(|key| matches!(key, Key::Symbol(_)) && self.first.contains_key(key));
        if is_flexible {
            copy(&mut self.follow, &self.first);
        } else if goes_on_alike {
            copy(&mut self.perhaps, &self.first);
        }
        Ok(goes_on_alike)
    }
}
