//! What is compared of two schemas that are neither objects' nor arrays' business: references, types, values, texts.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::super::dialect::Dialect;
use super::super::graph::Target;
use super::super::number::Decimal;
use super::super::tree::clip;
use super::same::ANNOTATIONS;
use super::{Pair, Walk, below};
use crate::compare::Verdict;

/// All types. `integer` is part of `number`.
const TYPES: [&str; 6] = ["array", "boolean", "null", "number", "object", "string"];
/// Keywords that are compared only for being equal.
const OPAQUE: [&str; 15] = [
    "not",
    "if",
    "then",
    "else",
    "oneOf",
    "anyOf",
    "dependentSchemas",
    "dependentRequired",
    "dependencies",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
];

impl Walk<'_, '_> {
    /// Compares two schemas, apart from those in them.
    pub(super) fn pair(&mut self, pair: &Pair) {
        let path = match pair.new {
            Some(new) => self.new.graph.pointer(new),
            None => pair.path.clone(),
        };
        match (self.old.value(pair.old), self.new.value(pair.new)) {
            // Nothing was valid, or everything is.
            (Value::Bool(false), _) | (_, Value::Bool(true)) => {}
            (_, Value::Bool(false)) => self.tell(Verdict::Breaking, path, "nothing is valid here any more"),
            (Value::Bool(true), _) => self.restricted(pair.new, &path),
            (Value::Object(_), Value::Object(new)) if is_void(new) => {}
            (Value::Object(old), Value::Object(_)) if is_void(old) => self.restricted(pair.new, &path),
            (Value::Object(old), Value::Object(new)) => {
                if let (Some(old_at), Some(new_at)) = (pair.old, pair.new) {
                    self.objects((old_at, old), (new_at, new), &path);
                }
            }
            _ => self.tell(Verdict::CannotTell, path, "this is no schema"),
        }
    }

    /// Everything was valid here.
    fn restricted(&mut self, new: Option<usize>, path: &str) {
        let refers = new.is_some_and(|new| !self.new.graph.schemas[new].references.is_empty());
        if refers {
            // What it refers to may restrict nothing.
            self.tell(Verdict::CannotTell, path, "everything was valid here, now a reference decides");
        } else {
            self.tell(Verdict::Breaking, path, "everything was valid here, now there are conditions");
        }
    }

    /// Compares two schemas with keywords.
    fn objects(&mut self, old: (usize, &Map<String, Value>), new: (usize, &Map<String, Value>), path: &str) {
        let ((old_at, old), (new_at, new)) = (old, new);
        self.annotations(old, new, path);
        if self.references(old_at, new_at, path) {
            return;
        }
        let types = self.types(old, new, path);
        self.values(old, new, path);
        let (old_value, new_value) = (self.old.value(Some(old_at)), self.new.value(Some(new_at)));
        self.bounds(old_value, new_value, &types, path);
        if types.contains(&"string") {
            self.texts(old, new, path);
        }
        if types.contains(&"object") {
            self.members(old_at, new_at, path);
        }
        if types.contains(&"array") {
            self.items(old_at, new_at, path);
        }
        self.all_of(old_at, new_at, path);
        self.opaque(old_at, new_at, path);
    }

    fn annotations(&mut self, old: &Map<String, Value>, new: &Map<String, Value>, path: &str) {
        let told = ANNOTATIONS.into_iter().filter(|name| !name.starts_with('$') && *name != "definitions");
        let names: Vec<&str> = told.filter(|name| old.get(*name) != new.get(*name)).collect();
        if !names.is_empty() {
            self.tell(Verdict::Compatible, path, format!("annotations change: {}", names.join(", ")));
        }
    }

