//! Compares the content of complex types: particles, groups and wildcards.

use std::collections::{HashMap, VecDeque};

use super::{Comparing, below};
use crate::xsd::model::{Allowed, Compositor, Content, Model, NameId, Particle, Process, Term, UNBOUNDED, Wildcard};

/// What two parts of a group are matched by.
#[derive(PartialEq, Eq, Hash)]
enum Key<'m> {
    Element(&'m str, &'m str),
    Wildcard,
    Group(Compositor),
}

fn key<'m>(model: &'m Model, particle: &Particle) -> Key<'m> {
    match &particle.term {
        Term::Element(id) => {
            let name = model.elements.get(*id).map_or(NameId(u32::MAX), |element| element.name);
            Key::Element(model.names.spaces.uri(model.names.ns(name)), model.names.local(name))
        }
        Term::Wildcard(_) => Key::Wildcard,
        Term::Group(compositor, _) => Key::Group(*compositor),
    }
}

impl<'m> Comparing<'m> {
    pub(super) fn contents(&mut self, old: &'m Content, new: &'m Content, path: &str) {
        match (old, new) {
            (Content::Empty, Content::Empty) => {}
            (Content::Simple(one), Content::Simple(other)) => self.enqueue(*one, *other, path),
            (Content::Empty, Content::Elements { model, .. }) if model.is_nullable() => {
                self.compatible(path, "optional content was added");
            }
            (Content::Empty, Content::Elements { .. }) => self.breaking(path, "content that must be there was added"),
            (Content::Elements { .. }, Content::Empty) => self.breaking(path, "the content was removed"),
            (
                Content::Elements { particle: one, is_mixed: was_mixed, .. },
                Content::Elements { particle: other, is_mixed, .. },
            ) => {
                self.flag((!was_mixed, !is_mixed), path, "the content", "not mixed");
                self.particles(one, other, path);
            }
            _ => self.breaking(path, "the content changed between text and elements"),
        }
    }

    fn particles(&mut self, old: &'m Particle, new: &'m Particle, path: &str) {
        if !self.step() {
            return;
        }
        let (before, after) = (old.min, new.min);
        if after > before {
            self.breaking(path, format!("minOccurs was raised from {before} to {after}"));
        } else if after < before {
            self.compatible(path, format!("minOccurs was lowered from {before} to {after}"));
        }
        let show = |max: u32| if max == UNBOUNDED { "unbounded".to_owned() } else { max.to_string() };
        let (before, after) = (old.max, new.max);
        if after < before {
            self.breaking(path, format!("maxOccurs was lowered from {} to {}", show(before), show(after)));
        } else if after > before {
            self.compatible(path, format!("maxOccurs was raised from {} to {}", show(before), show(after)));
        }
        match (&old.term, &new.term) {
            (Term::Element(one), Term::Element(other)) if key(self.old, old) == key(self.new, new) => {
                if let (Some(one), Some(other)) = (self.old.elements.get(*one), self.new.elements.get(*other))
                    && !(one.is_global && other.is_global)
                {
                    if one.is_global != other.is_global {
                        self.unclear(
                            path,
                            "the element is now declared in another place, which matters to substitution",
                        );
                    }
                    self.element(one, other, path);
                }
            }
            (Term::Wildcard(one), Term::Wildcard(other)) => self.wildcards(one, other, path, "the wildcard"),
            (Term::Group(one, before), Term::Group(other, after)) if one == other => match one {
                Compositor::Sequence => self.sequences(before, after, path),
                Compositor::Choice | Compositor::All => self.sets(before, after, path, *one),
            },
            (Term::Group(one, _), Term::Group(other, _)) => {
                self.unclear(path, format!("the content changed from {one:?} to {other:?}").to_lowercase());
            }
            _ => self.unclear(path, "the structure of the content changed"),
        }
    }

    fn path_of(&self, model: &Model, particle: &Particle, path: &str) -> String {
        if self.is_full() {
            return String::new();
        }
        match key(model, particle) {
            Key::Element(_, local) => below(path, '/', local),
            _ => path.to_owned(),
        }
    }

