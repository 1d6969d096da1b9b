//! Whether two schemas are equal but for annotations, following references.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::super::dialect::Role;
use super::super::graph::{Graph, Target};
use super::Side;

/// The most steps that looking at pairs takes in all: one for each schema and value in them.
const MAX_LOOKS: usize = 75_000;

/// Keywords that say nothing about which documents are valid. What `$id` and anchors name is compared where it is
/// referred to.
pub(super) const ANNOTATIONS: [&str; 16] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$id",
    "$anchor",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$schema",
    "$defs",
    "definitions",
    "$vocabulary",
];

/// Remembers which schemas are equal.
pub(super) struct Equality<'g, 's> {
    old: &'g Graph<'s>,
    new: &'g Graph<'s>,
    /// What looking at each schema of either side takes.
    weights: (&'g [usize], &'g [usize]),
    /// Whether formats are asserted on one side only.
    formats_differ: bool,
    equal: HashSet<(usize, usize)>,
    different: HashSet<(usize, usize)>,
    looks: usize,
}

impl<'g, 's> Equality<'g, 's> {
    pub(super) fn new(old: &'g Side<'s>, new: &'g Side<'s>) -> Self {
        Self {
            old: &old.graph,
            new: &new.graph,
            weights: (&old.weights, &new.weights),
            formats_differ: old.strict != new.strict,
            equal: HashSet::new(),
            different: HashSet::new(),
            looks: 0,
        }
    }

    /// Whether it has looked so often that it does not look any more.
    pub(super) fn is_spent(&self) -> bool {
        self.looks > MAX_LOOKS
    }

    /// Whether two schemas are equal.
    pub(super) fn is_same(&mut self, old: usize, new: usize) -> bool {
        if self.different.contains(&(old, new)) {
            return false;
        }
        // A pair is equal if assuming so leads to no difference.
        let mut assumed = HashSet::new();
        let mut open = vec![(old, new)];
        while let Some(pair) = open.pop() {
            if self.equal.contains(&pair) || !assumed.insert(pair) {
                continue;
            }
            self.looks += self.weights.0[pair.0] + self.weights.1[pair.1];
            if self.is_spent() || self.different.contains(&pair) || !self.compare(pair, &mut open) {
                self.different.insert((old, new));
                return false;
            }
        }
        self.equal.extend(assumed);
        true
    }

    /// Whether two schemas are equal if those in them are, which are added to `open`.
    fn compare(&self, (old, new): (usize, usize), open: &mut Vec<(usize, usize)>) -> bool {
        let (old_schema, new_schema) = (&self.old.schemas[old], &self.new.schemas[new]);
        let (old_keywords, new_keywords) = match (old_schema.value, new_schema.value) {
            (Value::Object(old), Value::Object(new)) => (old, new),
            (old, new) => return old == new,
        };
        let alone =
            |keywords: &Map<String, Value>| self.old.dialect.ref_stands_alone() && keywords.contains_key("$ref");
        if alone(old_keywords) != alone(new_keywords) {
            return false;
        }
        if !alone(old_keywords) {
            let names =
                |keywords: &'s Map<String, Value>| keywords.keys().filter(|name| !ANNOTATIONS.contains(&name.as_str()));
            if !names(old_keywords).eq(names(new_keywords)) {
                return false;
            }
            let all = names(old_keywords).all(|name| self.keyword(name, &old_keywords[name], &new_keywords[name]));
            if !all || !self.schemas(old, new, open) {
                return false;
            }
        }
        self.references(old, new, open)
    }

    /// Whether a keyword has the same value on both sides, apart from schemas.
    fn keyword(&self, name: &str, old: &Value, new: &Value) -> bool {
        match (self.old.dialect.role(name), old, new) {
            (Role::Other, _, _) if matches!(name, "$ref" | "$dynamicRef" | "$recursiveRef") => true,
            (Role::Other, old, new) => old == new && !(self.formats_differ && name == "format"),
            // Arrays of names are no schemas.
            (Role::SameMap, Value::Object(old), Value::Object(new)) => {
                old.len() == new.len()
                    && old.iter().all(|(name, old)| {
                        new.get(name).is_some_and(|new| old == new || !old.is_array() && !new.is_array())
                    })
            }
            _ => true,
        }
    }

    /// Whether both hold schemas in the same places.
    fn schemas(&self, old: usize, new: usize, open: &mut Vec<(usize, usize)>) -> bool {
        let applied = |graph: &Graph<'s>, at| {
            let held: HashMap<_, _> = graph
                .held(at)
                .filter(|(keyword, ..)| !ANNOTATIONS.contains(keyword))
                .map(|(keyword, name, at)| ((keyword, name), at))
                .collect();
            held
        };
        let (old, new) = (applied(self.old, old), applied(self.new, new));
        if old.len() != new.len() {
            return false;
        }
        for (place, old) in old {
            match new.get(&place) {
                Some(new) => open.push((old, *new)),
                None => return false,
            }
        }
        true
    }

    /// Whether both refer to equal schemas.
    fn references(&self, old: usize, new: usize, open: &mut Vec<(usize, usize)>) -> bool {
        let (old, new) = (&self.old.schemas[old], &self.new.schemas[new]);
        if old.references.len() != new.references.len() {
            return false;
        }
        for ((old_keyword, old_targets), (new_keyword, new_targets)) in old.references.iter().zip(&new.references) {
            if old_keyword != new_keyword || old_targets.len() != new_targets.len() {
                return false;
            }
            for targets in old_targets.iter().zip(new_targets) {
                match targets {
                    (Target::Schema(old), Target::Schema(new)) => open.push((*old, *new)),
                    (Target::Metaschema, Target::Metaschema)
                        if old.value.get(old_keyword) == new.value.get(new_keyword) => {}
                    _ => return false,
                }
            }
        }
        true
    }
}
