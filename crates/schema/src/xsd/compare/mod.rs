//! Compares two versions of a schema: what the new one does to documents that the old one accepted.
//!
//! The list of known changes, conservative on purpose:
//!
//! | change | verdict |
//! |---|---|
//! | target namespace, `elementFormDefault` or `attributeFormDefault` changed | breaking |
//! | a global element, or an element, attribute, branch or wildcard of a type, removed or moved | breaking |
//! | an element or attribute that must be there, added; `minOccurs` raised; `use="required"` | breaking |
//! | `maxOccurs` lowered; nillable, mixed or not abstract no more; a fixed value added or changed; a default changed | breaking |
//! | a simple type narrowed: tighter facets, fewer values, a pattern added, a type derived from the old one | breaking |
//! | an identity constraint added | breaking |
//! | an optional element or attribute, a branch of a choice, or a global element added | compatible |
//! | `minOccurs` lowered, `maxOccurs` raised, facets loosened, values added, an identity constraint removed | compatible |
//! | everything else that differs | cannot tell |
//!
//! Not told as compatible: a global element or attribute that is added where a wildcard lets in what is not declared; a type
//! that takes the place of another one by name, unless that one is derived from it, because of `xsi:type`; text that becomes
//! a complex type, a type that comes from its base in another way, and another base of a simple type or member of a union
//! that documents may name, for the same reason; what touches keys, identifiers and fixed values, where documents may have
//! them.

mod content;
mod declarations;
mod simple;

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};

use super::bounds::{CHANGES, COMPARED};
use super::model::{
    ANY_TYPE, ComplexType, Content, Model, NameId, SimpleType, Type, TypeId, Use, ValueConstraint, Wildcard,
};
use super::value::Kind;
use crate::compare::{Comparison, Verdict};

/// Compares two versions.
pub(super) fn compare(old: &Model, new: &Model) -> Comparison {
    let mut comparing = Comparing {
        old,
        new,
        comparison: Comparison::default(),
        dropped: None,
        seen: HashSet::new(),
        queue: VecDeque::new(),
        declared: old.elements.iter().map(|element| element.type_id).collect(),
        compares_values: compares_values(old) || compares_values(new),
        left: COMPARED,
    };
    comparing.schemas();
    comparing.finish()
}

/// What two versions are compared with.
struct Comparing<'m> {
    old: &'m Model,
    new: &'m Model,
    comparison: Comparison,
    /// The worst of the changes that there was no room for.
    dropped: Option<Verdict>,
    seen: HashSet<(TypeId, TypeId)>,
    /// Types that are still to be compared, and where they were met first.
    queue: VecDeque<(TypeId, TypeId, String)>,
    /// The types of the elements of the old version, for which documents may name others by `xsi:type`.
    declared: HashSet<TypeId>,
    /// Whether documents of the old version may be invalid because of which values are equal.
    compares_values: bool,
    /// How many more pairs may be looked at.
    left: usize,
}

impl<'m> Comparing<'m> {
    fn add(&mut self, verdict: Verdict, path: &str, message: impl Into<String>) {
        if !self.is_full() {
            self.comparison.add(verdict, path, message);
        } else {
            self.dropped = self.dropped.max(Some(verdict));
        }
    }

    /// Whether changes are only counted now: then their paths are not looked at.
    fn is_full(&self) -> bool {
        self.comparison.changes().len() >= CHANGES
    }

    fn breaking(&mut self, path: &str, message: impl Into<String>) {
        self.add(Verdict::Breaking, path, message);
    }

    fn compatible(&mut self, path: &str, message: impl Into<String>) {
        self.add(Verdict::Compatible, path, message);
    }

    fn unclear(&mut self, path: &str, message: impl Into<String>) {
        self.add(Verdict::CannotTell, path, message);
    }

    /// Takes a step; `false` when there are none left.
    fn step(&mut self) -> bool {
        self.steps(1)
    }

