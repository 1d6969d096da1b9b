//! What has to be done so that the server has what the documents say. Decided from both without asking anybody.

use std::collections::BTreeSet;

use serde_json::Value;

use super::documents::{Document, Faults, Place};
use super::kinds::{Kind, Name};
use super::normal::same;
use super::present::{ANCHOR, Present, Thing};
use super::sets::{Owner, Sets};
use super::versions::{self, VersionStep};
use crate::failure::Failure;

/// What is done to a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Create,
    Change,
    /// Nothing of it changes; from now on it is the set's.
    Adopt,
    Delete,
    Unchanged,
}

impl Action {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Change => "change",
            Self::Adopt => "adopt",
            Self::Delete => "delete",
            Self::Unchanged => "unchanged",
        }
    }
}

/// A field that differs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    pub(crate) field: &'static str,
    pub(crate) from: Value,
    pub(crate) to: Value,
}

/// What is done to one thing.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) name: Name,
    pub(crate) action: Action,
    pub(crate) differences: Vec<Difference>,
    pub(crate) versions: Vec<VersionStep>,
    /// Whether the set takes over what somebody else has made.
    pub(crate) adopts: bool,
    pub(crate) note: Option<String>,
    /// What it is to be; none of what is deleted.
    pub(crate) document: Option<Document>,
}

/// All steps, in the order in which they are taken.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
}

impl Plan {
    /// The steps that change something.
    pub(crate) fn changes(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.action != Action::Unchanged)
    }

    pub(crate) fn count(&self, action: Action) -> usize {
        self.steps.iter().filter(|step| step.action == action).count()
    }
}

/// How a plan is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wishes {
    /// Delete what the set has made and the documents no longer have.
    pub(crate) prune: bool,
    /// Take over what exists already.
    pub(crate) adopt: bool,
}

/// Makes the plan.
///
/// # Errors
/// All that is wrong with the documents, seen beside what the server has.
pub(crate) fn plan(documents: &[Document], present: &Present, sets: &Sets, wishes: Wishes) -> Result<Plan, Failure> {
    let mut faults = Faults::default();
    let named: BTreeSet<Name> = documents.iter().map(|document| present.own_name(&document.name)).collect();
    let mut steps: Vec<Step> = Vec::with_capacity(documents.len());
    for document in documents {
        References { document, present, named: &named }.check(&mut faults);
        let name = present.own_name(&document.name);
        let step = match present.things.get(&name) {
            None => create(name, document),
            Some(thing) => change(name, document, thing, sets, wishes.adopt),
        };
        match step {
            Ok(step) => steps.push(step),
            Err(text) => faults.add(&document.place, text),
        }
    }
    faults.none()?;
    steps.sort_by_key(|step| step.name.kind);
    if wishes.prune {
        let mut gone: Vec<Step> = sets
            .owned(present)
            .into_iter()
            .filter(|name| !named.contains(name))
            .filter_map(|name| {
                let thing = present.things.get(&name)?;
                Some(delete(name, thing))
            })
            .collect();
        gone.reverse();
        steps.extend(gone);
    }
    Ok(Plan { steps })
}

fn create(name: Name, document: &Document) -> Result<Step, String> {
    let versions = match name.kind {
        Kind::EventType => steps_of_versions(document, &Value::Null)?.0,
        _ => Vec::new(),
    };
    let (differences, adopts, note) = (Vec::new(), false, None);
    let document = Some(document.clone());
    Ok(Step { name, action: Action::Create, differences, versions, adopts, note, document })
}

fn change(name: Name, document: &Document, thing: &Thing, sets: &Sets, adopt: bool) -> Result<Step, String> {
    let mut note = None;
    let mut versions = Vec::new();
    if name.kind == Kind::EventType {
        let (steps, unsaid) = steps_of_versions(document, &thing.fields["versions"])?;
        versions = steps;
        if !unsaid.is_empty() {
            note = Some(format!("stays as it is: version {}", unsaid.join(", ")));
        }
    }
    let mut differences = Vec::new();
    for field in name.kind.fields().iter().filter(|field| !matches!(field.name, "client" | "versions")) {
        let Some(to) = document.fields.get(field.name) else { continue };
        let from = thing.fields.get(field.name).cloned().unwrap_or_default();
        let is_same = match (name.kind, field.name) {
            (Kind::Schema, "content") => super::normal::same_schema(&thing.fields["schemaType"], to, &from),
            _ => same(to, &from),
        };
        if !is_same {
            differences.push(Difference { field: field.name, from, to: to.clone() });
        }
    }
    let is_changed = !(differences.is_empty() && versions.is_empty());
    if name.kind == Kind::EventType && is_changed && thing.fields["status"] == "ARCHIVE" {
        return Err(format!("{name} is archived and does not change any more: use another code"));
    }
    let adopts = match sets.owner(&name, thing) {
        Owner::This => false,
        Owner::Other(other) if !adopt => {
            let text = format!("{name} belongs to the set {other}: take it out of one of the two, or pass --adopt");
            return Err(text);
        }
        Owner::Nobody if !adopt => {
            note.get_or_insert_with(|| "not made by a set: --prune leaves it (--adopt takes it over)".into());
            false
        }
        Owner::Other(_) | Owner::Nobody => true,
    };
    let action = match (is_changed, adopts) {
        (true, _) => Action::Change,
        (false, true) => Action::Adopt,
        (false, false) => Action::Unchanged,
    };
    let document = Some(document.clone());
    Ok(Step { name, action, differences, versions, adopts, note, document })
}

