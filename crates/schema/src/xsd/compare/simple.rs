//! Compares simple types, facet by facet.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::{Comparing, Simple, clip};
use crate::xsd::model::{ANY_SIMPLE_TYPE, ANY_TYPE, Facets, Limit, Model, Path, Test, Type, TypeId, Variety};
use crate::xsd::value::Kind;
use crate::xsd::xml::XS;

impl<'m> Comparing<'m> {
    pub(super) fn simple(&mut self, old: Simple<'m>, new: Simple<'m>, path: &str) {
        self.bases(old, new, path);
        match (&old.variety, &new.variety) {
            (Variety::Ur, Variety::Ur) => {}
            (Variety::Atomic(one), Variety::Atomic(other)) if one == other => {}
            (Variety::Atomic(Kind::Id), Variety::Atomic(other)) if *other != Kind::Id => {
                let message = format!("the type changed from Id to {other:?}, and documents may refer to identifiers");
                self.unclear(path, message);
            }
            (Variety::Atomic(one), Variety::Atomic(other)) if is_derived(*one, *other) => {
                self.compatible(path, format!("the type was widened from {one:?} to {other:?}"));
            }
            (Variety::Atomic(one), Variety::Atomic(other)) if is_derived(*other, *one) => {
                self.breaking(path, format!("the type was narrowed from {one:?} to {other:?}"));
            }
            (Variety::Ur, _) => self.breaking(path, "the type was narrowed from anySimpleType"),
            (Variety::List(one), Variety::List(other)) => self.enqueue(*one, *other, path),
            (Variety::Union(before), Variety::Union(after)) => {
                self.members((old, before), (new, after), path);
                for (one, other) in before.iter().zip(after.iter()) {
                    self.enqueue(*one, *other, path);
                }
                match before.len().cmp(&after.len()) {
                    Ordering::Less => self.compatible(path, "members were added to the union"),
                    Ordering::Greater => self.breaking(path, "members were removed from the union"),
                    Ordering::Equal => {}
                }
            }
            (before, after) => {
                let message = format!("the type changed from {} to {}", show(before), show(after));
                self.unclear(path, message);
                return;
            }
        }
        let has_facets = !(new.facets.is_empty() && old.facets.is_empty());
        if old.white != new.white && (has_facets || self.compares_values) {
            self.unclear(path, "white space is treated differently, and there are facets, keys or fixed values");
        }
        // The type itself says that a whole number has no fraction.
        let is_whole = [old, new].iter().any(|one| one.variety == Variety::Atomic(Kind::Integer));
        self.facets(&old.facets, &new.facets, path, is_whole);
    }

    /// Finds types that a named one is no longer derived from, though an element has such a type: there documents may name
    /// the derived one by `xsi:type`.
    fn bases(&mut self, old: Simple<'m>, new: Simple<'m>, path: &str) {
        let Some(name) = old.name.filter(|name| new.name.is_some() && self.renamed(*name) == new.name) else { return };
        // Built-in types do not change.
        if self.old.names.ns(name) == XS {
            return;
        }
        let after: HashSet<TypeId> = ancestors(self.new, new.base).collect();
        let is_kept = |base: TypeId| {
            let name = self.old.types.get(base).and_then(Type::name).and_then(|name| self.renamed(name));
            name.and_then(|name| self.new.global_types.get(&name)).is_some_and(|base| after.contains(base))
        };
        if ancestors(self.old, old.base).any(|base| self.declared.contains(&base) && !is_kept(base)) {
            let message =
                "the type is no longer derived from that of an element, for which documents may name it by xsi:type";
            self.unclear(path, message);
        }
    }

    /// Compares the members of two unions with each other, beyond what they accept.
    fn members(&mut self, old: (Simple<'m>, &[TypeId]), new: (Simple<'m>, &[TypeId]), path: &str) {
        let ((old, before), (new, after)) = (old, new);
        // Documents may name a member of a union that demands nothing more.
        let is_lost = |member: &TypeId| {
            let name = self.old.types.get(*member).and_then(Type::name).and_then(|name| self.renamed(name));
            let now = name.and_then(|name| self.new.global_types.get(&name));
            let is_member = |now: TypeId| after.iter().any(|other| self.new.derivations(now, *other).is_some());
            self.old.types.get(*member).and_then(Type::name).is_some() && !now.is_some_and(|now| is_member(*now))
        };
        if old.facets.is_empty() && before.len() <= after.len() && before.iter().any(is_lost) {
            self.unclear(path, "a member of the union is another type, and documents may name the old one by xsi:type");
        }
        // A text may now be a value of another member than before.
        let has_facets = !(old.facets.is_empty() && new.facets.is_empty());
        let refers = [(self.old, before), (self.new, after)].into_iter().any(|(model, members)| {
            members.iter().any(|member| [Kind::Id, Kind::Idref].iter().any(|kind| model.is_kind(*member, *kind)))
        });
        if !(has_facets || refers || self.compares_values) || before.len() < 2 {
            return;
        }
        let weights = [(self.old, before), (self.new, after)].map(|(model, members)| {
            let listed = members.iter().filter_map(|id| model.simple(*id)?.facets.enumeration.as_ref());
            listed.map(|listed| listed.len()).sum::<usize>()
        });
        if self.steps(weights.into_iter().sum())
            && before.iter().zip(after).any(|(one, other)| !is_same(self.old, *one, self.new, *other))
        {
            let message = "a member of the union changes, and there are facets, identifiers, keys or fixed values: which \
                           member a text belongs to matters to them";
            self.unclear(path, message);
        }
    }

