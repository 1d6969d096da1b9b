//! What the server has, read over HTTP and brought into the form of documents: ids of clients, pools, accounts and types become
//! codes.

use std::collections::{BTreeMap, HashMap};

use reqwest::StatusCode;
use serde_json::{Map, Value, json};

use super::kinds::{Kind, Name};
use super::normal;
use crate::client::{Client, all, is_status, path_part};
use crate::failure::Failure;
use crate::output::cell;

/// What is before the code of a pool or an account of the anchor level where a client has one of the same code. Codes have no colon.
pub(crate) const ANCHOR: &str = "anchor:";

/// A thing that the server has.
#[derive(Debug, Clone)]
pub(crate) struct Thing {
    /// Every field of its kind.
    pub(crate) fields: Map<String, Value>,
    /// What tells it from a later one of the same name; of a queue nothing does.
    pub(crate) identity: Option<String>,
    /// When it was created.
    pub(crate) created_at: String,
    /// Its entity tag, once it was read by itself.
    pub(crate) tag: Option<String>,
}

/// What the server has.
#[derive(Debug, Default)]
pub(crate) struct Present {
    pub(crate) things: BTreeMap<Name, Thing>,
    /// Whether the caller belongs to a client: it then sees only that client's, and says nothing of clients.
    pub(crate) is_scoped: bool,
    clients: Codes,
    pools: Owned,
    /// Service accounts. Documents name them and do not make them: they have secrets. They serve their own clients alone.
    accounts: Owned,
    types: Codes,
}

/// The clients and the codes of things by their ids, which things of the same client name by code, and others by that of the
/// anchor level.
#[derive(Debug, Default)]
struct Owned(HashMap<String, (Option<String>, String)>);

impl Owned {
    fn id(&self, client: Option<&str>, named: &str) -> Option<String> {
        let find = |client: Option<&str>, code: &str| {
            let found = self.0.iter().find(|(_, (of, own))| of.as_deref() == client && own == code);
            found.map(|(id, _)| id.clone())
        };
        match named.strip_prefix(ANCHOR) {
            Some(code) => find(None, code),
            None => find(client, named).or_else(|| find(None, named)),
        }
    }

    fn code(&self, client: Option<&str>, id: &str) -> String {
        let Some((of, code)) = self.0.get(id) else { return id.to_owned() };
        let is_hidden = of.is_none() && client.is_some() && self.id(client, code).is_none_or(|found| found != id);
        if is_hidden { format!("{ANCHOR}{code}") } else { code.clone() }
    }
}

/// Ids and codes, both ways.
#[derive(Debug, Default)]
struct Codes {
    by_id: HashMap<String, String>,
    by_code: HashMap<String, String>,
}

impl Codes {
    fn add(&mut self, id: &str, code: &str) {
        self.by_id.insert(id.to_owned(), code.to_owned());
        self.by_code.insert(code.to_owned(), id.to_owned());
    }

    /// The code of an id, or the id itself: of a client that nobody has registered.
    fn code(&self, id: &str) -> String {
        self.by_id.get(id).cloned().unwrap_or_else(|| id.to_owned())
    }
}

impl Present {
    /// Reads everything but the texts of schemas and the versions of types.
    pub(crate) async fn read(client: &Client) -> Result<Self, Failure> {
        let mut present = Self::default();
        let schedules = match client.get("/schedules", &[]).await {
            Err(refused) if is_status(&refused, StatusCode::FORBIDDEN) => {
                present.is_scoped = true;
                Value::Null
            }
            found => found?,
        };
        for item in all(client, "/api/clients", &[]).await? {
            present.add_client(&item);
        }
        for item in client.get("/queues", &[]).await?["queues"].as_array().into_iter().flatten() {
            let (name, fields) = (present.name(Kind::Queue, item), present.fields(Kind::Queue, item));
            present.put(name, item, fields);
        }
        for item in all(client, "/api/service-accounts", &[]).await? {
            let of = present.client_of(&item["clientId"]);
            present.accounts.0.insert(cell(&item, "id"), (of, cell(&item, "code")));
        }
        for kind in [Kind::Pool, Kind::EventType, Kind::Schema, Kind::Subscription] {
            for item in all(client, kind.path().unwrap_or_default(), &[]).await? {
                present.add(kind, &item)?;
            }
        }
        for item in schedules["schedules"].as_array().into_iter().flatten() {
            let (name, fields) = (present.name(Kind::Schedule, item), present.fields(Kind::Schedule, item));
            present.put(name, item, fields);
        }
        Ok(present)
    }

