//! Valid particle restriction: the rules of XML Schema 1.0 (part 1, 3.9.6) for each pair of kinds of particles.
//!
//! These rules, and not whether every document of one content is one of the other, are what the specification demands.

use crate::xsd::content::{Expanded, ExpandedTerm, Leaf};
use crate::xsd::model::{Allowed, Compositor, ElementId, Model, UNBOUNDED, Wildcard, derivation};

/// Compares contents; every pair of particles takes a step.
pub(super) struct Restriction<'m> {
    pub(super) model: &'m Model,
    pub(super) checks: &'m mut usize,
}

/// A particle without pointless groups, and with heads of substitution groups made choices.
#[derive(Debug)]
struct Part<'e> {
    min: u32,
    max: u32,
    term: PartTerm<'e>,
}

#[derive(Debug)]
enum PartTerm<'e> {
    Element(ElementId),
    Wildcard(&'e Wildcard),
    Group(Compositor, Vec<Part<'e>>),
}

impl Restriction<'_> {
    /// Whether a content restricts another one; `None` when there are no steps left.
    pub(super) fn allows(&mut self, derived: &Expanded, base: &Expanded) -> Option<bool> {
        let derived = self.part(derived)?;
        let base = self.part(base)?;
        self.restricts(&derived, &base)
    }

    fn step(&mut self) -> Option<()> {
        *self.checks = self.checks.checked_sub(1)?;
        Some(())
    }

    fn part<'e>(&mut self, particle: &'e Expanded) -> Option<Part<'e>> {
        self.step()?;
        let (min, max) = (particle.min, particle.max);
        let term = match &particle.term {
            ExpandedTerm::Leaf(Leaf::Wildcard(wildcard)) => PartTerm::Wildcard(wildcard),
            ExpandedTerm::Leaf(Leaf::Element(id)) => {
                let others = self.model.substitutes.get(id).filter(|others| !others.is_empty());
                let is_head = self.model.elements.get(*id).is_some_and(|element| element.is_global);
                match others.filter(|_| is_head) {
                    None => PartTerm::Element(*id),
                    Some(others) => {
                        let one = |id: ElementId| Part { min: 1, max: 1, term: PartTerm::Element(id) };
                        *self.checks = self.checks.checked_sub(others.len())?;
                        let members = std::iter::once(*id).chain(others.iter().copied()).map(one);
                        PartTerm::Group(Compositor::Choice, members.collect())
                    }
                }
            }
            ExpandedTerm::Group(compositor, inner) => {
                let mut parts = Vec::new();
                for one in inner {
                    let part = self.part(one)?;
                    match part.term {
                        PartTerm::Group(_, nested) if nested.is_empty() && *compositor != Compositor::Choice => {}
                        PartTerm::Group(other, nested) if other == *compositor && (part.min, part.max) == (1, 1) => {
                            parts.extend(nested);
                        }
                        term => parts.push(Part { term, ..part }),
                    }
                }
                match parts.pop() {
                    Some(only) if parts.is_empty() && (min, max) == (1, 1) => return Some(only),
                    last => parts.extend(last),
                }
                PartTerm::Group(*compositor, parts)
            }
        };
        Some(Part { min, max, term })
    }

    fn restricts(&mut self, derived: &Part<'_>, base: &Part<'_>) -> Option<bool> {
        use Compositor::{All, Choice, Sequence};
        self.step()?;
        match (&derived.term, &base.term) {
            (PartTerm::Element(own), PartTerm::Element(of_base)) => {
                Some(occurs_within(derived, base) && self.element_restricts(*own, *of_base))
            }
            (PartTerm::Element(own), PartTerm::Wildcard(wildcard)) => {
                Some(occurs_within(derived, base) && self.is_let_in(*own, &wildcard.allowed))
            }
            (PartTerm::Wildcard(own), PartTerm::Wildcard(of_base)) => {
                let is_subset = own.allowed.is_subset_of(&of_base.allowed);
                Some(occurs_within(derived, base) && is_subset && own.process >= of_base.process)
            }
            (PartTerm::Wildcard(_), _) => Some(false),
            (PartTerm::Element(_), PartTerm::Group(kind, bases)) => {
                // The element stands for a group of the same kind that has only it.
                let fits = range_within((1, 1), base);
                Some(fits && self.recurse(std::slice::from_ref(derived), bases, *kind == Choice)?)
            }
            (PartTerm::Group(_, parts), PartTerm::Wildcard(wildcard)) => {
                let fits = range_within(total(derived), base);
                Some(fits && self.all_let_in(parts, wildcard)?)
            }
            (PartTerm::Group(_, parts), PartTerm::Element(_)) => {
                // Only a group that has become empty can stand here.
                Some(parts.is_empty() && base.min == 0)
            }
            (PartTerm::Group(own, parts), PartTerm::Group(of_base, bases)) => match (own, of_base) {
                (Choice, Choice) => Some(occurs_within(derived, base) && self.recurse(parts, bases, true)?),
                (All, All) | (Sequence, Sequence) => {
                    Some(occurs_within(derived, base) && self.recurse(parts, bases, false)?)
                }
                (Sequence, All) => Some(occurs_within(derived, base) && self.unordered(parts, bases)?),
                (Sequence, Choice) => self.map_and_sum(derived, parts, base, bases),
                _ => Some(false),
            },
        }
    }

    fn element_restricts(&self, own: ElementId, of_base: ElementId) -> bool {
        let (Some(one), Some(base)) = (self.model.elements.get(own), self.model.elements.get(of_base)) else {
            return false;
        };
        if own == of_base {
            return true;
        }
        let forbidden = derivation::EXTENSION | derivation::LIST | derivation::UNION;
        let fixed = match &base.value {
            Some(value) if value.is_fixed => one.value.as_ref().is_some_and(|own| own.is_fixed && own.key == value.key),
            _ => true,
        };
        one.name == base.name
            && (base.is_nillable || !one.is_nillable)
            && fixed
            && one.constraints.is_empty()
            && base.block & !one.block == 0
            && self.model.derivations(one.type_id, base.type_id).is_some_and(|methods| methods & forbidden == 0)
    }

    fn is_let_in(&self, id: ElementId, allowed: &Allowed) -> bool {
        self.model.elements.get(id).is_some_and(|element| allowed.lets_in(self.model.names.ns(element.name)))
    }

    fn all_let_in(&mut self, parts: &[Part<'_>], wildcard: &Wildcard) -> Option<bool> {
        for part in parts {
            self.step()?;
            let fits = match &part.term {
                PartTerm::Element(id) => self.is_let_in(*id, &wildcard.allowed),
                PartTerm::Wildcard(own) => {
                    own.allowed.is_subset_of(&wildcard.allowed) && own.process >= wildcard.process
                }
                PartTerm::Group(_, inner) => self.all_let_in(inner, wildcard)?,
            };
            if !fits {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Maps each part to one of the base, in order. Those that are left out must be optional, unless they are choices.
    fn recurse(&mut self, parts: &[Part<'_>], bases: &[Part<'_>], is_choice: bool) -> Option<bool> {
        let mut bases = bases.iter();
        for part in parts {
            loop {
                let Some(base) = bases.next() else { return Some(false) };
                if self.restricts(part, base)? {
                    break;
                }
                if !is_choice && total(base).0 > 0 {
                    return Some(false);
                }
            }
        }
        Some(is_choice || bases.all(|base| total(base).0 == 0))
    }

    /// Maps each part of a sequence to a different one of `all`.
    fn unordered(&mut self, parts: &[Part<'_>], bases: &[Part<'_>]) -> Option<bool> {
        let mut used = vec![false; bases.len()];
        for part in parts {
            let mut found = false;
            for (base, used) in bases.iter().zip(&mut used) {
                if !*used && self.restricts(part, base)? {
                    *used = true;
                    found = true;
                    break;
                }
            }
            if !found {
                return Some(false);
            }
        }
        Some(bases.iter().zip(used).all(|(base, used)| used || total(base).0 == 0))
    }

    /// Maps each part of a sequence to any one of a choice, which then occurs as often as all of them together.
    fn map_and_sum(
        &mut self,
        derived: &Part<'_>,
        parts: &[Part<'_>],
        base: &Part<'_>,
        bases: &[Part<'_>],
    ) -> Option<bool> {
        let count = u32::try_from(parts.len()).unwrap_or(UNBOUNDED - 1);
        let range = (derived.min.saturating_mul(count), times(derived.max, count));
        if !range_within(range, base) {
            return Some(false);
        }
        for part in parts {
            let mut found = false;
            for base in bases {
                if self.restricts(part, base)? {
                    found = true;
                    break;
                }
            }
            if !found {
                return Some(false);
            }
        }
        Some(true)
    }
}

fn occurs_within(derived: &Part<'_>, base: &Part<'_>) -> bool {
    range_within((derived.min, derived.max), base)
}

fn range_within((min, max): (u32, u32), base: &Part<'_>) -> bool {
    min >= base.min && (base.max == UNBOUNDED || max <= base.max)
}

fn times(one: u32, other: u32) -> u32 {
    match (one, other) {
        (0, _) | (_, 0) => 0,
        (UNBOUNDED, _) | (_, UNBOUNDED) => UNBOUNDED,
        _ => one.saturating_mul(other).min(UNBOUNDED - 1),
    }
}

/// How many elements a particle takes at least and at most.
fn total(part: &Part<'_>) -> (u32, u32) {
    let PartTerm::Group(compositor, parts) = &part.term else { return (part.min, part.max) };
    let ranges = parts.iter().map(total);
    let (min, max) = if *compositor == Compositor::Choice {
        let start = if parts.is_empty() { (0, 0) } else { (UNBOUNDED, 0) };
        ranges.fold(start, |whole, one| (whole.0.min(one.0), whole.1.max(one.1)))
    } else {
        ranges.fold((0_u32, 0_u32), |whole, one| {
            let max =
                if whole.1 == UNBOUNDED || one.1 == UNBOUNDED { UNBOUNDED } else { whole.1.saturating_add(one.1) };
            (whole.0.saturating_add(one.0), max)
        })
    };
    (part.min.saturating_mul(min), times(part.max, max))
}
