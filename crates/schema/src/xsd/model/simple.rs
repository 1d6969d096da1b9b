//! Simple types, and the check of a text against one.

use std::fmt;
use std::sync::Arc;

use super::{Facets, Limit, Model, NameId, TypeId};
use crate::xsd::regex::Pattern;
use crate::xsd::value::{Kind, Prefixes, Value, White, normalize};

/// A simple type.
#[derive(Debug, Clone)]
pub(in crate::xsd) struct SimpleType {
    pub(in crate::xsd) name: Option<NameId>,
    pub(in crate::xsd) base: TypeId,
    pub(in crate::xsd) variety: Variety,
    pub(in crate::xsd) white: White,
    pub(in crate::xsd) facets: Facets,
    /// What may not be derived from it.
    pub(in crate::xsd) finals: u8,
}

/// What the values of a simple type are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::xsd) enum Variety {
    /// Anything: the type that all simple types are derived from.
    Ur,
    Atomic(Kind),
    List(TypeId),
    Union(Arc<[TypeId]>),
}

/// What reading values needs and finds.
pub(in crate::xsd) struct Reading<'r> {
    pub(in crate::xsd) prefixes: &'r dyn Prefixes,
    /// The identifiers and references that were read.
    pub(in crate::xsd) identifiers: &'r mut Vec<(Kind, Box<str>)>,
    /// How many more steps may be taken.
    pub(in crate::xsd) work: &'r mut u64,
    /// Where to put what equal values have in common.
    pub(in crate::xsd) key: Option<&'r mut String>,
}

impl Reading<'_> {
    /// Takes steps off what is left.
    pub(in crate::xsd) fn spend(&mut self, steps: usize) -> bool {
        let left = self.work.checked_sub(steps as u64);
        *self.work = left.unwrap_or(0);
        left.is_some()
    }
}