    fn add_client(&mut self, item: &Value) {
        self.clients.add(&cell(item, "id"), &cell(item, "code"));
        let (name, fields) = (self.name(Kind::Client, item), self.fields(Kind::Client, item));
        self.put(name, item, fields);
    }

    /// Takes in what the API answered about a thing.
    pub(crate) fn add(&mut self, kind: Kind, item: &Value) -> Result<Name, Failure> {
        let name = self.name(kind, item);
        let id = cell(item, "id");
        match kind {
            Kind::Client => {
                self.add_client(item);
                return Ok(name);
            }
            Kind::Pool => drop(self.pools.0.insert(id, (name.client.clone(), name.code.clone()))),
            Kind::EventType => self.types.add(&id, &name.code),
            // That of a version is said with its version.
            Kind::Schema if !item["eventTypeId"].is_null() => return Ok(name),
            Kind::Schema => {
                if self.things.get(&name).is_some_and(|known| known.identity.as_ref() != Some(&id)) {
                    let text = format!("several schemas on the server are called {:?}: rename all but one", name.code);
                    return Err(text.into());
                }
            }
            Kind::Queue | Kind::Subscription | Kind::Schedule => {}
        }
        let fields = self.fields(kind, item);
        self.put(name.clone(), item, fields);
        Ok(name)
    }

    fn put(&mut self, name: Name, item: &Value, fields: Map<String, Value>) {
        let identity = match name.kind {
            Kind::Queue => None,
            Kind::Schedule => item["created_at"].as_str(),
            _ => item["id"].as_str(),
        };
        let created_at = item["createdAt"].as_str().or(item["created_at"].as_str()).unwrap_or_default().to_owned();
        let tag = self.things.get(&name).and_then(|known| known.tag.clone());
        self.things.insert(name, Thing { fields, identity: identity.map(str::to_owned), created_at, tag });
    }

    /// Forgets a thing that is gone.
    pub(crate) fn remove(&mut self, name: &Name) {
        self.things.remove(name);
    }

    /// Notes the entity tag of a thing.
    pub(crate) fn tagged(&mut self, name: &Name, tag: Option<String>) {
        if let Some(thing) = self.things.get_mut(name) {
            thing.tag = tag;
        }
    }

    /// Reads a thing by itself: as it is now, with its texts and its entity tag.
    pub(crate) async fn refresh(&mut self, client: &Client, name: &Name) -> Result<(), Failure> {
        let Some(id) = self.things.get(name).and_then(|thing| thing.identity.clone()) else { return Ok(()) };
        let Some(path) = name.kind.path() else { return Ok(()) };
        match client.get_tagged(&format!("{path}/{}", path_part(&id))).await {
            Err(gone) if is_status(&gone, StatusCode::NOT_FOUND) => self.remove(name),
            found => {
                let (item, tag) = found?;
                self.add(name.kind, &item)?;
                self.tagged(name, tag);
            }
        }
        Ok(())
    }

    /// The code of a client by its id; the id of one that nobody has registered.
    pub(crate) fn client_code(&self, id: &str) -> String {
        self.clients.code(id)
    }

    /// The code of a client by its id; `None` where nothing is said of clients.
    fn client_of(&self, id: &Value) -> Option<String> {
        id.as_str().filter(|_| !self.is_scoped).map(|id| self.clients.code(id))
    }

    /// The id of a client by its code, or by itself.
    pub(crate) fn client_id(&self, code: &str) -> Option<String> {
        let is_id = |text: &&str| {
            text.len() == 13 && text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
        };
        let known = self.clients.by_code.get(code).cloned();
        known.or_else(|| Some(code).filter(is_id).map(str::to_owned))
    }

    /// The name of a client's document, as the caller says it: one of a client says nothing of clients.
    pub(crate) fn own_name(&self, name: &Name) -> Name {
        let client = name.client.clone().filter(|code| !(self.is_scoped && self.clients.by_code.contains_key(code)));
        Name { client, ..name.clone() }
    }

