//! Compares simple types, facet by facet.

use std::cmp::Ordering;

use super::{Comparing, Simple};
use crate::xsd::model::{Facets, Limit, Model, Path, Test, Variety};
use crate::xsd::value::Kind;

impl<'m> Comparing<'m> {
    pub(super) fn simple(&mut self, old: Simple<'m>, new: Simple<'m>, path: &str) {
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
            (None, Some(limit)) => self.breaking(path, format!("the {which} bound {} was added", limit.text)),
            (Some(before), Some(after)) => match after.value.compare(&before.value) {
                Some(Ordering::Equal) if before.is_inclusive == after.is_inclusive => {}
                Some(Ordering::Equal) if before.is_inclusive => {
                    self.breaking(path, format!("the {which} bound {} is now exclusive", after.text));
                }
                Some(Ordering::Equal) => {
                    self.compatible(path, format!("the {which} bound {} is now inclusive", after.text))
                }
                Some(order) if order == tighter => {
                    self.breaking(
                        path,
                        format!("the {which} bound was tightened from {} to {}", before.text, after.text),
                    );
                }
                Some(_) => self.compatible(path, format!("the {which} bound was loosened to {}", after.text)),
                None => self.unclear(path, format!("the {which} bound changed to one of another kind: {}", after.text)),
            },
        }
    }

    fn listed(&mut self, old: &Facets, new: &Facets, path: &str) {
        let value = |key: &str| key.split_once(':').map_or(key, |(_, value)| value).replace('\u{1}', " ");
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
