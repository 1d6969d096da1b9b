//! Makes requests from the OpenAPI document: each operation with the parameters it needs, then with one parameter at a
//! time set to a value of the caller or of another party.

use std::collections::BTreeMap;

use reqwest::{Method, RequestBuilder};
use serde_json::{Map, Value};

use super::parties::{Filler, Party, filler};
use crate::scene::Scene;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Path,
    Query,
    Header,
    Body,
    /// In each item of the body's `events` or `jobs`.
    Item,
}

type Name = (Place, String);

/// An operation of the document.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) id: String,
    pub(super) method: Method,
    path: String,
    /// Whether a call needs the parameter, by name.
    parameters: BTreeMap<Name, bool>,
    /// The field of the body that has items, if one does.
    items: Option<String>,
}

/// Parameters that a call needs although the document has them as optional, since any one of several is enough.
const NEEDED: [(&str, &str); 8] = [
    ("subscribe", "queue"),
    ("claim_events", "queue"),
    ("complete_events", "worker_id"),
    ("fail_events", "worker_id"),
    ("create_subscription", "code"),
    ("create_dispatch_pool", "code"),
    ("create_service_account", "code"),
    ("change_dispatch_jobs", "action"),
];

impl Operation {
    /// All operations of the document.
    pub(super) fn all() -> Vec<Self> {
        let document: Value = serde_json::from_str(&tidegate_server::openapi()).unwrap();
        let mut all = Vec::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let id = operation["operationId"].as_str().unwrap().to_owned();
                let method = method.to_uppercase().parse().unwrap();
                let mut new = Self { id, method, path: path.clone(), parameters: BTreeMap::new(), items: None };
                new.read(operation, &document);
                all.push(new);
            }
        }
        assert!(!all.is_empty());
        all
    }

    fn read(&mut self, operation: &Value, document: &Value) {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let place = match parameter["in"].as_str() {
                Some("path") => Place::Path,
                Some("query") => Place::Query,
                Some("header") => Place::Header,
                other => panic!("a parameter in {other:?} cannot be sent: {parameter}"),
            };
            self.add(place, parameter["name"].as_str().unwrap(), parameter["required"] == true);
        }
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        if !body.is_null() {
            self.read_body(Place::Body, resolved(body, document), document);
        }
    }

    fn read_body(&mut self, place: Place, schema: &Value, document: &Value) {
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, property) in schema["properties"].as_object().unwrap_or_else(|| panic!("no fields: {schema}")) {
            if matches!(name.as_str(), "events" | "jobs") && place == Place::Body {
                self.items = Some(name.clone());
                self.read_body(Place::Item, resolved(&property["items"], document), document);
            } else {
                self.add(place, name, required.contains(&name.as_str()));
            }
        }
    }

    fn add(&mut self, place: Place, name: &str, required: bool) {
        let known = filler(&self.path, name).is_some();
        assert!(known, "say in `filler` how to fill {name} of {} {}", self.method, self.path);
        let needed = required || NEEDED.contains(&(self.id.as_str(), name));
        self.parameters.insert((place, name.into()), needed);
    }

    /// Calls with values of the caller, then with values of other parties.
    pub(super) fn calls(&self, own: &Party, others: &[Party]) -> Vec<Call<'_>> {
        let needed = self.parameters.iter().filter(|(_, needed)| **needed);
        let first = |name: &Name| values(&self.path, &name.1, own, true).into_iter().next().unwrap();
        let base: BTreeMap<Name, Value> = needed.map(|(name, _)| (name.clone(), first(name))).collect();
        let mut calls = vec![Call { operation: self, values: base.clone() }];
        let parties = [own].into_iter().chain(others);
        for (place, party) in parties.enumerate() {
            for name in self.parameters.keys() {
                for value in values(&self.path, &name.1, party, place == 0) {
                    let mut values = base.clone();
                    values.insert(name.clone(), value);
                    calls.push(Call { operation: self, values });
                }
            }
            if place > 0 {
                calls.extend(self.as_if_it_were(party, &base));
            }
        }
        calls
    }

    /// Calls that name what belongs to a party, and its client where the operation takes one: one call for each of its
    /// entries, and one where the operation takes none. Cursors are left out: they are refused for their form.
    pub(super) fn calls_about(&self, party: &Party) -> Vec<Call<'_>> {
        let cursors = ["cursor", "logs_cursor"];
        let names = self.parameters.iter().filter(|(name, _)| !cursors.contains(&name.1.as_str()));
        let mut known = BTreeMap::new();
        for (name, needed) in names {
            let found = match filler(&self.path, &name.1) {
                Some(Filler::Of(values)) => values(party),
                Some(Filler::Neutral(values)) if *needed => values,
                _ => Vec::new(),
            };
            // The last one is a name of the party's own, where others have names that all share.
            known.extend(found.into_iter().last().map(|value| (name.clone(), value)));
        }
        // Below /api an id is that of something else, which `filler` has named.
        let takes_entry = !self.path.starts_with("/api/") && self.parameters.keys().any(|name| name.1 == "id");
        if !takes_entry {
            return vec![Call { operation: self, values: known }];
        }
        let of_entry = |id: &i64| {
            let mut values = known.clone();
            values.iter_mut().filter(|(name, _)| name.1 == "id").for_each(|(_, value)| *value = (*id).into());
            Call { operation: self, values }
        };
        party.ids.iter().map(of_entry).collect()
    }

    /// Calls that name everything another party would name: its worker, its lease, its queue.
    fn as_if_it_were<'a>(&'a self, party: &Party, base: &BTreeMap<Name, Value>) -> Vec<Call<'a>> {
        let said = |at: usize| {
            let mut known = base.clone();
            for name in self.parameters.keys().filter(|name| name.1 != "client") {
                let Some(Filler::Of(values)) = filler(&self.path, &name.1) else { continue };
                let values = values(party);
                if let Some(value) = values.get(at.min(values.len().saturating_sub(1))) {
                    known.insert(name.clone(), value.clone());
                }
            }
            Call { operation: self, values: known }
        };
        (0..2).map(said).collect()
    }
}

