//! Complex types: what they inherit from their bases, and what they add.

use std::sync::Arc;

use super::read::DERIVED;
use super::{Attributes, Builder, Built, EXTENSION, RESTRICTION, once, refuse};
use crate::xsd::content::ContentModel;
use crate::xsd::model::{
    ANY_TYPE, ComplexType, Compositor, Content, Particle, SimpleType, Term, Type, TypeId, Wildcard,
};
use crate::xsd::xml::NodeId;

/// How a type comes from its base, as it is written.
struct Derivation {
    /// The element `restriction` or `extension`, or the type itself.
    node: NodeId,
    base: TypeId,
    method: u8,
}

impl Builder<'_> {
    /// Builds the complex type of an element `complexType`.
    pub(super) fn complex_type(&mut self, node: NodeId) -> Built<()> {
        let element = self.tree.node(node);
        let name = match element.get("name") {
            Some(_) => Some(self.global_name(node)?),
            None => None,
        };
        let simple = self.tree.child(node, "simpleContent");
        let complex = self.tree.child(node, "complexContent");
        let derivation = self.derivation(node, simple.or(complex))?;
        self.check_final(&derivation)?;
        let own = self.attributes(derivation.node)?;
        let is_type_mixed = self.boolean(node, "mixed")?.unwrap_or(false);
        let is_content_mixed = complex.map(|complex| self.boolean(complex, "mixed")).transpose()?.flatten();
        let is_mixed = is_content_mixed.unwrap_or(is_type_mixed);
        let content = match simple {
            Some(_) => self.simple_content(&derivation)?,
            None => self.complex_content(&derivation, is_mixed)?,
        };
        let own = self.inherited(&derivation, own)?;
        let block_default = self.block_default & (EXTENSION | RESTRICTION);
        let built = ComplexType {
            name,
            base: derivation.base,
            method: derivation.method,
            is_abstract: self.boolean(node, "abstract")?.unwrap_or(false),
            block: self.derivations(node, "block", DERIVED)?.unwrap_or(block_default),
            finals: self.derivations(node, "final", DERIVED)?.unwrap_or(self.final_default),
            required: own.uses.iter().filter(|used| used.is_required).count(),
            has_references: own.uses.iter().flat_map(|used| &used.value).any(|value| !value.identifiers.is_empty()),
            uses: own.uses,
            wildcard: own.wildcard,
            content,
            offset: element.offset,
        };
        self.set_type(node, Type::Complex(built));
        Ok(())
    }

    fn derivation(&mut self, node: NodeId, content: Option<NodeId>) -> Built<Derivation> {
        let Some(content) = content else { return Ok(Derivation { node, base: ANY_TYPE, method: RESTRICTION }) };
        let element = self.tree.node(content);
        let Some(child) = self.tree.children(content).next() else {
            return refuse(
                format!("this {} is empty: it needs restriction or extension", element.name),
                element.offset,
            );
        };
        let method = if self.tree.node(child).is("extension") { EXTENSION } else { RESTRICTION };
        match self.type_reference(child, "base")? {
            Some((base, _)) => Ok(Derivation { node: child, base, method }),
            None => refuse("a derivation needs a base", self.tree.node(child).offset),
        }
    }

    fn check_final(&self, derivation: &Derivation) -> Built<()> {
        let finals = match self.model.types.get(derivation.base) {
            Some(Type::Complex(base)) => base.finals,
            Some(Type::Simple(base)) => base.finals,
            None => 0,
        };
        if finals & derivation.method != 0 {
            let why =
                format!("{} is final: it cannot be derived from like this", self.model.type_name(derivation.base));
            return refuse(why, self.tree.node(derivation.node).offset);
        }
        Ok(())
    }

    fn simple_content(&mut self, derivation: &Derivation) -> Built<Content> {
        let offset = self.tree.node(derivation.node).offset;
        let base_name = || self.model.type_name(derivation.base);
        if derivation.method == EXTENSION {
            return match self.model.text_type(derivation.base) {
                Some(text) => Ok(Content::Simple(text)),
                None => refuse(format!("{} has no simple content that could be extended", base_name()), offset),
            };
        }
        let inline = self.tree.child(derivation.node, "simpleType");
        let content = match self.model.types.get(derivation.base) {
            Some(Type::Complex(base)) => base.content.clone(),
            _ => return refuse(format!("{} is simple: restrict it in a simpleType", base_name()), offset),
        };
        let base = match (content, inline) {
            (Content::Simple(base), None) => base,
            (Content::Simple(base), Some(inline)) => {
                let inline = self.type_of(inline);
                if self.model.derivations(inline, base).is_none() {
                    return refuse("the simpleType in here must be derived from the content of the base", offset);
                }
                inline
            }
            // That the base may be empty is checked once content models are there.
            (Content::Elements { is_mixed: true, .. }, Some(inline)) => self.type_of(inline),
            _ => return refuse(format!("{} has no simple content that could be restricted", base_name()), offset),
        };
        let skipped = ["simpleType", "attribute", "attributeGroup", "anyAttribute"];
        let facets =
            self.tree.children(derivation.node).filter(|child| !skipped.contains(&&*self.tree.node(*child).name));
        let facets: Vec<NodeId> = facets.collect();
        if facets.is_empty() {
            return Ok(Content::Simple(base));
        }
        let restricted: SimpleType = self.restrict(base, &facets, offset)?;
        self.model.types.push(Type::Simple(restricted));
        Ok(Content::Simple(self.model.types.len() - 1))
    }

    fn complex_content(&mut self, derivation: &Derivation, is_mixed: bool) -> Built<Content> {
        let offset = self.tree.node(derivation.node).offset;
        let own = self.content_group(derivation.node)?.filter(|particle| !is_empty(particle));
        let own = match own {
            None if is_mixed => Some(once(Term::Group(Compositor::Sequence, Arc::from([])), offset)),
            own => own,
        };
        let Some(Type::Complex(base)) = self.model.types.get(derivation.base) else {
            let why = format!("{} is simple: use simpleContent", self.model.type_name(derivation.base));
            return refuse(why, offset);
        };
        let model: Arc<ContentModel> = Arc::clone(&self.pending);
        let of = |particle: Particle, is_mixed: bool| Content::Elements { particle, is_mixed, model };
        if derivation.method == RESTRICTION {
            return Ok(own.map_or(Content::Empty, |particle| of(particle, is_mixed)));
        }
        match (&base.content, own) {
            (content, None) => Ok(content.clone()),
            (Content::Empty, Some(own)) => Ok(of(own, is_mixed)),
            (Content::Simple(_), Some(_)) => refuse("the content of the base is simple: use simpleContent", offset),
            (Content::Elements { is_mixed: base_is_mixed, .. }, Some(_)) if *base_is_mixed != is_mixed => {
                refuse("an extension must be mixed if and only if its base is", offset)
            }
            (Content::Elements { particle, .. }, Some(own)) => {
                let parts = Arc::from([particle.clone(), own]);
                Ok(of(once(Term::Group(Compositor::Sequence, parts), offset), is_mixed))
            }
        }
    }

    /// Adds the attributes of the base to a type's own.
    fn inherited(&mut self, derivation: &Derivation, mut own: Attributes) -> Built<Attributes> {
        let offset = self.tree.node(derivation.node).offset;
        let Some(Type::Complex(base)) = self.model.types.get(derivation.base) else { return Ok(own) };
        let (base_uses, base_wildcard) = (base.uses.clone(), base.wildcard.clone());
        let namespaces = base_wildcard.as_ref().map_or(0, |wildcard| wildcard.allowed.names());
        let count = base_uses.len() + namespaces;
        if derivation.method == RESTRICTION {
            let is_kept = |name| {
                own.uses.binary_search_by_key(&name, |used| used.name).is_err() && !own.prohibited.contains(&name)
            };
            let kept: Vec<_> = base_uses.into_iter().filter(|used| is_kept(used.name)).collect();
            own.uses.extend(kept);
        } else {
            own.uses.extend(base_uses);
            own.wildcard = match (own.wildcard, base_wildcard) {
                // How much is checked is for the extension to say.
                (Some(one), Some(other)) => {
                    let Some(allowed) = one.allowed.union(&other.allowed) else {
                        return refuse("this anyAttribute and that of the base together cannot be said by one", offset);
                    };
                    Some(Wildcard { allowed, process: one.process })
                }
                (own, base) => own.or(base),
            };
        }
        self.inherit_attributes(count, offset)?;
        self.check_uses(&mut own.uses)?;
        Ok(own)
    }
}

/// Whether the content that a type is written with counts as empty.
fn is_empty(particle: &Particle) -> bool {
    match &particle.term {
        Term::Group(Compositor::Choice, particles) => particles.is_empty() && particle.min == 0,
        Term::Group(_, particles) => particles.is_empty(),
        _ => false,
    }
}
