//! Compares what is global, and element declarations wherever they are.

use super::Comparing;
use crate::xsd::model::{ANY_TYPE, ComplexType, Constraint, Content, Element, Model, NameId, Process, Role, Type};

impl<'m> Comparing<'m> {
    pub(super) fn elements(&mut self) {
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
    pub(super) fn attributes(&mut self) {
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
    pub(super) fn types(&mut self) {
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
                self.compatible(path, format!("the element now belongs to the substitution group {head:?}"))
            }
            (Some(head), _) => {
                self.breaking(path, format!("the element no longer belongs to the substitution group {head:?}"))
            }
            (None, None) => {}
        }
        self.constraints(old, new, path);
        let named = self.old.types.get(old.type_id).and_then(Type::name).and_then(|name| self.renamed(name));
        if let Some(named) = named.and_then(|name| self.new.global_types.get(&name))
            && !self.new.may_replace(*named, new.type_id, new.block)
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
        for one in &before {
            let name = self.old.names.local(one.name);
            match after.iter().find(|other| self.new.names.local(other.name) == name) {
                None => self.compatible(path, format!("the identity constraint {name:?} was removed")),
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
