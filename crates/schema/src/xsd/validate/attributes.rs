//! The attributes of an element.

use super::{Run, findings::clip, identity::AttributeField};
use crate::xsd::model::{ComplexType, NameId, Process, Reading, Test, TypeId, Use, ValueConstraint};
use crate::xsd::value::Kind;
use crate::xsd::xml::{Attribute, Reader, Tag, XSI};

impl<'m, 'd> Run<'m, 'd> {
    /// Checks the attributes of a start tag. Without a complex type there may be only those of XML Schema itself.
    pub(super) fn attributes(
        &mut self,
        reader: &Reader<'d, 'm>,
        tag: &Tag<'d>,
        complex: Option<&'m ComplexType>,
        wanted: &[AttributeField],
    ) {
        let mut required = 0;
        let mut wild_ids = 0;
        for attribute in reader.attributes() {
            let is_xsi = attribute.ns == XSI
                && matches!(attribute.local, "type" | "nil" | "schemaLocation" | "noNamespaceSchemaLocation");
            if is_xsi {
                continue;
            }
            let name = self.model.names.find(attribute.ns, attribute.local);
            let found = complex.and_then(|complex| find(complex, name?));
            if let Some(used) = found {
                required += usize::from(used.is_required);
                self.value(reader, tag, attribute, (used.type_id, used.value.as_ref()), (name, wanted));
                continue;
            }
            let wildcard = complex.and_then(|complex| complex.wildcard.as_ref());
            let Some(wildcard) = wildcard.filter(|wildcard| wildcard.allowed.lets_in(attribute.ns)) else {
                self.attribute_finding(tag, attribute, "is not allowed here");
                continue;
            };
            let global = name.and_then(|name| self.model.global_attributes.get(&name));
            match (wildcard.process, global.and_then(|id| self.model.attributes.get(*id))) {
                (Process::Skip, _) | (Process::Lax, None) => {}
                (_, Some(declared)) => {
                    wild_ids += usize::from(self.model.is_kind(declared.type_id, Kind::Id));
                    self.value(reader, tag, attribute, (declared.type_id, declared.value.as_ref()), (name, wanted));
                }
                (Process::Strict, None) => {
                    self.attribute_finding(
                        tag,
                        attribute,
                        "is not declared in the schema, and a wildcard demands that here",
                    );
                }
            }
        }
        let Some(complex) = complex else { return };
        if wild_ids > 0 {
            self.check_wild_ids(tag, complex, wild_ids);
        }
        self.check_required(reader, tag, complex, required);
        if complex.has_references {
            self.check_defaults(reader, tag, complex);
        }
        for field in wanted {
            self.default_field(reader, complex, field);
        }
    }

    fn attribute_finding(&mut self, tag: &Tag<'d>, attribute: &Attribute<'d>, why: &str) {
        let suffix = format!("/@{}", attribute.raw);
        self.findings.add(tag.offset, &suffix, attribute.offset, || format!("the attribute {:?} {why}", attribute.raw));
    }

