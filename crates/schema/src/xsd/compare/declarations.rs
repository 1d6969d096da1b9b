//! Compares what is global, and element declarations wherever they are.

use std::collections::{HashMap, HashSet};

use super::{Comparing, below, clip, quoted};
use crate::xsd::model::{
    ANY_TYPE, ComplexType, Constraint, Content, Element, ElementId, Model, NameId, Process, Role, Type,
};

impl<'m> Comparing<'m> {
    pub(super) fn elements(&mut self) {
        let (old, new) = (self.old, self.new);
        let (lax, strict) = (lets_in_elements(old, Process::Lax), lets_in_elements(old, Process::Strict));
        for id in in_order(old.globals.values()) {
            let Some(element) = old.elements.get(id) else { continue };
            let path = below("", '/', old.names.local(element.name));
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
            let path = below("", '/', local);
            if lax {
                self.unclear(&path, "a global element was added, and a wildcard let it in before without checking it");
            } else if strict {
                self.unclear(&path, "a global element was added, and a wildcard let it in before with an xsi:type");
            } else {
                self.compatible(&path, "a global element was added");
            }
        }
    }

    /// Finds members of substitution groups that stayed in them, but may not stand for their heads any more.
    pub(super) fn substitutes(&mut self) {
        let (old, new) = (self.old, self.new);
        let found = |element: &Element| self.renamed(element.name).and_then(|name| new.globals.get(&name)).copied();
        let mut lost = Vec::new();
        for head in in_order(old.substitutes.keys()) {
            let new_head = old.elements.get(head).and_then(found);
            let after = new_head.and_then(|head| new.substitutes.get(&head)).map_or(&[][..], Vec::as_slice);
            let after: HashSet<ElementId> = after.iter().copied().collect();
            for member in old.substitutes.get(&head).into_iter().flatten().filter_map(|id| old.elements.get(*id)) {
                // What was removed, or left the group, is told as such.
                let now = found(member).filter(|_| new_head.is_some());
                if now.is_some_and(|id| {
                    !after.contains(&id) && new.elements.get(id).is_some_and(|one| one.head.is_some())
                }) {
                    lost.push((old.names.local(member.name), head));
                }
            }
        }
        for (member, head) in lost {
            let head = old.elements.get(head).map_or("", |head| old.names.local(head.name));
            self.breaking(&below("", '/', member), format!("the element can no longer stand for {}", quoted(head)));
        }
    }

