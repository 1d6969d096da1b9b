//! Start tags: which declaration and type an element has.

use super::{Frame, Run, State};
use crate::xsd::content::{Leaf, Step};
use crate::xsd::model::{ANY_TYPE, Element, Process, Type, TypeId, Variety};
use crate::xsd::xml::{Reader, Tag, XSI};

/// What an element is validated by.
enum Declared<'m> {
    Element(&'m Element),
    /// Its `xsi:type`, or nothing but what it contains.
    Type,
    /// Its `xsi:type`, without which it is not allowed.
    TypeRequired,
    /// Nothing.
    Skipped,
}

impl<'m, 'd> Run<'m, 'd> {
    /// Takes a start tag.
    pub(super) fn start(&mut self, reader: &Reader<'d, 'm>, tag: Tag<'d>) {
        let name = self.model.names.find(tag.ns, tag.local);
        let declared = self.declared(&tag, Step { name, ns: tag.ns, target: self.model.target });
        self.path.push((name, tag.ns));
        let mut frame = Frame {
            offset: tag.offset,
            state: State::Skipped,
            element: None,
            type_id: ANY_TYPE,
            is_nil: false,
            has_children: false,
            has_text: false,
            fields: Vec::new(),
        };
        let declared_type = match declared {
            Declared::Skipped => {
                self.frames.push(frame);
                return;
            }
            Declared::Element(element) => {
                frame.element = Some(element);
                if element.is_abstract {
                    self.findings.add(tag.offset, "", tag.offset, || {
                        format!(
                            "the element {:?} is abstract: one of its substitution group must stand here",
                            tag.local
                        )
                    });
                }
                Some(element.type_id)
            }
            Declared::Type | Declared::TypeRequired => None,
        };
        let named = self.xsi_type(reader, &tag, frame.element);
        if matches!((&declared, named), (Declared::TypeRequired, None)) {
            let why = || {
                format!("the element {:?} is not declared in the schema, and a wildcard demands that here", tag.local)
            };
            self.findings.add(tag.offset, "", tag.offset, why);
            self.frames.push(frame);
            return;
        }
        frame.type_id = named.or(declared_type).unwrap_or(ANY_TYPE);
        let complex = match self.model.types.get(frame.type_id) {
            Some(Type::Complex(complex)) => Some(complex),
            _ => None,
        };
        if complex.is_some_and(|complex| complex.is_abstract) {
            self.findings.add(tag.offset, "", tag.offset, || {
                format!(
                    "{} is abstract: name a type that is derived from it by xsi:type",
                    self.model.type_name(frame.type_id)
                )
            });
        }
        frame.is_nil = self.xsi_nil(reader, &tag, frame.element);
        frame.state = State::of(self.model, frame.type_id);
        if !matches!(frame.state, State::Elements { is_mixed: false, .. } | State::Empty) {
            self.buffer.clear();
        }
        let mut wanted = Vec::new();
        let constraints = frame.element.map_or(&[][..], |element| &element.constraints);
        if self.identity.is_active() || !constraints.is_empty() {
            let is_done = self.identity.open(self.model, constraints, &self.path, tag.offset, &mut self.work);
            self.is_exhausted |= !is_done;
            (frame.fields, wanted) = self.identity.take_fields();
        }
        self.attributes(reader, &tag, complex, &wanted);
        self.frames.push(frame);
    }