    fn steps(&mut self, steps: usize) -> bool {
        let left = self.left.checked_sub(steps);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    fn finish(mut self) -> Comparison {
        if self.left == 0 {
            self.comparison.add(Verdict::CannotTell, "", "the schemas are too large to compare all of them");
        }
        if let Some(worst) = self.dropped {
            self.comparison.add(worst, "", "there are more changes than are shown");
        }
        self.comparison
    }

    /// The number in the new version of a name of the old one.
    fn renamed(&self, name: NameId) -> Option<NameId> {
        let uri = self.old.names.spaces.uri(self.old.names.ns(name));
        let ns = self.new.names.spaces.find(uri);
        self.new.names.find(ns, self.old.names.local(name))
    }

    fn schemas(&mut self) {
        let (old, new) = (self.old, self.new);
        let targets = (old.names.spaces.uri(old.target), new.names.spaces.uri(new.target));
        if targets.0 != targets.1 {
            self.breaking(
                "",
                format!("the target namespace changed from {} to {}", quoted(targets.0), quoted(targets.1)),
            );
            return;
        }
        let forms = [
            ("elementFormDefault", old.is_element_qualified, new.is_element_qualified),
            ("attributeFormDefault", old.is_attribute_qualified, new.is_attribute_qualified),
        ];
        for (what, before, after) in forms {
            if before != after {
                self.breaking("", format!("{what} changed: names are in another namespace"));
            }
        }
        self.elements();
        self.substitutes();
        self.attributes();
        self.types();
        while let Some((old, new, path)) = self.queue.pop_front() {
            if !self.step() {
                return;
            }
            self.compare_types(old, new, &path);
        }
    }

    /// Notes that two types have to be compared. Types of one name are compared once, under that name; other simple types
    /// wherever they are met.
    fn enqueue(&mut self, old: TypeId, new: TypeId, path: &str) {
        let name = |model: &'m Model, id: TypeId| model.types.get(id).and_then(Type::name);
        let (before, after) = (name(self.old, old), name(self.new, new));
        let same = before.filter(|name| after.is_some() && self.renamed(*name) == after);
        let is_simple = self.old.simple(old).is_some() && self.new.simple(new).is_some();
        if (same.is_none() && is_simple) || self.seen.insert((old, new)) {
            let path =
                same.map_or_else(|| path.to_owned(), |name| format!("type {}", clip(self.old.names.local(name))));
            self.queue.push_back((old, new, path));
        }
    }

    fn compare_types(&mut self, old: TypeId, new: TypeId, path: &str) {
        match (self.old.types.get(old), self.new.types.get(new)) {
            (Some(Type::Simple(one)), Some(Type::Simple(other))) => self.simple(one, other, path),
            (Some(Type::Complex(one)), Some(Type::Complex(other))) => {
                if new == ANY_TYPE && old != ANY_TYPE {
                    self.unclear(path, "the type changed to anyType");
                } else {
                    self.complex(one, other, path);
                }
            }
            (Some(Type::Simple(_)), Some(Type::Complex(other))) => match other.content {
                Content::Simple(text) => {
                    self.unclear(path, "the type is now complex, and documents may name a simple type by xsi:type");
                    self.enqueue(old, text, path);
                    self.uses(&[], &other.uses, path, None);
                }
                _ => self.breaking(path, "the content changed from text to elements"),
            },
            (Some(Type::Complex(one)), Some(Type::Simple(_))) => match one.content {
                Content::Simple(text) => {
                    self.enqueue(text, new, path);
                    self.uses(&one.uses, &[], path, None);
                }
                _ => self.breaking(path, "the content changed from elements to text"),
            },
            _ => {}
        }
    }

    /// Compares something that restricts documents when it is true.
    fn flag(&mut self, (old, new): (bool, bool), path: &str, what: &str, which: &str) {
        match (old, new) {
            (false, true) => self.breaking(path, format!("{what} is now {which}")),
            (true, false) => self.compatible(path, format!("{what} is no longer {which}")),
            _ => {}
        }
    }

    fn values(&mut self, old: Option<&ValueConstraint>, new: Option<&ValueConstraint>, path: &str) {
        match (old, new) {
            (None, None) => {}
            (Some(one), Some(other)) if one.is_fixed == other.is_fixed && one.key == other.key => {}
            (_, Some(other)) if other.is_fixed => {
                self.breaking(path, format!("the value is now fixed to {}", quoted(&other.text)));
            }
            (Some(one), None) if one.is_fixed => self.compatible(path, "the value is no longer fixed"),
            (Some(one), Some(other)) if !one.is_fixed => {
                self.breaking(
                    path,
                    format!("the default changed from {} to {}", quoted(&one.text), quoted(&other.text)),
                );
            }
            _ => self.unclear(path, "a default was added or removed"),
        }
    }

    fn complex(&mut self, old: &'m ComplexType, new: &'m ComplexType, path: &str) {
        self.flag((old.is_abstract, new.is_abstract), path, "the type", "abstract");
        if new.block & !old.block != 0 {
            self.unclear(path, "more derivations of the type are blocked");
        }
        let base = |model: &'m Model, one: &ComplexType| {
            model.types.get(one.base).and_then(Type::name).map(|name| model.names.local(name))
        };
        if base(self.old, old) != base(self.new, new) {
            self.unclear(path, "the type is derived from another type, which matters to xsi:type");
        } else if old.method != new.method {
            self.unclear(path, "the type is derived in another way, which may be blocked where xsi:type names it");
        }
        self.uses(&old.uses, &new.uses, path, old.wildcard.as_ref());
        match (&old.wildcard, &new.wildcard) {
            (Some(_), None) => self.breaking(path, "anyAttribute was removed"),
            (Some(one), Some(other)) => self.wildcards(one, other, path, "anyAttribute"),
            (None, Some(_)) => self.compatible(path, "anyAttribute was added"),
            (None, None) => {}
        }
        self.contents(&old.content, &new.content, path);
    }