    fn facets(&mut self, old: &Facets, new: &Facets, path: &str, is_whole: bool) {
        match (old.length, new.length) {
            (before, after) if before == after => {}
            (Some(_), None) => self.compatible(path, "length was removed"),
            (_, Some(length)) => self.breaking(path, format!("length is now {length}")),
            (None, None) => {}
        }
        let up = |value: Option<usize>| value.unwrap_or(0);
        let down = |value: Option<usize>| value.unwrap_or(usize::MAX);
        let numbers = [
            ("minLength", up(old.min_length), up(new.min_length), true),
            ("maxLength", down(old.max_length), down(new.max_length), false),
            ("totalDigits", down(old.total_digits), down(new.total_digits), false),
            ("fractionDigits", down(old.fraction_digits), down(new.fraction_digits), false),
        ];
        for (name, before, after, is_minimum) in numbers {
            if before == after || (is_whole && name == "fractionDigits") {
                continue;
            }
            if (after > before) == is_minimum {
                self.breaking(path, format!("{name} was tightened to {after}"));
            } else {
                self.compatible(path, format!("{name} was loosened"));
            }
        }
        self.limits(old.min.as_ref(), new.min.as_ref(), path, ("lower", Ordering::Greater));
        self.limits(old.max.as_ref(), new.max.as_ref(), path, ("upper", Ordering::Less));
        self.listed(old, new, path);
        self.patterns(old, new, path);
    }

    fn limits(&mut self, old: Option<&Limit>, new: Option<&Limit>, path: &str, (which, tighter): (&str, Ordering)) {
        match (old, new) {
            (None, None) => {}
            (Some(_), None) => self.compatible(path, format!("the {which} bound was removed")),
            (None, Some(limit)) => self.breaking(path, format!("the {which} bound {} was added", clip(&limit.text))),
            (Some(before), Some(after)) => match after.value.compare(&before.value) {
                Some(Ordering::Equal) if before.is_inclusive == after.is_inclusive => {}
                Some(Ordering::Equal) if before.is_inclusive => {
                    self.breaking(path, format!("the {which} bound {} is now exclusive", clip(&after.text)));
                }
                Some(Ordering::Equal) => {
                    self.compatible(path, format!("the {which} bound {} is now inclusive", clip(&after.text)))
                }
                Some(order) if order == tighter => {
                    self.breaking(
                        path,
                        format!("the {which} bound was tightened from {} to {}", clip(&before.text), clip(&after.text)),
                    );
                }
                Some(_) => self.compatible(path, format!("the {which} bound was loosened to {}", clip(&after.text))),
                None => self
                    .unclear(path, format!("the {which} bound changed to one of another kind: {}", clip(&after.text))),
            },
        }
    }

    fn listed(&mut self, old: &Facets, new: &Facets, path: &str) {
        let value = |key: &str| clip(key.split_once(':').map_or(key, |(_, value)| value)).replace('\u{1}', " ");
        let size = |facets: &Facets| facets.enumeration.as_ref().map_or(0, |listed| listed.len());
        self.left = self.left.saturating_sub(size(old) + size(new));
        match (&old.enumeration, &new.enumeration) {
            (None, None) => {}
            (Some(_), None) => self.compatible(path, "the enumeration was removed"),
            (None, Some(_)) => self.breaking(path, "an enumeration was added"),
            (Some(before), Some(after)) => {
                let mut removed: Vec<&str> = before.difference(after).map(AsRef::as_ref).collect();
                removed.sort_unstable();
                for key in removed {
                    self.breaking(path, format!("the value {:?} was removed", value(key)));
                }
                let mut added: Vec<&str> = after.difference(before).map(AsRef::as_ref).collect();
                added.sort_unstable();
                for key in added {
                    self.compatible(path, format!("the value {:?} was added", value(key)));
                }
            }
        }
    }