    /// The id of an event type by its code.
    pub(crate) fn type_id(&self, code: &str) -> Option<String> {
        self.types.by_code.get(code).cloned()
    }

    /// The pool that a subscription of a client names: the client's own, else that of the anchor level.
    pub(crate) fn pool_id(&self, client: Option<&str>, named: &str) -> Option<String> {
        self.pools.id(client, named)
    }

    /// The service account that a subscription of a client names: one of that client alone.
    pub(crate) fn account_id(&self, client: Option<&str>, named: &str) -> Option<String> {
        let found = self.accounts.0.iter().find(|(_, (of, code))| of.as_deref() == client && code == named);
        found.map(|(id, _)| id.clone())
    }

    fn name(&self, kind: Kind, item: &Value) -> Name {
        let client = match kind {
            Kind::Queue => self.client_of(&item["client"]),
            Kind::Pool | Kind::Subscription => self.client_of(&item["clientId"]),
            _ => None,
        };
        Name { kind, client, code: cell(item, kind.key()) }
    }

    /// What the API answers about a thing, as fields of its kind.
    pub(crate) fn shows(&self, kind: Kind, item: &Value) -> Map<String, Value> {
        self.fields(kind, item)
    }

    /// The fields of a kind, out of what the API answers.
    fn fields(&self, kind: Kind, item: &Value) -> Map<String, Value> {
        let field = |name: &str| (name.to_owned(), item[name].clone());
        let mut fields: Map<String, Value> = kind.fields().iter().map(|known| field(known.name)).collect();
        match kind {
            Kind::Queue => drop(fields.insert("client".into(), json!(self.client_of(&item["client"])))),
            Kind::Pool => drop(fields.insert("client".into(), json!(self.client_of(&item["clientId"])))),
            Kind::EventType => drop(fields.insert("versions".into(), versions(&item["specVersions"]))),
            Kind::Schema => drop(fields.remove("contentFile")),
            Kind::Subscription => {
                let client = self.client_of(&item["clientId"]);
                let pool = item["dispatchPoolId"].as_str().map(|id| self.pools.code(client.as_deref(), id));
                fields.insert("dispatchPool".into(), json!(pool));
                let account = item["serviceAccountId"].as_str().map(|id| self.accounts.code(client.as_deref(), id));
                fields.insert("serviceAccount".into(), json!(account));
                fields.insert("client".into(), json!(client));
                let bindings = item["eventTypes"].as_array().into_iter().flatten().map(|one| self.binding(one));
                fields.insert("eventTypes".into(), bindings.collect());
            }
            Kind::Schedule => {
                let mut event = item["event"].as_object().cloned().unwrap_or_default();
                if let Some(client) = self.client_of(&item["event"]["client"]) {
                    event.insert("client".into(), client.into());
                }
                normal::event(&mut event);
                fields.insert("event".into(), Value::Object(event));
            }
            Kind::Client => {}
        }
        normal::document(kind, &mut fields);
        fields
    }

    fn binding(&self, item: &Value) -> Value {
        let named = match item["eventTypeId"].as_str().and_then(|id| self.types.by_id.get(id)) {
            Some(code) => json!({ "eventType": code }),
            None => json!({ "eventTypeCode": item["eventTypeCode"] }),
        };
        let mut named = named;
        if !item["specVersion"].is_null() {
            named["specVersion"] = item["specVersion"].clone();
        }
        named
    }
}

/// The versions of a type as documents say them.
fn versions(items: &Value) -> Value {
    let one = |item: &Value| {
        let names = [
            "version",
            "status",
            "schemaType",
            "mimeType",
            "message",
            "strict",
            "schema",
            "schemaName",
            "schemaDescription",
        ];
        let mut version: Map<String, Value> =
            names.into_iter().map(|name| (name.to_owned(), item[name].clone())).collect();
        if let Some(reason) = item["force"]["reason"].as_str() {
            version.insert("force".into(), json!({ "reason": reason }));
        }
        Value::Object(version)
    };
    items.as_array().into_iter().flatten().map(one).collect()
}
