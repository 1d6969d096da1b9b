//! Reads facets, and checks that they restrict those of the base.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use super::read::{NodePrefixes, count};
use super::{Builder, Built, refuse};
use crate::xsd::model::{Facets, Identifiers, Limit, Reading, SimpleType, TypeId, Variety};
use crate::xsd::value::{Family, White, normalize};
use crate::xsd::xml::NodeId;

/// A facet as it is written.
struct Written<'t> {
    node: NodeId,
    name: &'t str,
    value: &'t str,
    offset: usize,
}

impl<'t> Builder<'t> {
    /// Adds facets to a type that has those of its base so far.
    pub(super) fn facets(&mut self, base: TypeId, derived: &mut SimpleType, nodes: &[NodeId]) -> Built<()> {
        let inherited = derived.facets.clone();
        let mut values = Vec::new();
        let mut patterns = Vec::new();
        let mut seen: Vec<&str> = Vec::new();
        for node in nodes {
            let facet = self.written(*node)?;
            if !may_have(&derived.variety, facet.name) {
                return refuse(
                    format!("{} cannot have the facet {}", self.model.type_name(base), facet.name),
                    facet.offset,
                );
            }
            match facet.name {
                "enumeration" => {
                    values.push(self.listed(base, &facet)?);
                    continue;
                }
                "pattern" => {
                    patterns.push(self.patterns.compile(facet.value).or_else(|why| refuse(why, facet.offset))?);
                    continue;
                }
                name if seen.contains(&name) => return refuse(format!("the facet {name} occurs twice"), facet.offset),
                name => seen.push(name),
            }
            self.set(derived, &facet, &inherited)?;
        }
        if !patterns.is_empty() {
            derived.facets.patterns.push(Arc::from(patterns));
        }
        if !values.is_empty() {
            derived.facets.enumeration = Some(Arc::new(values.into_iter().collect::<HashSet<Box<str>>>()));
        }
        match nodes.first() {
            Some(first) => agree(&derived.facets, &inherited, &seen, self.tree.node(*first).offset),
            None => Ok(()),
        }
    }

    fn written(&self, node: NodeId) -> Built<Written<'t>> {
        let element = self.tree.node(node);
        match element.attribute("value") {
            Some(attr) => Ok(Written { node, name: &element.name, value: &attr.value, offset: attr.offset }),
            None => refuse(format!("the facet {} has no value", element.name), element.offset),
        }
    }

    /// Reads a value that is listed: it must be one of the base.
    fn listed(&mut self, base: TypeId, facet: &Written<'_>) -> Built<Box<str>> {
        match self.key_of(base, facet.node, facet.value) {
            Ok((key, _)) => Ok(key.into()),
            Err(why) => {
                let why = format!("{:?} is no value of {}: {why}", facet.value, self.model.type_name(base));
                refuse(why, facet.offset)
            }
        }
    }

    /// What values that are equal to a text have in common, and what the value refers to.
    pub(super) fn key_of(&mut self, id: TypeId, node: NodeId, text: &str) -> Result<(String, Identifiers), String> {
        let mut key = String::new();
        let mut identifiers = Vec::new();
        let prefixes = NodePrefixes { tree: self.tree, node };
        let mut reading =
            Reading { prefixes: &prefixes, identifiers: &mut identifiers, work: &mut self.work, key: Some(&mut key) };
        match self.model.check_text(id, text, &mut reading) {
            Ok(()) => Ok((key, identifiers.into())),
            Err(wrong) => Err(wrong.to_string()),
        }
    }

    fn set(&mut self, derived: &mut SimpleType, facet: &Written<'t>, inherited: &Facets) -> Built<()> {
        let (name, offset) = (static_name(facet.name), facet.offset);
        let is_fixed = inherited.fixed.contains(&name);
        let facets = &mut derived.facets;
        match name {
            "whiteSpace" => {
                let white = match facet.value.trim_ascii() {
                    "preserve" => White::Preserve,
                    "replace" => White::Replace,
                    "collapse" => White::Collapse,
                    other => return refuse(format!("{other:?} is neither preserve, replace nor collapse"), offset),
                };
                if white < derived.white || (is_fixed && white != derived.white) {
                    return refuse(
                        "whiteSpace can only be made stricter than in the base, if it is not fixed there",
                        offset,
                    );
                }
                derived.white = white;
            }
            "minInclusive" | "minExclusive" | "maxInclusive" | "maxExclusive" => {
                self.bound(derived, facet, name, inherited)?;
            }
            _ => {
                let Some(number) = count(facet.value.trim_ascii()) else {
                    return refuse(format!("{name} must be a whole number, not {:?}", facet.value), offset);
                };
                if name == "totalDigits" && number == 0 {
                    return refuse("totalDigits must be at least 1", offset);
                }
                let slot = match name {
                    "length" => &mut facets.length,
                    "minLength" => &mut facets.min_length,
                    "maxLength" => &mut facets.max_length,
                    "totalDigits" => &mut facets.total_digits,
                    _ => &mut facets.fraction_digits,
                };
                let is_narrower = match *slot {
                    Some(before) if is_fixed || name == "length" => number == before,
                    Some(before) if name == "minLength" => number >= before,
                    Some(before) => number <= before,
                    None => true,
                };
                if !is_narrower {
                    return refuse(
                        format!("{name} must not let in more than in the base, nor change if it is fixed"),
                        offset,
                    );
                }
                *slot = Some(number);
            }
        }
        if self.boolean(facet.node, "fixed")? == Some(true) && !is_fixed {
            derived.facets.fixed.push(name);
        }
        Ok(())
    }

    /// Sets a bound, which must be within those of the base.
    fn bound(
        &self,
        derived: &mut SimpleType,
        facet: &Written<'t>,
        name: &'static str,
        inherited: &Facets,
    ) -> Built<()> {
        let Variety::Atomic(kind) = derived.variety else { return Ok(()) };
        let text = normalize(facet.value, White::Collapse);
        let prefixes = NodePrefixes { tree: self.tree, node: facet.node };
        let value = match kind.read(&text, &prefixes) {
            Ok(value) => value.into_owned(),
            Err(why) => return refuse(format!("{:?} cannot be a bound: {why}", facet.value), facet.offset),
        };
        let is_inclusive = name.ends_with("Inclusive");
        let is_max = name.starts_with("max");
        let limit = Limit { text: text.as_ref().into(), value: Arc::new(value), is_inclusive };
        // What this type itself has set so far is compared at the end.
        for (before, is_before_max) in [(&inherited.min, false), (&inherited.max, true)] {
            let Some(before) = before else { continue };
            let order = limit.value.compare(&before.value);
            if !may_follow(order, is_max, is_inclusive, is_before_max, before.is_inclusive) {
                return refuse(
                    format!("{name} must lie within the bounds of the base, here {}", before.text),
                    facet.offset,
                );
            }
            if inherited.fixed.contains(&name)
                && is_max == is_before_max
                && (order != Some(Ordering::Equal) || before.is_inclusive != is_inclusive)
            {
                return refuse(format!("{name} is fixed in the base"), facet.offset);
            }
        }
        *(if is_max { &mut derived.facets.max } else { &mut derived.facets.min }) = Some(limit);
        Ok(())
    }
}

