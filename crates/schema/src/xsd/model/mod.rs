//! The components of a compiled schema: declarations, types and wildcards, resolved and checked.

mod facets;
mod names;
mod simple;
mod wildcard;

use std::collections::HashMap;
use std::sync::Arc;

pub(super) use facets::{Facets, Limit};
pub(super) use names::{NameId, Names};
pub(super) use simple::{Reading, SimpleType, Variety, Wrong};
pub(super) use wildcard::{Allowed, Process, Wildcard};

use super::content::ContentModel;
use super::value::Kind;
use super::xml::Ns;

/// The number of a type.
pub(super) type TypeId = usize;
/// The number of an element declaration.
pub(super) type ElementId = usize;
/// The number of an attribute declaration.
pub(super) type AttributeId = usize;
/// The number of an identity constraint.
pub(super) type ConstraintId = usize;

/// Sets of derivations, as bits.
pub(super) mod derivation {
    pub(in crate::xsd) const EXTENSION: u8 = 1;
    pub(in crate::xsd) const RESTRICTION: u8 = 2;
    pub(in crate::xsd) const SUBSTITUTION: u8 = 4;
    pub(in crate::xsd) const LIST: u8 = 8;
    pub(in crate::xsd) const UNION: u8 = 16;
}

/// The type that all others are derived from.
pub(super) const ANY_TYPE: TypeId = 0;
/// The type that all simple types are derived from.
pub(super) const ANY_SIMPLE_TYPE: TypeId = 1;

/// A compiled schema.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) names: Names,
    /// The target namespace, or none.
    pub(super) target: Ns,
    /// `elementFormDefault` and `attributeFormDefault`.
    pub(super) is_element_qualified: bool,
    pub(super) is_attribute_qualified: bool,
    pub(super) elements: Vec<Element>,
    pub(super) globals: HashMap<NameId, ElementId>,
    pub(super) attributes: Vec<Attribute>,
    pub(super) global_attributes: HashMap<NameId, AttributeId>,
    pub(super) types: Vec<Type>,
    pub(super) global_types: HashMap<NameId, TypeId>,
    pub(super) constraints: Vec<Constraint>,
    /// The members of substitution groups by their heads, heads not included.
    pub(super) substitutes: HashMap<ElementId, Vec<ElementId>>,
}

/// A type.
#[derive(Debug)]
pub(super) enum Type {
    Simple(SimpleType),
    Complex(ComplexType),
}

/// A complex type.
#[derive(Debug)]
pub(super) struct ComplexType {
    pub(super) name: Option<NameId>,
    pub(super) base: TypeId,
    /// How it is derived from its base.
    pub(super) method: u8,
    pub(super) is_abstract: bool,
    /// The derivations that `xsi:type` and substitution may not use.
    pub(super) block: u8,
    /// The derivations that may not be made from it.
    pub(super) finals: u8,
    /// The attributes, sorted by name.
    pub(super) uses: Vec<Use>,
    /// How many of them are required.
    pub(super) required: usize,
    /// Whether some have defaults that refer to identifiers.
    pub(super) has_references: bool,
    pub(super) wildcard: Option<Wildcard>,
    pub(super) content: Content,
    /// Where it is written.
    pub(super) offset: usize,
}

/// What an element of a complex type contains.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Empty,
    Simple(TypeId),
    Elements { particle: Particle, is_mixed: bool, model: Arc<ContentModel> },
}

/// An attribute of a complex type.
#[derive(Debug, Clone)]
pub(super) struct Use {
    pub(super) name: NameId,
    pub(super) type_id: TypeId,
    pub(super) is_required: bool,
    pub(super) value: Option<ValueConstraint>,
    /// Where it is written.
    pub(super) offset: usize,
}

/// A default, or a fixed value.
#[derive(Debug, Clone)]
pub(super) struct ValueConstraint {
    pub(super) is_fixed: bool,
    pub(super) text: Arc<str>,
    /// What equal values have in common.
    pub(super) key: Arc<str>,
    /// What the value refers to in a document.
    pub(super) identifiers: Identifiers,
}

/// The identifiers that a value is made of, and of which kind.
pub(super) type Identifiers = Arc<[(Kind, Box<str>)]>;

/// A global attribute.
#[derive(Debug)]
pub(super) struct Attribute {
    pub(super) type_id: TypeId,
    pub(super) value: Option<ValueConstraint>,
}

/// A declared element.
#[derive(Debug)]
pub(super) struct Element {
    pub(super) name: NameId,
    pub(super) type_id: TypeId,
    pub(super) is_global: bool,
    pub(super) is_nillable: bool,
    pub(super) is_abstract: bool,
    pub(super) value: Option<ValueConstraint>,
    /// What `xsi:type` and substitution may not use.
    pub(super) block: u8,
    /// What members of its substitution group may not be derived by.
    pub(super) finals: u8,
    /// The head of the substitution group that it belongs to.
    pub(super) head: Option<ElementId>,
    pub(super) constraints: Vec<ConstraintId>,
    /// Where it is written.
    pub(super) offset: usize,
}

/// A part of a content model, and how often it occurs.
#[derive(Debug, Clone)]
pub(super) struct Particle {
    pub(super) min: u32,
    /// [`UNBOUNDED`] for no bound. Never 0.
    pub(super) max: u32,
    pub(super) term: Term,
    /// Where it is written.
    pub(super) offset: usize,
}

/// `maxOccurs="unbounded"`.
pub(super) const UNBOUNDED: u32 = u32::MAX;

/// What a particle consists of.
#[derive(Debug, Clone)]
pub(super) enum Term {
    Element(ElementId),
    Wildcard(Arc<Wildcard>),
    Group(Compositor, Arc<[Particle]>),
}