    /// Compares references; whether nothing else has to be compared.
    fn references(&mut self, old: usize, new: usize, path: &str) -> bool {
        let (old_schema, new_schema) = (&self.old.graph.schemas[old], &self.new.graph.schemas[new]);
        if old_schema.references.is_empty() && new_schema.references.is_empty() {
            return false;
        }
        // A schema that is nothing but a reference is what it refers to.
        let only = |schema: &super::super::graph::Schema<'_>, alone: bool| {
            let others = schema.value.as_object().into_iter().flat_map(Map::keys);
            let pure = alone || others.clone().all(|name| name == "$ref" || is_annotation(name));
            match schema.references.as_slice() {
                [("$ref", targets)] if pure => targets.first().copied(),
                _ => None,
            }
        };
        let alone = self.old.graph.dialect.ref_stands_alone();
        let targets = (only(old_schema, alone), only(new_schema, alone));
        match targets {
            (Some(Target::Schema(old)), Some(Target::Schema(new))) => self.later(Some(old), Some(new), path.into()),
            (Some(Target::Schema(old)), None) if new_schema.references.is_empty() => {
                self.later(Some(old), Some(new), path.into());
            }
            (None, Some(Target::Schema(new))) if old_schema.references.is_empty() => {
                self.later(Some(old), Some(new), path.into());
            }
            _ => return self.mixed_references(old, new, path),
        }
        true
    }

    /// Compares references that stand beside other keywords, or are dynamic.
    fn mixed_references(&mut self, old: usize, new: usize, path: &str) -> bool {
        if self.equality.is_same(old, new) {
            return true;
        }
        let pairs: Option<Vec<_>> = {
            let (old, new) = (&self.old.graph.schemas[old].references, &self.new.graph.schemas[new].references);
            type Reference<'r> = (&'r str, Vec<Target>);
            let pair = |((old_keyword, old), (new_keyword, new)): (&Reference<'_>, &Reference<'_>)| match (
                old.as_slice(),
                new.as_slice(),
            ) {
                ([Target::Schema(old)], [Target::Schema(new)])
                    if *old_keyword == "$ref" && old_keyword == new_keyword =>
                {
                    Some((*old, *new))
                }
                _ => None,
            };
            if old.len() == new.len() { old.iter().zip(new).map(pair).collect() } else { None }
        };
        match pairs {
            // Both have to hold what they refer to as well as their own keywords.
            Some(pairs) => {
                for (old, new) in pairs {
                    self.later(Some(old), Some(new), path.into());
                }
                false
            }
            None => {
                self.tell(Verdict::CannotTell, path, "the references change");
                false
            }
        }
    }

    /// Compares types. Returns those that the old schema allows.
    fn types(&mut self, old: &Map<String, Value>, new: &Map<String, Value>, path: &str) -> Vec<&'static str> {
        let (before, after) = (types(old), types(new));
        let removed: Vec<&str> = before
            .iter()
            .filter(|one| !(after.contains(one) || **one == "integer" && after.contains(&"number")))
            .copied()
            .collect();
        let added = after.iter().any(|one| !(before.contains(one) || *one == "integer" && before.contains(&"number")));
        if !removed.is_empty() {
            let narrowed = removed == ["number"] && after.contains(&"integer");
            let message = if narrowed {
                "the type is narrowed from number to integer".to_string()
            } else {
                format!("a type is not allowed any more: {}", removed.join(", "))
            };
            self.tell(Verdict::Breaking, below(path, "type"), message);
        } else if added {
            self.tell(Verdict::Compatible, below(path, "type"), "more types are allowed");
        }
        before
    }

    /// Compares `enum` and `const`.
    fn values(&mut self, old: &Map<String, Value>, new: &Map<String, Value>, path: &str) {
        let before = allowed(old);
        for keyword in ["const", "enum"] {
            let Some(after) = allowed_by(new, keyword) else { continue };
            let path = below(path, keyword);
            let Some(before) = &before else {
                self.tell(Verdict::Breaking, path, "only certain values are allowed now");
                continue;
            };
            let after: HashSet<String> = after.into_iter().map(canonical).collect();
            let removed = before.iter().filter(|(value, _)| !after.contains(value)).map(|(_, shown)| shown.as_str());
            let removed: Vec<&str> = removed.collect();
            if removed.is_empty() {
                if after.len() > before.len() {
                    self.tell(Verdict::Compatible, path, "more values are allowed");
                }
            } else {
                let more = removed.len().saturating_sub(5);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let first = removed[..removed.len().min(5)].join(", ");
                self.tell(Verdict::Breaking, path, format!("values are not allowed any more: {first}{more}"));
            }
        }
        if before.is_some() && allowed(new).is_none() {
            self.tell(Verdict::Compatible, path, "other values are allowed as well");
        }
    }

    /// Compares what strings have to be.
    fn texts(&mut self, old: &Map<String, Value>, new: &Map<String, Value>, path: &str) {
        let asserts_content = self.old.graph.dialect == Dialect::Draft7;
        let cases = [
            ("pattern", true, true),
            ("format", self.old.strict, self.new.strict),
            ("contentEncoding", asserts_content, asserts_content),
            ("contentMediaType", asserts_content, asserts_content),
        ];
        for (keyword, asserted_before, asserted_after) in cases {
            let before = old.get(keyword).filter(|_| asserted_before);
            let after = new.get(keyword).filter(|_| asserted_after);
            let (verdict, message) = match (before, after) {
                (None, Some(after)) => (Verdict::Breaking, format!("strings have to match {} now", shown(after))),
                // What is judged now is the string itself, not what it encodes.
                (Some(_), None) if keyword == "contentEncoding" && new.contains_key("contentMediaType") => {
                    (Verdict::Breaking, "strings are not decoded any more before their content is judged".to_string())
                }
                (Some(before), None) => {
                    (Verdict::Compatible, format!("strings need not match {} any more", shown(before)))
                }
                (Some(before), Some(after)) if before != after => {
                    (Verdict::CannotTell, format!("strings have to match {} now, not {}", shown(after), shown(before)))
                }
                _ => continue,
            };
            self.tell(verdict, below(path, keyword), message);
        }
    }

    /// All of them have to hold, so each can be compared with its counterpart.
    fn all_of(&mut self, old: usize, new: usize, path: &str) {
        let of = |graph: &super::super::graph::Graph<'_>, at| -> Vec<usize> {
            graph.held(at).filter(|(keyword, ..)| *keyword == "allOf").map(|(.., at)| at).collect()
        };
        let (before, after) = (of(&self.old.graph, old), of(&self.new.graph, new));
        let path = below(path, "allOf");
        if before.len() == after.len() {
            for (index, (old, new)) in before.into_iter().zip(after).enumerate() {
                self.later(Some(old), Some(new), below(&path, &index.to_string()));
            }
        } else {
            let message = format!("there are {} schemas now, not {}", after.len(), before.len());
            self.tell(Verdict::CannotTell, path, message);
        }
    }

    /// Compares what is only compared for being equal.
    fn opaque(&mut self, old: usize, new: usize, path: &str) {
        let differs = OPAQUE.into_iter().find(|keyword| !self.is_keyword_same(old, new, keyword));
        if let Some(keyword) = differs {
            let message = format!("`{keyword}` changes: whether it still holds is not known");
            self.tell(Verdict::CannotTell, below(path, keyword), message);
        }
        let rest = ["unevaluatedProperties", "unevaluatedItems"];
        let evaluates = |value: &Value| rest.iter().find(|keyword| value.get(**keyword).is_some()).copied();
        let rest = evaluates(self.old.value(Some(old))).or_else(|| evaluates(self.new.value(Some(new))));
        if let (Some(keyword), None) = (rest, differs)
            && !self.equality.is_same(old, new)
        {
            let message = format!("the schema changes, and `{keyword}` depends on all of it");
            self.tell(Verdict::CannotTell, below(path, keyword), message);
        }
    }

    /// Whether a keyword is equal on both sides.
    fn is_keyword_same(&mut self, old: usize, new: usize, keyword: &str) -> bool {
        let (before, after) = (self.old.keyword(old, keyword), self.new.keyword(new, keyword));
        let (Some(before), Some(after)) = (before, after) else { return before.is_none() && after.is_none() };
        let held = |graph: &super::super::graph::Graph<'_>, at| -> Vec<(String, usize)> {
            let all = graph.held(at).filter(|(held_in, ..)| *held_in == keyword);
            all.map(|(_, segment, at)| (format!("{segment:?}"), at)).collect()
        };
        let (old, new) = (held(&self.old.graph, old), held(&self.new.graph, new));
        if old.is_empty() && new.is_empty() {
            return before == after;
        }
        let names = |value: &Value| value.as_object().map(|map| map.values().filter(|value| value.is_array()).count());
        if names(before) != names(after) || (names(before) > Some(0) && before != after) {
            return false;
        }
        old.len() == new.len()
            && old.iter().zip(&new).all(|(old, new)| old.0 == new.0 && self.equality.is_same(old.1, new.1))
    }
}