    /// Compares attributes; `wildcard` is the one that the old version had for others.
    fn uses(&mut self, old: &[Use], new: &[Use], path: &str, wildcard: Option<&Wildcard>) {
        // One declaration may be the attribute of many types.
        let lengths = old.iter().chain(new).filter_map(|used| used.value.as_ref()).map(|value| value.key.len() / 64);
        if !self.steps(old.len() + new.len() + lengths.sum::<usize>()) {
            return;
        }
        for one in old {
            let at = if self.is_full() { String::new() } else { below(path, '@', self.old.names.local(one.name)) };
            // They are sorted by name.
            let renamed = self.renamed(one.name);
            let found = renamed.and_then(|name| new.binary_search_by_key(&name, |other| other.name).ok());
            let Some(other) = found.and_then(|at| new.get(at)) else {
                self.breaking(&at, "the attribute was removed");
                continue;
            };
            self.flag((one.is_required, other.is_required), &at, "the attribute", "required");
            self.values(one.value.as_ref(), other.value.as_ref(), &at);
            self.enqueue(one.type_id, other.type_id, &at);
        }
        let before: HashSet<Option<NameId>> = old.iter().map(|one| self.renamed(one.name)).collect();
        for other in new.iter().filter(|other| !before.contains(&Some(other.name))) {
            let at = if self.is_full() { String::new() } else { below(path, '@', self.new.names.local(other.name)) };
            if other.is_required {
                self.breaking(&at, "a required attribute was added");
            } else if self.was_let_in(other.name, wildcard) {
                self.unclear(&at, "an attribute was added that a wildcard let in before");
            } else if wildcard.is_some() && self.new.is_kind(other.type_id, Kind::Id) {
                self.unclear(&at, "an identifier (ID) was added, and a wildcard may have let in another one");
            } else if other.value.is_some() {
                self.unclear(&at, "an attribute with a default or fixed value was added");
            } else {
                self.compatible(&at, "an optional attribute was added");
            }
        }
    }
}

impl Comparing<'_> {
    /// Whether a wildcard of the old version lets in a name of the new one.
    fn was_let_in(&self, name: NameId, wildcard: Option<&Wildcard>) -> bool {
        let ns = self.old.names.spaces.find(self.new.names.spaces.uri(self.new.names.ns(name)));
        wildcard.is_some_and(|wildcard| wildcard.allowed.lets_in(ns))
    }
}

/// The longest path that is shown, in bytes, and the longest name or value in a path or message, in characters. Both occur
/// in many changes, and may be as long as a schema.
const PATH: usize = 500;
const NAME: usize = 80;

/// A name or value as it is shown.
fn clip(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(NAME) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// A name or value in quotes.
fn quoted(text: &str) -> String {
    format!("{:?}", clip(text))
}

/// The path of something in the part of a schema that a path leads to. Of a long path only the end is shown.
fn below(path: &str, mark: char, name: &str) -> String {
    let mut start = path.len().saturating_sub(PATH);
    while !path.is_char_boundary(start) {
        start += 1;
    }
    let mark = if mark == '@' { "/@" } else { "/" };
    format!("{}{}{mark}{}", if start > 0 { "…" } else { "" }, &path[start..], clip(name))
}

/// Whether a schema has fixed values or identity constraints.
fn compares_values(model: &Model) -> bool {
    let is_fixed = |value: &Option<ValueConstraint>| value.as_ref().is_some_and(|value| value.is_fixed);
    !model.constraints.is_empty()
        || model.elements.iter().any(|element| is_fixed(&element.value))
        || model.attributes.iter().any(|attribute| is_fixed(&attribute.value))
        || model.types.iter().any(|one| match one {
            Type::Complex(complex) => complex.uses.iter().any(|used| is_fixed(&used.value)),
            Type::Simple(_) => false,
        })
}

/// A simple type, as the comparison of simple types takes it.
type Simple<'m> = &'m SimpleType;