/// How the particles of a group are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Compositor {
    Sequence,
    Choice,
    All,
}

/// A key, a reference to one, or a constraint of uniqueness.
#[derive(Debug)]
pub(super) struct Constraint {
    pub(super) name: NameId,
    pub(super) role: Role,
    pub(super) selector: Vec<Path>,
    pub(super) fields: Vec<Vec<Path>>,
    /// Whether some `keyref` refers to it.
    pub(super) is_referred: bool,
}

/// What a constraint demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Unique,
    Key,
    Keyref(ConstraintId),
}

/// One alternative of an XPath.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// Whether it starts with `.//`.
    pub(super) is_deep: bool,
    pub(super) steps: Vec<Test>,
    /// The attribute that it ends with.
    pub(super) attribute: Option<Test>,
}

/// What a step of an XPath matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Test {
    Any,
    Space(Ns),
    Name(NameId),
}

impl Test {
    /// Whether it matches a name, which may not be known to the schema.
    pub(super) fn matches(self, name: Option<NameId>, ns: Ns) -> bool {
        match self {
            Self::Any => true,
            Self::Space(wanted) => wanted == ns,
            Self::Name(wanted) => name == Some(wanted),
        }
    }
}

impl Type {
    pub(super) fn name(&self) -> Option<NameId> {
        match self {
            Self::Simple(one) => one.name,
            Self::Complex(one) => one.name,
        }
    }

    pub(super) fn base(&self) -> TypeId {
        match self {
            Self::Simple(one) => one.base,
            Self::Complex(one) => one.base,
        }
    }

    /// How it is derived from its base.
    fn method(&self) -> u8 {
        match self {
            Self::Simple(_) => derivation::RESTRICTION,
            Self::Complex(one) => one.method,
        }
    }
}

impl Model {
    /// A simple type.
    pub(super) fn simple(&self, id: TypeId) -> Option<&SimpleType> {
        match self.types.get(id) {
            Some(Type::Simple(simple)) => Some(simple),
            _ => None,
        }
    }

    /// A complex type.
    pub(super) fn complex(&self, id: TypeId) -> Option<&ComplexType> {
        match self.types.get(id) {
            Some(Type::Complex(complex)) => Some(complex),
            _ => None,
        }
    }

    /// Whether the values of a type are of a kind.
    pub(super) fn is_kind(&self, id: TypeId, kind: Kind) -> bool {
        self.simple(id).is_some_and(|simple| simple.variety == Variety::Atomic(kind))
    }

    /// The type of the text of an element of a type, if it has only text.
    pub(super) fn text_type(&self, id: TypeId) -> Option<TypeId> {
        match self.types.get(id)? {
            Type::Simple(_) => Some(id),
            Type::Complex(ComplexType { content: Content::Simple(text), .. }) => Some(*text),
            Type::Complex(_) => None,
        }
    }

    /// The derivations by which a type comes from another one, or `None` if it does not. Members of a union count as
    /// derived from it.
    pub(super) fn derivations(&self, derived: TypeId, base: TypeId) -> Option<u8> {
        let mut methods = 0;
        let mut at = derived;
        loop {
            if at == base {
                return Some(methods);
            }
            if self.is_member(at, base) {
                return Some(methods | derivation::RESTRICTION);
            }
            if at == ANY_TYPE {
                return None;
            }
            let one = self.types.get(at)?;
            methods |= one.method();
            at = one.base();
        }
    }

    /// Whether a type is a member of a union that demands nothing beyond that, or of a union within it.
    fn is_member(&self, one: TypeId, union: TypeId) -> bool {
        match self.simple(union) {
            Some(SimpleType { variety: Variety::Union(members), facets, .. }) if facets.is_empty() => {
                members.iter().any(|member| *member == one || self.is_member(one, *member))
            }
            _ => false,
        }
    }

    /// What the types between a type and the one that it is derived from block, the latter included.
    fn blocked_between(&self, derived: TypeId, base: TypeId) -> u8 {
        let mut blocked = self.complex(base).map_or(0, |complex| complex.block);
        let mut at = self.types.get(derived).map_or(ANY_TYPE, Type::base);
        while at != base && at != ANY_TYPE {
            blocked |= self.complex(at).map_or(0, |complex| complex.block);
            at = self.types.get(at).map_or(ANY_TYPE, Type::base);
        }
        blocked
    }

    /// Whether an element may stand for the head of a substitution group that it belongs to.
    pub(super) fn may_substitute(&self, member: &Element, head: &Element) -> bool {
        let blocked = head.block | self.blocked_between(member.type_id, head.type_id);
        head.block & derivation::SUBSTITUTION == 0
            && self.derivations(member.type_id, head.type_id).is_some_and(|methods| methods & blocked == 0)
    }

    /// Whether a type may stand for another one: it is derived from it, and by no derivation that is blocked.
    pub(super) fn may_replace(&self, derived: TypeId, base: TypeId, blocked: u8) -> bool {
        let blocked = blocked | self.complex(base).map_or(0, |complex| complex.block);
        self.derivations(derived, base).is_some_and(|methods| methods & blocked == 0)
    }

    /// The name of a type for people.
    pub(super) fn type_name(&self, id: TypeId) -> String {
        match self.types.get(id).and_then(Type::name) {
            Some(name) => format!("the type {}", self.names.show(name)),
            None => "the anonymous type".into(),
        }
    }

    /// The text in which particles name an element.
    pub(super) fn element_name(&self, id: ElementId) -> String {
        self.elements.get(id).map_or_else(String::new, |element| self.names.show(element.name))
    }
}
