//! The types that XML Schema defines itself, and the attributes of XML's own namespace.

use std::sync::Arc;

use super::{Builder, once};
use crate::xsd::content::ContentModel;
use crate::xsd::model::{
    ANY_SIMPLE_TYPE, ANY_TYPE, Allowed, Attribute, ComplexType, Compositor, Content, Facets, Limit, Model, Particle,
    Process, SimpleType, Term, Type, TypeId, UNBOUNDED, Variety, Wildcard, derivation,
};
use crate::xsd::value::{Decimal, Kind, Value, White};
use crate::xsd::xml::{XML, XS};

/// The atomic types: name, base, how they are written.
const ATOMIC: &[(&str, &str, Kind)] = &[
    ("string", "anySimpleType", Kind::String),
    ("boolean", "anySimpleType", Kind::Boolean),
    ("decimal", "anySimpleType", Kind::Decimal),
    ("float", "anySimpleType", Kind::Float),
    ("double", "anySimpleType", Kind::Double),
    ("duration", "anySimpleType", Kind::Duration),
    ("dateTime", "anySimpleType", Kind::DateTime),
    ("time", "anySimpleType", Kind::Time),
    ("date", "anySimpleType", Kind::Date),
    ("gYearMonth", "anySimpleType", Kind::GYearMonth),
    ("gYear", "anySimpleType", Kind::GYear),
    ("gMonthDay", "anySimpleType", Kind::GMonthDay),
    ("gDay", "anySimpleType", Kind::GDay),
    ("gMonth", "anySimpleType", Kind::GMonth),
    ("hexBinary", "anySimpleType", Kind::HexBinary),
    ("base64Binary", "anySimpleType", Kind::Base64Binary),
    ("anyURI", "anySimpleType", Kind::AnyUri),
    ("QName", "anySimpleType", Kind::QName),
    ("normalizedString", "string", Kind::String),
    ("token", "normalizedString", Kind::String),
    ("language", "token", Kind::Language),
    ("NMTOKEN", "token", Kind::Nmtoken),
    ("Name", "token", Kind::Name),
    ("NCName", "Name", Kind::NcName),
    ("ID", "NCName", Kind::Id),
    ("IDREF", "NCName", Kind::Idref),
    ("ENTITY", "NCName", Kind::Entity),
    ("integer", "decimal", Kind::Integer),
];

/// The types between bounds: name, base, least and greatest value.
const INTEGERS: &[(&str, &str, &str, &str)] = &[
    ("nonPositiveInteger", "integer", "", "0"),
    ("negativeInteger", "nonPositiveInteger", "", "-1"),
    ("long", "integer", "-9223372036854775808", "9223372036854775807"),
    ("int", "long", "-2147483648", "2147483647"),
    ("short", "int", "-32768", "32767"),
    ("byte", "short", "-128", "127"),
    ("nonNegativeInteger", "integer", "0", ""),
    ("unsignedLong", "nonNegativeInteger", "0", "18446744073709551615"),
    ("unsignedInt", "unsignedLong", "0", "4294967295"),
    ("unsignedShort", "unsignedInt", "0", "65535"),
    ("unsignedByte", "unsignedShort", "0", "255"),
    ("positiveInteger", "nonNegativeInteger", "1", ""),
];

const LISTS: &[(&str, &str)] = &[("NMTOKENS", "NMTOKEN"), ("IDREFS", "IDREF"), ("ENTITIES", "ENTITY")];

/// What stands for a type until it is built: nothing is derived from it before.
pub(super) fn placeholder() -> Type {
    Type::Simple(simple(ANY_SIMPLE_TYPE, Variety::Ur, White::Preserve))
}

fn simple(base: TypeId, variety: Variety, white: White) -> SimpleType {
    SimpleType { name: None, base, variety, white, facets: Facets::default(), finals: 0 }
}

