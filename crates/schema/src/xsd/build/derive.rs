//! Content models, and the checks of derivations that need them.

use std::collections::HashMap;
use std::sync::Arc;

use super::restrict::Restriction;
use super::{Builder, Built, RESTRICTION, refuse};
use crate::xsd::content::{Compiler, ContentModel, Context, Expanded};
use crate::xsd::model::{ANY_TYPE, ComplexType, Content, Model, NameId, Particle, Term, Type, TypeId, Use};

/// What tells the contents of types apart: the parts, and how often they occur.
type Identity = (usize, u32, u32);

fn identity(particle: &Particle) -> Option<Identity> {
    match &particle.term {
        Term::Group(_, parts) if !parts.is_empty() => Some((parts.as_ptr().addr(), particle.min, particle.max)),
        _ => None,
    }
}

impl Builder<'_> {
    /// Compiles the content models of all types, those that are inherited unchanged only once.
    pub(super) fn contents(&mut self) -> Built<()> {
        let mut compiler = Compiler::default();
        let mut known: HashMap<Identity, (Arc<ContentModel>, Arc<Expanded>)> = HashMap::new();
        for id in 0..self.model.types.len() {
            let Some(Type::Complex(ComplexType { content: Content::Elements { particle, .. }, .. })) =
                self.model.types.get(id)
            else {
                continue;
            };
            let key = identity(particle);
            let (compiled, expanded) = match key.and_then(|key| known.get(&key)) {
                Some((compiled, expanded)) => (Arc::clone(compiled), Arc::clone(expanded)),
                None => {
                    let context = Context {
                        names: &self.model.names,
                        target: self.model.target,
                        elements: &self.model.elements,
                        substitutes: &self.model.substitutes,
                    };
                    let (compiled, expanded) = compiler.compile(particle, context)?;
                    let offset = particle.offset;
                    self.consistent(&compiled, offset)?;
                    let made = (Arc::new(compiled), Arc::new(expanded));
                    if let Some(key) = key {
                        known.insert(key, made.clone());
                    }
                    made
                }
            };
            self.expanded.insert(id, expanded);
            if let Some(Type::Complex(ComplexType { content: Content::Elements { model, .. }, .. })) =
                self.model.types.get_mut(id)
            {
                *model = compiled;
            }
        }
        Ok(())
    }

    /// Checks that elements of one name in one content model have one type.
    fn consistent(&self, content: &ContentModel, offset: usize) -> Built<()> {
        let mut types: HashMap<NameId, TypeId> = HashMap::new();
        let model = &self.model;
        for id in content.elements() {
            let others = model.substitutes.get(&id).map_or(&[][..], Vec::as_slice);
            for element in std::iter::once(&id).chain(others).filter_map(|id| model.elements.get(*id)) {
                if *types.entry(element.name).or_insert(element.type_id) != element.type_id {
                    let at = model.elements.get(id).map_or(offset, |element| element.offset);
                    let name = model.names.show(element.name);
                    return refuse(format!("the elements {name} of one content model have different types"), at);
                }
            }
        }
        Ok(())
    }

    /// Checks that all restrictions restrict. What extensions may add was checked when they were built.
    pub(super) fn check_derivations(&mut self) -> Built<()> {
        for id in 0..self.model.types.len() {
            let Some(derived) = self.model.complex(id).filter(|one| one.method == RESTRICTION && one.base != ANY_TYPE)
            else {
                continue;
            };
            let Some(base) = self.model.complex(derived.base) else { continue };
            attributes_restrict(&self.model, derived, base).or_else(|why| refuse(why, derived.offset))?;
            content_restricts(&self.model, derived, base).or_else(|why| refuse(why, derived.offset))?;
            let (Some(own), Some(of_base)) = (self.expanded.get(&id), self.expanded.get(&derived.base)) else {
                continue;
            };
            let mut restriction = Restriction { model: &self.model, checks: &mut self.checks };
            match restriction.allows(own, of_base) {
                Some(true) => {}
                Some(false) => {
                    let why = "the content of this type does not restrict that of its base, by the rules for each kind of \
                               particle (valid particle restriction)";
                    return refuse(why, derived.offset);
                }
                None => return refuse("the restrictions in this schema take too many steps to check", derived.offset),
            }
        }
        Ok(())
    }
}

fn attributes_restrict(model: &Model, derived: &ComplexType, base: &ComplexType) -> Result<(), String> {
    let find = |uses: &[Use], name| uses.binary_search_by_key(&name, |used| used.name).ok();
    let fixed = |used: &Use| used.value.as_ref().filter(|value| value.is_fixed).map(|value| Arc::clone(&value.key));
    for own in &derived.uses {
        let name = model.names.show(own.name);
        let Some(of_base) = find(&base.uses, own.name).and_then(|at| base.uses.get(at)) else {
            let ns = model.names.ns(own.name);
            if base.wildcard.as_ref().is_some_and(|wildcard| wildcard.allowed.lets_in(ns)) {
                continue;
            }
            return Err(format!("the base does not have the attribute {name}, so a restriction cannot have it"));
        };
        if of_base.is_required && !own.is_required {
            return Err(format!("the attribute {name} is required in the base"));
        }
        if model.derivations(own.type_id, of_base.type_id).is_none() {
            return Err(format!("the type of the attribute {name} is not derived from that in the base"));
        }
        if let Some(expected) = fixed(of_base)
            && fixed(own).as_ref() != Some(&expected)
        {
            return Err(format!("the attribute {name} has a fixed value in the base"));
        }
    }
    let missing = base.uses.iter().find(|used| used.is_required && find(&derived.uses, used.name).is_none());
    if let Some(missing) = missing {
        return Err(format!("the attribute {} is required in the base", model.names.show(missing.name)));
    }
    match (&derived.wildcard, &base.wildcard) {
        (None, _) => Ok(()),
        (Some(own), Some(of_base)) if own.allowed.is_subset_of(&of_base.allowed) && own.process >= of_base.process => {
            Ok(())
        }
        _ => Err("anyAttribute lets in more than in the base, or checks less".into()),
    }
}

fn content_restricts(model: &Model, derived: &ComplexType, base: &ComplexType) -> Result<(), String> {
    let may_be_empty = |content: &Content| match content {
        Content::Empty => true,
        Content::Elements { model, .. } => model.is_nullable(),
        Content::Simple(_) => false,
    };
    match (&derived.content, &base.content) {
        (Content::Simple(own), Content::Simple(of_base)) => match model.derivations(*own, *of_base) {
            Some(_) => Ok(()),
            None => Err("the content's type is not derived from that of the base".into()),
        },
        (Content::Simple(_), content @ Content::Elements { is_mixed: true, .. }) if may_be_empty(content) => Ok(()),
        (Content::Simple(_), _) => Err("the base must have simple content, or be mixed and allow to be empty".into()),
        (Content::Empty, content) if may_be_empty(content) => Ok(()),
        (Content::Empty, _) => Err("the base cannot be empty, so a restriction cannot either".into()),
        (Content::Elements { is_mixed, .. }, Content::Elements { is_mixed: base_is_mixed, .. }) => {
            if *is_mixed && !base_is_mixed {
                return Err("the base is not mixed, so a restriction cannot be".into());
            }
            Ok(())
        }
        (Content::Elements { model, is_mixed: false, .. }, Content::Empty) if model.is_only_empty() => Ok(()),
        (Content::Elements { .. }, _) => Err("the base has no elements, so a restriction cannot have any".into()),
    }
}
