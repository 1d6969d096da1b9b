//! What is compared of objects and arrays: their members and items.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::graph::{Graph, Segment};
use super::super::tree::clip;
use super::{Side, Walk, below};
use crate::compare::Verdict;

/// What a schema says of members that it does not name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Open,
    Closed,
    Judged(usize),
}

impl Rest {
    /// What a keyword says.
    fn of(side: &Side<'_>, at: usize, keyword: &str) -> Self {
        match (side.keyword(at, keyword), side.graph.nested(at, keyword)) {
            (None | Some(Value::Bool(true)), _) | (_, None) => Self::Open,
            (Some(Value::Bool(false)), _) => Self::Closed,
            (_, Some(nested)) => Self::Judged(nested),
        }
    }
}

/// The schemas in a keyword by name.
fn by_name(graph: &Graph<'_>, at: usize, keyword: &str) -> BTreeMap<String, usize> {
    let named = graph.held(at).filter(|(held_in, ..)| *held_in == keyword);
    named
        .filter_map(|(_, segment, at)| match segment? {
            Segment::Name(name) => Some((name.to_string(), at)),
            Segment::Index(_) => None,
        })
        .collect()
}

fn required<'s>(side: &Side<'s>, at: usize) -> BTreeSet<&'s str> {
    let names = side.keyword(at, "required").and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str).collect()
}

impl Walk<'_, '_> {
    /// Compares what two schemas say of the members of objects.
    pub(super) fn members(&mut self, old: usize, new: usize, path: &str) {
        self.required(old, new, path);
        let before = by_name(&self.old.graph, old, "properties");
        let after = by_name(&self.new.graph, new, "properties");
        let patterns = self.patterns(old, new, path);
        let rests = (Rest::of(self.old, old, "additionalProperties"), Rest::of(self.new, new, "additionalProperties"));
        let properties = below(path, "properties");
        for (name, new) in &after {
            let path = below(&properties, name);
            match before.get(name) {
                Some(old) => self.later(Some(*old), Some(*new), path),
                None => self.added(rests.0, patterns, name, *new, path),
            }
        }
        for (name, old) in before.iter().filter(|(name, _)| !after.contains_key(*name)) {
            self.removed(rests.1, patterns, name, *old, below(&properties, name));
        }
        self.rest(rests, path, "additionalProperties", "the object");
    }

    fn required(&mut self, old: usize, new: usize, path: &str) {
        let (before, after) = (required(self.old, old), required(self.new, new));
        let path = below(path, "required");
        for name in after.difference(&before) {
            self.tell(Verdict::Breaking, path.as_str(), format!("the property {} is required now", clip(name, 100)));
        }
        for name in before.difference(&after) {
            let message = format!("the property {} is not required any more", clip(name, 100));
            self.tell(Verdict::Compatible, path.as_str(), message);
        }
    }

    /// Compares `patternProperties`; whether there are any.
    fn patterns(&mut self, old: usize, new: usize, path: &str) -> bool {
        let before = by_name(&self.old.graph, old, "patternProperties");
        let after = by_name(&self.new.graph, new, "patternProperties");
        let path = below(path, "patternProperties");
        if before.keys().eq(after.keys()) {
            for ((pattern, old), new) in before.iter().zip(after.values()) {
                if !self.equality.is_same(*old, *new) {
                    let message = "the schema for names of this pattern changes: which names there are is not known";
                    self.tell(Verdict::CannotTell, below(&path, pattern), message);
                }
            }
        } else {
            self.tell(Verdict::CannotTell, path, "the patterns change");
        }
        !before.is_empty() || !after.is_empty()
    }

