//! Particles: groups, elements and wildcards, and how often they occur.

use std::sync::Arc;

use super::{Builder, Built, refuse};
use crate::xsd::model::{Compositor, Particle, Term};
use crate::xsd::xml::NodeId;

impl Builder<'_> {
    /// Builds a named group.
    pub(super) fn group(&mut self, node: NodeId) -> Built<()> {
        let name = self.global_name(node)?;
        let Some(content) = self.tree.children(node).next() else {
            return refuse("this group is empty: it needs all, choice or sequence", self.tree.node(node).offset);
        };
        for attribute in ["minOccurs", "maxOccurs"] {
            if let Some(attr) = self.tree.node(content).attribute(attribute) {
                let why = format!("{attribute} is not allowed here: write it where the group is referred to");
                return refuse(why, attr.offset);
            }
        }
        let term = self.compositor(content)?;
        self.groups.insert(name, term);
        Ok(())
    }

    /// Reads the group that is the content of a type, if there is one and it may occur.
    pub(super) fn content_group(&mut self, node: NodeId) -> Built<Option<Particle>> {
        let is_group = |child: &NodeId| ["group", "all", "choice", "sequence"].contains(&&*self.tree.node(*child).name);
        match self.tree.children(node).find(is_group) {
            Some(child) => self.particle(child),
            None => Ok(None),
        }
    }

    /// Reads a particle; `None` if it may not occur.
    fn particle(&mut self, node: NodeId) -> Built<Option<Particle>> {
        let element = self.tree.node(node);
        let offset = element.offset;
        let occurs = self.occurs(node)?;
        let term = match &*element.name {
            "element" => self.local_element(node)?,
            "any" => Term::Wildcard(Arc::new(self.wildcard(node)?)),
            "group" => {
                let Some((name, at)) = self.reference(node, "ref")? else {
                    return refuse("this group refers to nothing: it needs a ref", offset);
                };
                match self.groups.get(&name) {
                    Some(term) => term.clone(),
                    None => return refuse(format!("there is no group {}", self.model.names.show(name)), at),
                }
            }
            _ => self.compositor(node)?,
        };
        let is_all = matches!(term, Term::Group(Compositor::All, _));
        match occurs {
            Some((_, max)) if is_all && max != 1 => return refuse("\"all\" cannot occur more than once", offset),
            None if element.is("all") => return refuse("\"all\" cannot have maxOccurs=\"0\"", offset),
            _ => {}
        }
        Ok(occurs.map(|(min, max)| Particle { min, max, term, offset }))
    }

    /// Reads `all`, `choice` or `sequence` without its own occurrence.
    fn compositor(&mut self, node: NodeId) -> Built<Term> {
        let compositor = match &*self.tree.node(node).name {
            "all" => Compositor::All,
            "choice" => Compositor::Choice,
            _ => Compositor::Sequence,
        };
        let mut particles = Vec::new();
        for child in self.tree.children(node).collect::<Vec<_>>() {
            if let Some(particle) = self.particle(child)? {
                if compositor == Compositor::All && particle.max > 1 {
                    return refuse("an element in \"all\" cannot occur more than once", particle.offset);
                }
                particles.push(particle);
            }
        }
        Ok(Term::Group(compositor, particles.into()))
    }

    fn local_element(&mut self, node: NodeId) -> Built<Term> {
        if let Some((name, offset)) = self.reference(node, "ref")? {
            return match self.model.globals.get(&name) {
                Some(id) => Ok(Term::Element(*id)),
                None => refuse(format!("there is no element {}", self.model.names.show(name)), offset),
            };
        }
        Ok(Term::Element(self.element(node, false)?))
    }
}