fn values(path: &str, name: &str, party: &Party, is_own: bool) -> Vec<Value> {
    match filler(path, name) {
        Some(Filler::Of(values)) => values(party),
        Some(Filler::Neutral(values)) if is_own => values,
        _ => Vec::new(),
    }
}

fn resolved<'a>(schema: &'a Value, document: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(name) => document.pointer(name.trim_start_matches('#')).unwrap_or_else(|| panic!("there is no {name}")),
        None => schema,
    }
}

/// One request.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) operation: &'a Operation,
    values: BTreeMap<Name, Value>,
}

impl Call<'_> {
    fn of(&self, place: Place) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().filter(move |(name, _)| name.0 == place).map(|(name, value)| (name.1.as_str(), value))
    }

    pub(super) fn request(&self, scene: &Scene) -> RequestBuilder {
        let operation = self.operation;
        let mut path = operation.path.clone();
        for (name, value) in self.of(Place::Path) {
            path = path.replace(&format!("{{{name}}}"), &text(value));
        }
        assert!(!path.contains('{'), "a part of {path} is not filled");
        let query: Vec<(&str, String)> = self.of(Place::Query).map(|(name, value)| (name, text(value))).collect();
        let mut request = scene.request(operation.method.clone(), &path).query(&query);
        for (name, value) in self.of(Place::Header) {
            request = request.header(name, text(value));
        }
        let fields = |place| -> Map<String, Value> {
            self.of(place).map(|(name, value)| (name.to_owned(), value.clone())).collect()
        };
        let mut body = fields(Place::Body);
        if let Some(items) = &operation.items {
            body.insert(items.clone(), Value::Array(vec![fields(Place::Item).into()]));
        }
        let takes_body = operation.parameters.keys().any(|(place, _)| matches!(place, Place::Body | Place::Item));
        if takes_body { request.json(&body) } else { request }
    }

    /// The cursor of the request, if it is a number.
    pub(super) fn cursor(&self) -> Option<i64> {
        self.values.get(&(Place::Query, "cursor".into())).and_then(|cursor| text(cursor).parse().ok())
    }

    /// Everything that was sent, as text; of arrays and objects what they hold.
    pub(super) fn sent(&self) -> Vec<String> {
        let mut sent = Vec::new();
        self.values.values().for_each(|value| add_texts(value, &mut sent));
        sent
    }
}

fn add_texts(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| add_texts(item, texts)),
        Value::Object(fields) => fields.values().for_each(|field| add_texts(field, texts)),
        other => texts.push(text(other)),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