    /// Finds out what an element is validated by, and moves on in its parent's content.
    fn declared(&mut self, tag: &Tag<'d>, step: Step) -> Declared<'m> {
        let model = self.model;
        let global = || step.name.and_then(|name| model.globals.get(&name)).and_then(|id| model.elements.get(*id));
        let Some(parent) = self.frames.last_mut() else {
            return match global() {
                Some(element) => Declared::Element(element),
                None => {
                    let why = || format!("{:?} is no global element of the schema, so it cannot be the root", tag.raw);
                    self.findings.add(tag.offset, "", tag.offset, why);
                    Declared::Skipped
                }
            };
        };
        let had_children = std::mem::replace(&mut parent.has_children, true);
        let why: &str = match &mut parent.state {
            State::Skipped => return Declared::Skipped,
            _ if parent.is_nil => "its parent has xsi:nil=\"true\" and must be empty",
            State::Empty => "its parent must be empty",
            State::Simple(_) => "its parent can contain only text",
            State::Elements { content, cursor, .. } => {
                if let Some(element) = content.step_all(cursor, step) {
                    return named(model, element, step, global());
                }
                let leaf = content.step(cursor, step, &mut self.work);
                self.is_exhausted |= self.work == 0;
                match leaf {
                    Some(Leaf::Element(element)) => return named(model, *element, step, global()),
                    Some(Leaf::Wildcard(wildcard)) => {
                        return match (wildcard.process, global()) {
                            (Process::Skip, _) => Declared::Skipped,
                            (_, Some(element)) => Declared::Element(element),
                            (Process::Lax, None) => Declared::Type,
                            (Process::Strict, None) => Declared::TypeRequired,
                        };
                    }
                    None => {}
                }
                if !self.findings.has_room() {
                    self.findings.add(0, "", 0, String::new);
                    return Declared::Skipped;
                }
                let expected = content.expected(cursor, |id| model.element_name(id), &model.names);
                let why = || format!("the element {:?} is not allowed here: {expected}", tag.raw);
                self.findings.add(tag.offset, "", tag.offset, why);
                return match content.recover(cursor, step) {
                    Some(Leaf::Element(element)) => named(model, *element, step, global()),
                    _ => Declared::Skipped,
                };
            }
        };
        if !had_children {
            self.findings
                .add(tag.offset, "", tag.offset, || format!("the element {:?} is not allowed here: {why}", tag.raw));
        }
        Declared::Skipped
    }

    /// The type that `xsi:type` names, if it may stand for the declared one.
    fn xsi_type(&mut self, reader: &Reader<'d, 'm>, tag: &Tag<'d>, element: Option<&'m Element>) -> Option<TypeId> {
        let attribute = reader.attributes().iter().find(|one| one.ns == XSI && one.local == "type")?;
        let text = attribute.value.trim_matches(crate::xsd::xml::is_space);
        let (prefix, local) = text.split_once(':').unwrap_or(("", text));
        let name = reader.scope().resolve(prefix).and_then(|(ns, _)| self.model.names.find(ns, local));
        let found = name.and_then(|name| self.model.global_types.get(&name)).copied();
        let Some(id) = found else {
            self.findings
                .add(tag.offset, "/@xsi:type", attribute.offset, || format!("the schema has no type {text:?}"));
            return None;
        };
        if let Some(element) = element
            && !self.may_replace(id, element)
        {
            self.findings.add(tag.offset, "/@xsi:type", attribute.offset, || {
                let declared = self.model.type_name(element.type_id);
                format!("the type {text:?} cannot stand for {declared}: it is not derived from it, or that is blocked")
            });
            return None;
        }
        Some(id)
    }

    /// Whether a type may stand for that of an element. That is found out once for each two types: chains of derivations may
    /// be long, and unions large.
    fn may_replace(&mut self, id: TypeId, element: &Element) -> bool {
        let key = (id, element.type_id, element.block);
        if let Some(known) = self.replaceable.get(&key) {
            return *known;
        }
        let is_union = self.model.simple(element.type_id).is_some_and(|one| matches!(one.variety, Variety::Union(_)));
        self.spend(if is_union { 10_000 } else { 200 });
        let may = self.model.may_replace(id, element.type_id, element.block);
        self.replaceable.insert(key, may);
        may
    }

    /// Whether the element says that it is nil.
    fn xsi_nil(&mut self, reader: &Reader<'d, 'm>, tag: &Tag<'d>, element: Option<&'m Element>) -> bool {
        let Some(attribute) = reader.attributes().iter().find(|one| one.ns == XSI && one.local == "nil") else {
            return false;
        };
        let is_nil = match attribute.value.trim_matches(crate::xsd::xml::is_space) {
            "true" | "1" => true,
            "false" | "0" => false,
            other => {
                let why = || format!("xsi:nil must be true or false, not {}", super::findings::clip(other));
                self.findings.add(tag.offset, "/@xsi:nil", attribute.offset, why);
                return false;
            }
        };
        match element {
            Some(element) if !element.is_nillable => {
                let why = || "xsi:nil is not allowed here: the element is not nillable".into();
                self.findings.add(tag.offset, "/@xsi:nil", attribute.offset, why);
                false
            }
            Some(element) if is_nil && element.value.as_ref().is_some_and(|value| value.is_fixed) => {
                let why = || "an element with a fixed value cannot be nil".into();
                self.findings.add(tag.offset, "/@xsi:nil", attribute.offset, why);
                true
            }
            Some(_) => is_nil,
            // Only a declaration can say that an element may be nil.
            None => false,
        }
    }
}

/// The declaration of an element that a model lets in under the name of another one, if it stands for that.
fn named<'m>(model: &'m crate::xsd::model::Model, id: usize, step: Step, global: Option<&'m Element>) -> Declared<'m> {
    match model.elements.get(id) {
        Some(element) if Some(element.name) == step.name => Declared::Element(element),
        _ => global.map_or(Declared::Skipped, Declared::Element),
    }
}