    fn patterns(&mut self, old: &Facets, new: &Facets, path: &str) {
        for (before, after) in old.patterns.iter().zip(&new.patterns) {
            let has = |all: &[std::sync::Arc<crate::xsd::regex::Pattern>], source: &str| {
                all.iter().any(|one| one.source() == source)
            };
            let kept = before.iter().all(|one| has(after, one.source()));
            let added = after.iter().any(|one| !has(before, one.source()));
            match (kept, added) {
                (true, false) => {}
                (true, true) => self.compatible(path, "a pattern was added as an alternative"),
                (false, _) => self.unclear(path, "the pattern changed"),
            }
        }
        match old.patterns.len().cmp(&new.patterns.len()) {
            Ordering::Less => self.breaking(path, "a pattern was added"),
            Ordering::Greater => self.compatible(path, "a pattern was removed"),
            Ordering::Equal => {}
        }
    }
}

/// The types that a type is derived from, itself included.
fn ancestors(model: &Model, id: TypeId) -> impl Iterator<Item = TypeId> {
    let base = |id: &TypeId| model.types.get(*id).map(Type::base).filter(|base| base != id);
    std::iter::successors(Some(id), base).take_while(|id| *id != ANY_SIMPLE_TYPE && *id != ANY_TYPE)
}

/// Whether two simple types have the same values, written alike. Those that are not obviously the same count as different.
fn is_same(old: &Model, one: TypeId, new: &Model, other: TypeId) -> bool {
    let (Some(one), Some(other)) = (old.simple(one), new.simple(other)) else { return false };
    let variety = match (&one.variety, &other.variety) {
        (Variety::List(one), Variety::List(other)) => is_same(old, *one, new, *other),
        (Variety::Union(before), Variety::Union(after)) => {
            before.len() == after.len()
                && before.iter().zip(after.iter()).all(|(one, other)| is_same(old, *one, new, *other))
        }
        (one, other) => one == other,
    };
    let (before, after) = (&one.facets, &other.facets);
    let limit = |limit: &Option<Limit>| limit.as_ref().map(|limit| (limit.text.clone(), limit.is_inclusive));
    let patterns = |facets: &Facets| -> Vec<Vec<String>> {
        let sources = |one: &std::sync::Arc<[std::sync::Arc<crate::xsd::regex::Pattern>]>| {
            one.iter().map(|pattern| pattern.source().to_owned()).collect()
        };
        facets.patterns.iter().map(sources).collect()
    };
    variety
        && one.white == other.white
        && (before.length, before.min_length, before.max_length) == (after.length, after.min_length, after.max_length)
        && (before.total_digits, before.fraction_digits) == (after.total_digits, after.fraction_digits)
        && before.enumeration == after.enumeration
        && limit(&before.min) == limit(&after.min)
        && limit(&before.max) == limit(&after.max)
        && patterns(before) == patterns(after)
}

/// Whether one kind is derived from another one, so that all its texts are texts of the other.
fn is_derived(derived: Kind, base: Kind) -> bool {
    let mut at = derived;
    loop {
        at = match at {
            Kind::Id | Kind::Idref | Kind::Entity => Kind::NcName,
            Kind::NcName => Kind::Name,
            Kind::Name | Kind::Nmtoken | Kind::Language => Kind::String,
            Kind::Integer => Kind::Decimal,
            _ => return false,
        };
        if at == base {
            return true;
        }
    }
}

fn show(variety: &Variety) -> String {
    match variety {
        Variety::Ur => "anySimpleType".into(),
        Variety::Atomic(kind) => format!("{kind:?}"),
        Variety::List(_) => "a list".into(),
        Variety::Union(_) => "a union".into(),
    }
}

/// XPaths as text that does not depend on the numbers of one version.
pub(super) fn paths(model: &Model, paths: &[Path]) -> String {
    let test = |test: &Test| match test {
        Test::Any => "*".to_owned(),
        Test::Space(ns) => format!("{{{}}}*", model.names.spaces.uri(*ns)),
        Test::Name(name) => {
            format!("{{{}}}{}", model.names.spaces.uri(model.names.ns(*name)), model.names.local(*name))
        }
    };
    let one = |path: &Path| {
        let mut steps: Vec<String> = path.steps.iter().map(test).collect();
        steps.extend(path.attribute.iter().map(|one| format!("@{}", test(one))));
        format!("{}{}", if path.is_deep { ".//" } else { "" }, steps.join("/"))
    };
    paths.iter().map(one).collect::<Vec<_>>().join("|")
}
