//! Element declarations, their values, and substitution groups.

use std::sync::Arc;

use super::read::{BLOCK_ELEMENT, DERIVED};
use super::{Builder, Built, refuse};
use crate::xsd::bounds::{CHAIN, SUBSTITUTIONS};
use crate::xsd::content::ContentModel;
use crate::xsd::model::{ANY_TYPE, Content, Element, ElementId, Identifiers, NameId, Type, TypeId, ValueConstraint};
use crate::xsd::xml::NodeId;

impl Builder<'_> {
    /// Builds the global elements. Their heads are known after that.
    pub(super) fn global_elements(&mut self) -> Built<()> {
        for node in self.tree.children(0).filter(|child| self.tree.node(*child).is("element")).collect::<Vec<_>>() {
            let id = self.element(node, true)?;
            let (name, offset) = self.model.elements.get(id).map_or((NameId(0), 0), |one| (one.name, one.offset));
            if self.model.globals.insert(name, id).is_some() {
                return refuse(format!("the element {} is defined twice", self.model.names.show(name)), offset);
            }
        }
        Ok(())
    }

    /// Builds an element declaration.
    pub(super) fn element(&mut self, node: NodeId, is_global: bool) -> Built<ElementId> {
        let element = self.tree.node(node);
        let local = self.required_name(node)?;
        let space = if is_global { self.model.target } else { self.space(node, self.model.is_element_qualified)? };
        let name = self.model.names.intern(space, local);
        let inline = self.tree.child(node, "simpleType").or(self.tree.child(node, "complexType"));
        let id = self.model.elements.len();
        let type_id = match (self.type_reference(node, "type")?, inline) {
            (Some((id, _)), None) => id,
            (None, Some(inline)) => self.type_of(inline),
            (None, None) => {
                self.untyped.push(id);
                ANY_TYPE
            }
            (Some((_, offset)), Some(_)) => {
                return refuse("an element cannot have both a type and a type in it", offset);
            }
        };
        if let (Some(attr), Some(_)) = (element.attribute("default"), element.attribute("fixed")) {
            return refuse("default and fixed exclude each other", attr.offset);
        }
        if element.get("default").or(element.get("fixed")).is_some() {
            self.element_values.push((id, node));
        }
        let block_default = self.block_default;
        self.model.elements.push(Element {
            name,
            type_id,
            is_global,
            is_nillable: self.boolean(node, "nillable")?.unwrap_or(false),
            is_abstract: self.boolean(node, "abstract")?.unwrap_or(false),
            value: None,
            block: self.derivations(node, "block", BLOCK_ELEMENT)?.unwrap_or(block_default),
            finals: self.derivations(node, "final", DERIVED)?.unwrap_or(self.final_default),
            head: None,
            constraints: Vec::new(),
            offset: element.offset,
        });
        let is_constraint = |child: &NodeId| ["unique", "key", "keyref"].contains(&&*self.tree.node(*child).name);
        let constraints = self.tree.children(node).filter(is_constraint).map(|child| (id, child));
        self.constraint_nodes.extend(constraints.collect::<Vec<_>>());
        Ok(id)
    }

    /// Resolves the heads of substitution groups, and with them the types of elements that have none of their own.
    pub(super) fn heads(&mut self) -> Built<()> {
        for node in self.tree.children(0).filter(|child| self.tree.node(*child).is("element")).collect::<Vec<_>>() {
            let Some((name, offset)) = self.reference(node, "substitutionGroup")? else { continue };
            let Some(head) = self.model.globals.get(&name).copied() else {
                return refuse(format!("there is no element {}", self.model.names.show(name)), offset);
            };
            let own = self.global_name(node)?;
            let id = self.model.globals.get(&own).copied();
            if let Some(element) = id.and_then(|id| self.model.elements.get_mut(id)) {
                element.head = Some(head);
            }
        }
        let untyped: std::collections::HashSet<ElementId> = self.untyped.iter().copied().collect();
        for id in 0..self.model.elements.len() {
            let mut at = id;
            for steps in 0.. {
                let Some(head) = self.model.elements.get(at).and_then(|element| element.head) else { break };
                if head == id || steps > CHAIN {
                    let offset = self.model.elements.get(id).map_or(0, |element| element.offset);
                    let why = format!("the substitution groups are circular, or a chain of more than {CHAIN}");
                    return refuse(why, offset);
                }
                at = head;
            }
        }
        for id in 0..self.model.elements.len() {
            let mut at = id;
            while untyped.contains(&at) {
                let Some(head) = self.model.elements.get(at).and_then(|element| element.head) else { break };
                at = head;
            }
            let type_id = self.model.elements.get(at).map_or(ANY_TYPE, |element| element.type_id);
            if let Some(element) = self.model.elements.get_mut(id) {
                element.type_id = type_id;
            }
        }
        Ok(())
    }

    /// Finds the members of all substitution groups, and checks that their types fit.
    pub(super) fn substitutes(&mut self) -> Built<()> {
        let mut total = 0;
        for (id, element) in self.model.elements.iter().enumerate() {
            if let Some(head) = element.head.and_then(|head| self.model.elements.get(head)) {
                let methods = self.model.derivations(element.type_id, head.type_id);
                if methods.is_none_or(|methods| methods & head.finals != 0) {
                    let why = format!(
                        "the type of {} must be derived from that of {}, the head of its substitution group, and not in a \
                         way that is final there",
                        self.model.names.show(element.name),
                        self.model.names.show(head.name)
                    );
                    return refuse(why, element.offset);
                }
            }
            let mut next = element.head;
            while let Some(head_id) = next {
                let Some(head) = self.model.elements.get(head_id) else { break };
                if self.model.may_substitute(element, head) {
                    total += 1;
                    self.model.substitutes.entry(head_id).or_default().push(id);
                }
                next = head.head;
            }
            if total > SUBSTITUTIONS {
                let why = format!("the substitution groups have more than {SUBSTITUTIONS} members together");
                return refuse(why, element.offset);
            }
        }
        Ok(())
    }

    /// Checks the default and fixed values of elements, which need their types.
    pub(super) fn element_defaults(&mut self) -> Built<()> {
        for (id, node) in std::mem::take(&mut self.element_values) {
            let element = self.tree.node(node);
            let Some((attr, is_fixed)) = (match (element.attribute("default"), element.attribute("fixed")) {
                (Some(attr), _) => Some((attr, false)),
                (None, Some(attr)) => Some((attr, true)),
                (None, None) => None,
            }) else {
                continue;
            };
            let type_id = self.model.elements.get(id).map_or(ANY_TYPE, |element| element.type_id);
            let (key, identifiers) =
                self.element_key(type_id, node, &attr.value).or_else(|why| refuse(why, attr.offset))?;
            let text = attr.value.as_ref().into();
            let value = ValueConstraint { is_fixed, text, key: key.into(), identifiers };
            if let Some(element) = self.model.elements.get_mut(id) {
                element.value = Some(value);
            }
        }
        Ok(())
    }

    /// What equal values of an element have in common; of mixed content that is the text.
    fn element_key(&mut self, type_id: TypeId, node: NodeId, text: &str) -> Result<(String, Identifiers), String> {
        if let Some(simple) = self.model.text_type(type_id) {
            if self.is_id(simple) {
                return Err("an identifier cannot have a default or fixed value".into());
            }
            let key = self.key_of(simple, node, text);
            return key.map_err(|why| format!("{text:?} is no value of its type: {why}"));
        }
        match self.model.types.get(type_id) {
            Some(Type::Complex(complex)) => match &complex.content {
                Content::Elements { is_mixed: true, model, .. } if ContentModel::is_nullable(model) => {
                    Ok((text.into(), Arc::default()))
                }
                _ => Err("an element that must have children, or cannot have text, cannot have a value".into()),
            },
            _ => Err("this element cannot have a value".into()),
        }
    }
}