/// Adds the built-in types to a schema without types.
pub(super) fn add(model: &mut Model, pending: &Arc<ContentModel>) {
    let any = Wildcard { allowed: Allowed::Any, process: Process::Lax };
    let children = Particle { min: 0, max: UNBOUNDED, term: Term::Wildcard(Arc::new(any.clone())), offset: 0 };
    let any_type = ComplexType {
        name: None,
        base: ANY_TYPE,
        method: derivation::RESTRICTION,
        is_abstract: false,
        block: 0,
        finals: 0,
        uses: Vec::new(),
        required: 0,
        has_references: false,
        wildcard: Some(any),
        content: Content::Elements {
            particle: once(Term::Group(Compositor::Sequence, Arc::from([children])), 0),
            is_mixed: true,
            model: Arc::clone(pending),
        },
        offset: 0,
    };
    name_type(model, "anyType", Type::Complex(any_type));
    name_type(model, "anySimpleType", Type::Simple(simple(ANY_TYPE, Variety::Ur, White::Preserve)));
    for (name, base, kind) in ATOMIC {
        let white = match *name {
            "string" => White::Preserve,
            "normalizedString" => White::Replace,
            _ => White::Collapse,
        };
        let base = find(model, base);
        let mut one = simple(base, Variety::Atomic(*kind), white);
        if *kind == Kind::Integer {
            one.facets.fraction_digits = Some(0);
            one.facets.fixed.push("fractionDigits");
        }
        name_type(model, name, Type::Simple(one));
    }
    for (name, base, min, max) in INTEGERS {
        let base = find(model, base);
        let mut one = simple(base, Variety::Atomic(Kind::Integer), White::Collapse);
        if let Some(base) = model.simple(base) {
            one.facets = base.facets.clone();
        }
        one.facets.min = limit(min).or(one.facets.min);
        one.facets.max = limit(max).or(one.facets.max);
        name_type(model, name, Type::Simple(one));
    }
    for (name, item) in LISTS {
        let item = find(model, item);
        let mut one = simple(ANY_SIMPLE_TYPE, Variety::List(item), White::Collapse);
        one.facets.min_length = Some(1);
        name_type(model, name, Type::Simple(one));
    }
}

fn limit(text: &'static str) -> Option<Limit> {
    let value = Arc::new(Value::Decimal(Decimal::read(text)?));
    Some(Limit { text: text.into(), value, is_inclusive: true })
}

fn find(model: &Model, local: &str) -> TypeId {
    let name = model.names.find(XS, local);
    name.and_then(|name| model.global_types.get(&name)).copied().unwrap_or(ANY_SIMPLE_TYPE)
}

fn name_type(model: &mut Model, local: &str, mut built: Type) {
    let name = model.names.intern(XS, local);
    match &mut built {
        Type::Simple(one) => one.name = Some(name),
        Type::Complex(one) => one.name = Some(name),
    }
    model.global_types.insert(name, model.types.len());
    model.types.push(built);
}

impl Builder<'_> {
    /// Adds the attributes of XML's own namespace, which a schema may import.
    pub(super) fn xml_attributes(&mut self) {
        for (local, base) in [("lang", "language"), ("space", "NCName"), ("base", "anyURI"), ("id", "ID")] {
            let mut type_id = find(&self.model, base);
            let listed: &[&str] = match local {
                "lang" => &["String:"],
                "space" => &["String:default", "String:preserve"],
                _ => &[],
            };
            if !listed.is_empty() {
                let mut one = simple(type_id, Variety::Atomic(Kind::String), White::Collapse);
                one.facets.enumeration = Some(Arc::new(listed.iter().map(|key| Box::from(*key)).collect()));
                self.model.types.push(Type::Simple(one));
                let listed = self.model.types.len() - 1;
                type_id = if local == "lang" { self.or(type_id, listed) } else { listed };
            }
            let name = self.model.names.intern(XML, local);
            self.model.global_attributes.insert(name, self.model.attributes.len());
            self.model.attributes.push(Attribute { type_id, value: None });
        }
    }

    /// A union of two types.
    fn or(&mut self, one: TypeId, other: TypeId) -> TypeId {
        let union = simple(ANY_SIMPLE_TYPE, Variety::Union(Arc::from([one, other])), White::Preserve);
        self.model.types.push(Type::Simple(union));
        self.model.types.len() - 1
    }
}