    /// Global attributes matter by themselves only where wildcards let them in.
    pub(super) fn attributes(&mut self) {
        let (old, new) = (self.old, self.new);
        let show = |model: &Model, name: NameId| format!("@{}", clip(model.names.local(name)));
        let mut names: Vec<NameId> = old.global_attributes.keys().copied().collect();
        names.sort_unstable();
        for name in names {
            let renamed = self.renamed(name);
            let other =
                renamed.and_then(|name| new.global_attributes.get(&name)).and_then(|id| new.attributes.get(*id));
            let one = old.global_attributes.get(&name).and_then(|id| old.attributes.get(*id));
            match (one, other) {
                (Some(one), Some(other)) => {
                    self.enqueue(one.type_id, other.type_id, &show(old, name));
                    // Where it is referred to, its value is compared with the reference.
                    if has_attribute_wildcard(old) {
                        self.values(one.value.as_ref(), other.value.as_ref(), &show(old, name));
                    }
                }
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
    pub(super) fn types(&mut self) {
        let (old, new) = (self.old, self.new);
        for id in in_order(old.global_types.values()) {
            let Some(name) = old.types.get(id).and_then(Type::name) else { continue };
            let path = format!("type {}", clip(old.names.local(name)));
            match self.renamed(name).and_then(|name| new.global_types.get(&name)) {
                Some(other) => self.enqueue(id, *other, &path),
                None => self.unclear(&path, "the type was removed, and documents may name it by xsi:type"),
            }
        }
    }

    pub(super) fn element(&mut self, old: &'m Element, new: &'m Element, path: &str) {
        self.flag((old.is_abstract, new.is_abstract), path, "the element", "abstract");
        if new.is_nillable && !old.is_nillable && self.new.constraints.iter().any(|one| one.role == Role::Key) {
            self.unclear(path, "the element is now nillable, which a field of a key must not be");
        } else {
            self.flag((!old.is_nillable, !new.is_nillable), path, "the element", "not nillable");
        }
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
                self.compatible(path, format!("the element now belongs to the substitution group {}", quoted(head)))
            }
            (Some(head), _) => {
                self.breaking(path, format!("the element no longer belongs to the substitution group {}", quoted(head)))
            }
            (None, None) => {}
        }
        self.constraints(old, new, path);
        let named = self.old.types.get(old.type_id).and_then(Type::name).and_then(|name| self.renamed(name));
        if let Some(named) = named.and_then(|name| self.new.global_types.get(&name))
            && (!self.new.may_replace(*named, new.type_id, new.block)
                // The other type may block what is derived from the old one.
                || (*named != new.type_id && self.new.complex(new.type_id).is_some_and(|one| one.block != 0)))
        {
            self.unclear(path, "the type is another one, and documents may name the old one by xsi:type");
        }
        self.enqueue(old.type_id, new.type_id, path);
    }

    fn constraints(&mut self, old: &Element, new: &Element, path: &str) {
        let names = |model: &'m Model, element: &Element| -> Vec<&'m Constraint> {
            element.constraints.iter().filter_map(|id| model.constraints.get(*id)).collect()
        };
        let (before, after) = (names(self.old, old), names(self.new, new));
        if !self.steps(before.len() + after.len()) {
            return;
        }
        let by_name: HashMap<&str, &Constraint> =
            after.iter().map(|other| (self.new.names.local(other.name), *other)).collect();
        for one in &before {
            let name = self.old.names.local(one.name);
            match by_name.get(name) {
                None => self.compatible(path, format!("the identity constraint {} was removed", quoted(name))),
                Some(other) => {
                    let describe = |model: &Model, one: &Constraint| {
                        let role = match one.role {
                            Role::Keyref(id) => {
                                model.constraints.get(id).map(|key| model.names.local(key.name).to_owned())
                            }
                            role => Some(format!("{role:?}")),
                        };
                        (
                            role,
                            super::simple::paths(model, &one.selector),
                            one.fields.iter().map(|field| super::simple::paths(model, field)).collect::<Vec<_>>(),
                        )
                    };
                    if describe(self.old, one) != describe(self.new, other) {
                        self.unclear(path, format!("the identity constraint {} changed", quoted(name)));
                    }
                }
            }
        }
        let before: HashSet<&str> = before.iter().map(|one| self.old.names.local(one.name)).collect();
        for other in after {
            let name = self.new.names.local(other.name);
            if !before.contains(name) {
                self.breaking(path, format!("the identity constraint {} was added", quoted(name)));
            }
        }
    }
}

/// The numbers in the order in which the components are written.
fn in_order<'i>(ids: impl Iterator<Item = &'i usize>) -> Vec<usize> {
    let mut ids: Vec<usize> = ids.copied().collect();
    ids.sort_unstable();
    ids
}

/// Whether some wildcard that checks this much lets in elements that are named like global ones.
fn lets_in_elements(model: &Model, process: Process) -> bool {
    let is_any = |element: &Element| process == Process::Lax && element.type_id == ANY_TYPE;
    model.elements.iter().any(is_any)
        || model.types.iter().skip(ANY_TYPE + 1).any(|one| match one {
            Type::Complex(ComplexType { content: Content::Elements { model: content, .. }, .. }) => {
                content.wildcards().any(|one| one.process == process && one.allowed.lets_in(model.target))
            }
            _ => false,
        })
}

fn has_attribute_wildcard(model: &Model) -> bool {
    let has_any = |one: &Type| matches!(one, Type::Complex(ComplexType { wildcard: Some(_), .. }));
    model.types.iter().skip(ANY_TYPE + 1).any(has_any)
        || model.elements.iter().any(|element| element.type_id == ANY_TYPE)
}