/// Whether a keyword says nothing about which documents are valid.
fn is_annotation(name: &str) -> bool {
    let asserted = [
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "type",
        "enum",
        "const",
        "pattern",
        "format",
        "contentEncoding",
        "contentMediaType",
        "allOf",
        "properties",
        "patternProperties",
        "additionalProperties",
        "required",
        "items",
        "prefixItems",
        "additionalItems",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "uniqueItems",
    ];
    !asserted.contains(&name) && !OPAQUE.contains(&name)
}

/// Whether everything is valid.
fn is_void(schema: &Map<String, Value>) -> bool {
    schema.keys().all(|name| is_annotation(name))
}

/// The types that a schema allows.
fn types(schema: &Map<String, Value>) -> Vec<&'static str> {
    let known = |name: &str| TYPES.into_iter().chain(["integer"]).find(|one| *one == name);
    match schema.get("type") {
        Some(Value::String(name)) => known(name).into_iter().collect(),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).filter_map(known).collect(),
        _ => TYPES.to_vec(),
    }
}

/// A value as a text that equal values share.
fn canonical(value: &Value) -> String {
    match value {
        Value::Number(number) => {
            let text = number.to_string();
            let decimal = Decimal::read(&text);
            decimal.canonical()
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| format!("{name:?}:{}", canonical(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// The values that a keyword allows.
fn allowed_by<'v>(schema: &'v Map<String, Value>, keyword: &str) -> Option<Vec<&'v Value>> {
    match (keyword, schema.get(keyword)?) {
        ("enum", Value::Array(values)) => Some(values.iter().collect()),
        ("const", value) => Some(vec![value]),
        _ => None,
    }
}

/// The values that a schema allows, with what is shown of them.
fn allowed(schema: &Map<String, Value>) -> Option<Vec<(String, String)>> {
    let values = allowed_by(schema, "const").or_else(|| allowed_by(schema, "enum"))?;
    Some(values.into_iter().map(|value| (canonical(value), shown(value))).collect())
}

/// A value in a message.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => clip(text, 60),
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
        other => other.to_string(),
    }
}