/// Whether a bound may follow one of the base, given how they compare.
fn may_follow(
    order: Option<Ordering>,
    is_max: bool,
    is_inclusive: bool,
    base_is_max: bool,
    base_is_inclusive: bool,
) -> bool {
    let inwards = if base_is_max { Ordering::Less } else { Ordering::Greater };
    match order {
        Some(Ordering::Equal) if is_max == base_is_max => !is_inclusive || base_is_inclusive,
        Some(Ordering::Equal) if is_max => is_inclusive && base_is_inclusive,
        Some(Ordering::Equal) => base_is_inclusive,
        order => order == Some(inwards),
    }
}

/// Checks the facets that a type has now against each other.
fn agree(facets: &Facets, inherited: &Facets, written: &[&str], offset: usize) -> Built<()> {
    let has = |name: &str| written.contains(&name);
    for (one, other) in [("minInclusive", "minExclusive"), ("maxInclusive", "maxExclusive")] {
        if has(one) && has(other) {
            return refuse(format!("a type cannot have both {one} and {other}"), offset);
        }
    }
    let is_new = |name, now: Option<usize>, before: Option<usize>| has(name) && now != before;
    let bounds_are_new = is_new("minLength", facets.min_length, inherited.min_length)
        || is_new("maxLength", facets.max_length, inherited.max_length);
    if (has("length") && (has("minLength") || has("maxLength"))) || (inherited.length.is_some() && bounds_are_new) {
        return refuse("a type cannot have both length and minLength or maxLength", offset);
    }
    let (min, max) = (facets.min_length.unwrap_or(0), facets.max_length.unwrap_or(usize::MAX));
    if min > max || facets.length.is_some_and(|length| length < min || length > max) {
        return refuse("the length facets contradict each other", offset);
    }
    if let (Some(total), Some(fraction)) = (facets.total_digits, facets.fraction_digits)
        && fraction > total
    {
        return refuse("fractionDigits is greater than totalDigits", offset);
    }
    if let (Some(min), Some(max)) = (&facets.min, &facets.max) {
        let fits = match min.value.compare(&max.value) {
            Some(Ordering::Less) => true,
            Some(Ordering::Equal) => min.is_inclusive == max.is_inclusive,
            _ => false,
        };
        if !fits {
            return refuse("the lower bound is greater than the upper bound", offset);
        }
    }
    Ok(())
}

/// Whether values of a variety may have a facet.
fn may_have(variety: &Variety, facet: &str) -> bool {
    let is_length = matches!(facet, "length" | "minLength" | "maxLength");
    let is_bound = matches!(facet, "minInclusive" | "minExclusive" | "maxInclusive" | "maxExclusive");
    match (variety, facet) {
        (Variety::Ur, _) => false,
        (_, "pattern") => true,
        (Variety::Union(_), _) => facet == "enumeration",
        (_, "whiteSpace") => true,
        (Variety::List(_), _) => is_length || facet == "enumeration",
        (Variety::Atomic(kind), _) => match kind.family() {
            Family::Sized | Family::Named => is_length || facet == "enumeration",
            Family::Ordered => is_bound || facet == "enumeration",
            Family::Numeric => is_bound || matches!(facet, "enumeration" | "totalDigits" | "fractionDigits"),
            Family::Plain => false,
        },
    }
}

fn static_name(name: &str) -> &'static str {
    const NAMES: [&str; 10] = [
        "length",
        "minLength",
        "maxLength",
        "whiteSpace",
        "minInclusive",
        "minExclusive",
        "maxInclusive",
        "maxExclusive",
        "totalDigits",
        "fractionDigits",
    ];
    NAMES.into_iter().find(|known| *known == name).unwrap_or("")
}
