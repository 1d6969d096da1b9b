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
//! Adding a global element or attribute is not told as compatible where a wildcard lets in what is not declared.

mod content;
mod simple;

use std::collections::{HashSet, VecDeque};

use super::bounds::{CHANGES, COMPARED};
use super::model::{
    ANY_TYPE, ComplexType, Content, Element, Model, NameId, Process, Role, SimpleType, Type, TypeId, Use,
    ValueConstraint, Wildcard,
};
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
    /// How many more pairs may be looked at.
    left: usize,
}

impl<'m> Comparing<'m> {
    fn add(&mut self, verdict: Verdict, path: &str, message: impl Into<String>) {
        if self.comparison.changes().len() < CHANGES {
            self.comparison.add(verdict, path, message);
        } else {
            self.dropped = self.dropped.max(Some(verdict));
        }
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
        let left = self.left.checked_sub(1);
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
            self.breaking("", format!("the target namespace changed from {:?} to {:?}", targets.0, targets.1));
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
        self.attributes();
        self.types();
        while let Some((old, new, path)) = self.queue.pop_front() {
            if !self.step() {
                return;
            }
            self.compare_types(old, new, &path);
        }
    }

    fn elements(&mut self) {
        let (old, new) = (self.old, self.new);
        let has_lax = has_lax(old);
        for id in in_order(old.globals.values()) {
            let Some(element) = old.elements.get(id) else { continue };
            let path = format!("/{}", old.names.local(element.name));
            let found = self.renamed(element.name).and_then(|name| new.globals.get(&name));
            match found.and_then(|id| new.elements.get(*id)) {
                Some(other) => self.element(element, other, &path),
                None => self.breaking(&path, "the global element was removed"),
            }
        }
        for id in in_order(new.globals.values()) {
            let Some(element) = new.elements.get(id) else { continue };
            let (ns, local) = (new.names.ns(element.name), new.names.local(element.name));
            let before = old.names.find(old.names.spaces.find(new.names.spaces.uri(ns)), local);
            if before.is_some_and(|name| old.globals.contains_key(&name)) {
                continue;
            }
            let path = format!("/{local}");
            if has_lax {
                self.unclear(&path, "a global element was added, and a wildcard let it in before without checking it");
            } else {
                self.compatible(&path, "a global element was added");
            }
        }
    }

    /// Global attributes matter by themselves only where wildcards let them in.
    fn attributes(&mut self) {
        let (old, new) = (self.old, self.new);
        let show = |model: &Model, name: NameId| format!("@{}", model.names.local(name));
        let mut names: Vec<NameId> = old.global_attributes.keys().copied().collect();
        names.sort_unstable();
        for name in names {
            let renamed = self.renamed(name);
            let other =
                renamed.and_then(|name| new.global_attributes.get(&name)).and_then(|id| new.attributes.get(*id));
            let one = old.global_attributes.get(&name).and_then(|id| old.attributes.get(*id));
            match (one, other) {
                (Some(one), Some(other)) => self.enqueue(one.type_id, other.type_id, &show(old, name)),
                _ if has_attribute_wildcard(old) => {
                    self.unclear(
                        &show(old, name),
                        "the global attribute was removed, and a wildcard may have let it in",
                    );
                }
                _ => {}
            }
        }
        let mut names: Vec<NameId> = new.global_attributes.keys().copied().collect();
        names.sort_unstable();
        for name in names {
            let ns = old.names.spaces.find(new.names.spaces.uri(new.names.ns(name)));
            let before = old.names.find(ns, new.names.local(name));
            let is_new = before.is_none_or(|name| !old.global_attributes.contains_key(&name));
            if is_new && has_attribute_wildcard(old) {
                self.unclear(
                    &show(new, name),
                    "a global attribute was added, and a wildcard may have let it in before",
                );
            }
        }
    }

