//! What sets of documents have made, as the server keeps it: only that is pruned.
//!
//! What is about to be made is written down before it is made, with a fingerprint, and its identity after that. So after a
//! crash in between it is known again: it came after the note and says exactly what was to be made. Whatever is in doubt
//! counts as made by hand.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::kinds::{Kind, Name};
use super::present::{Present, Thing};
use crate::client::{Client, all, is_status};
use crate::exact;
use crate::failure::Failure;
use crate::output::cell;

const PATH: &str = "/api/applied-sets";
/// How often the record is written again on what another apply has written.
const TRIES: usize = 8;

/// A thing in the record of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) name: Name,
    pub(crate) identity: Option<String>,
    pending: Option<String>,
}

/// A set's record.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    id: String,
    pub(crate) code: String,
    updated_at: String,
    tag: Option<String>,
    pub(crate) items: Vec<Item>,
}

/// The records of all sets that the caller sees.
#[derive(Debug)]
pub(crate) struct Sets {
    pub(crate) code: String,
    own: Option<Record>,
    /// The set that this one was called before.
    former: Option<Record>,
    others: Vec<Record>,
    /// Whether something of its own was recognised that is not written down yet.
    is_settled: bool,
}

/// Whose a thing is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Owner<'a> {
    /// This set's.
    This,
    /// Another set's.
    Other(&'a str),
    /// Nobody's: it was made by hand.
    Nobody,
}

impl Sets {
    /// Reads the records.
    pub(crate) async fn read(
        client: &Client,
        code: &str,
        former: Option<&str>,
        present: &Present,
    ) -> Result<Self, Failure> {
        let mut sets = Self { code: code.to_owned(), own: None, former: None, others: Vec::new(), is_settled: false };
        for item in all(client, PATH, &[]).await? {
            let of = item["clientId"].as_str().filter(|_| !present.is_scoped);
            let mut record = Record::of(&item, of.map(|id| present.client_code(id)).as_deref());
            record.settle(present);
            match record.code.as_str() {
                own if own == code && of.is_none() => sets.own = Some(record),
                own if Some(own) == former && of.is_none() => sets.former = Some(record),
                _ => sets.others.push(record),
            }
        }
        if let Some(own) = &mut sets.own {
            let (found, tag) = client.get_tagged(&format!("{PATH}/{}", own.id)).await?;
            let mut record = Record::of(&found, None);
            sets.is_settled = record.settle(present);
            *own = Record { tag, ..record };
        }
        Ok(sets)
    }