fn delete(name: Name, thing: &Thing) -> Step {
    let (action, note) = match name.kind {
        Kind::EventType if thing.fields["status"] == "ARCHIVE" => {
            (Action::Unchanged, Some("archived already".to_owned()))
        }
        Kind::EventType => {
            (Action::Delete, Some("archived: types are never removed, and it cannot be undone".to_owned()))
        }
        Kind::Queue => (Action::Unchanged, Some("no longer in the documents; queues cannot be deleted".to_owned())),
        _ => (Action::Delete, None),
    };
    Step { name, action, differences: Vec::new(), versions: Vec::new(), adopts: false, note, document: None }
}

fn steps_of_versions(document: &Document, present: &Value) -> Result<(Vec<VersionStep>, Vec<String>), String> {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let wanted = list(document.fields.get("versions"));
    versions::steps(&wanted, &list(Some(present))).map_err(|why| format!("{}: {why}", document.name))
}

/// Checks that what a document names exists, or is among the documents.
struct References<'a> {
    document: &'a Document,
    present: &'a Present,
    named: &'a BTreeSet<Name>,
}

impl References<'_> {
    fn check(&self, faults: &mut Faults) {
        let Document { name, fields, place } = self.document;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if name.kind == Kind::Schedule && self.present.is_scoped {
            faults.add(place, "schedules need credentials that belong to no client");
        }
        self.client(name.client.as_deref(), "client", place, faults);
        match name.kind {
            Kind::Subscription => {
                if let Some(queue) = text(&fields["target"]).as_deref().and_then(|target| target.strip_prefix("queue:"))
                {
                    self.queue(name.client.clone(), queue, "target", place, faults);
                }
                if let Some(pool) = text(&fields["dispatchPool"])
                    && !self.has_pool(&pool)
                {
                    let whose = if name.client.is_some() {
                        "of its client or of the anchor level"
                    } else {
                        "of the anchor level"
                    };
                    faults.add(place, format!("dispatchPool: there is no pool {pool} {whose}"));
                }
                if let Some(account) = text(&fields["serviceAccount"])
                    && self.present.account_id(name.client.as_deref(), &account).is_none()
                {
                    let whose = if name.client.is_some() { "of its client" } else { "of the anchor level" };
                    let text = format!("serviceAccount: there is no service account {account} {whose}");
                    faults.add(
                        place,
                        format!("{text}: make it with `tidegate accounts create`, documents hold no secrets"),
                    );
                }
                for (at, binding) in fields["eventTypes"].as_array().into_iter().flatten().enumerate() {
                    let Some(code) = text(&binding["eventType"]) else { continue };
                    if !self.has(Kind::EventType, None, &code) {
                        let text = format!("eventTypes[{at}].eventType: there is no event type {code}");
                        faults.add(place, format!("{text}: add its document, or say eventTypeCode"));
                    }
                }
            }
            Kind::Schedule => {
                let client = text(&fields["event"]["client"]);
                self.client(client.as_deref(), "event.client", place, faults);
                self.queue(client, &text(&fields["event"]["queue"]).unwrap_or_default(), "event.queue", place, faults);
            }
            _ => {}
        }
    }

    fn has(&self, kind: Kind, client: Option<String>, code: &str) -> bool {
        let name = self.present.own_name(&Name { kind, client, code: code.to_owned() });
        self.named.contains(&name) || self.present.things.contains_key(&name)
    }

    fn client(&self, code: Option<&str>, field: &str, place: &Place, faults: &mut Faults) {
        let Some(code) = code else { return };
        if !self.has(Kind::Client, None, code) && self.present.client_id(code).is_none() {
            faults.add(place, format!("{field}: there is no client {code}: add its document, or create it"));
        }
    }

    fn queue(&self, client: Option<String>, queue: &str, field: &str, place: &Place, faults: &mut Faults) {
        // A client's own `default` is made when it is first used.
        if queue != "default" && !self.has(Kind::Queue, client, queue) {
            faults.add(place, format!("{field}: there is no queue {queue}: add its document, or create it"));
        }
    }

    fn has_pool(&self, named: &str) -> bool {
        match named.strip_prefix(ANCHOR) {
            Some(code) => self.has(Kind::Pool, None, code),
            None => {
                let client = self.document.name.client.clone();
                self.has(Kind::Pool, client, named) || self.has(Kind::Pool, None, named)
            }
        }
    }
}