    /// Where parts of the new version are, by what they are matched by.
    fn places(&self, parts: &'m [Particle]) -> HashMap<Key<'m>, VecDeque<usize>> {
        let mut places: HashMap<_, VecDeque<_>> = HashMap::new();
        for (at, part) in parts.iter().enumerate() {
            places.entry(key(self.new, part)).or_default().push_back(at);
        }
        places
    }

    /// Matches the parts of sequences in their order.
    fn sequences(&mut self, before: &'m [Particle], after: &'m [Particle], path: &str) {
        if !self.steps(before.len() + after.len()) {
            return;
        }
        let mut next = 0;
        let mut places = self.places(after);
        for old in before {
            let at = self.path_of(self.old, old, path);
            let same = places.get_mut(&key(self.old, old));
            let is_known = same.is_some();
            let found = same.and_then(|same| {
                while same.front().is_some_and(|index| *index < next) {
                    same.pop_front();
                }
                same.pop_front()
            });
            match found.and_then(|index| Some((index, after.get(index)?))) {
                Some((index, new)) => {
                    for added in after.get(next..index).unwrap_or_default() {
                        self.added(added, path);
                    }
                    self.particles(old, new, &at);
                    next = index + 1;
                }
                None if is_known => {
                    self.breaking(&at, "this was moved to another place in the sequence");
                }
                None => self.removed(old, path),
            }
        }
        for added in after.get(next..).unwrap_or_default() {
            self.added(added, path);
        }
    }

    /// Matches the parts of choices, or of `all`, whatever their order.
    fn sets(&mut self, before: &'m [Particle], after: &'m [Particle], path: &str, compositor: Compositor) {
        if !self.steps(before.len() + after.len()) {
            return;
        }
        let mut used = vec![false; after.len()];
        let mut places = self.places(after);
        for old in before {
            let found = places.get_mut(&key(self.old, old)).and_then(VecDeque::pop_front);
            match found.and_then(|at| after.get(at).map(|new| (at, new))) {
                Some((at, new)) => {
                    if let Some(used) = used.get_mut(at) {
                        *used = true;
                    }
                    self.particles(old, new, &self.path_of(self.old, old, path));
                }
                None => self.removed(old, path),
            }
        }
        for (added, _) in after.iter().zip(used).filter(|(_, used)| !used) {
            if compositor == Compositor::All {
                self.added(added, path);
            } else {
                let at = self.path_of(self.new, added, path);
                self.compatible(&at, "a branch was added to the choice");
            }
        }
    }

    fn removed(&mut self, old: &Particle, path: &str) {
        let at = self.path_of(self.old, old, path);
        let what = match &old.term {
            Term::Element(_) => "the element was removed",
            Term::Wildcard(_) => "the wildcard was removed",
            Term::Group(..) => "a group was removed, or its kind changed",
        };
        self.breaking(&at, what);
    }

    fn added(&mut self, new: &Particle, path: &str) {
        let at = self.path_of(self.new, new, path);
        if may_be_absent(new, 0) {
            self.compatible(&at, "optional content was added");
        } else {
            self.breaking(&at, "content that must be there was added");
        }
    }

    pub(super) fn wildcards(&mut self, old: &Wildcard, new: &Wildcard, path: &str, what: &str) {
        let allowed = self.allowed_in_old(&new.allowed);
        match (old.allowed.is_subset_of(&allowed), allowed.is_subset_of(&old.allowed)) {
            (true, true) => {}
            (true, false) => self.compatible(path, format!("{what} lets in more namespaces")),
            (false, _) => self.breaking(path, format!("{what} lets in fewer namespaces")),
        }
        if new.process > old.process {
            self.unclear(path, format!("{what} checks more of what it lets in"));
        } else if new.process == Process::Skip && old.process != Process::Skip {
            self.unclear(path, format!("{what} no longer sees identifiers and keys in what it lets in"));
        } else if new.process < old.process {
            self.compatible(path, format!("{what} checks less of what it lets in"));
        }
    }

    /// The namespaces of the new version by their numbers in the old one. Those that the old one does not know stay
    /// different from all of its own.
    fn allowed_in_old(&self, allowed: &Allowed) -> Allowed {
        let known = |ns: &crate::xsd::xml::Ns| self.old.names.spaces.find(self.new.names.spaces.uri(*ns));
        match allowed {
            Allowed::Any => Allowed::Any,
            Allowed::Not(ns) => Allowed::Not(known(ns)),
            Allowed::Only(list) => {
                let mut known: Vec<_> = list.iter().map(known).collect();
                known.sort_unstable();
                Allowed::Only(known)
            }
        }
    }
}

/// Whether a particle may match nothing. What is nested deeper than contents may be counts as required.
fn may_be_absent(particle: &Particle, depth: usize) -> bool {
    if particle.min == 0 {
        return true;
    }
    match &particle.term {
        Term::Group(_, _) if depth > 8 => false,
        Term::Group(Compositor::Choice, parts) => parts.iter().any(|part| may_be_absent(part, depth + 1)),
        Term::Group(_, parts) => parts.iter().all(|part| may_be_absent(part, depth + 1)),
        _ => false,
    }
}
