//! Simple types: restrictions, lists and unions.

use std::sync::Arc;

use super::read::{FINAL_ANY, FINAL_SIMPLE};
use super::{Builder, Built, refuse};
use crate::xsd::bounds::MEMBERS;
use crate::xsd::model::{ANY_SIMPLE_TYPE, Facets, SimpleType, Type, TypeId, Variety, derivation};
use crate::xsd::value::White;
use crate::xsd::xml::NodeId;

impl Builder<'_> {
    /// Builds the simple type of an element `simpleType`.
    pub(super) fn simple_type(&mut self, node: NodeId) -> Built<()> {
        let name = match self.tree.node(node).get("name") {
            Some(_) => Some(self.global_name(node)?),
            None => None,
        };
        let tree = self.tree;
        let Some(variety) = tree.children(node).next() else {
            return refuse("this simpleType is empty: it needs a restriction, list or union", tree.node(node).offset);
        };
        let mut built = match &*tree.node(variety).name {
            "restriction" => self.restriction(variety)?,
            "list" => self.list(variety)?,
            _ => self.union(variety)?,
        };
        built.name = name;
        let is_all = tree.node(node).get("final").is_some_and(|finals| finals.trim_ascii() == "#all");
        let words = if is_all { FINAL_ANY } else { FINAL_SIMPLE };
        built.finals = self.derivations(node, "final", words)?.unwrap_or(self.final_default);
        self.set_type(node, Type::Simple(built));
        Ok(())
    }

    fn restriction(&mut self, node: NodeId) -> Built<SimpleType> {
        let inline = self.tree.child(node, "simpleType");
        let offset = self.tree.node(node).offset;
        let base = match (self.type_reference(node, "base")?, inline) {
            (Some((base, _)), None) => base,
            (None, Some(inline)) => self.type_of(inline),
            _ => return refuse("a restriction needs either a base or a simpleType in it", offset),
        };
        let facets: Vec<NodeId> = self.tree.children(node).filter(|child| Some(*child) != inline).collect();
        self.restrict(base, &facets, offset)
    }

    /// A type that restricts another one by facets.
    pub(super) fn restrict(&mut self, base: TypeId, facets: &[NodeId], offset: usize) -> Built<SimpleType> {
        let Some(simple) = self.model.simple(base).filter(|_| !self.is_complex(base)) else {
            return refuse(
                format!("{} is not simple, so no simple type can restrict it", self.model.type_name(base)),
                offset,
            );
        };
        if simple.variety == Variety::Ur {
            return refuse("anySimpleType cannot be restricted", offset);
        }
        if simple.finals & derivation::RESTRICTION != 0 {
            return refuse(format!("{} is final: it cannot be restricted", self.model.type_name(base)), offset);
        }
        let mut derived = SimpleType { name: None, base, finals: 0, ..simple.clone() };
        self.inherited_patterns = match self.inherited_patterns.checked_sub(derived.facets.patterns.len()) {
            Some(left) => left,
            None => return refuse("the types of this schema inherit too many patterns", offset),
        };
        self.facets(base, &mut derived, facets)?;
        Ok(derived)
    }

    /// Checks that a type may be an item of a list or a member of a union.
    fn may_be_part(&self, part: TypeId, offset: usize, of: (&str, u8)) -> Built<()> {
        let (what, bit) = of;
        match self.model.simple(part).filter(|_| !self.is_complex(part)) {
            Some(simple) if simple.finals & bit != 0 => {
                refuse(format!("{} is final: it cannot be in a {what}", self.model.type_name(part)), offset)
            }
            Some(simple) if simple.variety == Variety::Ur => {
                refuse(format!("anySimpleType cannot be in a {what}"), offset)
            }
            Some(_) => Ok(()),
            None => {
                refuse(format!("{} is not simple, so it cannot be in a {what}", self.model.type_name(part)), offset)
            }
        }
    }

    fn list(&mut self, node: NodeId) -> Built<SimpleType> {
        let inline = self.tree.child(node, "simpleType");
        let offset = self.tree.node(node).offset;
        let item = match (self.type_reference(node, "itemType")?, inline) {
            (Some((item, _)), None) => item,
            (None, Some(inline)) => self.type_of(inline),
            _ => return refuse("a list needs either an itemType or a simpleType in it", offset),
        };
        self.may_be_part(item, offset, ("list", derivation::LIST))?;
        if self.has_list(item) {
            return refuse("the items of a list cannot be lists themselves", offset);
        }
        Ok(SimpleType {
            name: None,
            base: ANY_SIMPLE_TYPE,
            variety: Variety::List(item),
            white: White::Collapse,
            facets: Facets::default(),
            finals: 0,
        })
    }

    /// Whether a type is a list, or a union with one in it.
    fn has_list(&self, id: TypeId) -> bool {
        match self.model.simple(id).map(|simple| &simple.variety) {
            Some(Variety::List(_)) => true,
            Some(Variety::Union(members)) => members.iter().any(|member| self.has_list(*member)),
            _ => false,
        }
    }

    fn union(&mut self, node: NodeId) -> Built<SimpleType> {
        let offset = self.tree.node(node).offset;
        let mut members = self.type_list(node, "memberTypes")?;
        let inline: Vec<NodeId> = self.tree.children(node).collect();
        members.extend(inline.iter().map(|inline| (self.type_of(*inline), self.tree.node(*inline).offset)));
        if members.is_empty() {
            return refuse("a union needs memberTypes, or simpleTypes in it", offset);
        }
        for (member, offset) in &members {
            self.may_be_part(*member, *offset, ("union", derivation::UNION))?;
        }
        let members: Arc<[TypeId]> = members.into_iter().map(|(member, _)| member).collect();
        let count: usize = members.iter().map(|member| self.members(*member)).sum();
        if count > MEMBERS {
            return refuse(
                format!("the union has more than {MEMBERS} members, with those of the unions in it"),
                offset,
            );
        }
        Ok(SimpleType {
            name: None,
            base: ANY_SIMPLE_TYPE,
            variety: Variety::Union(members),
            white: White::Preserve,
            facets: Facets::default(),
            finals: 0,
        })
    }

    /// How many types a type adds to a union that it is in.
    fn members(&self, id: TypeId) -> usize {
        match self.model.simple(id).map(|simple| &simple.variety) {
            Some(Variety::Union(members)) => members.iter().map(|member| self.members(*member)).sum::<usize>().max(1),
            _ => 1,
        }
    }
}
