//! Reads the values of attributes of a schema's elements: names, references, numbers and sets.

use super::{Builder, Built, refuse};
use crate::xsd::model::{NameId, TypeId, UNBOUNDED, derivation};
use crate::xsd::value::Prefixes;
use crate::xsd::xml::{NodeId, Tree, XML, XML_URI, XS, XS_URI, is_ncname};

/// The words of `block` at an element.
pub(super) const BLOCK_ELEMENT: &[(&str, u8)] = &[
    ("extension", derivation::EXTENSION),
    ("restriction", derivation::RESTRICTION),
    ("substitution", derivation::SUBSTITUTION),
];
/// The words of `final` at an element, and of `block` and `final` at a complex type.
pub(super) const DERIVED: &[(&str, u8)] =
    &[("extension", derivation::EXTENSION), ("restriction", derivation::RESTRICTION)];
/// The words of `final` at a simple type, beside `#all`, which forbids extension too.
pub(super) const FINAL_SIMPLE: &[(&str, u8)] =
    &[("restriction", derivation::RESTRICTION), ("list", derivation::LIST), ("union", derivation::UNION)];
/// The words of `finalDefault`, and what `#all` means in `final` at a simple type.
pub(super) const FINAL_ANY: &[(&str, u8)] = &[
    ("extension", derivation::EXTENSION),
    ("restriction", derivation::RESTRICTION),
    ("list", derivation::LIST),
    ("union", derivation::UNION),
];

/// The namespace declarations at an element of a schema.
pub(super) struct NodePrefixes<'t> {
    pub(super) tree: &'t Tree,
    pub(super) node: NodeId,
}

impl Prefixes for NodePrefixes<'_> {
    fn uri(&self, prefix: &str) -> Option<&str> {
        self.tree.resolve(self.node, prefix)
    }
}