/// Why a text is no value of a type.
#[derive(Debug, Clone)]
pub(in crate::xsd) enum Wrong<'m> {
    Written(&'static str),
    Pattern(&'m [Arc<Pattern>]),
    NotListed,
    Length(&'static str, usize, usize),
    Bound(&'static str, &'m Limit),
    Digits(&'static str, usize),
    Item(Box<Wrong<'m>>),
    Members,
    /// The document takes too many steps.
    Work,
}

impl fmt::Display for Wrong<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Written(why) => f.write_str(why),
            Self::Pattern(alternatives) => {
                f.write_str("it does not match ")?;
                for (at, one) in alternatives.iter().take(3).enumerate() {
                    let more = if at > 0 { " or " } else { "" };
                    write!(f, "{more}the pattern {:?}", one.source())?;
                }
                if alternatives.len() > 3 { f.write_str(" or any of the others") } else { Ok(()) }
            }
            Self::NotListed => f.write_str("it is none of the values that are listed"),
            Self::Length(what, expected, found) => write!(f, "its length must be {what} {expected}, and is {found}"),
            Self::Bound(what, limit) => write!(f, "it must be {what} {:.60}", limit.text),
            Self::Digits(what, most) => write!(f, "it must not have more than {most} {what}"),
            Self::Item(why) => write!(f, "an item of the list is wrong: {why}"),
            Self::Members => f.write_str("it is a value of none of the types of the union"),
            Self::Work => f.write_str("checking it takes too many steps"),
        }
    }
}

/// Separates the items of a list in a key. No text of XML contains it.
const ITEM: char = '\u{1}';

impl Model {
    /// Checks a text, as it was written, against a simple type.
    pub(in crate::xsd) fn check_text<'m>(
        &'m self,
        id: TypeId,
        text: &str,
        reading: &mut Reading<'_>,
    ) -> Result<(), Wrong<'m>> {
        let Some(simple) = self.simple(id) else { return Err(Wrong::Written("its type is not simple")) };
        let text = normalize(text, simple.white);
        self.check_normalized(simple, &text, reading)
    }

    fn check_normalized<'m>(
        &'m self,
        simple: &'m SimpleType,
        text: &str,
        reading: &mut Reading<'_>,
    ) -> Result<(), Wrong<'m>> {
        let facets = &simple.facets;
        if !facets.patterns.is_empty() && !matches!(simple.variety, Variety::Union(_)) {
            facets.check_patterns(text, reading)?;
        }
        match &simple.variety {
            Variety::Ur => {
                if let Some(key) = reading.key.as_deref_mut() {
                    key.push_str("String:");
                    key.push_str(text);
                }
                Ok(())
            }
            Variety::Atomic(kind) if kind.is_any_text() && reading.key.is_none() && facets.enumeration.is_none() => {
                facets.check_length(|| text.chars().count())
            }
            Variety::Atomic(kind) => {
                let value = kind.read(text, reading.prefixes).map_err(Wrong::Written)?;
                if let Value::QName(uri, _) = &value
                    && !reading.spend(uri.len())
                {
                    return Err(Wrong::Work);
                }
                if kind.primitive() != Kind::QName {
                    facets.check_length(|| value.length())?;
                }
                facets.check_value(&value)?;
                if matches!(kind, Kind::Id | Kind::Idref | Kind::Entity) {
                    reading.identifiers.push((*kind, text.into()));
                }
                if facets.enumeration.is_none() && reading.key.is_none() {
                    return Ok(());
                }
                let mut key = String::new();
                atomic_key(*kind, &value, &mut key);
                finish(facets, &key, reading)
            }
            Variety::List(item) => self.check_list(facets, *item, text, reading),
            Variety::Union(members) => self.check_union(facets, members, text, reading),
        }
    }

    /// Tries the members of a union. White space and patterns are a matter of the member that takes the text.
    fn check_union<'m>(
        &'m self,
        facets: &'m Facets,
        members: &[TypeId],
        text: &str,
        reading: &mut Reading<'_>,
    ) -> Result<(), Wrong<'m>> {
        let wants_key = facets.enumeration.is_some() || reading.key.is_some();
        for member in members {
            if !reading.spend(text.len() + 8) {
                return Err(Wrong::Work);
            }
            let identifiers = reading.identifiers.len();
            let mut key = String::new();
            let mut inner = Reading {
                prefixes: reading.prefixes,
                identifiers: &mut *reading.identifiers,
                work: &mut *reading.work,
                key: wants_key.then_some(&mut key),
            };
            match self.check_text(*member, text, &mut inner) {
                Ok(()) => {
                    let white = self.simple(*member).map_or(White::Preserve, |member| member.white);
                    facets.check_patterns(&normalize(text, white), reading)?;
                    return if wants_key { finish(facets, &key, reading) } else { Ok(()) };
                }
                Err(Wrong::Work) => return Err(Wrong::Work),
                Err(_) => reading.identifiers.truncate(identifiers),
            }
        }
        Err(Wrong::Members)
    }

    fn check_list<'m>(
        &'m self,
        facets: &'m Facets,
        item: TypeId,
        text: &str,
        reading: &mut Reading<'_>,
    ) -> Result<(), Wrong<'m>> {
        let mut count = 0;
        let mut key = String::new();
        let wants_key = facets.enumeration.is_some() || reading.key.is_some();
        for one in text.split(' ').filter(|one| !one.is_empty()) {
            count += 1;
            if wants_key {
                key.push(ITEM);
            }
            let mut inner = Reading {
                prefixes: reading.prefixes,
                identifiers: &mut *reading.identifiers,
                work: &mut *reading.work,
                key: wants_key.then_some(&mut key),
            };
            match self.check_text(item, one, &mut inner) {
                Ok(()) => {}
                Err(Wrong::Work) => return Err(Wrong::Work),
                Err(why) => return Err(Wrong::Item(Box::new(why))),
            }
        }
        facets.check_length(|| count)?;
        if wants_key {
            key.insert_str(0, "List:");
            return finish(facets, &key, reading);
        }
        Ok(())
    }
}

/// Adds what equal values have in common: values of different primitive types are never equal.
fn atomic_key(kind: Kind, value: &Value<'_>, key: &mut String) {
    use fmt::Write as _;
    let _ = write!(key, "{:?}:", kind.primitive());
    value.key(key);
}

fn finish<'m>(facets: &'m Facets, key: &str, reading: &mut Reading<'_>) -> Result<(), Wrong<'m>> {
    if facets.enumeration.as_ref().is_some_and(|listed| !listed.contains(key)) {
        return Err(Wrong::NotListed);
    }
    if let Some(out) = reading.key.as_deref_mut() {
        out.push_str(key);
    }
    Ok(())
}