    /// Global types: documents can name them by `xsi:type`.
    fn types(&mut self) {
        let (old, new) = (self.old, self.new);
        for id in in_order(old.global_types.values()) {
            let Some(name) = old.types.get(id).and_then(Type::name) else { continue };
            let path = format!("type {}", old.names.local(name));
            match self.renamed(name).and_then(|name| new.global_types.get(&name)) {
                Some(other) => self.enqueue(id, *other, &path),
                None => self.unclear(&path, "the type was removed, and documents may name it by xsi:type"),
            }
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
            let path = same.map_or_else(|| path.to_owned(), |name| format!("type {}", self.old.names.local(name)));
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

    fn element(&mut self, old: &'m Element, new: &'m Element, path: &str) {
        self.flag((old.is_abstract, new.is_abstract), path, "the element", "abstract");
        self.flag((!old.is_nillable, !new.is_nillable), path, "the element", "not nillable");
        self.values(old.value.as_ref(), new.value.as_ref(), path);
        if new.block & !old.block != 0 {
            self.unclear(path, "more derivations and substitutions are blocked");
        }
        let head = |model: &'m Model, element: &Element| {
            let head = element.head.and_then(|head| model.elements.get(head));
            head.map(|head| model.names.local(head.name))
        };
        match (head(self.old, old), head(self.new, new)) {
            (before, after) if before == after => {}
            (None, Some(head)) => {
                self.compatible(path, format!("the element now belongs to the substitution group {head:?}"))
            }
            (Some(head), _) => {
                self.breaking(path, format!("the element no longer belongs to the substitution group {head:?}"))
            }
            (None, None) => {}
        }
        self.constraints(old, new, path);
        self.enqueue(old.type_id, new.type_id, path);
    }

    fn constraints(&mut self, old: &Element, new: &Element, path: &str) {
        let names = |model: &'m Model, element: &Element| -> Vec<&'m super::model::Constraint> {
            element.constraints.iter().filter_map(|id| model.constraints.get(*id)).collect()
        };
        let (before, after) = (names(self.old, old), names(self.new, new));
        for one in &before {
            let name = self.old.names.local(one.name);
            match after.iter().find(|other| self.new.names.local(other.name) == name) {
                None => self.compatible(path, format!("the identity constraint {name:?} was removed")),
                Some(other) => {
                    let describe = |model: &Model, one: &super::model::Constraint| {
                        let role = match one.role {
                            Role::Keyref(id) => {
                                model.constraints.get(id).map(|key| model.names.local(key.name).to_owned())
                            }
                            role => Some(format!("{role:?}")),
                        };
                        (
                            role,
                            simple::paths(model, &one.selector),
                            one.fields.iter().map(|field| simple::paths(model, field)).collect::<Vec<_>>(),
                        )
                    };
                    if describe(self.old, one) != describe(self.new, other) {
                        self.unclear(path, format!("the identity constraint {name:?} changed"));
                    }
                }
            }
        }
        for other in after {
            let name = self.new.names.local(other.name);
            if !before.iter().any(|one| self.old.names.local(one.name) == name) {
                self.breaking(path, format!("the identity constraint {name:?} was added"));
            }
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
                self.breaking(path, format!("the value is now fixed to {:?}", other.text));
            }
            (Some(one), None) if one.is_fixed => self.compatible(path, "the value is no longer fixed"),
            (Some(one), Some(other)) if !one.is_fixed => {
                self.breaking(path, format!("the default changed from {:?} to {:?}", one.text, other.text));
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
        for one in old {
            let at = format!("{path}/@{}", self.old.names.local(one.name));
            let renamed = self.renamed(one.name);
            let Some(other) = new.iter().find(|other| Some(other.name) == renamed) else {
                self.breaking(&at, "the attribute was removed");
                continue;
            };
            self.flag((one.is_required, other.is_required), &at, "the attribute", "required");
            self.values(one.value.as_ref(), other.value.as_ref(), &at);
            self.enqueue(one.type_id, other.type_id, &at);
        }
        let before: HashSet<Option<NameId>> = old.iter().map(|one| self.renamed(one.name)).collect();
        for other in new.iter().filter(|other| !before.contains(&Some(other.name))) {
            let at = format!("{path}/@{}", self.new.names.local(other.name));
            if other.is_required {
                self.breaking(&at, "a required attribute was added");
            } else if self.was_let_in(other.name, wildcard) {
                self.unclear(&at, "an attribute was added that a wildcard let in before");
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

/// The numbers in the order in which the components are written.
fn in_order<'i>(ids: impl Iterator<Item = &'i usize>) -> Vec<usize> {
    let mut ids: Vec<usize> = ids.copied().collect();
    ids.sort_unstable();
    ids
}

/// Whether some wildcard lets in what is not declared, without checking it.
fn has_lax(model: &Model) -> bool {
    let is_any = |element: &Element| element.type_id == ANY_TYPE;
    model.elements.iter().any(is_any)
        || model.types.iter().skip(ANY_TYPE + 1).any(|one| match one {
            Type::Complex(ComplexType { content: Content::Elements { model, .. }, .. }) => {
                model.has_process(Process::Lax)
            }
            _ => false,
        })
}

fn has_attribute_wildcard(model: &Model) -> bool {
    let has_any = |one: &Type| matches!(one, Type::Complex(ComplexType { wildcard: Some(_), .. }));
    model.types.iter().skip(ANY_TYPE + 1).any(has_any)
        || model.elements.iter().any(|element| element.type_id == ANY_TYPE)
}

/// A simple type, as the comparison of simple types takes it.
type Simple<'m> = &'m SimpleType;