    /// A property that only the new schema names.
    fn added(&mut self, rest: Rest, patterns: bool, name: &str, new: usize, path: String) {
        let name = clip(name, 100);
        match rest {
            _ if patterns => {
                let message = format!("the property {name} is added, and a pattern may have applied to it");
                self.tell(Verdict::CannotTell, path, message);
            }
            Rest::Closed => {
                let message = format!("the property {name} is added; documents did not have it");
                self.tell(Verdict::Compatible, path, message);
            }
            // Nothing is added, and documents may have had it.
            Rest::Open if self.new.value(Some(new)) == &Value::Bool(false) => {
                self.tell(Verdict::Breaking, path, format!("the property {name} is not allowed any more"));
            }
            Rest::Open => {
                let message = format!("the property {name} is added to an open object");
                self.tell(Verdict::Compatible, path, message);
            }
            // Documents may have had it, as one of the others.
            Rest::Judged(old) => self.later(Some(old), Some(new), path),
        }
    }

    /// A property that only the old schema names.
    fn removed(&mut self, rest: Rest, patterns: bool, name: &str, old: usize, path: String) {
        let name = clip(name, 100);
        match rest {
            _ if self.old.value(Some(old)) == &Value::Bool(false) => {}
            _ if patterns => {
                let message = format!("the property {name} is removed, and a pattern may apply to it");
                self.tell(Verdict::CannotTell, path, message);
            }
            Rest::Open => {
                self.tell(Verdict::Compatible, path, format!("the property {name} may be anything now"));
            }
            Rest::Closed => {
                let message =
                    format!("the property {name} is removed from a closed object: it is not allowed any more");
                self.tell(Verdict::Breaking, path, message);
            }
            Rest::Judged(new) => self.later(Some(old), Some(new), path),
        }
    }

    /// Compares what is said of all members or items that are not named.
    fn rest(&mut self, (before, after): (Rest, Rest), path: &str, keyword: &str, what: &str) {
        let path = below(path, keyword);
        match (before, after) {
            (Rest::Open, Rest::Open) | (Rest::Closed, Rest::Closed) => {}
            (Rest::Open, Rest::Closed) => self.tell(Verdict::Breaking, path, format!("{what} is closed now")),
            (Rest::Judged(_), Rest::Closed) => {
                self.tell(Verdict::Breaking, path, format!("{what} is closed now"));
            }
            (Rest::Open, Rest::Judged(new)) => self.later(None, Some(new), path),
            (Rest::Judged(old), Rest::Judged(new)) => self.later(Some(old), Some(new), path),
            (Rest::Closed, _) | (Rest::Judged(_), Rest::Open) => {
                self.tell(Verdict::Compatible, path, format!("{what} is opened"));
            }
        }
    }

    /// Compares what two schemas say of the items of arrays.
    pub(super) fn items(&mut self, old: usize, new: usize, path: &str) {
        let (before, after) = (Items::of(self.old, old), Items::of(self.new, new));
        if before.first.len() == after.first.len() {
            for (old, new) in before.first.iter().zip(&after.first) {
                self.later(Some(*old), Some(*new), path.into());
            }
            self.rest((before.rest, after.rest), path, after.keyword, "the array");
        } else {
            let message =
                format!("{} items are described one by one now, not {}", after.first.len(), before.first.len());
            self.tell(Verdict::CannotTell, below(path, "items"), message);
        }
    }
}

/// What a schema says of items: of the first ones, one by one, and of the rest.
struct Items {
    first: Vec<usize>,
    rest: Rest,
    keyword: &'static str,
}

impl Items {
    fn of(side: &Side<'_>, at: usize) -> Self {
        let listed = |keyword: &str| -> Vec<usize> {
            let held = side.graph.held(at).filter(|(held_in, segment, _)| *held_in == keyword && segment.is_some());
            held.map(|(.., at)| at).collect()
        };
        let keyword = if side.keyword(at, "items").is_some_and(Value::is_array) { "additionalItems" } else { "items" };
        let first = if keyword == "additionalItems" { listed("items") } else { listed("prefixItems") };
        Self { first, rest: Rest::of(side, at, keyword), keyword }
    }
}