    /// Checks the value of an attribute, and hands it to the fields that it is.
    fn value(
        &mut self,
        reader: &Reader<'d, 'm>,
        tag: &Tag<'d>,
        attribute: &Attribute<'d>,
        (type_id, value): (TypeId, Option<&'m ValueConstraint>),
        (name, wanted): (Option<NameId>, &[AttributeField]),
    ) {
        let fixed = value.filter(|value| value.is_fixed);
        let is_field = wanted.iter().any(|field| field.test.matches(name, attribute.ns));
        let mut key = String::new();
        let mut reading = Reading {
            prefixes: reader.scope(),
            identifiers: &mut self.identifiers,
            work: &mut self.work,
            key: (fixed.is_some() || is_field).then_some(&mut key),
        };
        let checked = self.model.check_text(type_id, &attribute.value, &mut reading);
        if let Err(wrong) = &checked {
            let suffix = format!("/@{}", attribute.raw);
            self.wrong_value((tag.offset, &suffix, attribute.offset), &attribute.value, wrong);
        } else if !self.identifiers.is_empty() {
            self.take_identifiers(tag.offset, &format!("/@{}", attribute.raw), attribute.offset);
        }
        if let Some(fixed) = fixed.filter(|fixed| checked.is_ok() && *fixed.key != *key) {
            let suffix = format!("/@{}", attribute.raw);
            self.findings.add(tag.offset, &suffix, attribute.offset, || {
                format!("the value must be {}, which is fixed", clip(&fixed.text))
            });
        }
        if is_field {
            for field in wanted.iter().filter(|field| field.test.matches(name, attribute.ns)) {
                self.identity.set_attribute(field, checked.is_ok().then_some(&key), &mut self.findings);
            }
        }
    }

    /// At most one identifier may come by a wildcard, and none to those that are declared.
    fn check_wild_ids(&mut self, tag: &Tag<'d>, complex: &ComplexType, wild_ids: usize) {
        if wild_ids > 1 || complex.uses.iter().any(|used| self.model.is_kind(used.type_id, Kind::Id)) {
            let why = || "an element can have only one attribute that is an identifier (ID)".into();
            self.findings.add(tag.offset, "", tag.offset, why);
        }
    }

    fn check_required(&mut self, reader: &Reader<'d, 'm>, tag: &Tag<'d>, complex: &ComplexType, seen: usize) {
        if seen == complex.required || !self.spend_uses(reader, complex) {
            return;
        }
        for used in complex.uses.iter().filter(|used| used.is_required) {
            if self.is_absent(reader, used.name) {
                let name = || self.model.names.show(used.name);
                self.findings.add(tag.offset, "", tag.offset, || format!("the attribute {} is missing", name()));
            }
        }
    }

    /// Takes over the identifiers that the defaults of absent attributes refer to.
    fn check_defaults(&mut self, reader: &Reader<'d, 'm>, tag: &Tag<'d>, complex: &ComplexType) {
        if !self.spend_uses(reader, complex) {
            return;
        }
        for used in &complex.uses {
            let identifiers = used.value.as_ref().map_or(&[][..], |value| &value.identifiers);
            if !identifiers.is_empty() && self.is_absent(reader, used.name) {
                let suffix = format!("/@{}", self.model.names.local(used.name));
                self.default_identifiers(tag.offset, &suffix, identifiers);
            }
        }
    }

    /// Takes the steps off what is left that it may take to find out which attributes are absent.
    fn spend_uses(&mut self, reader: &Reader<'d, 'm>, complex: &ComplexType) -> bool {
        self.spend(complex.uses.len() * (1 + reader.attributes().len()))
    }

    fn is_absent(&self, reader: &Reader<'d, 'm>, name: NameId) -> bool {
        let (ns, local) = (self.model.names.ns(name), self.model.names.local(name));
        !reader.attributes().iter().any(|one| one.ns == ns && one.local == local)
    }

    /// An attribute that is not there has its default or fixed value.
    fn default_field(&mut self, reader: &Reader<'d, 'm>, complex: &ComplexType, field: &AttributeField) {
        let uses = match field.test {
            Test::Name(name) => find(complex, name).map_or(&[][..], std::slice::from_ref),
            _ if self.spend_uses(reader, complex) => &complex.uses,
            _ => return,
        };
        for used in uses {
            let Some(value) = &used.value else { continue };
            if field.test.matches(Some(used.name), self.model.names.ns(used.name)) && self.is_absent(reader, used.name)
            {
                self.identity.set_attribute(field, Some(&value.key), &mut self.findings);
            }
        }
    }
}

fn find(complex: &ComplexType, name: NameId) -> Option<&Use> {
    let at = complex.uses.binary_search_by_key(&name, |used| used.name).ok()?;
    complex.uses.get(at)
}