    /// Whose a thing is that the server has.
    pub(crate) fn owner(&self, name: &Name, thing: &Thing) -> Owner<'_> {
        let has = |record: &Record| record.items.iter().any(|item| item.name == *name && item.is(thing));
        if self.own.iter().chain(&self.former).any(has) {
            return Owner::This;
        }
        self.others.iter().find(|record| has(record)).map_or(Owner::Nobody, |record| Owner::Other(&record.code))
    }

    /// What this set has made, as far as the server still has it.
    pub(crate) fn owned(&self, present: &Present) -> Vec<Name> {
        let items = self.own.iter().chain(&self.former).flat_map(|record| &record.items);
        let here = items.filter(|item| present.things.get(&item.name).is_some_and(|thing| item.is(thing)));
        let mut names: Vec<Name> = here.map(|item| item.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Writes down what is about to be made and what is taken over; what the set has no longer is left out.
    pub(crate) async fn begin(
        &mut self,
        client: &Client,
        present: &Present,
        creates: &[(Name, String)],
        adopted: &[Name],
    ) -> Result<(), Failure> {
        let items = self.items_before(present, creates, adopted);
        let is_known =
            self.own.as_ref().is_some_and(|own| own.items == items) && self.former.is_none() && !self.is_settled;
        if is_known || (self.own.is_none() && items.is_empty()) {
            return Ok(());
        }
        self.own = Some(write(client, &self.code, self.own.as_ref(), items).await?);
        if let Some(former) = self.former.take() {
            client.delete(&format!("{PATH}/{}", former.id)).await?;
        }
        for record in
            self.others.iter_mut().filter(|record| record.items.iter().any(|item| adopted.contains(&item.name)))
        {
            let (found, tag) = client.get_tagged(&format!("{PATH}/{}", record.id)).await?;
            let found = Record { tag, ..Record::of(&found, None) };
            let left = found.items.iter().filter(|item| !adopted.contains(&item.name)).cloned().collect();
            *record = write(client, &found.code.clone(), Some(&found), left).await?;
        }
        Ok(())
    }

    fn items_before(&self, present: &Present, creates: &[(Name, String)], adopted: &[Name]) -> Vec<Item> {
        let mut items: Vec<Item> = Vec::new();
        for name in self.owned(present).iter().chain(adopted) {
            let identity = present.things.get(name).and_then(|thing| thing.identity.clone());
            if !items.iter().any(|item| item.name == *name) {
                items.push(Item { name: name.clone(), identity, pending: None });
            }
        }
        for (name, fingerprint) in creates {
            items.push(Item { name: name.clone(), identity: None, pending: Some(fingerprint.clone()) });
        }
        items.sort_by(|one, other| one.name.cmp(&other.name));
        items
    }

    /// Writes down what was made and what is gone. What another apply of the same set wrote meanwhile stays.
    pub(crate) async fn end(
        &mut self,
        client: &Client,
        made: &[(Name, Option<String>)],
        gone: &[Name],
        given_up: &[Name],
    ) -> Result<(), Failure> {
        for _ in 0..TRIES {
            let Some(own) = &self.own else { return Ok(()) };
            let mut items = own.items.clone();
            items.retain(|item| {
                let is_made = made.iter().any(|(name, _)| *name == item.name);
                let was_pending = item.pending.is_some() && given_up.contains(&item.name);
                !(is_made || was_pending || gone.contains(&item.name))
            });
            let new = |(name, identity): &(Name, Option<String>)| Item {
                name: name.clone(),
                identity: identity.clone(),
                pending: None,
            };
            items.extend(made.iter().map(new));
            items.sort_by(|one, other| one.name.cmp(&other.name));
            if items == own.items {
                return Ok(());
            }
            match write(client, &self.code, Some(own), items).await {
                Err(error) if is_status(&error, reqwest::StatusCode::PRECONDITION_FAILED) => {
                    let (found, tag) = client.get_tagged(&format!("{PATH}/{}", own.id)).await?;
                    self.own = Some(Record { tag, ..Record::of(&found, None) });
                }
                written => {
                    self.own = Some(written?);
                    return Ok(());
                }
            }
        }
        Err(format!("the record of the set {} keeps changing: apply once more", self.code).into())
    }
}

impl Item {
    /// Whether it is about this thing, and not about an earlier one of the same name.
    fn is(&self, thing: &Thing) -> bool {
        self.pending.is_none() && self.identity == thing.identity
    }

    fn read(item: &Value, of: Option<&str>) -> Option<Self> {
        let text = |name: &str| item[name].as_str().map(str::to_owned);
        let kind = Kind::named(item["kind"].as_str()?)?;
        let takes_client = matches!(kind, Kind::Queue | Kind::Pool | Kind::Subscription);
        let client = text("client").or_else(|| of.filter(|_| takes_client).map(str::to_owned));
        let name = Name { kind, client, code: text("code")? };
        Some(Self { name, identity: text("identity"), pending: text("pending") })
    }

    fn written(&self) -> Value {
        let mut item = json!({ "kind": self.name.kind.word(), "code": self.name.code });
        for (name, value) in [("client", &self.name.client), ("identity", &self.identity), ("pending", &self.pending)] {
            if let Some(value) = value {
                item[name] = json!(value);
            }
        }
        item
    }
}

impl Record {
    /// A record as the server shows it; that of a client (`of`) says nothing of clients.
    fn of(item: &Value, of: Option<&str>) -> Self {
        Self {
            id: cell(item, "id"),
            code: cell(item, "code"),
            updated_at: cell(item, "updatedAt"),
            tag: None,
            items: item["items"].as_array().into_iter().flatten().filter_map(|item| Item::read(item, of)).collect(),
        }
    }

    /// Recognises what an apply made that ended before it could write that down, and says whether there was any.
    fn settle(&mut self, present: &Present) -> bool {
        let mut is_settled = false;
        let since = self.updated_at.parse::<Timestamp>();
        for item in &mut self.items {
            let (Some(pending), Some(thing)) = (&item.pending, present.things.get(&item.name)) else { continue };
            let came_after = match (&since, thing.created_at.parse::<Timestamp>()) {
                (Ok(since), Ok(created)) => created >= *since,
                // Queues do not say when they were created, and are never deleted.
                _ => item.name.kind == Kind::Queue,
            };
            if came_after && fingerprint(item.name.kind, &item.name.code, &thing.fields) == *pending {
                (item.identity, item.pending) = (thing.identity.clone(), None);
                is_settled = true;
            }
        }
        is_settled
    }
}

/// A fingerprint of what a thing says when it has just been made: without what comes in later steps.
pub(crate) fn fingerprint(kind: Kind, code: &str, fields: &Map<String, Value>) -> String {
    let first = kind.fields().iter().filter(|field| field.when_absent(code).is_some() && field.name != "client");
    let said: Vec<(&str, Value)> = first.map(|field| (field.name, plain(fields.get(field.name)))).collect();
    let hash = Sha256::digest(serde_json::to_string(&said).unwrap_or_default());
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// A value whose numbers are written in one way.
fn plain(value: Option<&Value>) -> Value {
    match value {
        Some(Value::Number(number)) if number.is_f64() => match number.as_f64() {
            Some(whole) if whole.fract() == 0.0 && whole.abs() < 9e15 => json!(whole as i64),
            _ => Value::Number(number.clone()),
        },
        Some(long) if exact::digits(long).is_some() => exact::canonical(long).into(),
        Some(Value::Array(items)) => items.iter().map(|item| plain(Some(item))).collect(),
        Some(Value::Object(fields)) => {
            let sorted: BTreeMap<_, _> =
                fields.iter().map(|(name, value)| (name.clone(), plain(Some(value)))).collect();
            sorted.into_iter().collect()
        }
        other => other.cloned().unwrap_or_default(),
    }
}

/// Creates or changes a record, on what was read.
async fn write(client: &Client, code: &str, known: Option<&Record>, items: Vec<Item>) -> Result<Record, Failure> {
    let said: Vec<Value> = items.iter().map(Item::written).collect();
    let written = match known {
        None => {
            client.send_tagged(reqwest::Method::POST, PATH, Some(&json!({ "code": code, "items": said })), None).await
        }
        Some(record) => {
            let path = format!("{PATH}/{}", record.id);
            client
                .send_tagged(reqwest::Method::PUT, &path, Some(&json!({ "items": said })), record.tag.as_deref())
                .await
        }
    };
    let (item, tag) = written?;
    Ok(Record { tag, ..Record::of(&item, None) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_of_what_is_made_first() {
        let fields = |value: Value| value.as_object().cloned().unwrap();
        let one = fields(json!({ "code": "a", "name": "a", "concurrency": 10 }));
        let other = fields(json!({
            "code": "a", "client": "x", "name": "a", "concurrency": 10.0, "rateLimitPerMinute": null, "status": "SUSPENDED",
        }));
        assert_eq!(fingerprint(Kind::Pool, "a", &one), fingerprint(Kind::Pool, "a", &other));
        let changed = fields(json!({ "code": "a", "name": "b", "concurrency": 10 }));
        assert_ne!(fingerprint(Kind::Pool, "a", &one), fingerprint(Kind::Pool, "a", &changed));
    }
}