impl<'t> Builder<'t> {
    /// The name of a component, which is required.
    pub(super) fn required_name(&self, node: NodeId) -> Built<&'t str> {
        let element = self.tree.node(node);
        match element.attribute("name") {
            Some(attr) if is_ncname(attr.value.trim_ascii()) => Ok(attr.value.trim_ascii()),
            Some(attr) => refuse(format!("{:?} is no name without a colon", attr.value), attr.offset),
            None => refuse(format!("this {} has no name", element.name), element.offset),
        }
    }

    /// Resolves a qualified name in the value of an attribute.
    pub(super) fn qname(&mut self, node: NodeId, text: &str, offset: usize) -> Built<NameId> {
        let text = text.trim_ascii();
        let (prefix, local) = text.split_once(':').unwrap_or(("", text));
        if !is_ncname(local) || text.starts_with(':') || !(prefix.is_empty() || is_ncname(prefix)) {
            return refuse(format!("{text:?} is no qualified name"), offset);
        }
        let Some(uri) = self.tree.resolve(node, prefix) else {
            return refuse(format!("the prefix {prefix:?} is not declared"), offset);
        };
        let ns = match uri {
            XS_URI => XS,
            XML_URI if self.has_xml => XML,
            uri if uri == self.model.names.spaces.uri(self.model.target) => self.model.target,
            "" => {
                let why = format!(
                    "{text:?} is in no namespace, and this schema has a target namespace: use a prefix of that"
                );
                return refuse(why, offset);
            }
            other => {
                let why =
                    format!("{text:?} is in the namespace {other:?}, which is not this schema's, and is not imported");
                return refuse(why, offset);
            }
        };
        Ok(self.model.names.intern(ns, local))
    }

    /// Resolves the name in an attribute, if the attribute is there.
    pub(super) fn reference(&mut self, node: NodeId, attribute: &str) -> Built<Option<(NameId, usize)>> {
        match self.tree.node(node).attribute(attribute) {
            Some(attr) => Ok(Some((self.qname(node, &attr.value, attr.offset)?, attr.offset))),
            None => Ok(None),
        }
    }

    /// The type that an attribute names, if the attribute is there.
    pub(super) fn type_reference(&mut self, node: NodeId, attribute: &str) -> Built<Option<(TypeId, usize)>> {
        match self.reference(node, attribute)? {
            Some((name, offset)) => Ok(Some((self.named_type(name, offset)?, offset))),
            None => Ok(None),
        }
    }

    /// The type of a name.
    pub(super) fn named_type(&self, name: NameId, offset: usize) -> Built<TypeId> {
        match self.model.global_types.get(&name) {
            Some(id) => Ok(*id),
            None if self.model.names.ns(name) == XS && self.model.names.local(name) == "NOTATION" => {
                refuse("the type NOTATION is not supported, because notations are not", offset)
            }
            None => refuse(format!("there is no type {}", self.model.names.show(name)), offset),
        }
    }

    /// Names in an attribute that lists them.
    pub(super) fn type_list(&mut self, node: NodeId, attribute: &str) -> Built<Vec<(TypeId, usize)>> {
        let Some(attr) = self.tree.node(node).attribute(attribute) else { return Ok(Vec::new()) };
        let mut types = Vec::new();
        for word in attr.value.split_ascii_whitespace() {
            let name = self.qname(node, word, attr.offset)?;
            types.push((self.named_type(name, attr.offset)?, attr.offset));
        }
        Ok(types)
    }

    /// A truth value.
    pub(super) fn boolean(&self, node: NodeId, attribute: &str) -> Built<Option<bool>> {
        let Some(attr) = self.tree.node(node).attribute(attribute) else { return Ok(None) };
        match attr.value.trim_ascii() {
            "true" | "1" => Ok(Some(true)),
            "false" | "0" => Ok(Some(false)),
            other => refuse(format!("{attribute} must be true or false, not {other:?}"), attr.offset),
        }
    }

    /// Whether names are qualified.
    pub(super) fn form(&self, node: NodeId, attribute: &str) -> Built<Option<bool>> {
        let Some(attr) = self.tree.node(node).attribute(attribute) else { return Ok(None) };
        match attr.value.trim_ascii() {
            "qualified" => Ok(Some(true)),
            "unqualified" => Ok(Some(false)),
            other => refuse(format!("{attribute} must be qualified or unqualified, not {other:?}"), attr.offset),
        }
    }

    /// A set of derivations.
    pub(super) fn derivations(&self, node: NodeId, attribute: &str, words: &[(&str, u8)]) -> Built<Option<u8>> {
        let Some(attr) = self.tree.node(node).attribute(attribute) else { return Ok(None) };
        if attr.value.trim_ascii() == "#all" {
            return Ok(Some(words.iter().fold(0, |all, (_, bit)| all | bit)));
        }
        let mut set = 0;
        for word in attr.value.split_ascii_whitespace() {
            match words.iter().find(|(known, _)| *known == word) {
                Some((_, bit)) => set |= bit,
                None => return refuse(format!("{word:?} is not allowed in {attribute} here"), attr.offset),
            }
        }
        Ok(Some(set))
    }

    /// How often a particle may occur; `None` for never.
    pub(super) fn occurs(&self, node: NodeId) -> Built<Option<(u32, u32)>> {
        let element = self.tree.node(node);
        let read = |attribute: &str| {
            let Some(attr) = element.attribute(attribute) else { return Ok(1) };
            let text = attr.value.trim_ascii();
            if attribute == "maxOccurs" && text == "unbounded" {
                return Ok(UNBOUNDED);
            }
            match count(text) {
                // More than any document has elements.
                Some(count) => Ok(u32::try_from(count).unwrap_or(UNBOUNDED).min(UNBOUNDED - 1)),
                None => refuse(format!("{attribute} must be a whole number, not {text:?}"), attr.offset),
            }
        };
        let (min, max) = (read("minOccurs")?, read("maxOccurs")?);
        if min > max {
            return refuse("minOccurs is greater than maxOccurs", element.offset);
        }
        Ok((max > 0).then_some((min, max)))
    }

    /// The namespace that an attribute or local element is in.
    pub(super) fn space(&self, node: NodeId, default: bool) -> Built<crate::xsd::xml::Ns> {
        let is_qualified = self.form(node, "form")?.unwrap_or(default);
        Ok(super::local_space(is_qualified, self.model.target))
    }
}

/// Reads a number of things; one that is too large to matter is cut.
pub(super) fn count(text: &str) -> Option<usize> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return if text.starts_with("-0") && text[1..].bytes().all(|byte| byte == b'0') { Some(0) } else { None };
    }
    Some(digits.parse().unwrap_or(usize::MAX))
}
